//! `kubectl delete` in each phase: the object stays until HTCondor has none of its jobs left, and nobody else's are touched.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use bed::dice::Dice;
use bed::gates::Gates;
use bed::{Bed, Namespace, PATIENCE, condition, htcjob};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::{Owned, PoolOptions, Version, wait_for};

/// The reason that the operator gives to `condor_rm`.
const OURS: &str = "removed by htc-operator";
/// Runs until it is removed.
const FOREVER: &str = "touch up; sleep 1000";
/// Runs until it is let go with [`Bed::open_gate`].
const UNTIL_LET_GO: &str = "touch up; until [ -e go ]; do sleep 0.2; done; echo done";
/// Does not end on SIGTERM: HTCondor needs some seconds to remove it.
const STUBBORN: &str = "trap '' TERM; touch up; while :; do sleep 1; done";

/// An `HTCJob` of `queue` jobs.
fn jobs(name: &str, queue: u32, source: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["queue"] = queue.into();
    object
}

fn of(uid: &str) -> String {
    format!("HTCJobUID == \"{uid}\" && Owner == \"operator\"")
}

/// Ids of an object's jobs in the queue, of those that the operator submitted: anybody can write the attributes.
/// None: HTCondor does not answer.
fn queued(bed: &Bed, uid: &str) -> Option<Vec<String>> {
    let answer = bed.pool.tool(
        "condor_q",
        &["-allusers", "-constraint", &of(uid), "-format", "%d.", "ClusterId", "-format", "%d\n", "ProcId"],
    );
    answer.ok().map(|text| text.lines().map(str::to_owned).collect())
}

/// The object, if it is there and no other one of that name.
fn look(here: &Namespace<'_>, name: &str, uid: &str) -> Option<Value> {
    let text = here.kubectl(&["get", "htcjob", name, "--ignore-not-found", "-o", "json"]);
    serde_json::from_str(&text).ok().filter(|object: &Value| object["metadata"]["uid"] == uid)
}

/// Ids that the object's status records.
fn recorded(object: &Value) -> BTreeSet<String> {
    object["status"]["jobid"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

fn ask_to_delete(here: &Namespace<'_>, name: &str) {
    here.kubectl(&["delete", "htcjob", name, "--wait=false"]);
}

/// Looks at both sides until the object is gone: first at Kubernetes, then at HTCondor. A job that is seen after its object
/// was seen gone was left behind. Gives what each look showed while HTCondor had jobs.
fn watch_it_go(here: &Namespace<'_>, name: &str, uid: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    let gone = wait_for(&format!("HTCJob {name} to be gone"), PATIENCE, || {
        let object = look(here, name, uid);
        let left = queued(here.bed, uid);
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

fn delete(here: &Namespace<'_>, name: &str, uid: &str) -> Vec<Value> {
    ask_to_delete(here, name);
    watch_it_go(here, name, uid)
}

/// `condor_rm` was run by the operator for each of these, and HTCondor had no other job of the object.
fn assert_removed(bed: &Bed, uid: &str, ids: &BTreeSet<String>) {
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
fn create_and_wait(here: &Namespace<'_>, object: &Value, state: &str) -> (String, BTreeSet<String>) {
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
fn wait_up(bed: &Bed, uid: &str, count: usize) {
    let up = || bed.scratch_directories(uid).iter().filter(|folder| folder.join("up").exists()).count();
    wait_for("the payloads to begin", PATIENCE, || up() == count).unwrap();
}

fn messages(here: &Namespace<'_>, name: &str, reason: &str) -> Vec<String> {
    here.events(name).into_iter().filter(|(other, _)| other == reason).map(|(_, message)| message).collect()
}

/// `htc-operator check`: whether it found all well, and what it said.
fn check(bed: &Bed) -> (bool, String) {
    let log = bed.pool.scratch().path().join("check.log");
    let check = Owned::spawn(&bed.operator_spec("check", &log)).unwrap();
    let status = check.wait(PATIENCE).unwrap();
    (status.success(), check.log_text())
}

fn assert_nothing_left(bed: &Bed) {
    assert_eq!(bed.queue("true", &["GlobalJobId"]), Vec::<Vec<String>>::new());
    let (well, said) = check(bed);
    assert!(well && said.contains("ok    orphans: none"), "{said}");
}

fn own_bed(version: Version) -> Bed {
    // The pool's default is to give a job ten minutes to end by itself.
    let options = PoolOptions { extra_config: "MachineMaxVacateTime = 4".to_owned(), ..PoolOptions::default() };
    Bed::new(version, &options, &[])
}

#[rstest]
fn before_submission(#[values(Version::Trixie, Version::Sid)] version: Version) {
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
fn while_staging(#[values(Version::Trixie, Version::Sid)] version: Version, #[values(1, 200)] count: u32) {
    let here = Bed::shared(version).namespace();
    let mut hit = false;
    for round in 0..10 {
        let name = format!("staging-{count}-{round}");
        let uid = here.create(&jobs(&name, count, FOREVER));
        let staging = format!("{} && JobStatus == 5 && HoldReasonCode == 16", of(&uid));
        wait_for("a job in staging", PATIENCE, || !here.bed.queue(&staging, &["ProcId"]).is_empty()).unwrap();
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
fn idle(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let here = Bed::shared(version).namespace();
    let mut object = jobs("idle", 3, FOREVER);
    object["spec"]["htcopts"] = "requirements = false".into();
    let (uid, ids) = create_and_wait(&here, &object, "idle");
    assert_eq!(ids.len(), 3);
    delete(&here, "idle", &uid);
    assert_removed(here.bed, &uid, &ids);
}

#[rstest]
fn running(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let here = Bed::shared(version).namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("running", 3, FOREVER), "running");
    delete(&here, "running", &uid);
    assert_removed(here.bed, &uid, &ids);
    let reasons = here.wait_event("running", "JobsRemoved");
    assert!(reasons.iter().any(|reason| reason == "Terminating"), "{reasons:?}");
    for reason in ["Terminating", "JobsRemoved"] {
        let told = messages(&here, "running", reason);
        assert_eq!(told.len(), 1, "{told:?}");
        let cluster = ids.first().unwrap().split('.').next().unwrap();
        assert!(told[0].contains(&format!("{cluster}.")), "{told:?} does not name {ids:?}");
    }
}

#[rstest]
fn held_by_hand(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let here = Bed::shared(version).namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("held", 2, FOREVER), "running");
    here.bed.condor.ok("condor_hold", &["-constraint", &of(&uid)]).unwrap();
    here.wait("held", "2 held", |object| object["status"]["held"] == 2);
    delete(&here, "held", &uid);
    assert_removed(here.bed, &uid, &ids);
}

/// Jobs that have ended and left the queue keep their end; those that still lie there, since their output cannot be
/// fetched, are removed.
#[rstest]
fn completed(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let here = Bed::shared(version).namespace();
    let uid = here.create(&jobs("completed", 2, "exit $HTCPROCID"));
    here.wait_ended("completed");
    here.wait_nothing_left(&uid);
    delete(&here, "completed", &uid);
    assert_eq!(here.bed.history(&of(&uid), &["JobStatus"]), [["4"], ["4"]]);

    let uid = here.create(&jobs("unfetched", 2, "sleep 2"));
    wait_for("the jobs", PATIENCE, || queued(here.bed, &uid).is_some_and(|left| left.len() == 2)).unwrap();
    let folder = here.output("unfetched", 0);
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    let object = here.wait("unfetched", "output not fetched", |object| {
        let failed = condition(object, "OutputFetched").is_some_and(|c| c["reason"] == "FetchFailed");
        failed && object["status"]["succeeded"] == 2
    });
    assert_eq!(queued(here.bed, &uid).map(|left| left.len()), Some(2));
    delete(&here, "unfetched", &uid);
    assert_removed(here.bed, &uid, &recorded(&object));
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// While HTCondor waits for a job to end, so does the object, and says so.
#[rstest]
fn removal_that_takes_time(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let bed = own_bed(version);
    bed.start_operator();
    let here = bed.namespace();
    let (uid, ids) = create_and_wait(&here, &jobs("stubborn", 2, STUBBORN), "running");
    let seen = delete(&here, "stubborn", &uid);
    let waiting: Vec<&Value> = seen.iter().filter(|object| object["status"]["phase"] == "Terminating").collect();
    assert!(waiting.len() >= 3, "seen {} times while HTCondor removed the jobs", waiting.len());
    for object in &waiting {
        assert!(!object["metadata"]["finalizers"].is_null());
        assert_eq!(condition(object, "JobsRemoved").unwrap()["status"], "False", "{object:#}");
    }
    let present =
        waiting.iter().filter_map(|object| condition(object, "JobsRemoved")).find(|c| c["reason"] == "JobsPresent");
    let message = present.unwrap()["message"].as_str().unwrap();
    assert!(ids.iter().any(|id| message.contains(id)), "{message} does not name {ids:?}");
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
fn others_are_left_alone(#[values(Version::Trixie, Version::Sid)] version: Version) {
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

/// Two objects whose jobs share a cluster, and objects that are deleted while nobody looks.
#[rstest]
fn while_the_operator_is_away(#[values(Version::Trixie, Version::Sid)] version: Version) {
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
    here.kubectl(&["patch", "htcjob", "suspended", "--type=merge", "-p", r#"{"spec": {"suspend": false}}"#]);
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
fn while_the_schedd_is_down(#[values(Version::Trixie, Version::Sid)] version: Version) {
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
    let tried = || bed.log().lines().filter(|line| line.contains("kind=\"Remove\"")).count();
    let before = tried();
    wait_for("eight more tries, 15 s", PATIENCE, || tried() >= before + 8).unwrap();
    assert_eq!(messages(&here, "waits", "ScheddUnreachable").len(), 2, "{:?}", here.events("waits"));
    assert!(look(&here, "waits", &waits).is_some() && look(&here, "given-up", &given_up).is_some());

    here.kubectl(&["annotate", "htcjob", "given-up", "htc.cern.ch/abandon=true"]);
    here.wait_gone("given-up");
    here.wait_event("given-up", "JobsRemoved");
    let told = messages(&here, "given-up", "JobsRemoved");
    let cluster = orphans.first().unwrap().split('.').next().unwrap();
    let left = format!(
        "abandoned by annotation; these jobs may be left in HTCondor: {cluster}.0-1; the log names all; \
         the constraint HTCJobUID == \"{given_up}\" finds them"
    );
    assert_eq!(told, [left]);

    bed.pool.tool("condor_on", &["-schedd"]).unwrap();
    watch_it_go(&here, "waits", &waits);
    assert_removed(&bed, &waits, &ids);
    let (well, said) = check(&bed);
    assert!(
        !well && said.contains(&format!("WRONG orphans: 2 jobs in HTCondor belong to no HTCJob: {cluster}.0-1;")),
        "{said}"
    );
    assert_eq!(queued(&bed, &given_up).map(BTreeSet::from_iter), Some(orphans), "only a person removes orphans");
}

/// An object that was stored under other rules and can no longer be read.
#[rstest]
fn what_cannot_be_read_any_more(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let bed = own_bed(version);
    bed.start_operator();
    let here = bed.namespace();
    let (runs, ids) = create_and_wait(&here, &jobs("runs", 2, FOREVER), "running");
    let loose = r#"[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]"#;
    bed.kube.kubectl_ok(&["patch", "crd", "htcjobs.htc.cern.ch", "--type=json", "-p", loose]).unwrap();
    // Some time passes until the API server goes by the new rules.
    let no_source = r#"{"spec": {"script": {"source": null}}}"#;
    let patched = || here.try_kubectl(&["patch", "htcjob", "runs", "--type=merge", "-p", no_source]);
    wait_for("an HTCJob without a source", PATIENCE, patched).unwrap();
    let mut new = htcjob("new", FOREVER);
    new["spec"]["suspend"] = "yes".into();
    let new = here.create(&new);
    bed.kube.apply_crd(&htc_operator::api::crd_yaml().unwrap(), "htcjobs.htc.cern.ch").unwrap();
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

/// Whenever the operator is killed, the next one finishes.
#[rstest]
fn the_operator_is_killed_meanwhile(#[values(Version::Trixie, Version::Sid)] version: Version) {
    const ROUNDS: usize = 5;
    let mut dice = Dice::new("the_operator_is_killed_meanwhile");
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

/// Moments that are too short to be met by chance: HTCondor's tools are made to wait there.
#[rstest]
fn at_the_worst_moment(#[values(Version::Trixie, Version::Sid)] version: Version) {
    let gates = Gates::new(version);
    let bed = Bed::new(version, &PoolOptions::default(), &[&gates.argument()]);
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
