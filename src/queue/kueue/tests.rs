//! What is written of a Workload, and what an `HTCJob` is given, without an API server and a ledger.

mod left;
mod rules;

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use rstest::rstest;
use serde_json::{Value, json};

use super::name;
use super::next::{Step, Wanted, next, patch, workload};
use super::plan::What;
use super::seen::Seen;
use crate::api::{FINALIZER, ObjectName, Observed, QUEUE_NAME, Reason};
use crate::machine::facts::{QueueKind, Queued};
use crate::machine::room::Room;
use crate::machine::{Indices, Uid};
use crate::metrics::Metrics;
use crate::queue::amounts::{Amounts, Resource, ResourceSet};
use crate::queue::progress::Progress;
use crate::queue::state::{Asker, Decided, Queueing, Queues};
use crate::queue::terms::Demand;

const EVICTED: &str = "QuotaReserved Admitted Evicted/Preempted";
const ADMITTED: &str = "QuotaReserved Admitted";

/// A Workload of three jobs; `said`: its conditions, `!` before those that are False, with a reason after `/`.
fn seen(said: &str, change: impl FnOnce(&mut Value)) -> Seen {
    let conditions = said.split_whitespace().map(|told| {
        let (kind, reason) = told.split_once('/').unwrap_or((told, "Because"));
        let status = if kind.starts_with('!') { "False" } else { "True" };
        json!({
            "type": kind.trim_start_matches('!'), "status": status, "reason": reason, "message": format!("words of {kind}"),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    let mut object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": "htcjob-u", "namespace": "ns", "uid": "w", "resourceVersion": "7",
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            "ownerReferences": [{ "apiVersion": "a/v1", "kind": "HTCJob", "name": "fit", "uid": "u", "controller": true }],
        },
        "spec": { "queueName": "q", "active": true, "podSets": [{ "name": "jobs", "count": 3, "template": {} }] },
        "status": { "conditions": conditions.collect::<Vec<_>>() },
    });
    if said.split_whitespace().any(|told| told.starts_with("QuotaReserved")) {
        object["status"]["admission"] = json!({ "podSetAssignments": [{ "name": "jobs", "count": 2 }] });
    }
    change(&mut object);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    Seen::of(&object).unwrap()
}

fn wanted(change: impl FnOnce(&mut Wanted)) -> Wanted {
    let mut wanted = Wanted {
        uid: "u".into(),
        namespace: "ns".to_owned(),
        name: "fit".to_owned(),
        queue: Some("q".to_owned()),
        bound: false,
        class: None,
        each: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 4)]),
        unknown: ResourceSet::default(),
        resources: vec![Resource::Jobs, Resource::Cpus, Resource::Gpus],
        count: 3,
        left: 3,
        suspend: false,
        deleting: false,
        accepted: false,
        ended: None,
        in_use: false,
        pod: None,
    };
    change(&mut wanted);
    wanted
}

fn inactive(object: &mut Value) {
    object["spec"]["active"] = false.into();
}

fn suspended(object: &mut Value) {
    inactive(object);
    object["metadata"]["annotations"] = json!({ "htc.cern.ch/suspended": "true" });
}

fn deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
}

fn same(_: &mut Value) {}

fn none(_: &mut Wanted) {}

type OfWanted = fn(&mut Wanted);
type OfSeen = fn(&mut Value);

#[rstest]
// Nothing is given back while jobs are, or may be, in HTCondor.
#[case::evicted(EVICTED, same, |w: &mut Wanted| w.in_use = true, None)]
#[case::evicted_and_none_is_left(EVICTED, same, none, Some(Step::GiveBack))]
#[case::deactivated("QuotaReserved Admitted", inactive, |w: &mut Wanted| w.in_use = true, None)]
#[case::deactivated_and_none_is_left("QuotaReserved Admitted", inactive, none, Some(Step::GiveBack))]
#[case::given_back("!QuotaReserved !Admitted Evicted/Preempted", same, none, None)]
#[case::suspended_while_jobs_run(ADMITTED, same, |w: &mut Wanted| (w.suspend, w.in_use) = (true, true), None)]
#[case::suspended_with_all_held(ADMITTED, same, |w: &mut Wanted| w.suspend = true, Some(Step::Deactivate))]
#[case::suspended_for_long("!QuotaReserved", suspended, |w: &mut Wanted| w.suspend = true, None)]
#[case::resumed("!QuotaReserved", suspended, none, Some(Step::Activate))]
#[case::somebody_else_has_deactivated_it("!QuotaReserved", inactive, none, None)]
#[case::and_it_was_suspended("!QuotaReserved", inactive, |w: &mut Wanted| w.suspend = true, None)]
#[case::deleted_while_jobs_run(ADMITTED, deleting, |w: &mut Wanted| w.in_use = true, None)]
#[case::deleted(ADMITTED, deleting, none, Some(Step::LetGo))]
// What is over.
#[case::ended(ADMITTED, same, |w: &mut Wanted| w.ended = Some(true), Some(Step::Finish { failed: true }))]
#[case::ended_and_not_gone(ADMITTED, same, |w: &mut Wanted| (w.ended, w.in_use, w.left) = (Some(true), true, 3), None)]
#[case::finished("QuotaReserved Admitted Finished", same, |w: &mut Wanted| w.ended = Some(false), Some(Step::LetGo))]
#[case::finished_by_somebody("QuotaReserved Admitted Finished", same, |w: &mut Wanted| w.in_use = true, None)]
// Progress.
#[case::accepted(ADMITTED, same, |w: &mut Wanted| w.accepted = true, Some(Step::Progress { reclaim: None, ready: true }))]
#[case::ready("QuotaReserved Admitted PodsReady", same, |w: &mut Wanted| w.accepted = true, None)]
#[case::one_is_left("QuotaReserved Admitted PodsReady", same, |w: &mut Wanted| w.left = 1, Some(Step::Progress { reclaim: Some(2), ready: false }))]
#[case::more_are_left_than_run("QuotaReserved Admitted", same, |w: &mut Wanted| w.left = 9, None)]
#[case::told_so("QuotaReserved Admitted", |o: &mut Value| o["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]), |w: &mut Wanted| w.left = 1, None)]
#[case::deleted_htcjob("QuotaReserved Admitted", same, |w: &mut Wanted| (w.deleting, w.left, w.in_use) = (true, 2, true), Some(Step::Progress { reclaim: Some(1), ready: false }))]
// In line.
#[case::waits("!QuotaReserved", same, none, None)]
#[case::in_another_queue("!QuotaReserved", same, |w: &mut Wanted| w.queue = Some("other".to_owned()), Some(Step::Change))]
#[case::bound_to_it("!QuotaReserved", same, |w: &mut Wanted| (w.queue, w.bound) = (Some("other".to_owned()), true), None)]
#[case::in_another_queue_too_late(ADMITTED, same, |w: &mut Wanted| w.queue = Some("other".to_owned()), None)]
#[case::fewer_at_a_time("!QuotaReserved", same, |w: &mut Wanted| w.count = 2, Some(Step::Change))]
#[case::in_no_queue("!QuotaReserved", same, |w: &mut Wanted| w.queue = None, Some(Step::Delete))]
#[case::in_no_queue_and_deleted("!QuotaReserved", deleting, |w: &mut Wanted| w.queue = None, Some(Step::LetGo))]
#[case::of_somebody_else(EVICTED, |o: &mut Value| o["metadata"]["ownerReferences"][0]["uid"] = "v".into(), none, None)]
fn one_step_at_a_time(
    #[case] said: &str,
    #[case] of_seen: OfSeen,
    #[case] of_wanted: OfWanted,
    #[case] step: Option<Step>,
) {
    assert_eq!(next(&wanted(of_wanted), Some(&seen(said, of_seen))), step);
}

#[rstest]
#[case::new(none, true)]
#[case::in_no_queue(|w: &mut Wanted| w.queue = None, false)]
#[case::being_deleted(|w: &mut Wanted| w.deleting = true, false)]
#[case::over(|w: &mut Wanted| w.ended = Some(false), false)]
// It keeps its place in the line.
#[case::suspended(|w: &mut Wanted| w.suspend = true, true)]
fn one_is_made_for_each_that_is_to_run(#[case] of_wanted: OfWanted, #[case] made: bool) {
    assert_eq!(next(&wanted(of_wanted), None), made.then_some(Step::Create));
}

#[rstest]
#[case::admitted(ADMITTED, same, Some(2))]
// `Admitted` alone is a trap: it stays after an eviction.
#[case::evicted(EVICTED, same, None)]
#[case::deactivated(ADMITTED, inactive, None)]
#[case::being_deleted(ADMITTED, deleting, None)]
#[case::checks("QuotaReserved !Admitted", same, None)]
#[case::finished("QuotaReserved Admitted Finished", same, None)]
#[case::waits("!QuotaReserved", same, None)]
#[case::partly_over(ADMITTED, |o: &mut Value| o["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]), Some(1))]
fn room_is_what_is_admitted(#[case] said: &str, #[case] of_seen: OfSeen, #[case] room: Option<u32>) {
    assert_eq!(seen(said, of_seen).room(), room);
}

#[rstest]
#[case("!QuotaReserved/WaitingForQuota", same, Reason::WaitingForQuota, "LocalQueue q: words of !QuotaReserved")]
#[case("!QuotaReserved/Pending", same, Reason::WaitingForQuota, "LocalQueue q: words of !QuotaReserved")]
#[case("!QuotaReserved/Inadmissible", same, Reason::Inadmissible, "LocalQueue q: words of !QuotaReserved")]
#[case("!QuotaReserved/Other", same, Reason::PendingEvaluation, "LocalQueue q: words of !QuotaReserved")]
#[case("QuotaReserved !Admitted", same, Reason::UnsatisfiedAdmissionChecks, "has quota for it: words of !Admitted")]
#[case(EVICTED, same, Reason::PendingEvaluation, "Kueue evicts Workload htcjob-u (Preempted): words of Evicted")]
#[case("!QuotaReserved Evicted/Deactivated", inactive, Reason::Suspended, "is deactivated (words of Evicted): set its")]
#[case(ADMITTED, deleting, Reason::PendingEvaluation, "is being deleted")]
#[case("", same, Reason::PendingEvaluation, "Kueue has said nothing of Workload htcjob-u")]
fn who_waits_is_told_why(#[case] said: &str, #[case] of_seen: OfSeen, #[case] reason: Reason, #[case] words: &str) {
    let wait = seen(said, of_seen).wait();
    assert!(wait.reason == reason && wait.message.contains(words), "{wait:?}");
}

fn now() -> Time {
    Time(jiff::Timestamp::from_second(0).unwrap())
}

#[test]
fn quota_is_given_back_as_kueues_own_integrations_do() {
    let seen = seen("QuotaReserved Admitted Evicted/Preempted PodsReady", same);
    let (of_status, body) = patch(&Step::GiveBack, &wanted(none), &seen, &now()).unwrap();
    assert!(of_status && body["status"]["admission"].is_null() && body["status"].get("admission").is_some());
    assert_eq!(body["metadata"], json!({ "uid": "w", "resourceVersion": "7" }));
    let told: Vec<String> = body["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|told| [&told["type"], &told["status"], &told["reason"]].map(|text| text.as_str().unwrap()).join(" "))
        .collect();
    let wanted = [
        "QuotaReserved False PendingEvaluation",
        "Admitted False NoReservation",
        "Evicted True Preempted",
        "PodsReady False WaitForStart",
        "Requeued True Preempted",
    ];
    assert_eq!(told, wanted);
}

#[test]
fn what_is_requested_is_not_the_clusters() {
    let made = workload(&wanted(|wanted| wanted.class = Some("high".to_owned())), Some(5));
    let pod_set = &made["spec"]["podSets"][0];
    let container = &pod_set["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({ "requests": { "htc.cern.ch/jobs": "1", "htc.cern.ch/cpus": "4" } }));
    assert_eq!((&pod_set["count"], &pod_set["minCount"]), (&json!(3), &json!(1)));
    assert_eq!(made["metadata"]["name"], name(&"u".into()));
    assert_eq!(made["metadata"]["annotations"], json!({ "htc.cern.ch/htcjob": "fit" }));
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassRef"]["name"]), (&json!(5), &json!("high")));
    let single = workload(&wanted(|wanted| (wanted.count, wanted.suspend) = (1, true)), None);
    assert!(single["spec"]["podSets"][0].get("minCount").is_none() && single["spec"]["active"] == false, "{single:#}");
    assert_eq!(single["metadata"]["annotations"]["htc.cern.ch/suspended"], "true");
}

/// Nodes are the cluster's: what Pods request has the names that nodes have.
#[test]
fn pods_request_what_is_the_clusters() {
    let spec = json!({ "restartPolicy": "Never", "containers": [{ "name": "job", "resources": { "requests": { "cpu": "1" } } }] });
    let of_pods = wanted(|wanted| (wanted.pod, wanted.count) = (Some(spec.clone()), 2));
    let pod_set = &workload(&of_pods, None)["spec"]["podSets"][0];
    assert_eq!((&pod_set["template"]["spec"], &pod_set["count"], &pod_set["minCount"]), (&spec, &json!(2), &json!(1)));
    let words = |wanted: &Wanted| {
        let step = Step::Progress { reclaim: None, ready: true };
        let (_, body) = patch(&step, wanted, &seen(ADMITTED, same), &now()).unwrap();
        body["status"]["conditions"].as_array().unwrap().last().unwrap()["message"].clone()
    };
    assert_eq!(words(&of_pods), "As many Pods have started as have room");
    assert_eq!(words(&wanted(none)), "HTCondor has accepted jobs");
}

fn queues() -> Queues {
    let queues = Queues::with_kueue(Queueing::Kueue, &[Resource::Jobs], Metrics::default(), Vec::new(), &[]);
    queues.with(|state| state.kueue.listed = Some(Ok(())));
    queues.listed(&HashSet::new());
    queues
}

fn object() -> Observed {
    serde_json::from_value(json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
        "metadata": {
            "name": "fit", "namespace": "ns", "uid": "u", "finalizers": [FINALIZER],
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { QUEUE_NAME: "q" },
        },
        "spec": { "script": { "image": "i", "command": "c", "source": "s" }, "queue": 3 },
    }))
    .unwrap()
}

fn decided(queues: &Queues, room: [&str; 3]) {
    decided_room(queues, false, room);
}

/// Progress of an object of three jobs, none of which has begun.
fn progress() -> Progress {
    Progress {
        at_a_time: 3,
        left: 3,
        suspend: false,
        idle: false,
        deleting: false,
        accepted: false,
        ended: None,
        pod: None,
    }
}

fn decided_room(queues: &Queues, unknown: bool, [uses, asks, gives_back]: [&str; 3]) {
    let object = object();
    let [uses, asks, gives_back] = [uses, asks, gives_back].map(|text| text.parse::<Indices>().unwrap());
    let room = Room { uses, unknown, asks, gives_back, keeps_what_it_uses: true, failed_at: None };
    let (uid, name) = (Uid::from("u"), ObjectName { namespace: "ns".to_owned(), name: object.name_any() });
    queues.decided(&Decided {
        object: &object,
        uid: &uid,
        name: &name,
        bound: None,
        seen_in: None,
        granted: &Indices::default(),
        demand: Some(Demand::one()),
        room: &room,
        over: false,
        progress: Some(progress()),
    });
}

fn see(queues: &Queues, said: &str, version: u64) {
    let mut seen = seen(said, same);
    seen.version = version;
    queues.with(|state| state.kueue.see("u".into(), seen));
}

fn fact(queues: &Queues, holds: bool) -> Queued {
    let (uid, object) = (Uid::from("u"), object());
    queues.fact(&Asker { uid: &uid, namespace: "ns", object: &object, bound: None, seen_in: None, holds }).unwrap()
}

fn granted(queues: &Queues) -> String {
    queues.plan().grants.iter().map(|grant| grant.indices.to_string()).collect::<Vec<_>>().join(" ")
}

fn steps(queues: &Queues) -> Vec<Step> {
    let writes = queues.kueue_writes();
    queues.with(|state| state.kueue.writing.clear());
    let step = |what: What| match what {
        What::Step(step, ..) => step,
        What::Orphan(_) => Step::LetGo,
    };
    writes.now.into_iter().map(|write| step(write.what)).collect()
}

#[test]
fn what_is_admitted_is_granted_and_what_is_evicted_is_held_before_it_is_given_back() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    assert_eq!((granted(&queues), steps(&queues)), (String::new(), vec![Step::Create]));
    see(&queues, "!QuotaReserved/WaitingForQuota", 1);
    assert_eq!(granted(&queues), "");
    let waits = fact(&queues, false);
    assert!(waits.kind == QueueKind::LocalQueue && !waits.drained, "{waits:?}");
    see(&queues, ADMITTED, 2);
    assert_eq!((granted(&queues), granted(&queues)), ("0-1".to_owned(), String::new()), "two are admitted, once");
    decided(&queues, ["0-1", "2", ""]);
    assert_eq!(granted(&queues), "");
    assert_eq!(fact(&queues, false).waits, None);
    // The first of them has ended.
    decided(&queues, ["1", "2", "0"]);
    assert_eq!(granted(&queues), "2");
    see(&queues, EVICTED, 3);
    assert!(fact(&queues, false).drained && steps(&queues).is_empty(), "they run");
    // Older news changes nothing.
    see(&queues, ADMITTED, 2);
    assert!(fact(&queues, true).drained && granted(&queues).is_empty());
    // Held, and not proved to be.
    decided(&queues, ["", "", ""]);
    assert!(steps(&queues).is_empty());
    decided(&queues, ["", "", "1-2"]);
    assert_eq!(steps(&queues), [Step::GiveBack]);
    assert!(fact(&queues, true).drained, "they stay held until it is admitted again");
    see(&queues, "!QuotaReserved/PendingEvaluation Evicted/Preempted", 4);
    assert!(fact(&queues, true).drained && granted(&queues).is_empty() && steps(&queues).is_empty());
    see(&queues, ADMITTED, 5);
    assert!(!fact(&queues, true).drained);
    decided(&queues, ["", "1-2", ""]);
    assert_eq!(granted(&queues), "1-2");
}

/// Words that change are told, also where the reason stays.
#[test]
fn new_words_wake_the_htcjob() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, "!QuotaReserved/WaitingForQuota", 1);
    fact(&queues, false);
    assert!(queues.plan().wake.is_empty());
    let mut other = seen("!QuotaReserved/WaitingForQuota", same);
    (other.version, other.conditions[0].message) = (2, "one more is needed".to_owned());
    queues.with(|state| state.kueue.see("u".into(), other));
    assert_eq!(queues.plan().wake.len(), 1);
    assert!(fact(&queues, false).waits.unwrap().message.contains("one more is needed"));
}

/// What came to pass and was over before the `HTCJob` looked is told when it comes again.
#[test]
fn who_has_looked_is_woken_again_for_the_same() {
    let queues = queues();
    decided(&queues, ["", "", ""]);
    see(&queues, ADMITTED, 1);
    assert_eq!(queues.plan().wake.len(), 1);
    see(&queues, "!QuotaReserved/WaitingForQuota Evicted/Preempted", 2);
    assert!(fact(&queues, true).drained && queues.plan().wake.is_empty(), "it knows that");
    see(&queues, ADMITTED, 3);
    assert_eq!((queues.plan().wake.len(), queues.plan().wake.len()), (1, 0));
}

/// That a Workload is not seen proves nothing: what runs goes on, and nothing new starts.
#[test]
fn unknown_is_not_absent() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, ADMITTED, 1);
    granted(&queues);
    decided(&queues, ["0", "2", "1"]);
    queues.with(|state| state.kueue.gone(&("ns".into(), "u".into()), 1));
    let told = fact(&queues, false);
    assert!(!told.drained && granted(&queues).is_empty(), "{told:?}");
    assert_eq!(steps(&queues), [Step::Create]);
    // What is being written may have been: nothing is granted before that is known.
    see(&queues, ADMITTED, 2);
    queues.with(|state| state.kueue.writing.insert("u".into()));
    assert!(granted(&queues).is_empty());
    queues.with(|state| state.kueue.writing.clear());
    assert_eq!(granted(&queues), "2");
    // What is held stays so.
    assert!(!fact(&queues, true).drained);
    queues.with(|state| state.kueue.listed = Some(Err("forbidden".to_owned())));
    assert!(steps(&queues).is_empty() && fact(&queues, true).drained && !fact(&queues, false).drained);
    queues.with(|state| {
        state.kueue.listed = None;
        state.kueue.workloads.clear();
    });
    assert!(fact(&queues, true).drained && !fact(&queues, false).drained);
}

/// Pods that are not known yet count, and stop nothing: there may be none.
#[test]
fn what_may_be_there_keeps_its_quota() {
    let queues = queues();
    see(&queues, EVICTED, 1);
    decided_room(&queues, true, ["0-2", "", ""]);
    assert!(steps(&queues).is_empty() && !fact(&queues, false).drained);
    decided(&queues, ["0", "", ""]);
    assert!(steps(&queues).is_empty() && fact(&queues, false).drained);
    decided(&queues, ["", "", ""]);
    assert_eq!((steps(&queues), fact(&queues, false).drained), (vec![Step::GiveBack], false));
}

/// As with HTCQueues: how many wait, how many HTCJobs are in which state, and how long it took.
#[test]
fn who_waits_for_kueue_is_measured() {
    let queues = queues();
    let text = |queues: &Queues| {
        let plan = queues.plan();
        queues.granted(&plan.grants, &[]);
        queues.metrics.queues(plan.measured);
        queues.metrics.text().unwrap()
    };
    decided(&queues, ["", "0-2", ""]);
    see(&queues, "!QuotaReserved/WaitingForQuota", 1);
    let waits = text(&queues);
    for line in ["queue_waiting_jobs{queue=\"Kueue\"} 3", "queue_htcjobs{state=\"Pending\"} 1"] {
        assert!(waits.contains(line), "{line}: {waits}");
    }
    see(&queues, "!QuotaReserved/Inadmissible", 2);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Inadmissible\"} 1"));
    see(&queues, ADMITTED, 3);
    text(&queues);
    let runs = text(&queues);
    for line in [
        "queue_waiting_jobs{queue=\"Kueue\"} 1",
        "queue_htcjobs{state=\"PartlyAdmitted\"} 1",
        "queue_granted_jobs_total 2",
        "queue_time_to_grant_seconds_count 1",
    ] {
        assert!(runs.contains(line), "{line}: {runs}");
    }
    see(&queues, EVICTED, 4);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Draining\"} 1"));
}
