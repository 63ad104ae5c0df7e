//! What the ledger has about one object.

use std::collections::{BTreeMap, BTreeSet};

use strum::{Display, EnumString, IntoStaticStr};

use super::{Job, JobState, LastRequest};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::ids::{Attempt, Birthdate, Index, JobId, Kind, SchedDate, ScheddName, Timestamp};
use crate::machine::indices::Indices;
use crate::machine::outcome::Outcome;
use crate::machine::phase::Phase;
use crate::machine::wishes::Wishes;

/// What the ledger has about one object; empty if it has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The object's own row.
    pub known: Option<Known>,
    /// Its submissions that are neither superseded nor settled, oldest first.
    pub attempts: Vec<Submission>,
    /// The highest attempt ever, whatever became of it.
    pub highest: Attempt,
    /// For each attempt, what was seen in history before its intent; of those that are settled, only for those that have jobs
    /// which are not gone.
    pub witnesses: BTreeMap<Attempt, Witness>,
    /// Indices that were ever part of an attempt; all jobs of those that are settled are recorded, and not repeated here.
    pub attempted: Indices,
    /// Attempts in a row of which HTCondor accepted nothing.
    pub refused: u32,
    /// Its accepted jobs.
    pub jobs: BTreeMap<Index, Job>,
    /// The schedds that those were accepted by which are not known to be gone.
    pub schedds: BTreeSet<ScheddName>,
    /// The last request of each kind.
    pub requests: BTreeMap<Kind, LastRequest>,
    /// What its jobs say of themselves, by id; only of jobs without an outcome, recorded or not. Hints: what HTCondor says
    /// is the truth. After a decision, only the ends that count until HTCondor says how the jobs ended.
    pub reports: BTreeMap<JobId, Report>,
    /// What the first failed job whose output is here wrote last.
    pub err: Option<ErrTail>,
    /// Jobs whose output came and was not kept.
    pub refusals: BTreeMap<Index, Refusal>,
    /// What of the output of fetched jobs did not come back; none if all did.
    pub omitted: Option<Omitted>,
    /// What users ask for of single jobs.
    pub wishes: Wishes,
    /// Jobs that have room in its queue.
    pub granted: Indices,
    /// The queue that gave it room first.
    pub queue: Option<String>,
}

/// Output that did not come back whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Omitted {
    /// How many jobs left something that did not come back.
    pub jobs: usize,
    /// The first of them.
    pub index: Index,
    /// What of its output that was, in the words of `job.sh`.
    pub what: String,
}

/// Why a job's output was not kept. It would be the same again: a job that has ended leaves nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// In words, and what to do about it.
    pub why: String,
    /// The limits are those by which it was refused.
    pub stands: bool,
}

impl Record {
    /// Whether jobs of the Go operator are adopted.
    #[must_use]
    pub fn has_inherited(&self) -> bool {
        self.jobs.values().any(|job| job.attempt == Attempt::INHERITED)
    }

    /// Jobs whose output is to be fetched.
    #[must_use]
    pub fn to_fetch(&self) -> Indices {
        let refused = |index: &Index| self.refusals.get(index).is_some_and(|refusal| refusal.stands);
        let waiting = self.jobs.iter().filter(|(index, job)| job.has_output() && !refused(index));
        waiting.map(|(index, _)| *index).collect()
    }

    /// Jobs that HTCondor has, or may have: those that have not ended, and those of attempts that are not known to have come to
    /// nothing. Not those that this operator holds: with the room that they have they count, and are not released without.
    #[must_use]
    pub fn in_use(&self) -> Indices {
        let is_open = |job: &Job| match &job.state {
            JobState::Idle | JobState::Running => true,
            JobState::Held(hold) => !hold.waits_for_room(),
            JobState::Ended(_) => false,
        };
        let open: Indices = self.jobs.iter().filter(|(_, job)| is_open(job)).map(|(index, _)| *index).collect();
        // Of what has completed, the rest was given up with a proof.
        let completed = self.known.as_ref().is_some_and(|known| known.phase == Phase::Completed);
        if completed { open } else { Indices::union(&[open, self.in_doubt()]) }
    }

    /// Jobs that were tried and are not recorded: HTCondor may have them, or may get them yet.
    #[must_use]
    pub fn in_doubt(&self) -> Indices {
        self.missing_of(|attempt| !attempt.absent)
    }

    /// Jobs that were tried and are not recorded, whatever is proved of them.
    #[must_use]
    pub fn tried_and_missing(&self) -> Indices {
        self.missing_of(|_| true)
    }

    fn missing_of(&self, which: impl Fn(&Submission) -> bool) -> Indices {
        let withdrawn = self.wishes.withdrawn();
        let tried = self.attempts.iter().filter(|attempt| which(attempt)).flat_map(|attempt| attempt.indices.iter());
        tried.filter(|index| !self.jobs.contains_key(index) && !withdrawn.contains(*index)).collect()
    }
}

/// What a job says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    /// When its payload began, as it came to the operator's ears.
    pub started: Option<Timestamp>,
    /// That its payload has ended.
    pub ended: Option<End>,
}

/// A payload's end, as its job reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// When it came to the operator's ears.
    pub at: Timestamp,
    /// The exit code.
    pub code: i32,
}

impl End {
    /// What HTCondor will say, if that was the end.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self.code {
            0 => Outcome::Succeeded,
            code => Outcome::Failed(code),
        }
    }
}

/// The end of a failed job's `err`: short, and with nothing in it that could harm whoever reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrTail {
    /// Which job.
    pub index: Index,
    /// Its last lines, as one.
    pub text: String,
}

/// The ledger's row of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    /// Where it stands.
    pub phase: Phase,
    /// The object was new when its row was written: no earlier operator can have submitted it.
    pub new: bool,
    /// First acceptance.
    pub started: Option<Timestamp>,
    /// All jobs had an outcome.
    pub completed: Option<Timestamp>,
    /// It was cut short: nothing is submitted any more, and what has not ended is removed.
    pub cut_short: Option<CutShort>,
    /// Jobs that were never accepted and, since it was cut short, never will be.
    pub given_up: u32,
    /// Absence was proved and journaled; the finalizer may be gone already.
    pub released: bool,
    /// The `HTCQueue` that it was in last. Without it, or another one, nothing of it begins.
    pub queue: Option<String>,
    /// What was last said in conditions.
    pub conditions: Vec<Condition>,
}

/// When an object was cut short, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutShort {
    /// When that was decided.
    pub at: Timestamp,
    /// What it has exceeded.
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
    /// The reason in conditions.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Deadline => Reason::DeadlineExceeded,
            Self::FailedIndexes => Reason::MaxFailedIndexesExceeded,
        }
    }
}

/// One condition, as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Which.
    pub kind: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, one word.
    pub reason: String,
    /// Human-readable explanation and, if there is one, the next step.
    pub message: String,
    /// When `status` last changed.
    pub since: Timestamp,
}

/// One submission: an intent, and what is known of its submitter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submission {
    /// Its number.
    pub attempt: Attempt,
    /// The jobs it was to submit.
    pub indices: Indices,
    /// The schedd it went to.
    pub schedd: ScheddName,
    /// That schedd's birthdate, read before the intent.
    pub birthdate: Birthdate,
    /// When the intent was made.
    pub intent_at: Timestamp,
    /// The same on the schedd's clock.
    pub intent_date: SchedDate,
    /// When `timeout` kills the submitter, whoever still lives.
    pub not_after: Timestamp,
    /// When the submitter was seen to be dead, with its whole process group.
    pub dead_since: Option<Timestamp>,
    /// What condor_submit said, if it said that it failed.
    pub refusal: Option<String>,
    /// Of its jobs, those that are not recorded are proved never to have been accepted.
    pub absent: bool,
}

/// What was seen in history before an intent. History drops its oldest ads first and lists them in the order in which they
/// left the queue: while the witness is still there, so is everything that left after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Witness {
    /// History was empty.
    Empty,
    /// `GlobalJobId` of the newest ad.
    Newest(String),
}

/// How far back history must reach to prove something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reach {
    /// Ads that must still be there.
    pub witnesses: BTreeSet<String>,
    /// Where no witness is known: the date before which something must have left the queue that is still in history.
    pub date: Option<SchedDate>,
}
