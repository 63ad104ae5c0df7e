//! Text from HTCondor, its tools or a job, made harmless and short for conditions, Events and the log.
//!
//! Whoever wrote it may not steer a terminal with it, turn or hide what stands beside it, or write lines of its own into a log.

/// Most bytes that are kept of what a tool says, and of HTCondor's reasons.
pub const WORDS: usize = 1000;

/// Hexadecimal digits of a uid before its first `-`.
const UID_BEGINS: usize = 8;

/// What was left out.
const CUT: &str = "…";

/// `text` on one line: at most `most` bytes of it from its beginning, a cut marked by `…`.
#[must_use]
pub fn harmless(text: &str, most: usize) -> String {
    let near = text.floor_char_boundary(most);
    let mut shown: String = text[..near].chars().map(character).collect();
    if near < text.len() || shown.len() > most {
        shown.truncate(shown.floor_char_boundary(most.saturating_sub(CUT.len())));
        shown.push_str(CUT);
    }
    shown
}

/// The same from its end.
#[must_use]
pub fn harmless_end(text: &str, most: usize) -> String {
    let near = text.ceil_char_boundary(text.len().saturating_sub(most));
    let shown: String = text[near..].chars().map(character).collect();
    if near == 0 && shown.len() <= most {
        return shown;
    }
    let start = shown.ceil_char_boundary((shown.len() + CUT.len()).saturating_sub(most));
    format!("{CUT}{}", &shown[start..])
}

/// Rows as lines, each column as wide as its widest cell; all rows have as many cells as the first.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `text` with its lines, each of them harmless.
#[must_use]
pub fn harmless_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { character(c) }).collect()
}

/// `text` without the uids of other objects than `own`: a tool that was called for several says the same to each. One that a cut has
/// left a part of counts, too.
#[must_use]
pub fn without_others(text: &str, own: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end.max(first.len_utf8()));
        let is_uid = word.len() > UID_BEGINS && word.find('-') == Some(UID_BEGINS);
        shown.push_str(if is_uid && !own.starts_with(word) { CUT } else { word });
        rest = after;
    }
    shown
}

/// A character that only shows itself: what Rust's own `escape_debug` prints as it is.
fn character(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        ' '..='~' => c,
        // Behind a letter: accents that combine with it are no letters of their own.
        c if ['a', c].iter().collect::<String>().escape_debug().eq(['a', c]) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_people_write_stays() {
        for text in ["", "a \"b\" 'c' \\d\\ ~", "äß€ 日本語 Ελληνικά हिन्दी עברית e\u{301} 🦀 …"]
        {
            assert_eq!(harmless(text, 1000), text);
            assert_eq!(harmless_end(text, 1000), text);
        }
        assert_eq!(harmless("one\ttwo\r\nthree", 100), "one two  three");
        assert_eq!(harmless_lines("one\ttwo\nthree\u{7}"), "one two\nthree\u{fffd}");
    }

    #[test]
    fn others_are_not_named() {
        let [own, other] = ["11111111-3b8c-4a51-9d1f-6f1a3a5f0001", "2222222a-3b8c-4a51-9d1f-6f1a3a5f0002"];
        let said = format!(
            "condor_rm: no (HTCJobUID in {{\"{own}\",\"{other}\"}}), /d/{other}/x; é 1.0-9 2026-11-23 {}",
            &other[..12]
        );
        let shown = format!("condor_rm: no (HTCJobUID in {{\"{own}\",\"…\"}}), /d/…/x; é 1.0-9 2026-11-23 …");
        assert_eq!(without_others(&said, own), shown);
        assert_eq!(without_others(&own[..20], own), own[..20]);
    }

    #[test]
    fn nothing_steers_turns_or_hides() {
        for c in "\0\u{7}\u{8}\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{61c}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\
            \u{2060}\u{2066}\u{2069}\u{feff}\u{fff9}\u{e0001}\u{e0041}\u{e000}\u{a0}"
            .chars()
        {
            assert_eq!(harmless(&format!("a{c}b"), 100), "a\u{fffd}b", "{c:?}");
            assert_eq!(harmless_end(&format!("a{c}b"), 100), "a\u{fffd}b", "{c:?}");
            assert_eq!(harmless_lines(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
    }

    #[test]
    fn a_cut_is_marked_where_it_was_made() {
        assert_eq!(harmless("0123456789", 10), "0123456789");
        assert_eq!(harmless("0123456789a", 10), "0123456…");
        assert_eq!(harmless_end("0123456789a", 10), "…456789a");
        assert_eq!(harmless("ääääää", 10), "äää…");
        assert_eq!(harmless_end("ääääää", 10), "…äää");
        let long = "x".repeat(20_000_000);
        assert_eq!((harmless(&long, 100).len(), harmless_end(&long, 100).len()), (100, 100));
    }

    proptest! {
        #[test]
        fn it_is_short_and_harmless(text in any::<String>(), most in 3_usize..300) {
            for shown in [harmless(&text, most), harmless_end(&text, most)] {
                prop_assert!(shown.len() <= most, "{} bytes", shown.len());
                prop_assert!(!shown.chars().any(char::is_control));
                prop_assert_eq!(harmless(&shown, most), shown.clone(), "it stays as it is");
                let cut = shown.starts_with(CUT) || shown.ends_with(CUT);
                prop_assert!(cut || shown.chars().count() == text.chars().count());
            }
        }
    }
}
