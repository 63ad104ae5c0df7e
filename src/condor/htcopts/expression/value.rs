//! What is known of a value before it exists.

use super::ExpressionProblem;

/// Most bytes that a value may have, written out, and each of its parts.
pub(in crate::condor::htcopts) const MAX_BYTES: u64 = 4096;
/// Bytes that an attribute counts with. Longer ones of HTCondor's are rare, and no user's: those are checked.
pub(in crate::condor::htcopts) const ATTRIBUTE: u64 = 256;
/// Bytes that a number, a truth value or a time counts with.
const NUMBER: u64 = 40;

/// A value, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) kind: ValueKind,
    /// Most bytes of it, written out.
    pub(super) bytes: u64,
    /// The text, if it stands there.
    pub(super) literal: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number,
    Text,
    List,
    /// An attribute's, an item's: anything.
    Other,
}

impl<'a> Value<'a> {
    pub(super) const fn of(kind: ValueKind, bytes: u64) -> Self {
        Self { kind, bytes, literal: None }
    }

    pub(super) const fn number() -> Self {
        Self::of(ValueKind::Number, NUMBER)
    }

    pub(super) const fn attribute() -> Self {
        Self::of(ValueKind::Other, ATTRIBUTE)
    }

    pub(super) const fn text(literal: &'a str) -> Self {
        Self { kind: ValueKind::Text, bytes: literal.len() as u64, literal: Some(literal) }
    }

    /// One of the two.
    pub(super) fn or(self, other: Self) -> Self {
        let kind = if self.kind == other.kind { self.kind } else { ValueKind::Other };
        Self::of(kind, self.bytes.max(other.bytes))
    }
}

/// `bytes`, if they are not too many.
pub(super) fn limited(part: &'static str, bytes: u64) -> Result<u64, ExpressionProblem> {
    if bytes <= MAX_BYTES { Ok(bytes) } else { Err(ExpressionProblem::TooLarge { part, bytes }) }
}
