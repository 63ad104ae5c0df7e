//! `HTCJob`s to be deleted, both sides looked at while they go, and what must hold of both afterwards.

use std::collections::BTreeSet;

use serde_json::Value;
use testbed::{PoolOptions, Version, wait_for};

use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, Promise, htcjob, ids};

/// The reason that the operator gives to `condor_rm`.
pub const OURS: &str = "removed by htc-operator";
/// Runs until it is removed.
pub const FOREVER: &str = "touch up; sleep 1000";
/// Runs until it is let go with [`Bed::open_gate`].
pub const UNTIL_LET_GO: &str = "touch up; until [ -e go ]; do sleep 0.2; done; echo done";
/// Does not end on SIGTERM, but when it is let go: HTCondor needs as long as the node allows to remove it.
pub const STUBBORN: &str = "trap '' TERM; touch up; until [ -e go ]; do sleep 0.2; done";

/// An `HTCJob` of `queue` jobs.
pub fn jobs(name: &str, queue: u32, source: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["queue"] = queue.into();
    object
}

pub fn of(uid: &str) -> String {
    format!("HTCJobUID == \"{uid}\" && Owner == \"operator\"")
}

/// Ids of an object's jobs in the queue, of those that the operator submitted: anybody can write the attributes.
/// None: HTCondor does not answer.
pub fn queued(bed: &Bed, uid: &str) -> Option<Vec<String>> {
    let answer = bed.pool.tool(
        "condor_q",
        &["-allusers", "-constraint", &of(uid), "-format", "%d.", "ClusterId", "-format", "%d\n", "ProcId"],
    );
    answer.ok().map(|text| text.lines().map(str::to_owned).collect())
}

/// The object, if it is there and no other one of that name.
pub fn look(here: &Namespace<'_>, name: &str, uid: &str) -> Option<Value> {
    here.object("htcjob", name).filter(|object| object["metadata"]["uid"] == uid)
}

/// Ids that the object's status records.
pub fn recorded(object: &Value) -> BTreeSet<String> {
    ids(object).into_iter().collect()
}

pub fn ask_to_delete(here: &Namespace<'_>, name: &str) {
    here.begin_delete(name);
}

/// Looks at both sides until the object is gone: first at Kubernetes, then at HTCondor. A job that is seen after its object
/// was seen gone was left behind. Gives what each look showed while HTCondor had jobs.
pub fn watch_it_go(here: &Namespace<'_>, name: &str, uid: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    let gone = wait_for(&format!("HTCJob {name} to be gone"), PATIENCE, || {
        let object = look(here, name, uid);
        let left = queued(here.bed, uid);
        let _promise = Promise;
        assert!(
            object.is_some() || left == Some(Vec::new()),
            "the object is gone, HTCondor has {left:?}\n{}",
            here.bed.log()
        );
        let gone = object.is_none();
        seen.extend(object.filter(|_| left != Some(Vec::new())));
        gone
    });
    gone.unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", look(here, name, uid), here.bed.log()));
    seen
}

pub fn delete(here: &Namespace<'_>, name: &str, uid: &str) -> Vec<Value> {
    ask_to_delete(here, name);
    watch_it_go(here, name, uid)
}

/// `condor_rm` was run by the operator for each of these, and HTCondor had no other job of the object.
pub fn assert_removed(bed: &Bed, uid: &str, ids: &BTreeSet<String>) {
    let _promise = Promise;
    let rows = bed.history(&of(uid), &["ClusterId", "ProcId", "JobStatus", "RemoveReason"]);
    let removed: BTreeSet<String> = rows
        .iter()
        .filter(|row| row[2] == "3" && row[3..].join(" ").contains(OURS))
        .map(|row| format!("{}.{}", row[0], row[1]))
        .collect();
    assert_eq!(&removed, ids, "{rows:?}");
    assert_eq!(rows.len(), ids.len(), "{rows:?}");
    bed.wait_spool_free(&ids.iter().cloned().collect::<Vec<_>>());
}

/// Creates an object and waits until all its jobs are `idle` or `running`.
pub fn create_and_wait(here: &Namespace<'_>, object: &Value, state: &str) -> (String, BTreeSet<String>) {
    let uid = here.create(object);
    let count = object["spec"]["queue"].as_u64().unwrap_or(1);
    let name = object["metadata"]["name"].as_str().unwrap();
    let object = here.wait(name, &format!("{count} {state}"), |object| object["status"][state] == count);
    if state == "running" {
        wait_up(here.bed, &uid, usize::try_from(count).unwrap());
    }
    (uid, recorded(&object))
}

/// Waits until all payloads of an object have begun. A SIGTERM that comes while their container is being made is lost, and
/// HTCondor then waits for as long as the node allows.
pub fn wait_up(bed: &Bed, uid: &str, count: usize) {
    let up = || bed.payload_folders(uid).iter().filter(|folder| folder.join("up").exists()).count();
    wait_for("the payloads to begin", PATIENCE, || up() == count).unwrap();
}

pub fn messages(here: &Namespace<'_>, name: &str, reason: &str) -> Vec<String> {
    here.events(name).into_iter().filter(|(other, _)| other == reason).map(|(_, message)| message).collect()
}

pub fn assert_nothing_left(bed: &Bed) {
    let _promise = Promise;
    assert_eq!(bed.queue("true", &["GlobalJobId"]), Vec::<Vec<String>>::new());
    let (well, output) = bed.check();
    assert!(well && output.contains("ok    orphans: none"), "{output}");
}

pub fn own_bed(version: Version) -> Bed {
    bed_where_jobs_have(version, 4)
}

/// Nodes give a job so many seconds to end by itself; HTCondor's default is ten minutes.
pub fn bed_where_jobs_have(version: Version, seconds: u32) -> Bed {
    let options = PoolOptions { extra_config: format!("MachineMaxVacateTime = {seconds}"), ..PoolOptions::default() };
    Bed::new(version, &options, LONG_SUBMISSIONS)
}
