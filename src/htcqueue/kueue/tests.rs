//! Writes to a Workload, and grants to an `HTCJob`, without an API server and a ledger.

mod left;
mod rules;

use std::collections::HashSet;

use htc_api::{FINALIZER, ObjectName, ObservedHTCJob, QUEUE_NAME_LABEL, Reason};
use htc_machine::amounts::{Amounts, Resource, ResourceSet};
use htc_machine::facts::{QueueFacts, QueueKind};
use htc_machine::progress::Progress;
use htc_machine::quota_usage::QuotaUsage;
use htc_machine::{Indices, Uid};
use htc_support::forget::Forget as _;
use htc_support::metrics::Metrics;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use rstest::rstest;
use serde_json::{Value, json};

use super::name;
use super::plan::WriteTarget;
use crate::htcqueue::assignment::ListingError;
use crate::htcqueue::kueue::step::{DesiredWorkload, WorkloadStep, next_step, patch, workload};
use crate::htcqueue::kueue::workload::KueueWorkload;
use crate::htcqueue::policy::JobResources;
use crate::htcqueue::state::{DecidedUsage, QueueQuery, Queueing, Queues};

const EVICTED: &str = "QuotaReserved Admitted Evicted/Preempted";
const ADMITTED: &str = "QuotaReserved Admitted";

/// Returns a Workload of three jobs. `said`: its conditions, `!` before those that are False, with a reason after
/// `/`.
fn seen(said: &str, change: impl FnOnce(&mut Value)) -> KueueWorkload {
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
    KueueWorkload::of(&object).unwrap()
}

fn wanted(change: impl FnOnce(&mut DesiredWorkload)) -> DesiredWorkload {
    let mut wanted = DesiredWorkload {
        uid: "u".into(),
        namespace: "ns".to_owned(),
        name: "fit".to_owned(),
        queue: Some("q".to_owned()),
        queue_is_fixed: false,
        priority_class: None,
        per_job: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 4)]),
        unknown: ResourceSet::default(),
        resources: vec![Resource::Jobs, Resource::Cpus, Resource::Gpus],
        count: 3,
        unfinished: 3,
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

fn none(_: &mut DesiredWorkload) {}

type OfWanted = fn(&mut DesiredWorkload);
type OfSeen = fn(&mut Value);

#[rstest]
// No quota is given back while jobs are, or may be, in HTCondor.
#[case::evicted_with_running_jobs(EVICTED, same, |w: &mut DesiredWorkload| w.in_use = true, None)]
#[case::evicted_without_jobs(EVICTED, same, none, Some(WorkloadStep::ReleaseQuota))]
#[case::deactivated_with_running_jobs("QuotaReserved Admitted", inactive, |w: &mut DesiredWorkload| w.in_use = true, None)]
#[case::deactivated_without_jobs("QuotaReserved Admitted", inactive, none, Some(WorkloadStep::ReleaseQuota))]
#[case::quota_released("!QuotaReserved !Admitted Evicted/Preempted", same, none, None)]
#[case::suspended_while_jobs_run(ADMITTED, same, |w: &mut DesiredWorkload| (w.suspend, w.in_use) = (true, true), None)]
#[case::suspended_with_all_held(ADMITTED, same, |w: &mut DesiredWorkload| w.suspend = true, Some(WorkloadStep::Deactivate))]
#[case::already_suspended("!QuotaReserved", suspended, |w: &mut DesiredWorkload| w.suspend = true, None)]
#[case::resumed("!QuotaReserved", suspended, none, Some(WorkloadStep::Activate))]
#[case::deactivated_by_another("!QuotaReserved", inactive, none, None)]
#[case::deactivated_by_another_and_suspended("!QuotaReserved", inactive, |w: &mut DesiredWorkload| w.suspend = true, None)]
#[case::deleted_while_jobs_run(ADMITTED, deleting, |w: &mut DesiredWorkload| w.in_use = true, None)]
#[case::deleted(ADMITTED, deleting, none, Some(WorkloadStep::RemoveFinalizer))]
// Ended jobs.
#[case::ended(ADMITTED, same, |w: &mut DesiredWorkload| w.ended = Some(true), Some(WorkloadStep::Finish { failed: true }))]
#[case::ended_with_running_jobs(ADMITTED, same, |w: &mut DesiredWorkload| (w.ended, w.in_use, w.unfinished) = (Some(true), true, 3), None)]
#[case::finished("QuotaReserved Admitted Finished", same, |w: &mut DesiredWorkload| w.ended = Some(false), Some(WorkloadStep::RemoveFinalizer))]
#[case::finished_by_another("QuotaReserved Admitted Finished", same, |w: &mut DesiredWorkload| w.in_use = true, None)]
// Progress.
#[case::accepted(ADMITTED, same, |w: &mut DesiredWorkload| w.accepted = true, Some(WorkloadStep::Progress { reclaim: None, ready: true }))]
#[case::ready("QuotaReserved Admitted PodsReady", same, |w: &mut DesiredWorkload| w.accepted = true, None)]
#[case::one_job_left("QuotaReserved Admitted PodsReady", same, |w: &mut DesiredWorkload| w.unfinished = 1, Some(WorkloadStep::Progress { reclaim: Some(2), ready: false }))]
#[case::more_jobs_left_than_admitted("QuotaReserved Admitted", same, |w: &mut DesiredWorkload| w.unfinished = 9, None)]
#[case::already_reclaimed("QuotaReserved Admitted", |o: &mut Value| o["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]), |w: &mut DesiredWorkload| w.unfinished = 1, None)]
#[case::deleted_htcjob("QuotaReserved Admitted", same, |w: &mut DesiredWorkload| (w.deleting, w.unfinished, w.in_use) = (true, 2, true), Some(WorkloadStep::Progress { reclaim: Some(1), ready: false }))]
// Waiting for quota.
#[case::waits("!QuotaReserved", same, none, None)]
#[case::in_another_queue("!QuotaReserved", same, |w: &mut DesiredWorkload| w.queue = Some("other".to_owned()), Some(WorkloadStep::Change))]
#[case::queue_is_fixed("!QuotaReserved", same, |w: &mut DesiredWorkload| (w.queue, w.queue_is_fixed) = (Some("other".to_owned()), true), None)]
#[case::in_another_queue_after_admission(ADMITTED, same, |w: &mut DesiredWorkload| w.queue = Some("other".to_owned()), None)]
#[case::lower_parallelism("!QuotaReserved", same, |w: &mut DesiredWorkload| w.count = 2, Some(WorkloadStep::Change))]
#[case::in_no_queue("!QuotaReserved", same, |w: &mut DesiredWorkload| w.queue = None, Some(WorkloadStep::Delete))]
#[case::in_no_queue_and_deleted("!QuotaReserved", deleting, |w: &mut DesiredWorkload| w.queue = None, Some(WorkloadStep::RemoveFinalizer))]
#[case::foreign_owner(EVICTED, |o: &mut Value| o["metadata"]["ownerReferences"][0]["uid"] = "v".into(), none, None)]
fn workload_takes_one_step_at_a_time(
    #[case] said: &str,
    #[case] of_seen: OfSeen,
    #[case] of_wanted: OfWanted,
    #[case] step: Option<WorkloadStep>,
) {
    assert_eq!(next_step(&wanted(of_wanted), Some(&seen(said, of_seen))), step);
}

#[rstest]
#[case::new(none, true)]
#[case::in_no_queue(|w: &mut DesiredWorkload| w.queue = None, false)]
#[case::being_deleted(|w: &mut DesiredWorkload| w.deleting = true, false)]
#[case::ended(|w: &mut DesiredWorkload| w.ended = Some(false), false)]
// It keeps its position in the queue.
#[case::suspended(|w: &mut DesiredWorkload| w.suspend = true, true)]
fn workload_is_created_for_each_htcjob_that_is_to_run(#[case] of_wanted: OfWanted, #[case] made: bool) {
    assert_eq!(next_step(&wanted(of_wanted), None), made.then_some(WorkloadStep::Create));
}

#[rstest]
#[case::admitted(ADMITTED, same, Some(2))]
// `Admitted` alone is a trap: it stays after an eviction.
#[case::evicted_with_running_jobs(EVICTED, same, None)]
#[case::deactivated_with_running_jobs(ADMITTED, inactive, None)]
#[case::being_deleted(ADMITTED, deleting, None)]
#[case::checks("QuotaReserved !Admitted", same, None)]
#[case::finished("QuotaReserved Admitted Finished", same, None)]
#[case::waits("!QuotaReserved", same, None)]
#[case::partly_reclaimed(ADMITTED, |o: &mut Value| o["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]), Some(1))]
fn runnable_jobs_are_the_admitted_ones(#[case] said: &str, #[case] of_seen: OfSeen, #[case] room: Option<u32>) {
    assert_eq!(seen(said, of_seen).runnable_jobs(), room);
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
fn wait_reason_follows_the_workload(
    #[case] said: &str,
    #[case] of_seen: OfSeen,
    #[case] reason: Reason,
    #[case] words: &str,
) {
    let wait = seen(said, of_seen).wait();
    assert!(wait.reason == reason && wait.message.contains(words), "{wait:?}");
}

fn now() -> Time {
    Time(jiff::Timestamp::from_second(0).unwrap())
}

#[test]
fn quota_is_released_as_by_the_integrations_of_kueue() {
    let seen = seen("QuotaReserved Admitted Evicted/Preempted PodsReady", same);
    let (of_status, body) = patch(&WorkloadStep::ReleaseQuota, &wanted(none), &seen, &now()).unwrap();
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
fn workload_of_htcondor_jobs_requests_custom_resources() {
    let made = workload(&wanted(|wanted| wanted.priority_class = Some("high".to_owned())), Some(5));
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

/// Nodes are the cluster's: requests of Pods use the names that nodes have.
#[test]
fn workload_of_pods_requests_cluster_resources() {
    let spec = json!({ "restartPolicy": "Never", "containers": [{ "name": "job", "resources": { "requests": { "cpu": "1" } } }] });
    let of_pods = wanted(|wanted| (wanted.pod, wanted.count) = (Some(spec.clone()), 2));
    let pod_set = &workload(&of_pods, None)["spec"]["podSets"][0];
    assert_eq!((&pod_set["template"]["spec"], &pod_set["count"], &pod_set["minCount"]), (&spec, &json!(2), &json!(1)));
    let words = |wanted: &DesiredWorkload| {
        let step = WorkloadStep::Progress { reclaim: None, ready: true };
        let (_, body) = patch(&step, wanted, &seen(ADMITTED, same), &now()).unwrap();
        body["status"]["conditions"].as_array().unwrap().last().unwrap()["message"].clone()
    };
    assert_eq!(words(&of_pods), "As many Pods have started as have quota");
    assert_eq!(words(&wanted(none)), "HTCondor has accepted jobs");
}

fn queues() -> Queues {
    let queues = Queues::with_kueue(Queueing::Kueue, &[Resource::Jobs], Metrics::default(), Vec::new(), &[]);
    queues.with(|state| state.kueue.listed = Some(Ok(())));
    queues.retain(&HashSet::new());
    queues
}

fn object() -> ObservedHTCJob {
    serde_json::from_value(json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
        "metadata": {
            "name": "fit", "namespace": "ns", "uid": "u", "finalizers": [FINALIZER],
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { QUEUE_NAME_LABEL: "q" },
        },
        "spec": { "script": { "image": "i", "command": "c", "source": "s" }, "queue": 3 },
    }))
    .unwrap()
}

fn decided(queues: &Queues, room: [&str; 3]) {
    decided_room(queues, false, room);
}

/// Returns the progress of an object of three jobs, none of which has begun.
fn progress() -> Progress {
    Progress { at_a_time: 3, unfinished: 3, suspend: false, idle: false, deleting: false, accepted: false, ended: None }
}

fn decided_room(queues: &Queues, unknown: bool, [uses, asks, gives_back]: [&str; 3]) {
    let object = object();
    let [uses, asks, gives_back] = [uses, asks, gives_back].map(|text| text.parse::<Indices>().unwrap());
    let room = QuotaUsage {
        used: uses,
        usage_unknown: unknown,
        requested: asks,
        returned: gives_back,
        grandfathered: true,
        failed_at: None,
    };
    let (uid, name) = (Uid::from("u"), ObjectName { namespace: "ns".to_owned(), name: object.name_any() });
    queues.record_decision(&DecidedUsage {
        object: &object,
        uid: &uid,
        name: &name,
        granting_queue: None,
        last_queue: None,
        granted: &Indices::default(),
        resources: Some(JobResources::one()),
        usage: room,
        finished: false,
        progress: Some(progress()),
        pod: None,
    });
}

fn see(queues: &Queues, said: &str, version: u64) {
    let mut seen = seen(said, same);
    seen.version = version;
    queues.with(|state| state.kueue.update_workload("u".into(), seen));
}

fn fact(queues: &Queues, holds: bool) -> QueueFacts {
    let (uid, object) = (Uid::from("u"), object());
    queues
        .queue_facts(&QueueQuery {
            uid: &uid,
            namespace: "ns",
            object: &object,
            granting_queue: None,
            last_queue: None,
            has_held_jobs: holds,
        })
        .unwrap()
}

fn granted(queues: &Queues) -> String {
    queues.plan().grants.iter().map(|grant| grant.indices.to_string()).collect::<Vec<_>>().join(" ")
}

fn steps(queues: &Queues) -> Vec<WorkloadStep> {
    let writes = queues.kueue_writes();
    queues.with(|state| state.kueue.writing.clear());
    let step = |what: WriteTarget| match what {
        WriteTarget::Step(step, ..) => step,
        WriteTarget::Orphan(_) => WorkloadStep::RemoveFinalizer,
    };
    writes.now.into_iter().map(|write| step(write.what)).collect()
}

#[test]
fn admission_grants_and_eviction_holds_before_quota_is_released() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    assert_eq!((granted(&queues), steps(&queues)), (String::new(), vec![WorkloadStep::Create]));
    see(&queues, "!QuotaReserved/WaitingForQuota", 1);
    assert_eq!(granted(&queues), "");
    let waits = fact(&queues, false);
    assert!(waits.kind == QueueKind::LocalQueue && !waits.drained, "{waits:?}");
    see(&queues, ADMITTED, 2);
    assert_eq!((granted(&queues), granted(&queues)), ("0-1".to_owned(), String::new()), "two are admitted, once");
    decided(&queues, ["0-1", "2", ""]);
    assert_eq!(granted(&queues), "");
    assert_eq!(fact(&queues, false).wait, None);
    // The first of them has ended.
    decided(&queues, ["1", "2", "0"]);
    assert_eq!(granted(&queues), "2");
    see(&queues, EVICTED, 3);
    assert!(fact(&queues, false).drained && steps(&queues).is_empty(), "they run");
    // An older version changes nothing.
    see(&queues, ADMITTED, 2);
    assert!(fact(&queues, true).drained && granted(&queues).is_empty());
    // Held, without proof of that.
    decided(&queues, ["", "", ""]);
    assert!(steps(&queues).is_empty());
    decided(&queues, ["", "", "1-2"]);
    assert_eq!(steps(&queues), [WorkloadStep::ReleaseQuota]);
    assert!(fact(&queues, true).drained, "they stay held until it is admitted again");
    see(&queues, "!QuotaReserved/PendingEvaluation Evicted/Preempted", 4);
    assert!(fact(&queues, true).drained && granted(&queues).is_empty() && steps(&queues).is_empty());
    see(&queues, ADMITTED, 5);
    assert!(!fact(&queues, true).drained);
    decided(&queues, ["", "1-2", ""]);
    assert_eq!(granted(&queues), "1-2");
}

/// A changed message wakes the `HTCJob`, also where the reason stays.
#[test]
fn changed_message_wakes_the_htcjob() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, "!QuotaReserved/WaitingForQuota", 1);
    fact(&queues, false);
    assert!(queues.plan().wake.is_empty());
    let mut other = seen("!QuotaReserved/WaitingForQuota", same);
    (other.version, other.conditions[0].message) = (2, "one more is needed".to_owned());
    queues.with(|state| state.kueue.update_workload("u".into(), other));
    assert_eq!(queues.plan().wake.len(), 1);
    assert!(fact(&queues, false).wait.unwrap().message.contains("one more is needed"));
}

/// A state that was over before the `HTCJob` was reconciled wakes it when it comes again.
#[test]
fn repeated_admission_wakes_the_htcjob_again() {
    let queues = queues();
    decided(&queues, ["", "", ""]);
    see(&queues, ADMITTED, 1);
    assert_eq!(queues.plan().wake.len(), 1);
    see(&queues, "!QuotaReserved/WaitingForQuota Evicted/Preempted", 2);
    assert!(fact(&queues, true).drained && queues.plan().wake.is_empty(), "it knows that");
    see(&queues, ADMITTED, 3);
    assert_eq!((queues.plan().wake.len(), queues.plan().wake.len()), (1, 0));
}

/// A Workload that is not seen proves nothing: running jobs go on, and nothing new starts.
#[test]
fn unknown_is_not_absent() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, ADMITTED, 1);
    granted(&queues);
    decided(&queues, ["0", "2", "1"]);
    queues.with(|state| state.kueue.remove_workload(&("ns".into(), "u".into()), 1));
    let told = fact(&queues, false);
    assert!(!told.drained && granted(&queues).is_empty(), "{told:?}");
    assert_eq!(steps(&queues), [WorkloadStep::Create]);
    // A write that is under way may have been carried out: nothing is granted before that is known.
    see(&queues, ADMITTED, 2);
    queues.with(|state| state.kueue.writing.insert("u".into()));
    assert!(granted(&queues).is_empty());
    queues.with(|state| state.kueue.writing.clear());
    assert_eq!(granted(&queues), "2");
    // Held jobs stay held.
    assert!(!fact(&queues, true).drained);
    queues.with(|state| state.kueue.listed = Some(Err(ListingError::Workloads("forbidden".to_owned()))));
    assert!(steps(&queues).is_empty() && fact(&queues, true).drained && !fact(&queues, false).drained);
    queues.with(|state| {
        state.kueue.listed = None;
        state.kueue.workloads.clear();
    });
    assert!(fact(&queues, true).drained && !fact(&queues, false).drained);
}

/// Pods that are not known yet count, and hold up nothing: there may be none.
#[test]
fn unknown_pods_keep_their_quota() {
    let queues = queues();
    see(&queues, EVICTED, 1);
    decided_room(&queues, true, ["0-2", "", ""]);
    assert!(steps(&queues).is_empty() && !fact(&queues, false).drained);
    decided(&queues, ["0", "", ""]);
    assert!(steps(&queues).is_empty() && fact(&queues, false).drained);
    decided(&queues, ["", "", ""]);
    assert_eq!((steps(&queues), fact(&queues, false).drained), (vec![WorkloadStep::ReleaseQuota], false));
}

/// As with HTCQueues: number of waiting jobs, HTCJobs in each state, and time to the grant.
#[test]
fn htcjobs_waiting_for_kueue_are_measured() {
    let queues = queues();
    let text = |queues: &Queues| {
        let plan = queues.plan();
        queues.confirm_grants(&plan.grants, &[]);
        queues.metrics.queues(plan.measured);
        queues.metrics.text().unwrap()
    };
    decided_room(&queues, true, ["", "", ""]);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Unknown\"} 1"));
    decided(&queues, ["", "", ""]);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Inactive\"} 1"));
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
    decided(&queues, ["0-1", "", ""]);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Admitted\"} 1"));
    see(&queues, EVICTED, 4);
    assert!(text(&queues).contains("queue_htcjobs{state=\"Draining\"} 1"));
}
