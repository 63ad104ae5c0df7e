//! Names of all tests, read from the sources as rustfmt writes them: `outages::submitter::jobs_landing_late_run_no_payload`.
//!
//! A name has, outside the operator's own crate, the crate, then the file's path, the modules within the file and the function, and nothing of the case or the version of HTCondor.
//! `docs::names` (tests/e2e) compares them with those that the program of tests on real servers lists.

use std::collections::BTreeMap;

use crate::pages;

/// Folders of sources, and whether `make test` runs their tests with ignored ones.
const FOLDERS: [&str; 6] = ["src", "tests/e2e", "tests/model/src", "tests/receiver", "tests/docs", "tests/bed/src"];

/// Folders of crates, each with what stands before the names of its tests.
const CRATES: [(&str, &str); 9] = [
    ("crates/api/src", "htc_api"),
    ("crates/confine/src", "htc_confine"),
    ("crates/htcondor/src", "htcondor"),
    ("crates/kubectl-htc/src", "kubectl_htc"),
    ("crates/ledger/src", "htc_ledger"),
    ("crates/machine/src", "htc_machine"),
    ("crates/machine/tests/machine", "htc_machine"),
    ("crates/submit/src", "htc_submit"),
    ("crates/support/src", "htc_support"),
];

/// Each test, and whether `make test` runs it: at least one of its cases is not ignored.
pub fn all() -> BTreeMap<String, bool> {
    let mut tests = BTreeMap::new();
    for folder in FOLDERS {
        tests.extend(below(folder));
    }
    for (folder, krate) in CRATES {
        tests.extend(below(folder).into_iter().map(|(name, runs)| (format!("{krate}::{name}"), runs)));
    }
    tests
}

/// The tests of the files below a folder that stands in [`FOLDERS`].
pub fn below(folder: &str) -> BTreeMap<String, bool> {
    let mut tests = BTreeMap::new();
    for path in pages::files(folder).into_iter().filter(|path| pages::has_extension(path, "rs")) {
        let inner = &path[folder.len() + 1..path.len() - ".rs".len()];
        let modules: Vec<String> =
            inner.split('/').filter(|word| !["lib", "main", "mod"].contains(word)).map(str::to_owned).collect();
        tests.extend(of_a_file(&pages::read(&path), &modules));
    }
    tests
}

fn of_a_file(source: &str, file: &[String]) -> Vec<(String, bool)> {
    let mut tests = Vec::new();
    // Modules within the file, each with its depth.
    let mut modules: Vec<(usize, String)> = Vec::new();
    // Attributes since the last item.
    let (mut is_test, mut cases, mut ignored) = (false, 0, 0);
    let mut scenarios: Option<&str> = None;
    for line in source.lines() {
        let text = line.trim();
        let depth = line.len() - line.trim_start().len();
        if !text.is_empty() {
            modules.retain(|(of, _)| depth > *of || (depth == *of && text == "}"));
        }
        let name = |last: &str| {
            let inner = modules.iter().map(|(_, module)| module.as_str());
            file.iter().map(String::as_str).chain(inner).chain([last]).collect::<Vec<_>>().join("::")
        };
        if text == "on_versions! {" {
            scenarios = Some("");
        } else if let Some(kind) = scenarios {
            let (kind, list) = text.split_once(':').unwrap_or((kind, text));
            scenarios = (text != "}").then_some(kind);
            let words = list.split([',', ';']).map(str::trim).filter(|word| !word.is_empty() && *word != "}");
            tests.extend(words.map(|scenario| (name(scenario), !["long", "kueue"].contains(&kind))));
        } else if let Some(attribute) = text.strip_prefix("#[") {
            is_test |=
                ["test]", "rstest]", "tokio::test", "actix_web::test"].iter().any(|it| attribute.starts_with(it));
            cases += usize::from(attribute.starts_with("case"));
            ignored += usize::from(attribute.starts_with("ignore"));
        } else if let Some(module) = module(text) {
            modules.push((depth, module.to_owned()));
        } else if let Some(function) = function(text) {
            if is_test {
                tests.push((name(function), ignored == 0 || ignored < cases));
            }
            (is_test, cases, ignored) = (false, 0, 0);
        }
    }
    tests
}

fn module(line: &str) -> Option<&str> {
    line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?.strip_suffix(" {")
}

fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    line.strip_prefix("async ")
        .unwrap_or(line)
        .strip_prefix("fn ")?
        .split(['(', '<'])
        .next()
        .filter(|name| !name.starts_with('$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_names_are_parsed_from_sources() {
        let source = "\
on_versions! {
    sid: landing_late, killed;
    long:
        asleep,
        awake;
}

fn landing_late(version: Version) {}

#[rstest]
#[ignore = \"long\"]
#[case::trixie(Trixie)]
#[case::sid(Sid)]
fn has_cases(#[case] version: Version) {}

mod inner {
    mod tests {
        #[tokio::test]
        async fn deep() {}
    }
    #[test]
    #[ignore = \"long\"]
    fn left() {}
}

#[test]
fn last() {}
";
        let is = [
            ("landing_late", true),
            ("killed", true),
            ("asleep", false),
            ("awake", false),
            ("has_cases", true),
            ("inner::tests::deep", true),
            ("inner::left", false),
            ("last", true),
        ];
        let is = is.map(|(name, runs)| (format!("module::file::{name}"), runs));
        assert_eq!(of_a_file(source, &["module", "file"].map(str::to_owned)), is);
    }
}
