//! How long a regular expression may search: the steps that a backtracking matcher takes at worst.

use super::ExpressionProblem;

/// Longest regular expression accepted, in bytes.
pub(super) const MAX_PATTERN: usize = 128;
/// Most nested groups.
const MAX_GROUPS: u32 = 8;
/// Most repetitions that `{n,m}` may ask for.
const MAX_REPEAT: u64 = 100;

/// The steps that `pattern` may take in a text of `length` characters, from any of its beginnings unless it starts with `^`. What
/// may be one of several is a factor: each branch of a group, each `?`, and for each unbounded repetition the text's length. A
/// group that is repeated has no choices in it: those would multiply with each repetition.
pub(super) fn steps(pattern: &str, length: u64) -> Result<u64, ExpressionProblem> {
    if pattern.len() > MAX_PATTERN {
        return Err(ExpressionProblem::Pattern("it is longer than 128 bytes"));
    }
    let mut reader = Reader { rest: pattern, length, groups: 0 };
    let inside = reader.branches()?;
    if !reader.rest.is_empty() {
        return Err(ExpressionProblem::Pattern("a `)` has no `(`"));
    }
    let anchored = pattern.starts_with('^') && !pattern.contains('|');
    Ok(if anchored { inside } else { inside.saturating_mul(length) })
}

struct Reader<'a> {
    rest: &'a str,
    /// Of the text that is searched.
    length: u64,
    groups: u32,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    /// Until the end or a bracket that closes: the ways through it.
    fn branches(&mut self) -> Result<u64, ExpressionProblem> {
        let mut all = self.sequence()?;
        while let Some(rest) = self.rest.strip_prefix('|') {
            self.rest = rest;
            all = all.saturating_add(self.sequence()?);
        }
        Ok(all)
    }

    fn sequence(&mut self) -> Result<u64, ExpressionProblem> {
        let mut ways = 1_u64;
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) {
            let inside = self.atom()?;
            let times = self.repetition()?;
            if times.is_some() && inside > 1 {
                return Err(ExpressionProblem::Pattern("a group with `*`, `+`, `?`, `{…}` or `|` in it is repeated"));
            }
            ways = ways.saturating_mul(inside).saturating_mul(times.unwrap_or(1));
        }
        Ok(ways)
    }

    fn atom(&mut self) -> Result<u64, ExpressionProblem> {
        match self.next() {
            Some('(') => {
                if self.rest.starts_with(['?', '*']) {
                    return Err(ExpressionProblem::Pattern("`(?` and `(*` are not allowed"));
                }
                self.groups += 1;
                if self.groups > MAX_GROUPS {
                    return Err(ExpressionProblem::Pattern("it has too many groups"));
                }
                let inside = self.branches()?;
                if self.next() != Some(')') {
                    return Err(ExpressionProblem::Pattern("a `(` has no `)`"));
                }
                Ok(inside)
            }
            Some('[') => self.class().map(|()| 1),
            Some('*' | '+' | '?' | '{') => Err(ExpressionProblem::Pattern("there is nothing before a repetition")),
            _ => Ok(1),
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
                let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number <= MAX_REPEAT).ok_or(bad);
                match inside.split_once(',') {
                    None => number(inside).map(|_| 1)?,
                    Some((least, "")) => number(least).map(|_| self.length)?,
                    Some((least, most)) => number(most)?.checked_sub(number(least)?).ok_or(bad)? + 1,
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
            ("^(a|b|c)x", 3 * 100),
            ("^a?b?", 4),
            ("^[a-z]{2}", 1),
            ("^[a-z]{2,5}x", 4),
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
