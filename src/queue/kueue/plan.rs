//! What `HTCJob`s have of what Kueue admits, and what is to be written of their Workloads.

use std::sync::Arc;
use std::time::Instant;

use super::next::{Step, Wanted, next};
use super::seen::Seen;
use super::{Owner, SILENT, Trouble};
use crate::api::Reason;
use crate::machine::facts::{QueueKind, QueueWait, Queued};
use crate::machine::{Indices, Uid};
use crate::metrics::{QueueMeasured, QueuesMeasured};
use crate::queue::amounts::{Resource, ResourceSet};
use crate::queue::line::{Line, NoQueue};
use crate::queue::plan::{Plan, grant, number};
use crate::queue::state::{Asker, Entry, Queues, State};
use crate::queue::states;
use crate::queue::terms::field;

/// What is to be written of one Workload.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) uid: Uid,
    pub(super) what: What,
}

/// How.
#[derive(Debug)]
pub(super) enum What {
    Step(Step, Box<Wanted>, Option<Box<Seen>>),
    /// The `HTCJob` seems to be gone: if it is, so is this.
    Orphan(Box<Seen>),
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) now: Vec<Write>,
    /// When something is to be tried again.
    pub(super) again: Option<Instant>,
}

/// How an `HTCJob` stands with Kueue.
struct Standing {
    line: Line,
    wait: Option<QueueWait>,
}

impl State {
    /// The queue that it is in: that which gave it room, else that of its label.
    fn standing(&self, owner: &Owner, queue: &str, has: bool, held: bool) -> Standing {
        let (_, uid) = owner;
        let is_in = |wait: Option<QueueWait>, drained: bool| Standing {
            line: Line::In { queue: queue.to_owned(), drained },
            wait,
        };
        match &self.kueue.listed {
            None => return is_in(None, held),
            Some(Err(why)) => {
                let message = format!(
                    "the operator cannot watch Workloads of Kueue: {why}; ask its administrator (deploy/components/kueue)"
                );
                return is_in(Some(waits(Reason::Misconfigured, message)), held);
            }
            Some(Ok(())) => {}
        }
        let trouble = self.kueue.troubles.get(uid).map(|trouble| trouble.wait.clone());
        let Some(known) = self.kueue.workloads.get(owner) else {
            // That it is not seen proves nothing: nothing new starts, what runs goes on, and what is held stays so.
            return is_in(trouble, held);
        };
        let seen = &known.seen;
        if seen.owner.as_ref().is_none_or(|(_, owner)| owner != uid) {
            let message = format!("Workload {} belongs to another object: delete it", seen.name);
            return is_in(Some(waits(Reason::Misconfigured, message)), false);
        }
        if seen.room().is_some() {
            return is_in(None, false);
        }
        let told = if seen.is_silent() && known.since.elapsed() < SILENT { None } else { Some(seen.wait()) };
        is_in(told.or(trouble), has || held)
    }
}

fn waits(reason: Reason, message: String) -> QueueWait {
    QueueWait { reason, message, place: None }
}

impl Queues {
    /// The queue that the object is in, as far as a decision needs to know.
    pub(in crate::queue) fn kueue_fact(&self, asker: &Asker<'_>, label: Option<&str>) -> Option<Queued> {
        let Asker { uid, namespace, object, bound, holds, .. } = asker;
        let owner = (Arc::from(*namespace), Uid::clone(uid));
        let kind = QueueKind::LocalQueue;
        let queue = bound.or(label)?;
        let suspend = object.0.as_ref().is_ok_and(|job| job.spec.suspend);
        self.with(|state| {
            let has = state.htcjobs.get(*uid).is_some_and(Entry::has_some);
            let Standing { line, wait } = state.standing(&owner, queue, has, *holds);
            if let Some(entry) = state.htcjobs.get_mut(*uid) {
                entry.holds = *holds;
                entry.goes_by(line.clone(), wait.clone());
            }
            let drained = matches!(line, Line::In { drained: true, .. }) && !suspend;
            Some(Queued { kind, queue: queue.to_owned(), waits: wait, drained, closed: false })
        })
    }

    /// Gives `HTCJob`s what they are admitted with. What it grants counts from now on, and must be made durable.
    pub(in crate::queue) fn kueue_plan(&self) -> Plan {
        self.with(|state| {
            let mut plan = Plan::default();
            let mut standings = Vec::with_capacity(state.htcjobs.len());
            let mut silent = false;
            for (uid, entry) in &state.htcjobs {
                let queue = match NoQueue::with_kueue(entry.bound.as_deref().or(entry.label.as_deref())) {
                    Ok(queue) => queue,
                    Err(proof) => {
                        standings.push((uid.clone(), Line::Free(proof), None));
                        continue;
                    }
                };
                let in_use = entry.in_use();
                let owner = entry.owner(uid);
                let Standing { line, wait } = state.standing(&owner, queue, entry.has_some(), entry.holds);
                let known = state.kueue.workloads.get(&owner);
                silent |= known.is_some_and(|known| known.seen.is_silent() && known.since.elapsed() < SILENT);
                let admitted = known.map(|known| &known.seen).filter(|_| wait.is_none());
                let gives = grants(entry, &in_use, admitted);
                if !gives.is_empty() && !state.kueue.writing.contains(uid) {
                    plan.grants.push(grant(uid, queue, gives));
                }
                standings.push((uid.clone(), line, wait));
            }
            plan.again = silent.then_some(SILENT);
            for (uid, line, wait) in &standings {
                let Some(entry) = state.htcjobs.get_mut(uid) else { continue };
                let goes_by = Some((line.clone(), wait.clone()));
                if !entry.over && entry.shown != goes_by && entry.woken_for != goes_by {
                    entry.woken_for = goes_by;
                    plan.wake.extend(entry.reference.clone());
                }
            }
            number(state, &mut plan);
            plan.measured = measured(state, &standings);
            plan
        })
    }

    /// What is to be written now. Until [`Self::written`] nothing is granted to those.
    pub(super) fn kueue_writes(&self) -> Writes {
        self.with(|state| {
            let mut writes = Writes::default();
            if state.kueue.listed != Some(Ok(())) {
                return writes;
            }
            let now = Instant::now();
            let begun = state.first.as_ref().is_some_and(std::collections::HashSet::is_empty);
            let mut all = Vec::new();
            for (uid, entry) in &state.htcjobs {
                let seen = state.kueue.workloads.get(&entry.owner(uid)).map(|known| &known.seen);
                let Some(wanted) = wanted(state, uid, entry) else { continue };
                let Some(step) = next(&wanted, seen) else { continue };
                all.push((uid, What::Step(step, Box::new(wanted), seen.cloned().map(Box::new))));
            }
            if begun {
                let is_known = |uid: &Uid| state.htcjobs.contains_key(uid) || state.kueue.others.contains(uid);
                let workloads = state.kueue.workloads.iter();
                let orphans = workloads.filter(|((_, uid), known)| known.seen.is_left() && !is_known(uid));
                all.extend(orphans.map(|((_, uid), known)| (uid, What::Orphan(Box::new(known.seen.clone())))));
            }
            let mut ready = Vec::new();
            for (uid, what) in all {
                match state.kueue.troubles.get(uid) {
                    _ if state.kueue.writing.contains(uid) => {}
                    Some(trouble) if trouble.until > now => {
                        writes.again = writes.again.into_iter().chain([trouble.until]).min();
                    }
                    Some(_) | None => ready.push(Write { uid: uid.clone(), what }),
                }
            }
            state.kueue.writing.extend(ready.iter().map(|write| write.uid.clone()));
            writes.now = ready;
            writes
        })
    }

    /// What came of a write. `seen`: the Workload as it is now; it may be gone.
    pub(super) fn written(&self, (namespace, uid): (&str, &Uid), seen: Option<Seen>, trouble: Option<Trouble>) {
        self.with(|state| {
            state.kueue.writing.remove(uid);
            match seen {
                Some(seen) => drop(state.kueue.see(uid.clone(), seen)),
                None => drop(state.kueue.workloads.remove(&(namespace.into(), uid.clone()))),
            }
            match trouble {
                Some(trouble) => drop(state.kueue.troubles.insert(uid.clone(), trouble)),
                None => drop(state.kueue.troubles.remove(uid)),
            }
        });
        self.tell_news();
    }
}

/// Names of LocalQueues come from users: all of them are measured together.
fn measured(state: &State, standings: &[(Uid, Line, Option<QueueWait>)]) -> QueuesMeasured {
    let (mut waiting, mut states) = (0, Vec::with_capacity(standings.len()));
    for (uid, line, wait) in standings {
        let Some(entry) = state.htcjobs.get(uid) else { continue };
        let Some(stands) = states::State::of(entry, line, wait.as_ref()) else { continue };
        waiting += entry.asks.len();
        states.push(stands);
    }
    let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
    let all = QueueMeasured { name: "Kueue".into(), waiting, used: Vec::new(), quota: Vec::new() };
    QueuesMeasured { queues: vec![all], htcjobs: states::counted(states.into_iter()) }
}

/// What it is given now.
fn grants(entry: &Entry, in_use: &Indices, seen: Option<&Seen>) -> Indices {
    let found = entry.found();
    if !found.is_empty() {
        return found;
    }
    let room = seen.and_then(Seen::room).unwrap_or_default() as usize;
    entry.asks.take(room.saturating_sub(in_use.len()))
}

/// What its Workload is to know; none as long as the `HTCJob` was not looked at.
fn wanted(state: &State, uid: &Uid, entry: &Entry) -> Option<Wanted> {
    let reference = entry.reference.as_ref()?;
    let progress = entry.progress.as_ref()?;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Some(Wanted {
        uid: uid.clone(),
        namespace: entry.namespace.to_string(),
        name: reference.name.clone(),
        queue: entry.bound.clone().or_else(|| entry.label.clone()),
        bound: entry.bound.is_some(),
        class: entry.class.clone(),
        each: entry.demand.each,
        // What Pods request stands in their spec.
        unknown: if progress.pod.is_none() { entry.demand.unknown } else { ResourceSet::default() },
        resources: state.kueue.resources.clone(),
        count: number(progress.at_a_time),
        left: number(progress.left),
        // Quota is lent for a try, too: what cannot use it gives it back, and is in line again when it is tried again. So does what
        // runs no job at a time (`parallelism: 0`).
        suspend: progress.suspend || progress.at_a_time == 0 || (progress.idle && entry.asks.is_empty()),
        deleting: progress.deleting,
        accepted: progress.accepted,
        ended: progress.ended,
        pod: progress.pod.clone(),
        in_use: !entry.in_use().is_empty(),
    })
}

/// What the `HTCJob` does not say in a number and is requested of Kueue.
pub(super) fn missing(unknown: ResourceSet, resources: &[Resource]) -> Option<String> {
    let resource = unknown.first(|resource| resources.contains(&resource))?;
    Some(format!(
        "the HTCJob does not say in a number how much {resource} each job needs, which the operator is to request of Kueue (--kueue-resources): create it again with {}",
        field(resource)
    ))
}
