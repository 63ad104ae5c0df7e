//! One accepted job.

use std::sync::Arc;

use super::evidence::{Exit, JobStatus};
use crate::machine::ids::{Attempt, Birthdate, JobId, SchedDate, Timestamp};
use crate::machine::outcome::Outcome;

/// What HTCondor says of a job's runs. It is shown to people; nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Runs {
    /// `NumJobStarts`: how often HTCondor has started it.
    pub count: u32,
    /// `NumJobCompletions`: how often it has ended by itself, the last time included. HTCondor runs it again after that if it has
    /// retries left.
    pub exits: u32,
    /// `ExitCode` or `ExitSignal`: how it ended last. HTCondor puts SIGTERM there, too, when it interrupts a job.
    pub last_exit: Option<Exit>,
    /// `LastVacateTime`: when HTCondor interrupted it last.
    pub vacated: Option<SchedDate>,
    /// `JobCurrentStartDate`: when it was started last.
    pub start: Option<SchedDate>,
    /// `CompletionDate`
    pub end: Option<SchedDate>,
    /// `RemoteHost` or, of a job that does not run, `LastRemoteHost`: its slot, such as `slot1_2@node7.cern.ch`.
    pub host: Option<Arc<str>>,
    /// What keeps an idle job from being matched with a machine.
    pub waits_for: Option<WaitsFor>,
}

/// What keeps an idle job from being matched with a machine: HTCondor's own words, and the numbers of `JobStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitsFor {
    /// `JobStatus` 9, BLOCKED: files that it shares with other jobs are not there yet.
    SharedFiles,
    /// `JobStatus` 10, PREPARING: tasks of the schedd that its administrator has set (`JOB_PREPARING_TASK_NAMES`).
    Preparation,
}

impl WaitsFor {
    /// What `JobStatus` says.
    #[must_use]
    pub const fn of(status: JobStatus) -> Option<Self> {
        match status {
            JobStatus::Blocked => Some(Self::SharedFiles),
            JobStatus::Preparing => Some(Self::Preparation),
            _ => None,
        }
    }

    /// Its `JobStatus`.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::SharedFiles => 9,
            Self::Preparation => 10,
        }
    }

    /// For users.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::SharedFiles => "the job waits for files that it shares with other jobs (BLOCKED)",
            Self::Preparation => "the schedd prepares the job (PREPARING); tasks of its administrator take their time",
        }
    }
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
    /// `EnteredCurrentStatus`: since when. It is shown to people; nothing is decided by it.
    pub since: Option<SchedDate>,
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

    /// Whether this hold is the operator's own: the job is not released before it has room.
    #[must_use]
    pub const fn waits_for_room(&self) -> bool {
        self.is_ours() || self.is_wished()
    }

    /// Whether this hold is the operator's own, for a user who holds this job.
    #[must_use]
    pub const fn is_wished(&self) -> bool {
        self.code == Self::BY_USER && self.subcode == Self::WISHED
    }
}
