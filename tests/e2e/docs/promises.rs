//! Whether `make test` shows each promise of docs/guarantees.md, and what stops each attack of docs/security.md: of the tests in each
//! row at least one is not left to `make test-long`.

use std::collections::BTreeSet;
use std::process::Command;

use bed::checkout;
use bed::pages::read;

/// Names of this program's tests, as `module::version::function`.
fn tests(which: &[&str]) -> BTreeSet<String> {
    let done = Command::new(std::env::current_exe().unwrap()).args(["--list", "--format=terse"]).args(which).output();
    let text = String::from_utf8(done.unwrap().stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Whether a test is one of those that a page names, such as `outages::power::*`, `rules::jobs::behind_another_schedd` or `soak`.
fn is_named(test: &str, name: &str) -> bool {
    let (words, parts): (Vec<&str>, Vec<&str>) = (name.split("::").collect(), test.split("::").collect());
    match words[..] {
        [module] | [module, "*"] => parts[0] == module,
        // Tests with versions of HTCondor are called by their version, and not by the file that they are in.
        [module, room, "*"] => {
            let file = checkout().join(format!("tests/e2e/{module}/{room}.rs"));
            let here = |text: String| parts.iter().any(|part| text.contains(&format!("fn {part}(")));
            parts[0] == module && (parts[1] == room || std::fs::read_to_string(file).is_ok_and(here))
        }
        [module, .., function] => parts[0] == module && parts.contains(&function),
        [] => false,
    }
}

/// Rows of the tables below a heading, with the names of tests in backquotes in one column. What has no module of its own before it is in
/// that of the name before.
fn rows(page: &str, heading: &str, column: usize) -> Vec<(String, Vec<String>)> {
    let text = read(page);
    let part = text.split("\n## ").find(|part| part.starts_with(heading)).unwrap();
    let rows = part.lines().filter(|line| {
        line.starts_with("| ")
            && !line.starts_with("| what can")
            && !line.starts_with("| attack |")
            && !line.starts_with("| ---")
    });
    rows.map(|row| {
        let tests = row.split(" | ").nth(column).unwrap_or_default();
        let mut module = String::new();
        let of_a_test = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || "_:*".contains(c));
        let names = tests.split('`').skip(1).step_by(2).filter(of_a_test).map(|name| match name.rsplit_once("::") {
            Some((before, _)) => {
                before.clone_into(&mut module);
                name.to_owned()
            }
            None if module.is_empty() || checkout().join(format!("tests/e2e/{name}.rs")).exists() => name.to_owned(),
            None => format!("{module}::{name}"),
        });
        (row.to_owned(), names.collect())
    })
    .collect()
}

#[test]
fn make_test_shows_every_promise() {
    let (all, left) = (tests(&[]), tests(&["--ignored"]));
    let (mut seen, mut missing) = (0, Vec::new());
    let promises = rows("docs/guarantees.md", "Promises", 1);
    for (row, names) in promises.into_iter().chain(rows("docs/security.md", "Attacks and their tests", 2)) {
        // The others are unit tests and the model's, all of which `make test` runs.
        let here: Vec<&String> = names.iter().filter(|name| all.iter().any(|test| is_named(test, name))).collect();
        // Kueue is built from source for its tests; the page says so.
        if here.is_empty() || here.iter().all(|name| name.starts_with("kueue::")) {
            continue;
        }
        seen += 1;
        if !all.difference(&left).any(|test| here.iter().any(|name| is_named(test, name))) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "only make test-long shows these promises:\n{}", missing.join("\n"));
    assert!(seen > 40, "only {seen} rows were looked at");
}
