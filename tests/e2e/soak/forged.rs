//! Tests of the checker: a correct run passes, and each forgery is detected.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use strum::IntoEnumIterator as _;

use crate::soak::checker::{Rule, check};
use crate::soak::collect::{Ad, Collected, Output, Record};
use crate::soak::driver::Life;
use crate::soak::judge;
use crate::soak::plan::{Act, Fate, Plan, Step};
use bed::watch::Watched;

const LEFT: &str = "uid-left";
const HELD: &str = "uid-held";
const DELETED: &str = "uid-deleted";

fn life(uid: &str, fate: Fate, codes: &[u8], acts: &[Act]) -> Life {
    let step = |act: &Act| Step { phase: "", pause: Duration::ZERO, act: *act };
    let steps = acts.iter().map(step).collect();
    let plan = Plan { name: uid.replace("uid-", ""), fate, codes: codes.to_vec(), payload: Duration::ZERO, steps };
    Life::new(plan, uid.to_owned(), Vec::new())
}

fn ad(uid: &str, id: &str, index: u32, code: i64) -> Ad {
    Ad {
        id: id.to_owned(),
        uid: uid.to_owned(),
        index,
        attempt: 1,
        status: 4,
        staged: Some(100),
        began: Some(101),
        completed: Some(105),
        removed: None,
        not_after: Some(110),
        starts: 1,
        exit_code: Some(code),
        remove_reason: String::new(),
    }
}

fn run(uid: &str, id: &str, index: u32, token: &str) -> [Record; 2] {
    let record = |end| Record { uid: uid.to_owned(), index, id: id.to_owned(), token: token.to_owned(), end };
    [record(false), record(true)]
}

fn object(uid: &str, ids: &[&str], jobs: &str, succeeded: usize) -> Value {
    let ended = if succeeded == ids.len() { "Complete" } else { "Failed" };
    let reported = ["Submitted", "OutputFetched", ended].map(|kind| json!({ "type": kind, "status": "True" }));
    json!({
        "metadata": { "uid": uid, "finalizers": ["htc.cern.ch/condor-jobs"] },
        "status": {
            "phase": "Completed", "attempt": 1, "clusterid": "1", "jobid": ids, "jobs": jobs,
            "total": ids.len(), "active": 0, "idle": 0, "running": 0, "held": 0,
            "succeeded": succeeded, "failed": ids.len() - succeeded, "conditions": reported,
        },
    })
}

fn events(uid: &str, reasons: &[&str]) -> Vec<Value> {
    let event = |(number, reason): (usize, &&str)| {
        let name = format!("x.uid.{number:04}");
        json!({ "metadata": { "name": name }, "reason": reason, "involvedObject": { "uid": uid } })
    };
    (1..).zip(reasons).map(event).collect()
}

/// What the watch showed of one that ends with this status.
fn statuses(uid: &str, ids: &[&str], jobs: &str, last: Value) -> (String, Vec<Value>) {
    let at = |phase| json!({ "phase": phase, "attempt": 1, "jobid": ids, "jobs": jobs, "active": ids.len() });
    (uid.to_owned(), vec![Value::Null, at("Submitted"), at("Running"), last])
}

fn output(index: u32, name: &str, token: &str) -> Output {
    Output { out: Some(format!("{name} {index} {token}\n")), result: Some(format!("{token}\n")) }
}

/// A round of three `HTCJob`s in which everything is right.
fn right() -> Collected {
    let (start, end) = (["Pending", "Submitted", "Running"], ["Terminating", "JobsRemoved"]);
    let objects = vec![object(LEFT, &["1.0", "1.1"], "1.0-1", 1), object(HELD, &["1.2"], "1.2", 1)];
    let terminating = json!({ "phase": "Terminating", "attempt": 1, "jobid": ["2.0"], "jobs": "2.0", "active": 1 });
    let statuses = [
        statuses(LEFT, &["1.0", "1.1"], "1.0-1", objects[0]["status"].clone()),
        statuses(HELD, &["1.2"], "1.2", objects[1]["status"].clone()),
        statuses(DELETED, &["2.0"], "2.0", terminating),
    ];
    let mut lives = vec![
        life(LEFT, Fate::Left, &[0, 7], &[]),
        life(HELD, Fate::HeldByHand, &[0], &[Act::Hold, Act::Release]),
        life(DELETED, Fate::Deleted("Running"), &[0], &[Act::Delete]),
    ];
    for (life, (_, statuses)) in lives.iter_mut().zip(&statuses) {
        life.seen = statuses[1..3].to_vec();
    }
    Collected {
        lives,
        objects,
        watched: Watched {
            statuses: statuses.into(),
            deleting: [DELETED.to_owned()].into(),
            gone: [DELETED.to_owned()].into(),
            lists: 1,
        },
        events: [
            events(LEFT, &[&start[..], &["Failed", "Fetched"]].concat()),
            events(HELD, &[&start[..], &["JobsHeld", "NotHeld", "Completed", "Fetched"]].concat()),
            events(DELETED, &[&start[..], &end].concat()),
        ]
        .concat(),
        queue: Vec::new(),
        history: vec![
            ad(LEFT, "1.0", 0, 0),
            ad(LEFT, "1.1", 1, 7),
            Ad { starts: 2, ..ad(HELD, "1.2", 0, 0) },
            Ad { status: 3, exit_code: None, ..ad(DELETED, "2.0", 0, 0) },
        ],
        records: [
            run(LEFT, "1.0", 0, "a").to_vec(),
            run(LEFT, "1.1", 1, "b").to_vec(),
            run(HELD, "1.2", 0, "c")[..1].to_vec(),
            run(HELD, "1.2", 0, "d").to_vec(),
            run(DELETED, "2.0", 0, "e")[..1].to_vec(),
        ]
        .concat(),
        outputs: [
            ((LEFT.to_owned(), 0), output(0, "left", "a")),
            ((LEFT.to_owned(), 1), output(1, "left", "b")),
            ((HELD.to_owned(), 0), output(0, "held", "d")),
        ]
        .into(),
        spool: Vec::new(),
        htcqueue: json!({ "used": { "jobs": 0 }, "pending": 0, "waitingJobs": 0 }),
        awake: vec![(90, 400)],
    }
}

/// The watch has shown one more status, just before the last one: like the one before it, but for this.
fn add_status(found: &mut Collected, uid: &str, change: &Value) {
    let statuses = found.watched.statuses.get_mut(uid).unwrap();
    let last = statuses.pop().unwrap();
    let mut status = statuses.last().unwrap().clone();
    status.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    statuses.extend([status, last]);
}

type Forgery = (&'static str, fn(&mut Collected), &'static [Rule]);

const FORGERIES: &[Forgery] = &[
    (
        "a job that nobody knows",
        |found| found.queue.push(ad("uid-stranger", "9.0", 0, 0)),
        &[Rule::UnknownJob, Rule::LeftInQueue],
    ),
    ("a job of an index that is not there", |found| found.history.push(ad(LEFT, "9.0", 2, 0)), &[Rule::UnknownJob]),
    (
        "an earlier job of a later index",
        |found| {
            (found.history[0], found.history[1]) = (ad(LEFT, "1.0", 1, 7), ad(LEFT, "1.1", 0, 0));
            found.records.splice(..4, [run(LEFT, "1.0", 1, "b"), run(LEFT, "1.1", 0, "a")].concat());
        },
        &[],
    ),
    ("a run that nobody knows", |found| found.records.extend(run("uid-stranger", "9.0", 0, "x")), &[Rule::UnknownRun]),
    ("a job that stays", |found| found.queue.push(found.history[0].clone()), &[Rule::LeftInQueue]),
    (
        "files of a job that never was accepted",
        |found| {
            found.history.push(Ad { staged: None, status: 3, ..ad(DELETED, "9.0", 0, 0) });
            found.spool.push("cluster9.proc0.subproc0.tmp".to_owned());
        },
        &[],
    ),
    ("files of nobody's job", |found| found.spool.push("cluster9.proc0.subproc0".to_owned()), &[Rule::LeftInSpool]),
    ("files that stay", |found| found.spool.push("cluster1.proc0.subproc0".to_owned()), &[Rule::LeftInSpool]),
    (
        "a second job that counts, and ran",
        |found| {
            found.history.push(ad(LEFT, "9.0", 0, 0));
            found.records.extend(run(LEFT, "9.0", 0, "x"));
        },
        &[Rule::OneJobEach, Rule::OneRunEach, Rule::Output],
    ),
    (
        "a second job of a deleted one, and it ran",
        |found| {
            found.history.push(ad(DELETED, "9.0", 0, 0));
            found.records.extend(run(DELETED, "9.0", 0, "x"));
        },
        &[Rule::OneJobEach, Rule::OneRunEach],
    ),
    (
        "a job that is missing",
        |found| drop(found.history.remove(0)),
        &[Rule::OneJobEach, Rule::RunThatCounts, Rule::Ids, Rule::ToldJobs],
    ),
    (
        "a job that came before the one before had ended",
        |found| found.lives[0].plan.fate = Fate::AtATime(1),
        &[Rule::Parallelism],
    ),
    ("a place that stays free", |found| left_to_the_next(found, 105 + 61), &[Rule::FreePlace]),
    ("a place that is taken at the last moment", |found| left_to_the_next(found, 105 + 60), &[]),
    (
        "a place that stays free while no operator is there for long",
        |found| {
            left_to_the_next(found, 105 + 200);
            found.awake = vec![(90, 106), (170, 190), (195, 265), (300, 400)];
        },
        &[],
    ),
    (
        "more jobs of a queue than its quota",
        |found| {
            found.lives[0].plan.fate = Fate::Queued;
            found.history[0].completed = Some(106);
            let more = |id: &str| Ad { id: id.to_owned(), staged: Some(105), ..found.history[0].clone() };
            let more = ["8.0", "8.1", "8.2"].map(more);
            found.history.extend(more);
        },
        &[Rule::OneJobEach, Rule::Quota],
    ),
    (
        "one that is held while others have its room",
        |found| {
            found.lives[0].plan.fate = Fate::QueuedSuspended;
            let resumed = |id: &str, began| Ad {
                id: id.to_owned(),
                staged: Some(90),
                began: Some(began),
                completed: Some(107),
                ..found.history[0].clone()
            };
            found.history.extend([resumed("8.0", 105), resumed("8.1", 106)]);
        },
        &[Rule::OneJobEach],
    ),
    (
        "more that run than the quota, although they were held before",
        |found| {
            for life in &mut found.lives {
                life.plan.fate = Fate::QueuedSuspended;
            }
        },
        &[Rule::Quota],
    ),
    ("room that is not given back", |found| found.htcqueue["used"]["jobs"] = 1.into(), &[Rule::RoomIsLeft]),
    ("one that waits for ever", |found| found.htcqueue["pending"] = 1.into(), &[Rule::RoomIsLeft]),
    (
        "a second run in the same job",
        |found| found.records.extend(run(LEFT, "1.0", 0, "x")),
        &[Rule::OneRunEach, Rule::Output],
    ),
    (
        "one more run of a held job than HTCondor began",
        |found| found.records.extend(run(HELD, "1.2", 0, "d")),
        &[Rule::OneRunEach],
    ),
    (
        "a run that HTCondor began again",
        |found| {
            found.records.extend(run(LEFT, "1.0", 0, "a"));
            found.history[0].starts = 2;
        },
        &[Rule::BegunAgain],
    ),
    ("a payload that never ran", |found| found.records.retain(|record| record.token != "a"), &[Rule::OneRunEach]),
    ("a payload that did not end", |found| drop(found.records.remove(1)), &[Rule::OneRunEach]),
    ("a late job that ran", |found| found.history[3].staged = Some(111), &[Rule::RunThatCounts, Rule::ToldJobs]),
    (
        "a job that never was accepted and ran",
        |found| found.history[3].staged = None,
        &[Rule::RunThatCounts, Rule::ToldJobs],
    ),
    ("another exit code", |found| found.history[1].exit_code = Some(0), &[Rule::ExitCode]),
    (
        "a job that the operator removed",
        |found| {
            found.history[1].status = 3;
            "removed by htc-operator (by user operator)".clone_into(&mut found.history[1].remove_reason);
        },
        &[Rule::ExitCode],
    ),
    ("a job that was removed", |found| found.history[1].status = 3, &[Rule::RemovedByOthers]),
    ("a job that a late hold has removed", |found| found.history[2].status = 3, &[Rule::RemovedByHold]),
    (
        "a held job that somebody removed",
        |found| {
            found.history[2].status = 3;
            "via condor_rm (by user operator)".clone_into(&mut found.history[2].remove_reason);
        },
        &[Rule::RemovedByOthers],
    ),
    (
        "an object that is gone",
        |found| {
            found.objects.remove(0);
            found.watched.gone.insert(LEFT.to_owned());
        },
        &[Rule::Finalizer],
    ),
    (
        "a deleted one that stays",
        |found| found.objects.push(object(DELETED, &["2.0"], "2.0", 1)),
        &[Rule::Finalizer, Rule::Unwatched],
    ),
    ("no finalizer", |found| found.objects[0]["metadata"]["finalizers"] = Value::Null, &[Rule::Finalizer]),
    (
        "one that is about to go",
        |found| found.objects[0]["metadata"]["deletionTimestamp"] = "now".into(),
        &[Rule::Finalizer],
    ),
    ("another count", |found| found.objects[0]["status"]["succeeded"] = 2.into(), &[Rule::Counts, Rule::Unwatched]),
    ("another phase", |found| found.objects[0]["status"]["phase"] = "Running".into(), &[Rule::Counts, Rule::Unwatched]),
    ("another id", |found| found.objects[0]["status"]["jobid"][1] = "9.0".into(), &[Rule::Ids, Rule::Unwatched]),
    ("other ranges", |found| found.objects[0]["status"]["jobs"] = "1.0-2".into(), &[Rule::Ids, Rule::Unwatched]),
    ("an attempt that is not told", |found| found.history[0].attempt = 2, &[Rule::Ids, Rule::ToldJobs]),
    ("another cluster", |found| found.objects[0]["status"]["clusterid"] = "2".into(), &[Rule::Ids, Rule::Unwatched]),
    (
        "Complete though one failed",
        |found| {
            let status = &mut found.objects[0]["status"];
            status["conditions"][2]["type"] = "Complete".into();
            *found.watched.statuses.get_mut(LEFT).unwrap().last_mut().unwrap() = status.clone();
        },
        &[Rule::Conditions, Rule::ToldEnd],
    ),
    (
        "no output told",
        |found| found.objects[0]["status"]["conditions"][1]["status"] = "False".into(),
        &[Rule::Conditions, Rule::Unwatched],
    ),
    ("no output", |found| found.outputs.values_mut().for_each(|output| output.result = None), &[Rule::Output]),
    (
        "another run's output",
        |found| drop(found.outputs.insert((HELD.to_owned(), 0), output(0, "held", "c"))),
        &[Rule::Output],
    ),
    (
        "an Event twice",
        |found| {
            found.events =
                [events(LEFT, &["Pending", "Submitted", "Submitted", "Failed"]), found.events.split_off(5)].concat();
        },
        &[Rule::Events],
    ),
    ("an Event that is missing", |found| drop(found.events.remove(3)), &[Rule::Events]),
    ("a number twice", |found| found.events.push(found.events[4].clone()), &[Rule::Events]),
    (
        "a phase that goes back, for a moment",
        |found| add_status(found, LEFT, &json!({ "phase": "Submitted" })),
        &[Rule::WentBack],
    ),
    ("a count that goes back without a word", counted, &[Rule::WentBack]),
    (
        "a count that goes back because a job was held right after its report",
        |found| {
            counted(found);
            found.events.extend(events(HELD, &["CallbackRefuted"; 8]).split_off(7));
        },
        &[],
    ),
    (
        "a reported end that was none, of a job that nobody stopped",
        |found| found.events.extend(events(LEFT, &["CallbackRefuted"; 6]).split_off(5)),
        &[Rule::Refuted],
    ),
    (
        "an end that no payload has, for a moment",
        |found| add_status(found, LEFT, &json!({ "active": 0, "failed": 2 })),
        &[Rule::CountedTooMuch, Rule::WentBack],
    ),
    ("a watch that saw nothing", |found| found.watched = Watched::default(), &[Rule::Unwatched]),
    ("a watch that was begun anew", |found| found.watched.lists = 2, &[Rule::Unwatched]),
    (
        "a status that was listed, and the watch did not show it",
        |found| drop(found.watched.statuses.get_mut(HELD).unwrap().remove(2)),
        &[Rule::Unwatched],
    ),
    ("one that the watch did not see go", |found| found.watched.gone.clear(), &[Rule::Unwatched]),
    (
        "ids that are taken back, for a moment",
        |found| add_status(found, LEFT, &json!({ "jobid": ["1.0"], "jobs": "1.0", "active": 1 })),
        &[Rule::ToldJobs],
    ),
    (
        "a list that lacks an id, for a moment",
        |found| add_status(found, LEFT, &json!({ "jobid": ["1.0"] })),
        &[Rule::ToldJobs],
    ),
    (
        "another's id in the list, for a moment",
        |found| add_status(found, LEFT, &json!({ "jobid": ["1.0", "1.2"] })),
        &[Rule::ToldJobs],
    ),
    (
        "a job that is not counted, for a moment",
        |found| add_status(found, LEFT, &json!({ "active": 1 })),
        &[Rule::ToldJobs],
    ),
    (
        "an end that is told before its phase",
        |found| add_status(found, LEFT, &over(&json!({ "phase": "Running" }))),
        &[Rule::ToldEnd],
    ),
    (
        "an end that is told while a job runs",
        |found| add_status(found, LEFT, &over(&json!({ "active": 1, "succeeded": 0 }))),
        &[Rule::ToldEnd],
    ),
    (
        "an end that is taken back, for a moment",
        |found| {
            add_status(found, LEFT, &over(&json!({})));
            add_status(found, LEFT, &json!({ "conditions": [] }));
        },
        &[Rule::ToldEnd],
    ),
    (
        "a time of the end that changes",
        |found| add_status(found, LEFT, &json!({ "completionTime": "another" })),
        &[Rule::ToldEnd],
    ),
];

/// The second job of the first `HTCJob`, which has one place, comes so late.
fn left_to_the_next(found: &mut Collected, staged: i64) {
    found.lives[0].plan.fate = Fate::AtATime(1);
    let next = &mut found.history[1];
    next.staged = Some(staged);
    (next.began, next.completed, next.not_after) = (Some(staged + 1), Some(staged + 5), Some(staged + 10));
}

/// An end is counted, and then it is not.
fn counted(found: &mut Collected) {
    for (succeeded, active) in [(1, 0), (0, 1)] {
        add_status(found, HELD, &json!({ "succeeded": succeeded, "active": active }));
    }
}

/// How the first one ends, but for this.
fn over(change: &Value) -> Value {
    let conditions = json!([{ "type": "Failed", "status": "True" }]);
    let mut status =
        json!({ "phase": "Completed", "active": 0, "succeeded": 1, "failed": 1, "conditions": conditions });
    status.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    status
}

/// Only the operator's own end cannot be seen afterwards.
const SEEN_BY_THE_KILLER: &[Rule] = &[Rule::OperatorEnded];

#[test]
fn correct_run_passes_the_checker() {
    assert_eq!(check(&right()), []);
}

/// Its consequences for the held job are not the operator's fault; those for others are.
#[test]
fn late_hold_is_counted_and_no_violation() {
    let mut found = right();
    found.history[2].status = 3;
    found.objects[1]["status"]["succeeded"] = 0.into();
    let (violations, late_holds) = judge(&found);
    assert_eq!((violations.as_slice(), late_holds), ([].as_slice(), 1));
    found.history[1].status = 3;
    let (violations, late_holds) = judge(&found);
    assert_eq!((violations.len(), late_holds), (1, 1));
    assert_eq!(violations[0].rule, Rule::RemovedByOthers);
}

#[test]
fn checker_detects_each_forgery() {
    let mut seen: BTreeSet<Rule> = SEEN_BY_THE_KILLER.iter().copied().collect();
    for (what, forge, rules) in FORGERIES {
        let mut found = right();
        forge(&mut found);
        let broken: BTreeSet<Rule> = check(&found).iter().map(|violation| violation.rule).collect();
        assert_eq!(broken, rules.iter().copied().collect(), "{what}");
        seen.extend(broken);
    }
    let unseen: Vec<Rule> = Rule::iter().filter(|rule| !seen.contains(rule)).collect();
    assert!(unseen.is_empty(), "no forgery breaks {unseen:?}");
}

/// The API server may delete an `HTCJob` in the moment in which it gets its finalizer: then there is no Event and
/// nothing to remove.
#[test]
fn htcjob_deleted_without_its_finalizer_is_no_violation() {
    let mut found = right();
    let of_deleted = |uid: &str| uid == DELETED;
    found.history.retain(|ad| !of_deleted(&ad.uid));
    found.records.retain(|record| !of_deleted(&record.uid));
    found.events.retain(|event| !of_deleted(event["involvedObject"]["uid"].as_str().unwrap()));
    found.events.extend(events(DELETED, &["Pending"]));
    found.watched.statuses.insert(DELETED.to_owned(), vec![Value::Null]);
    found.lives[2].seen.clear();
    let broken = |found: &Collected| check(found).into_iter().map(|violation| violation.rule).collect::<Vec<_>>();
    assert_eq!(broken(&found), [Rule::Events], "held, it is told of what becomes of it");
    found.watched.deleting.clear();
    assert_eq!(broken(&found), []);
}

/// As both versions write it when condor_rm comes right after JobStatus 4.
#[test]
fn job_removed_right_after_its_end_counts_as_ended() {
    let ad = |last| {
        json!({
            "ClusterId": 1, "ProcId": 23, "JobStatus": 3, "LastJobStatus": last, "ExitCode": 0,
            "TransferOutFinished": 105, "EnteredCurrentStatus": 109,
        })
    };
    let [ended, running] = [4, 2].map(|last| Ad::read(&ad(last)));
    assert_eq!((ended.completed, ended.removed), (Some(105), Some(109)));
    assert_eq!((running.completed, running.removed), (None, Some(109)));
}
