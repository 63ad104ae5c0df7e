//! The table of legal transitions.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

use super::phase::Phase;

/// Cause of a transition of an `HTCJob`, or of an entry in the journal that leaves its phase as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum Trigger {
    /// The finalizer is attached, and the ledger has a row for the object.
    Guarded,
    /// HTCondor accepted the first job.
    Accepted,
    /// HTCondor accepted the last of the jobs, after others: they were submitted in several steps, or some again.
    /// Steps in between are not transitions; the counts show them.
    AllAccepted,
    /// The first job started.
    Started,
    /// Every job has an outcome, and all succeeded.
    Succeeded,
    /// Every job has an outcome, and at least one did not succeed.
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
    /// HTCondor is proved to have no job of the object.
    Gone,
}

/// Events about neither a phase nor a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumIter)]
pub enum Notice {
    /// Jobs of the Go operator were adopted.
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
pub struct TransitionRule {
    /// Phase before; none for an object that has no row yet.
    pub from: Option<Phase>,
    /// Cause of the transition.
    pub trigger: Trigger,
    /// Phase after; none for an object that may be released.
    pub to: Option<Phase>,
    /// Reason of the Event; none if the condition's own reason is used.
    pub reason: Option<&'static str>,
}

const fn row(from: Option<Phase>, trigger: Trigger, to: Option<Phase>, reason: &'static str) -> TransitionRule {
    TransitionRule { from, trigger, to, reason: Some(reason) }
}

const fn told(phase: Phase) -> TransitionRule {
    TransitionRule { from: Some(phase), trigger: Trigger::ConditionChanged, to: Some(phase), reason: None }
}

/// All legal transitions. `decide` makes no other (a test checks that), and the statecharts are drawn from this table.
pub const TRANSITIONS: &[TransitionRule] = {
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

/// Returns the row for a change; none if the change is not legal.
#[must_use]
pub fn find(from: Option<Phase>, trigger: Trigger, to: Option<Phase>) -> Option<&'static TransitionRule> {
    TRANSITIONS.iter().find(|row| row.from == from && row.trigger == trigger && row.to == to)
}

/// Error for a change that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the transition {trigger} from {} to {} is not in the table: a defect of this program; nothing is done about the HTCJob",
    shown(*.from),
    shown(*.to)
)]
pub struct IllegalTransition {
    /// Phase before.
    pub from: Option<Phase>,
    /// Cause of the transition.
    pub trigger: Trigger,
    /// Phase after.
    pub to: Option<Phase>,
}

fn shown(phase: Option<Phase>) -> &'static str {
    phase.map_or("none", <&str>::from)
}

/// Returns the row for a change, or an error if the change is not legal.
pub fn legal(
    from: Option<Phase>,
    trigger: Trigger,
    to: Option<Phase>,
) -> Result<&'static TransitionRule, IllegalTransition> {
    find(from, trigger, to).ok_or(IllegalTransition { from, trigger, to })
}

/// One transition that happened. It becomes a row of the journal and an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Phase before.
    pub from: Option<Phase>,
    /// Phase after.
    pub to: Option<Phase>,
    /// Cause of the transition.
    pub trigger: Trigger,
    /// Reason of the Event.
    pub reason: String,
    /// Message of the Event, for people.
    pub detail: String,
    /// Whether a person should look at it (Event type `Warning`).
    pub warning: bool,
    /// Number of active jobs after the transition.
    pub active: usize,
    /// Number of succeeded jobs after the transition.
    pub succeeded: usize,
    /// Number of failed jobs after the transition.
    pub failed: usize,
}
