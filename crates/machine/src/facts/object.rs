//! Facts about the `HTCJob`, as read from the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Record;
use crate::condition::Reason;
use crate::ids::{JobId, SchedDate, ScheddName, Timestamp, Uid, read_id_ranges};
use crate::indices::Indices;
use crate::phase::Phase;
use crate::rules::MAX_QUEUE;

/// Facts about the `HTCJob`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct Object {
    /// `metadata.uid`
    pub uid: Uid,
    /// Whether `deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether one of our finalizers is attached.
    pub finalizer: bool,
    /// Ledger that has claimed the object and may submit its jobs.
    pub claim: Claim,
    /// Spec, or the reason why it cannot be read.
    pub spec: Result<Spec, Unreadable>,
    /// Location of the output, for messages.
    pub output: String,
    /// Contents of the status.
    pub published: Published,
    /// `creationTimestamp`, on Kubernetes' clock. History must reach back to it where no intent is known.
    pub created: SchedDate,
    /// Whether annotation [`ABANDON_ANNOTATION`](crate::annotations::ABANDON_ANNOTATION) is set.
    pub abandon: bool,
    /// Whether annotation [`SUBMIT_AGAIN_ANNOTATION`](crate::annotations::SUBMIT_AGAIN_ANNOTATION) is set.
    pub submit_again: bool,
    /// Whether HTCondor may hold, remove or rerun a job after its payload has ended.
    pub may_rerun: bool,
    /// Whether the Go operator managed the object and its jobs are not adopted: any jobs of it may exist.
    pub unadopted: bool,
}

/// Ledger that claimed an object. The claim is set in the patch that attaches the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// No ledger: no operator of this kind has touched the object.
    None,
    /// This operator's ledger.
    Ours,
    /// Another ledger: a lost one, or that of another operator.
    Other,
}

/// Fields of the spec that decisions depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// `spec.queue`: number of jobs. Indexes are smaller than this.
    pub queue: u32,
    /// `spec.indexes`; none if all indexes of the queue are to run.
    pub indexes: Option<Indices>,
    /// `spec.suspend`
    pub suspend: bool,
    /// `spec.parallelism`: maximum number of jobs in HTCondor that have not ended; none for no limit.
    pub parallelism: Option<u32>,
    /// `spec.maxFailedIndexes`: once more jobs than this have failed, the others are removed; none for no limit.
    pub max_failed: Option<u32>,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
    /// `spec.ttlSecondsAfterFinished`
    pub ttl: Option<Duration>,
    /// Why no further jobs can be submitted. Jobs submitted before the operator, its settings or the pool changed go
    /// on.
    pub refused: Option<SpecRefused>,
}

/// Why no jobs of a spec are submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecRefused {
    /// Reason for the condition `Submitted`.
    pub reason: Reason,
    /// Message for the user.
    pub message: String,
}

impl SpecRefused {
    /// Refuses a spec that is itself invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into() }
    }
}

/// Why a spec cannot be read, or not yet. The number of jobs is then not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unreadable {
    /// Reason for the condition `Submitted`.
    pub reason: Reason,
    /// Message for the user.
    pub message: String,
    /// Time after which to reconcile again; none if only a change can help.
    pub requeue_after: Option<Duration>,
}

impl Unreadable {
    /// Rejects a spec that can never be read.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into(), requeue_after: None }
    }
}

impl Spec {
    /// Returns the indices of the jobs that are to run.
    #[must_use]
    pub fn asked_for(&self) -> Indices {
        self.indexes.clone().unwrap_or_else(|| Indices::first(self.queue))
    }

    /// Returns the number of jobs that are to run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.indexes.as_ref().map_or(self.queue as usize, Indices::len)
    }
}

/// Contents of the object's status. The status proves that jobs exist, never that they do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Published {
    /// `status.phase`
    pub phase: Option<Phase>,
    /// `status.attempt`
    pub attempt: u32,
    /// Ids of jobs that are listed in the status.
    pub listed: Listed,
    /// `status.schedd`
    pub schedd: Option<ScheddName>,
}

impl Published {
    /// Whether the status shows that HTCondor once had jobs of this object.
    #[must_use]
    pub fn shows_jobs(&self) -> bool {
        self.listed != Listed::Nothing
            || self.phase.is_some_and(|phase| matches!(phase, Phase::Submitted | Phase::Running | Phase::Completed))
    }

    /// Whether the status shows a job that `record` lacks, or may do so.
    #[must_use]
    pub fn shows_more_than(&self, record: &Record) -> bool {
        match &self.listed {
            // Each of its jobs had ended.
            _ if self.phase == Some(Phase::Completed) => true,
            Listed::Nothing => self.shows_jobs(),
            Listed::All(ids) => {
                let recorded: BTreeSet<JobId> = record.jobs.values().map(|job| job.id).collect();
                !ids.iter().all(|id| recorded.contains(id))
            }
            Listed::Partly => true,
        }
    }

    /// Returns the ids that the status is to list. The list never gets shorter: if a ledger is lost, the next one may
    /// lack jobs that the lost one had.
    #[must_use]
    pub fn to_list(&self, record: &Record) -> Listed {
        // If this ledger made each attempt that the status shows, it has recorded all jobs that the status lists.
        let own = record.row.as_ref().is_some_and(|known| known.new) && self.attempt <= record.highest.0;
        let recorded = record.jobs.values().map(|job| job.id);
        let mut ids: Vec<JobId> = match &self.listed {
            Listed::Partly if !own => return Listed::Partly,
            Listed::All(listed) if !own => recorded.chain(listed.iter().copied()).collect(),
            Listed::Nothing | Listed::All(_) | Listed::Partly => recorded.collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() { Listed::Nothing } else { Listed::All(ids) }
    }
}

/// Ids of jobs that a status lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Listed {
    /// None.
    #[default]
    Nothing,
    /// These ids, sorted: all jobs that were recorded when the status was written.
    All(Vec<JobId>),
    /// Some jobs are not listed, or it is unknown whether there are others.
    /// Either there were too many to list, or another program wrote the status.
    Partly,
}

impl Listed {
    /// Parses the field `jobs` of a status.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let most = usize::try_from(MAX_QUEUE).unwrap_or(usize::MAX);
        read_id_ranges(text, most).map_or(Self::Partly, Self::All)
    }
}

/// Whether the ledger's past is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Past {
    /// This ledger has recorded everything since it was created.
    Continuous,
    /// The ledger is new, was lost or restored. Objects that already have our finalizer are then in doubt.
    /// Answers of HTCondor count once every submitter of an earlier operator has reached its longest life: see
    /// `settled`.
    Unknown {
        /// When that wait ended; none while it lasts.
        settled: Option<Timestamp>,
    },
}
