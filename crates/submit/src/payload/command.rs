//! `spec.script.command`: the program that runs the script in the container.

/// Maximum number of words.
const MAX_WORDS: usize = 32;
/// Maximum bytes of the whole text.
const MAX_BYTES: usize = 1_024;
/// Characters allowed in a word beside letters and digits. None of them has a meaning in a shell.
const CHARACTERS: &str = "-._/=+:,@%";

/// A program of the image and its first arguments. `script.sh` and the index follow them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadCommand(Vec<String>);

/// Reason why a command is refused, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum CommandError {
    /// The command has no word.
    #[error("the command is empty; write the program that runs the script, for example `bash`")]
    Empty,
    /// The text is too long.
    #[error(
        "the command is longer than {MAX_BYTES} bytes or {MAX_WORDS} words; put what is long into spec.script.source"
    )]
    TooLong,
    /// A character that is not allowed.
    #[error(
        "the command contains the character {0:?}; use letters, digits and `{CHARACTERS}` only, and put everything else into spec.script.source"
    )]
    Character(char),
    /// The first word is an option.
    #[error("the command begins with `-`; write the program first, for example `bash -e`")]
    OptionFirst,
}

impl PayloadCommand {
    /// Parses `bash -e`. Words are separated by blanks; there is no quoting.
    ///
    /// # Errors
    /// The text is not one program with plain options.
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let allowed = |c: char| c == ' ' || c.is_ascii_alphanumeric() || CHARACTERS.contains(c);
        if let Some(character) = text.chars().find(|c| !allowed(*c)) {
            return Err(CommandError::Character(character));
        }
        let words: Vec<String> = text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        if text.len() > MAX_BYTES || words.len() > MAX_WORDS {
            return Err(CommandError::TooLong);
        }
        match words.first() {
            None => Err(CommandError::Empty),
            Some(program) if program.starts_with('-') => Err(CommandError::OptionFirst),
            Some(_) => Ok(Self(words)),
        }
    }

    /// Returns the words, at least one.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_a_program_with_plain_options() {
        for (text, words) in [
            ("bash", vec!["bash"]),
            ("  bash   -e ", vec!["bash", "-e"]),
            ("/usr/bin/env -u A=b python3", vec!["/usr/bin/env", "-u", "A=b", "python3"]),
        ] {
            assert_eq!(PayloadCommand::parse(text).unwrap().words().collect::<Vec<_>>(), words);
        }
        for text in [
            "",
            "  ",
            "-e",
            "bash -c 'x'",
            "bash;ls",
            "a|b",
            "$X",
            "a\nb",
            "a\tb",
            "a\\b",
            "\"a\"",
            "a>b",
            "a*",
            "~/x",
            "ä",
            "a`b`",
            "a&",
            "a\0",
            "(a)",
            "{a}",
        ] {
            assert!(PayloadCommand::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(PayloadCommand::parse(&"a ".repeat(33)), Err(CommandError::TooLong));
    }
}
