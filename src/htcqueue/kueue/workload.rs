//! A Workload as the API server returns it.

use htc_api::Reason;
use htc_machine::Uid;
use htc_machine::facts::QueueWait;
use htc_machine::text::sanitize;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::Value;

use super::{HTCJOB, IN_USE, SUSPENDED, uid_of};

/// Maximum length of a message with Kueue's words, in bytes.
const WORDS: usize = 600;

/// A Workload of this operator.
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
#[derive(Clone, Debug, PartialEq)]
pub(in crate::htcqueue) struct KueueWorkload {
    pub(in crate::htcqueue) namespace: String,
    pub(in crate::htcqueue) name: String,
    pub(in crate::htcqueue) uid: String,
    /// `metadata.resourceVersion`, which the API server counts up.
    pub(in crate::htcqueue) version: u64,
    /// Name and uid of its owner, or of the `HTCJob` that it was created for.
    pub(in crate::htcqueue) owner: Option<(String, Uid)>,
    /// It has lost its owner, with which it would be deleted: `kubectl delete --cascade=orphan` removes the
    /// reference.
    pub(in crate::htcqueue) orphaned: bool,
    pub(in crate::htcqueue) deleting: bool,
    pub(in crate::htcqueue) finalizers: Vec<String>,
    /// Deactivated because of `spec.suspend` of the `HTCJob`.
    pub(in crate::htcqueue) suspended: bool,
    pub(in crate::htcqueue) active: bool,
    pub(in crate::htcqueue) queue: String,
    /// Number of jobs in the podSet.
    pub(in crate::htcqueue) count: u32,
    /// Number of those that are admitted.
    pub(in crate::htcqueue) admitted: Option<u32>,
    pub(in crate::htcqueue) reclaimed: u32,
    pub(in crate::htcqueue) conditions: Vec<Condition>,
}

impl KueueWorkload {
    /// Reads a Workload. Returns `None` if it cannot be read: it is not a Workload of this operator.
    pub(in crate::htcqueue) fn of(object: &DynamicObject) -> Option<Self> {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let owners = object.owner_references();
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let orphaned = owners.is_empty();
        let made_for = || Some((object.annotations().get(HTCJOB)?.clone(), uid_of(&object.name_any())?));
        Some(Self {
            namespace: object.namespace()?,
            name: object.name_any(),
            uid: object.uid()?,
            version: object.resource_version()?.parse().ok()?,
            owner: match owner {
                Some(owner) => Some((owner.name.clone(), Uid::from(owner.uid.as_str()))),
                None => made_for().filter(|_| orphaned),
            },
            orphaned,
            deleting: object.metadata.deletion_timestamp.is_some(),
            finalizers: object.finalizers().to_vec(),
            suspended: object.annotations().contains_key(SUSPENDED),
            active: spec["active"].as_bool().unwrap_or(true),
            queue: spec["queueName"].as_str().unwrap_or_default().to_owned(),
            count: number(&spec["podSets"][0]["count"])?,
            admitted: number(&status["admission"]["podSetAssignments"][0]["count"]),
            reclaimed: number(&status["reclaimablePods"][0]["count"]).unwrap_or_default(),
            conditions: conditions.into_iter().filter_map(|told| serde_json::from_value(told).ok()).collect(),
        })
    }

    pub(in crate::htcqueue) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|told| told.type_ == kind)
    }

    pub(in crate::htcqueue) fn is(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|told| told.status == "True")
    }

    pub(in crate::htcqueue) fn has_quota(&self) -> bool {
        self.is("QuotaReserved")
    }

    pub(in crate::htcqueue) fn is_held(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == IN_USE)
    }

    /// Returns whether only this operator would remove it, once its `HTCJob` is gone.
    pub(in crate::htcqueue) fn is_leftover(&self) -> bool {
        self.is_held() || (self.orphaned && !self.deleting)
    }

    /// Returns how many jobs may run now; `None` if none may. `Admitted` alone proves nothing: it stays after an
    /// eviction.
    pub(in crate::htcqueue) fn runnable_jobs(&self) -> Option<u32> {
        let starts = self.has_quota()
            && self.is("Admitted")
            && !self.is("Evicted")
            && !self.is("Finished")
            && self.active
            && !self.deleting;
        self.admitted.filter(|_| starts).map(|admitted| admitted.min(self.count.saturating_sub(self.reclaimed)))
    }

    /// Returns why no job may run.
    pub(in crate::htcqueue) fn wait(&self) -> QueueWait {
        let (name, queue) = (&self.name, &self.queue);
        let words = |kind: &str| self.condition(kind).map_or("", |told| told.message.as_str());
        let (reason, message) = if self.deleting {
            let message =
                format!("Workload {name} is being deleted: it is made again, and waits for quota, once no job runs");
            (Reason::PendingEvaluation, message)
        } else if let Some(told) = self.condition("Finished").filter(|told| told.status == "True") {
            let message = format!(
                "Workload {name} is Finished ({}: {}); delete it, and a new one is made",
                told.reason, told.message
            );
            (Reason::Misconfigured, message)
        } else if !self.active && self.suspended {
            (Reason::PendingEvaluation, format!("Workload {name} becomes active once the HTCJob can run jobs"))
        } else if !self.active {
            let why = ["DeactivationTarget", "Evicted"].map(words).into_iter().find(|words| !words.is_empty());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let message =
                format!("Workload {name} is deactivated{why}: set its spec.active to true when the jobs may run");
            (Reason::Suspended, message)
        } else if let Some(told) = self.condition("Evicted").filter(|told| told.status == "True" && self.has_quota()) {
            let message = format!("Kueue evicts Workload {name} ({}): {}", told.reason, told.message);
            (Reason::PendingEvaluation, message)
        } else if self.has_quota() {
            let checks = words("Admitted");
            let checks = if checks.is_empty() { "its admission checks are not done" } else { checks };
            (Reason::UnsatisfiedAdmissionChecks, format!("LocalQueue {queue} has quota for it: {checks}"))
        } else if let Some(told) = self.condition("QuotaReserved") {
            (quota_reason(&told.reason), format!("LocalQueue {queue}: {}", told.message))
        } else {
            // Kueue reports on one of several Workloads with the same requests, and skips the others.
            let message = format!(
                "Kueue has said nothing of Workload {name} in LocalQueue {queue} yet: others that request the same wait, too, or it does not run"
            );
            (Reason::PendingEvaluation, message)
        };
        QueueWait { reason, message: sanitize(&message, WORDS), position: None }
    }

    /// Returns whether Kueue has not reported on it at all.
    pub(in crate::htcqueue) fn is_silent(&self) -> bool {
        self.conditions.is_empty() && self.active && !self.deleting
    }
}

/// Returns Kueue's reason if it is one that this operator explains. Kueue has finer ones behind a feature gate.
fn quota_reason(reason: &str) -> Reason {
    let known = [
        Reason::Inadmissible,
        Reason::WaitingForQuota,
        Reason::ExceedsMaxQuota,
        Reason::Misconfigured,
        Reason::Suspended,
        Reason::NoMatchingFlavor,
        Reason::WaitingForPreemptedWorkloads,
    ];
    if reason == "Pending" {
        return Reason::WaitingForQuota;
    }
    reason.parse().ok().filter(|reason| known.contains(reason)).unwrap_or(Reason::PendingEvaluation)
}
