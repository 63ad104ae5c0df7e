//! Outcomes of jobs.

use strum::{Display, EnumString, IntoStaticStr};

/// Outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The exit code is 0.
    Succeeded,
    /// The exit code is another one.
    Failed(i32),
    /// The job was killed by this signal.
    Killed(i32),
    /// The Go operator's database says that the job failed, without an exit code.
    FailedBefore,
    /// The job was removed with HTCondor's own tools, or by a policy.
    /// Has `RemoveReason`, made harmless. Empty if HTCondor gives none, or if the operator removed the job.
    Removed(String),
    /// HTCondor no longer knows the job, and its history does not have its end.
    Lost(Loss),
}

impl Outcome {
    /// Whether a job with this outcome leaves output in HTCondor.
    #[must_use]
    pub const fn left_output(&self) -> bool {
        match self {
            Self::Succeeded | Self::Failed(_) | Self::Killed(_) | Self::FailedBefore => true,
            Self::Removed(_) | Self::Lost(_) => false,
        }
    }
}

/// How a job was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
pub enum Loss {
    /// The job is neither in the queue nor in history.
    Vanished,
    /// The schedd lost its queue.
    QueueReset,
}
