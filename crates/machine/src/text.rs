//! Text from HTCondor, its tools or a job, made harmless and short for conditions, Events and the log.
//!
//! Its author must not be able to control a terminal, to reverse or hide adjacent text, or to write separate lines into
//! a log.

/// Maximum number of bytes that are kept of a tool's output, and of HTCondor's reasons.
pub const MAX_MESSAGE: usize = 1000;

/// Number of hexadecimal digits of a uid before its first `-`.
const UID_BEGINS: usize = 8;

/// Mark for text that was cut.
const CUT: &str = "…";

/// Puts `text` on one line: at most `most` bytes from its beginning. `…` marks a cut.
#[must_use]
pub fn sanitize(text: &str, most: usize) -> String {
    let near = text.floor_char_boundary(most);
    let mut shown: String = text[..near].chars().map(character).collect();
    if near < text.len() || shown.len() > most {
        shown.truncate(shown.floor_char_boundary(most.saturating_sub(CUT.len())));
        shown.push_str(CUT);
    }
    shown
}

/// Puts `text` on one line: at most `most` bytes from its end. `…` marks a cut.
#[must_use]
pub fn sanitize_end(text: &str, most: usize) -> String {
    let near = text.ceil_char_boundary(text.len().saturating_sub(most));
    let shown: String = text[near..].chars().map(character).collect();
    if near == 0 && shown.len() <= most {
        return shown;
    }
    let start = shown.ceil_char_boundary((shown.len() + CUT.len()).saturating_sub(most));
    format!("{CUT}{}", &shown[start..])
}

/// Formats rows as lines. Each column is as wide as its widest cell; all rows must have as many cells as the first.
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

/// Makes each line of `text` harmless, and keeps the line breaks.
#[must_use]
pub fn sanitize_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { character(c) }).collect()
}

/// Replaces uids of objects other than `own` by `…`.
/// A tool that is called for several HTCJobs prints the same output for each.
/// A uid that a cut has shortened is replaced, too.
#[must_use]
pub fn redact_other_uids(text: &str, own: &str) -> String {
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

/// Replaces a character that is not printable. Printable is what Rust's own `escape_debug` leaves unchanged.
fn character(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        ' '..='~' => c,
        // Tested behind a letter: accents that combine with it are not letters of their own.
        c if ['a', c].iter().collect::<String>().escape_debug().eq(['a', c]) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

/// Formats bytes as Kubernetes does: `512`, `1.5Ki`, `34Mi`.
#[must_use]
pub fn size(bytes: i64) -> String {
    let mut tenths = i128::from(bytes.max(0)) * 10;
    let mut unit = "";
    for next in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if tenths < 10 * 1024 {
            break;
        }
        (tenths, unit) = ((tenths + 512) / 1024, next);
    }
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 || whole >= 10 { format!("{whole}{unit}") } else { format!("{whole}.{tenth}{unit}") }
}

/// Formats seconds as kubectl does: `45s`, `3m12s`, `5h7m`, `3d4h`, `40d`.
#[must_use]
pub fn human(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, letter: char, small: i64, other: char| {
        if small == 0 { format!("{large}{letter}") } else { format!("{large}{letter}{small}{other}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % 24, 'h')
    } else {
        format!("{days}d")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_text_is_unchanged() {
        for text in ["", "a \"b\" 'c' \\d\\ ~", "äß€ 日本語 Ελληνικά हिन्दी עברית e\u{301} 🦀 …"]
        {
            assert_eq!(sanitize(text, 1000), text);
            assert_eq!(sanitize_end(text, 1000), text);
        }
        assert_eq!(sanitize("one\ttwo\r\nthree", 100), "one two  three");
        assert_eq!(sanitize_lines("one\ttwo\nthree\u{7}"), "one two\nthree\u{fffd}");
    }

    #[test]
    fn uids_of_other_objects_are_redacted() {
        let [own, other] = ["11111111-3b8c-4a51-9d1f-6f1a3a5f0001", "2222222a-3b8c-4a51-9d1f-6f1a3a5f0002"];
        let said = format!(
            "condor_rm: no (HTCJobUID in {{\"{own}\",\"{other}\"}}), /d/{other}/x; é 1.0-9 2026-11-23 {}",
            &other[..12]
        );
        let shown = format!("condor_rm: no (HTCJobUID in {{\"{own}\",\"…\"}}), /d/…/x; é 1.0-9 2026-11-23 …");
        assert_eq!(redact_other_uids(&said, own), shown);
        assert_eq!(redact_other_uids(&own[..20], own), own[..20]);
    }

    #[test]
    fn control_and_invisible_characters_are_replaced() {
        for c in "\0\u{7}\u{8}\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{61c}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\
            \u{2060}\u{2066}\u{2069}\u{feff}\u{fff9}\u{e0001}\u{e0041}\u{e000}\u{a0}"
            .chars()
        {
            assert_eq!(sanitize(&format!("a{c}b"), 100), "a\u{fffd}b", "{c:?}");
            assert_eq!(sanitize_end(&format!("a{c}b"), 100), "a\u{fffd}b", "{c:?}");
            assert_eq!(sanitize_lines(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
    }

    #[test]
    fn truncated_text_has_an_ellipsis() {
        assert_eq!(sanitize("0123456789", 10), "0123456789");
        assert_eq!(sanitize("0123456789a", 10), "0123456…");
        assert_eq!(sanitize_end("0123456789a", 10), "…456789a");
        assert_eq!(sanitize("ääääää", 10), "äää…");
        assert_eq!(sanitize_end("ääääää", 10), "…äää");
        let long = "x".repeat(20_000_000);
        assert_eq!((sanitize(&long, 100).len(), sanitize_end(&long, 100).len()), (100, 100));
    }

    proptest! {
        #[test]
        fn sanitized_text_is_bounded_and_has_no_control_characters(text in any::<String>(), most in 3_usize..300) {
            for shown in [sanitize(&text, most), sanitize_end(&text, most)] {
                prop_assert!(shown.len() <= most, "{} bytes", shown.len());
                prop_assert!(!shown.chars().any(char::is_control));
                prop_assert_eq!(sanitize(&shown, most), shown.clone(), "it stays as it is");
                let cut = shown.starts_with(CUT) || shown.ends_with(CUT);
                prop_assert!(cut || shown.chars().count() == text.chars().count());
            }
        }
    }

    #[test]
    fn durations_and_sizes_are_formatted_as_in_kubectl() {
        let shown: Vec<String> = [5, 119, 125, 700, 11_000, 20_000, 90_000, 200_000, 900_000].map(human).into();
        assert_eq!(shown, ["5s", "119s", "2m5s", "11m", "3h3m", "5h33m", "25h", "2d7h", "10d"]);
        let sizes: Vec<String> = [0, 1023, 1024, 1536, 10_000_000, 1 << 40, i64::MAX].map(size).into();
        assert_eq!(sizes, ["0", "1023", "1Ki", "1.5Ki", "9.5Mi", "1Ti", "8Ei"]);
    }
}
