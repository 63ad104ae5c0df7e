//! Jobs held, released and removed by HTCondor's tools and policies: status, conditions and Events.

use std::time::Instant;

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};

use crate::lifecycle::{UNTIL_LET_GO, condition_parts, counts, ids, in_history, of};
use bed::looks::Looks;
use bed::site::Site;
use bed::{Bed, Namespace, PATIENCE, htcjob, is_true};

/// Has a tool of HTCondor do something, and waits until the status and an Event say so: by the second look that is asked for once
/// HTCondor has done it.
fn assert_reported_in_time(
    here: &Namespace<'_>,
    name: &str,
    reason: &str,
    (tool, arguments): (&str, &[&str]),
    shown: impl Fn(&serde_json::Value) -> bool,
) {
    here.bed.condor.ok(tool, arguments).unwrap();
    let (since, before) = (Instant::now(), here.bed.looks());
    here.wait(name, reason, shown);
    let (status, looks) = (since.elapsed(), here.bed.looks().since(before));
    here.wait_event(name, reason);
    let event = since.elapsed();
    let version = here.bed.pool.version();
    eprintln!("{version}: {reason}: in the status after {status:.1?} and {looks:?}, as an Event after {event:.1?}");
    let most = if tool == "condor_rm" {
        // What has left the queue is in no answer to the question which jobs have changed.
        Looks { changed: usize::MAX, ..Looks::SECOND }
    } else {
        Looks::SECOND
    };
    assert!(looks.within(most), "{name}: {reason} is in the status after {looks:?}");
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn condor_hold_and_release_reach_the_status(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for name in ["plain", "reason"] {
        here.create(&htcjob(name, UNTIL_LET_GO));
    }
    for (name, arguments, reason) in [
        ("plain", [].as_slice(), "via condor_hold (by user operator"),
        ("reason", &["-reason", "disk is full"], "disk is full (by user operator"),
    ] {
        let id = ids(&here.wait_running(name, 1)).remove(0);
        let hold = [arguments, &[&id]].concat();
        assert_reported_in_time(&here, name, "JobsHeld", ("condor_hold", &hold), |object| {
            object["status"]["held"] == 1
        });
        let held = here.get(name);
        assert_eq!([&held["status"]["running"], &held["status"]["active"]], [0, 1]);
        assert_eq!(held["status"]["phase"], "Running");
        let [status, word, message] = condition_parts(&held, "Held");
        assert_eq!([status.as_str(), word.as_str()], ["True", "JobsHeld"]);
        assert!(message.starts_with(&format!("1 of 1 job held; {id}: {reason}")), "{message}");
        assert_eq!(here.event_message(name, "JobsHeld"), message);

        assert_reported_in_time(&here, name, "NotHeld", ("condor_release", &[&id]), |object| {
            object["status"]["held"] == 0
        });
        assert_eq!(condition_parts(&here.get(name), "Held")[..2], ["False", "NotHeld"]);
    }
    for name in ["plain", "reason"] {
        let ended = here.let_go(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        let story = ["Pending", "Submitted", "Running", "JobsHeld", "NotHeld", "Completed", "Fetched"];
        assert_eq!(here.story(name, "Fetched"), story);
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn periodic_hold_shows_its_own_reason(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("policy", UNTIL_LET_GO);
    object["spec"]["htcopts"] =
        "periodic_hold = JobStatus == 2\nperiodic_hold_reason = \"no running today\"\nperiodic_hold_subcode = 42"
            .into();
    let uid = here.create(&object);
    let held = here.wait("policy", "held", |object| object["status"]["held"] == 1);
    let [status, reason, message] = condition_parts(&held, "Held");
    assert_eq!(
        [status, reason, message],
        [
            "True",
            "JobsHeld",
            &format!(
                "1 of 1 job held; {}: no running today; release held jobs with kubectl htc release or condor_release",
                ids(&held)[0]
            )
        ]
    );
    assert_eq!(bed.queue(&of(&uid), &["HoldReasonCode", "HoldReasonSubCode"]), [["3", "42"]]);
    here.delete("policy");
    assert!(bed.queue(&of(&uid), &["ClusterId"]).is_empty());
}

#[rstest]
fn jobs_removed_by_condor_rm_have_failed(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for name in ["idle", "held-idle"] {
        let mut idle = htcjob(name, UNTIL_LET_GO);
        idle["spec"]["htcopts"] = "requirements = TARGET.Memory < 0".into();
        here.create(&idle);
    }
    for name in ["running", "held"] {
        here.create(&htcjob(name, UNTIL_LET_GO));
    }
    here.wait("idle", "idle", |object| object["status"]["idle"] == 1);
    here.wait_running("running", 1);
    let held = here.wait_running("held", 1);
    let held_idle = here.wait("held-idle", "idle", |object| object["status"]["idle"] == 1);
    bed.condor.ok("condor_hold", &[&ids(&held)[0], &ids(&held_idle)[0]]).unwrap();
    for name in ["held", "held-idle"] {
        here.wait(name, "held", |object| object["status"]["held"] == 1);
    }
    for (name, story) in [
        ("idle", ["Pending", "Submitted", "Failed", "NothingToFetch"].as_slice()),
        ("running", &["Pending", "Submitted", "Running", "Failed", "NothingToFetch"]),
        ("held", &["Pending", "Submitted", "Running", "JobsHeld", "Failed", "NotHeld", "NothingToFetch"]),
        ("held-idle", &["Pending", "Submitted", "JobsHeld", "Failed", "NotHeld", "NothingToFetch"]),
    ] {
        let (uid, id) = (here.uid(name), ids(&here.get(name)).remove(0));
        let arguments = ["-reason", "maintenance of node 7", &id];
        assert_reported_in_time(&here, name, "Failed", ("condor_rm", &arguments), |object| {
            object["status"]["failed"] == 1
        });
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["phase"], "Completed", "{name}");
        assert_eq!(counts(&ended), [0, 0, 1], "{name}");
        let [status, reason, message] = condition_parts(&ended, "Failed");
        assert_eq!([status.as_str(), reason.as_str()], ["True", "Removed"], "{name}");
        let expected = format!("1 of 1 job failed; job 0 ({id}) was removed from HTCondor: maintenance of node 7");
        assert!(message.starts_with(&expected), "{name}: {message}");
        assert_eq!(here.event_message(name, "Failed"), message);
        here.wait_nothing_left(&uid);
        bed.wait_spool_free(&[id]);
        assert_eq!(in_history(bed, &of(&uid), &["JobStatus"]), ["3"], "{name}");
        assert_eq!(here.story(name, "NothingToFetch"), story);
    }
}

/// In the first moments after its end a job has no CompletionDate yet, and if it is removed then it never gets one. The operator only sees
/// what is left of it in history.
#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn job_removed_right_after_its_end_has_succeeded(#[case] version: Version) {
    const JOBS: u32 = 20;
    let site = Site::start(version);
    let here = site.bed.namespace();
    let began = Instant::now();
    for round in 0.. {
        let name = format!("removed-{round}");
        let its = of(&here.create(&site.lasting(&name, JOBS)));
        here.wait_running(&name, JOBS);
        site.bed.stop_operator();
        site.finish(&name);
        let over = format!("{its} && JobStatus == 4");
        // Without the pauses of wait_for. It fails while none has ended.
        while !site.bed.queue(&its, &["ProcId"]).is_empty() {
            for _ in 0..4 {
                site.bed.condor.run("condor_rm", &["-constraint", &over], "").unwrap();
            }
            assert!(began.elapsed() < PATIENCE, "{:?}", site.bed.queue(&its, &["ProcId", "JobStatus"]));
        }
        site.bed.start_operator();
        let ended = here.wait_ended(&name);
        let ads = site.bed.history(&its, &["ProcId", "JobStatus", "LastJobStatus", "CompletionDate"]);
        assert_eq!(counts(&ended), [0, JOBS.into(), 0], "{ads:?}");
        if ads.iter().any(|ad| ad[1..3] == ["3", "4"] && ["0", "undefined"].contains(&ad[3].as_str())) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "no job was removed before it had a CompletionDate: {ads:?}");
    }
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn one_removed_job_of_three_is_one_failure(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("three", UNTIL_LET_GO);
    object["spec"]["queue"] = 3.into();
    here.create(&object);
    let id = ids(&here.wait_running("three", 3)).remove(1);
    bed.condor.ok("condor_rm", &[&id]).unwrap();
    let one_less = here.wait("three", "one failed", |object| object["status"]["failed"] == 1);
    assert_eq!(counts(&one_less), [2, 0, 1]);
    assert_eq!(one_less["status"]["phase"], "Running");
    assert!(!is_true(&one_less, "Failed"), "only at the end");
    let ended = here.let_go("three");
    assert_eq!(counts(&ended), [0, 2, 1]);
    let [status, reason, message] = condition_parts(&ended, "Failed");
    assert_eq!([status.as_str(), reason.as_str()], ["True", "JobsFailed"]);
    let expected = format!("1 of 3 jobs failed; job 1 ({id}) was removed from HTCondor: via condor_rm (by user ");
    assert!(message.starts_with(&expected), "{message}");
    here.wait_output("three");
    assert!([0, 2].iter().all(|index| here.output("three", *index).join("out").exists()));
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "the other version shows the same promises: make test-long"]
#[case::sid(Sid)]
fn job_policies_remove_retry_and_hold(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for (name, source, options) in [
        ("removes", UNTIL_LET_GO, "periodic_remove = JobStatus == 2"),
        ("retries", "exit 5", "max_retries = 1"),
        ("holds", "exit 0", "on_exit_hold = true\non_exit_hold_reason = \"look at it first\""),
    ] {
        let mut object = htcjob(name, source);
        object["spec"]["htcopts"] = options.into();
        here.create(&object);
    }
    let ended = here.wait_ended("removes");
    assert_eq!(condition_parts(&ended, "Failed")[1], "Removed");
    let message = &condition_parts(&ended, "Failed")[2];
    assert!(message.contains("was removed from HTCondor: The job attribute PeriodicRemove expression '"), "{message}");
    assert!(message.ends_with("(JobStatus == 2)' evaluated to TRUE"), "{message}");

    let ended = here.wait_ended("retries");
    let id = ids(&ended).remove(0);
    assert_eq!(condition_parts(&ended, "Failed")[2], format!("1 of 1 job failed; job 0 ({id}) exited with 5"));
    here.wait_nothing_left(&here.uid("retries"));
    assert_eq!(in_history(bed, &of(&here.uid("retries")), &["ExitCode", "NumJobStarts"]), ["5", "2"]);

    let held = here.wait("holds", "held", |object| object["status"]["held"] == 1);
    let id = ids(&held).remove(0);
    assert_eq!(
        condition_parts(&held, "Held")[2],
        format!(
            "1 of 1 job held; {id}: look at it first; release held jobs with kubectl htc release or condor_release"
        )
    );
    assert_eq!(counts(&held), [1, 0, 0], "a job that is held has not ended");
    // HTCondor keeps the ExitCode 0 of a job that was held at its end and then removed.
    bed.condor.ok("condor_rm", &[&id]).unwrap();
    assert_eq!(condition_parts(&here.wait_ended("holds"), "Failed")[1], "Removed");
    assert_eq!(in_history(bed, &of(&here.uid("holds")), &["JobStatus", "ExitCode"]), ["3", "0"]);
}
