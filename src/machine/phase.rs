//! The phases, as the machine uses them.

pub use crate::api::Phase;

impl Phase {
    /// What the phase means, in the words of the documentation.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pending => {
                "Known and guarded by the finalizer; HTCondor has accepted no job yet (also: suspended, invalid, schedd away, attempt being judged)"
            }
            Self::Submitted => "Accepted by HTCondor; no job has started",
            Self::Running => "At least one job has started; not all have ended",
            Self::Completed => "Every job has an outcome: succeeded, failed, removed or lost",
            Self::Terminating => {
                "Being deleted: condor_rm for every job, then proof that none is left, then the finalizer goes"
            }
        }
    }
}
