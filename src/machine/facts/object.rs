//! The `HTCJob`, as the API server shows it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Record;
use crate::api::{MAX_QUEUE, Reason};
use crate::machine::ids::{JobId, SchedDate, ScheddName, Timestamp, Uid, read_id_ranges};
use crate::machine::indices::Indices;
use crate::machine::inherited::Inherited;
use crate::machine::phase::Phase;

/// The `HTCJob`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is one fact of its own")]
pub struct Object {
    /// `metadata.uid`
    pub uid: Uid,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// One of our finalizers stands.
    pub finalizer: bool,
    /// Whose ledger may submit it.
    pub claim: Claim,
    /// The spec, or why it cannot be read.
    pub spec: Result<Spec, Unreadable>,
    /// Where its output goes, for messages.
    pub output: String,
    /// What its status says.
    pub published: Published,
    /// `creationTimestamp`, on Kubernetes' clock; history must reach back to it where no intent is known.
    pub created: SchedDate,
    /// Annotation [`ABANDON`](crate::api::ABANDON).
    pub abandon: bool,
    /// Annotation [`SUBMIT_AGAIN`](crate::api::SUBMIT_AGAIN).
    pub submit_again: bool,
    /// HTCondor may hold, remove or run a job again after its payload has ended.
    pub may_rerun: bool,
    /// What the Go operator has left of it; none if that never had it.
    pub inherited: Option<Inherited>,
}

/// Which ledger claimed an object, in the patch that attached the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// None: no operator of this kind has touched it.
    None,
    /// This operator's ledger.
    Ours,
    /// Another ledger: a lost one, or another operator's.
    Other,
}

/// As much of the spec as decisions need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// `spec.queue`: indexes are smaller.
    pub queue: u32,
    /// `spec.indexes`; none for all of the queue.
    pub indexes: Option<Indices>,
    /// `spec.suspend`
    pub suspend: bool,
    /// `spec.parallelism`: most jobs that HTCondor may have that have not ended; none for no limit.
    pub parallelism: Option<u32>,
    /// `spec.maxFailedIndexes`: when more jobs have failed, the others are removed; none for no limit.
    pub max_failed: Option<u32>,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
    /// `spec.ttlSecondsAfterFinished`
    pub ttl: Option<Duration>,
    /// Why nothing more of it can be submitted. What was submitted before the operator, its settings or the pool changed goes on.
    pub refused: Option<SpecRefused>,
}

/// Why nothing of a spec is submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecRefused {
    /// The reason in the condition `Submitted`.
    pub reason: Reason,
    /// In words for the user.
    pub message: String,
}

impl SpecRefused {
    /// The spec itself is why.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into() }
    }
}

/// Why a spec cannot be read, or not yet: how many jobs it asks for is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unreadable {
    /// The reason in the condition `Submitted`.
    pub reason: Reason,
    /// In words for the user.
    pub message: String,
    /// When it is worth another look.
    pub again: Option<Duration>,
}

impl Unreadable {
    /// A spec that never can be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { reason: Reason::InvalidSpec, message: message.into(), again: None }
    }
}

impl Spec {
    /// The jobs that are to run.
    #[must_use]
    pub fn asked_for(&self) -> Indices {
        self.indexes.clone().unwrap_or_else(|| Indices::first(self.queue))
    }

    /// How many those are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.indexes.as_ref().map_or(self.queue as usize, Indices::len)
    }
}

/// What the object's status says. It proves presence, never absence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Published {
    /// `status.phase`
    pub phase: Option<Phase>,
    /// `status.attempt`
    pub attempt: u32,
    /// The ids of jobs that stand in the status.
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

    /// What the status is to list. It never gets shorter: what a ledger had that was lost, the next one may lack.
    #[must_use]
    pub fn to_list(&self, record: &Record) -> Listed {
        // Whoever has made each attempt that it shows has recorded all that it lists.
        let own = record.known.as_ref().is_some_and(|known| known.new) && self.attempt <= record.highest.0;
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

/// The ids of jobs that a status lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Listed {
    /// None.
    #[default]
    Nothing,
    /// These, in order: all that had been recorded when it was written.
    All(Vec<JobId>),
    /// Some, and nobody knows whether there are others: they were too many to be listed, or another program wrote them.
    Partly,
}

impl Listed {
    /// What a status lists whose `jobs` is this text.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let most = usize::try_from(MAX_QUEUE).unwrap_or(usize::MAX);
        read_id_ranges(text, most).map_or(Self::Partly, Self::All)
    }
}

/// Whether the ledger's past is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Past {
    /// This ledger has seen everything since it was made.
    Continuous,
    /// A new, lost or old ledger: objects that already carry our finalizer are doubtful. `settled` once the longest
    /// life of an earlier operator's submitter has passed, so that asking HTCondor is worth something.
    Unknown {
        /// The wait is over, and it ended at this time.
        settled: Option<Timestamp>,
    },
}
