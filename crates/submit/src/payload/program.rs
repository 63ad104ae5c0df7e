//! `spec.script` and `spec.container`: the program that runs in the container, and its arguments.

use htc_api::{ContainerSpec, HTCJobSpec, Script};

use super::command::{CommandError, PayloadCommand};

/// Maximum bytes of `spec.container.command` and `args` together. They are copied for each job.
const MAX_BYTES: usize = 64 * 1024;

/// What runs in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program of the image that runs the script.
    Script(PayloadCommand),
    /// A program of the image without a script.
    Command {
        /// Name or path of the program.
        program: String,
        /// Arguments of the program.
        arguments: Vec<Word>,
    },
    /// The image's own entrypoint, with these arguments. Without arguments it gets those of the image.
    Entrypoint(Vec<Word>),
}

/// Argument of `spec.container`, which may differ between jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word(Vec<Piece>);

/// Part of a [`Word`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// The same text for all jobs.
    Text(String),
    /// The job's index.
    Index,
    /// The job's item.
    Item,
}

/// Reason why a spec has no program to run, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// Neither a script nor a container, or both.
    #[error("spec.script: a job has one thing to run: write either spec.script or spec.container")]
    Form,
    #[error("spec.script.command: {0}")]
    Command(#[from] CommandError),
    /// The first word cannot be a program.
    #[error(
        "spec.container.command: {0:?} is not a program: write its name or path first, without = and ${{…}}, and not beginning with -"
    )]
    NoProgram(String),
    /// A character that no argument of a program can have.
    #[error("spec.container.{0} has a NUL character, which no argument can have")]
    Nul(&'static str),
    /// The words are too long.
    #[error(
        "spec.container: command and args have {0} bytes together, and {MAX_BYTES} are possible; put what is long into spec.files"
    )]
    TooLong(usize),
    /// A word refers to items that the jobs do not have.
    #[error(
        "spec.container.{0} has ${{item}}, and the jobs have no items: write spec.items, or $${{item}} for a plain ${{item}}"
    )]
    NoItems(&'static str),
}

impl Program {
    /// Parses a spec.
    ///
    /// # Errors
    /// The spec has no valid program.
    pub fn parse(spec: &HTCJobSpec) -> Result<Self, ProgramError> {
        match (&spec.script, &spec.container) {
            (Some(Script { command, .. }), None) => Ok(Self::script(command)?),
            (None, Some(container)) => Self::container(container, !spec.items.is_empty() || spec.items_from.is_some()),
            (Some(_), Some(_)) | (None, None) => Err(ProgramError::Form),
        }
    }

    /// Parses the command of a script, such as `bash -e`.
    ///
    /// # Errors
    /// The text is not one program with plain options.
    pub fn script(command: &str) -> Result<Self, CommandError> {
        PayloadCommand::parse(command).map(Self::Script)
    }

    fn container(container: &ContainerSpec, has_items: bool) -> Result<Self, ProgramError> {
        let ContainerSpec { image: _, command, args } = container;
        let bytes = command.iter().chain(args).map(String::len).sum();
        if bytes > MAX_BYTES {
            return Err(ProgramError::TooLong(bytes));
        }
        let words = |field, texts: &[String]| -> Result<Vec<Word>, ProgramError> {
            let words: Vec<Word> = texts.iter().map(|text| Word::parse(text)).collect();
            if texts.iter().any(|text| text.contains('\0')) {
                return Err(ProgramError::Nul(field));
            }
            if !has_items && words.iter().any(|word| word.0.contains(&Piece::Item)) {
                return Err(ProgramError::NoItems(field));
            }
            Ok(words)
        };
        let (command, args) = (words("command", command)?, words("args", args)?);
        let mut all = command.into_iter();
        let Some(first) = all.next() else { return Ok(Self::Entrypoint(args)) };
        let program = first.program()?;
        Ok(Self::Command { program, arguments: all.chain(args).collect() })
    }
}

impl Word {
    /// Parses a text: `${index}` and `${item}` are the job's index and item, and `$${` a plain `${`.
    fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, read) = if rest.starts_with("$${") {
                (Piece::Text("${".to_owned()), "$${".len())
            } else if rest.starts_with("${index}") {
                (Piece::Index, "${index}".len())
            } else if rest.starts_with("${item}") {
                (Piece::Item, "${item}".len())
            } else {
                let end = rest.char_indices().skip(1).find(|(_, c)| *c == '$').map_or(rest.len(), |(at, _)| at);
                (Piece::Text(rest[..end].to_owned()), end)
            };
            pieces.push(piece);
            rest = &rest[read..];
        }
        Self(pieces)
    }

    /// Returns the pieces, which follow each other without anything between them.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Returns the text of the word if it is the same for all jobs and can be the name of a program: `env`, which
    /// starts it on a managed worker, takes NAME=VALUE for a variable.
    fn program(&self) -> Result<String, ProgramError> {
        let text = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text,
            Piece::Index => "${index}",
            Piece::Item => "${item}",
        });
        let text: String = text.collect();
        let same = self.0.iter().all(|piece| matches!(piece, Piece::Text(_)));
        if same && !text.is_empty() && !text.starts_with('-') && !text.contains('=') {
            Ok(text)
        } else {
            Err(ProgramError::NoProgram(text))
        }
    }
}

impl From<&str> for Word {
    /// Makes a word that is the same for all jobs.
    fn from(text: &str) -> Self {
        Self(vec![Piece::Text(text.to_owned())])
    }
}

impl From<Piece> for Word {
    fn from(piece: Piece) -> Self {
        Self(vec![piece])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.to_owned())
    }

    #[test]
    fn only_index_and_item_have_a_meaning() {
        for (written, pieces) in [
            ("", vec![]),
            ("in-${item}/${index}", vec![text("in-"), Piece::Item, text("/"), Piece::Index]),
            ("$${index} $$${item}", vec![text("${"), text("index} "), text("$"), text("${"), text("item}")]),
            ("$$ $HOME ${HOME} $(x) ${ index}", vec![]),
            ("ä$ö${index", vec![]),
        ] {
            let word = Word::parse(written);
            if pieces.is_empty() {
                assert!(word.0.iter().all(|piece| matches!(piece, Piece::Text(_))), "{written}");
                let whole: String =
                    word.0.iter().map(|piece| if let Piece::Text(text) = piece { text } else { "" }).collect();
                assert_eq!(whole, written);
            } else {
                assert_eq!(word.0, pieces, "{written}");
            }
        }
    }

    fn parse(command: &[&str], args: &[&str], items: &[&str]) -> Result<Program, ProgramError> {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let container = ContainerSpec { image: "i".to_owned(), command: owned(command), args: owned(args) };
        let spec = HTCJobSpec { container: Some(container), items: owned(items), ..HTCJobSpec::default() };
        Program::parse(&spec)
    }

    #[test]
    fn container_without_a_command_runs_the_entrypoint() {
        assert_eq!(parse(&[], &[], &[]), Ok(Program::Entrypoint(vec![])));
        assert_eq!(parse(&[], &["a"], &[]), Ok(Program::Entrypoint(vec!["a".into()])));
        let arguments = vec!["-c".into(), Piece::Item.into()];
        assert_eq!(
            parse(&["sh", "-c"], &["${item}"], &["a"]),
            Ok(Program::Command { program: "sh".to_owned(), arguments })
        );
    }

    #[test]
    fn words_that_no_program_can_get_are_refused() {
        for (command, args, problem) in [
            (&[""][..], &[][..], "spec.container.command: \"\" is not a program"),
            (&["-x"], &[], "not a program"),
            (&["A=b", "sh"], &[], "not a program"),
            (&["run-${index}"], &[], "\"run-${index}\" is not a program"),
            (&["sh"], &["a\0b"], "spec.container.args has a NUL character"),
            (&["sh"], &["${item}"], "spec.container.args has ${item}, and the jobs have no items"),
            (&["sh"], &[&*"a".repeat(MAX_BYTES)], "have 65538 bytes together"),
        ] {
            let refused = parse(command, args, &[]).unwrap_err().to_string();
            assert!(refused.contains(problem), "{refused}");
        }
    }

    #[test]
    fn spec_has_a_script_or_a_container() {
        let script = Script { command: "bash -e".to_owned(), ..Script::default() };
        let of = |script: Option<Script>, container: Option<ContainerSpec>| {
            Program::parse(&HTCJobSpec { script, container, ..HTCJobSpec::default() })
        };
        assert_eq!(of(Some(script.clone()), None), Ok(Program::script("bash -e").unwrap()));
        assert_eq!(of(Some(script), Some(ContainerSpec::default())), Err(ProgramError::Form));
        assert_eq!(of(None, None), Err(ProgramError::Form));
    }
}
