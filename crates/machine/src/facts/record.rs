//! The ledger's record of one object.

use std::collections::{BTreeMap, BTreeSet};

use strum::{Display, EnumString, IntoStaticStr};

use super::{Job, JobState, LastRequest};
use crate::actions::RequestedActions;
use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::ids::{Attempt, Birthdate, Index, JobId, RequestKind, SchedDate, ScheddName, Timestamp};
use crate::indices::Indices;
use crate::outcome::Outcome;
use crate::phase::Phase;

/// The ledger's record of one object; empty if the ledger has nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Row of the object itself; none if it has none yet.
    pub row: Option<ObjectRow>,
    /// Submissions that are neither superseded nor settled, oldest first.
    pub attempts: Vec<Submission>,
    /// Highest attempt ever made, whatever its outcome.
    pub highest: Attempt,
    /// For each attempt, the witness: what history showed before the intent.
    /// Settled attempts are included only if some of their jobs are not gone.
    pub witnesses: BTreeMap<Attempt, Witness>,
    /// Indices that were ever part of an attempt. Those of settled attempts are left out: all their jobs are in `jobs`.
    pub attempted: Indices,
    /// Number of attempts in a row of which HTCondor accepted nothing.
    pub refused: u32,
    /// Accepted jobs, by index.
    pub jobs: BTreeMap<Index, Job>,
    /// Schedds that accepted jobs which are not known to be gone.
    pub schedds: BTreeSet<ScheddName>,
    /// Last request of each kind.
    pub requests: BTreeMap<RequestKind, LastRequest>,
    /// Reports of the jobs themselves, by id; only of jobs without an outcome, recorded or not.
    /// Reports are hints: HTCondor's answers take precedence.
    /// After a decision, only reports of ends that count until HTCondor reports how the jobs ended.
    pub reports: BTreeMap<JobId, Report>,
    /// Last output on `err` of the first failed job whose output was fetched.
    pub err_tail: Option<ErrTail>,
    /// Jobs whose output was fetched but not kept.
    pub refusals: BTreeMap<Index, OutputRefusal>,
    /// Output of fetched jobs that was left out; none if all came.
    pub omitted: Option<OmittedOutput>,
    /// Actions on single jobs that users request.
    pub requested_actions: RequestedActions,
    /// Jobs that have quota in the object's queue.
    pub granted: Indices,
    /// Queue that first granted quota to the object.
    pub granting_queue: Option<String>,
}

/// Output that was fetched only in part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OmittedOutput {
    /// Number of jobs some of whose output was left out.
    pub jobs: usize,
    /// Index of the first such job.
    pub index: Index,
    /// What was left out of that job's output, in the words of `job.sh`.
    pub what: String,
}

/// Why a job's output was not kept. Fetching it again would not help: a job that has ended leaves nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputRefusal {
    /// Message that includes the next step.
    pub why: String,
    /// Whether the limits that caused the refusal are still the same.
    pub stands: bool,
}

impl Record {
    /// Whether the record has adopted jobs of the Go operator.
    #[must_use]
    pub fn has_inherited(&self) -> bool {
        self.jobs.values().any(|job| job.attempt == Attempt::INHERITED)
    }

    /// Returns when the last request of these kinds ended, or began if its end was not seen.
    pub(crate) fn last_request(&self, kinds: &[RequestKind]) -> Option<Timestamp> {
        kinds.iter().filter_map(|kind| self.requests.get(kind)).map(LastRequest::latest).max()
    }

    /// Returns the jobs whose output is to be fetched.
    #[must_use]
    pub fn to_fetch(&self) -> Indices {
        let refused = |index: &Index| self.refusals.get(index).is_some_and(|refusal| refusal.stands);
        let waiting = self.jobs.iter().filter(|(index, job)| job.has_output() && !refused(index));
        waiting.map(|(index, _)| *index).collect()
    }

    /// Returns the jobs that HTCondor has or may have: those that have not ended, and those of attempts that are not
    /// proved to have been refused.
    /// Jobs that this operator holds are not among them: they count by the quota that they have, and are not released
    /// without it.
    #[must_use]
    pub fn in_use(&self) -> Indices {
        let is_open = |job: &Job| match &job.state {
            JobState::Idle | JobState::Running => true,
            JobState::Held(hold) => !hold.awaits_quota(),
            JobState::Ended(_) => false,
        };
        let open: Indices = self.jobs.iter().filter(|(_, job)| is_open(job)).map(|(index, _)| *index).collect();
        // Once the object has completed, jobs that are not recorded were given up with a proof.
        let completed = self.row.as_ref().is_some_and(|known| known.phase == Phase::Completed);
        if completed { open } else { Indices::union(&[open, self.in_doubt()]) }
    }

    /// Returns the jobs that were part of an attempt and are not recorded: HTCondor may have them, or may still get
    /// them.
    #[must_use]
    pub fn in_doubt(&self) -> Indices {
        self.missing_of(|attempt| !attempt.absent)
    }

    /// Returns the jobs that were part of an attempt and are not recorded, even if their absence is proved.
    #[must_use]
    pub fn tried_and_missing(&self) -> Indices {
        self.missing_of(|_| true)
    }

    fn missing_of(&self, which: impl Fn(&Submission) -> bool) -> Indices {
        let withdrawn = self.requested_actions.withdrawn();
        let tried = self.attempts.iter().filter(|attempt| which(attempt)).flat_map(|attempt| attempt.indices.iter());
        tried.filter(|index| !self.jobs.contains_key(index) && !withdrawn.contains(*index)).collect()
    }
}

/// Report of a job about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// When the report of the payload's start reached the operator.
    pub started: Option<Timestamp>,
    /// Report of the payload's end.
    pub ended: Option<ReportedEnd>,
}

/// End of a payload, as its job reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReportedEnd {
    /// When the report reached the operator.
    pub at: Timestamp,
    /// Exit code of the payload.
    pub code: i32,
}

impl ReportedEnd {
    /// Returns the outcome that HTCondor will report if this was the job's last end.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self.code {
            0 => Outcome::Succeeded,
            code => Outcome::Failed(code),
        }
    }
}

/// Last lines of a failed job's `err`: short, and without characters that could harm a reader's terminal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrTail {
    /// Index of the job.
    pub index: Index,
    /// The last lines, joined into one.
    pub text: String,
}

/// The ledger's row of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRow {
    /// Current phase.
    pub phase: Phase,
    /// Whether the object was new when its row was written: no earlier operator can have submitted its jobs.
    pub new: bool,
    /// When HTCondor accepted the first job.
    pub started: Option<Timestamp>,
    /// When all jobs had an outcome.
    pub completed: Option<Timestamp>,
    /// Set once a limit in the spec is exceeded: no more jobs are submitted, and jobs that have not ended are removed.
    pub cut_short: Option<CutShort>,
    /// Number of jobs that were never accepted and, since the object was cut short, never will be.
    pub given_up: u32,
    /// Whether absence was proved and journaled. The finalizer may be gone already.
    pub released: bool,
    /// Last `HTCQueue` that the object was in. Unless it is in that one or another, none of its jobs begins.
    pub last_queue: Option<String>,
    /// Conditions as last set.
    pub conditions: Vec<ConditionRecord>,
}

impl ObjectRow {
    /// Returns the first row of an object.
    #[must_use]
    pub const fn found(new: bool) -> Self {
        Self {
            phase: Phase::Pending,
            new,
            started: None,
            completed: None,
            cut_short: None,
            given_up: 0,
            released: false,
            last_queue: None,
            conditions: Vec::new(),
        }
    }
}

/// When an object was cut short, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutShort {
    /// When the limit was found exceeded.
    pub at: Timestamp,
    /// Limit that was exceeded.
    pub exceeded: Exceeded,
}

/// A limit in the spec that ends an object before all its jobs have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
pub enum Exceeded {
    /// `activeDeadlineSeconds`
    #[strum(serialize = "activeDeadlineSeconds")]
    Deadline,
    /// `maxFailedIndexes`
    #[strum(serialize = "maxFailedIndexes")]
    FailedIndexes,
}

impl Exceeded {
    /// Returns the reason for conditions.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Deadline => Reason::DeadlineExceeded,
            Self::FailedIndexes => Reason::MaxFailedIndexesExceeded,
        }
    }
}

/// One condition, as stored in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConditionRecord {
    /// Type of the condition.
    pub kind: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// Reason, in one word.
    pub reason: String,
    /// Explanation for people and, if there is one, the next step.
    pub message: String,
    /// When `status` last changed.
    pub since: Timestamp,
}

/// One submission: its intent, and what is known about its submitter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submission {
    /// Number of the attempt.
    pub attempt: Attempt,
    /// Jobs of the attempt.
    pub indices: Indices,
    /// Schedd that the jobs were submitted to.
    pub schedd: ScheddName,
    /// Birthdate of that schedd, read before the intent.
    pub birthdate: Birthdate,
    /// When the intent was made.
    pub intent_at: Timestamp,
    /// When the intent was made, on the schedd's clock.
    pub intent_date: SchedDate,
    /// When `timeout` kills the submitter, even if the operator is gone.
    pub submitter_deadline: Timestamp,
    /// When the submitter and its whole process group were seen to be dead.
    pub dead_since: Option<Timestamp>,
    /// Error message of condor_submit; none if it did not report a failure.
    pub refusal: Option<String>,
    /// Whether jobs of this attempt that are not recorded are proved never to have been accepted.
    pub absent: bool,
}

/// Newest ad in history before an intent.
/// History drops its oldest ads first and lists ads in the order in which jobs left the queue. While the witness is
/// still in history, so is everything that left the queue after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Witness {
    /// History was empty.
    Empty,
    /// `GlobalJobId` of the newest ad.
    Newest(String),
}

/// How far back history must reach, or was found to reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HistoryReach {
    /// Witnesses that must still be in history.
    pub witnesses: BTreeSet<String>,
    /// For attempts without a witness: history must have a job that left the queue before this date.
    pub date: Option<SchedDate>,
}
