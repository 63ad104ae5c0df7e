//! HTCondor's dated answers.

use std::sync::Arc;

use strum::{Display, EnumIter, IntoStaticStr};

use super::{HistoryReach, Hold, RequestFailure, RunHistory};
use crate::condition::Reason;
use crate::ids::{Attempt, Birthdate, Index, JobId, SchedDate, Timestamp};

impl From<QueryError> for RequestFailure {
    fn from(unknown: QueryError) -> Self {
        Self::new(unknown.kind.into(), unknown.message)
    }
}

/// Answer of HTCondor. *Unknown is not absent.*
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer<T> {
    /// HTCondor answered completely.
    Known(T),
    /// HTCondor did not answer.
    Unknown(QueryError),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// Kind of the failure.
    pub kind: QueryErrorKind,
    /// Message for an administrator; empty if no query was sent yet.
    pub message: String,
}

/// Kinds of failures of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, IntoStaticStr)]
pub enum QueryErrorKind {
    /// No query was sent since the operator started or since the object needed one.
    NotAsked,
    /// The schedd or its collector cannot be reached, or did not answer in time.
    ScheddUnreachable,
    /// HTCondor refused the credentials.
    CredentialsRefused,
    /// There are no credentials to query HTCondor with: no ticket, or a Secret that cannot be read.
    CredentialsFailed,
    /// The answer was cut short or cannot be parsed.
    #[strum(to_string = "AnswerIncomplete")]
    Incomplete,
    /// Another schedd answers under this name.
    AnotherSchedd,
    /// The tool could not write to the local disk what HTCondor sent.
    NotWritten,
    /// The schedd could not read from its spool what it was to send.
    NotRead,
    /// The tool could not be started, or was killed.
    ToolFailed,
    /// The location of the pool is not known any more.
    PoolNotFound,
}

impl From<QueryErrorKind> for Reason {
    fn from(why: QueryErrorKind) -> Self {
        match why {
            QueryErrorKind::NotAsked => Self::QueryingHTCondor,
            QueryErrorKind::ScheddUnreachable => Self::ScheddUnreachable,
            QueryErrorKind::CredentialsRefused => Self::CredentialsRefused,
            QueryErrorKind::CredentialsFailed => Self::CredentialsFailed,
            QueryErrorKind::Incomplete => Self::AnswerIncomplete,
            QueryErrorKind::AnotherSchedd => Self::AnotherSchedd,
            QueryErrorKind::NotWritten | QueryErrorKind::NotRead => Self::FetchFailed,
            QueryErrorKind::ToolFailed => Self::ToolFailed,
            QueryErrorKind::PoolNotFound => Self::PoolNotFound,
        }
    }
}

/// HTCondor's answers about the jobs of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Evidence {
    /// Answer of `condor_q`.
    pub queue: Answer<QueueAnswer>,
    /// Answer of `condor_history`, asked after `queue` first lacked a job that was expected there.
    pub history: Answer<History>,
}

impl Evidence {
    /// Evidence before any query.
    #[must_use]
    pub const fn none() -> Self {
        const NOT_ASKED: QueryError = QueryError { kind: QueryErrorKind::NotAsked, message: String::new() };
        Self { queue: Answer::Unknown(NOT_ASKED), history: Answer::Unknown(NOT_ASKED) }
    }

    /// Returns the ads in the queue's answer. Empty without an answer, which proves nothing.
    #[must_use]
    pub fn queued(&self) -> &[Ad] {
        match &self.queue {
            Answer::Known(queue) => &queue.ads,
            Answer::Unknown(_) => &[],
        }
    }
}

/// Complete answer of `condor_q -allusers` by `HTCOperator`, reduced to one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueAnswer {
    /// When the query was sent.
    pub asked_at: Timestamp,
    /// Birthdate of the schedd, the same before and after the query.
    pub birthdate: Birthdate,
    /// Since when that birthdate has been seen without interruption.
    pub steady_since: Timestamp,
    /// Ads, sorted by id. Shared, not copied: there may be 100,000, and a copy takes 30 MB.
    pub ads: Arc<Vec<Ad>>,
    /// Jobs of the object's HTCondor user whose ads do not name (any more) the HTCJob that they belong to.
    pub unlabelled: Arc<[JobId]>,
    /// Previous answer of the same queue.
    pub before: Option<EarlierAnswer>,
}

/// Part of an earlier answer of the queue: enough to determine which jobs were not in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EarlierAnswer {
    /// When the query was sent.
    pub asked_at: Timestamp,
    /// Jobs in the answer, sorted by id. Their ads are not kept: there may be 100,000.
    pub shown: Arc<[(JobId, Index)]>,
}

impl EarlierAnswer {
    /// Keeps the ids and indices of an answer. `ads` must be sorted by id.
    #[must_use]
    pub fn new(asked_at: Timestamp, ads: &[Ad]) -> Self {
        Self { asked_at, shown: ads.iter().map(|ad| (ad.id, ad.index)).collect() }
    }

    /// Whether the answer had this job.
    #[must_use]
    pub fn shows(&self, id: JobId) -> bool {
        self.shown.binary_search_by_key(&id, |(id, _)| *id).is_ok()
    }
}

/// Complete answer of `condor_history`, reduced to one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    /// When the query was sent; always after an answer of the queue.
    pub asked_at: Timestamp,
    /// How far back history was found to reach.
    pub reaches: HistoryReach,
    /// Ads of the object's jobs.
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
    /// `CompletionDate` > 0, or the job was removed from `JobStatus` 4.
    pub completed: bool,
    /// Whether the job has started at least once.
    pub started: bool,
    /// `RemoveReason`
    pub remove_reason: String,
    /// Where and when the job ran.
    pub runs: RunHistory,
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
    /// Converts the number in the ad; none if HTCondor has no such status.
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

    /// Whether the job will not run any more, whatever its outcome.
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
    /// Whether a process can end this way. The check is needed because a job's owner may write anything into its ad.
    #[must_use]
    pub fn is_real(&self) -> bool {
        match self {
            Self::Code(code) => (0..=255).contains(code),
            Self::Signal(signal) => (1..=64).contains(signal),
        }
    }
}
