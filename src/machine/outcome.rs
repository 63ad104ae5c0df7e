//! How jobs end.

use strum::{Display, EnumString, IntoStaticStr};

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Exit code 0.
    Succeeded,
    /// Another exit code.
    Failed(i32),
    /// Killed by this signal.
    Killed(i32),
    /// Failed by the Go operator's database, which does not say with which exit code.
    FailedBefore,
    /// Removed with HTCondor's own tools, or by a policy. `RemoveReason`, made harmless; empty if HTCondor gives none, or if the
    /// operator removed the job.
    Removed(String),
    /// HTCondor no longer knows it, and its history does not say how it ended.
    Lost(Loss),
}

impl Outcome {
    /// Whether a job that ended so leaves output in HTCondor.
    #[must_use]
    pub const fn left_output(&self) -> bool {
        match self {
            Self::Succeeded | Self::Failed(_) | Self::Killed(_) | Self::FailedBefore => true,
            Self::Removed(_) | Self::Lost(_) => false,
        }
    }
}

/// How a job got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
pub enum Loss {
    /// Neither in the queue nor in history.
    Vanished,
    /// The schedd lost its queue.
    QueueReset,
}
