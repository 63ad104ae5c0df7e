//! Actions on single jobs that users request: hold, release or remove.

use std::collections::BTreeMap;

use strum::{Display, EnumString, IntoStaticStr};

use super::ids::{Index, Timestamp};
use super::indices::Indices;

/// An action that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
pub enum JobAction {
    /// Holds the job until a user requests its release, however often others release it in HTCondor. A job
    /// that waits is not submitted.
    Hold,
    /// Releases the job once, also if another user holds it.
    Release,
    /// Removes the job, or never submits it: it counts as failed. This is final.
    Remove,
}

impl JobAction {
    /// Returns the verb for messages such as `ann holds 3 jobs`.
    #[must_use]
    pub const fn does(self) -> &'static str {
        match self {
            Self::Hold => "holds",
            Self::Release => "releases",
            Self::Remove => "removes",
        }
    }
}

/// A requested action and its progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestedAction {
    /// See [`JobAction::Hold`].
    Hold,
    /// See [`JobAction::Release`].
    /// It is complete once an answer from after `since` shows that the job is not held, or once a release that was
    /// requested since has succeeded.
    Release {
        /// When the user requested it.
        since: Timestamp,
        /// When HTCondor was last asked to release the job.
        asked: Option<Timestamp>,
    },
    /// See [`JobAction::Remove`].
    Remove {
        /// Whether it was proved that HTCondor never had the job, and never will have it.
        withdrawn: bool,
    },
}

impl RequestedAction {
    /// Creates a request that a user makes at this time.
    #[must_use]
    pub const fn new(wanted: JobAction, since: Timestamp) -> Self {
        match wanted {
            JobAction::Hold => Self::Hold,
            JobAction::Release => Self::Release { since, asked: None },
            JobAction::Remove => Self::Remove { withdrawn: false },
        }
    }

    /// Returns the requested action.
    #[must_use]
    pub const fn action(&self) -> JobAction {
        match self {
            Self::Hold => JobAction::Hold,
            Self::Release { .. } => JobAction::Release,
            Self::Remove { .. } => JobAction::Remove,
        }
    }

    /// Whether the job is not to be submitted.
    #[must_use]
    pub const fn prevents_submission(&self) -> bool {
        match self {
            Self::Hold | Self::Remove { .. } => true,
            Self::Release { .. } => false,
        }
    }
}

/// A requested action as stored in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredAction {
    /// Number in the ledger: a request that replaces another has another number.
    pub number: i64,
    /// The request.
    pub action: RequestedAction,
    /// User who made the request, until an Event reports it.
    /// If it has replaced requests that no Event reports either, they come first: `ann holds, then bob`.
    pub unreported: Option<String>,
}

/// Requested actions on the jobs of one object, at most one for each job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestedActions(BTreeMap<Index, StoredAction>);

impl RequestedActions {
    /// Returns the request for this job.
    #[must_use]
    pub fn of(&self, index: Index) -> Option<&RequestedAction> {
        self.0.get(&index).map(|wished| &wished.action)
    }

    /// Whether this action is requested for the job.
    #[must_use]
    pub fn is(&self, index: Index, wanted: JobAction) -> bool {
        self.of(index).is_some_and(|wish| wish.action() == wanted)
    }

    /// Returns all requests, by index.
    pub fn iter(&self) -> impl Iterator<Item = (Index, &StoredAction)> {
        self.0.iter().map(|(index, wished)| (*index, wished))
    }

    /// Returns all requests, by index, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Index, &mut StoredAction)> {
        self.0.iter_mut().map(|(index, wished)| (*index, wished))
    }

    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the release of some job is requested.
    #[must_use]
    pub fn releases(&self) -> bool {
        self.0.values().any(|wished| wished.action.action() == JobAction::Release)
    }

    /// Adds a request. It replaces an earlier one for the same job.
    pub fn insert(&mut self, index: Index, wished: StoredAction) {
        self.0.insert(index, wished);
    }

    /// Removes the requests for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(Index, &RequestedAction) -> bool) {
        self.0.retain(|index, wished| keep(*index, &wished.action));
    }

    /// Returns the jobs that are not to be submitted.
    #[must_use]
    pub fn held_back(&self) -> Indices {
        self.matching(RequestedAction::prevents_submission)
    }

    /// Returns the jobs that users removed before HTCondor had them, as was proved.
    #[must_use]
    pub fn withdrawn(&self) -> Indices {
        self.matching(|wish| *wish == RequestedAction::Remove { withdrawn: true })
    }

    fn matching(&self, which: impl Fn(&RequestedAction) -> bool) -> Indices {
        self.0.iter().filter(|(_, wished)| which(&wished.action)).map(|(index, _)| *index).collect()
    }

    /// Returns what was changed or removed since `before`, by number.
    #[must_use]
    pub fn changes(&self, before: &Self) -> Vec<ActionUpdate> {
        let changed = |(index, wished): (&Index, &StoredAction)| {
            let now = self.0.get(index).filter(|now| now.number == wished.number);
            (now != Some(wished)).then(|| ActionUpdate { index: *index, number: wished.number, now: now.cloned() })
        };
        before.0.iter().filter_map(changed).collect()
    }
}

impl FromIterator<(Index, StoredAction)> for RequestedActions {
    fn from_iter<T: IntoIterator<Item = (Index, StoredAction)>>(wishes: T) -> Self {
        Self(wishes.into_iter().collect())
    }
}

/// A decision's change of a requested action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionUpdate {
    /// Index of the job.
    pub index: Index,
    /// Number of the request. If another has replaced it meanwhile, that one is not changed.
    pub number: i64,
    /// New state of the request; none if it is complete.
    pub now: Option<StoredAction>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_action_is_not_updated() {
        let wished = |number, wish| StoredAction { number, action: wish, unreported: None };
        let before: RequestedActions = [
            (Index(0), wished(1, RequestedAction::Hold)),
            (Index(1), wished(2, RequestedAction::new(JobAction::Remove, Timestamp(5)))),
            (Index(2), wished(3, RequestedAction::new(JobAction::Release, Timestamp(5)))),
        ]
        .into_iter()
        .collect();
        let mut after = before.clone();
        assert!(after.changes(&before).is_empty());
        after.insert(Index(1), wished(2, RequestedAction::Remove { withdrawn: true }));
        after.retain(|index, _| index != Index(2));
        let changes: Vec<_> =
            after.changes(&before).into_iter().map(|change| (change.number, change.now.is_some())).collect();
        assert_eq!(changes, [(2, true), (3, false)]);
        assert_eq!((after.withdrawn().to_string(), after.held_back().to_string()), ("1".into(), "0-1".into()));
    }
}
