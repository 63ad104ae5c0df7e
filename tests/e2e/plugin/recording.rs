//! The README's session: `make record` writes it, and without that the test holds it to what happens.

use std::path::Path;

use bed::pages::{blocks, read};
use bed::terminal::Terminal;
use bed::{Bed, checkout};
use testbed::Version;

on_versions! {
    sid: readme_session_matches_a_real_one;
}

const FOLDER: &str = "docs/session";
/// How the comment before it begins.
const MARK: &str = "<!-- not run: tests/e2e/plugin/recording.rs";

/// How long a job ran may not be known yet as it ends: that column is left out.
fn without_durations(text: &str) -> Vec<String> {
    let mut column = None;
    let cut = |line: &str| {
        if line.starts_with("$ ") {
            column = None;
        }
        column = line.find("DURATION").zip(line.find("AGE")).or(column);
        column.map_or_else(|| line.to_owned(), |(start, end)| format!("{}{}", &line[..start], &line[end..]))
    };
    text.lines().map(cut).collect()
}

/// Numbers, times such as `2m5s`, and how wide a column is, are of one day.
fn without_numbers(text: &str) -> Vec<String> {
    let number = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let plain = |word: &str| {
        let mut word: Vec<char> = word.chars().map(number).collect();
        word.dedup_by(|a, b| *a == '0' && *b == '0');
        let is_time = word.len() > 1 && word[0] == '0' && word.iter().all(|c| "0smhd".contains(*c));
        if is_time { "0s".to_owned() } else { word.into_iter().collect::<String>() }
    };
    let words = |line: String| line.split_whitespace().map(plain).collect::<Vec<_>>().join(" ");
    without_durations(text).into_iter().map(words).collect()
}

fn readme_session_matches_a_real_one(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = read(&format!("{FOLDER}/session.sh"));
    let commands: Vec<&str> = script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let recorded = Terminal::open(bed, &here.name).record(Path::new(FOLDER), &commands);
    let readme = read("README.md");
    let block = blocks(&readme).into_iter().find(|block| block.before.starts_with(MARK)).unwrap();
    if std::env::var_os("HTC_RECORD").is_some() {
        std::fs::write(checkout().join("README.md"), readme.replace(&block.text, &recorded)).unwrap();
        return;
    }
    let shown: Vec<&str> = block.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(shown, commands, "`make record` writes what {FOLDER}/session.sh does");
    assert_eq!(without_numbers(&block.text), without_numbers(&recorded), "`make record` writes it anew");
}
