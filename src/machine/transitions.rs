//! The one table of legal transitions.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

use super::phase::Phase;

/// What makes an `HTCJob` change, or what is worth telling about one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum Trigger {
    /// The finalizer stands and the ledger knows the object.
    Guarded,
    /// HTCondor accepted the first job.
    Accepted,
    /// HTCondor accepted the last of the jobs, after others: they went in several steps, or some had to go again. What
    /// comes in between is no transition; the counts show it.
    AllAccepted,
    /// The first job started.
    Started,
    /// Every job has an outcome, and all succeeded.
    Succeeded,
    /// Every job has an outcome, and some did not succeed.
    Failed,
    /// HTCondor runs a job again that had ended.
    RanAgain,
    /// `activeDeadlineSeconds` has passed.
    DeadlineExceeded,
    /// More jobs have failed than `maxFailedIndexes` allows.
    MaxFailedIndexesExceeded,
    /// A condition changed: held, suspended, stuck, recovered, output fetched.
    ConditionChanged,
    /// The object is being deleted.
    Deleted,
    /// HTCondor is proved to have none of its jobs.
    Gone,
}

/// Events that tell of something else than a phase or a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumIter)]
pub enum Notice {
    /// Jobs of the Go operator were taken over.
    Adopted,
    /// HTCondor contradicts what a job reported about its own end.
    CallbackRefuted,
    /// A user holds single jobs.
    HeldByUser,
    /// A user releases single jobs.
    ReleasedByUser,
    /// A user removes single jobs.
    RemovedByUser,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Before; none for an object that is not known yet.
    pub from: Option<Phase>,
    /// Why.
    pub trigger: Trigger,
    /// After; none for an object that may go.
    pub to: Option<Phase>,
    /// Reason of the Event; none where it is the condition's own reason.
    pub reason: Option<&'static str>,
}

const fn row(from: Option<Phase>, trigger: Trigger, to: Option<Phase>, reason: &'static str) -> Row {
    Row { from, trigger, to, reason: Some(reason) }
}

const fn told(phase: Phase) -> Row {
    Row { from: Some(phase), trigger: Trigger::ConditionChanged, to: Some(phase), reason: None }
}

/// Every transition that there is. `decide` makes no other (a test holds it to that), and the statecharts are drawn from
/// this table.
pub const TRANSITIONS: &[Row] = {
    use Phase::{Completed, Pending, Running, Submitted, Terminating};
    &[
        row(None, Trigger::Guarded, Some(Pending), "Pending"),
        row(Some(Pending), Trigger::Accepted, Some(Submitted), "Submitted"),
        row(Some(Pending), Trigger::Failed, Some(Completed), "Failed"),
        row(Some(Submitted), Trigger::AllAccepted, Some(Submitted), "AllSubmitted"),
        row(Some(Running), Trigger::AllAccepted, Some(Running), "AllSubmitted"),
        row(Some(Submitted), Trigger::Started, Some(Running), "Running"),
        row(Some(Submitted), Trigger::Succeeded, Some(Completed), "Completed"),
        row(Some(Submitted), Trigger::Failed, Some(Completed), "Failed"),
        row(Some(Running), Trigger::Succeeded, Some(Completed), "Completed"),
        row(Some(Running), Trigger::Failed, Some(Completed), "Failed"),
        row(Some(Running), Trigger::RanAgain, Some(Running), "RanAgain"),
        row(Some(Submitted), Trigger::DeadlineExceeded, Some(Submitted), "DeadlineExceeded"),
        row(Some(Running), Trigger::DeadlineExceeded, Some(Running), "DeadlineExceeded"),
        row(Some(Submitted), Trigger::MaxFailedIndexesExceeded, Some(Submitted), "MaxFailedIndexesExceeded"),
        row(Some(Running), Trigger::MaxFailedIndexesExceeded, Some(Running), "MaxFailedIndexesExceeded"),
        row(Some(Pending), Trigger::Deleted, Some(Terminating), "Terminating"),
        row(Some(Submitted), Trigger::Deleted, Some(Terminating), "Terminating"),
        row(Some(Running), Trigger::Deleted, Some(Terminating), "Terminating"),
        row(Some(Completed), Trigger::Deleted, Some(Terminating), "Terminating"),
        row(Some(Terminating), Trigger::Gone, None, "JobsRemoved"),
        told(Pending),
        told(Submitted),
        told(Running),
        told(Completed),
        told(Terminating),
    ]
};

/// The row for this change, if it is legal.
#[must_use]
pub fn find(from: Option<Phase>, trigger: Trigger, to: Option<Phase>) -> Option<&'static Row> {
    TRANSITIONS.iter().find(|row| row.from == from && row.trigger == trigger && row.to == to)
}

/// A change that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the transition {trigger} from {} to {} is not in the table: a defect of this program; nothing is done about the HTCJob",
    shown(*.from),
    shown(*.to)
)]
pub struct IllegalTransition {
    /// Before.
    pub from: Option<Phase>,
    /// Why.
    pub trigger: Trigger,
    /// After.
    pub to: Option<Phase>,
}

fn shown(phase: Option<Phase>) -> &'static str {
    phase.map_or("none", <&str>::from)
}

/// The row for this change.
pub fn legal(from: Option<Phase>, trigger: Trigger, to: Option<Phase>) -> Result<&'static Row, IllegalTransition> {
    find(from, trigger, to).ok_or(IllegalTransition { from, trigger, to })
}

/// One transition that happened: a row of the journal and an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: Option<Phase>,
    /// After.
    pub to: Option<Phase>,
    /// Why.
    pub trigger: Trigger,
    /// Reason of the Event.
    pub reason: String,
    /// For people: the Event's message.
    pub detail: String,
    /// Whether somebody should look at it (Event type `Warning`).
    pub warning: bool,
    /// Counts after it.
    pub active: usize,
    /// Counts after it.
    pub succeeded: usize,
    /// Counts after it.
    pub failed: usize,
}
