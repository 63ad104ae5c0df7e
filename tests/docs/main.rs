//! The pages for users, admins and engineers: every link leads somewhere, and what they list is what the program has. No server
//! is needed; `tests/e2e/docs.rs` runs their commands.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "one program in several files; clippy counts only functions with #[test] as tests, not what they share"
)]

mod links;
mod promises;

use std::collections::BTreeSet;
use std::path::Path;

use bed::pages::{self, ELSEWHERE, blocks, pages, read};
use clap::Args as _;
use htc_api::{ConditionType, PayloadFailure, Reason};
use htc_machine::transitions::{Notice, TRANSITIONS};
use htc_operator::cli::config::Config;
use htc_operator::htcqueue::states::State;
use strum::IntoEnumIterator as _;

#[test]
fn command_blocks_are_run_or_explained() {
    let mut run = 0;
    for name in pages::user_pages() {
        for block in blocks(&read(&name)) {
            let place = format!("{name}:{}", block.line);
            match block.language.as_str() {
                "sh" => run += 1,
                "console" => {
                    let why = block.before.strip_prefix("<!-- not run: ");
                    let why =
                        why.unwrap_or_else(|| panic!("{place}: the line before it is no `<!-- not run: why -->`"));
                    for test in why.split_whitespace().filter(|word| word.starts_with("tests/")) {
                        assert!(bed::checkout().join(test).exists(), "{place}: there is no {test}");
                    }
                }
                "yaml" | "mermaid" | "text" => {
                    let command = block.text.lines().find(|line| {
                        let line = line.trim_start_matches(['#', '$', ' ']);
                        ["kubectl ", "condor_", "htc-operator ", "make "].iter().any(|start| line.starts_with(start))
                    });
                    assert!(command.is_none(), "{place}: a command that is not run: {command:?}");
                }
                other => panic!("{place}: a block of {other:?}"),
            }
        }
    }
    assert!(run > 10, "only {run} blocks are run");
}

#[test]
fn pages_run_by_other_tests_are_named_there() {
    for (page, test) in ELSEWHERE.into_iter().filter(|(page, _)| bed::checkout().join(page).exists()) {
        assert!(read(test).contains(page), "{test} does not run {page}");
    }
}

#[test]
fn every_link_resolves() {
    let mut seen = 0;
    let mut broken = Vec::new();
    for name in pages() {
        for link in links::links(&read(&name)) {
            seen += 1;
            if let Err(why) = links::follow(&name, &link) {
                broken.push(format!("{name}: {link}: {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(seen > 30, "only {seen} links were looked at");
}

#[test]
fn every_page_is_reachable_from_the_readme() {
    let mut reached = BTreeSet::from(["README.md".to_owned()]);
    let mut to_read = vec!["README.md".to_owned()];
    while let Some(name) = to_read.pop() {
        for target in links::links(&read(&name)).iter().filter_map(|link| links::follow(&name, link).ok()) {
            // A link to a folder shows all that is in it.
            let led_to = pages().into_iter().filter(|page| Path::new(page).starts_with(&target));
            to_read.extend(led_to.filter(|page| reached.insert(page.clone())));
        }
    }
    let lost: Vec<_> = pages().into_iter().filter(|page| !reached.contains(page)).collect();
    assert!(lost.is_empty(), "no link leads to {lost:?}");
}

/// The words that stand first, in backquotes, in the rows of tables below a heading.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let text = read(page);
    let below = text.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with("## "));
    let words: Vec<String> =
        below.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect();
    assert!(!words.is_empty(), "{page} has no table below {heading:?}");
    let set: BTreeSet<String> = words.iter().cloned().collect();
    assert_eq!(set.len(), words.len(), "{page}, {heading}: a word stands twice");
    set
}

/// Fails with what is on one side only.
fn must_be_same(listed: &BTreeSet<String>, there: &BTreeSet<String>) {
    let only = |one: &BTreeSet<String>, other| one.difference(other).cloned().collect::<Vec<_>>();
    let (unknown, missing) = (only(listed, there), only(there, listed));
    assert!(unknown.is_empty() && missing.is_empty(), "not listed: {missing:?}; listed and not there: {unknown:?}");
}

fn names<T: ToString>(all: impl Iterator<Item = T>) -> BTreeSet<String> {
    all.map(|one| one.to_string()).collect()
}

#[test]
fn every_condition_and_reason_is_documented() {
    must_be_same(&listed("docs/troubleshooting.md", "## Conditions"), &names(ConditionType::iter()));
    must_be_same(&listed("docs/troubleshooting.md", "## Reasons"), &names(Reason::iter()));
}

#[test]
fn every_queue_state_is_documented() {
    must_be_same(&listed("docs/queues.md", "## The states of an HTCJob in a queue"), &names(State::iter()));
}

#[test]
fn every_payload_exit_code_is_documented() {
    let codes = names(PayloadFailure::iter().map(PayloadFailure::code));
    must_be_same(&listed("docs/troubleshooting.md", "## Exit codes"), &codes);
}

#[test]
fn every_event_that_is_not_a_condition_is_documented() {
    let transitions = TRANSITIONS.iter().filter_map(|row| row.reason).map(str::to_owned);
    let there = transitions.chain(Notice::iter().map(|notice| notice.to_string())).collect();
    must_be_same(&listed("docs/troubleshooting.md", "## Events"), &there);
}

/// What the alerts are made of stands in the table above them, which a unit test compares with the program.
#[test]
fn alerts_use_existing_metrics() {
    let page = read("docs/metrics.md");
    let (metrics, alerts) = page.split_once("## Alerts").unwrap();
    let mut used = BTreeSet::new();
    for rest in alerts.split("htc_").skip(1) {
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        let end = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let row = format!("| `htc_{}` |", end.unwrap_or(&name));
        assert!(metrics.contains(&row), "there is no metric htc_{name}");
        used.insert(name);
    }
    assert!(used.len() >= 6, "only {used:?}");
}

/// What stands in backquotes and begins with two dashes is a flag of `htc-operator run`, but for those of `htc-operator orphans`, cargo, kubectl,
/// Apptainer and the plugin.
#[test]
fn every_documented_flag_exists() {
    let operator = Config::augment_args(clap::Command::new("run"));
    let flags = operator.get_arguments().filter_map(clap::Arg::get_long);
    let others = ["dry-run", "features", "for", "help", "log-format", "log-level", "nv", "release", "rocm"];
    let of_orphans = ["pool", "remove"];
    let of_submit = [
        "backend",
        "command",
        "k8s-image",
        "k8s-mount-path",
        "k8s-registry-secret",
        "k8s-volume-claim",
        "script",
        "volume",
    ];
    let flags: BTreeSet<&str> = flags.chain(others).chain(of_orphans).chain(of_submit).collect();
    let mut seen = 0;
    for page in pages::user_pages() {
        for flag in read(&page).split("`--").skip(1) {
            let name = flag
                .split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-')
                .next()
                .unwrap_or_default();
            assert!(flags.contains(name), "{page}: there is no --{name}");
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} flags were looked at");
}

/// With `--help` behind them the plugin reads a command and its flags, and does nothing.
#[test]
fn every_documented_plugin_call_parses() {
    let mut seen = 0;
    for page in pages::user_pages() {
        let text = read(&page);
        let quoted = text.split('`').skip(1).step_by(2).flat_map(str::lines);
        for call in quoted.filter_map(|line| line.trim_start_matches(['$', ' ']).strip_prefix("kubectl htc ")) {
            let call = call.split(['|', '>', ';', '&']).next().unwrap_or_default();
            let words =
                call.replace("[/INDEX]", "/3").replace("INDEX", "3").replace("NAME", "fit").replace("SHELL", "bash");
            // Behind `--` it would be a word of the payload.
            let (flags, _payload) = words.split_once(" -- ").unwrap_or((&words, ""));
            let mut plugin = std::process::Command::new(bed::built("kubectl-htc"));
            let done = plugin.args(flags.split_whitespace()).arg("--help").output().unwrap();
            assert!(done.status.success(), "{page}: kubectl htc {call}: {}", String::from_utf8_lossy(&done.stderr));
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} calls were looked at");
}

#[test]
fn every_example_is_in_the_readme() {
    let listed = listed("README.md", "## Examples");
    let there: BTreeSet<String> =
        pages::files("examples").into_iter().filter(|name| pages::has_extension(name, "yaml")).collect();
    must_be_same(&listed, &there);
}
