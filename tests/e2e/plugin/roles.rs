//! Each command, as somebody whom Kubernetes' own role `view` or `edit` is bound to in the namespace, and as somebody who may edit another
//! namespace.

use std::path::Path;

use bed::person::Person;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO};
use testbed::{KubeOptions, Version, wait_for};

use super::story::texts;

on_versions! {
    long: each_command_needs_only_the_view_or_edit_role;
}

/// Waits until the API server has learned of a right.
fn comes_to_be_able(person: &Person<'_>, words: &[&str]) {
    person.comes_to_see(&[&["auth", "can-i"], words].concat());
}

/// It succeeds, and has nothing to complain of; what it prints.
fn may(person: &Person<'_>, arguments: &[&str]) -> String {
    let (code, told, error) = person.htc(arguments);
    assert_eq!((code, error.as_str()), (0, ""), "{}: {arguments:?}: {told}", person.name);
    told
}

/// It fails because it is forbidden, and prints nothing else.
fn may_not(person: &Person<'_>, arguments: &[&str]) {
    let (code, stdout, error) = person.htc(arguments);
    assert_eq!((code, stdout.as_str()), (2, ""), "{}: {arguments:?}: {error}", person.name);
    assert!(error.contains("forbidden") && error.contains(&person.name), "{arguments:?}: {error}");
}

fn each_command_needs_only_the_view_or_edit_role(version: Version) {
    let bed = Bed::with_jobs_api_alone(version, &KubeOptions::default(), LONG_SUBMISSIONS);
    // It makes `view` and `edit` what they are in every cluster.
    let _controllers = bed.controllers(&["clusterrole-aggregation-controller"]);
    bed.start_operator();
    bed.front();
    let (here, there) = (&bed.namespace(), bed.namespace());
    let (viewer, editor, stranger) =
        (here.person("viewer", &["view"]), here.person("editor", &["edit"]), here.person("stranger", &[]));
    there.kubectl(&["create", "rolebinding", "edit", "--clusterrole=edit", &format!("--user={}", stranger.name)]);
    comes_to_be_able(&viewer, &["get", "htcprocs", "--subresource=log"]);
    comes_to_be_able(&viewer, &["get", "htcjobs"]);
    for (person, namespace) in [(&editor, here), (&stranger, &there)] {
        comes_to_be_able(person, &["create", "htcprocs", "--subresource=hold", "-n", &namespace.name]);
        comes_to_be_able(person, &["create", "htcjobs", "-n", &namespace.name]);
    }
    let folder = bed.scratch().dir(&here.name).unwrap();
    let script = folder.join("script");
    let text = format!("echo $1 >number; case $1 in 1) echo broken >&2; exit 7;; 2) echo begun; {UNTIL_LET_GO};; esac");
    std::fs::write(&script, text).unwrap();
    let submit = ["submit", "fit", "--image=centos", "--jobs=3", "--script", script.to_str().unwrap()];
    for person in [&viewer, &stranger] {
        may_not(person, &submit);
    }
    assert_eq!(may(&editor, &submit), "htcjob.htc.cern.ch/fit created\n");
    here.wait("fit", "two ended and one runs", |object| {
        object["status"]["failed"] == 1 && object["status"]["succeeded"] == 1 && object["status"]["running"] == 1
    });

    for person in [&viewer, &editor] {
        looks(person, &folder);
    }
    for looks in [["jobs", "fit"].as_slice(), &["logs", "fit/1"], &["logs", "fit/2", "-f"], &["files", "fit/1", "."]] {
        may_not(&stranger, looks);
    }
    for looks in [["wait", "fit"].as_slice(), &["why", "fit"], &["why", "fit/1"], &["story", "fit", "--svg=-"]] {
        may_not(&stranger, looks);
    }

    let acts =
        [["hold", "fit/2"].as_slice(), &["release", "fit/2"], &["remove", "fit/2"], &["retry", "fit", "--indexes=1"]];
    for act in acts {
        may_not(&viewer, act);
        may_not(&stranger, act);
    }
    assert_eq!(here.all().len(), 1);
    acts_on(here, &editor, &viewer);
}

/// What `view` is for.
fn looks(person: &Person<'_>, folder: &Path) {
    let table = may(person, &["jobs", "fit"]);
    let states: Vec<&str> = table.lines().skip(1).map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(states, ["Succeeded", "Failed", "Running"], "{table}");
    assert_eq!(may(person, &["logs", "fit/1", "--err"]), "broken\n");
    let (code, _, error) = person.htc(&["wait", "fit", "--timeout=1s"]);
    assert!(code == 2 && error.contains("has not ended in time: 2 of 3 jobs ended, 1 failed; 1 running"), "{error}");
    let page = may(person, &["why", "fit"]);
    assert!(page.contains("Last Events:\n") && page.contains(" Submitted HTCondor accepted 3 jobs: "), "{page}");
    let page = may(person, &["why", "fit/1"]);
    assert!(page.starts_with("fit-1 is Failed") && page.contains("The last lines of err:\n  broken\n"), "{page}");
    let reported = may(person, &["story", "fit"]);
    assert!(reported.contains("  Submitted ") && reported.contains("  now "), "{reported}");
    let titles = texts(&may(person, &["story", "fit", "--svg=-"]), "title");
    for wanted in ["job 0: succeeded", "job 1: exit code 7", "job 2: running"] {
        assert!(titles.iter().any(|title| title.starts_with(wanted)), "{wanted}: {titles:?}");
    }
    let own = folder.join(&person.name);
    wait_for("the output of a job", PATIENCE, || {
        let (code, _, error) = person.htc(&["files", "fit/0", own.to_str().unwrap()]);
        if code == 0 { Ok(()) } else { Err(error) }
    })
    .unwrap();
    assert_eq!(std::fs::read_to_string(own.join("number")).unwrap(), "0\n");
}

/// What `edit` is for; who may view sees what comes of it.
fn acts_on(here: &Namespace<'_>, editor: &Person<'_>, viewer: &Person<'_>) {
    assert_eq!(may(editor, &["hold", "fit/2"]), "htcproc.procs.htc.cern.ch/fit-2 hold requested\n");
    here.wait("fit", "one is held", |object| object["status"]["held"] == 1);
    let page = may(viewer, &["why", "fit/2"]);
    assert!(page.contains("fit-2 is Held") && page.contains(&format!(" HeldByUser {} holds ", editor.name)), "{page}");
    assert_eq!(may(editor, &["release", "fit/2"]), "htcproc.procs.htc.cern.ch/fit-2 release requested\n");
    here.wait_running("fit", 1);
    assert_eq!(may(editor, &["remove", "fit/2"]), "htcproc.procs.htc.cern.ch/fit-2 remove requested\n");
    here.wait_ended("fit");
    let stdout = may(viewer, &["story", "fit"]);
    for what in ["HeldByUser", "ReleasedByUser", "RemovedByUser"] {
        assert!(stdout.contains(&format!("  {what} ")), "{what}: {stdout}");
    }
    let stdout = may(editor, &["retry", "fit", "--indexes=1"]);
    assert_eq!(stdout, "htcjob.htc.cern.ch/fit-r1 created: jobs 1 of fit\n");
    let (code, stdout, error) = viewer.htc(&["wait", "fit-r1", "--timeout=10m"]);
    assert!(
        code == 1 && stdout.starts_with("htcjob.htc.cern.ch/fit-r1: 1 of 1 job failed; job 1 ("),
        "{stdout}{error}"
    );
}
