//! Each rule by itself: what must not happen without it.

use std::sync::Arc;
use std::time::Instant;

use htc_machine::facts::QueueWait;

use super::*;
use crate::htcqueue::kueue::SILENT;
use crate::htcqueue::kueue::controller::{parse_workload, wait};
use crate::htcqueue::kueue::plan::missing;

fn with_finalizers(finalizers: &[&str]) -> impl FnOnce(&mut Value) + use<> {
    let finalizers = json!(finalizers);
    move |object| object["metadata"]["finalizers"] = finalizers
}

pub(super) fn not_held(object: &mut Value) {
    with_finalizers(&[])(object);
}

fn left_without_finalizer(object: &mut Value) {
    deleting(object);
    not_held(object);
}

fn annotated(object: &mut Value) {
    object["metadata"]["annotations"] = json!({ "htc.cern.ch/suspended": "true" });
}

fn reclaimed(object: &mut Value) {
    object["status"]["reclaimablePods"] = json!([{ "name": "jobs", "count": 2 }]);
}

#[test]
fn workload_owner_and_finalizers_are_parsed() {
    let seen = seen("", |object: &mut Value| {
        object["metadata"]["ownerReferences"] = json!([
            { "apiVersion": "a/v1", "kind": "Other", "name": "other", "uid": "o" },
            { "apiVersion": "a/v1", "kind": "HTCJob", "name": "fit", "uid": "u", "controller": true },
        ]);
        object["metadata"]["finalizers"] = json!(["other/finalizer"]);
        object["spec"].as_object_mut().unwrap().remove("active");
    });
    assert_eq!(seen.owner, Some(("fit".to_owned(), "u".into())));
    assert!(seen.active && !seen.is_held());
}

#[test]
fn admission_without_quota_reserved_is_ignored() {
    let assigned = |object: &mut Value| {
        object["status"]["admission"] = json!({ "podSetAssignments": [{ "name": "jobs", "count": 2 }] });
    };
    assert_eq!(seen("!QuotaReserved Admitted", assigned).runnable_jobs(), None);
}

#[rstest]
#[case("QuotaReserved !Admitted !Finished", same, Reason::UnsatisfiedAdmissionChecks, "has quota for it")]
#[case("QuotaReserved !Admitted !Evicted", same, Reason::UnsatisfiedAdmissionChecks, "has quota for it")]
#[case("!QuotaReserved/WaitingForQuota Evicted/Preempted", same, Reason::WaitingForQuota, "words of !QuotaReserved")]
#[case("!QuotaReserved/WaitingForQuota", suspended, Reason::PendingEvaluation, "becomes active once")]
#[case(
    "QuotaReserved Admitted Finished/Failed",
    same,
    Reason::Misconfigured,
    "is Finished (Failed: words of Finished); delete"
)]
// A reason of the operator's own is not one of Kueue's.
#[case("!QuotaReserved/Queued", same, Reason::PendingEvaluation, "words of !QuotaReserved")]
fn wait_reason_ignores_former_conditions(
    #[case] said: &str,
    #[case] of_seen: OfSeen,
    #[case] reason: Reason,
    #[case] words: &str,
) {
    let wait = seen(said, of_seen).wait();
    assert!(wait.reason == reason && wait.message.contains(words), "{wait:?}");
}

#[test]
fn only_an_active_workload_without_conditions_is_silent() {
    assert!(seen("", same).is_silent());
    assert!(!seen("!QuotaReserved", same).is_silent() && !seen("", inactive).is_silent());
    assert!(!seen("", deleting).is_silent());
}

#[rstest]
#[case::unqueued_with_foreign_finalizer("!QuotaReserved", left_without_finalizer, |w: &mut DesiredWorkload| w.queue = None)]
#[case::released_before(ADMITTED, left_without_finalizer, none)]
#[case::finished_by_another("QuotaReserved Admitted Finished", same, none)]
#[case::finished_and_in_use("QuotaReserved Admitted Finished", same, |w: &mut DesiredWorkload| (w.ended, w.in_use) = (Some(false), true))]
#[case::finished_and_released("QuotaReserved Admitted Finished", not_held, |w: &mut DesiredWorkload| w.ended = Some(false))]
// An HTCJob that is being deleted needs nothing more from Kueue.
#[case::suspended_and_deleted(ADMITTED, same, |w: &mut DesiredWorkload| (w.deleting, w.suspend) = (true, true))]
#[case::deleted_before_it_was_admitted("!QuotaReserved", same, |w: &mut DesiredWorkload| (w.deleting, w.accepted, w.count) = (true, true, 2))]
#[case::active_despite_the_annotation("!QuotaReserved", annotated, none)]
#[case::lower_parallelism_with_reclaimed_pods("!QuotaReserved", reclaimed, |w: &mut DesiredWorkload| w.count = 2)]
#[case::parallelism_zero("!QuotaReserved", same, |w: &mut DesiredWorkload| w.count = 0)]
#[case::reclaimed_pods_stay_reclaimed(ADMITTED, reclaimed, |w: &mut DesiredWorkload| w.unfinished = 2)]
fn settled_workload_is_not_written(#[case] said: &str, #[case] of_seen: OfSeen, #[case] of_wanted: OfWanted) {
    assert_eq!(next_step(&wanted(of_wanted), Some(&seen(said, of_seen))), None);
}

#[test]
fn no_workload_is_created_for_zero_jobs() {
    assert_eq!(next_step(&wanted(|wanted| wanted.count = 0), None), None);
}

#[test]
fn workload_has_a_finalizer_and_an_owner() {
    let made = workload(&wanted(none), None);
    assert_eq!(made["metadata"]["finalizers"], json!(["kueue.x-k8s.io/resource-in-use"]));
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["controller"], &owner["uid"]), (&json!(true), &json!("u")));
    assert!(
        made["spec"].get("priorityClassRef").is_none()
            && made["metadata"]["annotations"].get("htc.cern.ch/suspended").is_none()
    );
}

fn body(step: &WorkloadStep, seen: &KueueWorkload) -> Value {
    patch(step, &wanted(none), seen, &now()).unwrap().1
}

fn told(body: &Value, kind: &str) -> Value {
    let conditions = body["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|told| told["type"] == kind).cloned().unwrap_or_default()
}

#[test]
fn only_workloads_suspended_by_the_operator_are_marked() {
    let deactivated = body(&WorkloadStep::Deactivate, &seen(ADMITTED, same));
    assert_eq!(deactivated["spec"]["active"], false);
    assert_eq!(deactivated["metadata"]["annotations"], json!({ "htc.cern.ch/suspended": "true" }));
    let activated = body(&WorkloadStep::Activate, &seen("!QuotaReserved", suspended));
    assert_eq!(activated["spec"]["active"], true);
    assert_eq!(activated["metadata"]["annotations"], json!({ "htc.cern.ch/suspended": null }));
}

#[test]
fn deactivated_workload_is_not_requeued() {
    let given_back = body(&WorkloadStep::ReleaseQuota, &seen("QuotaReserved Admitted !Evicted/Preempted", inactive));
    let requeued = told(&given_back, "Requeued");
    assert_eq!((&requeued["status"], &requeued["reason"]), (&json!("False"), &json!("Deactivated")));
    assert!(told(&given_back, "PodsReady").is_null(), "it never was");
    let timeout = body(&WorkloadStep::ReleaseQuota, &seen("QuotaReserved Admitted Evicted/PodsReadyTimeout", same));
    assert_eq!(told(&timeout, "Requeued")["status"], "False", "Kueue does that when its time has come");
}

#[test]
fn progress_patch_contains_only_changes() {
    let seen = seen(ADMITTED, same);
    let reclaim = body(&WorkloadStep::Progress { reclaim: Some(2), ready: false }, &seen);
    assert_eq!(reclaim["status"], json!({ "reclaimablePods": [{ "name": "jobs", "count": 2 }] }));
    let ready = body(&WorkloadStep::Progress { reclaim: None, ready: true }, &seen);
    assert!(ready["status"].get("reclaimablePods").is_none() && told(&ready, "PodsReady")["status"] == "True");
}

#[test]
fn workload_finishes_with_the_result_of_the_htcjob() {
    for (failed, reason) in [(true, "Failed"), (false, "Succeeded")] {
        let finished = body(&WorkloadStep::Finish { failed }, &seen(ADMITTED, same));
        assert_eq!(told(&finished, "Finished")["reason"], reason);
        assert_eq!(told(&finished, "Admitted")["status"], "True", "the others stay");
    }
}

#[test]
fn only_the_own_finalizer_is_removed() {
    let seen = seen(ADMITTED, with_finalizers(&["other/one", "kueue.x-k8s.io/resource-in-use", "other/two"]));
    assert_eq!(
        body(&WorkloadStep::RemoveFinalizer, &seen)["metadata"]["finalizers"],
        json!(["other/one", "other/two"])
    );
}

#[test]
fn condition_keeps_the_time_of_its_last_transition() {
    let (before, now) = ("2026-01-01T00:00:00Z", "1970-01-01T00:00:00Z");
    let ready = WorkloadStep::Progress { reclaim: None, ready: true };
    for (said, since) in [("QuotaReserved PodsReady", before), ("QuotaReserved !PodsReady", now)] {
        let body = body(&ready, &seen(said, same));
        assert_eq!(told(&body, "PodsReady")["lastTransitionTime"], since, "{said}");
        let all = body["status"]["conditions"].as_array().unwrap();
        assert_eq!(all.iter().filter(|told| told["type"] == "PodsReady").count(), 1);
    }
}

#[test]
fn condition_message_is_truncated_to_the_api_limit() {
    let mut seen = seen(EVICTED, same);
    seen.conditions.iter_mut().for_each(|told| told.message = "ö".repeat(3000));
    assert_eq!(
        told(&body(&WorkloadStep::ReleaseQuota, &seen), "Requeued")["message"].as_str().unwrap().chars().count(),
        1024
    );
}

pub(super) fn object_with(change: impl FnOnce(&mut Value)) -> ObservedHTCJob {
    let mut object = serde_json::to_value(object().0.unwrap()).unwrap();
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

/// Records a decision about this object, which uses nothing and requests all three jobs.
fn decided_as(queues: &Queues, object: &ObservedHTCJob, progress: Progress, over: bool) {
    let asks = "0-2".parse().unwrap();
    let room = QuotaUsage { requested: asks, grandfathered: true, ..QuotaUsage::default() };
    decided_with(queues, object, &room, (progress, None), over);
}

fn decided_with(
    queues: &Queues,
    object: &ObservedHTCJob,
    room: &QuotaUsage,
    (progress, pod): (Progress, Option<Value>),
    over: bool,
) {
    let uid = Uid::from(object.uid().unwrap().as_str());
    queues.record_decision(&DecidedUsage {
        object,
        uid: &uid,
        name: &ObjectName { namespace: "ns".to_owned(), name: object.name_any() },
        last_queue: None,
        granting_queue: None,
        granted: &Indices::default(),
        resources: Some(JobResources::one()),
        usage: room.clone(),
        finished: over,
        progress: Some(progress),
        pod,
    });
}

/// Returns the desired Workload of the next write, without marking the write as begun.
fn wants(queues: &Queues) -> Option<DesiredWorkload> {
    let writes = queues.kueue_writes();
    queues.with(|state| state.kueue.writing.clear());
    writes.now.into_iter().find_map(|write| match write.what {
        WriteTarget::Step(_, wanted, _) => Some(*wanted),
        WriteTarget::Orphan(_) => None,
    })
}

#[test]
fn workload_follows_the_htcjob() {
    let queues = queues();
    let object = object_with(|object| {
        object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    });
    let told = Progress { at_a_time: 2, suspend: true, accepted: true, ..progress() };
    decided_as(&queues, &object, told.clone(), false);
    let wanted = wants(&queues).unwrap();
    assert_eq!((wanted.count, wanted.unfinished, wanted.priority_class.as_deref()), (2, 3, Some("high")));
    assert!(wanted.suspend && wanted.accepted && !wanted.deleting && wanted.ended.is_none() && !wanted.queue_is_fixed);
    assert_eq!(wanted.unknown, ResourceSet::of(&[Resource::Memory]));
    // Requests of Pods are in their spec.
    let asks = "0-2".parse().unwrap();
    let room = QuotaUsage { requested: asks, grandfathered: true, ..QuotaUsage::default() };
    decided_with(&queues, &object, &room, (told.clone(), Some(json!({}))), false);
    let wanted = wants(&queues).unwrap();
    assert!(wanted.unknown == ResourceSet::default() && wanted.pod == Some(json!({})));
    decided_as(&queues, &object, Progress { deleting: true, ..told.clone() }, false);
    assert_eq!(wants(&queues), None, "none is made for it");
    decided_as(&queues, &object, Progress { ended: Some(true), ..told }, false);
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [WorkloadStep::Finish { failed: true }]);
}

/// With `parallelism: 0` nothing can use the quota. It is requested again once something can.
#[test]
fn parallelism_zero_releases_the_quota() {
    let queues = queues();
    let at_a_time = |at_a_time| {
        decided_as(&queues, &object(), Progress { at_a_time, accepted: true, ..progress() }, false);
    };
    at_a_time(0);
    see(&queues, ADMITTED, 1);
    assert_eq!(steps(&queues), [WorkloadStep::Deactivate]);
    at_a_time(3);
    assert_ne!(steps(&queues), [WorkloadStep::Deactivate]);
}

/// An HTCJob stays in the queue that granted it quota.
#[test]
fn granting_queue_takes_precedence_over_the_label() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, ADMITTED, 1);
    assert_eq!(granted(&queues), "0-1");
    let moved = object_with(|object| object["metadata"]["labels"][QUEUE_NAME_LABEL] = "other".into());
    decided_as(&queues, &moved, Progress { accepted: true, ..progress() }, false);
    let wanted = wants(&queues).unwrap();
    assert_eq!((wanted.queue.as_deref(), wanted.queue_is_fixed), (Some("q"), true));
    let uid = Uid::from("u");
    let asker = QueueQuery {
        uid: &uid,
        namespace: "ns",
        object: &moved,
        granting_queue: Some("q"),
        last_queue: None,
        has_held_jobs: false,
    };
    assert_eq!(queues.queue_facts(&asker).unwrap().queue, "q");
}

#[test]
fn missing_resource_matters_only_if_the_queue_requests_it() {
    let memory = ResourceSet::of(&[Resource::Memory]);
    assert_eq!(missing(memory, &[Resource::Jobs]), None);
    assert!(missing(memory, &[Resource::Memory]).unwrap().contains("spec.resources.memory"));
    assert_eq!(missing(ResourceSet::default(), &[Resource::Memory]), None);
}

#[test]
fn write_in_flight_is_not_repeated() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    assert_eq!(queues.kueue_writes().now.len(), 1);
    assert!(queues.kueue_writes().now.is_empty(), "that is under way");
    // The Workload does not exist.
    queues.finish_write(("ns", &"u".into()), None, None);
    assert_eq!(queues.kueue_writes().now.len(), 1);
    queues.finish_write(("ns", &"u".into()), Some(seen(ADMITTED, same)), None);
    assert_eq!(granted(&queues), "0-1");
    queues.finish_write(("ns", &"u".into()), None, None);
    assert_eq!(steps(&queues), [WorkloadStep::Create], "the Workload is gone");
}

#[test]
fn failed_write_is_reported_and_retried_later() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let other = object_with(|object| object["metadata"]["uid"] = "v".into());
    decided_as(&queues, &other, progress(), false);
    let wait = QueueWait { reason: Reason::PendingEvaluation, message: "no answer".to_owned(), position: None };
    for uid in ["u", "u", "u", "u", "v", "v", "v", "v", "v", "v"] {
        queues.finish_write(("ns", &uid.into()), None, Some(wait.clone()));
    }
    let writes = queues.kueue_writes();
    let first = queues.with(|state| state.kueue.backoffs.last(&"u".into()).map(|failed| failed.retry_at));
    assert!(writes.now.is_empty() && first.is_some() && writes.retry_at == first, "the first of them");
    assert_eq!(fact(&queues, false).wait, Some(wait.clone()));
    see(&queues, "", 1);
    assert_eq!(fact(&queues, false).wait, Some(wait), "Kueue is silent");
    queues.finish_write(("ns", &"u".into()), None, None);
    assert_eq!((steps(&queues), fact(&queues, false).wait), (vec![WorkloadStep::Create], None));
}

#[test]
fn held_jobs_stay_held_without_a_workload() {
    let queues = queues();
    decided(&queues, ["", "", ""]);
    assert!(fact(&queues, true).drained && !fact(&queues, false).drained);
}

#[test]
fn new_workload_is_silent_only_after_a_grace_period() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    see(&queues, "", 1);
    assert_eq!((fact(&queues, false).wait, queues.plan().requeue_after), (None, Some(SILENT)));
    queues.with(|state| {
        let known = state.kueue.workloads.get_mut(&owner("u")).unwrap();
        known.since = Instant::now().checked_sub(SILENT + SILENT).unwrap();
    });
    assert!(fact(&queues, false).wait.unwrap().message.contains("Kueue has said nothing"));
    assert_eq!(queues.plan().requeue_after, None);
    // Another Workload has its own time.
    let mut another = seen("", same);
    (another.uid, another.version) = ("other".to_owned(), 9);
    queues.with(|state| state.kueue.update_workload("u".into(), another));
    assert_eq!(fact(&queues, false).wait, None);
}

/// A Workload of that name, created by somebody else, admits no job.
#[test]
fn workload_with_a_foreign_owner_grants_nothing() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let foreign = seen(ADMITTED, |object| object["metadata"]["ownerReferences"][0]["uid"] = "v".into());
    queues.with(|state| state.kueue.update_workload("u".into(), foreign));
    assert!(granted(&queues).is_empty() && steps(&queues).is_empty());
    assert!(fact(&queues, false).wait.unwrap().message.contains("belongs to another object"));
}

#[test]
fn htcjob_suspended_by_user_is_not_drained() {
    let queues = queues();
    decided(&queues, ["0", "", ""]);
    see(&queues, EVICTED, 1);
    let suspended = object_with(|object| object["spec"]["suspend"] = true.into());
    let uid = Uid::from("u");
    let drained = |object| {
        queues
            .queue_facts(&QueueQuery {
                uid: &uid,
                namespace: "ns",
                object,
                granting_queue: None,
                last_queue: None,
                has_held_jobs: true,
            })
            .unwrap()
            .drained
    };
    let plain = object();
    assert!(drained(&plain) && !drained(&suspended));
}

#[test]
fn admission_does_not_wake_a_finished_htcjob() {
    let queues = queues();
    decided_as(&queues, &object(), progress(), true);
    see(&queues, ADMITTED, 1);
    assert!(queues.plan().wake.is_empty());
    decided_as(&queues, &object(), Progress { unfinished: 2, ..progress() }, false);
    assert_eq!(queues.plan().wake.len(), 1);
}

/// Jobs that run without a grant, as the ledger was lost, count first.
#[test]
fn running_jobs_of_a_lost_ledger_are_granted_first() {
    let queues = queues();
    decided(&queues, ["0-1", "2", ""]);
    assert_eq!(granted(&queues), "0-1");
}

#[test]
fn no_workload_is_written_before_the_initial_lists() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    queues.with(|state| state.kueue.listed = None);
    assert!(steps(&queues).is_empty());
    // The owner of that Workload is not known before all HTCJobs are listed.
    let queues = Queues::with_kueue(Queueing::Kueue, &[Resource::Jobs], Metrics::default(), Vec::new(), &[]);
    queues.with(|state| state.kueue.listed = Some(Ok(())));
    see(&queues, ADMITTED, 1);
    assert!(steps(&queues).is_empty());
    queues.retain(&HashSet::new());
    assert_eq!(steps(&queues), [WorkloadStep::RemoveFinalizer]);
}

#[test]
fn workload_without_finalizer_needs_no_release() {
    let queues = queues();
    queues.with(|state| state.kueue.update_workload("u".into(), seen(ADMITTED, not_held)));
    assert!(steps(&queues).is_empty());
}

fn owner(uid: &str) -> (Arc<str>, Uid) {
    ("ns".into(), uid.into())
}

/// A Workload of the same name in another namespace is somebody else's, whatever owner it names.
#[test]
fn workload_in_another_namespace_is_ignored() {
    let queues = queues();
    decided(&queues, ["", "0-2", ""]);
    let elsewhere = |version: u64| KueueWorkload { version, namespace: "other".to_owned(), ..seen(ADMITTED, same) };
    queues.with(|state| state.kueue.update_workload("u".into(), elsewhere(9)));
    assert!(granted(&queues).is_empty());
    assert_eq!(steps(&queues), [WorkloadStep::Create]);
    queues.finish_write(("ns", &"u".into()), Some(seen(ADMITTED, same)), None);
    queues.with(|state| state.kueue.remove_workload(&("other".into(), "u".into()), 10));
    assert_eq!(granted(&queues), "0-1");
}

fn known(queues: &Queues) -> Vec<String> {
    let mut known: Vec<String> =
        queues.with(|state| state.kueue.workloads.keys().map(|(_, uid)| uid.to_string()).collect());
    known.sort_unstable();
    known
}

#[test]
fn stale_workload_is_ignored() {
    let queues = queues();
    let at = |version: u64| KueueWorkload { version, ..seen(ADMITTED, same) };
    let see = |uid: &str, version: u64| queues.with(|state| state.kueue.update_workload(uid.into(), at(version)));
    assert!(see("a", 5) && !see("a", 5) && !see("a", 4) && see("a", 6));
    assert!(!queues.with(|state| state.kueue.remove_workload(&owner("a"), 5)), "that was an older one");
    assert!(queues.with(|state| state.kueue.remove_workload(&owner("a"), 6)));
    // Created while they were listed: it is not in the list.
    for (uid, version) in [("old", 3), ("there", 8), ("new", 2)] {
        see(uid, version);
    }
    let before = ["old", "there"].map(owner).into();
    queues.with(|state| {
        state.kueue.listed = None;
        state.kueue.replace_workloads([("there".into(), at(8)), ("other".into(), at(10))], &before);
    });
    assert_eq!(known(&queues), ["new", "other", "there"]);
    assert_eq!(queues.with(|state| state.kueue.listed.clone()), Some(Ok(())));
    // All were deleted while the watch was down.
    let before = ["new", "other", "there"].map(owner).into();
    queues.with(|state| state.kueue.replace_workloads([], &before));
    assert!(known(&queues).is_empty());
}

#[test]
fn workload_with_another_name_is_ignored() {
    let read = |name: &str, label: Option<&str>, count: Value| {
        let labels = label.map(|uid| json!({ "kueue.x-k8s.io/job-uid": uid }));
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": { "name": name, "namespace": "ns", "uid": "w", "resourceVersion": "7", "labels": labels },
            "spec": { "podSets": [{ "count": count }] },
        });
        parse_workload(&serde_json::from_value(object).unwrap()).map(|(uid, _)| uid.to_string())
    };
    // Labels can be removed, and an eviction must be seen even then.
    for label in [Some("u"), Some("v"), None] {
        assert_eq!(read("htcjob-u", label, json!(1)).as_deref(), Some("u"));
    }
    for (name, count) in [("u", json!(1)), ("htcjob-", json!(1)), ("htcjob-u", json!("many"))] {
        assert_eq!(read(name, Some("u"), count), None, "{name}");
    }
}

#[test]
fn refused_write_is_reported_with_a_remedy() {
    let told = |code| wait("make a Workload", "no", code);
    for (code, reason, words) in [
        (Some(403), Reason::Misconfigured, "deploy/components/kueue"),
        (Some(404), Reason::Misconfigured, "is Kueue installed?"),
        (Some(422), Reason::Misconfigured, "cannot make a Workload: no"),
        (Some(500), Reason::PendingEvaluation, "does Kueue run?"),
        (None, Reason::PendingEvaluation, "does Kueue run?"),
    ] {
        let told = told(code);
        assert!(told.reason == reason && told.message.contains(words), "{told:?}");
        assert!(told.message.starts_with("cannot make a Workload: no"), "{told:?}");
    }
}

/// An HTCJob whose Secret is missing: the quota that it was admitted with goes to others until its next attempt.
#[test]
fn unusable_quota_is_released_until_the_next_try() {
    let queues = queues();
    let decided = |room: [&str; 3], idle| {
        let [uses, asks, gives_back] = room.map(|text| text.parse::<Indices>().unwrap());
        let room = QuotaUsage {
            used: uses,
            requested: asks,
            returned: gives_back,
            grandfathered: true,
            ..QuotaUsage::default()
        };
        decided_with(&queues, &object(), &room, (Progress { idle, ..progress() }, None), false);
    };
    decided(["", "0-2", ""], false);
    see(&queues, ADMITTED, 1);
    assert_eq!(granted(&queues), "0-1");
    assert!(steps(&queues).is_empty());
    // It may have been accepted.
    decided(["0-1", "", ""], true);
    assert!(steps(&queues).is_empty());
    decided(["", "", "0-1"], true);
    assert_eq!(steps(&queues), [WorkloadStep::Deactivate]);
    let is = |said, version| {
        let mut seen = seen(said, suspended);
        seen.version = version;
        queues.with(|state| state.kueue.update_workload("u".into(), seen));
    };
    is("QuotaReserved Admitted Evicted/Deactivated", 2);
    assert_eq!(steps(&queues), [WorkloadStep::ReleaseQuota]);
    is("!QuotaReserved !Admitted", 3);
    assert!(steps(&queues).is_empty() && granted(&queues).is_empty(), "it waits for its next try");
    decided(["", "0", ""], false);
    assert_eq!(steps(&queues), [WorkloadStep::Activate]);
}
