//! HTCondor's dated answers.

use std::sync::Arc;

use strum::{Display, EnumIter, IntoStaticStr};

use super::{Failure, Hold, Reach, Runs};
use crate::api::Reason;
use crate::machine::ids::{Attempt, Birthdate, Index, JobId, SchedDate, Timestamp};

impl From<Unknown> for Failure {
    fn from(unknown: Unknown) -> Self {
        Self::new(unknown.why.into(), unknown.message)
    }
}

/// An answer of HTCondor's. *Unknown is not absent.*
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer<T> {
    /// It answered, completely.
    Known(T),
    /// It did not.
    Unknown(Unknown),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// The kind of trouble.
    pub why: Why,
    /// In words for an admin; empty when nobody asked yet.
    pub message: String,
}

/// Kinds of trouble in asking HTCondor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, IntoStaticStr)]
pub enum Why {
    /// Nobody has asked since the operator started or since the object was of interest.
    NotAsked,
    /// The schedd or its collector cannot be reached, or did not answer in time.
    ScheddUnreachable,
    /// HTCondor refused the credentials.
    CredentialsRefused,
    /// There are no credentials that HTCondor could be asked with: no ticket, or a Secret that cannot be read.
    CredentialsFailed,
    /// The answer was cut short or cannot be read.
    Incomplete,
    /// Another schedd answers to the name.
    AnotherSchedd,
    /// The tool could not write here what HTCondor sent.
    NotWritten,
    /// The schedd could not read in its spool what it was to send.
    NotRead,
    /// The tool could not be started, or was ended by somebody.
    ToolFailed,
    /// It is not known any more where the pool is.
    PoolNotFound,
}

impl From<Why> for Reason {
    fn from(why: Why) -> Self {
        match why {
            Why::NotAsked => Self::Asking,
            Why::ScheddUnreachable => Self::ScheddUnreachable,
            Why::CredentialsRefused => Self::CredentialsRefused,
            Why::CredentialsFailed => Self::CredentialsFailed,
            Why::Incomplete => Self::Incomplete,
            Why::AnotherSchedd => Self::AnotherSchedd,
            Why::NotWritten | Why::NotRead => Self::FetchFailed,
            Why::ToolFailed => Self::ToolFailed,
            Why::PoolNotFound => Self::PoolNotFound,
        }
    }
}

/// What HTCondor said of one object's jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// `condor_q`
    pub queue: Answer<Queue>,
    /// `condor_history`, asked after `queue` was first seen without a job that was expected there.
    pub history: Answer<History>,
}

impl Evidence {
    /// Nobody has asked.
    #[must_use]
    pub const fn none() -> Self {
        const NOT_ASKED: Unknown = Unknown { why: Why::NotAsked, message: String::new() };
        Self { queue: Answer::Unknown(NOT_ASKED), history: Answer::Unknown(NOT_ASKED) }
    }

    /// The ads that the queue's answer shows; none where there is no answer, which proves nothing.
    #[must_use]
    pub fn queued(&self) -> &[Ad] {
        match &self.queue {
            Answer::Known(queue) => &queue.ads,
            Answer::Unknown(_) => &[],
        }
    }
}

/// A complete answer of `condor_q -allusers` by `HTCOperator`, cut down to one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// When the question was put.
    pub asked_at: Timestamp,
    /// The schedd's birthdate, the same before and after the question.
    pub birthdate: Birthdate,
    /// Since when that birthdate has been seen without a break.
    pub steady_since: Timestamp,
    /// The ads, by id. They are shared as they were collected: there may be 100,000, and a copy is 30 MB.
    pub ads: Arc<Vec<Ad>>,
    /// Jobs in the name of the object's identity that do not say (any more) whose they are.
    pub nameless: Arc<[JobId]>,
    /// The answer before this one, of the same queue.
    pub before: Option<Earlier>,
}

/// As much of an earlier answer of the queue as says which jobs were not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Earlier {
    /// When the question was put.
    pub asked_at: Timestamp,
    /// The jobs that it showed, by id. Their ads are not kept: there may be 100,000.
    pub shown: Arc<[(JobId, Index)]>,
}

impl Earlier {
    /// What is kept of an answer with these ads, which are in the order of their ids.
    #[must_use]
    pub fn new(asked_at: Timestamp, ads: &[Ad]) -> Self {
        Self { asked_at, shown: ads.iter().map(|ad| (ad.id, ad.index)).collect() }
    }

    /// Whether it showed this job.
    #[must_use]
    pub fn shows(&self, id: JobId) -> bool {
        self.shown.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }
}

/// A complete answer of `condor_history`, cut down to one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    /// When the question was put; always after an answer of the queue.
    pub asked_at: Timestamp,
    /// How far back it was found to reach.
    pub reaches: Reach,
    /// The ads.
    pub ads: Arc<[Ad]>,
}

/// One job ad, from the queue or from history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ad {
    /// `ClusterId`, `ProcId`
    pub id: JobId,
    /// `HTCJobAttempt`
    pub attempt: Attempt,
    /// `HTCJobIndex`
    pub index: Index,
    /// `HTCNotAfter`
    pub not_after: Option<SchedDate>,
    /// `JobStatus`
    pub status: JobStatus,
    /// `HoldReasonCode` and its companions.
    pub hold: Hold,
    /// `StageInFinish`
    pub staged_in: Option<SchedDate>,
    /// `StageOutFinish`
    pub staged_out: Option<SchedDate>,
    /// `ExitCode` or `ExitSignal`
    pub exit: Option<Exit>,
    /// `CompletionDate` > 0, or it was removed from `JobStatus` 4.
    pub completed: bool,
    /// It has started at least once.
    pub started: bool,
    /// `RemoveReason`
    pub remove_reason: String,
    /// It carries this operator's attributes; a job of the Go operator does not before it is adopted.
    pub marked: bool,
    /// Where and when it ran.
    pub runs: Runs,
}

/// HTCondor's `JobStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "HTCondor's own words")]
pub enum JobStatus {
    Idle,
    Running,
    Removed,
    Completed,
    Held,
    TransferringOutput,
    Suspended,
    /// Reserved by HTCondor (25.14) for jobs that ended without success.
    Failed,
    /// Waits for files that it shares with other jobs.
    Blocked,
    /// The schedd carries out tasks of its own before the job may be matched.
    Preparing,
}

impl JobStatus {
    /// From the number in the ad.
    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            1 => Some(Self::Idle),
            2 => Some(Self::Running),
            3 => Some(Self::Removed),
            4 => Some(Self::Completed),
            5 => Some(Self::Held),
            6 => Some(Self::TransferringOutput),
            7 => Some(Self::Suspended),
            8 => Some(Self::Failed),
            9 => Some(Self::Blocked),
            10 => Some(Self::Preparing),
            _ => None,
        }
    }

    /// Whether the job runs no more, whatever came of it.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Removed | Self::Completed | Self::Failed)
    }
}

/// How the job's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// `ExitCode`
    Code(i32),
    /// `ExitSignal`
    Signal(i32),
}

impl Exit {
    /// Whether a process can end so: whose job it is may write anything into its ad.
    #[must_use]
    pub fn is_real(&self) -> bool {
        match self {
            Self::Code(code) => (0..=255).contains(code),
            Self::Signal(signal) => (1..=64).contains(signal),
        }
    }
}
