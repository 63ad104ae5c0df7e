//! How far an `HTCJob` is, as far as Kueue is told.

use serde_json::Value;

use crate::api::Phase;
use crate::machine::decide::Decision;
use crate::machine::facts::Facts;
use crate::machine::status::Counts;

/// What Kueue is told of an `HTCJob`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
pub struct Progress {
    /// Most jobs that it has at a time.
    pub at_a_time: usize,
    /// Jobs that are not over.
    pub left: usize,
    /// `spec.suspend`, as it stands there.
    pub suspend: bool,
    /// None of its jobs could go now if it had quota: its last try came to nothing, or its namespace is full.
    pub idle: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// HTCondor has accepted some; or as many Pods have started as have room.
    pub accepted: bool,
    /// All have ended; whether some failed.
    pub ended: Option<bool>,
    /// The spec of its Pods, as far as it matters to who admits them; none for jobs in HTCondor.
    pub pod: Option<Value>,
}

impl Progress {
    /// After a decision.
    #[must_use]
    pub fn of(facts: &Facts, decision: &Decision, suspend: bool) -> Option<Self> {
        let record = decision.after.as_ref()?;
        let known = record.known.as_ref()?;
        let spec = facts.object.spec.as_ref().ok()?;
        let over = record.jobs.values().filter(|job| job.outcome().is_some()).count() + record.wishes.withdrawn().len();
        let left = if known.cut_short.is_some() { record.in_use().len() } else { spec.count().saturating_sub(over) };
        // `Complete` and `Failed` are said later, when the output is here.
        let ended = (known.phase == Phase::Completed).then(|| Counts::of(record).succeeded < spec.count());
        Some(Self {
            at_a_time: spec.count().min(spec.parallelism.map_or(usize::MAX, |most| most as usize)),
            left,
            suspend,
            idle: decision.wants.is_empty() && is_kept_back(facts, decision),
            deleting: facts.object.deleting,
            accepted: !record.jobs.is_empty(),
            ended,
            pod: None,
        })
    }
}

/// Whether something else than the queue keeps its jobs from being submitted.
fn is_kept_back(facts: &Facts, decision: &Decision) -> bool {
    let refused = facts.object.spec.as_ref().is_ok_and(|spec| spec.refused.is_some());
    refused || facts.schedd_is_silent || decision.namespace_is_full || decision.failed_at.is_some()
}
