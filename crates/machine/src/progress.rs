//! Progress of an `HTCJob`, as reported to Kueue.

use crate::decide::Decision;
use crate::facts::Facts;
use crate::phase::Phase;
use crate::status::Counts;

/// Progress of an `HTCJob`, as reported to Kueue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each stands for itself")]
pub struct Progress {
    /// Maximum number of jobs at a time.
    pub at_a_time: usize,
    /// Number of jobs that have not ended.
    pub unfinished: usize,
    /// `spec.suspend`, as it is in the object.
    pub suspend: bool,
    /// Whether none of its jobs could be submitted now if it had quota: its last try failed, or its namespace is full.
    pub idle: bool,
    /// Whether the object is being deleted.
    pub deleting: bool,
    /// Whether HTCondor has accepted some jobs; for Pods, whether as many have started as have quota.
    pub accepted: bool,
    /// Set once all jobs have ended: whether some failed.
    pub ended: Option<bool>,
}

impl Progress {
    /// Returns the progress after a decision.
    #[must_use]
    pub fn of(facts: &Facts, decision: &Decision, suspend: bool) -> Option<Self> {
        let record = decision.after.as_ref()?;
        let known = record.row.as_ref()?;
        let spec = facts.object.spec.as_ref().ok()?;
        let over = record.jobs.values().filter(|job| job.outcome().is_some()).count()
            + record.requested_actions.withdrawn().len();
        let left = if known.cut_short.is_some() { record.in_use().len() } else { spec.count().saturating_sub(over) };
        // `Complete` and `Failed` are set later, when the output is fetched.
        let ended = (known.phase == Phase::Completed).then(|| Counts::of(record).succeeded < spec.count());
        Some(Self {
            at_a_time: spec.count().min(spec.parallelism.map_or(usize::MAX, |most| most as usize)),
            unfinished: left,
            suspend,
            idle: decision.details.quota_requests.is_empty() && is_kept_back(facts, decision),
            deleting: facts.object.deleting,
            accepted: !record.jobs.is_empty(),
            ended,
        })
    }
}

/// Whether a limit other than the queue keeps the jobs from being submitted.
fn is_kept_back(facts: &Facts, decision: &Decision) -> bool {
    let refused = facts.object.spec.as_ref().is_ok_and(|spec| spec.refused.is_some());
    refused || facts.schedd_is_silent || decision.details.namespace_is_full || decision.details.failed_at.is_some()
}
