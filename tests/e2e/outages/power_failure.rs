//! The power fails: of the operator's files only what it has synchronised is left. SIGKILL alone leaves all that it has written.

use std::collections::BTreeSet;
use std::thread;

use bed::dice::Dice;
use bed::site::Site;
use htc_support::failpoint::Point;
use htc_support::failpoint::Point::*;
use testbed::Version;

use crate::kill_points::stories::{Stage, Story};

on_versions! {
    sid: power_failure_at_any_moment_loses_nothing;
    long:
        power_failure_at_job_end_loses_no_output,
        power_failure_during_removal_leaves_no_job,
        power_failure_during_submission_runs_each_job_once;
}

fn power_failure_during_submission_runs_each_job_once(version: Version) {
    fails_at(
        version,
        &[
            // First, while the data folder is still empty.
            (Story::Completed, &[LedgerWithoutId, AfterLedgerMade, AfterLeaseTaken]),
            (Story::Completed, &[AfterFinalizerAttached, AfterDecisionSaved, BeforeSubmitIntents, AfterSubmitIntents]),
            (Story::Completed, &[CondorSubmitStarted, CondorSubmitFed]),
            (Story::Completed, &[BeforeCondorSubmit, AfterCondorSubmit]),
            (Story::Completed, &[BeforeSubmitResults]),
            (Story::Completed, &[AfterSubmitResults, AfterStatusWritten]),
        ],
    );
}

/// HTCondor lets go of output once the ledger says that it is here.
fn power_failure_at_job_end_loses_no_output(version: Version) {
    fails_at(
        version,
        &[
            (Story::Completed, &[AfterOtherIntents, AfterCondorTransferData, BeforeOtherResults, AfterOtherResults]),
            (Story::Completed, &[BeforeCondorQedit, AfterCondorQedit]),
            (Story::Completed, &[AfterCallbackStored, AfterEventWritten, AfterEventsMarked]),
        ],
    );
}

fn power_failure_during_removal_leaves_no_job(version: Version) {
    fails_at(
        version,
        &[
            (Story::Deleted, &[BeforeOtherIntents, AfterOtherIntents, BeforeCondorRm, AfterCondorRm]),
            (Story::Deleted, &[BeforeOtherResults, AfterOtherResults, BeforeFinalizerReleased, AfterFinalizerReleased]),
            (Story::Expired, &[BeforeObjectDeleted, AfterObjectDeleted]),
        ],
    );
}

fn fails_at(version: Version, lives: &[(Story, &[Point])]) {
    let stage = Stage::without_power(version);
    for (number, (story, points)) in lives.iter().enumerate() {
        let places: Vec<String> = points.iter().map(|point| <&str>::from(point).to_owned()).collect();
        stage.play(*story, &format!("life-{number}"), &places, places.len());
    }
    assert_ledger_kept(&stage.logs());
    stage.assert_all_events_written_and_nothing_left();
}

/// Whatever the operator was about, while HTCJobs come and go.
fn power_failure_at_any_moment_loses_nothing(version: Version) {
    const FAILURES: u32 = 6;
    let mut site = Site::new(version);
    site.bed.keep_what_is_on_the_disk();
    site.bed.start_mortal_operator(None);
    let here = site.bed.namespace();
    let mut dice = Dice::new("moments at which the power fails");
    let mut doomed = Vec::new();
    for failure in 0..FAILURES {
        here.create(&site.noted(&format!("done-{failure}"), 2, "echo output of $HTCPROCID"));
        doomed.push(here.create(&site.lasting(&format!("doomed-{failure}"), 1)));
        thread::sleep(dice.milliseconds(0, 5000));
        if failure > 0 {
            here.begin_delete(&format!("doomed-{}", failure - 1));
        }
        thread::sleep(dice.milliseconds(0, 1000));
        site.bed.cut_the_power();
        site.bed.start_mortal_operator(None);
    }
    here.begin_delete(&format!("doomed-{}", FAILURES - 1));
    for (failure, uid) in (0..FAILURES).zip(&doomed) {
        let (done, doomed) = (format!("done-{failure}"), format!("doomed-{failure}"));
        site.assert_complete_once(&here, &done, 2);
        here.wait_gone(&doomed);
        site.bed.assert_removed(uid, &doomed);
        assert!(site.runs(&doomed, 0) <= 1, "{doomed} ran {} times", site.runs(&doomed, 0));
    }
    // All of it is said to be here, and so it is if the power fails once more.
    site.bed.cut_the_power();
    for done in (0..FAILURES).map(|failure| format!("done-{failure}")) {
        for index in 0..2 {
            let out = std::fs::read_to_string(here.output(&done, index).join("out")).unwrap();
            assert_eq!(out, format!("output of {index}\n"), "{done}.{index}");
        }
    }
    assert_ledger_kept(&site.bed.logs());
    site.bed.start_mortal_operator(None);
    site.assert_events_match_journal(&here);
    let left = site.bed.queue("true", &["HTCJobUID", "ClusterId", "JobStatus"]);
    assert!(left.is_empty(), "left in the queue: {left:?}");
}

/// One that is lost, or lacks what the Lease says that it had, takes a new id.
fn assert_ledger_kept(logs: &str) {
    let led = logs.lines().filter(|line| line.contains("htc-operator runs"));
    let ids: BTreeSet<&str> = led.filter_map(|line| line.split_once("ledger=\"")?.1.split('"').next()).collect();
    assert_eq!(ids.len(), 1, "the ledgers {ids:?}:\n{logs}");
}
