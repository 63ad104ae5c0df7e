//! The phases, as the machine uses them.

pub use crate::api::Phase;

impl Phase {
    /// What the phase means, in the words of the documentation.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pending => {
                "The finalizer is attached. HTCondor has not accepted a job yet: the HTCJob may be suspended, invalid, or waiting for the schedd."
            }
            Self::Submitted => "HTCondor has accepted jobs. None has started.",
            Self::Running => "At least one job has started. Not all have ended.",
            Self::Completed => "Every job has ended: succeeded, failed, removed or lost.",
            Self::Terminating => {
                "The HTCJob is being deleted. Its jobs are removed with condor_rm; the finalizer is removed once HTCondor provably has none of them."
            }
        }
    }
}
