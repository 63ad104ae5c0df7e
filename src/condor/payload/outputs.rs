//! Which of what a script leaves comes back: paths and patterns, as a shell has them for names of files.
//!
//! On the node it is `find` that compares, with expressions that are made here, and not the shell: what users write is an argument
//! of `find` and never part of a program, all nodes' shells mean the same by it, and `find` removes what does not match without
//! following a link that somebody makes meanwhile.

use std::fmt::Write as _;

/// Most patterns of an HTCJob.
pub const MOST: usize = 64;
/// Longest pattern.
const LONGEST: usize = 256;

/// One path or pattern, relative to the script's working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPattern {
    text: String,
    expression: String,
}

/// What is wrong with a pattern, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} {problem}")]
pub struct OutputPatternError {
    pattern: String,
    problem: &'static str,
}

impl OutputPattern {
    /// Reads a pattern: names and `/`, with `*`, `?` and `[…]` within a name, and `**` for any number of folders.
    pub fn parse(text: &str) -> Result<Self, OutputPatternError> {
        let expression =
            expression(text).map_err(|problem| OutputPatternError { pattern: text.to_owned(), problem })?;
        Ok(Self { text: text.to_owned(), expression })
    }

    /// As it was written: one line.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// For `find -regex`, of paths that begin with `./`: what matches, and all that is in a folder that matches. It is of the
    /// kind that `find` takes if it is told nothing else.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }
}

fn expression(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > LONGEST {
        return Err("is empty or longer than 256 bytes");
    }
    if text.contains(|c: char| c.is_control() || c == '\\') {
        return Err("has a control character or a backslash: write ? in its place");
    }
    if text.starts_with('/') {
        return Err("is not relative to the script's working directory: begin with a name");
    }
    // A folder may end with one.
    let names: Vec<&str> = text.strip_suffix('/').unwrap_or(text).split('/').collect();
    let mut expression = "[.]/".to_owned();
    for (at, name) in names.iter().enumerate() {
        let last = at + 1 == names.len();
        match *name {
            "" | "." | ".." => return Err("has a part that is empty, . or ..: write names and / only"),
            "**" if last => expression.push_str("[^/][^/]*"),
            "**" => expression.push_str("\\([^/][^/]*/\\)*"),
            name => {
                self::name(&mut expression, name)?;
                if !last {
                    expression.push('/');
                }
            }
        }
    }
    // All that is in it, if it is a folder. A name may have any character but this one.
    expression.push_str("\\(/[^/]*\\)*");
    Ok(expression)
}

/// One name of a path.
fn name(expression: &mut String, name: &str) -> Result<(), &'static str> {
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => expression.push_str("[^/]*"),
            '?' => expression.push_str("[^/]"),
            '[' => {
                let (set, after) = one_of(rest.as_str())?;
                expression.push_str(&set);
                rest = after.chars();
            }
            c => literal(expression, c),
        }
    }
    Ok(())
}

/// A character that stands for itself.
fn literal(expression: &mut String, c: char) {
    match c {
        '^' => expression.push_str("\\^"),
        c if c.is_ascii_punctuation() && c != '/' => {
            let _ = write!(expression, "[{c}]");
        }
        c => expression.push(c),
    }
}

/// What stands behind `[`, up to its `]`, and what comes after it.
fn one_of(text: &str) -> Result<(String, &str), &'static str> {
    const WRONG: &str = "has a [ that is not the beginning of a list such as [abc], [0-9] or [!a-z]";
    let (inside, after) = text.split_once(']').ok_or(WRONG)?;
    let (not, inside) = inside.strip_prefix('!').map_or((false, inside), |inside| (true, inside));
    if inside.is_empty() || inside.starts_with('^') || !inside.bytes().all(|c| c.is_ascii_graphic() && c != b'[') {
        return Err(WRONG);
    }
    let letters: Vec<char> = inside.chars().collect();
    let (mut ranges, mut singles, mut dash, mut at) = (String::new(), String::new(), false, 0);
    while let Some(&first) = letters.get(at) {
        if let (Some('-'), Some(&last)) = (letters.get(at + 1), letters.get(at + 2)) {
            if first > last || first == '-' || last == '-' {
                return Err(WRONG);
            }
            let _ = write!(ranges, "{first}-{last}");
            at += 3;
            continue;
        }
        match first {
            '-' => dash = true,
            first => singles.push(first),
        }
        at += 1;
    }
    // ^ does not come first, for it would mean `not`; - comes last, for it would make a range.
    let mut set = String::from(if not { "[^/" } else { "[" });
    set.push_str(&ranges);
    set.extend(singles.chars().filter(|c| *c != '^'));
    set.extend(singles.chars().filter(|c| *c == '^'));
    if dash {
        set.push('-');
    }
    set.push(']');
    Ok((set, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_expressions() {
        for (pattern, wanted) in [
            ("results", "[.]/results"),
            ("results/", "[.]/results"),
            ("a/*.root", "[.]/a/[^/]*[.]root"),
            ("run?[0-9][!a-f_]", "[.]/run[^/][0-9][^/a-f_]"),
            ("**/log", "[.]/\\([^/][^/]*/\\)*log"),
            ("a/**", "[.]/a/[^/][^/]*"),
            ("a**b", "[.]/a[^/]*[^/]*b"),
            ("$(id) `x` 'y' ä", "[.]/[$][(]id[)] [`]x[`] [']y['] ä"),
            ("a^b+c{1}|d", "[.]/a\\^b[+]c[{]1[}][|]d"),
            ("[a^]x[-a]y[a-]", "[.]/[a^]x[a-]y[a-]"),
            ("-rf", "[.]/[-]rf"),
        ] {
            let parsed = OutputPattern::parse(pattern).unwrap();
            assert_eq!(parsed.expression(), format!("{wanted}\\(/[^/]*\\)*"), "{pattern}");
            assert_eq!(parsed.text(), pattern);
        }
    }

    #[test]
    fn what_leads_elsewhere_or_means_nothing_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        let wrong = [
            "",
            ".",
            "..",
            "/",
            "/etc",
            "../x",
            "a/../b",
            "a//b",
            "./a",
            "a/.",
            "a//",
            "a\\b",
            "a\nb",
            "a\tb",
            "a\0",
            "[",
            "a[",
            "[]",
            "[!]",
            "[^a]",
            "[z-a]",
            "[a/b]",
            "[[:alpha:]]",
            "[ä]",
            "[a--]",
            &long,
        ];
        for pattern in wrong {
            assert!(OutputPattern::parse(pattern).is_err(), "{pattern:?}");
        }
        let error = OutputPattern::parse("../x").unwrap_err().to_string();
        assert_eq!(error, "\"../x\" has a part that is empty, . or ..: write names and / only");
    }
}
