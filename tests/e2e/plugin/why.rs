//! `why`: reasons of idle and held jobs.

use bed::{Bed, Namespace, UNTIL_LET_GO, htcjob};
use testbed::{Version, wait_for};

use super::submit_and_retry::htc;

on_versions! {
    trixie: why_explains_idle_and_held_jobs;
}

fn why_explains_idle_and_held_jobs(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let mut large = htcjob("large", "true");
    (large["spec"]["requirements"], large["spec"]["queue"]) = ("TARGET.NobodyHasThis == 7".into(), 2.into());
    here.create(&large);
    let mut waits = htcjob("waits", "exit 75");
    waits["spec"]["htcopts"] =
        "on_exit_hold = ExitCode == 75\non_exit_hold_reason = \"the calibration is not ready\"".into();
    here.create(&waits);

    here.wait("large", "it is idle", |object| object["status"]["idle"] == 2);
    for (which, title) in [("large", "HTCondor on why large-0 does not run:\n"), ("large/1", "HTCondor's analysis:\n")]
    {
        let (code, page, _) = htc(here, &["why", which]);
        let analysis = page.split_once(title).unwrap_or_else(|| panic!("{page}")).1;
        assert!(code == 0 && analysis.contains("NobodyHasThis"), "{page}");
    }
    // Who may only view the namespace reads that the rest is not for him.
    let ann = here.person("ann", &["htcjobs-view", "htcprocs-view"]);
    ann.comes_to_see(&["get", "htcprocs"]);
    let (code, page, _) = htc(here, &["why", "large/1", "--as", &ann.name]);
    assert!(code == 0 && page.starts_with("large-1 is Idle"), "{page}");
    assert!(page.contains("you may not see that: ") && !page.contains("NobodyHasThis"), "{page}");

    here.wait("waits", "it is held", |object| object["status"]["held"] == 1);
    let id = here.get("waits")["status"]["jobid"][0].as_str().unwrap().to_owned();
    wait_for("both pages to say why it is held", bed::PATIENCE, || {
        let (_, page, _) = htc(here, &["why", "waits"]);
        let (_, of_job, _) = htc(here, &["why", "waits/0"]);
        let message = format!("Held (JobsHeld): 1 of 1 job held; {id}: the calibration is not ready");
        let event = format!(" JobsHeld 1 of 1 job held; {id}: the calibration is not ready");
        let reported = of_job.split_once("Events about it:\n").is_some_and(|(_, reported)| reported.contains(&event));
        let good = page.contains(&message)
            && page.contains("kubectl htc release")
            && of_job.contains("  holdReason: the calibration is not ready\n")
            && reported;
        if good { Ok(()) } else { Err(format!("{page}{of_job}")) }
    })
    .unwrap();
    beside_jobs_that_run(here);
    job_output_steers_no_terminal(here);

    htc(here, &["hold", "large/1"]);
    here.wait("large", "one is held", |object| object["status"]["held"] == 1);
    let (_, page, _) = htc(here, &["why", "large/1"]);
    assert!(page.contains(" HeldByUser testbed-admin holds 1 job: 1\n"), "{page}");
    let (_, page, _) = htc(here, &["why", "large/0"]);
    assert!(!page.contains("Events about it:"), "{page}");
}

fn beside_jobs_that_run(here: &Namespace<'_>) {
    let mut half = htcjob("half", UNTIL_LET_GO);
    half["spec"]["requirements"] = "MY.HTCJobIndex == 0 || TARGET.NobodyHasThis == 7".into();
    half["spec"]["queue"] = 2.into();
    here.create(&half);
    here.wait("half", "one runs and one is idle", |object| {
        object["status"]["running"] == 1 && object["status"]["idle"] == 1
    });
    let (code, page, _) = htc(here, &["why", "half"]);
    assert!(code == 0 && page.contains("HTCondor on why half-1 does not run:\n"), "{page}");
    here.delete("half");
}

fn job_output_steers_no_terminal(here: &Namespace<'_>) {
    here.create(&htcjob("steers", r"printf 'a\033[2Jb\n' >&2; exit 1"));
    here.wait_ended("steers");
    here.wait_output("steers");
    let (code, page, _) = htc(here, &["why", "steers/0"]);
    assert!(code == 0 && page.contains("The last lines of err:\n  a\u{fffd}[2Jb\n"), "{page:?}");
    assert!(!page.contains('\u{1b}'), "{page:?}");
}
