//! Decides the next write to a Workload. No I/O, no clock.

use htc_api as api;
use htc_api::HTCJob;
use htc_machine::Uid;
use htc_machine::amounts::{Amounts, Resource, ResourceSet};
use htc_support::kubernetes::FIELD_MANAGER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Map, Value, json};

use super::{GROUP, HTCJOB, IN_USE, JOB_UID, MANAGED, SUSPENDED, VERSION, name};
use crate::htcqueue::kueue::workload::KueueWorkload;

/// Name of the only podSet.
const POD_SET: &str = "jobs";
/// Maximum length of a condition's message, in bytes.
const MESSAGE: usize = 1024;

/// Desired state of a Workload, derived from its `HTCJob`.
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::htcqueue) struct DesiredWorkload {
    pub(in crate::htcqueue) uid: Uid,
    pub(in crate::htcqueue) namespace: String,
    /// Name of the `HTCJob`.
    pub(in crate::htcqueue) name: String,
    /// `None` if it is in no queue.
    pub(in crate::htcqueue) queue: Option<String>,
    /// The queue has granted it quota before: it stays there.
    pub(in crate::htcqueue) queue_is_fixed: bool,
    pub(in crate::htcqueue) priority_class: Option<String>,
    /// Requests of each job, as far as they are known.
    pub(in crate::htcqueue) per_job: Amounts,
    /// Requests that are not known.
    pub(in crate::htcqueue) unknown: ResourceSet,
    pub(in crate::htcqueue) resources: Vec<Resource>,
    /// Number of jobs at a time.
    pub(in crate::htcqueue) count: u32,
    /// Number of jobs that have not ended.
    pub(in crate::htcqueue) unfinished: u32,
    /// `spec.suspend`, or it could not use quota now.
    pub(in crate::htcqueue) suspend: bool,
    pub(in crate::htcqueue) deleting: bool,
    /// HTCondor has accepted some jobs; or as many Pods have started as have quota.
    pub(in crate::htcqueue) accepted: bool,
    /// All jobs have ended; whether some failed.
    pub(in crate::htcqueue) ended: Option<bool>,
    /// Something still uses the quota: jobs that are or may be in HTCondor and are not held for this operator; Pods
    /// that exist or may exist; or granted jobs.
    pub(in crate::htcqueue) in_use: bool,
    /// Pod spec, as far as Kueue needs it; `None` for jobs in HTCondor.
    pub(in crate::htcqueue) pod: Option<Value>,
}

/// Next write to a Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::htcqueue) enum WorkloadStep {
    /// Create it.
    Create,
    /// Change its queue or its number of jobs, while it waits.
    Change,
    /// Delete it: the `HTCJob` is in no queue any more.
    Delete,
    /// Give back the quota: none of its jobs is in use.
    ReleaseQuota,
    /// Deactivate it: it is suspended, or could not use quota now, and nothing is in use.
    Deactivate,
    /// Activate it again.
    Activate,
    /// Report the number of ended jobs that no others follow (`reclaim`), and that jobs are accepted (`ready`).
    Progress { reclaim: Option<u32>, ready: bool },
    /// Finish it: the `HTCJob` has ended.
    Finish { failed: bool },
    /// Remove its finalizer, which has done its work.
    RemoveFinalizer,
}

/// Returns the next step; `None` if the Workload is as desired, or while jobs in use forbid the step.
pub(in crate::htcqueue) fn next_step(wanted: &DesiredWorkload, seen: Option<&KueueWorkload>) -> Option<WorkloadStep> {
    let Some(seen) = seen else {
        let wants = wanted.queue.is_some() && !wanted.deleting && wanted.ended.is_none() && wanted.count > 0;
        return wants.then_some(WorkloadStep::Create);
    };
    if seen.owner.as_ref().is_none_or(|(_, uid)| *uid != wanted.uid) {
        return None;
    }
    if wanted.queue.is_none() {
        return if seen.deleting {
            seen.is_held().then_some(WorkloadStep::RemoveFinalizer)
        } else {
            Some(WorkloadStep::Delete)
        };
    }
    if seen.deleting {
        return (!wanted.in_use && seen.is_held()).then_some(WorkloadStep::RemoveFinalizer);
    }
    if seen.is("Finished") {
        return (wanted.ended.is_some() && !wanted.in_use && seen.is_held()).then_some(WorkloadStep::RemoveFinalizer);
    }
    if let (Some(failed), false) = (wanted.ended, wanted.in_use) {
        return Some(WorkloadStep::Finish { failed });
    }
    if (seen.is("Evicted") || !seen.active) && seen.has_quota() {
        return (!wanted.in_use).then_some(WorkloadStep::ReleaseQuota);
    }
    if wanted.deleting {
        return progress(wanted, seen);
    }
    if wanted.suspend && seen.active && !wanted.in_use {
        return Some(WorkloadStep::Deactivate);
    }
    if !wanted.suspend && !seen.active && seen.suspended {
        return Some(WorkloadStep::Activate);
    }
    if seen.has_quota() {
        return progress(wanted, seen);
    }
    let moved = !wanted.queue_is_fixed && wanted.queue.as_deref() != Some(seen.queue.as_str());
    (moved || wanted.count != seen.count && seen.reclaimed == 0 && wanted.count > 0).then_some(WorkloadStep::Change)
}

fn progress(wanted: &DesiredWorkload, seen: &KueueWorkload) -> Option<WorkloadStep> {
    if !seen.has_quota() {
        return None;
    }
    let reclaim = seen.count - seen.count.min(wanted.unfinished);
    let reclaim = (reclaim > seen.reclaimed).then_some(reclaim);
    let ready = wanted.accepted && !seen.is("PodsReady");
    (reclaim.is_some() || ready).then_some(WorkloadStep::Progress { reclaim, ready })
}

/// Returns the requests of each job, under names that nodes do not have: HTCondor's resources are not the cluster's.
fn requests(wanted: &DesiredWorkload) -> Map<String, Value> {
    let asked = wanted.resources.iter().filter(|resource| wanted.per_job.get(**resource) > 0);
    let asked = asked.map(|resource| {
        let amount = resource.amount_text(wanted.per_job.get(*resource));
        (format!("{}/{resource}", api::GROUP), Value::String(amount))
    });
    asked.collect()
}

fn pod_set(wanted: &DesiredWorkload) -> Value {
    let spec = wanted.pod.clone().unwrap_or_else(|| {
        let container = json!({ "name": POD_SET, "image": "none", "resources": { "requests": requests(wanted) } });
        json!({ "restartPolicy": "Never", "containers": [container] })
    });
    let mut pod_set = json!({ "name": POD_SET, "count": wanted.count, "template": { "spec": spec } });
    if wanted.count > 1 {
        // The jobs do not need each other.
        pod_set["minCount"] = 1.into();
    }
    pod_set
}

/// Returns a Workload to be created. `priority`: number of its priority class.
pub(in crate::htcqueue) fn workload(wanted: &DesiredWorkload, priority: Option<i64>) -> Value {
    let owner = json!({
        "apiVersion": <HTCJob as kube::Resource>::api_version(&()), "kind": <HTCJob as kube::Resource>::kind(&()),
        "name": wanted.name, "uid": wanted.uid.as_str(), "controller": true,
    });
    let mut spec = json!({ "queueName": wanted.queue, "active": !wanted.suspend, "podSets": [pod_set(wanted)] });
    if let (Some(class), Some(priority)) = (&wanted.priority_class, priority) {
        spec["priorityClassRef"] = json!({ "group": GROUP, "kind": "WorkloadPriorityClass", "name": class });
        spec["priority"] = priority.into();
    }
    let mut metadata = json!({
        "name": name(&wanted.uid), "namespace": wanted.namespace, "finalizers": [IN_USE], "ownerReferences": [owner],
        "labels": { JOB_UID: wanted.uid.as_str(), MANAGED: FIELD_MANAGER }, "annotations": { HTCJOB: wanted.name },
    });
    if wanted.suspend {
        metadata["annotations"][SUSPENDED] = "true".into();
    }
    json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Workload", "metadata": metadata, "spec": spec })
}

/// Returns the merge patch of a step, and whether it is for the status. It holds only for the version that was seen.
pub(in crate::htcqueue) fn patch(
    step: &WorkloadStep,
    wanted: &DesiredWorkload,
    seen: &KueueWorkload,
    now: &Time,
) -> Option<(bool, Value)> {
    let of_status = |status: Value| Some((true, json!({ "metadata": version(seen), "status": status })));
    match step {
        WorkloadStep::Create | WorkloadStep::Delete => None,
        WorkloadStep::Change => {
            let spec = json!({ "queueName": wanted.queue, "podSets": [pod_set(wanted)] });
            Some((false, json!({ "metadata": version(seen), "spec": spec })))
        }
        WorkloadStep::Deactivate | WorkloadStep::Activate => {
            let mut metadata = version(seen);
            let deactivates = *step == WorkloadStep::Deactivate;
            metadata["annotations"] = json!({ SUSPENDED: deactivates.then_some("true") });
            Some((false, json!({ "metadata": metadata, "spec": { "active": !deactivates } })))
        }
        WorkloadStep::RemoveFinalizer => Some((false, let_go(seen))),
        WorkloadStep::ReleaseQuota => {
            let evicted = seen.condition("Evicted").filter(|told| told.status == "True");
            let reason = evicted.map_or("Deactivated", |told| told.reason.as_str());
            let message = evicted.map_or("The workload is deactivated", |told| told.message.as_str());
            // After other evictions Kueue requeues the Workload itself, when its time has come.
            let again = matches!(reason, "Preempted" | "NodeFailures");
            let changes = [
                ("Requeued", again, reason, message),
                ("QuotaReserved", false, "PendingEvaluation", message),
                ("Admitted", false, "NoReservation", "The workload has no reservation"),
                ("PodsReady", false, "WaitForStart", "No job runs"),
            ];
            // `PodsReady` is not set on Workloads that were never ready.
            let changes = if seen.is("PodsReady") { &changes[..] } else { &changes[..3] };
            of_status(json!({ "admission": null, "conditions": conditions(seen, changes, now) }))
        }
        WorkloadStep::Progress { reclaim, ready } => {
            let mut status = json!({});
            if let Some(count) = reclaim {
                status["reclaimablePods"] = json!([{ "name": POD_SET, "count": count }]);
            }
            if *ready {
                let message = match wanted.pod {
                    None => "HTCondor has accepted jobs",
                    Some(_) => "As many Pods have started as have quota",
                };
                let ready = ("PodsReady", true, "Started", message);
                status["conditions"] = json!(conditions(seen, &[ready], now));
            }
            of_status(status)
        }
        WorkloadStep::Finish { failed } => {
            let (reason, message) =
                if *failed { ("Failed", "the HTCJob has failed") } else { ("Succeeded", "all jobs have succeeded") };
            of_status(json!({ "conditions": conditions(seen, &[("Finished", true, reason, message)], now) }))
        }
    }
}

/// Returns the patch that removes the finalizer.
pub(in crate::htcqueue) fn let_go(seen: &KueueWorkload) -> Value {
    let mut metadata = version(seen);
    let others: Vec<&String> = seen.finalizers.iter().filter(|finalizer| *finalizer != IN_USE).collect();
    metadata["finalizers"] = json!(others);
    json!({ "metadata": metadata })
}

fn version(seen: &KueueWorkload) -> Value {
    json!({ "uid": seen.uid, "resourceVersion": seen.version.to_string() })
}

/// Returns all conditions with these changes: a merge patch replaces the whole list.
fn conditions(seen: &KueueWorkload, changes: &[(&str, bool, &str, &str)], now: &Time) -> Vec<Condition> {
    let mut all = seen.conditions.clone();
    for (kind, status, reason, message) in changes {
        let status = if *status { "True" } else { "False" };
        let before = all.iter().position(|told| told.type_ == *kind);
        let since = before.map(|place| &all[place]).filter(|told| told.status == status);
        let told = Condition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            reason: (*reason).to_owned(),
            message: message.chars().take(MESSAGE).collect(),
            last_transition_time: since.map_or_else(|| now.clone(), |told| told.last_transition_time.clone()),
            observed_generation: None,
        };
        match before {
            Some(place) => all[place] = told,
            None => all.push(told),
        }
    }
    all
}
