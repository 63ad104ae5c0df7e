//! Kueue as the queueing engine: each `HTCJob` in a queue has a Workload, and its quota is what Kueue admits the
//! Workload with.
//!
//! [`workload`] reads a Workload, [`step`] decides what to write to it, [`plan`] grants the admitted jobs to the
//! `HTCJob` as the embedded queue does, and [`controller`] watches and writes. Kueue counts a Workload's quota as
//! used until its owner releases it. That is done once no job of the `HTCJob` is in use any more, by the same proof
//! by which the embedded queue takes quota back.

mod controller;
mod plan;
pub(super) mod step;
#[cfg(test)]
mod tests;
pub(super) mod workload;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_machine::Uid;
use htc_machine::amounts::Resource;
use htc_machine::facts::QueueWait;
use htc_support::retry::Backoffs;

use crate::htcqueue::assignment::ListingError;
pub(super) use controller::WorkloadController;
use workload::KueueWorkload;

pub(super) const GROUP: &str = "kueue.x-k8s.io";
/// Version of Kueue's API.
pub(super) const VERSION: &str = "v1beta2";
/// Finalizer of each Workload, kept until none of the jobs that it stands for is in use any more.
pub(super) const IN_USE: &str = "kueue.x-k8s.io/resource-in-use";
/// Label of a Workload: the uid of its owner.
pub(super) const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
/// Label of each Workload that an operator of this kind has created.
pub(super) const MANAGED: &str = "app.kubernetes.io/managed-by";
/// Annotation: name of the `HTCJob`.
pub(super) const HTCJOB: &str = "htc.cern.ch/htcjob";
/// Annotation: `spec.active` is false because the `HTCJob` is suspended.
pub(super) const SUSPENDED: &str = "htc.cern.ch/suspended";
/// Time without any report by Kueue after which users see that the `HTCJob` waits for Kueue.
pub(super) const SILENT: Duration = Duration::from_secs(5);
/// First and longest pause before a failed read or write is repeated.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

const NAME: &str = "htcjob-";

/// Returns the name of the Workload of an `HTCJob`.
pub(super) fn name(uid: &Uid) -> String {
    format!("{NAME}{uid}")
}

/// Returns the uid of the `HTCJob` whose Workload has this name. Users who may change Workloads can change labels and
/// owners, but not names.
pub(super) fn uid_of(name: &str) -> Option<Uid> {
    name.strip_prefix(NAME).filter(|uid| !uid.is_empty()).map(Uid::from)
}

/// Namespace and uid of an `HTCJob`. A user who may create Workloads in another namespace may give them any name, and
/// so any uid. The namespace keeps these apart.
pub(super) type Owner = (Arc<str>, Uid);

/// Known state of Kueue's objects.
#[derive(Debug, Default)]
pub(super) struct Kueue {
    /// Resources that are requested of Kueue for each job.
    pub(super) resources: Vec<Resource>,
    /// Whether the Workloads have been listed.
    pub(super) listed: Option<Result<(), ListingError>>,
    /// Workloads by the `HTCJob` that they belong to.
    pub(super) workloads: HashMap<Owner, TrackedWorkload>,
    /// `HTCJob`s whose Workload is being written, or was written with an unknown outcome: nothing is granted
    /// meanwhile.
    pub(super) writing: HashSet<Uid>,
    /// `HTCJob`s that belong to another operator: their Workloads belong to it, too.
    pub(super) others: HashSet<Uid>,
    /// Failed writes, and what users see of them.
    pub(super) backoffs: Backoffs<Uid, QueueWait, Instant>,
}

/// A Workload, and since when it is known.
#[derive(Debug)]
pub(super) struct TrackedWorkload {
    pub(super) workload: KueueWorkload,
    pub(super) since: Instant,
}

impl Kueue {
    /// Records a Workload as the API server returned it. An older version than the known one is ignored. Returns
    /// whether anything changed.
    pub(super) fn update_workload(&mut self, owner: Uid, seen: KueueWorkload) -> bool {
        let owner = (seen.namespace.as_str().into(), owner);
        match self.workloads.get_mut(&owner) {
            Some(known) if known.workload.version > seen.version => false,
            Some(known) if known.workload == seen => false,
            Some(known) => {
                if known.workload.uid != seen.uid {
                    known.since = Instant::now();
                }
                known.workload = seen;
                true
            }
            None => {
                self.workloads.insert(owner, TrackedWorkload { workload: seen, since: Instant::now() });
                true
            }
        }
    }

    /// Replaces all Workloads by a complete list. `before`: owners of those that were known when the list began.
    /// Workloads created since then are not in the list, and are kept.
    pub(super) fn replace_workloads(
        &mut self,
        listing: impl IntoIterator<Item = (Uid, KueueWorkload)>,
        before: &HashSet<Owner>,
    ) {
        let of = |(uid, seen): (Uid, KueueWorkload)| ((seen.namespace.as_str().into(), uid), seen);
        let listing: HashMap<Owner, KueueWorkload> = listing.into_iter().map(of).collect();
        self.workloads.retain(|owner, _| listing.contains_key(owner) || !before.contains(owner));
        for ((_, uid), seen) in listing {
            self.update_workload(uid, seen);
        }
        self.listed = Some(Ok(()));
    }

    /// Removes a Workload that was deleted with this version. A newer one is kept. Returns whether it was removed.
    pub(super) fn remove_workload(&mut self, owner: &Owner, version: u64) -> bool {
        let older = self.workloads.get(owner).is_some_and(|known| known.workload.version <= version);
        older && self.workloads.remove(owner).is_some()
    }
}
