//! `spec.outputs`: paths and patterns of the files to bring back, as in a shell.
//!
//! On the node `find` matches them by regular expressions that are made here; the shell does not match them. So a
//! user's text is only an argument of `find` and never part of a program, and patterns have the same meaning with every
//! node's shell. `find` also removes what does not match, without following a link that is created meanwhile.

use std::fmt::Write as _;

/// Maximum patterns of an HTCJob.
pub const MOST: usize = 64;
/// Maximum length of a pattern in bytes.
const LONGEST: usize = 256;

/// A path or pattern, relative to the script's working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPattern {
    text: String,
    expression: String,
}

/// Error in a pattern, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} {problem}")]
pub struct OutputPatternError {
    pattern: String,
    problem: &'static str,
}

impl OutputPattern {
    /// Parses a pattern: names and `/`, with `*`, `?` and `[…]` within a name, and `**` for any number of folders.
    pub fn parse(text: &str) -> Result<Self, OutputPatternError> {
        let expression =
            expression(text).map_err(|problem| OutputPatternError { pattern: text.to_owned(), problem })?;
        Ok(Self { text: text.to_owned(), expression })
    }

    /// Returns the pattern as written, which is one line.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns a regular expression for `find -regex`, for paths that begin with `./`. It matches the paths and
    /// everything in a folder that matches. Its syntax is the one that `find` uses by default.
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
    // A folder may end with a slash.
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
    // Everything in it, if it is a folder. A name may contain any character but the slash.
    expression.push_str("\\(/[^/]*\\)*");
    Ok(expression)
}

/// Appends the expression for one name of a path.
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

/// Appends the expression for a literal character.
fn literal(expression: &mut String, c: char) {
    match c {
        '^' => expression.push_str("\\^"),
        c if c.is_ascii_punctuation() && c != '/' => {
            let _ = write!(expression, "[{c}]");
        }
        c => expression.push(c),
    }
}

/// Translates the text after `[` up to its `]`. Returns the set, and the text after it.
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
    // `^` must not come first, where it would negate the set. `-` comes last, as it would make a range elsewhere.
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
    fn output_patterns_become_regular_expressions() {
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
    fn escaping_or_empty_output_pattern_is_refused() {
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
