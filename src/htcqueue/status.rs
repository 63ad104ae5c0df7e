//! Published view of a queue: status, condition, metrics.

use htc_api::{ConditionStatus, HTCQueueStatus, NamespaceUsed, StopPolicy, Used, WaitingHTCJob};
use htc_machine::admission::NamespaceUsage;
use htc_machine::amounts::{Amounts, Resource};
use htc_machine::text::sanitize;
use htc_support::metrics::QueueMeasured;
use strum::IntoEnumIterator as _;

use super::plan::{PendingWorkload, QueueOutcome, SHOWN, jobs_waiting};

/// Maximum number of namespaces in the status.
const NAMESPACES: usize = 100;
/// Maximum length of one message, in bytes.
const MESSAGE: usize = 1000;
/// Reason of a queue that no `HTCJob` can be in.
pub(super) const NO_NAMESPACE: &str = "NoNamespace";

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn used(amounts: &Amounts) -> Used {
    let of = |resource| number(amounts.get(resource));
    Used {
        jobs: of(Resource::Jobs),
        cpus: of(Resource::Cpus),
        memory: Resource::Memory.amount_text(amounts.get(Resource::Memory)),
        gpus: of(Resource::Gpus),
    }
}

/// Returns the status without its condition.
pub(super) fn status(outcome: &QueueOutcome) -> HTCQueueStatus {
    let QueueOutcome { queue, admission, waiting, admitted, .. } = outcome;
    let namespace = |(name, share): (&std::sync::Arc<str>, &NamespaceUsage)| NamespaceUsed {
        namespace: name.to_string(),
        used: used(&share.used),
        pending: number(share.waiting),
    };
    let shown = |told: &PendingWorkload| WaitingHTCJob {
        namespace: told.namespace.clone(),
        name: told.name.clone(),
        position: told.position.map(|place| number(place as u64)),
        jobs: number(told.jobs),
        reason: told.wait.reason.to_string(),
        message: sanitize(&told.wait.message, MESSAGE),
    };
    let some =
        |(_, share): &(&std::sync::Arc<str>, &NamespaceUsage)| share.waiting > 0 || share.used != Amounts::default();
    HTCQueueStatus {
        observed_generation: queue.generation,
        used: used(&admission.used),
        admitted: number(*admitted as u64),
        pending: number(admission.waiting.len() as u64 + outcome.refused),
        waiting_jobs: number(jobs_waiting(&admission.waiting)),
        by_namespace: admission.namespaces.iter().filter(some).take(NAMESPACES).map(namespace).collect(),
        waiting: waiting.iter().take(SHOWN).map(shown).collect(),
        conditions: Vec::new(),
    }
}

/// Returns the condition `Active`: reason, status, message.
pub(super) fn condition(outcome: &QueueOutcome) -> (&'static str, ConditionStatus, String) {
    let queue = &outcome.queue;
    let no = ConditionStatus::False;
    match queue.spec.stop() {
        StopPolicy::Hold => return ("Stopped", no, "stopPolicy is Hold: no further job gets quota".to_owned()),
        StopPolicy::HoldAndDrain => {
            let message =
                "stopPolicy is HoldAndDrain: no further job gets quota, jobs in HTCondor are held and Pods are deleted";
            return ("Stopped", no, message.to_owned());
        }
        StopPolicy::None => {}
    }
    if queue.spec.namespace_selector.is_none() {
        return (NO_NAMESPACE, no, "it is for no namespace: write spec.namespaceSelector ({} for all)".to_owned());
    }
    if outcome.namespaces == 0 {
        return (NO_NAMESPACE, no, "no namespace has the labels of spec.namespaceSelector".to_owned());
    }
    let message = if outcome.namespaces == 1 {
        "it is for 1 namespace".to_owned()
    } else {
        format!("it is for {} namespaces", outcome.namespaces)
    };
    ("Ready", ConditionStatus::True, message)
}

impl QueueOutcome {
    /// Returns the values for the metrics.
    pub(super) fn measured(&self) -> QueueMeasured {
        let Self { name, queue, admission, .. } = self;
        QueueMeasured {
            name: name.as_str().into(),
            waiting: number(jobs_waiting(&admission.waiting)),
            used: Resource::iter().map(|resource| amount(resource, admission.used.get(resource))).collect(),
            quota: queue.policy.quota.iter().map(|(resource, limit)| amount(resource, limit)).collect(),
        }
    }
}

/// Returns an amount in the unit of the metrics: memory in bytes.
fn amount(resource: Resource, amount: u64) -> (&'static str, i64) {
    let unit = if resource == Resource::Memory { 1 << 20 } else { 1 };
    (resource.into(), number(amount.saturating_mul(unit)))
}
