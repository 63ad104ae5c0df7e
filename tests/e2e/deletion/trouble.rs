//! Deleted while the operator or the schedd is away, when the object cannot be read, and at the worst moments.

use std::collections::BTreeSet;

use rstest::rstest;
use testbed::{PoolOptions, Version, wait_for};

use crate::deletion::watch::{
    FOREVER, OURS, STUBBORN, UNTIL_LET_GO, ask_to_delete, assert_nothing_left, assert_removed, create_and_wait, delete,
    jobs, look, messages, of, own_bed, queued, recorded, wait_up, watch_it_go,
};
use bed::dice::Dice;
use bed::gates::Gates;
use bed::{Bed, LONG_SUBMISSIONS, PATIENCE, condition, htcjob};

/// The API server deletes an object that has just got the finalizer, if it has read it before (kubernetes/kubernetes#77988).
#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn deletion_that_races_with_the_finalizer_leaves_no_job(#[case] version: Version) {
    let bed = own_bed(version);
    let here = bed.namespace();
    bed.start_operator();
    for round in 0..60 {
        let name = format!("brief-{round}");
        here.create(&htcjob(&name, FOREVER));
        std::thread::sleep(std::time::Duration::from_millis(round % 30 * 2));
        here.begin_delete(&name);
    }
    wait_for("all to be gone", PATIENCE, || here.all().is_empty()).unwrap();
    wait_for("no job to be left", PATIENCE, || {
        let left = bed.queue("HTCJobUID =!= undefined", &["ClusterId", "JobStatus"]);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .unwrap();
    let raced = bed.log().matches("HTCJob deleted in spite of its finalizer").count();
    println!("{version}: {raced} of 60 were deleted in spite of the finalizer");
    bed.stop_operator();
    assert_nothing_left(&bed);
}

/// Two HTCJobs whose jobs share a cluster, and HTCJobs that were never submitted.
#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn htcjobs_deleted_while_the_operator_is_down_are_cleaned_up(#[case] version: Version) {
    let bed = own_bed(version);
    let here = bed.namespace();
    let never = here.create(&htcjob("never", FOREVER));
    here.delete("never");

    // Whichever comes first may be submitted alone; the others wait meanwhile, and go in one condor_submit.
    let names = ["a", "b", "c", "d"];
    let uids = names.map(|name| here.create(&htcjob(name, UNTIL_LET_GO)));
    let mut suspended = htcjob("suspended", FOREVER);
    suspended["spec"]["suspend"] = true.into();
    let suspended = here.create(&suspended);
    bed.start_operator();
    let clusters = names.map(|name| {
        let object = here.wait(name, "1 running", |object| object["status"]["running"] == 1);
        object["status"]["clusterid"].as_str().unwrap().to_owned()
    });
    for uid in &uids {
        wait_up(&bed, uid, 1);
    }
    let (one, two) = (0..4)
        .flat_map(|one| (one + 1..4).map(move |two| (one, two)))
        .find(|(one, two)| clusters[*one] == clusters[*two])
        .unwrap_or_else(|| panic!("no two share a cluster: {clusters:?}"));
    delete(&here, names[one], &uids[one]);
    bed.open_gate(&uids[two]);
    let ended = here.wait_ended(names[two]);
    assert_eq!(ended["status"]["succeeded"], 1, "{ended:#}");
    assert_eq!(std::fs::read_to_string(here.output(names[two], 0).join("out")).unwrap(), "done\n");
    here.wait_nothing_left(&uids[two]);
    assert_eq!(bed.history(&of(&uids[two]), &["JobStatus", "NumJobStarts"]), [["4", "1"]]);

    let (left, ids) = create_and_wait(&here, &jobs("left", 2, FOREVER), "running");
    here.wait("suspended", "its finalizer", |object| !object["metadata"]["finalizers"].is_null());
    bed.stop_operator();
    here.suspend("suspended", false);
    ask_to_delete(&here, "suspended");
    ask_to_delete(&here, "left");
    bed.start_operator();
    watch_it_go(&here, "suspended", &suspended);
    watch_it_go(&here, "left", &left);
    assert_removed(&bed, &left, &ids);
    for uid in [never, suspended] {
        assert_removed(&bed, &uid, &BTreeSet::new());
    }
    assert_eq!(here.events("never"), []);
    for name in names.into_iter().filter(|name| *name != names[one]) {
        here.delete(name);
    }
    assert_nothing_left(&bed);
}

#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn deletion_waits_while_the_schedd_is_down(#[case] version: Version) {
    let bed = own_bed(version);
    bed.start_operator();
    let here = bed.namespace();
    let (waits, ids) = create_and_wait(&here, &jobs("waits", 2, FOREVER), "running");
    let (given_up, orphans) = create_and_wait(&here, &jobs("given-up", 2, FOREVER), "running");
    // Only the schedd: its jobs go on.
    bed.pool.tool("condor_off", &["-fast", "-schedd"]).unwrap();
    let unreachable = |name: &str, kind: &str| {
        here.wait(name, &format!("{kind} False"), |object| {
            condition(object, kind).is_some_and(|c| c["status"] == "False" && c["reason"] == "ScheddUnreachable")
        })
    };
    unreachable("waits", "Tracked");
    unreachable("given-up", "Tracked");
    ask_to_delete(&here, "waits");
    ask_to_delete(&here, "given-up");
    let object = unreachable("waits", "JobsRemoved");
    assert_eq!(object["status"]["phase"], "Terminating");
    let message = condition(&object, "JobsRemoved").unwrap()["message"].as_str().unwrap();
    assert!(message.starts_with("schedd schedd@test does not answer (condor_rm: "), "{message}");

    // It tries again and again, and tells it once: with an Event about the tracker, and one about the removal.
    let tried = || {
        bed.log()
            .lines()
            .filter(|line| line.contains("kind=\"Remove\"") && line.contains("HTCondor tool failed"))
            .count()
    };
    let before = tried();
    wait_for("eight more tries, 15 s", PATIENCE, || tried() >= before + 8).unwrap();
    assert_eq!(messages(&here, "waits", "ScheddUnreachable").len(), 2, "{:?}", here.events("waits"));
    assert!(look(&here, "waits", &waits).is_some() && look(&here, "given-up", &given_up).is_some());

    here.annotate("given-up", "htc.cern.ch/abandon");
    here.wait_gone("given-up");
    here.wait_event("given-up", "JobsRemoved");
    let reported = messages(&here, "given-up", "JobsRemoved");
    let cluster = orphans.first().unwrap().split('.').next().unwrap();
    let left = format!(
        "abandoned by annotation; these jobs may be left in HTCondor: {cluster}.0-1. The operator's log lists all; \
         the constraint HTCJobUID == \"{given_up}\" finds them"
    );
    assert_eq!(reported, [left]);

    bed.pool.tool("condor_on", &["-schedd"]).unwrap();
    watch_it_go(&here, "waits", &waits);
    assert_removed(&bed, &waits, &ids);
    let (well, output) = bed.check();
    assert!(
        !well && output.contains(&format!("WRONG orphans: 2 jobs in HTCondor belong to no HTCJob: {cluster}.0-1;")),
        "{output}"
    );
    assert_eq!(queued(&bed, &given_up).map(BTreeSet::from_iter), Some(orphans), "only a person removes orphans");
}

/// An object that was stored under other rules and can no longer be read.
#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn undecodable_htcjob_can_be_deleted(#[case] version: Version) {
    let bed = own_bed(version);
    bed.start_operator();
    let here = bed.namespace();
    let (runs, ids) = create_and_wait(&here, &jobs("runs", 2, FOREVER), "running");
    bed.take_any_spec();
    // Some time passes until the API server goes by the new rules.
    let no_source = r#"{"spec": {"script": {"source": null}}}"#;
    let patched = || here.try_kubectl(&["patch", "htcjob", "runs", "--type=merge", "-p", no_source]);
    wait_for("an HTCJob without a source", PATIENCE, patched).unwrap();
    let mut new = htcjob("new", FOREVER);
    new["spec"]["suspend"] = "yes".into();
    let new = here.create(&new);
    bed.kube.apply_crd(&htc_api::crd_yaml().unwrap(), "htcjobs.htc.cern.ch").unwrap();
    let three = r#"{"spec": {"queue": "three"}}"#;
    let still_loose = || here.try_kubectl(&["patch", "htcjob", "new", "--type=merge", "-p", three]);
    wait_for("the old rules", PATIENCE, || still_loose().is_err()).unwrap();

    here.create(&htcjob("good", "echo A"));
    here.wait_ended("good");
    let reasons = here.wait_event("new", "InvalidSpec");
    assert_eq!(reasons[0], "Pending");
    delete(&here, "new", &new);
    delete(&here, "runs", &runs);
    assert_removed(&bed, &runs, &ids);
    here.create(&htcjob("another", "echo A"));
    here.wait_ended("another");
    here.delete("good");
    here.delete("another");
    assert_nothing_left(&bed);
}

/// Kills the operator at random moments of a deletion; the next operator finishes it.
#[rstest]
#[case::trixie(Version::Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Version::Sid)]
fn deletion_continues_after_operator_kills(#[case] version: Version) {
    const ROUNDS: usize = 5;
    let mut dice = Dice::new("deletion_continues_after_operator_kills");
    let bed = own_bed(version);
    bed.start_operator();
    let here = bed.namespace();
    let names = (0..ROUNDS).map(|round| format!("round-{round}")).collect::<Vec<_>>();
    let uids = names.iter().map(|name| here.create(&jobs(name, 2, STUBBORN))).collect::<Vec<_>>();
    let running = |name: &String| here.wait(name, "2 running", |object| object["status"]["running"] == 2);
    let ids = names.iter().map(|name| recorded(&running(name))).collect::<Vec<_>>();
    for uid in &uids {
        wait_up(&bed, uid, 2);
    }
    for round in 0..ROUNDS {
        ask_to_delete(&here, &names[round]);
        // HTCondor needs 4 s to remove the jobs.
        std::thread::sleep(dice.milliseconds(0, 6000));
        bed.kill_operator();
        bed.start_operator();
        watch_it_go(&here, &names[round], &uids[round]);
        assert_removed(&bed, &uids[round], &ids[round]);
    }
    assert_nothing_left(&bed);
}

/// Very many jobs are removed part by part, so that the schedd has time for others in between.
#[rstest]
fn many_jobs_are_removed_held_and_released_in_parts(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let gates = Gates::new(version);
    let bin = gates.argument();
    let bed = Bed::new(version, &PoolOptions::default(), &[LONG_SUBMISSIONS, &["--batch-jobs=4", &bin]].concat());
    bed.start_operator();
    let here = bed.namespace();
    let idle = |name: &str, number: u32| {
        let mut object = jobs(name, number, FOREVER);
        object["spec"]["htcopts"] = "requirements = false".into();
        let uid = here.create(&object);
        here.wait(name, "all idle", |object| object["status"]["idle"] == number);
        uid
    };
    let [uid, few] = [idle("many", 60), idle("few", 5)];
    here.delete("few");
    assert_eq!(gates.calls("condor_rm"), 1, "few jobs are removed at once");
    here.delete("many");
    // 8, 16 and 32 jobs, and the rest.
    assert_eq!(gates.calls("condor_rm"), 5);
    for uid in [uid, few] {
        assert_eq!(queued(&bed, &uid), Some(Vec::new()));
    }
}

/// Moments that are too short to be met by chance: HTCondor's tools are made to wait there.
#[rstest]
#[case::sid(Version::Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Version::Trixie)]
fn deletion_waits_for_condor_submit_and_for_proof_of_absence(#[case] version: Version) {
    let gates = Gates::new(version);
    let bed = Bed::new(version, &PoolOptions::default(), &[LONG_SUBMISSIONS, &[&gates.argument()]].concat());
    bed.start_operator();
    let here = bed.namespace();

    // Its condor_submit is under way: what that brings is waited for, and removed.
    gates.shut("condor_submit");
    let uid = here.create(&jobs("submitting", 2, FOREVER));
    gates.wait_at("condor_submit");
    ask_to_delete(&here, "submitting");
    here.wait_phase("submitting", "Terminating");
    assert_eq!(queued(&bed, &uid), Some(Vec::new()));
    gates.open("condor_submit");
    watch_it_go(&here, "submitting", &uid);
    let removed = bed.history(&of(&uid), &["JobStatus", "RemoveReason"]);
    assert!(
        removed.len() == 2 && removed.iter().all(|row| row[0] == "3" && row.join(" ").contains(OURS)),
        "{removed:?}"
    );

    // Its jobs are gone, but HTCondor was not asked since: the object stays, while another one that needs no answer goes.
    let mut idle = jobs("idle", 2, FOREVER);
    idle["spec"]["htcopts"] = "requirements = false".into();
    let (uid, ids) = create_and_wait(&here, &idle, "idle");
    let mut other = htcjob("other", FOREVER);
    other["spec"]["suspend"] = true.into();
    here.create(&other);
    here.wait("other", "its finalizer", |object| !object["metadata"]["finalizers"].is_null());
    gates.shut("condor_q");
    ask_to_delete(&here, "idle");
    wait_for("the jobs to be gone", PATIENCE, || queued(&bed, &uid) == Some(Vec::new())).unwrap();
    here.delete("other");
    assert!(look(&here, "idle", &uid).is_some(), "gone without an answer from HTCondor");
    gates.open("condor_q");
    watch_it_go(&here, "idle", &uid);
    assert_removed(&bed, &uid, &ids);
    assert_nothing_left(&bed);
}
