//! States of an `HTCJob` in a queue, by which a metric counts them. They are the same with Kueue.

use std::collections::BTreeMap;

use htc_api::Reason;
use htc_machine::facts::QueueWait;
use strum::IntoEnumIterator as _;

use super::state::WorkloadInfo;
use crate::htcqueue::assignment::Assignment;

/// State of an `HTCJob` in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter, strum::IntoStaticStr)]
pub enum State {
    /// Its jobs in HTCondor are not known: all of its jobs count.
    Unknown,
    /// Uses nothing and requests nothing.
    Inactive,
    /// Requests what its queue cannot grant.
    Inadmissible,
    /// Waits for quota.
    Pending,
    /// Some of its jobs have quota, and others wait.
    PartlyAdmitted,
    /// All requested jobs have quota.
    Admitted,
    /// Has to give back its quota.
    Draining,
}

impl State {
    /// Returns the state of an `HTCJob`. `wait`: why it waits. `None` if it is in no queue, or is completed.
    pub(super) fn of(entry: &WorkloadInfo, line: &Assignment, wait: Option<&QueueWait>) -> Option<Self> {
        let (drained, wait) = match line {
            Assignment::Unqueued(_) => return None,
            Assignment::Queued { drained, .. } => (*drained, wait),
            Assignment::Inadmissible { wait, .. } => (false, Some(wait)),
            Assignment::Unknown { wait, .. } => (false, wait.as_ref()),
        };
        let (has, asks) = (entry.has_usage(), !entry.requested.is_empty());
        let never = |wait: &QueueWait| {
            matches!(
                wait.reason,
                Reason::Misconfigured
                    | Reason::QueueNotFound
                    | Reason::QueueNotAllowed
                    | Reason::ExceedsMaxQuota
                    | Reason::Inadmissible
            )
        };
        match (has, asks) {
            (false, _) if entry.usage_unknown => Some(Self::Unknown),
            (false, false) => (!entry.finished).then_some(Self::Inactive),
            (false, true) if wait.is_some_and(never) => Some(Self::Inadmissible),
            (false, true) => Some(Self::Pending),
            (true, _) if drained => Some(Self::Draining),
            (true, true) => Some(Self::PartlyAdmitted),
            (true, false) => Some(Self::Admitted),
        }
    }
}

/// Counts the `HTCJob`s in each state.
pub(super) fn counted(states: impl Iterator<Item = State>) -> Vec<(&'static str, i64)> {
    let mut all: BTreeMap<State, i64> = State::iter().map(|state| (state, 0)).collect();
    for state in states {
        *all.entry(state).or_default() += 1;
    }
    all.into_iter().map(|(state, count)| (state.into(), count)).collect()
}
