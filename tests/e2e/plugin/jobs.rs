//! Commands for single jobs: lists, logs and files.

use bed::person::Person;
use bed::{Bed, Namespace, htcjob, is_true};
use testbed::Version;

use super::submit_and_retry::htc;

on_versions! {
    sid: three_failed_of_many_jobs_are_found_and_retried;
}

/// Jobs of which 3, 17 and 30 fail, each in a way of its own, in the first HTCJob of them.
const SCRIPT: &str = "[ $JOB_NAME = many ] && case $1 in 3) echo broken >&2; exit 7;; 17) exit 1;; 30) kill -9 $$;; esac; \
    mkdir d; echo $1 of $JOB_NAME >d/number";

fn three_failed_of_many_jobs_are_found_and_retried(version: Version) {
    three_fail_of(40, &Bed::shared(version).namespace());
}

/// Somebody who may view a namespace finds the three, what they wrote and left; who may edit it runs these again, and no others.
/// Both have kubectl alone, as it is and with the plugin.
pub fn three_fail_of(count: usize, here: &Namespace<'_>) {
    here.bed.front();
    let viewer = here.person("viewer", &["htcjobs-view", "htcprocs-view"]);
    let editor = here.person("editor", &["htcjobs-edit", "htcprocs-view", "htcprocs-edit"]);
    let mut object = htcjob("many", SCRIPT);
    object["spec"]["queue"] = count.into();
    let file = here.bed.scratch().path().join(format!("{}-many.json", here.name));
    std::fs::write(&file, object.to_string()).unwrap();
    editor.comes_to_see(&["get", "htcprocs"]);
    editor.sees(&["create", "-f", file.to_str().unwrap()]);
    let ended = here.wait_ended("many");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    let message = ended["status"]["message"].as_str().unwrap();
    let ways = format!("3 of {count} jobs failed: exit code 1 (1), exit code 137 (1), exit code 7 (1); ");
    assert!(message.starts_with(&ways), "{message}");
    here.wait_output("many");
    viewer.comes_to_see(&["get", "htcprocs"]);

    assert_failed_jobs_are_listed(here, &viewer, count);
    assert_logs_of_failed_jobs(here, &viewer);
    assert_files_of_failed_jobs(here, &viewer, count);
    assert_retry(here, &viewer, &editor);
}

fn assert_failed_jobs_are_listed(here: &Namespace<'_>, viewer: &Person<'_>, count: usize) {
    let failed = ["get", "htcprocs", "--field-selector=status.state=Failed", "-o", "name"];
    let mut names: Vec<String> = viewer.sees(&failed).lines().map(str::to_owned).collect();
    names.sort_unstable();
    let expected = ["many-17", "many-3", "many-30"].map(|name| format!("htcproc.procs.htc.cern.ch/{name}"));
    assert_eq!(names, expected);
    let (code, table, _) = viewer.htc(&["jobs", "many", "--failed"]);
    let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!((code, names), (0, vec!["many-3", "many-17", "many-30"]), "{table}");
    let (_, names, _) = viewer.htc(&["jobs", "many", "--state=Succeeded", "-o", "name"]);
    assert_eq!(names.lines().count(), count - 3, "{names}");
    let (code, _, error) = viewer.htc(&["jobs", "nosuch"]);
    assert!(code == 2 && error.contains("not found"), "{error}");
    let (code, _, error) = htc(here, &["jobs", "many", "--as=somebody"]);
    assert!(code == 2 && error.contains("somebody") && error.contains("forbidden"), "{error}");
}

fn assert_logs_of_failed_jobs(here: &Namespace<'_>, viewer: &Person<'_>) {
    assert_eq!(viewer.sees(&["get", "--raw", &format!("{}/many-3/log?stream=err", here.procs())]), "broken\n");
    let (code, log, _) = viewer.htc(&["logs", "many/3", "--err"]);
    assert_eq!((code, log.as_str()), (0, "broken\n"));
    let (code, logs, _) = viewer.htc(&["logs", "many", "--failed", "--err"]);
    assert!(code == 0 && logs.starts_with("==> many/3 <==\nbroken\n==> many/17 <==\n"), "{logs}");
    let (code, _, error) = viewer.htc(&["logs", "many"]);
    assert!(code == 2 && error.contains("jobs: name one of them, such as many/0"), "{error}");
    let (code, _, error) = viewer.htc(&["logs", "many/99999"]);
    assert_eq!((code, error.as_str()), (2, "error: HTCJob many has no job 99999\n"));
    let (code, page, _) = htc(here, &["why", "many/3"]);
    assert!(code == 0 && page.starts_with("many-3 is Failed") && page.contains("  broken\n"), "{page}");
    assert!(page.contains("kubectl htc retry many --indexes 3"), "{page}");
}

fn assert_files_of_failed_jobs(here: &Namespace<'_>, viewer: &Person<'_>, count: usize) {
    let archive = viewer.sees(&["get", "--raw", &format!("{}/many-5/files", here.procs())]);
    assert!(archive.contains("5 of many\n"), "{archive}");
    let folder = here.bed.scratch().dir(&format!("{}-files", here.name)).unwrap();
    let path = folder.to_str().unwrap();
    let (code, stdout, error) = viewer.htc(&["files", "many", path]);
    let expected = format!("output of {count} of {count} jobs is in {path}\n");
    assert_eq!((code, stdout.as_str()), (0, expected.as_str()), "{error}");
    let number = |index: usize| std::fs::read_to_string(folder.join(format!("{index}/d/number"))).ok();
    for index in [0, 3, 17, 30, count - 1] {
        let failed = [3, 17, 30].contains(&index);
        assert_eq!(number(index), (!failed).then(|| format!("{index} of many\n")), "{index}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("3/err")).unwrap(), "broken\n");
    // Nothing is replaced unasked.
    std::fs::write(folder.join("5/d/number"), "mine").unwrap();
    let (code, _, error) = viewer.htc(&["files", "many", path]);
    assert!(code == 0 && error.contains("skipped"), "{error}");
    assert_eq!(number(5).unwrap(), "mine");
    let fifth = folder.join("5");
    let (code, _, error) = viewer.htc(&["files", "many/5", fifth.to_str().unwrap()]);
    assert!(code == 2 && error.contains("exists"), "{error}");
    let (code, _, error) = viewer.htc(&["files", "many/5", fifth.to_str().unwrap(), "--overwrite"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(number(5).unwrap(), "5 of many\n");
}

fn assert_retry(here: &Namespace<'_>, viewer: &Person<'_>, editor: &Person<'_>) {
    let (code, _, error) = viewer.htc(&["retry", "many"]);
    assert!(code == 2 && error.contains("forbidden"), "{error}");
    let (code, stdout, _) = editor.htc(&["retry", "many"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/many-r1 created: jobs 3,17,30 of many\n"));
    let (code, stdout, _) = viewer.htc(&["wait", "many-r1", "--timeout=10m"]);
    assert_eq!((code, stdout.as_str()), (0, "htcjob.htc.cern.ch/many-r1: 3 jobs succeeded\n"));
    let (_, names, _) = viewer.htc(&["jobs", "many-r1", "-o", "name"]);
    let mut names: Vec<&str> = names.lines().map(|name| name.rsplit('/').next().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["many-r1-17", "many-r1-3", "many-r1-30"]);
    here.wait_output("many-r1");
    for index in [3, 17, 30] {
        let number = std::fs::read_to_string(here.output("many-r1", index).join("d/number")).unwrap();
        assert_eq!(number, format!("{index} of many-r1\n"));
    }
    let mut in_htcondor: Vec<u32> = here.bed.jobs_of(&here.uid("many-r1")).iter().map(|job| job.index).collect();
    in_htcondor.sort_unstable();
    assert_eq!(in_htcondor, [3, 17, 30]);
}
