//! The names of tests in the pages are those of tests, and `make test` shows each promise and what stops each attack.

use std::collections::BTreeSet;

use bed::names;
use bed::pages::read;

/// What a page has in backquotes that may be the name of a test: words with `::` between them.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        word.contains("::") && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

#[test]
fn every_documented_test_exists() {
    let tests = names::all();
    let mut seen = BTreeSet::new();
    let mut missing = Vec::new();
    for page in ["docs/guarantees.md", "docs/kube-runtime.md", "docs/security.md"] {
        let text = read(page);
        for name in named(&text) {
            if !tests.contains_key(name) {
                missing.push(format!("{page}: {name}"));
            }
            seen.insert(name.to_owned());
        }
    }
    assert!(missing.is_empty(), "no test has the name that stands in\n{}", missing.join("\n"));
    assert!(seen.len() > 200, "only {} names were looked at", seen.len());
}

/// Rows of the tables below a heading that have a column of this name, and the text in it.
fn rows(page: &str, heading: &str, column: &str) -> Vec<(String, String)> {
    let text = read(page);
    let part = text.split("\n## ").find(|part| part.starts_with(heading)).unwrap();
    let (mut at, mut rows) = (None, Vec::new());
    for line in part.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !line.starts_with('|') {
            at = None;
        } else if let Some(place) = cells.iter().position(|cell| *cell == column) {
            at = Some(place);
        } else if let Some(at) = at.filter(|_| !line.starts_with("| ---")) {
            rows.push((cells[0].to_owned(), (*cells.get(at).unwrap_or(&"")).to_owned()));
        }
    }
    rows
}

#[test]
fn make_test_covers_every_promise_and_attack() {
    let tests = names::all();
    let (promises, attacks) =
        (rows("docs/guarantees.md", "Promises", "tests"), rows("docs/security.md", "Attacks and their tests", "test"));
    assert!(promises.len() > 100 && attacks.len() > 50, "{} promises, {} attacks", promises.len(), attacks.len());
    let shown = |text: &str| named(text).any(|name| tests.get(name) == Some(&true));
    let missing: Vec<_> =
        promises.iter().chain(&attacks).filter(|(_, text)| !shown(text)).map(|(fault, _)| fault.as_str()).collect();
    assert!(missing.is_empty(), "make test has no test for\n{}", missing.join("\n"));
}
