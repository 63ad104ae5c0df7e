//! The pages for users and admins: every command in them runs, every link leads somewhere, and what they list is what the
//! program has.
//!
//! Commands stand in blocks marked `sh`, which are run in order, page by page, each page in a namespace of its own. What cannot be
//! run here is marked `console`, and a comment before it says why: `<!-- not run: needs a node -->`.

mod deployment;
mod links;
mod pages;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use self::pages::{blocks, pages, read};
use bed::Bed;
use bed::terminal::{Page, Terminal};
use clap::Args as _;
use htc_operator::api::{ConditionType, PayloadFailure, Reason};
use htc_operator::config::Config;
use strum::IntoEnumIterator as _;
use testbed::{Port, Version};

/// Pages whose commands need another bed than this one, and the tests that run them there.
const ELSEWHERE: [(&str, &str); 2] =
    [("docs/install.md", "tests/e2e/deploy/overlays.rs"), ("docs/upgrading.md", "tests/e2e/upgrade/document.rs")];

/// The page that puts an old ledger back: what the other pages' HTCJobs have done since then would be in doubt, so it runs after
/// them.
const RESTORES: &str = "docs/operating.md";

/// The pages whose commands run here.
fn run_here() -> Vec<String> {
    pages::user_pages().into_iter().filter(|name| ELSEWHERE.iter().all(|(elsewhere, _)| elsewhere != name)).collect()
}

/// For the commands of one page.
const LIMIT: Duration = Duration::from_secs(400);

#[test]
fn every_command_runs() {
    let ports = [Port::reserve().unwrap(), Port::reserve().unwrap()];
    let [callbacks, http] = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number));
    let bed = Bed::new(
        Version::Trixie,
        &testbed::PoolOptions::default(),
        &[
            &format!("--callback-listen={callbacks}"),
            &format!("--callback-url=http://{callbacks}/cloudevents"),
            &format!("--http-listen={http}"),
        ],
    );
    bed.start_operator();
    let failed = deployment::run_as_told(&bed, || {
        let run = |name: &String| {
            let page = Page::of_markdown(name, &read(name));
            if page.is_empty() {
                return None;
            }
            let here = bed.namespace();
            let terminal = Terminal::open(&bed, &here.name).with("OPERATOR", &format!("http://{http}"));
            terminal.run(&page, LIMIT).err()
        };
        let (alone, together): (Vec<_>, Vec<_>) = run_here().into_iter().partition(|name| name == RESTORES);
        let mut failed = std::thread::scope(|scope| {
            let threads: Vec<_> = together.iter().map(|name| scope.spawn(|| run(name))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        failed.extend(alone.iter().filter_map(run));
        failed
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn what_is_not_run_says_why() {
    let mut run = 0;
    for name in run_here() {
        for block in blocks(&read(&name)) {
            let place = format!("{name}:{}", block.line);
            match block.language.as_str() {
                "sh" => run += 1,
                "console" => assert!(
                    block.before.starts_with("<!-- not run: "),
                    "{place}: the line before it is no `<!-- not run: why -->`"
                ),
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
fn what_runs_elsewhere_does() {
    for (page, test) in ELSEWHERE.into_iter().filter(|(page, _)| pages::root().join(page).exists()) {
        assert!(read(test).contains(page), "{test} does not run {page}");
    }
}

#[test]
fn every_link_leads_somewhere() {
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
fn every_page_can_be_reached_from_the_readme() {
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
fn every_condition_and_reason_is_explained() {
    must_be_same(&listed("docs/operating.md", "## Conditions"), &names(ConditionType::iter()));
    must_be_same(&listed("docs/operating.md", "## Reasons"), &names(Reason::iter()));
}

#[test]
fn every_exit_code_of_ours_is_explained() {
    let codes = names(PayloadFailure::iter().map(PayloadFailure::exit_code));
    must_be_same(&listed("docs/operating.md", "## Exit codes"), &codes);
}

/// What stands in backquotes and begins with two dashes is a flag of the operator's, but for cargo's and kubectl's.
#[test]
fn every_flag_that_is_named_exists() {
    let operator = Config::augment_args(clap::Command::new("run"));
    let flags: BTreeSet<&str> = operator.get_arguments().filter_map(clap::Arg::get_long).collect();
    let others = ["features", "for", "help", "log", "log-format", "release"];
    let mut seen = 0;
    for page in pages::user_pages() {
        for flag in read(&page).split("`--").skip(1) {
            let name = flag.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default();
            assert!(flags.contains(name) || others.contains(&name), "{page}: there is no --{name}");
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} flags were looked at");
}

#[test]
fn every_example_stands_in_the_readme() {
    let listed = listed("README.md", "## Examples");
    let there: BTreeSet<String> =
        pages::files("examples").into_iter().filter(|name| pages::has_extension(name, "yaml")).collect();
    must_be_same(&listed, &there);
}
