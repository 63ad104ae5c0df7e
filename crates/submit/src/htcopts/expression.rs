//! Recognizer for the `ClassAd` expressions that `htcopts` accepts. It only accepts or rejects. It also computes upper
//! bounds for the size of the value and for the duration of regular expressions. It builds no syntax tree.
//!
//! It accepts less than HTCondor does (no records, quoted attribute names, escapes or octal numbers). So what it
//! accepts has the same meaning in all of HTCondor's parsers, cannot leave its line, and calls only pure functions.
//! HTCondor itself limits neither size nor time, and evaluates users' expressions in the schedd and the negotiator,
//! which all users share.

mod functions;
mod pattern;
mod value;

use std::collections::BTreeSet;

pub(super) use self::value::{ATTRIBUTE, MAX_BYTES};
use self::value::{Value, ValueKind, limited};

/// Maximum nesting of brackets, prefix operators and `?:`. HTCondor 25 gives up at a depth of 400.
const MAX_DEPTH: u32 = 24;
/// Maximum operators in one expression. `a || b || …` nests one level for each of them.
const MAX_OPERATORS: u32 = 200;
/// Maximum items of a list literal.
const MAX_ITEMS: usize = 256;
/// Maximum steps of all regular expressions together. The schedd evaluates periodic expressions for every job in one
/// pass over its queue, and does nothing else meanwhile. This many steps take about a millisecond, or some tens with a
/// long pattern.
const MAX_STEPS: u64 = 1 << 17;

/// Error in an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionProblem {
    /// A string has no closing quote.
    #[error("a string has no closing `\"`")]
    OpenString,
    /// A tab in a string.
    #[error("there is a tab in a string")]
    TabInString,
    /// A character that begins no accepted token.
    #[error("`{0}` is not allowed here (put text in double quotes)")]
    Unexpected(char),
    /// The expression ends too early.
    #[error("it ends too early (a bracket may be missing)")]
    EndsEarly,
    /// A number that HTCondor reads differently than it looks, or not at all.
    #[error("a number is too long, has a leading zero or contains a letter")]
    Number,
    /// A function that is not in the list of pure functions.
    #[error("it calls a function that is not allowed here (see docs/htcopts.md)")]
    Function,
    /// Brackets deeper than [`MAX_DEPTH`].
    #[error("it is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// More operators than [`MAX_OPERATORS`].
    #[error("it has more than {MAX_OPERATORS} operators; use `member(…)` or `stringListMember(…)`")]
    TooLong,
    /// More arguments of a function than allowed.
    #[error("`{0}(…)` has more than 32 arguments; use a list")]
    Arguments(&'static str),
    /// More items in a list than [`MAX_ITEMS`].
    #[error("a list has more than {MAX_ITEMS} items")]
    TooManyItems,
    /// A value, or a part of one, that can become larger than [`MAX_BYTES`].
    #[error(
        "the value of {part} can grow to {bytes} bytes, more than {MAX_BYTES} (an attribute counts {ATTRIBUTE}); join fewer or shorter strings"
    )]
    TooLarge {
        /// Function or other part of the expression.
        part: &'static str,
        /// Its maximum size.
        bytes: u64,
    },
    /// A regular expression, or its options, that is not a string literal.
    #[error("the regular expression of `{0}(…)` and its options must be strings in double quotes")]
    NoLiteral(&'static str),
    /// Options of a regular expression that change how it is read, such as `x`, or that HTCondor does not know.
    #[error("the options of `{0}(…)` may be `f`, `g`, `i` and `s` only")]
    Options(&'static str),
    /// A regular expression that is not accepted.
    #[error(
        "a regular expression is not allowed: {0}; write a simpler one, or use `member(…)` or `stringListMember(…)`"
    )]
    Pattern(&'static str),
    /// Regular expressions that can take too long.
    #[error("its regular expressions can take too long; begin them with `^`, and use fewer `*`, `+`, `?` and `|`")]
    TooSlow,
    /// `MY`, `TARGET` and the like without an attribute.
    #[error(
        "`MY` and `TARGET` need an attribute's name behind a dot, such as `TARGET.Memory`, and no other scope is allowed"
    )]
    Scope,
    /// `[…]` that could be a reference to an attribute.
    #[error("`[…]` must stand behind a list, or hold a number")]
    Index,
}

/// Upper bounds of an expression, and its references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpressionBounds {
    /// Maximum bytes of its value as text.
    pub(super) bytes: u64,
    /// Maximum steps of its regular expressions.
    pub(super) steps: u64,
    /// Names in its references, in lower case.
    pub(super) references: BTreeSet<String>,
}

/// Names of ads instead of attributes.
const SCOPES: [&str; 7] = ["my", "target", "self", "other", "parent", "root", "toplevel"];

/// Operators, longest first, so that `=?=` is not read as `=`.
const OPERATORS: [&str; 21] = [
    "=?=", "=!=", ">>>", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "+", "-", "*", "/", "%", "|", "&",
    "^",
];

/// Returns the bounds of `text` if it is one complete expression.
pub(super) fn check(text: &str) -> Result<ExpressionBounds, ExpressionProblem> {
    let mut reader = ExpressionParser { rest: text, depth: 0, operators: 0, steps: 0, references: BTreeSet::new() };
    let value = reader.expression()?;
    match reader.peek() {
        None => Ok(ExpressionBounds {
            bytes: limited("the whole", value.bytes)?,
            steps: reader.steps,
            references: reader.references,
        }),
        Some(c) => Err(ExpressionProblem::Unexpected(c)),
    }
}

struct ExpressionParser<'a> {
    /// Text that is still to be read.
    rest: &'a str,
    depth: u32,
    operators: u32,
    steps: u64,
    references: BTreeSet<String>,
}

impl<'a> ExpressionParser<'a> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        self.rest.chars().next()
    }

    fn take(&mut self, token: &str) -> bool {
        self.peek();
        let Some(rest) = self.rest.strip_prefix(token) else {
            return false;
        };
        self.rest = rest;
        true
    }

    fn expect(&mut self, token: char) -> Result<(), ExpressionProblem> {
        match self.peek() {
            Some(c) if c == token => {
                self.rest = &self.rest[c.len_utf8()..];
                Ok(())
            }
            Some(c) => Err(ExpressionProblem::Unexpected(c)),
            None => Err(ExpressionProblem::EndsEarly),
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn expression(&mut self) -> Result<Value<'a>, ExpressionProblem> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExpressionProblem::TooDeep);
        }
        let mut value = self.value()?;
        while self.operator() {
            self.operators += 1;
            if self.operators > MAX_OPERATORS {
                return Err(ExpressionProblem::TooLong);
            }
            self.value()?;
            value = Value::number();
        }
        if self.take("?:") {
            value = value.or(self.expression()?);
        } else if self.take("?") {
            value = self.expression()?;
            self.expect(':')?;
            value = value.or(self.expression()?);
        }
        self.depth -= 1;
        Ok(value)
    }

    fn operator(&mut self) -> bool {
        let Some(first) = self.peek() else {
            return false;
        };
        if first.is_ascii_alphabetic() {
            let before = self.rest;
            let word = self.word();
            let is_operator = word.eq_ignore_ascii_case("is") || word.eq_ignore_ascii_case("isnt");
            if !is_operator {
                self.rest = before;
            }
            return is_operator;
        }
        OPERATORS.iter().any(|operator| self.take(operator))
    }

    fn value(&mut self) -> Result<Value<'a>, ExpressionProblem> {
        let mut signs = 0;
        while ["!", "-", "+", "~"].iter().any(|sign| self.take(sign)) {
            signs += 1;
            if signs > 2 {
                return Err(ExpressionProblem::TooDeep);
            }
        }
        let mut value = match self.peek() {
            None => return Err(ExpressionProblem::EndsEarly),
            Some('"') => self.string()?,
            Some('(') => {
                self.expect('(')?;
                let value = self.expression()?;
                self.expect(')')?;
                Value { literal: None, ..value }
            }
            Some('{') => {
                self.expect('{')?;
                let items = self.list('}')?;
                // Each item with its quotes and a comma.
                let bytes = items.iter().fold(2_u64, |sum, item| sum.saturating_add(item.bytes).saturating_add(4));
                Value::of(ValueKind::List, limited("a list", bytes)?)
            }
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.reference()?,
            Some(c) => return Err(ExpressionProblem::Unexpected(c)),
        };
        while self.take("[") {
            let index = self.expression()?;
            // `MY["A"]` is a reference, too.
            if value.kind != ValueKind::List && index.kind != ValueKind::Number {
                return Err(ExpressionProblem::Index);
            }
            self.expect(']')?;
            value = Value::of(ValueKind::Other, value.bytes);
        }
        Ok(if signs > 0 { Value::number() } else { value })
    }

    fn list(&mut self, close: char) -> Result<Vec<Value<'a>>, ExpressionProblem> {
        let mut items = Vec::new();
        if self.peek() != Some(close) {
            items.push(self.expression()?);
            while self.take(",") {
                if items.len() == MAX_ITEMS {
                    return Err(ExpressionProblem::TooManyItems);
                }
                items.push(self.expression()?);
            }
        }
        self.expect(close)?;
        Ok(items)
    }

    fn string(&mut self) -> Result<Value<'a>, ExpressionProblem> {
        self.expect('"')?;
        let (inside, rest) = self.rest.split_once('"').ok_or(ExpressionProblem::OpenString)?;
        if inside.contains('\t') {
            return Err(ExpressionProblem::TabInString);
        }
        self.rest = rest;
        Ok(Value::text(inside))
    }

    fn number(&mut self) -> Result<Value<'a>, ExpressionProblem> {
        let whole = self.word();
        let fits = |digits: &str| (1..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        if !fits(whole) || (whole.len() > 1 && whole.starts_with('0')) {
            return Err(ExpressionProblem::Number);
        }
        if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            if !fits(self.word()) {
                return Err(ExpressionProblem::Number);
            }
        }
        Ok(Value::number())
    }

    fn reference(&mut self) -> Result<Value<'a>, ExpressionProblem> {
        let word = self.word();
        if self.peek() == Some('(') {
            let function = functions::find(word).ok_or(ExpressionProblem::Function)?;
            self.expect('(')?;
            let arguments = self.list(')')?;
            let (value, steps) = functions::call(function, &arguments)?;
            self.steps = self.steps.saturating_add(steps);
            return if self.steps > MAX_STEPS { Err(ExpressionProblem::TooSlow) } else { Ok(value) };
        }
        let lower = word.to_ascii_lowercase();
        match lower.as_str() {
            "is" | "isnt" => return Err(ExpressionProblem::Unexpected('i')),
            "true" | "false" | "undefined" | "error" => return Ok(Value::number()),
            _ => {}
        }
        let is_scope = |name: &str| SCOPES.contains(&name);
        if is_scope(&lower) && !(["my", "target"].contains(&lower.as_str()) && self.rest.starts_with('.')) {
            return Err(ExpressionProblem::Scope);
        }
        self.references.insert(lower);
        while let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            if !self.rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                return Err(self.peek().map_or(ExpressionProblem::EndsEarly, ExpressionProblem::Unexpected));
            }
            let name = self.word().to_ascii_lowercase();
            if is_scope(&name) {
                return Err(ExpressionProblem::Scope);
            }
            self.references.insert(name);
        }
        Ok(Value::attribute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_expressions_are_accepted() {
        for text in [
            "1",
            "-1",
            "2.5",
            "\"\"",
            "\"a 'b' # = ; @ ä 日\"",
            "x",
            "TARGET.Memory > 2000 && MY.x =?= undefined",
            "!(a || b)",
            "ExitCode =!= 0",
            "a is undefined",
            "x isnt error",
            "{}",
            "{1, \"a\"}[0]",
            "a ? b : c",
            "a ?: b",
            "time() - QDate > 86400",
            "member(\"el9\", {\"el8\", \"el9\"})",
            "(1+2)*3 % 4 << 1 >>> 2 ^ 5 & 6 | ~7",
            "isUndefined(x) || size({1}) == 1",
            "a\t+ b",
            "is2",
        ] {
            assert!(check(text).is_ok(), "{text}: {:?}", check(text));
        }
    }

    #[test]
    fn invalid_expressions_are_rejected() {
        for text in [
            "",
            " ",
            "(",
            ")",
            "(1",
            "1)",
            "\"a",
            "a\"",
            "\"a\"b",
            "\"a\" \"b\"",
            "1 2",
            "a b",
            "a =",
            "a = b",
            "= 1",
            "a ==",
            "[a = 1]",
            "'a'",
            "a;b",
            "a,b",
            "{1,}",
            "{1",
            "f(1)",
            "eval(\"1\")",
            "userHome(\"root\")",
            "Random()",
            "debug(1)",
            ".a",
            "a.",
            "a..b",
            "1.",
            ".5",
            "010",
            "1e3",
            "0x1f",
            "1K",
            "9999999999999999",
            "a ? b",
            "a ? : b",
            "#",
            "a # b",
            "@",
            "ä",
            "\"a\tb\"",
            "is",
            "a is",
            "!!!1",
            "a[1",
            "\\",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn expression_depth_and_length_are_bounded() {
        let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(check(&nested(20)).is_ok());
        assert_eq!(check(&nested(10_000)), Err(ExpressionProblem::TooDeep));
        assert_eq!(check(&"a ?: ".repeat(100)), Err(ExpressionProblem::TooDeep));
        assert!(check(&format!("{}1", "1 || ".repeat(200))).is_ok());
        assert_eq!(check(&format!("{}1", "1 || ".repeat(201))), Err(ExpressionProblem::TooLong));
    }

    #[test]
    fn references_are_found_in_every_form() {
        let of = |text: &str| check(text).map(|extent| extent.references.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(of("A + MY.b > TARGET.C.d && isUndefined(e)"), Ok("a b c d e my target".to_owned()));
        assert_eq!(of("\"a\" == undefined"), Ok(String::new()));
        for text in
            ["MY[\"A\"]", "MY", "string(TARGET)", "self.A", "parent.A", "MY.parent.A", "{MY}[0][\"A\"]", "ROOT.a"]
        {
            assert_eq!(check(text), Err(ExpressionProblem::Scope), "{text}");
        }
        for text in ["a[\"b\"]", "(a)[b]", "{a}[0][b]", "ifThenElse(true, a, a)[\"b\"]", "a[strcat(\"b\")]"] {
            assert_eq!(check(text), Err(ExpressionProblem::Index), "{text}");
        }
        assert!(check("a[0]").is_ok() && check("a[b + 1]").is_ok() && check("{1, 2}[b]").is_ok());
    }
}
