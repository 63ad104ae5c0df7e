//! What is known about one `HTCJob`: the object, the ledger's record, the request in flight, HTCondor's answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use strum::{Display, EnumString, IntoStaticStr};

use super::ids::{Attempt, Birthdate, Index, JobId, Kind, RequestKey, SchedDate, ScheddName, Timestamp, Uid};
use super::indices::Indices;
use super::inherited::Inherited;
use super::outcome::Outcome;
use super::phase::Phase;
use super::rules::Rules;
use super::wishes::Wishes;
use crate::api::{ConditionStatus, ConditionType, Reason};

/// Everything that one decision is made from.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The object, as the API server last showed it (possibly stale).
    pub object: Object,
    /// What the ledger says of it.
    pub record: Record,
    /// Whether the ledger can be trusted to know all that happened before.
    pub past: Past,
    /// The request that is queued or running for this object. Read *before* `record`: a request that has just ended
    /// is then either still here or already in the record.
    pub in_flight: Option<InFlight>,
    /// HTCondor's dated answers.
    pub evidence: Evidence,
    /// When the first question was put that the queue has not answered since its last answer; none if that is not why there is
    /// none.
    pub silent_since: Option<Timestamp>,
    /// The schedd that gave them, and that takes what is submitted now.
    pub schedd: ScheddName,
}

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
    /// Why nothing more of it can be submitted, in words for the user. What was submitted before the operator or its settings
    /// changed goes on.
    pub refused: Option<String>,
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
    /// Some job id stands in the status.
    pub has_ids: bool,
    /// `status.schedd`
    pub schedd: Option<ScheddName>,
}

impl Published {
    /// Whether the status shows that HTCondor once had jobs of this object.
    #[must_use]
    pub fn shows_jobs(&self) -> bool {
        self.has_ids
            || self.phase.is_some_and(|phase| matches!(phase, Phase::Submitted | Phase::Running | Phase::Completed))
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
    /// What users ask for of single jobs.
    pub wishes: Wishes,
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

    /// Jobs that were tried and are not recorded: HTCondor may have them, or may get them yet.
    #[must_use]
    pub fn in_doubt(&self) -> Indices {
        let withdrawn = self.wishes.withdrawn();
        let tried = self.attempts.iter().flat_map(|attempt| attempt.indices.iter());
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

/// What HTCondor says of a job's runs. It is shown to people; nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Runs {
    /// `NumJobStarts`: how often HTCondor has started it.
    pub count: u32,
    /// `JobCurrentStartDate`: when it was started last.
    pub start: Option<SchedDate>,
    /// `CompletionDate`
    pub end: Option<SchedDate>,
    /// `RemoteHost` or, of a job that does not run, `LastRemoteHost`: its slot, such as `slot1_2@node7.cern.ch`.
    pub host: Option<Arc<str>>,
}

/// One accepted job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Its id in HTCondor.
    pub id: JobId,
    /// The attempt that submitted it; [`Attempt::INHERITED`] if that was the Go operator.
    pub attempt: Attempt,
    /// Birthdate of the queue in which it was seen.
    pub birthdate: Birthdate,
    /// When it was recorded.
    pub recorded: Timestamp,
    /// `StageInFinish`
    pub staged_in: SchedDate,
    /// It has started at least once.
    pub started: bool,
    /// How it is doing.
    pub state: JobState,
    /// Its output lies in the output folder.
    pub fetched: bool,
    /// It has ended and was proved to have left the queue.
    pub gone: bool,
    /// Where and when it ran.
    pub runs: Runs,
}

impl Job {
    /// Its outcome, if it has one.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.state.outcome()
    }

    /// Whether HTCondor has output of it that is not fetched.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.fetched && !self.gone && self.left_output()
    }

    /// Whether it ended in a way that leaves output.
    #[must_use]
    pub fn left_output(&self) -> bool {
        self.state.left_output()
    }
}

/// How one accepted job is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Waits for a machine.
    Idle,
    /// Runs, or its output is being transferred.
    Running,
    /// On hold.
    Held(Hold),
    /// Over.
    Ended(Outcome),
}

impl JobState {
    /// The outcome, if there is one.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Idle | Self::Running | Self::Held(_) => None,
        }
    }

    /// Whether it is an end that leaves output.
    #[must_use]
    pub fn left_output(&self) -> bool {
        self.outcome().is_some_and(Outcome::left_output)
    }
}

/// Why a job is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// `HoldReasonCode`
    pub code: i64,
    /// `HoldReasonSubCode`
    pub subcode: i64,
    /// `HoldReason`
    pub reason: String,
}

impl Hold {
    /// `HoldReasonCode` of a hold by a person or a tool.
    pub const BY_USER: i64 = 1;
    /// `HoldReasonCode` of a job whose output is larger than it may be.
    pub const OUTPUT_TOO_LARGE: i64 = 33;
    /// `HoldReasonCode` of a job whose files are being spooled.
    pub const SPOOLING: i64 = 16;
    /// `HoldReasonSubCode` of the holds that this operator makes for `spec.suspend`.
    pub const SUSPENDED: i64 = 8_472;
    /// `HoldReasonSubCode` of the holds of single jobs that users ask for.
    pub const WISHED: i64 = 8_473;

    /// Whether this hold is the operator's own, for `spec.suspend`.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        self.code == Self::BY_USER && self.subcode == Self::SUSPENDED
    }
}

/// The last request of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LastRequest {
    /// The attempt it belonged to.
    pub attempt: Attempt,
    /// How many of this kind there were, this one included.
    pub step: u32,
    /// When it was taken up.
    pub started: Timestamp,
    /// When its tool had ended; none if that was not seen.
    pub finished: Option<Timestamp>,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Failures in a row, this one included.
    pub failures: u32,
}

impl LastRequest {
    /// When it ended, or began if its end was not seen.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.finished.unwrap_or(self.started)
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// One word, for a condition.
    pub reason: String,
    /// In words for the admin.
    pub message: String,
}

impl Failure {
    /// What went wrong.
    #[must_use]
    pub fn new(reason: Reason, message: String) -> Self {
        Self { reason: reason.to_string(), message }
    }

    /// Its reason, unless another version of the operator wrote it.
    #[must_use]
    pub fn known_reason(&self) -> Option<Reason> {
        self.reason.parse().ok()
    }
}

impl From<Unknown> for Failure {
    fn from(unknown: Unknown) -> Self {
        Self::new(unknown.why.into(), unknown.message)
    }
}

/// A request that has been handed over and not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    /// Which.
    pub key: RequestKey,
    /// Whether its worker has taken it up.
    pub running: bool,
}

impl InFlight {
    /// Whether it can be taken back: one that no worker has taken up, and a transfer of output, which a worker stops half way.
    #[must_use]
    pub fn can_be_cancelled(&self, rules: &Rules) -> bool {
        !self.running || (self.key.kind == Kind::Fetch && rules.stop_transfers)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, IntoStaticStr)]
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
            Why::NotWritten => Self::FetchFailed,
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
    /// The ads, by id.
    pub ads: Arc<[Ad]>,
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
    /// The ads.
    pub ads: Arc<[Ad]>,
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
    /// `CompletionDate` > 0
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
            _ => None,
        }
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
