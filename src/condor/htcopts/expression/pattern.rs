//! How long a regular expression may search: the steps that a backtracking matcher takes at worst.

use super::ExpressionProblem;

/// Longest regular expression accepted, in bytes.
pub(super) const MAX_PATTERN: usize = 128;
/// Most nested groups.
const MAX_GROUPS: u32 = 8;
/// Most repetitions that `{n,m}` may ask for.
const MAX_REPEAT: u64 = 100;

/// The steps that `pattern` may take in a text of `length` characters, from any of its beginnings unless it starts with `^`. What
/// may be one of several is a factor: each branch of a group, each `?`, for each `{n}` and `{n,m}` the greater number, and for
/// each other repetition the text's length. Branches that begin with different letters or digits are one way: no text has two of
/// them. A group that is repeated has neither repetitions nor branches in it: those would multiply with each repetition.
pub(super) fn steps(pattern: &str, length: u64) -> Result<u64, ExpressionProblem> {
    if pattern.len() > MAX_PATTERN {
        return Err(ExpressionProblem::Pattern("it is longer than 128 bytes"));
    }
    let mut reader = Reader { rest: pattern, length, groups: 0 };
    let branches = reader.branches()?;
    if !reader.rest.is_empty() {
        return Err(ExpressionProblem::Pattern("a `)` has no `(`"));
    }
    let anchored = pattern.starts_with('^') && branches.len() == 1;
    let ways = together(&branches);
    Ok(if anchored { ways } else { ways.saturating_mul(length) })
}

/// A sequence between `(`, `|` and `)`.
struct Branch<'a> {
    /// The letters and digits that every text of it begins with.
    begin: &'a str,
    /// The ways through it.
    ways: u64,
    /// It has no repetition and no branches in it.
    plain: bool,
}

impl Branch<'_> {
    /// No text begins both, in any case.
    fn excludes(&self, other: &Self) -> bool {
        self.begin.bytes().zip(other.begin.bytes()).any(|(one, other)| !one.eq_ignore_ascii_case(&other))
    }
}

/// The ways through branches of which a text takes one.
fn together(branches: &[Branch<'_>]) -> u64 {
    let ways = branches.iter().map(|branch| branch.ways);
    let exclusive = branches.iter().enumerate().all(|(at, one)| branches[..at].iter().all(|other| one.excludes(other)));
    if exclusive { ways.max().unwrap_or(1) } else { ways.fold(0, u64::saturating_add) }
}

/// The letters and digits at the beginning of `pattern`, without one that may be absent.
fn begin(pattern: &str) -> &str {
    let end = pattern.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(pattern.len());
    let repeated = pattern[end..].starts_with(['*', '+', '?', '{']);
    &pattern[..end.saturating_sub(usize::from(repeated))]
}

struct Reader<'a> {
    rest: &'a str,
    /// Of the text that is searched.
    length: u64,
    groups: u32,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    /// Until the end or a bracket that closes.
    fn branches(&mut self) -> Result<Vec<Branch<'a>>, ExpressionProblem> {
        let mut all = vec![self.sequence()?];
        while let Some(rest) = self.rest.strip_prefix('|') {
            self.rest = rest;
            all.push(self.sequence()?);
        }
        Ok(all)
    }

    fn sequence(&mut self) -> Result<Branch<'a>, ExpressionProblem> {
        let mut all = Branch { begin: begin(self.rest), ways: 1, plain: true };
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let (ways, plain) = self.atom()?;
            let times = self.repetition()?;
            if times.is_some() && !plain {
                return Err(ExpressionProblem::Pattern("a group with `*`, `+`, `?`, `{…}` or `|` in it is repeated"));
            }
            all.ways = all.ways.saturating_mul(ways).saturating_mul(times.unwrap_or(1));
            all.plain &= plain && times.is_none();
        }
        Ok(all)
    }

    /// The ways through what may be repeated, and whether it is plain.
    fn atom(&mut self) -> Result<(u64, bool), ExpressionProblem> {
        match self.next() {
            Some('(') => {
                if self.rest.starts_with(['?', '*']) {
                    return Err(ExpressionProblem::Pattern("`(?` and `(*` are not allowed"));
                }
                self.groups += 1;
                if self.groups > MAX_GROUPS {
                    return Err(ExpressionProblem::Pattern("it has too many groups"));
                }
                let branches = self.branches()?;
                if self.next() != Some(')') {
                    return Err(ExpressionProblem::Pattern("a `(` has no `)`"));
                }
                Ok((together(&branches), matches!(branches.as_slice(), [only] if only.plain)))
            }
            Some('[') => self.class().map(|()| (1, true)),
            Some('*' | '+' | '?' | '{') => Err(ExpressionProblem::Pattern("there is nothing before a repetition")),
            _ => Ok((1, true)),
        }
    }

    /// `[abc]`, `[^]a]`, `[[:alpha:]]`.
    fn class(&mut self) -> Result<(), ExpressionProblem> {
        let open = ExpressionProblem::Pattern("a `[` has no `]`");
        self.rest = self.rest.strip_prefix('^').unwrap_or(self.rest);
        let mut first = true;
        loop {
            match self.next().ok_or(open)? {
                ']' if !first => return Ok(()),
                '[' if self.rest.starts_with([':', '.', '=']) => {
                    let end = self.rest.find(']').ok_or(open)?;
                    self.rest = &self.rest[end + 1..];
                }
                _ => {}
            }
            first = false;
        }
    }

    /// The ways of what is repeated; none if nothing is.
    fn repetition(&mut self) -> Result<Option<u64>, ExpressionProblem> {
        let bad = ExpressionProblem::Pattern("write `{n}`, `{n,}` or `{n,m}` with numbers up to 100");
        let ways = match self.rest.chars().next() {
            Some('*' | '+') => {
                self.next();
                self.length
            }
            Some('?') => {
                self.next();
                2
            }
            Some('{') => {
                let (inside, rest) = self.rest[1..].split_once('}').ok_or(bad)?;
                self.rest = rest;
                let number = |text: &str| {
                    let digits = text.bytes().all(|b| b.is_ascii_digit());
                    text.parse::<u64>().ok().filter(|number| digits && *number <= MAX_REPEAT).ok_or(bad)
                };
                match inside.split_once(',') {
                    None => number(inside)?.max(1),
                    Some((least, "")) => number(least)?.max(self.length),
                    Some((least, most)) => {
                        let most = number(most)?;
                        most.max(most.checked_sub(number(least)?).ok_or(bad)? + 1)
                    }
                }
            }
            _ => return Ok(None),
        };
        // The lazy forms `*?`, `+?` and `??`.
        self.rest = self.rest.strip_prefix('?').unwrap_or(self.rest);
        if self.rest.starts_with(['*', '+', '{', '?']) {
            return Err(ExpressionProblem::Pattern("there is nothing before a repetition"));
        }
        Ok(Some(ways))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_multiply() {
        for (pattern, ways) in [
            ("^node", 1),
            ("^node[0-9]+[.]", 100),
            ("^a.*b.*", 10_000),
            ("node", 100),
            ("a.*b", 10_000),
            ("^a?b?", 4),
            ("^[a-z]{2,}", 100),
            ("^(abc)+", 100),
            ("^a*?b", 100),
            ("^[]a*]x[[:alpha:]+]*", 100),
            ("", 100),
        ] {
            assert_eq!(steps(pattern, 100), Ok(ways), "{pattern}");
        }
        assert!(steps(&"a?".repeat(60), 100).unwrap() > 1 << 60);
    }

    #[test]
    fn what_is_counted_is_as_many_steps_and_may_not_be_repeated() {
        for (pattern, ways) in [
            ("^[a-z]{2}", 2),
            ("^[a-z]{2,5}x", 5),
            ("^[a-z]{0,5}x", 6),
            ("^a{0,1}b", 2),
            ("^a{0}b{1}", 1),
            ("^a{99}b{20}", 99 * 20),
            ("^a{100,}", 100),
            ("^(abc){3}", 3),
        ] {
            assert_eq!(steps(pattern, 100), Ok(ways), "{pattern}");
        }
        assert_eq!(steps("^(){100,}", 1), Ok(100));
        for pattern in
            ["([ab]{99}){20}[cd]", "(a{2})+", "(a{1})+", "(a{0,1}){50}", "((a{2})b)?", "(a|b)*", "(cern|desy){2}"]
        {
            assert!(steps(pattern, 100).is_err(), "{pattern}");
        }
    }

    #[test]
    fn alternatives_in_a_group_leave_a_pattern_anchored() {
        for (pattern, ways) in [
            ("^(a|aa|b)x", 3),
            ("^a|b", 2 * 100),
            ("a|^b", 2 * 100),
            ("^a(b|c)|d", 2 * 100),
            ("(^a|b)", 2 * 100),
            ("^[|]", 1),
        ] {
            assert_eq!(steps(pattern, 100), Ok(ways), "{pattern}");
        }
    }

    #[test]
    fn alternatives_that_begin_with_other_letters_are_one_way() {
        for (pattern, ways) in [
            ("^(cern|desy)[.](ch|de)", 1),
            ("^(el8|el9)", 1),
            ("^(a.*|b.*|c)", 100),
            ("^(node|nodes)", 2),
            ("^(a|A)", 2),
            ("^(a*|b)", 101),
            ("^(ab?|ac)", 3),
            ("^(a|)", 2),
            ("^(a|[b])", 2),
            ("^(ä|ö)", 2),
            ("^((a|b)|c)", 2),
        ] {
            assert_eq!(steps(pattern, 100), Ok(ways), "{pattern}");
        }
    }

    #[test]
    fn what_explodes_or_is_not_understood_is_refused() {
        for pattern in [
            "(a+)+b",
            "(a*)*",
            "(a|a)*b",
            "(a?)+",
            "((a+))+",
            "(a+){2,9}",
            "(a{2,9})*",
            "a++",
            "a**",
            "a{2}{3}",
            "a?+",
            "(?=a)",
            "(?i)a",
            "(*LIMIT)",
            "*a",
            "+",
            "?",
            "(+)",
            "(a",
            "a)",
            "[a",
            "[]",
            "a{",
            "a{x}",
            "a{101}",
            "a{5,2}",
            "a{,2}",
            "a{+2}",
            "a{ 2}",
            "(?",
            "[[:a",
        ] {
            assert!(steps(pattern, 10).is_err(), "{pattern}");
        }
        assert!(steps(&"a".repeat(MAX_PATTERN), 1).is_ok());
        assert!(steps(&"a".repeat(MAX_PATTERN + 1), 1).is_err());
        assert!(steps(&"(".repeat(100), 1).is_err());
    }
}
