//! `spec.suspend`: it holds running jobs and leaves jobs held by others alone.

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::wait_for;

use crate::lifecycle::{UNTIL_LET_GO, condition_parts, counts, ids, of};
use bed::{Bed, PATIENCE, htcjob, is_true};

const WHY_HELD: [&str; 3] = ["JobStatus", "HoldReasonCode", "HoldReasonSubCode"];
const BY_US: [&str; 3] = ["5", "1", "8472"];
const BY_HAND: [&str; 3] = ["5", "1", "0"];

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn htcjob_created_suspended_is_not_submitted(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("later", "echo ran");
    object["spec"]["suspend"] = true.into();
    let uid = here.create(&object);
    object["metadata"]["name"] = "never".into();
    here.create(&object);
    // Another one that is run meanwhile shows that there was time enough.
    here.create(&htcjob("now", "true"));
    here.wait_ended("now");
    let waiting = here.get("later");
    assert_eq!(waiting["status"]["phase"], "Pending");
    assert_eq!(
        condition_parts(&waiting, "Suspended"),
        ["True", "Suspended", "spec.suspend is true: nothing is submitted"]
    );
    assert_eq!(condition_parts(&waiting, "Submitted")[..2], ["False", "Suspended"]);
    for jobs in [bed.queue(&of(&uid), &["ClusterId"]), bed.history(&of(&uid), &["ClusterId"])] {
        assert!(jobs.is_empty(), "{jobs:?}");
    }
    here.delete("never");
    assert_eq!(here.story("never", "JobsRemoved"), ["Pending", "Suspended", "Terminating", "JobsRemoved"]);
    here.suspend("later", false);
    let ended = here.wait_ended("later");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(condition_parts(&ended, "Suspended")[..2], ["False", "Resumed"]);
    let story = here.story("later", "Fetched");
    assert_eq!(story[..4], ["Pending", "Suspended", "Resumed", "Submitted"], "{story:?}");
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn suspend_holds_running_jobs_and_resume_releases_them(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut object = htcjob("both", UNTIL_LET_GO);
    object["spec"]["queue"] = 2.into();
    let uid = here.create(&object);
    let bystander = here.create(&htcjob("bystander", UNTIL_LET_GO));
    here.wait_running("bystander", 1);
    let running_since = || bed.queue(&of(&bystander), &["JobStatus", "EnteredCurrentStatus"]);
    let undisturbed = running_since();
    let ids = ids(&here.wait_running("both", 2));
    bed.condor.ok("condor_hold", &[&ids[0]]).unwrap();
    here.wait("both", "one held by hand", |object| object["status"]["held"] == 1);

    here.suspend("both", true);
    let suspended = here.wait("both", "both held", |object| object["status"]["held"] == 2);
    assert!(condition_parts(&suspended, "Suspended")[0] == "True", "{suspended:#}");
    assert_eq!(bed.queue(&of(&uid), &WHY_HELD), [BY_HAND, BY_US]);
    let reason = bed.queue(&format!("{} && HTCJobIndex == 1", of(&uid)), &["HoldReason"])[0].join(" ");
    assert!(
        reason.starts_with("the HTCJob is suspended, or its queue took its quota back (by user operator"),
        "{reason}"
    );
    assert!(
        condition_parts(&suspended, "Held")[2].contains(&ids[0]),
        "only the one that is held by hand is told as Held"
    );

    assert_eq!(undisturbed[0][0], "2");
    assert_eq!(running_since(), undisturbed);
    here.suspend("both", false);
    let resumed = here.wait_running("both", 1);
    assert_eq!(condition_parts(&resumed, "Suspended")[..2], ["False", "Resumed"]);
    let left = here.wait("both", "the other succeeded", |object| {
        bed.open_gate(&uid);
        object["status"]["succeeded"] == 1
    });
    assert_eq!(counts(&left), [1, 1, 0]);
    assert!(is_true(&left, "Held"));
    assert_eq!(bed.queue(&format!("{} && HTCJobIndex == 0", of(&uid)), &WHY_HELD), [BY_HAND]);

    bed.condor.ok("condor_release", &[&ids[0]]).unwrap();
    let ended = here.let_go("both");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    let story =
        ["Pending", "Submitted", "Running", "JobsHeld", "Suspended", "Resumed", "NotHeld", "Completed", "Fetched"];
    assert_eq!(here.story("both", "Fetched"), story);
    here.let_go("bystander");
    assert_eq!(here.story("bystander", "Fetched"), ["Pending", "Submitted", "Running", "Completed", "Fetched"]);
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn suspend_during_submission_runs_no_job(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&htcjob("early", UNTIL_LET_GO));
    // HTCondor takes in the files for a second, and refuses to hold a job meanwhile.
    wait_for("the job in the queue", PATIENCE, || !bed.queue(&of(&uid), &["ClusterId"]).is_empty()).unwrap();
    here.suspend("early", true);
    let suspended = here.wait("early", "held", |object| object["status"]["held"] == 1);
    assert_eq!(condition_parts(&suspended, "Suspended")[0], "True");
    assert_eq!(bed.queue(&of(&uid), &WHY_HELD), [BY_US]);
    here.suspend("early", false);
    assert!(is_true(&here.let_go("early"), "Complete"));
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn repeated_suspend_ends_in_its_last_value(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&htcjob("flip", UNTIL_LET_GO));
    here.wait_running("flip", 1);
    for _ in 0..3 {
        here.suspend("flip", true);
        here.suspend("flip", false);
    }
    here.suspend("flip", true);
    // What the status says of the job may for a moment be from before the last release.
    wait_for("the job on hold for good", PATIENCE, || {
        let status = &here.get("flip")["status"];
        let queue = bed.queue(&of(&uid), &WHY_HELD);
        let settled = status["observedGeneration"] == 8 && status["held"] == 1 && queue == [BY_US];
        if settled { Ok(()) } else { Err(format!("{queue:?} {status:#}")) }
    })
    .unwrap();
    here.suspend("flip", false);
    assert!(is_true(&here.let_go("flip"), "Complete"));
    let story = here.story("flip", "Fetched");
    assert_eq!(story[..3], ["Pending", "Submitted", "Running"]);
    let (flips, end) = story[3..].split_at(story.len() - 5);
    assert_eq!(end, ["Completed", "Fetched"]);
    assert!(flips.chunks(2).all(|pair| pair == ["Suspended", "Resumed"]), "{story:?}");
}
