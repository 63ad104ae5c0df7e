//! What is known of each job of a backend that says itself how its jobs are doing, so that nothing is to be judged: the decision of such a
//! backend makes it, and all that records, counts, keeps or shows jobs knows no more of them than this.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::Known;
use super::ids::{Index, SchedDate, Timestamp};
use super::indices::Indices;
use crate::api::{ConditionStatus, ConditionType};

/// What the backend calls that which it has made of an `HTCJob`: with Kubernetes the uid of a Job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobUid(Arc<str>);

impl JobUid {
    /// The text itself.
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

/// What the ledger has of one object; empty if it has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The object's own row.
    pub known: Option<Known>,
    /// Its Job, recorded before it was resumed for the first time.
    pub job: Option<JobUid>,
    /// Its jobs that were seen, or their end.
    pub runs: BTreeMap<Index, Run>,
    /// The `HTCQueue` that gave it room before.
    pub queue: Option<String>,
    /// Its room there. The backend chooses which indexes run: it is so many at a time, whichever they are.
    pub granted: Indices,
}

impl Record {
    /// Its queue has given it nothing yet: what runs of it, somebody else has resumed. Otherwise it may run since before the queue
    /// applied.
    #[must_use]
    pub fn is_kept_back(&self) -> bool {
        let Some(known) = &self.known else { return false };
        let mut quota = known.conditions.iter().filter(|told| told.kind == ConditionType::QuotaReserved);
        let never_resumed = self.job.is_none() && known.new;
        self.queue.is_none() && (never_resumed || quota.any(|told| told.status == ConditionStatus::False))
    }
}

/// One job that was seen, or its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// What runs it, or did last: with Kubernetes the name of its newest Pod.
    pub id: Option<Arc<str>>,
    /// How it is doing.
    pub state: RunState,
    /// How often it was started, as far as failures are counted.
    pub starts: u32,
    /// When it was started, on the node's clock.
    pub start: Option<SchedDate>,
    /// When that ended.
    pub end: Option<SchedDate>,
    /// The node.
    pub host: Option<Arc<str>>,
    /// Its exit code.
    pub exit: Option<i32>,
    /// Why it waits or how it ended, in words of the node or of the job itself.
    pub message: Option<Arc<str>>,
    /// What became of its log.
    pub log: KeptLog,
}

/// What became of the log of a job that is over: of its last run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeptLog {
    /// It was not asked for yet.
    #[default]
    NotYet,
    /// The backend, or the volume, has refused it so often.
    Failed {
        /// How often, in a row.
        tries: u32,
        /// The last time.
        at: Timestamp,
        /// Why, in words.
        why: Arc<str>,
    },
    /// The log of this run is on the volume.
    Kept {
        /// What ran: [`Run::id`].
        id: Arc<str>,
        /// Its size.
        bytes: u64,
    },
    /// It was gone by then.
    Gone,
}

/// How one index is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RunState {
    /// Nothing runs it yet, or again.
    #[default]
    Waiting,
    /// What is to run it has not started.
    Pending,
    /// It runs.
    Running,
    /// It has ended, and the backend has not said yet what that means.
    Exited,
    /// Over, by the backend's word.
    Ended(RunEnd),
}

impl RunState {
    /// How it is over.
    #[must_use]
    pub const fn end(self) -> Option<RunEnd> {
        match self {
            Self::Ended(end) => Some(end),
            Self::Waiting | Self::Pending | Self::Running | Self::Exited => None,
        }
    }
}

/// How one index is over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
pub enum RunEnd {
    /// It succeeded.
    Succeeded,
    /// It failed, and had no retries left.
    Failed,
    /// It was cut short.
    Removed,
}
