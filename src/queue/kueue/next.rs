//! What is to be written of a Workload. No I/O, no clock.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Map, Value, json};

use super::seen::Seen;
use super::{GROUP, HTCJOB, IN_USE, JOB_UID, MANAGED, SUSPENDED, VERSION, name};
use crate::api::{self, HTCJob};
use crate::kubernetes::MANAGER;
use crate::machine::Uid;
use crate::queue::amounts::{Amounts, Resource, ResourceSet};

/// The one podSet.
const POD_SET: &str = "jobs";
/// Most bytes of a condition's message.
const MESSAGE: usize = 1024;

/// What a Workload is to know of its `HTCJob`.
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::queue) struct Wanted {
    pub(in crate::queue) uid: Uid,
    pub(in crate::queue) namespace: String,
    /// Name of the `HTCJob`.
    pub(in crate::queue) name: String,
    /// None if it is in no queue.
    pub(in crate::queue) queue: Option<String>,
    /// That gave it room before: then it stays there.
    pub(in crate::queue) bound: bool,
    pub(in crate::queue) class: Option<String>,
    /// What each job requests, as far as that is known.
    pub(in crate::queue) each: Amounts,
    /// What is not.
    pub(in crate::queue) unknown: ResourceSet,
    pub(in crate::queue) resources: Vec<Resource>,
    /// How many jobs it has at a time.
    pub(in crate::queue) count: u32,
    /// How many are not over.
    pub(in crate::queue) left: u32,
    /// `spec.suspend`, or it could do nothing with quota now.
    pub(in crate::queue) suspend: bool,
    pub(in crate::queue) deleting: bool,
    /// HTCondor has accepted some; or as many Pods have started as have room.
    pub(in crate::queue) accepted: bool,
    /// All have ended; whether some failed.
    pub(in crate::queue) ended: Option<bool>,
    /// Jobs are in HTCondor, or may be, and are not held for this operator; or Pods are, or may be, there; or some have room.
    pub(in crate::queue) in_use: bool,
    /// The spec of its Pods, as far as Kueue is to know it; none for jobs in HTCondor.
    pub(in crate::queue) pod: Option<Value>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::queue) enum Step {
    /// There is none, and there is to be one.
    Create,
    /// It is in another queue, or has another number of jobs, and waits.
    Change,
    /// The `HTCJob` is in no queue any more.
    Delete,
    /// Nothing that it stands for is in use: the quota is given back.
    GiveBack,
    /// It is suspended, or could do nothing with quota now, and nothing is in use.
    Deactivate,
    /// It is so no more.
    Activate,
    /// So many jobs are over that are not followed by others; the jobs are accepted.
    Progress { reclaim: Option<u32>, ready: bool },
    /// The `HTCJob` has ended.
    Finish { failed: bool },
    /// Its finalizer has done what it is for.
    LetGo,
}

/// One step; none if all is as it is to be, or as long as jobs are in use that stand against it.
pub(in crate::queue) fn next(wanted: &Wanted, seen: Option<&Seen>) -> Option<Step> {
    let Some(seen) = seen else {
        let wants = wanted.queue.is_some() && !wanted.deleting && wanted.ended.is_none() && wanted.count > 0;
        return wants.then_some(Step::Create);
    };
    if seen.owner.as_ref().is_none_or(|(_, uid)| *uid != wanted.uid) {
        return None;
    }
    if wanted.queue.is_none() {
        return if seen.deleting { seen.is_held().then_some(Step::LetGo) } else { Some(Step::Delete) };
    }
    if seen.deleting {
        return (!wanted.in_use && seen.is_held()).then_some(Step::LetGo);
    }
    if seen.is("Finished") {
        return (wanted.ended.is_some() && !wanted.in_use && seen.is_held()).then_some(Step::LetGo);
    }
    if let (Some(failed), false) = (wanted.ended, wanted.in_use) {
        return Some(Step::Finish { failed });
    }
    if (seen.is("Evicted") || !seen.active) && seen.has_quota() {
        return (!wanted.in_use).then_some(Step::GiveBack);
    }
    if wanted.deleting {
        return progress(wanted, seen);
    }
    if wanted.suspend && seen.active && !wanted.in_use {
        return Some(Step::Deactivate);
    }
    if !wanted.suspend && !seen.active && seen.suspended {
        return Some(Step::Activate);
    }
    if seen.has_quota() {
        return progress(wanted, seen);
    }
    let moved = !wanted.bound && wanted.queue.as_deref() != Some(seen.queue.as_str());
    (moved || wanted.count != seen.count && seen.reclaimed == 0 && wanted.count > 0).then_some(Step::Change)
}

fn progress(wanted: &Wanted, seen: &Seen) -> Option<Step> {
    if !seen.has_quota() {
        return None;
    }
    let reclaim = seen.count - seen.count.min(wanted.left);
    let reclaim = (reclaim > seen.reclaimed).then_some(reclaim);
    let ready = wanted.accepted && !seen.is("PodsReady");
    (reclaim.is_some() || ready).then_some(Step::Progress { reclaim, ready })
}

/// What each job requests, under names that nodes do not have: what HTCondor gives is not the cluster's.
fn requests(wanted: &Wanted) -> Map<String, Value> {
    let asked = wanted.resources.iter().filter(|resource| wanted.each.get(**resource) > 0);
    let asked = asked.map(|resource| {
        let amount = resource.shown(wanted.each.get(*resource));
        (format!("{}/{resource}", api::GROUP), Value::String(amount))
    });
    asked.collect()
}

fn pod_set(wanted: &Wanted) -> Value {
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

/// A Workload that is to be made. `priority`: of its class.
pub(in crate::queue) fn workload(wanted: &Wanted, priority: Option<i64>) -> Value {
    let owner = json!({
        "apiVersion": <HTCJob as kube::Resource>::api_version(&()), "kind": <HTCJob as kube::Resource>::kind(&()),
        "name": wanted.name, "uid": wanted.uid.as_str(), "controller": true,
    });
    let mut spec = json!({ "queueName": wanted.queue, "active": !wanted.suspend, "podSets": [pod_set(wanted)] });
    if let (Some(class), Some(priority)) = (&wanted.class, priority) {
        spec["priorityClassRef"] = json!({ "group": GROUP, "kind": "WorkloadPriorityClass", "name": class });
        spec["priority"] = priority.into();
    }
    let mut metadata = json!({
        "name": name(&wanted.uid), "namespace": wanted.namespace, "finalizers": [IN_USE], "ownerReferences": [owner],
        "labels": { JOB_UID: wanted.uid.as_str(), MANAGED: MANAGER }, "annotations": { HTCJOB: wanted.name },
    });
    if wanted.suspend {
        metadata["annotations"][SUSPENDED] = "true".into();
    }
    json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Workload", "metadata": metadata, "spec": spec })
}

/// What is changed by a step, as a merge patch that holds only for the version that was seen; and whether it is of the status.
pub(in crate::queue) fn patch(step: &Step, wanted: &Wanted, seen: &Seen, now: &Time) -> Option<(bool, Value)> {
    let of_status = |status: Value| Some((true, json!({ "metadata": version(seen), "status": status })));
    match step {
        Step::Create | Step::Delete => None,
        Step::Change => {
            let spec = json!({ "queueName": wanted.queue, "podSets": [pod_set(wanted)] });
            Some((false, json!({ "metadata": version(seen), "spec": spec })))
        }
        Step::Deactivate | Step::Activate => {
            let mut metadata = version(seen);
            let deactivates = *step == Step::Deactivate;
            metadata["annotations"] = json!({ SUSPENDED: deactivates.then_some("true") });
            Some((false, json!({ "metadata": metadata, "spec": { "active": !deactivates } })))
        }
        Step::LetGo => Some((false, let_go(seen))),
        Step::GiveBack => {
            let evicted = seen.told("Evicted").filter(|told| told.status == "True");
            let reason = evicted.map_or("Deactivated", |told| told.reason.as_str());
            let message = evicted.map_or("The workload is deactivated", |told| told.message.as_str());
            // Kueue puts the others in line again itself, when their time has come.
            let again = matches!(reason, "Preempted" | "NodeFailures");
            let changes = [
                ("Requeued", again, reason, message),
                ("QuotaReserved", false, "PendingEvaluation", message),
                ("Admitted", false, "NoReservation", "The workload has no reservation"),
                ("PodsReady", false, "WaitForStart", "No job runs"),
            ];
            // Of those that were never ready nothing is said.
            let changes = if seen.is("PodsReady") { &changes[..] } else { &changes[..3] };
            of_status(json!({ "admission": null, "conditions": conditions(seen, changes, now) }))
        }
        Step::Progress { reclaim, ready } => {
            let mut status = json!({});
            if let Some(count) = reclaim {
                status["reclaimablePods"] = json!([{ "name": POD_SET, "count": count }]);
            }
            if *ready {
                let message = match wanted.pod {
                    None => "HTCondor has accepted jobs",
                    Some(_) => "As many Pods have started as have room",
                };
                let ready = ("PodsReady", true, "Started", message);
                status["conditions"] = json!(conditions(seen, &[ready], now));
            }
            of_status(status)
        }
        Step::Finish { failed } => {
            let (reason, message) =
                if *failed { ("Failed", "the HTCJob has failed") } else { ("Succeeded", "all jobs have succeeded") };
            of_status(json!({ "conditions": conditions(seen, &[("Finished", true, reason, message)], now) }))
        }
    }
}

/// Takes the finalizer off.
pub(in crate::queue) fn let_go(seen: &Seen) -> Value {
    let mut metadata = version(seen);
    let others: Vec<&String> = seen.finalizers.iter().filter(|finalizer| *finalizer != IN_USE).collect();
    metadata["finalizers"] = json!(others);
    json!({ "metadata": metadata })
}

fn version(seen: &Seen) -> Value {
    json!({ "uid": seen.uid, "resourceVersion": seen.version.to_string() })
}

/// All conditions, with these: a patch replaces the whole list.
fn conditions(seen: &Seen, changes: &[(&str, bool, &str, &str)], now: &Time) -> Vec<Condition> {
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
