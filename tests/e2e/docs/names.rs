//! Whether names of tests, as tests/docs reads them from the sources for the pages, are those that run.

use std::collections::BTreeSet;
use std::process::Command;

use bed::names;

/// Names of this program's tests, as it lists them.
fn listed(which: &[&str]) -> BTreeSet<String> {
    let done = Command::new(std::env::current_exe().unwrap()).args(["--list", "--format=terse"]).args(which).output();
    let text = String::from_utf8(done.unwrap().stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn test_names_in_the_sources_match_the_listed_tests() {
    let (all, ignored) = (listed(&[]), listed(&["--ignored"]));
    let sources = names::below("tests/e2e");
    let is_of =
        |test: &str, name: &str| test == name || test.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
    let unknown: Vec<_> = all.iter().filter(|test| !sources.keys().any(|name| is_of(test, name))).collect();
    assert!(unknown.is_empty(), "not read from the sources: {unknown:?}");
    for (name, runs) in sources {
        let tests: Vec<_> = all.iter().filter(|test| is_of(test, &name)).collect();
        assert!(!tests.is_empty(), "{name} stands in the sources, and no test is called so");
        let any = tests.iter().any(|test| !ignored.contains(*test));
        assert_eq!(any, runs, "whether make test runs {name}");
    }
}
