//! Text for the terminal. All of it is sanitized except the output of [`raw`]: texts of jobs, users and HTCondor can
//! neither control a terminal nor hide the text beside them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what talks to the terminal")]

use std::io::Write as _;

use htc_machine::text::{sanitize, sanitize_lines};
use serde::Serialize;

use super::CommandFailure;

/// Clears the current line on a terminal.
const CLEAR: &str = "\r\x1b[K";

/// Prints lines on standard output. Arguments as for `println!`.
macro_rules! say {
    ($($words:tt)*) => { $crate::terminal::out(&format!($($words)*)) };
}
/// Prints lines on standard error. Arguments as for `eprintln!`.
macro_rules! tell {
    ($($words:tt)*) => { $crate::terminal::err(&format!($($words)*)) };
}
pub(super) use {say, tell};

/// Returns the text as one line, without line breaks.
pub(super) fn line(text: &str) -> String {
    sanitize(text, usize::MAX)
}

pub(super) fn out(text: &str) {
    println!("{}", sanitize_lines(text));
}

pub(super) fn err(text: &str) {
    eprintln!("{}", sanitize_lines(text));
}

/// Shows a line on a terminal, in place of the one before.
pub(super) fn progress(text: &str) {
    eprint!("{CLEAR}{}", line(text));
    let _ = std::io::stderr().flush();
}

/// Removes the line of [`progress`].
pub(super) fn clear() {
    eprint!("{CLEAR}");
}

/// Prints a candidate for completion and its description, in the format of cobra's scripts.
pub(super) fn word(word: &str, about: &str) {
    let (word, about) = (line(word), line(about));
    if about.is_empty() { println!("{word}") } else { println!("{word}\t{about}") }
}

/// Writes bytes unchanged: the output of a job, or a file that was made for the user.
pub(super) fn raw(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints an object as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), CommandFailure> {
    println!("{}", as_json(value)?);
    Ok(())
}

/// Prints an object as YAML.
pub(super) fn yaml(value: &impl Serialize) -> Result<(), CommandFailure> {
    print!("{}", as_yaml(value)?);
    Ok(())
}

/// Returns YAML, or JSON if the text would not be safe. Every JSON document is one in YAML, and in it only strings
/// need escapes.
fn as_yaml(value: &impl Serialize) -> Result<String, CommandFailure> {
    let yaml = serde_saphyr::to_string(value).map_err(|error| CommandFailure::new("write YAML", error))?;
    // A tab is safe, too, and scripts have some.
    Ok(if sanitize_lines(&yaml) == yaml.replace('\t', " ") { yaml } else { as_json(value)? + "\n" })
}

fn as_json(value: &impl Serialize) -> Result<String, CommandFailure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| CommandFailure::new("write JSON", error))?;
    Ok(escaped(&json))
}

/// Escapes unsafe characters in the strings of a JSON document. Elsewhere it contains none.
fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if sanitize_lines(c.encode_utf8(&mut [0; 4])).chars().eq([c]) {
            shown.push(c);
        } else {
            let mut units = [0; 2];
            shown.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Clears the screen by C0 and by C1, hides the text that follows, reverses its direction.
    const STEERS: &str = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\u{e0001}b";

    #[test]
    fn printed_documents_escape_control_characters_and_keep_values() {
        let value = json!({ "name": STEERS, STEERS: ["é", "✓", "two\nlines"] });
        let text = as_json(&value).unwrap();
        assert_eq!(sanitize_lines(&text), text);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let text = as_yaml(&value).unwrap();
        assert_eq!(sanitize_lines(&text), text);
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value);
        for plain in ["é", "if true; then\n\techo 1\nfi\n"] {
            assert!(as_yaml(&json!({ "name": plain })).unwrap().starts_with("name: "), "{plain}");
        }
    }
}
