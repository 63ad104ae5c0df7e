//! Upper bounds of a value, computed without evaluating it.

use super::ExpressionProblem;

/// Maximum bytes of a value, and of each of its parts, as text.
pub(in crate::htcopts) const MAX_BYTES: u64 = 4096;
/// Assumed bytes of an attribute. HTCondor's own are rarely longer; users' attributes are checked.
pub(in crate::htcopts) const ATTRIBUTE: u64 = 256;
/// Assumed bytes of a number, a boolean or a time.
const NUMBER: u64 = 40;

/// Kind and size of a value, as far as they are known before its evaluation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) kind: ValueKind,
    /// Maximum bytes of the value as text.
    pub(super) bytes: u64,
    /// The string, if the value is a literal.
    pub(super) literal: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number,
    Text,
    List,
    /// The value of an attribute or an item: any kind.
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

    /// Returns the bounds of a value that is either of the two.
    pub(super) fn or(self, other: Self) -> Self {
        let kind = if self.kind == other.kind { self.kind } else { ValueKind::Other };
        Self::of(kind, self.bytes.max(other.bytes))
    }
}

/// Returns `bytes` if they do not exceed [`MAX_BYTES`].
pub(super) fn limited(part: &'static str, bytes: u64) -> Result<u64, ExpressionProblem> {
    if bytes <= MAX_BYTES { Ok(bytes) } else { Err(ExpressionProblem::TooLarge { part, bytes }) }
}
