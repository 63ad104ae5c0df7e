//! The states of an `HTCJob` in a queue, and what leads from one to the next: the one table of them. With Kueue they are the same.

use std::collections::BTreeMap;
use strum::IntoEnumIterator as _;

use super::line::Line;
use super::state::Entry;
use crate::api::Reason;
use crate::machine::chart::File;
use crate::machine::facts::QueueWait;
use crate::machine::states::{self, picture, row};

#[cfg(test)]
mod tests;

/// How an `HTCJob` stands with its queue.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumIter, strum::IntoStaticStr,
)]
pub enum State {
    /// What HTCondor has of it is not known: all of its jobs count.
    Unknown,
    /// It has nothing and asks for nothing.
    Inactive,
    /// It asks for what its queue cannot give it.
    Inadmissible,
    /// It waits for room.
    Pending,
    /// Some of its jobs have room, and others wait.
    PartlyAdmitted,
    /// All jobs that it asks for have room.
    Admitted,
    /// It is to give back what it has.
    Draining,
}

/// What can follow what. `from`: none, it is in no queue; `to`: none, it is in no queue any more.
pub type Row = states::Row<State, Trigger>;

/// What leads from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum Trigger {
    /// A queue applies to it.
    Entered,
    /// It was decided about: it asks for other jobs, others have ended, or are held, or are known now.
    Decided,
    /// Its queue has looked at all that ask.
    Scheduled,
    /// The queue, or its namespace, was changed.
    QueueChanged,
    /// It has ended, is gone, or no queue applies.
    Left,
}

/// The table.
pub const TABLE: [Row; 49] = {
    use State::{Admitted, Draining, Inactive, Inadmissible, PartlyAdmitted, Pending, Unknown};
    use Trigger::{Decided, Entered, Left, QueueChanged, Scheduled};
    [
        row(None, Some(Unknown), Entered),
        row(None, Some(Inactive), Entered),
        row(None, Some(Inadmissible), Entered),
        row(None, Some(Pending), Entered),
        row(None, Some(PartlyAdmitted), Entered),
        row(None, Some(Admitted), Entered),
        row(None, Some(Draining), Entered),
        row(Some(Unknown), None, Left),
        row(Some(Unknown), Some(Inactive), Decided),
        row(Some(Unknown), Some(Inadmissible), Decided),
        row(Some(Unknown), Some(Pending), Decided),
        row(Some(Unknown), Some(PartlyAdmitted), Decided),
        row(Some(Unknown), Some(Admitted), Decided),
        row(Some(Unknown), Some(Draining), Decided),
        row(Some(Inactive), None, Left),
        row(Some(Inactive), Some(Inadmissible), Decided),
        row(Some(Inactive), Some(Pending), Decided),
        row(Some(Inactive), Some(PartlyAdmitted), Decided),
        row(Some(Inactive), Some(Admitted), Decided),
        row(Some(Inactive), Some(Draining), Decided),
        row(Some(Inadmissible), None, Left),
        row(Some(Inadmissible), Some(Inactive), Decided),
        row(Some(Inadmissible), Some(Pending), Scheduled),
        row(Some(Inadmissible), Some(Pending), QueueChanged),
        row(Some(Inadmissible), Some(PartlyAdmitted), Scheduled),
        row(Some(Inadmissible), Some(Admitted), Scheduled),
        row(Some(Pending), None, Left),
        row(Some(Pending), Some(Inactive), Decided),
        row(Some(Pending), Some(Inadmissible), Scheduled),
        row(Some(Pending), Some(Inadmissible), QueueChanged),
        row(Some(Pending), Some(PartlyAdmitted), Scheduled),
        row(Some(Pending), Some(Admitted), Scheduled),
        row(Some(PartlyAdmitted), None, Left),
        row(Some(PartlyAdmitted), Some(Inactive), Decided),
        row(Some(PartlyAdmitted), Some(Inadmissible), Decided),
        row(Some(PartlyAdmitted), Some(Pending), Decided),
        row(Some(PartlyAdmitted), Some(Admitted), Decided),
        row(Some(PartlyAdmitted), Some(Admitted), Scheduled),
        row(Some(PartlyAdmitted), Some(Draining), QueueChanged),
        row(Some(Admitted), None, Left),
        row(Some(Admitted), Some(Inactive), Decided),
        row(Some(Admitted), Some(Inadmissible), Decided),
        row(Some(Admitted), Some(Pending), Decided),
        row(Some(Admitted), Some(PartlyAdmitted), Decided),
        row(Some(Admitted), Some(Draining), QueueChanged),
        row(Some(Draining), None, Left),
        row(Some(Draining), Some(Inactive), Decided),
        row(Some(Draining), Some(PartlyAdmitted), QueueChanged),
        row(Some(Draining), Some(Admitted), QueueChanged),
    ]
};

impl State {
    /// That of an `HTCJob`, and why it waits; none if it is in no queue, or is over.
    pub(super) fn of(entry: &Entry, line: &Line, wait: Option<&QueueWait>) -> Option<Self> {
        let (drained, wait) = match line {
            Line::Free(_) => return None,
            Line::In { drained, .. } => (*drained, wait),
            Line::Out { wait, .. } => (false, Some(wait)),
            Line::NotYet { wait, .. } => (false, wait.as_ref()),
        };
        let (has, asks) = (entry.has_some(), !entry.asks.is_empty());
        let never = |wait: &QueueWait| {
            matches!(wait.reason, Reason::Misconfigured | Reason::ExceedsMaxQuota | Reason::Inadmissible)
        };
        match (has, asks) {
            (false, _) if entry.unknown => Some(Self::Unknown),
            (false, false) => (!entry.over).then_some(Self::Inactive),
            (false, true) if wait.is_some_and(never) => Some(Self::Inadmissible),
            (false, true) => Some(Self::Pending),
            (true, _) if drained => Some(Self::Draining),
            (true, true) => Some(Self::PartlyAdmitted),
            (true, false) => Some(Self::Admitted),
        }
    }

    /// In words.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Unknown => "What HTCondor has of it is not known yet: all of its jobs count.",
            Self::Inactive => "No job has room, and none asks for it: it is suspended, for example.",
            Self::Inadmissible => "It asks for room that its queue cannot give it.",
            Self::Pending => "It waits for room.",
            Self::PartlyAdmitted => "Some of its jobs have room, and others wait for it.",
            Self::Admitted => "All jobs that it asks for have room.",
            Self::Draining => "Its queue takes back what it has. Its jobs count until they are held, or have ended.",
        }
    }
}

/// How many are in each state.
pub(super) fn counted(states: impl Iterator<Item = State>) -> Vec<(&'static str, i64)> {
    let mut all: BTreeMap<State, i64> = State::iter().map(|state| (state, 0)).collect();
    for state in states {
        *all.entry(state).or_default() += 1;
    }
    all.into_iter().map(|(state, count)| (state.into(), count)).collect()
}

/// The table as a picture: a file of `statecharts/`. One arrow for each pair of states.
#[must_use]
pub fn file() -> File {
    let meanings = State::iter().map(|state| (state, state.meaning()));
    File {
        name: "queue.mmd",
        contents: picture("The states of an HTCJob in a queue", "src/queue/states.rs", &TABLE, meanings),
    }
}
