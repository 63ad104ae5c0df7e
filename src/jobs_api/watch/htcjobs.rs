//! The `HTCJob`s whose jobs are watched.

use std::collections::{BTreeMap, BTreeSet};

use htc_api::ObjectName;
use htc_ledger::LedgerError;
use htc_machine::ids::Uid;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::WatchUpdate;
use crate::backends::procs::Parent;
use crate::jobs_api::Records;
use crate::jobs_api::resource::selection::Selection;
use crate::jobs_api::resource::status_error::StatusError;

/// The `HTCJob`s that are known so far. After the first read of all of them, only changed ones are read.
pub(super) struct WatchedHTCJobs {
    records: Records,
    namespace: Option<String>,
    selection: Selection,
    touched: Receiver<Option<ObjectName>>,
    known: BTreeMap<Uid, Parent>,
    named: BTreeMap<ObjectName, Uid>,
    /// Those for which [`WatchUpdate::GivenUp`] was sent.
    given_up: BTreeSet<Uid>,
}

impl WatchedHTCJobs {
    pub(super) async fn listed(
        records: Records,
        namespace: Option<&str>,
        selection: &Selection,
    ) -> Result<Self, LedgerError> {
        let touched = records.changes.subscribe();
        let given_up = records.ledger.given_up_since(-1).await?;
        let parents = records.parents(namespace, selection).await?;
        let mut htcjobs = Self {
            records,
            namespace: namespace.map(str::to_owned),
            selection: selection.clone(),
            touched,
            known: BTreeMap::new(),
            named: BTreeMap::new(),
            given_up: BTreeSet::new(),
        };
        for parent in parents {
            if given_up.contains(&parent.uid) {
                htcjobs.given_up.insert(parent.uid.clone());
            }
            htcjobs.keep(parent);
        }
        Ok(htcjobs)
    }

    /// Refuses a version after which something changed that has no version of its own for each job, or after which
    /// `HTCJob`s have gone.
    pub(super) async fn must_be_whole_since(&self, since: i64) -> Result<(), StatusError> {
        let ledger = &self.records.ledger;
        self.records.note_missing().await?;
        if ledger.let_go_since(self.namespace.clone(), since).await? {
            return Err(StatusError::expired("HTCJobs have gone since that version: list again"));
        }
        self.check_unchanged_since(since).await
    }

    /// As [`Self::must_be_whole_since`], without `HTCJob`s that have gone: a running watch reports these.
    pub(super) async fn check_unchanged_since(&self, since: i64) -> Result<(), StatusError> {
        if self.records.ledger.changed_as_a_whole_since(self.namespace.clone(), since).await? {
            return Err(StatusError::expired(
                "HTCJobs were cut short, or their items read, since that version: list again",
            ));
        }
        Ok(())
    }

    /// Returns the `HTCJob`s in the order of lists.
    pub(super) fn parents(&self) -> impl Iterator<Item = &Parent> {
        self.named.values().filter_map(|uid| self.known.get(uid))
    }

    pub(super) fn get(&self, uid: &Uid) -> Option<&Parent> {
        self.known.get(uid)
    }

    pub(super) fn has_given_up(&self, uid: &Uid) -> bool {
        self.given_up.contains(uid)
    }

    fn keep(&mut self, parent: Parent) {
        self.named.insert(parent.htcjob(), parent.uid.clone());
        self.known.insert(parent.uid.clone(), parent);
    }

    /// Returns the updates for added, changed and deleted `HTCJob`s. `since`: the ledger's version from which to
    /// read, if it has changed.
    pub(super) async fn look(&mut self, since: Option<i64>) -> Result<Vec<(Parent, WatchUpdate)>, LedgerError> {
        let (mut names, mut given_up) = (self.touched(), BTreeSet::new());
        if let Some(since) = since {
            let changed = self.records.ledger.let_go_or_counted_since(since).await?;
            names.extend(changed.iter().filter_map(|uid| Some(self.known.get(uid)?.htcjob())));
            given_up = self.records.ledger.given_up_since(since).await?;
        }
        let mut tell = self.compare(names).await?;
        for uid in given_up {
            if let Some(parent) = self.known.get(&uid).filter(|_| !self.given_up.contains(&uid)) {
                tell.push((parent.clone(), WatchUpdate::GivenUp));
                self.given_up.insert(uid);
            }
        }
        Ok(tell)
    }

    /// Returns the names of the `HTCJob`s that may have changed.
    fn touched(&mut self) -> BTreeSet<ObjectName> {
        let (mut names, mut all) = (BTreeSet::new(), false);
        loop {
            match self.touched.try_recv() {
                Ok(Some(name)) => drop(names.insert(name)),
                Ok(None) | Err(TryRecvError::Lagged(_)) => all = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if all {
            names.extend(self.named.keys().cloned());
            names.extend(self.records.objects.state().iter().map(|object| ObjectName::of(&**object)));
        }
        names
    }

    async fn compare(&mut self, names: BTreeSet<ObjectName>) -> Result<Vec<(Parent, WatchUpdate)>, LedgerError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.records.parents_among(&names, self.namespace.as_deref(), &self.selection).await?;
        let now: BTreeMap<ObjectName, Parent> = now.into_iter().map(|parent| (parent.htcjob(), parent)).collect();
        let (mut tell, mut come) = (Vec::new(), Vec::new());
        for name in names {
            let before = self.named.remove(&name).and_then(|uid| self.known.remove(&uid));
            match (before, now.get(&name).cloned()) {
                (Some(before), Some(now)) if before.uid == now.uid => {
                    // The number of items in a ConfigMap is known a little later than the HTCJob.
                    if before.asked_for != now.asked_for {
                        tell.push((now.clone(), WatchUpdate::ItemsCounted(before.asked_for)));
                    }
                    self.keep(now);
                }
                (before, now) => {
                    if let Some(before) = before {
                        self.given_up.remove(&before.uid);
                        let gone = WatchUpdate::Deleted(before.uid.clone());
                        tell.push((before, gone));
                    }
                    if let Some(now) = now {
                        come.push((now.clone(), WatchUpdate::Added));
                        self.keep(now);
                    }
                }
            }
        }
        tell.extend(come);
        Ok(tell)
    }
}
