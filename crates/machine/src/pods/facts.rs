//! Facts about one `HTCJob` whose jobs are Pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::condition::Reason;
use crate::facts::{Claim, Past, QueueFacts, Spec, Unreadable};
use crate::ids::{Index, SchedDate, Timestamp, Uid};
use crate::indices::Indices;
use crate::runs::{JobUid, RunsRecord};

pub use crate::facts::Exceeded;

/// All input of one decision.
#[derive(Clone, Debug)]
pub struct PodsFacts {
    /// The `HTCJob`.
    pub object: PodsObject,
    /// The ledger's record of the object.
    pub record: RunsRecord,
    /// Whether the ledger is known to have recorded everything that happened before.
    pub past: Past,
    /// The object's Job.
    pub job: JobObservation,
    /// Pods of the Job: the newest of each index.
    pub pods: PodsObservation,
    /// Whether Pods of a Job that is gone are left.
    pub leftover_pods: LeftoverPods,
    /// Whether the Job may be created.
    pub creation: Creation,
    /// Message of the API server about the last change of the Job; none if it was accepted.
    pub update_refused: Option<String>,
    /// Queue that the object is in; none if it needs no quota.
    pub queue: Option<QueueFacts>,
    /// Maximum number of Pods that may run at a time, given those of others in the namespace; none for no limit.
    pub namespace_limit: Option<usize>,
}

/// Facts about the `HTCJob`, as read from the API server.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct PodsObject {
    /// `metadata.uid`
    pub uid: Uid,
    /// Whether `deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether our finalizer is attached.
    pub finalizer: bool,
    /// Ledger that has claimed the object and may create its Job.
    pub claim: Claim,
    /// Spec, or the reason why it cannot be read.
    pub spec: Result<Spec, Unreadable>,
    /// Name of the object's Job, existing or not.
    pub job_name: String,
    /// Whether the status shows that there once was a Job. It proves presence, never absence.
    pub shows_job: bool,
    /// Whether annotation [`ABANDON_ANNOTATION`](crate::annotations::ABANDON_ANNOTATION) is set.
    pub abandon: bool,
    /// Whether annotation [`SUBMIT_AGAIN_ANNOTATION`](crate::annotations::SUBMIT_AGAIN_ANNOTATION) is set.
    pub submit_again: bool,
}

/// What is known about the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobObservation {
    /// It is not known whether the Job exists. Says why; empty before the first request.
    Unknown(String),
    /// The API server answered that the Job does not exist.
    Absent,
    /// Another object has the Job's name. Says whose it is.
    Foreign(String),
    /// The Job exists, and the `HTCJob` is its controller.
    Ours(BatchJob),
}

/// State of the object's Job; only the recorded Job counts.
pub(super) enum OwnJob<'a> {
    /// It is not known whether the Job exists. Says why; empty before the first request.
    Unknown(&'a str),
    /// The Job does not exist.
    Gone,
    /// The Job exists.
    Here(&'a BatchJob),
}

impl PodsFacts {
    /// Returns the state of the Job of `record`. Another Job of the same name is not this object's.
    pub(super) fn own_job(&self, record: &RunsRecord) -> OwnJob<'_> {
        match &self.job {
            JobObservation::Unknown(why) => OwnJob::Unknown(why),
            JobObservation::Ours(job) if record.job.as_ref().is_none_or(|uid| *uid == job.uid) => OwnJob::Here(job),
            JobObservation::Absent | JobObservation::Foreign(_) | JobObservation::Ours(_) => OwnJob::Gone,
        }
    }
}

/// A Job of `batch/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct BatchJob {
    /// `metadata.uid`
    pub uid: JobUid,
    /// Whether `deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.suspend`
    pub suspended: bool,
    /// `spec.completions`
    pub completions: Option<u32>,
    /// `spec.parallelism`
    pub parallelism: Option<u32>,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
    /// `status.startTime`: when the Job was last resumed, as far as the Job controller has seen that.
    pub started: Option<Timestamp>,
    /// Condition `Suspended`: the Job controller has seen the suspension and has deleted the Pods.
    pub stopped: bool,
    /// `status.active`: number of Pods that have not ended and are not being deleted.
    pub active: u32,
    /// `status.terminating`: number of Pods that are being deleted and have not ended.
    pub terminating: u32,
    /// Whether the Job controller has written a status since the spec was changed.
    /// The API server refuses a status that was computed from an older Job.
    /// While this is false, more Pods may be created than `parallelism` allows.
    pub settled: bool,
    /// `status.completedIndexes`, as indexes of the `HTCJob`.
    pub succeeded: Indices,
    /// `status.failedIndexes`, as indexes of the `HTCJob`.
    pub failed: Indices,
    /// Condition `FailureTarget`: the Job is being cut short because of this limit.
    pub failing: Option<Exceeded>,
    /// Condition `Complete` or `Failed`: all Pods have ended.
    pub end: Option<JobEnd>,
    /// Since when that condition holds.
    pub ended: Option<Timestamp>,
}

impl BatchJob {
    /// Whether the Job controller has seen that the Job was resumed.
    /// Only after that its report about a suspension covers all Pods.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        self.started.is_some() && !self.stopped
    }

    /// Whether the Job controller has seen that the Job is suspended. It then creates no Pods, and reports how many are
    /// left.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.suspended && (self.started.is_none() || self.stopped)
    }
}

/// End of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// All indexes succeeded.
    Complete,
    /// The Job failed.
    Failed {
        /// Limit that was exceeded, if the Job was cut short.
        exceeded: Option<Exceeded>,
        /// Message of the API server.
        message: String,
    },
}

/// What is known about the Pods of the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodsObservation {
    /// The Pods are not known yet, or not any more.
    Unknown,
    /// The newest Pod of each index.
    Known(BTreeMap<Index, Pod>),
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Name of the Pod.
    pub name: Arc<str>,
    /// State of the Pod.
    pub phase: PodPhase,
    /// Number of Pods of the same index that had failed before this one.
    pub failures: u32,
    /// When the container started.
    pub start: Option<SchedDate>,
    /// When the container ended.
    pub end: Option<SchedDate>,
    /// Node that the Pod is assigned to.
    pub node: Option<Arc<str>>,
    /// When the Pod was assigned to its node, on the scheduler's clock.
    pub placed: Option<Timestamp>,
    /// `metadata.deletionTimestamp`: when a Pod that is being deleted should have ended at the latest.
    pub gone_by: Option<Timestamp>,
    /// Exit code of the container.
    pub exit: Option<i32>,
    /// Termination message of the container.
    pub message: Option<Arc<str>>,
}

/// State of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// The Pod has not started. Says why it may never start, if there is a reason to think so.
    Pending(Option<Arc<str>>),
    /// The Pod runs.
    Running,
    /// The Pod has ended.
    Ended,
}

/// Whether Pods of a Job that is gone are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverPods {
    /// The API server was not asked.
    Unknown,
    /// The API server answered that there are none.
    None,
    /// There are some.
    Some,
}

/// Whether the Job may be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Creation may be tried.
    Allowed,
    /// The API server has refused the Job.
    Refused {
        /// Reason, in one word.
        reason: Reason,
        /// Message of the API server.
        message: String,
        /// Time until the next try; none if there is none.
        requeue_after: Option<Duration>,
    },
}
