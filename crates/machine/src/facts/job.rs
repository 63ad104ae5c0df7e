//! Facts about one accepted job.

use std::sync::Arc;

use super::NodeFaults;
use super::evidence::{Exit, JobStatus};
use crate::ids::{Attempt, Birthdate, JobId, SchedDate, Timestamp};
use crate::outcome::Outcome;

/// Runs of a job, as its ad has them. For display only, except `waits_for`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunHistory {
    /// `NumJobStarts`: number of times HTCondor has started the job.
    pub count: u32,
    /// `NumJobCompletions`: number of times the job has ended by itself, the last time included.
    /// HTCondor runs it again after that if it has retries left.
    pub exits: u32,
    /// `ExitCode` or `ExitSignal`: how the last run ended. HTCondor sets SIGTERM here, too, when it interrupts a job.
    pub last_exit: Option<Exit>,
    /// `LastVacateTime`: when HTCondor last interrupted the job.
    pub vacated: Option<SchedDate>,
    /// `JobCurrentStartDate`: when the job was last started.
    pub start: Option<SchedDate>,
    /// `CompletionDate`
    pub end: Option<SchedDate>,
    /// `RemoteHost` or, of a job that does not run, `LastRemoteHost`: the job's slot, such as `slot1_2@node7.cern.ch`.
    pub host: Option<Arc<str>>,
    /// Runs that ended by faults of their nodes.
    pub faults: Option<Box<NodeFaults>>,
    /// What keeps an idle job from being matched with a machine; none if nothing is known to.
    pub waits_for: Option<WaitsFor>,
}

/// What keeps an idle job from being matched with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitsFor {
    /// `JobStatus` 9, BLOCKED: files that the job shares with other jobs are not there yet.
    SharedFiles,
    /// `JobStatus` 10, PREPARING: the schedd runs tasks that its administrator has set (`JOB_PREPARING_TASK_NAMES`).
    Preparation,
    /// The job's last run ended by a fault of its node. HTCondor holds it for a pause, and then runs it elsewhere.
    OtherNode,
}

impl WaitsFor {
    /// Returns what a job with this `JobStatus` waits for, if it is one of these two.
    #[must_use]
    pub const fn of(status: JobStatus) -> Option<Self> {
        match status {
            JobStatus::Blocked => Some(Self::SharedFiles),
            JobStatus::Preparing => Some(Self::Preparation),
            _ => None,
        }
    }

    /// Returns the number of the `JobStatus`, or a number of our own for a job that HTCondor holds until another node
    /// runs it.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::SharedFiles => 9,
            Self::Preparation => 10,
            Self::OtherNode => 105,
        }
    }

    /// Returns what has this number.
    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            9 => Some(Self::SharedFiles),
            10 => Some(Self::Preparation),
            105 => Some(Self::OtherNode),
            _ => None,
        }
    }

    /// Returns an explanation for users.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::SharedFiles => "the job waits for files that it shares with other jobs (BLOCKED)",
            Self::Preparation => "the schedd prepares the job (PREPARING); tasks of its administrator take their time",
            Self::OtherNode => {
                "a fault of its node ended the job's last run; HTCondor runs the job again after a pause, on another machine if there is one"
            }
        }
    }
}

/// One job that HTCondor has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Id of the job in HTCondor.
    pub id: JobId,
    /// Attempt that submitted the job; [`Attempt::INHERITED`] for a job of the Go operator.
    pub attempt: Attempt,
    /// Birthdate of the queue in which the job was seen.
    pub birthdate: Birthdate,
    /// When the job was first recorded.
    pub recorded: Timestamp,
    /// `StageInFinish`
    pub staged_in: SchedDate,
    /// Whether the job has started at least once.
    pub started: bool,
    /// Current state.
    pub state: JobState,
    /// Whether the output is in the output folder.
    pub fetched: bool,
    /// Whether the job has ended and was proved to have left the queue.
    pub gone: bool,
    /// Where and when the job ran.
    pub runs: RunHistory,
}

impl Job {
    /// Returns the outcome; none while the job has not ended.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.state.outcome()
    }

    /// Whether HTCondor has output of the job that is not fetched yet.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.fetched && !self.gone && self.left_output()
    }

    /// Whether the job has ended in a way that leaves output.
    #[must_use]
    pub fn left_output(&self) -> bool {
        self.state.left_output()
    }
}

/// State of an accepted job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// The job waits for a machine.
    Idle,
    /// The job runs, or its output is being transferred.
    Running,
    /// The job is on hold.
    Held(Hold),
    /// The job has ended.
    Ended(Outcome),
}

impl JobState {
    /// Returns the outcome; none while the job has not ended.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Idle | Self::Running | Self::Held(_) => None,
        }
    }

    /// Whether the job has ended in a way that leaves output.
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
    /// `EnteredCurrentStatus`: start of the hold. For display only: no decision depends on it.
    pub since: Option<SchedDate>,
}

impl Hold {
    /// `HoldReasonCode` of a hold by a person or a tool.
    pub const BY_USER: i64 = 1;
    /// `HoldReasonCode` of a hold by a policy of the job, such as `on_exit_hold`.
    pub const BY_POLICY: i64 = 3;
    /// `HoldReasonCode` of a job whose output exceeds its limit.
    pub const OUTPUT_TOO_LARGE: i64 = 33;
    /// `HoldReasonCode` of a job whose files are being spooled.
    pub const SPOOLING: i64 = 16;
    /// `HoldReasonSubCode` of the holds that this operator sets for `spec.suspend`.
    pub const SUSPENDED: i64 = 8_472;
    /// `HoldReasonSubCode` of the holds of single jobs that users request.
    pub const FOR_USER: i64 = 8_473;

    /// Whether the operator set this hold for `spec.suspend`.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        self.code == Self::BY_USER && self.subcode == Self::SUSPENDED
    }

    /// Whether the operator set this hold, for either reason. Such a job is not released before it has quota.
    #[must_use]
    pub const fn awaits_quota(&self) -> bool {
        self.is_ours() || self.is_for_user()
    }

    /// Whether the operator set this hold because a user requested it for this job.
    #[must_use]
    pub const fn is_for_user(&self) -> bool {
        self.code == Self::BY_USER && self.subcode == Self::FOR_USER
    }
}
