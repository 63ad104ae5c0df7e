//! What releases the finalizer beside an admin's word. These types can be made only here.

use super::facts::{Facts, JobSeen, Left};
use crate::machine::facts::Past;

/// The API server said that neither the Job nor any Pod of it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsGone(());

impl PodsGone {
    /// From what is known.
    #[must_use]
    pub fn prove(facts: &Facts) -> Option<Self> {
        let job_gone = match &facts.job {
            JobSeen::Absent | JobSeen::Foreign(_) => true,
            JobSeen::Ours(other) => facts.record.job.as_ref().is_some_and(|recorded| *recorded != other.uid),
            JobSeen::Unknown(_) => false,
        };
        // One that was never recorded was never resumed, and has made no Pods.
        let pods_gone = facts.record.job.is_none() || facts.left == Left::None;
        (job_gone && pods_gone).then_some(Self(()))
    }
}

/// No Job of it was ever resumed, by a ledger that knows its past: it has run nothing, whatever the API server would say. One that was
/// created and not recorded, because the operator was killed in between, is suspended; it has the `HTCJob` as its owner, and
/// Kubernetes' garbage collector deletes it after that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverBegun(());

impl NeverBegun {
    /// From what is recorded.
    #[must_use]
    pub fn prove(facts: &Facts) -> Option<Self> {
        // Another operator's ledger, or one that is lost, may have recorded a Job and resumed it.
        let new = facts.record.known.as_ref().is_some_and(|known| known.new) && facts.past == Past::Continuous;
        let untouched = facts.record.job.is_none() && facts.record.runs.is_empty() && !facts.object.shows_job;
        (new && untouched).then_some(Self(()))
    }
}
