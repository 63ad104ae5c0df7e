//! `story`: the history of an HTCJob as text and as a picture; and shell completion.

use std::os::unix::fs::symlink;

use bed::{Bed, UNTIL_LET_GO, htcjob};
use serde_json::Value;
use testbed::Version;

use super::submit_and_retry::htc;

on_versions! {
    trixie: kubectl_completes_names_for_the_plugin;
    sid: story_lists_and_draws_each_job, story_is_complete_after_its_events_are_gone;
}

/// Texts of a picture's elements of this name; it must be XML.
pub(super) fn texts(svg: &str, name: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    let all = document.descendants().filter(|node| node.tag_name().name() == name);
    all.filter_map(|node| node.text()).map(str::to_owned).collect()
}

fn story_lists_and_draws_each_job(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let mut object = htcjob("tale", &format!("case $1 in 1) exit 7;; 2) kill -9 $$;; 3) {UNTIL_LET_GO};; esac"));
    object["spec"]["queue"] = 4.into();
    here.create(&object);
    here.wait("tale", "three ended", |object| object["status"]["failed"] == 2 && object["status"]["succeeded"] == 1);
    let folder = bed.scratch().dir(&format!("{}-story", here.name)).unwrap();
    let file = folder.join("tale.svg").display().to_string();

    // While one runs.
    let (code, stdout, error) = htc(here, &["story", "tale", "--svg", &file]);
    assert_eq!((code, error.as_str()), (0, format!("{file}: a timeline of 4 jobs\n").as_str()));
    assert!(stdout.lines().last().unwrap().ends_with("  now        Running"), "{stdout}");
    let svg = std::fs::read_to_string(&file).unwrap();
    let titles = texts(&svg, "title");
    let title = |index: usize| titles.iter().find(|title| title.starts_with(&format!("job {index}: "))).unwrap();
    for (index, end) in [(0, "succeeded"), (1, "exit code 7"), (2, "exit code 137"), (3, "running")] {
        assert!(title(index).starts_with(&format!("job {index}: {end}")), "{titles:?}");
        assert!(title(index).contains(" on "), "where it ran: {titles:?}");
    }
    assert!(title(3).contains("running "), "{titles:?}");
    assert!(texts(&svg, "text").contains(&"✗ exit code 7".to_owned()), "{svg}");

    here.let_go("tale");
    here.wait_ended("tale");
    let (_, stdout, _) = htc(here, &["story", "tale"]);
    let whats: Vec<&str> = stdout.lines().filter_map(|line| line.get(30..)?.split_whitespace().next()).collect();
    let wanted = ["WHAT", "Created", "Pending", "Submitted", "Running"];
    let places: Vec<Option<usize>> = wanted.iter().map(|wanted| whats.iter().position(|what| what == wanted)).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{stdout}");
    assert!(stdout.contains("  Failed") && !stdout.contains("  now  "), "{stdout}");
    let (_, json, _) = htc(here, &["story", "tale", "-o", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let steps = json["steps"].as_array().unwrap();
    assert!(steps[0]["what"] == "Created" && steps[0]["pauseSeconds"].is_null(), "{json:#}");
    assert!(steps[1..].iter().all(|step| step["pauseSeconds"].is_i64()), "{json:#}");

    // Who may not see the jobs sees the HTCJob, and reads what is missing.
    let ann = here.person("ann", &["htcjobs-view"]);
    ann.comes_to_see(&["get", "htcjobs"]);
    let (code, svg, error) = htc(here, &["story", "tale", "--svg=-", "--as", &ann.name]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(texts(&svg, "title").len(), 2, "{svg}");
    let note = texts(&svg, "text").into_iter().find(|text| text.contains("without its jobs"));
    assert!(note.is_some_and(|note| note.contains("forbidden")), "{svg}");
    let (code, stdout, error) = htc(here, &["story", "tale", "--as", &ann.name]);
    assert!(
        code == 0 && stdout.contains("Submitted") && error.contains("cannot list the Events of HTCJob "),
        "{stdout}{error}"
    );
    let (code, _, error) = htc(here, &["story", "nosuch"]);
    assert!(code == 2 && error.contains("not found"), "{error}");
}

/// Kubernetes deletes Events after an hour; the operator keeps them, for users who may view the jobs.
fn story_is_complete_after_its_events_are_gone(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let (here, there) = (&bed.namespace(), &bed.namespace());
    let mut object = htcjob("tale", "grep -q '^NumJobCompletions = [1-9]' .job.ad || exit 75");
    object["spec"]["htcopts"] = "on_exit_hold = ExitCode == 75".into();
    here.create(&object);
    here.wait("tale", "it is held", |object| object["status"]["held"] == 1);
    let (code, _, error) = htc(here, &["release", "tale/0"]);
    assert_eq!(code, 0, "{error}");
    here.wait_ended("tale");
    here.wait_output("tale");

    let (code, stdout, error) = htc(here, &["story", "tale"]);
    assert_eq!((code, error.as_str()), (0, ""));
    let words = ["Pending", "Submitted", "Running", "JobsHeld", "ReleasedByUser", "NotHeld", "Completed", "Fetched"];
    for what in words {
        assert!(stdout.contains(&format!("  {what} ")), "{what}: {stdout}");
    }
    here.kubectl(&["delete", "events", "--all"]);
    let (_, again, error) = htc(here, &["story", "tale"]);
    assert_eq!((again.as_str(), error.as_str()), (stdout.as_str(), ""));
    // The hold is over, and is drawn.
    let (_, svg, _) = htc(here, &["story", "tale", "--svg=-"]);
    let titles = texts(&svg, "title");
    assert!(titles.iter().any(|title| title.starts_with("held: ") && title.contains("1 of 1 job held")), "{titles:?}");

    // Who may not list Events reads the same.
    let ann = here.person("ann", &["htcjobs-view", "htcprocs-view"]);
    ann.comes_to_see(&["get", "htcstory", "tale"]);
    let (code, shown, error) = htc(here, &["story", "tale", "--as", &ann.name]);
    assert_eq!((code, shown.as_str(), error.as_str()), (0, stdout.as_str(), ""));
    let table = ann.sees(&["get", "htcstory", "tale"]);
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NAME", "TIME", "PAUSE", "REASON", "MESSAGE"]);
    assert!(table.contains(" Submitted ") && table.contains(" JobsHeld "), "{table}");
    let first = ann.sees(&["get", "htcstory", "tale", "-o", "jsonpath={.transitions[0].to} {.earlierTransitions}"]);
    assert_eq!(first, "Pending 0");
    assert!(ann.sees(&["explain", "htcstories.transitions"]).contains("pauseSeconds"));
    for arguments in [["get", "htcstories"].as_slice(), &["-n", &there.name, "get", "htcstory", "tale"]] {
        assert!(ann.is_refused(arguments).contains("Forbidden"), "{arguments:?}");
    }
    let half = here.person("half", &["htcjobs-view"]);
    half.comes_to_see(&["get", "htcjobs"]);
    assert!(half.is_refused(&["get", "htcstory", "tale"]).contains("Forbidden"));
    let (code, stdout, error) = htc(here, &["story", "tale", "--as", &half.name]);
    assert!(code == 0 && stdout.contains("  Completed "), "{stdout}");
    assert!(error.contains("forbidden") && error.contains("cannot list the Events of HTCJob "), "{error}");
    here.kubectl(&["create", "role", "events", "--verb=list", "--resource=events"]);
    here.kubectl(&["create", "rolebinding", "events", "--role=events", &format!("--user={}", half.name)]);
    half.comes_to_see(&["get", "events"]);
    let (_, _, error) = htc(here, &["story", "tale", "--as", &half.name]);
    assert!(error.starts_with("The steps come from Events, which Kubernetes keeps for an hour: "), "{error}");
    let nobody = here.admin().is_refused(&["get", "htcstory", "nosuch"]);
    assert!(nobody.contains("htcstories.procs.htc.cern.ch \"nosuch\" not found"), "{nobody}");
}

/// kubectl runs a program of a fixed name in PATH to complete a plugin's arguments.
fn kubectl_completes_names_for_the_plugin(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let mut object = htcjob("sums", "exit $1");
    object["spec"]["queue"] = 2.into();
    here.create(&object);
    here.create(&htcjob("other", "true"));
    here.wait_ended("sums");
    let bin = bed.scratch().dir(&format!("{}-bin", here.name)).unwrap();
    let program = bed::program().with_file_name("kubectl-htc");
    for name in ["kubectl-htc", "kubectl_complete-htc"] {
        symlink(&program, bin.join(name)).unwrap();
    }
    // As the scripts of `kubectl completion` ask.
    let complete = |words: &[&str]| {
        let mut kubectl = bed.kube.kubectl(&[&["__complete", "htc"], words].concat());
        let output = kubectl.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let namespace = format!("--namespace={}", here.name);
    assert_eq!(complete(&["why", &namespace, "s"]), "sums\tFailed\n:4\n");
    assert_eq!(complete(&["-n", &here.name, "logs", "sums/"]), "sums/0\tSucceeded\nsums/1\tFailed\n:4\n");
    assert!(complete(&["st"]).starts_with("story\t"), "{}", complete(&["st"]));
    assert_eq!(complete(&["files", "sums", ""]), ":0\n", "names of files");
    let (code, same, _) = htc(here, &["__complete", "retry", &namespace, "ot"]);
    assert_eq!((code, same.starts_with("other\t")), (0, true), "{same}");
    // Nobody waits for a cluster that cannot be reached.
    let (code, nothing, error) = htc(here, &["__complete", "why", "--kubeconfig=/nosuch", ""]);
    assert_eq!((code, nothing.as_str(), error.as_str()), (0, ":4\n", ""));
}
