//! A recogniser for the `ClassAd` expressions that `htcopts` accept: it says yes or no and builds nothing.
//!
//! It knows less than HTCondor (no records, no quoted attribute names, no escapes, no octal numbers), so that what it
//! accepts means the same to every parser of HTCondor, cannot leave its line, and calls pure functions only.

/// Deepest nesting of brackets, operators before a value and `?:`. HTCondor 25 gives up at a depth of 400.
const MAX_DEPTH: u32 = 24;
/// Most operators in one expression: `a || b || …` nests one level for each of them.
const MAX_OPERATORS: u32 = 200;

/// What is wrong with an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionProblem {
    /// A string has no closing quote.
    #[error("a string has no closing `\"`")]
    OpenString,
    /// A tab in a string.
    #[error("there is a tab in a string")]
    TabInString,
    /// A character that begins nothing that is accepted here.
    #[error("`{0}` is not allowed here (put text in double quotes)")]
    Unexpected(char),
    /// The expression ends too early.
    #[error("it ends too early (a bracket may be missing)")]
    EndsEarly,
    /// A number that HTCondor reads in another way than it looks, or not at all.
    #[error("a number is too long, has a leading zero or contains a letter")]
    Number,
    /// A function that is not in the list of pure ones.
    #[error("it calls a function that is not allowed here (see docs/htcopts.md)")]
    Function,
    /// Brackets deeper than [`MAX_DEPTH`].
    #[error("it is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// More operators than [`MAX_OPERATORS`].
    #[error("it has more than {MAX_OPERATORS} operators; use `member(…)` or `stringListMember(…)`")]
    TooLong,
}

/// Functions whose value depends on their arguments and the time only. Left out are those that read the account or an
/// administrator's map (`userHome`, `userMap`), evaluate what is hidden in a string (`eval`), write to logs (`debug`),
/// never give the same twice (`random`), or belong to environments and arguments.
pub(super) const FUNCTIONS: &str = "\
    abstime allcompare anycompare avg bool ceil ceiling countmatches currenttime daytime floor \
    formattime getdayofmonth getdayofweek getdayofyear getdays gethours getminutes getmonth \
    getseconds getyear identicalmember ifthenelse int interval isabstime isboolean isclassad \
    iserror isinteger islist isreal isreltime isstring isundefined join log max member min pow \
    quantize real regexp regexpmember regexps reltime replace replaceall round size split \
    splitslotname splittime splitusername strcat strcmp stricmp string stringlistimember \
    stringlistmax stringlistmember stringlistmin stringlistsize stringlistsum substr sum time \
    tolower toupper version_in_range versioncmp versioneq versionge versiongt versionle";

/// Longest first, so that `=?=` is not read as `=`.
const OPERATORS: [&str; 21] = [
    "=?=", "=!=", ">>>", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "+", "-", "*", "/", "%", "|", "&",
    "^",
];

/// Says whether `text` is one whole expression.
pub(super) fn check(text: &str) -> Result<(), ExpressionProblem> {
    let mut reader = Reader { rest: text, depth: 0, operators: 0 };
    reader.expression()?;
    match reader.peek() {
        None => Ok(()),
        Some(c) => Err(ExpressionProblem::Unexpected(c)),
    }
}

struct Reader<'a> {
    /// What is left to read.
    rest: &'a str,
    depth: u32,
    operators: u32,
}

impl<'a> Reader<'a> {
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

    fn expression(&mut self) -> Result<(), ExpressionProblem> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExpressionProblem::TooDeep);
        }
        self.value()?;
        while self.operator() {
            self.operators += 1;
            if self.operators > MAX_OPERATORS {
                return Err(ExpressionProblem::TooLong);
            }
            self.value()?;
        }
        if self.take("?:") {
            self.expression()?;
        } else if self.take("?") {
            self.expression()?;
            self.expect(':')?;
            self.expression()?;
        }
        self.depth -= 1;
        Ok(())
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

    fn value(&mut self) -> Result<(), ExpressionProblem> {
        let mut signs = 0;
        while ["!", "-", "+", "~"].iter().any(|sign| self.take(sign)) {
            signs += 1;
            if signs > 2 {
                return Err(ExpressionProblem::TooDeep);
            }
        }
        match self.peek() {
            None => return Err(ExpressionProblem::EndsEarly),
            Some('"') => self.string()?,
            Some('(') => {
                self.expect('(')?;
                self.expression()?;
                self.expect(')')?;
            }
            Some('{') => {
                self.expect('{')?;
                self.list('}')?;
            }
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.reference()?,
            Some(c) => return Err(ExpressionProblem::Unexpected(c)),
        }
        while self.take("[") {
            self.expression()?;
            self.expect(']')?;
        }
        Ok(())
    }

    fn list(&mut self, close: char) -> Result<(), ExpressionProblem> {
        if self.peek() != Some(close) {
            self.expression()?;
            while self.take(",") {
                self.expression()?;
            }
        }
        self.expect(close)
    }

    fn string(&mut self) -> Result<(), ExpressionProblem> {
        self.expect('"')?;
        let (inside, rest) = self.rest.split_once('"').ok_or(ExpressionProblem::OpenString)?;
        if inside.contains('\t') {
            return Err(ExpressionProblem::TabInString);
        }
        self.rest = rest;
        Ok(())
    }

    fn number(&mut self) -> Result<(), ExpressionProblem> {
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
        Ok(())
    }

    fn reference(&mut self) -> Result<(), ExpressionProblem> {
        let word = self.word();
        if self.peek() == Some('(') {
            if !FUNCTIONS.split_ascii_whitespace().any(|function| word.eq_ignore_ascii_case(function)) {
                return Err(ExpressionProblem::Function);
            }
            self.expect('(')?;
            return self.list(')');
        }
        let is_operator = word.eq_ignore_ascii_case("is") || word.eq_ignore_ascii_case("isnt");
        if is_operator {
            return Err(ExpressionProblem::Unexpected('i'));
        }
        while let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            if !self.rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                return Err(self.peek().map_or(ExpressionProblem::EndsEarly, ExpressionProblem::Unexpected));
            }
            self.word();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_recognised() {
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
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn everything_else_is_not() {
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
    fn depth_and_length_are_bounded() {
        let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(check(&nested(20)), Ok(()));
        assert_eq!(check(&nested(10_000)), Err(ExpressionProblem::TooDeep));
        assert_eq!(check(&"a ?: ".repeat(100)), Err(ExpressionProblem::TooDeep));
        assert_eq!(check(&format!("{}1", "1 || ".repeat(200))), Ok(()));
        assert_eq!(check(&format!("{}1", "1 || ".repeat(201))), Err(ExpressionProblem::TooLong));
    }

    #[test]
    fn the_page_has_the_same_functions() {
        let page = include_str!("../../../docs/htcopts.md");
        let list = page.split("<!-- functions -->").nth(1).and_then(|rest| rest.split("<!-- end").next()).unwrap();
        let documented: Vec<_> = list.split_ascii_whitespace().map(|name| name.trim_matches('`')).collect();
        let allowed: Vec<_> = FUNCTIONS.split_ascii_whitespace().collect();
        assert_eq!(documented, allowed);
    }
}
