//! Kueue as the queueing engine: each `HTCJob` in a queue has a Workload, and has the room that Kueue admits it with.
//!
//! [`seen`] reads a Workload, [`next`] decides what is written of it, [`plan`] gives what is admitted to the `HTCJob`, as the
//! embedded queue does, and [`keeper`] watches and writes. Kueue counts a Workload's quota as used until its owner lets it go: that
//! is done once nothing of the `HTCJob` is in use any more, by the same proof by which the embedded queue takes room back.

mod keeper;
pub(super) mod next;
mod plan;
pub(super) mod seen;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::amounts::Resource;
use crate::machine::Uid;
use crate::machine::facts::QueueWait;

pub(super) use keeper::KueueKeeper;
use seen::Seen;

/// API group of Kueue.
pub(super) const GROUP: &str = "kueue.x-k8s.io";
/// Its version.
pub(super) const VERSION: &str = "v1beta2";
/// Held by each Workload until nothing that it stands for is in use any more.
pub(super) const IN_USE: &str = "kueue.x-k8s.io/resource-in-use";
/// Label of a Workload: the uid of its owner.
pub(super) const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// Label of each Workload that an operator of this kind has made.
pub(super) const MANAGED: &str = "app.kubernetes.io/managed-by";
/// Annotation: name of the `HTCJob`.
pub(super) const HTCJOB: &str = "htc.cern.ch/htcjob";
/// Annotation: `spec.active` is false as the `HTCJob` is suspended.
pub(super) const SUSPENDED: &str = "htc.cern.ch/suspended";
/// What Kueue has said nothing of for so long is told to wait for it.
pub(super) const SILENT: Duration = Duration::from_secs(5);

const NAME: &str = "htcjob-";

/// Name of the Workload of an `HTCJob`.
pub(super) fn name(uid: &Uid) -> String {
    format!("{NAME}{uid}")
}

/// Whose Workload has this name. Labels and owners can be changed by whoever may change Workloads, names cannot.
pub(super) fn uid_of(name: &str) -> Option<Uid> {
    name.strip_prefix(NAME).filter(|uid| !uid.is_empty()).map(Uid::from)
}

/// Namespace and uid of an `HTCJob`. Whoever may make Workloads in another namespace may give them any name, and so any uid.
pub(super) type Owner = (Arc<str>, Uid);

/// What is known of Kueue.
#[derive(Debug, Default)]
pub(super) struct Kueue {
    /// What is requested of it for each job.
    pub(super) resources: Vec<Resource>,
    /// Whether the Workloads are known; why not.
    pub(super) listed: Option<Result<(), String>>,
    /// By whose they are.
    pub(super) workloads: HashMap<Owner, Known>,
    /// What is being written of, or was written with an outcome that is not known: nothing is granted meanwhile.
    pub(super) writing: HashSet<Uid>,
    /// `HTCJob`s that are there and another operator's: their Workloads are, too.
    pub(super) others: HashSet<Uid>,
    /// Why something is not written.
    pub(super) troubles: HashMap<Uid, Trouble>,
}

/// A Workload, and since when there is one.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) seen: Seen,
    pub(super) since: Instant,
}

/// Why something was not written.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) wait: QueueWait,
    /// How often in a row.
    pub(super) failures: u32,
    /// When it is tried again.
    pub(super) until: Instant,
}

impl Kueue {
    /// A Workload as the API server has it now, or had it. What is newer is known already stays. Whether it is news.
    pub(super) fn see(&mut self, owner: Uid, seen: Seen) -> bool {
        let owner = (seen.namespace.as_str().into(), owner);
        match self.workloads.get_mut(&owner) {
            Some(known) if known.seen.version > seen.version => false,
            Some(known) if known.seen == seen => false,
            Some(known) => {
                if known.seen.uid != seen.uid {
                    known.since = Instant::now();
                }
                known.seen = seen;
                true
            }
            None => {
                self.workloads.insert(owner, Known { seen, since: Instant::now() });
                true
            }
        }
    }

    /// These were all when they were listed. `before`: whose were known when that was begun; what was made meanwhile is not among them.
    pub(super) fn list(&mut self, listing: impl IntoIterator<Item = (Uid, Seen)>, before: &HashSet<Owner>) {
        let of = |(uid, seen): (Uid, Seen)| ((seen.namespace.as_str().into(), uid), seen);
        let listing: HashMap<Owner, Seen> = listing.into_iter().map(of).collect();
        self.workloads.retain(|owner, _| listing.contains_key(owner) || !before.contains(owner));
        for ((_, uid), seen) in listing {
            self.see(uid, seen);
        }
        self.listed = Some(Ok(()));
    }

    /// The Workload of this version, or an older one, is gone.
    pub(super) fn gone(&mut self, owner: &Owner, version: u64) -> bool {
        let older = self.workloads.get(owner).is_some_and(|known| known.seen.version <= version);
        older && self.workloads.remove(owner).is_some()
    }
}
