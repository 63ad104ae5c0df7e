//! Jobs that the status and the database agree on.

use std::os::unix::process::ExitStatusExt as _;

use serde_json::{Value, json};
use testbed::{PoolOptions, Version, wait_for};

use crate::upgrade::old::{Old, Submitted, wait_says};
use bed::http::{self, Connection};
use bed::{Bed, PATIENCE, condition, htcjob, is_true};

on_versions! {
    trixie: adopt_continues_after_kills, adopted_jobs_are_followed_to_their_end;
    long: deletion_removes_exactly_the_adopted_jobs;
}

const CODES: [i64; 7] = [1, 4, 7, 14, 17, 24, 27];

fn counts(object: &Value) -> (i64, i64, i64) {
    let count = |field: &str| object["status"][field].as_i64().unwrap();
    (count("active"), count("succeeded"), count("failed"))
}

/// How many jobs HTCondor has or had.
fn jobs_of_all(bed: &Bed) -> usize {
    let mut ids = bed.queue("true", &["ClusterId", "ProcId"]);
    ids.extend(bed.history("true", &["ClusterId", "ProcId"]));
    ids.sort();
    ids.dedup();
    ids.len()
}

/// Ids and folder of jobs that HTCondor never had, or no longer has any trace of.
fn long_gone(cluster: &str, jobs: u32) -> Submitted {
    Submitted {
        ids: (0..jobs).map(|proc| format!("{cluster}.{proc}")).collect(),
        folder: "/tmp/htcjob123456".into(),
        uniqid: 5_577_006_791_947_779_410,
    }
}

#[allow(clippy::too_many_lines, reason = "one upgrade from its beginning to its end")]
fn adopted_jobs_are_followed_to_their_end(version: Version) {
    let port = testbed::Port::reserve().unwrap();
    let listen = format!("--callback-listen=127.0.0.1:{}", port.number);
    let bed = Bed::new(version, &PoolOptions::default(), &[&listen]);
    let old = Old::new(&bed);
    let (here, there) = (bed.namespace(), bed.namespace());

    let (_, all_codes) = old.run(&here, "codes", &CODES, "");
    // One name in two namespaces; the spec of one of them could not be submitted any more.
    let submitted = old.submit(&bed.condor, "twin", 2, "");
    old.note("twin", &submitted, &[1, 1]);
    let mut object = htcjob("twin", "true");
    object["spec"]["htcopts"] = "executable = other.sh".into();
    object["spec"]["queue"] = 2.into();
    Old::object(&here, object, &submitted, &[1, 1]);
    let twin = submitted;
    let (_, other_twin) = old.run(&there, "twin", &[1], "requirements = (NoSuchMachine =?= true)");
    let (_, was_ended) = old.run(&here, "ended", &[1], "");
    let (_, by_hand) = old.run(&here, "by-hand", &[1], "");
    let gone = long_gone("884426", 3);
    old.note("done", &gone, &[24, 14, 17]);
    let mut object = htcjob("done", "true");
    object["spec"]["queue"] = 3.into();
    Old::object(&here, object, &gone, &[24, 14, 17]);
    // Of an object that exists no longer.
    old.note("forgotten", &long_gone("17", 1), &[7]);
    all_codes.wait_status(&bed, 1..7, "4");
    all_codes.wait_status(&bed, 0..1, "2");
    twin.wait_status(&bed, 1..2, "4");
    twin.wait_status(&bed, 0..1, "2");
    was_ended.let_go(&bed);
    bed.condor.ok("condor_rm", &[&by_hand.ids[0]]).unwrap();
    wait_for("the job to be in history", PATIENCE, || by_hand.queued(&bed) == 0).unwrap();
    let before = jobs_of_all(&bed);
    old.leave_database();
    let (well, output) = bed.adopt();
    assert!(well && output.contains(&format!("adopted      {}/codes: 7 jobs: ", here.name)), "{output}");
    assert_eq!(here.get("codes")["metadata"]["finalizers"], json!(["htc.cern.ch/condor-jobs"]));
    let (well, output) = bed.adopt();
    assert!(well && output.contains("No HTCJob of the Go operator waits"), "{output}");
    bed.start_operator();

    // Adopted where they are.
    let codes = here.wait("codes", "running", |object| object["status"]["phase"] == "Running");
    assert_eq!(counts(&codes), (1, 3, 3));
    assert_eq!(codes["status"]["jobid"], codes["status"]["jobids"]);
    here.wait_event("codes", "Adopted");
    let one = here.wait("twin", "adopted", |object| is_true(object, "Submitted"));
    assert_eq!((one["status"]["phase"].as_str(), counts(&one)), (Some("Running"), (1, 1, 0)));
    let other = there.wait("twin", "adopted", |object| is_true(object, "Submitted"));
    assert_eq!((other["status"]["phase"].as_str(), counts(&other)), (Some("Submitted"), (1, 0, 0)));
    assert_eq!(other["status"]["jobid"], json!(other_twin.ids));

    // What their sender reports, without a token, is refused.
    let body = json!({ "name": "codes", "jobid": all_codes.ids[0], "retcode": "1" }).to_string();
    let headers = http::headers(&[
        ("ce-specversion", "1.0"),
        ("ce-type", "htcjob.cloudevent"),
        ("ce-source", "cern.ch"),
        ("ce-id", "0b5ea2a4"),
        ("Content-Type", "application/json"),
    ]);
    let mut connection = Connection::open(([127, 0, 0, 1], port.number).into()).unwrap();
    connection.send(&http::request(&headers, body.as_bytes())).unwrap();
    let answer = connection.answer().unwrap();
    assert!((400..500).contains(&answer.status), "{answer:?}");

    // Finished ones stay finished.
    let done = here.wait_ended("done");
    assert_eq!(counts(&done), (0, 2, 1));
    assert!(is_true(&done, "Failed") && is_true(&done, "OutputFetched"), "{done:#}");
    let by_hand = here.wait_ended("by-hand");
    assert_eq!(counts(&by_hand), (0, 0, 1));
    assert_eq!(condition(&by_hand, "Failed").unwrap()["reason"], "Removed");
    let ended = here.wait_ended("ended");
    assert_eq!(counts(&ended), (0, 1, 0));

    // The others come to their end, and their output comes here.
    all_codes.let_go(&bed);
    let codes = here.wait_ended("codes");
    assert_eq!(counts(&codes), (0, 4, 3));
    twin.let_go(&bed);
    let one = here.wait_ended("twin");
    assert_eq!(counts(&one), (0, 2, 0));
    for name in ["codes", "twin"] {
        wait_says(&here, name, "OutputFetched", "True", "Fetched");
    }
    for (name, index, id) in
        [("codes", 0, &all_codes.ids[0]), ("codes", 2, &all_codes.ids[2]), ("twin", 1, &twin.ids[1])]
    {
        let out = std::fs::read_to_string(here.output(name, index).join(format!("out.{id}"))).unwrap();
        assert_eq!(out, format!("ran {index}\n"));
        assert!(here.output(name, index).join(format!("made.{index}")).exists());
    }
    // Fetched before, and not again.
    assert!(!here.output("codes", 3).exists());
    for submitted in [&all_codes, &twin, &was_ended] {
        submitted.wait_gone(&bed);
    }
    assert_eq!(counts(&there.get("twin")), (1, 0, 0));
    assert_eq!(jobs_of_all(&bed), before, "nothing was submitted again");
    old.assert_rows_kept();
    let status = "select status from htcjobs where htcjobName = 'codes' order by jobId";
    assert_eq!(bed.ledger(status).unwrap().concat(), ["14", "14", "17", "14", "17", "24", "27"]);

    // A second start has nothing to do.
    bed.wait_ledger("select count(*) from transitions where eventAt is null", &[&["0"]]);
    bed.stop_operator();
    let (objects, reported) = (here.all(), here.all_events().len());
    bed.start_operator();
    let reconciled = "initial list of HTCJobs reconciled";
    wait_for("the first pass", PATIENCE, || bed.log().contains(reconciled)).unwrap();
    // Which takes several looks at HTCondor.
    there.delete("twin");
    assert_eq!((here.all(), here.all_events().len()), (objects, reported), "something was written at rest");
    assert_eq!(other_twin.queued(&bed), 0);
    old.assert_rows_kept();
}

fn deletion_removes_exactly_the_adopted_jobs(version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    let old = Old::new(&bed);
    let here = bed.namespace();
    let never = "requirements = (NoSuchMachine =?= true)";
    let (_, running) = old.run(&here, "running", &[1, 1], "");
    let (_, idle) = old.run(&here, "idle", &[1, 1, 1], never);
    let (_, finished) = old.run(&here, "finished", &[4, 7, 14], never);
    let (_, leaving) = old.run(&here, "leaving", &[1], "");
    // Of the same name and user, but not of any object: submitted twice, as the Go operator sometimes did.
    let second = old.submit(&bed.condor, "running", 1, never);
    // Ids that are somebody else's by now, and our own by hand.
    let alice = bed.pool.client("alice").unwrap();
    let (of_alice, of_ours) = (old.submit(&alice, "x", 1, never), old.submit(&bed.condor, "y", 1, never));
    for (name, taken) in [("taken", &of_alice), ("taken-too", &of_ours)] {
        let was = Submitted { ids: taken.ids.clone(), folder: format!("/tmp/{name}").into(), uniqid: 7 };
        old.note(name, &was, &[1]);
        Old::object(&here, htcjob(name, "true"), &was, &[1]);
    }
    running.wait_status(&bed, 1..2, "4");
    running.wait_status(&bed, 0..1, "2");
    leaving.wait_status(&bed, 0..1, "2");
    here.begin_delete("leaving");
    old.leave_database();
    bed.start_operator();
    // Before that, none of its jobs is removed.
    wait_says(&here, "leaving", "JobsRemoved", "False", "LegacyJobsUnknown");
    bed.stop_operator();
    assert!(bed.adopt().0);
    bed.start_operator();

    here.wait_gone("leaving");
    assert_eq!(leaving.queued(&bed), 0);
    for name in ["running", "idle", "finished"] {
        here.wait(name, "adopted", |object| is_true(object, "Submitted"));
    }
    assert_eq!(counts(&here.get("finished")), (0, 2, 1));
    for name in ["taken", "taken-too"] {
        wait_says(&here, name, "Tracked", "False", "HistoryTooShort");
        assert_eq!(counts(&here.get(name)), (1, 0, 0));
    }
    for (name, jobs) in [("running", &running), ("idle", &idle), ("finished", &finished)] {
        here.delete(name);
        assert_eq!(jobs.queued(&bed), 0, "{name}");
        here.wait_event(name, "JobsRemoved");
    }
    for name in ["taken", "taken-too"] {
        here.delete(name);
    }
    for others in [&second, &of_alice, &of_ours] {
        let cluster = others.ids[0].split_once('.').unwrap().0;
        let touched = "HTCOperator =!= undefined || HTCJobUID =!= undefined || JobStatus =!= 1";
        assert_eq!(others.queued(&bed), 1);
        let edited = bed.queue(&format!("ClusterId == {cluster} && ({touched})"), &["JobStatus", "HTCJobUID"]);
        assert!(edited.is_empty(), "{edited:?}");
    }
    assert_eq!(bed.queue("true", &["ClusterId"]).len(), 3);
    old.assert_rows_kept();
}

/// At each of these, one after another, the command dies and is run again.
const PLACES: &[&str] = &[
    "after-lease-taken",
    "before-condor-qedit",
    "after-condor-qedit",
    "before-decision-saved",
    "after-decision-saved",
    "before-finalizer-attached",
    "after-finalizer-attached",
    "before-decision-saved",
    "after-finalizer-attached",
    "before-lease-released",
];

fn adopt_continues_after_kills(version: Version) {
    let bed = Bed::new(version, &PoolOptions::default(), &[]);
    let old = Old::new(&bed);
    let here = bed.namespace();
    let (_, running) = old.run(&here, "running", &[1, 4], "");
    let (_, leaving) = old.run(&here, "leaving", &[1], "");
    running.wait_status(&bed, 0..1, "2");
    running.wait_status(&bed, 1..2, "4");
    leaving.wait_status(&bed, 0..1, "2");
    let before = jobs_of_all(&bed);
    here.begin_delete("leaving");
    old.leave_database();
    for place in PLACES {
        let (status, output) = bed.adopt_until(Some(place));
        assert!(status.signal() == Some(9) && output.contains(&format!("killed at {place}")), "{place}: {output}");
    }
    assert!(bed.adopt().0);
    bed.start_operator();
    here.wait_gone("leaving");
    running.let_go(&bed);
    assert_eq!(counts(&here.wait_ended("running")), (0, 2, 0));
    wait_says(&here, "running", "OutputFetched", "True", "Fetched");
    let events = here.events("running").into_iter().filter(|(reason, _)| reason == "Adopted").count();
    assert_eq!(events, 1);
    assert_eq!(leaving.queued(&bed), 0);
    assert!(here.output("running", 0).join(format!("out.{}", running.ids[0])).exists());
    here.delete("running");
    assert!(bed.queue("true", &["ClusterId"]).is_empty());
    assert_eq!(jobs_of_all(&bed), before);
    old.assert_rows_kept();
}
