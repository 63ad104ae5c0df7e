//! Errors in `htcopts`, with messages for the user who wrote them.

use super::expression::ATTRIBUTE;
use super::expression::ExpressionProblem;
use super::{MAX_BYTES, MAX_LINES, MAX_VALUE_BYTES};

/// The first error in `htcopts`, and its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("htcopts line {line}: {problem}")]
pub struct HtcOptsError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub problem: HtcOptsProblem,
}

/// Error in a line of `htcopts`. User text in it is escaped and shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum HtcOptsProblem {
    /// The whole text exceeds [`MAX_BYTES`].
    #[error("the text is longer than {MAX_BYTES} bytes; move what is long into the script")]
    TextTooLong,
    /// More than [`MAX_LINES`] lines.
    #[error("there are more than {MAX_LINES} lines; leave some out")]
    TooManyLines,
    /// A control character other than a line feed or a tab.
    #[error("there is a control character (U+{0:04X}); write plain text with Unix line ends")]
    ControlCharacter(u32),
    /// The line does not have the form `key = value`.
    #[error("write one `key = value` per line; `{0}` is not one")]
    NotAnAssignment(String),
    /// `include`, `if`, `queue`, `use` … as a statement.
    #[error("`{0}` is not allowed: only `key = value` lines are")]
    Statement(String),
    /// `key @=end` … `@end`.
    #[error("`@=` is not allowed: write the value on one line, `key = value`")]
    HereDocument,
    /// `\` anywhere: at the end of a line it continues the line, and in a string its meaning differs between parsers.
    #[error(
        "a backslash is not allowed: write each value on one line, and `[.]` instead of an escaped dot in a regular expression"
    )]
    Backslash,
    /// `$` anywhere: macros, `$ENV()`, `$$()`, `$RANDOM_CHOICE()`.
    #[error(
        "`$` is not allowed: macros are not expanded here; write the value itself (for the end of a regular expression nothing is needed in `stringListMember` or `==`)"
    )]
    Dollar,
    /// A key without a value.
    #[error("`{0}` has no value; give it one or leave the line out")]
    NoValue(String),
    /// The value exceeds [`MAX_VALUE_BYTES`].
    #[error("the value of `{0}` is longer than {MAX_VALUE_BYTES} bytes")]
    ValueTooLong(String),
    /// A submit command that is not in the allow-list.
    #[error("`{key}` is not allowed: {instead}")]
    NotAllowed {
        key: String,
        /// Reason, and what to write instead.
        instead: &'static str,
    },
    /// `+X` or `MY.X` where X is not a plain attribute name of at most 64 characters.
    #[error(
        "`{0}` is not a valid attribute name: write `+Name = value`, where Name begins with a letter and has letters, digits and `_` only"
    )]
    NotAnAttributeName(String),
    /// `+X` where X is an attribute that HTCondor or the operator uses.
    #[error("`+{name}` is not allowed: {instead}")]
    ReservedAttribute {
        /// The attribute's name as written.
        name: String,
        /// Reason, and what to write instead.
        instead: &'static str,
    },
    /// `+X` where X is not among the attributes that this site allows.
    #[error(
        "`+{name}` is not allowed here; allowed are {allowed}. The operator's administrator can allow more with --allow-attribute"
    )]
    UnknownAttribute {
        /// The attribute's name as written.
        name: String,
        /// The allowed attributes.
        allowed: String,
    },
    /// Two lines that set the same thing. HTCondor would silently take the last one.
    #[error("`{key}` conflicts with `{other}` on line {line}: both set the same thing; remove one of them")]
    Twice {
        /// The later key.
        key: String,
        /// The earlier key.
        other: String,
        /// The earlier line.
        line: usize,
    },
    /// The value is not of the command's kind.
    #[error("`{key}` expects {wanted}, not `{value}`")]
    WrongValue {
        key: String,
        /// Value that the command expects.
        wanted: &'static str,
        /// The value, shortened.
        value: String,
    },
    /// The value is no `ClassAd` expression of the accepted kind.
    #[error(
        "`{key}` expects a ClassAd expression (a string in double quotes, a number, or for example `TARGET.Memory > 2000`): {problem}"
    )]
    NotAnExpression {
        key: String,
        /// What is wrong with the value.
        problem: ExpressionProblem,
    },
    /// Text without quotes.
    #[error("`+{name}` expects text in double quotes: write `+{name} = \"{value}\"`")]
    NotQuoted {
        /// The attribute's name as written.
        name: String,
        /// The value, shortened.
        value: String,
    },
    /// A number in quotes.
    #[error("`+{name}` expects a number without quotes: write `+{name} = {value}`")]
    Quoted {
        /// The attribute's name as written.
        name: String,
        /// The value between the quotes, shortened.
        value: String,
    },
    /// A priority that the site does not allow.
    #[error(
        "`priority` may be {range} here, not {value}; the operator's administrator can allow more with --priority-range"
    )]
    Priority {
        /// The value, shortened.
        value: String,
        /// The allowed range.
        range: String,
    },
    /// An accounting group that the site does not allow.
    #[error(
        "the accounting group `{name}` is not allowed here; {allowed}. The operator's administrator can allow more with --allow-accounting-group"
    )]
    AccountingGroup {
        /// The group, with its user if one is named.
        name: String,
        /// The allowed groups.
        allowed: String,
    },
    /// `accounting_group_user` without a group.
    #[error("`accounting_group_user` needs `accounting_group` beside it; add that line, or leave this one out")]
    UserWithoutGroup,
    /// A value that refers to what another line sets, and that cannot be evaluated in bounded size and time.
    #[error("`{key}` refers to what `{other}` sets, which {why}; write its value here instead")]
    Reference {
        /// The key of the line with the reference.
        key: String,
        /// The key of the other line.
        other: String,
        /// Reason why that exceeds the bounds.
        why: ReferenceProblem,
    },
}

/// Reason why no expression may refer to an attribute that another line sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceProblem {
    /// The attribute's value itself refers to such an attribute.
    #[error("refers to an attribute of these options itself")]
    Chain,
    /// The attribute's value is long, or slow to evaluate.
    #[error("can have more than {ATTRIBUTE} bytes or takes long to evaluate")]
    Large,
}
