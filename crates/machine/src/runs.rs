//! Jobs of a backend that itself reports their states, so that no evidence has to be judged.
//! The backend's decision produces these types. All code that records, counts, stores or shows jobs depends only on
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::ObjectRow;
use super::ids::{Index, SchedDate, Timestamp};
use super::indices::Indices;
use crate::condition::{ConditionStatus, ConditionType};

/// Id of the backend's object for an `HTCJob`: with Kubernetes the uid of a Job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobUid(Arc<str>);

impl JobUid {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for JobUid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// The ledger's record of one object; empty if the ledger has nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunsRecord {
    /// Row of the object itself; none if it has none yet.
    pub row: Option<ObjectRow>,
    /// Job of the object, recorded before it was resumed for the first time.
    pub job: Option<JobUid>,
    /// Jobs of which a run or the end was seen, by index.
    pub runs: BTreeMap<Index, Run>,
    /// `HTCQueue` that first granted quota to the object.
    pub granting_queue: Option<String>,
    /// Quota granted there. Only its size matters: the backend chooses which indexes run.
    pub granted: Indices,
}

impl RunsRecord {
    /// Whether the queue has granted nothing yet. If jobs run all the same, someone else resumed them.
    /// If this is false, jobs may run since before the queue applied.
    #[must_use]
    pub fn is_kept_back(&self) -> bool {
        let Some(known) = &self.row else { return false };
        let mut quota = known.conditions.iter().filter(|told| told.kind == ConditionType::QuotaReserved);
        let never_resumed = self.job.is_none() && known.new;
        self.granting_queue.is_none() && (never_resumed || quota.any(|told| told.status == ConditionStatus::False))
    }
}

/// One job of which a run or the end was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// Id of the current or last run: with Kubernetes the name of the newest Pod.
    pub id: Option<Arc<str>>,
    /// State of the job.
    pub state: RunState,
    /// Number of starts, as far as failures are counted.
    pub starts: u32,
    /// When the last run started, on the node's clock.
    pub start: Option<SchedDate>,
    /// When the last run ended.
    pub end: Option<SchedDate>,
    /// Node of the last run.
    pub host: Option<Arc<str>>,
    /// Exit code of the last run.
    pub exit: Option<i32>,
    /// Why the job waits or how it ended, in words of the node or of the job itself.
    pub message: Option<Arc<str>>,
    /// State of the copy of its log.
    pub log: KeptLog,
}

/// State of the copy of a job's log. Only the log of the last run is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeptLog {
    /// The log was not requested yet.
    #[default]
    NotYet,
    /// The log could not be copied, because of the backend or of the volume.
    Failed {
        /// Number of failures in a row.
        tries: u32,
        /// When the last try failed.
        at: Timestamp,
        /// Message of the failure.
        why: Arc<str>,
    },
    /// The log of this run is on the volume.
    Kept {
        /// Id of the run: [`Run::id`].
        id: Arc<str>,
        /// Size of the log in bytes.
        bytes: u64,
    },
    /// The log was gone before it was copied.
    Gone,
}

/// State of one index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RunState {
    /// There is no run yet, or the next one has not been created.
    #[default]
    Waiting,
    /// The run has not started.
    Pending,
    /// The run is running.
    Running,
    /// The run has ended, and the backend has not reported yet what that means.
    Exited,
    /// The index is over, as the backend reports.
    Ended(RunEnd),
}

impl RunState {
    /// Returns how the index ended; none if it is not over.
    #[must_use]
    pub const fn end(self) -> Option<RunEnd> {
        match self {
            Self::Ended(end) => Some(end),
            Self::Waiting | Self::Pending | Self::Running | Self::Exited => None,
        }
    }
}

/// End of one index.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
pub enum RunEnd {
    /// The index succeeded.
    Succeeded,
    /// The index failed and had no retries left.
    Failed,
    /// The index was cut short.
    Removed,
}
