//! Proofs that allow the release of the finalizer. They can be constructed only here. An administrator's request needs
//! none.

use super::facts::{LeftoverPods, OwnJob, PodsFacts};
use crate::facts::Past;

/// Proof that neither the Job nor any Pod of it exists, as the API server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsGone(());

impl PodsGone {
    /// Returns the proof if the facts support it.
    #[must_use]
    pub fn prove(facts: &PodsFacts) -> Option<Self> {
        let job_gone = matches!(facts.own_job(&facts.record), OwnJob::Gone);
        // A Job that was never recorded was never resumed, and has created no Pods.
        let pods_gone = facts.record.job.is_none() || facts.leftover_pods == LeftoverPods::None;
        (job_gone && pods_gone).then_some(Self(()))
    }
}

/// Proof that no Job of the object was ever resumed, from a ledger that knows its past.
/// It has run nothing, whatever the API server would answer.
/// A Job that was created and not recorded, because the operator was killed in between, is suspended.
/// Its owner is the `HTCJob`, so Kubernetes' garbage collector deletes it afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverBegun(());

impl NeverBegun {
    /// Returns the proof if the record supports it.
    #[must_use]
    pub fn prove(facts: &PodsFacts) -> Option<Self> {
        // Another operator's ledger, or one that is lost, may have recorded a Job and resumed it.
        let new = facts.record.row.as_ref().is_some_and(|known| known.new) && facts.past == Past::Continuous;
        let untouched = facts.record.job.is_none() && facts.record.runs.is_empty() && !facts.object.shows_job;
        (new && untouched).then_some(Self(()))
    }
}
