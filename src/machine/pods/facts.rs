//! What is known about one `HTCJob` whose jobs are Pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Reason;
use crate::machine::facts::{Claim, Past, Queued, Spec, Unreadable};
use crate::machine::ids::{Index, SchedDate, Timestamp, Uid};
use crate::machine::indices::Indices;
use crate::machine::runs::{JobUid, Record};

pub use crate::machine::facts::Exceeded;

/// Everything that one decision is made from.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The `HTCJob`.
    pub object: Object,
    /// What the ledger has of it.
    pub record: Record,
    /// Whether the ledger can be trusted to know all that happened before.
    pub past: Past,
    /// Its Job.
    pub job: JobSeen,
    /// The Pods of its Job: of each index the newest.
    pub pods: PodsSeen,
    /// Whether Pods are left of a Job that is gone.
    pub left: Left,
    /// Whether the Job may be created.
    pub create: Create,
    /// The API server's words about the last change of the Job, if it was refused.
    pub adjust_refused: Option<String>,
    /// The `HTCQueue` that it is in; none if it needs room in none.
    pub queue: Option<Queued>,
    /// How many Pods it may have at a time beside the others of its namespace; none without a limit.
    pub namespace_room: Option<usize>,
}

/// The `HTCJob`, as the API server shows it.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct Object {
    /// `metadata.uid`
    pub uid: Uid,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// Our finalizer stands.
    pub finalizer: bool,
    /// Whose ledger may create its Job.
    pub claim: Claim,
    /// The spec, or why it cannot be read.
    pub spec: Result<Spec, Unreadable>,
    /// Name that its Job has, or will have.
    pub job_name: String,
    /// Its status shows that it once had a Job. It proves presence, never absence.
    pub shows_job: bool,
    /// Annotation [`ABANDON`](crate::api::ABANDON).
    pub abandon: bool,
    /// Annotation [`SUBMIT_AGAIN`](crate::api::SUBMIT_AGAIN).
    pub submit_again: bool,
}

/// What is known of the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobSeen {
    /// It is not known whether it is there; why. Empty where it was not asked for yet.
    Unknown(String),
    /// The API server said that it is not there.
    Absent,
    /// Another object has its name; whose it is, in words.
    Foreign(String),
    /// It is there, and the `HTCJob` is its controller.
    Ours(BatchJob),
}

/// A Job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct BatchJob {
    /// `metadata.uid`
    pub uid: JobUid,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.suspend`
    pub suspended: bool,
    /// `spec.completions`
    pub completions: Option<u32>,
    /// `spec.parallelism`
    pub parallelism: Option<u32>,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
    /// `status.startTime`: when it was resumed last, as far as the Job controller has seen that.
    pub started: Option<Timestamp>,
    /// Condition `Suspended`: the Job controller has seen that it is, and has deleted its Pods.
    pub stopped: bool,
    /// `status.active`: its Pods that have not ended, and are not being deleted.
    pub active: u32,
    /// `status.terminating`: its Pods that are being deleted, and have not ended.
    pub terminating: u32,
    /// The Job controller has written a status since the spec was changed: the API server refuses one that it has made of an older Job. As long
    /// as it is not known, more Pods may be made than `parallelism` says.
    pub settled: bool,
    /// `status.completedIndexes`, as indexes of the `HTCJob`.
    pub succeeded: Indices,
    /// `status.failedIndexes`, as indexes of the `HTCJob`.
    pub failed: Indices,
    /// Condition `FailureTarget`: it is being cut short because of this.
    pub failing: Option<Exceeded>,
    /// Condition `Complete` or `Failed`: all its Pods have ended.
    pub end: Option<JobEnd>,
    /// Since when that condition holds.
    pub ended: Option<Timestamp>,
}

impl BatchJob {
    /// The Job controller has seen that it was resumed. Only after that its Pods are known by what it says when it is suspended.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        self.started.is_some() && !self.stopped
    }

    /// The Job controller has seen that it is suspended: it makes no Pods, and says how many are left.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.suspended && (self.started.is_none() || self.stopped)
    }
}

/// How a Job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// All its indexes succeeded.
    Complete,
    /// It failed.
    Failed {
        /// The limit that it has exceeded, if it was cut short.
        exceeded: Option<Exceeded>,
        /// The API server's words.
        message: String,
    },
}

/// What is known of the Pods of the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodsSeen {
    /// They are not known yet, or no longer.
    Unknown,
    /// The newest of each index.
    Known(BTreeMap<Index, Pod>),
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: Arc<str>,
    /// How it is doing.
    pub phase: PodPhase,
    /// Pods of its index that had failed before it.
    pub failures: u32,
    /// When its container was started.
    pub start: Option<SchedDate>,
    /// When that ended.
    pub end: Option<SchedDate>,
    /// Its node.
    pub node: Option<Arc<str>>,
    /// Since when its node has been asked to run it, on the scheduler's clock.
    pub placed: Option<Timestamp>,
    /// `metadata.deletionTimestamp`: when it should have ended at the latest, if it is being deleted.
    pub gone_by: Option<Timestamp>,
    /// The container's exit code.
    pub exit: Option<i32>,
    /// The container's last words.
    pub message: Option<Arc<str>>,
}

/// How a Pod is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// It has not started; why it may never, if there is a reason to think so.
    Pending(Option<Arc<str>>),
    /// It runs.
    Running,
    /// It has ended.
    Ended,
}

/// Whether Pods are left of a Job that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It was not asked.
    Unknown,
    /// The API server said that there are none.
    None,
    /// There are some.
    Some,
}

/// Whether the Job may be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Create {
    /// It may be tried.
    May,
    /// The API server has refused it.
    Refused {
        /// In one word.
        reason: Reason,
        /// In its words.
        message: String,
        /// When it is tried again, if ever.
        again: Option<Duration>,
    },
}
