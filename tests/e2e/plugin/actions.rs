//! Single jobs are held, released and removed.

use bed::{Bed, UNTIL_LET_GO, htcjob};
use testbed::Version;

use super::submit_and_retry::htc;

on_versions! {
    trixie: hold_release_and_remove_act_on_single_jobs;
}

fn hold_release_and_remove_act_on_single_jobs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let mut object = htcjob("fit", UNTIL_LET_GO);
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    here.wait_running("fit", 3);
    let (code, stdout, _) = htc(here, &["hold", "fit", "--indexes=1-2"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "htcproc.procs.htc.cern.ch/fit-1 hold requested\nhtcproc.procs.htc.cern.ch/fit-2 hold requested\n")
    );
    here.wait("fit", "two jobs are held", |object| object["status"]["held"] == 2);
    let (code, stdout, _) = htc(here, &["remove", "fit/0", "htcjob/fit/2"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "htcproc.procs.htc.cern.ch/fit-0 remove requested\nhtcproc.procs.htc.cern.ch/fit-2 remove requested\n")
    );
    here.wait("fit", "two jobs are removed", |object| object["status"]["failedIndexes"] == "0,2");
    let (code, stdout, error) = htc(here, &["release", "fit/1", "fit/2"]);
    assert_eq!((code, stdout.as_str()), (2, "htcproc.procs.htc.cern.ch/fit-1 release requested\n"));
    assert!(error.contains("cannot release htcproc.procs.htc.cern.ch/fit-2: fit-2 has ended: Removed"), "{error}");
    here.let_go("fit");
    here.wait_ended("fit");
    let (_, names, _) = htc(here, &["jobs", "fit", "--state=Succeeded", "-o", "name"]);
    assert_eq!(names.lines().count(), 1, "{names}");
    // Who was removed has failed, to every command.
    let (_, names, _) = htc(here, &["jobs", "fit", "--failed", "-o", "name"]);
    let names: Vec<&str> = names.lines().map(|name| name.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["fit-0", "fit-2"]);
    let (code, logs, why) = htc(here, &["logs", "fit", "--failed"]);
    assert_eq!((code, logs.as_str()), (0, "==> fit/0 <==\n==> fit/2 <==\n"), "{why}");
    assert!(why.contains("fit-0 is Removed: it has no log"), "{why}");
    let (code, _, error) = htc(here, &["logs", "fit/1", "--failed"]);
    assert_eq!((code, error.as_str()), (2, "error: HTCJob fit has no job 1 that has failed\n"));

    let (code, _, error) = htc(here, &["hold", "fit"]);
    assert!(code == 2 && error.contains("spec.suspend"), "{error}");
    let (code, _, error) = htc(here, &["remove", "fit/1", "--as=somebody"]);
    assert!(code == 2 && error.contains("forbidden"), "{error}");
}
