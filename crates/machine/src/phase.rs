//! The phases of an `HTCJob`.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// How far the HTCJob has come; a phase never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
pub enum Phase {
    /// Known and guarded by the finalizer; HTCondor has accepted no job yet.
    Pending,
    /// Accepted by HTCondor; no job has started.
    Submitted,
    /// At least one job has started and not all have ended.
    Running,
    /// Every job has an outcome.
    Completed,
    /// Being deleted: the jobs are removed from HTCondor before the object goes.
    Terminating,
}

impl Phase {
    /// Returns what the phase means, in the words of the documentation.
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

    /// Returns what the phase means with backend Kubernetes.
    #[must_use]
    pub const fn meaning_for_pods(self) -> &'static str {
        match self {
            Self::Pending => {
                "The finalizer is attached. The Job is not recorded yet: the HTCJob may be invalid, or the Job may be refused."
            }
            Self::Submitted => {
                "The Job is recorded. No Pod has started: the HTCJob may be suspended, or waiting for quota in its queue or for a node."
            }
            Self::Running => "At least one Pod has started. Not all jobs have ended.",
            Self::Completed => "The Job is Complete or Failed, or is gone.",
            Self::Terminating => {
                "The HTCJob is being deleted. Its Job and Pods are deleted; the finalizer is removed once they are gone, or if no Job was ever resumed."
            }
        }
    }
}
