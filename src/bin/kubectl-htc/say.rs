//! Text for the terminal. All of it is harmless but what [`raw`] writes: what jobs, users and HTCondor have written can neither steer a
//! terminal nor hide what stands beside it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is what talks to the terminal")]

use std::io::Write as _;

use htc_operator::api::text::{harmless, harmless_lines};
use serde::Serialize;

use super::Failure;

/// Ends the line that is shown on a terminal, without a trace of it.
const CLEAR: &str = "\r\x1b[K";

/// Prints lines on standard output. Arguments as for `println!`.
macro_rules! say {
    ($($words:tt)*) => { $crate::say::out(&format!($($words)*)) };
}
/// Prints lines on standard error. Arguments as for `eprintln!`.
macro_rules! tell {
    ($($words:tt)*) => { $crate::say::err(&format!($($words)*)) };
}
pub(super) use {say, tell};

/// One line for people, without what begins another line.
pub(super) fn line(text: &str) -> String {
    harmless(text, usize::MAX)
}

pub(super) fn out(text: &str) {
    println!("{}", harmless_lines(text));
}

pub(super) fn err(text: &str) {
    eprintln!("{}", harmless_lines(text));
}

/// Shows a line on a terminal, in place of the one before.
pub(super) fn progress(text: &str) {
    eprint!("{CLEAR}{}", line(text));
    let _ = std::io::stderr().flush();
}

/// Takes the line of [`progress`] away.
pub(super) fn clear() {
    eprint!("{CLEAR}");
}

/// A word to complete and what is said of it, as cobra's scripts read it.
pub(super) fn word(word: &str, about: &str) {
    let (word, about) = (line(word), line(about));
    if about.is_empty() { println!("{word}") } else { println!("{word}\t{about}") }
}

/// Writes what a job has written as it is, or a file that was made for it.
pub(super) fn raw(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints an object as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    println!("{}", as_json(value)?);
    Ok(())
}

/// Prints an object as YAML.
pub(super) fn yaml(value: &impl Serialize) -> Result<(), Failure> {
    print!("{}", as_yaml(value)?);
    Ok(())
}

/// YAML, or JSON where the text would not be harmless: every JSON document is one in YAML, and only its strings can be escaped
/// wherever they stand.
fn as_yaml(value: &impl Serialize) -> Result<String, Failure> {
    let yaml = serde_saphyr::to_string(value).map_err(|error| Failure::new("write YAML", error))?;
    // A tab is harmless, too, and scripts have some.
    Ok(if harmless_lines(&yaml) == yaml.replace('\t', " ") { yaml } else { as_json(value)? + "\n" })
}

fn as_json(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::new("write JSON", error))?;
    Ok(escaped(&json))
}

/// A JSON document whose strings escape what is not harmless. Elsewhere it has nothing of the kind.
fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if harmless_lines(c.encode_utf8(&mut [0; 4])).chars().eq([c]) {
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

    /// Clears the screen by C0 and by C1, hides what follows, turns it around.
    const STEERS: &str = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\u{e0001}b";

    #[test]
    fn documents_do_not_steer_a_terminal_and_keep_their_values() {
        let value = json!({ "name": STEERS, STEERS: ["é", "✓", "two\nlines"] });
        let text = as_json(&value).unwrap();
        assert_eq!(harmless_lines(&text), text);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let text = as_yaml(&value).unwrap();
        assert_eq!(harmless_lines(&text), text);
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value);
        for plain in ["é", "if true; then\n\techo 1\nfi\n"] {
            assert!(as_yaml(&json!({ "name": plain })).unwrap().starts_with("name: "), "{plain}");
        }
    }
}
