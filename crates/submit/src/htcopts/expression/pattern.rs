//! Upper bound for the duration of a regular expression: the steps that a backtracking matcher takes at worst.

use super::ExpressionProblem;

/// Maximum length of a regular expression in bytes.
pub(super) const MAX_PATTERN: usize = 128;
/// Maximum number of groups.
const MAX_GROUPS: u32 = 8;
/// Maximum number of repetitions in `{n,m}`.
const MAX_REPEAT: u64 = 100;

/// Returns the maximum steps of `pattern` in a text of `length` characters. A pattern that does not start with `^` may
/// begin anywhere in the text, which multiplies the steps by `length`.
///
/// Each choice is a factor: the number of branches of a group, 2 for `?`, the greater number for `{n}` and `{n,m}`, and
/// `length` for all other repetitions. Branches that begin with different letters or digits count as one: no text
/// matches two of them. A repeated group must contain no repetitions and no branches, as these would multiply with each
/// repetition.
pub(super) fn steps(pattern: &str, length: u64) -> Result<u64, ExpressionProblem> {
    if pattern.len() > MAX_PATTERN {
        return Err(ExpressionProblem::Pattern("it is longer than 128 bytes"));
    }
    let mut reader = PatternParser { rest: pattern, length, groups: 0 };
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
    /// Letters and digits that every matching text begins with.
    begin: &'a str,
    /// Number of ways to match.
    ways: u64,
    /// Whether it contains no repetition and no branches.
    plain: bool,
}

impl Branch<'_> {
    /// Returns whether no text can begin with both, ignoring case.
    fn excludes(&self, other: &Self) -> bool {
        self.begin.bytes().zip(other.begin.bytes()).any(|(one, other)| !one.eq_ignore_ascii_case(&other))
    }
}

/// Returns the number of ways to match one of the branches.
fn together(branches: &[Branch<'_>]) -> u64 {
    let ways = branches.iter().map(|branch| branch.ways);
    let exclusive = branches.iter().enumerate().all(|(at, one)| branches[..at].iter().all(|other| one.excludes(other)));
    if exclusive { ways.max().unwrap_or(1) } else { ways.fold(0, u64::saturating_add) }
}

/// Returns the letters and digits at the beginning of `pattern`, except a last one that is repeated or optional.
fn begin(pattern: &str) -> &str {
    let end = pattern.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(pattern.len());
    let repeated = pattern[end..].starts_with(['*', '+', '?', '{']);
    &pattern[..end.saturating_sub(usize::from(repeated))]
}

struct PatternParser<'a> {
    rest: &'a str,
    /// Length of the text to search.
    length: u64,
    groups: u32,
}

impl<'a> PatternParser<'a> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    /// Reads branches up to the end or a closing bracket.
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

    /// Reads one item that may be repeated. Returns the number of ways to match it, and whether it is plain.
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

    /// Reads the rest of a class such as `[abc]`, `[^]a]` or `[[:alpha:]]`.
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

    /// Reads a repetition. Returns its number of ways, or none if there is no repetition.
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
    fn choices_of_a_pattern_multiply() {
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
    fn counted_repetition_costs_its_count_and_cannot_be_nested() {
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
    fn grouped_alternatives_keep_a_pattern_anchored() {
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
    fn alternatives_with_distinct_first_letters_cost_one_step() {
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
    fn exponential_or_unknown_pattern_is_refused() {
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
