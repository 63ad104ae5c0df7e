//! Deletion in each phase; other jobs are left alone.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use rstest::rstest;
use serde_json::json;
use testbed::{Version, wait_for};

use crate::deletion::watch::{
    FOREVER, OURS, STUBBORN, UNTIL_LET_GO, ask_to_delete, assert_nothing_left, assert_removed, bed_where_jobs_have,
    create_and_wait, delete, jobs, messages, of, queued, recorded, watch_it_go,
};
use bed::{Bed, PATIENCE, condition, htcjob};

#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn htcjob_deleted_before_submission_submits_nothing(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let mut suspended = jobs("suspended", 2, FOREVER);
    suspended["spec"]["suspend"] = true.into();
    let mut invalid = htcjob("invalid", FOREVER);
    invalid["spec"]["htcopts"] = "include command : touch /tmp/x".into();
    for (object, reason) in [(suspended, "Suspended"), (invalid, "InvalidSpec")] {
        let name = object["metadata"]["name"].as_str().unwrap();
        let uid = here.create(&object);
        let object =
            here.wait(name, reason, |object| condition(object, "Submitted").is_some_and(|c| c["reason"] == reason));
        assert_eq!(object["metadata"]["finalizers"], json!(["htc.cern.ch/condor-jobs"]));
        delete(&here, name, &uid);
        here.wait_event(name, "JobsRemoved");
        assert_eq!(messages(&here, name, "JobsRemoved"), ["nothing was ever submitted"]);
        assert_removed(here.bed, &uid, &BTreeSet::new());
    }
}

/// HTCondor holds a job for about a second while it takes its files in (JobStatus 5, HoldReasonCode 16).
#[rstest]
#[case::one_trixie(Version::Trixie, 1)]
#[case::one_sid(Version::Sid, 1)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::many_sid(Version::Sid, 200)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::many_trixie(Version::Trixie, 200)]
fn jobs_deleted_while_staging_are_removed(#[case] version: Version, #[case] count: u32) {
    let here = Bed::shared(version).namespace();
    let mut hit = false;
    // Only afterwards can be seen whether a round has met it.
    for round in 0..40 {
        let name = format!("staging-{count}-{round}");
        let mut object = jobs(&name, count, FOREVER);
        object["spec"]["htcopts"] = "requirements = false".into();
        let uid = here.create(&object);
        wait_for("a job", PATIENCE, || !here.bed.queue(&of(&uid), &["ProcId"]).is_empty()).unwrap();
        delete(&here, &name, &uid);
        let rows = here.bed.history(&of(&uid), &["StageInFinish", "JobStatus", "RemoveReason"]);
        assert_eq!(rows.len(), count as usize);
        assert!(rows.iter().all(|row| row[1] == "3" && row[2..].join(" ").contains(OURS)), "{rows:?}");
        hit = rows.iter().all(|row| row[0] == "undefined");
        if hit {
            break;
        }
    }
    assert!(hit, "never deleted before the files had arrived");
}

#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn idle_jobs_are_removed_on_deletion(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let mut object = jobs("idle", 3, FOREVER);
    object["spec"]["htcopts"] = "requirements = false".into();
    let (uid, ids) = create_and_wait(&here, &object, "idle");
    assert_eq!(ids.len(), 3);
    delete(&here, "idle", &uid);
    assert_removed(here.bed, &uid, &ids);
}

#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn running_jobs_are_removed_on_deletion(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("running", 3, FOREVER), "running");
    delete(&here, "running", &uid);
    assert_removed(here.bed, &uid, &ids);
    let reasons = here.wait_event("running", "JobsRemoved");
    assert!(reasons.iter().any(|reason| reason == "Terminating"), "{reasons:?}");
    for reason in ["Terminating", "JobsRemoved"] {
        let reported = messages(&here, "running", reason);
        assert_eq!(reported.len(), 1, "{reported:?}");
        let cluster = ids.first().unwrap().split('.').next().unwrap();
        assert!(reported[0].contains(&format!("{cluster}.")), "{reported:?} does not name {ids:?}");
    }
}

#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn held_jobs_are_removed_on_deletion(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("held", 2, FOREVER), "running");
    here.bed.condor.ok("condor_hold", &["-constraint", &of(&uid)]).unwrap();
    here.wait("held", "2 held", |object| object["status"]["held"] == 2);
    delete(&here, "held", &uid);
    assert_removed(here.bed, &uid, &ids);
}

/// Jobs that have left the queue keep their end. Completed jobs still in the queue, because their output cannot be
/// fetched, are removed.
#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn completed_jobs_keep_their_end_on_deletion(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let uid = here.create(&jobs("completed", 2, "exit $HTCPROCID"));
    here.wait_ended("completed");
    here.wait_nothing_left(&uid);
    delete(&here, "completed", &uid);
    assert_eq!(here.bed.history(&of(&uid), &["JobStatus"]), [["4"], ["4"]]);

    let (uid, _) = create_and_wait(&here, &jobs("unfetched", 2, UNTIL_LET_GO), "running");
    let folder = here.output("unfetched", 0).parent().unwrap().to_owned();
    let allow = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    here.bed.open_gate(&uid);
    let object = here.wait("unfetched", "output not fetched", |object| {
        let failed = condition(object, "OutputFetched").is_some_and(|c| c["reason"] == "FetchFailed");
        failed && object["status"]["succeeded"] == 2
    });
    assert_eq!(queued(here.bed, &uid).map(|left| left.len()), Some(2));
    delete(&here, "unfetched", &uid);
    assert_removed(here.bed, &uid, &recorded(&object));
    allow(0o755);
}

/// While HTCondor waits for a job to end, so does the object, and says so.
#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn finalizer_stays_until_slow_removal_ends(#[case] version: Version) {
    let bed = bed_where_jobs_have(version, 100);
    bed.start_operator();
    let here = bed.namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("stubborn", 2, STUBBORN), "running");
    ask_to_delete(&here, "stubborn");
    let waiting = here.wait("stubborn", "what its deletion waits for", |object| {
        condition(object, "JobsRemoved").is_some_and(|condition| condition["reason"] == "JobsPresent")
    });
    assert_eq!(waiting["status"]["phase"], "Terminating");
    assert!(!waiting["metadata"]["finalizers"].is_null());
    let reported = condition(&waiting, "JobsRemoved").unwrap();
    assert_eq!(reported["status"], "False", "{waiting:#}");
    let message = reported["message"].as_str().unwrap();
    assert!(ids.iter().any(|id| message.contains(id)), "{message} does not name {ids:?}");
    bed.open_gate(&uid);
    let seen = watch_it_go(&here, "stubborn", &uid);
    for object in seen.iter().filter(|object| object["status"]["phase"] == "Terminating") {
        assert!(!object["metadata"]["finalizers"].is_null());
        assert_eq!(condition(object, "JobsRemoved").unwrap()["status"], "False", "{object:#}");
    }
    assert_removed(&bed, &uid, &ids);
    assert_nothing_left(&bed);
}

/// A sleeping job of `client`, with further lines in its description; its id.
fn submit_by_hand(client: &testbed::Client, lines: &str) -> String {
    let description = format!(
        "executable = /bin/sleep\narguments = 1000\ntransfer_executable = false\nshould_transfer_files = YES\n{lines}\nqueue\n"
    );
    client.submit(&description).unwrap()
}

#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn jobs_of_others_and_forged_ads_are_left_alone(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let bed = here.bed;
    let (uid, ids) = create_and_wait(&here, &jobs("mine", 1, FOREVER), "running");
    let (other, _) = create_and_wait(&here, &jobs("other", 1, FOREVER), "running");
    let operator = bed.queue(&of(&uid), &["HTCOperator"]).remove(0).remove(0);
    let alice = bed.pool.client("alice").unwrap();
    let forged = format!("MY.HTCOperator = \"{operator}\"\nMY.HTCJobUID = \"{uid}\"\nMY.HTCJobAttempt = 1\n");
    let strangers = [
        submit_by_hand(&alice, ""),
        submit_by_hand(&alice, &format!("{forged}MY.HTCJobIndex = 0\nMY.HTCNotAfter = 1")),
        // One that cannot be read.
        submit_by_hand(&alice, &format!("{forged}MY.HTCJobIndex = \"x\"")),
        submit_by_hand(&bed.condor, ""),
    ];
    let stranger = |id: &str| {
        let (cluster, proc) = id.split_once('.').unwrap();
        bed.queue(&format!("ClusterId == {cluster} && ProcId == {proc}"), &["JobStatus", "RemoveReason"])
    };
    let runs = [["2", "undefined"]];
    for id in &strangers {
        wait_for(&format!("job {id} to run"), PATIENCE, || stranger(id) == runs).unwrap();
    }
    // A hold shows that the tracker has looked since, and what it counts.
    bed.condor.ok("condor_hold", &["-constraint", &of(&uid)]).unwrap();
    let object = here.wait("mine", "1 held", |object| object["status"]["held"] == 1);
    assert_eq!((&object["status"]["active"], recorded(&object)), (&json!(1), ids.clone()));

    delete(&here, "mine", &uid);
    assert_removed(bed, &uid, &ids);
    for id in &strangers {
        assert_eq!(stranger(id), runs, "job {id}");
    }
    assert_eq!(bed.queue(&of(&other), &["JobStatus"]), [["2"]]);
    delete(&here, "other", &other);
    bed.pool.tool("condor_rm", &strangers.each_ref().map(String::as_str)).unwrap();
}
