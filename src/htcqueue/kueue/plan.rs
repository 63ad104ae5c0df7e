//! Plans with Kueue: grants what Kueue admits, and the next write to each Workload.

use std::sync::Arc;
use std::time::Instant;

use htc_api::Reason;
use htc_machine::amounts::{Resource, ResourceSet};
use htc_machine::facts::{QueueFacts, QueueKind, QueueWait};
use htc_machine::{Indices, Uid};
use htc_support::metrics::{QueueMeasured, QueuesMeasured};

use super::{Owner, PAUSES, SILENT};
use crate::htcqueue::assignment::{Assignment, NoQueue};
use crate::htcqueue::kueue::step::{DesiredWorkload, WorkloadStep, next_step};
use crate::htcqueue::kueue::workload::KueueWorkload;
use crate::htcqueue::plan::{AdmissionPlan, grant, number};
use crate::htcqueue::policy::field;
use crate::htcqueue::state::{QueueQuery, Queues, QueuesState, WorkloadInfo};
use crate::htcqueue::states;

/// A write to one Workload.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) uid: Uid,
    pub(super) what: WriteTarget,
}

/// What to write.
#[derive(Debug)]
pub(super) enum WriteTarget {
    Step(WorkloadStep, Box<DesiredWorkload>, Option<Box<KueueWorkload>>),
    /// The `HTCJob` seems to be gone: if it is, the Workload is removed.
    Orphan(Box<KueueWorkload>),
}

/// Writes that are due.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    pub(super) now: Vec<PendingWrite>,
    /// When failed writes are to be repeated.
    pub(super) retry_at: Option<Instant>,
}

/// Assignment of an `HTCJob` with Kueue, and why it waits.
struct KueueAssignment {
    line: Assignment,
    wait: Option<QueueWait>,
}

impl QueuesState {
    /// Returns the assignment to `queue`: the one that granted it quota, or else that of its label. `has`: it uses
    /// quota. `held`: this operator holds some of its jobs.
    fn standing(&self, owner: &Owner, queue: &str, has: bool, held: bool) -> KueueAssignment {
        let (_, uid) = owner;
        let is_in = |wait: Option<QueueWait>, drained: bool| KueueAssignment {
            line: Assignment::Queued { queue: queue.to_owned(), drained },
            wait,
        };
        match &self.kueue.listed {
            None => return is_in(None, held),
            Some(Err(error)) => return is_in(Some(waits(Reason::Misconfigured, error.to_string())), held),
            Some(Ok(())) => {}
        }
        let trouble = self.kueue.backoffs.last(uid).map(|failed| failed.cause.clone());
        let Some(known) = self.kueue.workloads.get(owner) else {
            // A Workload that is not seen proves nothing: no job starts, running jobs go on, and held jobs stay held.
            return is_in(trouble, held);
        };
        let seen = &known.workload;
        if seen.owner.as_ref().is_none_or(|(_, owner)| owner != uid) {
            let message = format!("Workload {} belongs to another object: delete it", seen.name);
            return is_in(Some(waits(Reason::Misconfigured, message)), false);
        }
        if seen.runnable_jobs().is_some() {
            return is_in(None, false);
        }
        let told = if seen.is_silent() && known.since.elapsed() < SILENT { None } else { Some(seen.wait()) };
        is_in(told.or(trouble), has || held)
    }
}

fn waits(reason: Reason, message: String) -> QueueWait {
    QueueWait { reason, message, position: None }
}

impl Queues {
    /// Returns the queue that the object is in, as far as a decision needs to know.
    pub(in crate::htcqueue) fn kueue_facts(&self, asker: &QueueQuery<'_>, label: Option<&str>) -> Option<QueueFacts> {
        let QueueQuery { uid, namespace, object, granting_queue: bound, has_held_jobs: holds, .. } = asker;
        let owner = (Arc::from(*namespace), Uid::clone(uid));
        let kind = QueueKind::LocalQueue;
        let queue = bound.or(label)?;
        let suspend = object.0.as_ref().is_ok_and(|job| job.spec.suspend);
        self.with(|state| {
            let has = state.htcjobs.get(*uid).is_some_and(WorkloadInfo::has_usage);
            let KueueAssignment { line, wait } = state.standing(&owner, queue, has, *holds);
            if let Some(entry) = state.htcjobs.get_mut(*uid) {
                entry.has_held_jobs = *holds;
                entry.set_observed(line.clone(), wait.clone());
            }
            let drained = matches!(line, Assignment::Queued { drained: true, .. }) && !suspend;
            Some(QueueFacts { kind, queue: queue.to_owned(), wait, drained, closed: false })
        })
    }

    /// Grants to `HTCJob`s what Kueue has admitted. The grants count from now on, and must be made durable.
    pub(in crate::htcqueue) fn kueue_plan(&self) -> AdmissionPlan {
        self.with(|state| {
            let mut plan = AdmissionPlan::default();
            let mut standings = Vec::with_capacity(state.htcjobs.len());
            let mut silent = false;
            for (uid, entry) in &state.htcjobs {
                let queue = match NoQueue::with_kueue(entry.granting_queue.as_deref().or(entry.queue_label.as_deref()))
                {
                    Ok(queue) => queue,
                    Err(proof) => {
                        standings.push((uid.clone(), Assignment::Unqueued(proof), None));
                        continue;
                    }
                };
                let in_use = entry.in_use();
                let owner = entry.owner(uid);
                let KueueAssignment { line, wait } =
                    state.standing(&owner, queue, entry.has_usage(), entry.has_held_jobs);
                let known = state.kueue.workloads.get(&owner);
                silent |= known.is_some_and(|known| known.workload.is_silent() && known.since.elapsed() < SILENT);
                let admitted = known.map(|known| &known.workload).filter(|_| wait.is_none());
                let gives = grants(entry, &in_use, admitted);
                if !gives.is_empty() && !state.kueue.writing.contains(uid) {
                    plan.grants.push(grant(uid, queue, gives));
                }
                standings.push((uid.clone(), line, wait));
            }
            plan.requeue_after = silent.then_some(SILENT);
            for (uid, line, wait) in &standings {
                let Some(entry) = state.htcjobs.get_mut(uid) else { continue };
                let goes_by = Some((line.clone(), wait.clone()));
                if !entry.finished && entry.last_observed != goes_by && entry.last_notified != goes_by {
                    entry.last_notified = goes_by;
                    plan.wake.extend(entry.reference.clone());
                }
            }
            number(state, &mut plan);
            plan.measured = measured(state, &standings);
            plan
        })
    }

    /// Returns the writes that are due. Until [`Self::finish_write`] nothing is granted to those `HTCJob`s.
    pub(super) fn kueue_writes(&self) -> PendingWrites {
        self.with(|state| {
            let mut writes = PendingWrites::default();
            if state.kueue.listed != Some(Ok(())) {
                return writes;
            }
            let now = Instant::now();
            let begun = state.first.as_ref().is_some_and(std::collections::HashSet::is_empty);
            let mut all = Vec::new();
            for (uid, entry) in &state.htcjobs {
                let seen = state.kueue.workloads.get(&entry.owner(uid)).map(|known| &known.workload);
                let Some(wanted) = desired_workload(state, uid, entry) else { continue };
                let Some(step) = next_step(&wanted, seen) else { continue };
                all.push((uid, WriteTarget::Step(step, Box::new(wanted), seen.cloned().map(Box::new))));
            }
            if begun {
                let is_known = |uid: &Uid| state.htcjobs.contains_key(uid) || state.kueue.others.contains(uid);
                let workloads = state.kueue.workloads.iter();
                let orphans = workloads.filter(|((_, uid), known)| known.workload.is_leftover() && !is_known(uid));
                all.extend(
                    orphans.map(|((_, uid), known)| (uid, WriteTarget::Orphan(Box::new(known.workload.clone())))),
                );
            }
            let mut ready = Vec::new();
            for (uid, what) in all {
                match state.kueue.backoffs.active(uid, now) {
                    _ if state.kueue.writing.contains(uid) => {}
                    Some(failed) => writes.retry_at = writes.retry_at.into_iter().chain([failed.retry_at]).min(),
                    None => ready.push(PendingWrite { uid: uid.clone(), what }),
                }
            }
            state.kueue.writing.extend(ready.iter().map(|write| write.uid.clone()));
            writes.now = ready;
            writes
        })
    }

    /// Records the outcome of a write. `seen`: the Workload as it is now; `None` if it is gone.
    pub(super) fn finish_write(
        &self,
        (namespace, uid): (&str, &Uid),
        seen: Option<KueueWorkload>,
        trouble: Option<QueueWait>,
    ) {
        self.with(|state| {
            state.kueue.writing.remove(uid);
            match seen {
                Some(seen) => drop(state.kueue.update_workload(uid.clone(), seen)),
                None => drop(state.kueue.workloads.remove(&(namespace.into(), uid.clone()))),
            }
            match trouble {
                Some(wait) => drop(state.kueue.backoffs.failed(uid.clone(), wait, PAUSES, Instant::now())),
                None => state.kueue.backoffs.reset(uid),
            }
        });
        self.notify();
    }
}

/// Returns the values for the metrics. Names of LocalQueues come from users, so all of them are one queue in the
/// metrics.
fn measured(state: &QueuesState, standings: &[(Uid, Assignment, Option<QueueWait>)]) -> QueuesMeasured {
    let (mut waiting, mut states) = (0, Vec::with_capacity(standings.len()));
    for (uid, line, wait) in standings {
        let Some(entry) = state.htcjobs.get(uid) else { continue };
        let Some(stands) = states::State::of(entry, line, wait.as_ref()) else { continue };
        waiting += entry.requested.len();
        states.push(stands);
    }
    let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
    let all = QueueMeasured { name: "Kueue".into(), waiting, used: Vec::new(), quota: Vec::new() };
    QueuesMeasured { queues: vec![all], htcjobs: states::counted(states.into_iter()) }
}

/// Returns the jobs to be granted now.
fn grants(entry: &WorkloadInfo, in_use: &Indices, seen: Option<&KueueWorkload>) -> Indices {
    let found = entry.ungranted_usage();
    if !found.is_empty() {
        return found;
    }
    let room = seen.and_then(KueueWorkload::runnable_jobs).unwrap_or_default() as usize;
    entry.requested.take(room.saturating_sub(in_use.len()))
}

/// Returns the desired state of an `HTCJob`'s Workload; `None` as long as the `HTCJob` has not been reconciled.
fn desired_workload(state: &QueuesState, uid: &Uid, entry: &WorkloadInfo) -> Option<DesiredWorkload> {
    let reference = entry.reference.as_ref()?;
    let progress = entry.progress.as_ref()?;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Some(DesiredWorkload {
        uid: uid.clone(),
        namespace: entry.namespace.to_string(),
        name: reference.name.clone(),
        queue: entry.granting_queue.clone().or_else(|| entry.queue_label.clone()),
        queue_is_fixed: entry.granting_queue.is_some(),
        priority_class: entry.priority_class.clone(),
        per_job: entry.resources.per_job,
        // For Pods, the requests are in the Pod spec.
        unknown: if entry.pod.is_none() { entry.resources.unknown } else { ResourceSet::default() },
        resources: state.kueue.resources.clone(),
        count: number(progress.at_a_time),
        unfinished: number(progress.unfinished),
        // Kueue lends quota for an attempt, too. An `HTCJob` that cannot use its quota gives it back, and queues
        // again for its next attempt. The same holds for one that runs no job at a time (`parallelism: 0`).
        suspend: progress.suspend || progress.at_a_time == 0 || (progress.idle && entry.requested.is_empty()),
        deleting: progress.deleting,
        accepted: progress.accepted,
        ended: progress.ended,
        pod: entry.pod.clone(),
        in_use: !entry.in_use().is_empty(),
    })
}

/// Returns the message about a resource that is requested of Kueue and that the `HTCJob` does not give as a number.
pub(super) fn missing(unknown: ResourceSet, resources: &[Resource]) -> Option<String> {
    let resource = unknown.first(|resource| resources.contains(&resource))?;
    Some(format!(
        "the HTCJob does not say in a number how much {resource} each job needs, which the operator is to request of Kueue (--kueue-resource): create it again with {}",
        field(resource)
    ))
}
