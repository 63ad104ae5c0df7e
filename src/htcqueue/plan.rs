//! One pass over all queues: computes the grants, the messages, and which `HTCJob`s to reconcile.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_api::{ObservedHTCJob, Reason};
use htc_ledger::Grant;
use htc_machine::admission::{Admission, QuotaCandidate, WaitingCandidate, admit};
use htc_machine::facts::QueueWait;
use htc_machine::{Indices, Uid};
use htc_support::metrics::QueuesMeasured;
use kube::runtime::reflector::ObjectRef;

use super::state::{self, POSITION_INTERVAL, Queueing, Queues, WorkloadInfo};
use super::states::{State, counted};
use crate::htcqueue::assignment::{Assignment, QueueInfo};
use crate::htcqueue::messages as words;
use crate::htcqueue::policy::{RequestError, priority};

/// Result of one pass over all queues.
#[derive(Debug, Default)]
pub(super) struct AdmissionPlan {
    /// Grants to be made durable, then passed to [`Queues::confirm_grants`].
    pub(super) grants: Vec<Grant>,
    /// `HTCJob`s to be reconciled, whatever is granted.
    pub(super) wake: Vec<ObjectRef<ObservedHTCJob>>,
    /// Outcome of each queue.
    pub(super) queues: Vec<QueueOutcome>,
    /// Every HTCJob of the first list has been reconciled, so usage is complete.
    pub(super) begun: bool,
    /// Time until positions are to be published again, or a reservation ends.
    pub(super) requeue_after: Option<Duration>,
    pub(super) measured: QueuesMeasured,
}

/// Outcome of one queue.
#[derive(Debug)]
pub(super) struct QueueOutcome {
    pub(super) name: String,
    pub(super) queue: QueueInfo,
    /// Number of namespaces that it admits.
    pub(super) namespaces: usize,
    pub(super) admission: Admission,
    /// `HTCJob`s that wait, in the order of admission, then those that cannot be counted. Only the first [`SHOWN`].
    pub(super) waiting: Vec<PendingWorkload>,
    /// Number of HTCJobs that have quota.
    pub(super) admitted: usize,
    /// Number of HTCJobs whose request cannot be counted.
    pub(super) refused: u64,
}

/// An `HTCJob` that waits.
#[derive(Clone, Debug)]
pub(super) struct PendingWorkload {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) jobs: u64,
    pub(super) position: Option<usize>,
    pub(super) wait: QueueWait,
}

/// `HTCJob`s of one queue.
#[derive(Default)]
struct QueueMembers {
    claims: Vec<QuotaCandidate>,
    /// `HTCJob`s whose request the queue cannot count: uid, number of jobs, and why.
    refused: Vec<(Uid, u64, QueueWait)>,
    admitted: usize,
}

impl Queues {
    /// Computes the next grants. They count from now on, and must be made durable.
    pub(super) fn plan(&self) -> AdmissionPlan {
        if self.mode == Queueing::Kueue {
            return self.kueue_plan();
        }
        self.with(|state| {
            let begun = state.first.as_ref().is_some_and(HashSet::is_empty);
            let mut plan = AdmissionPlan { begun, ..AdmissionPlan::default() };
            let mut members: BTreeMap<String, QueueMembers> = BTreeMap::new();
            let mut lines: Vec<(Uid, Assignment)> = Vec::with_capacity(state.htcjobs.len());
            for (uid, entry) in &state.htcjobs {
                let line = entry.assignment(&state.snapshot);
                if let Some(name) = line.usage_queue(entry.granting_queue.as_deref())
                    && let Some(queue) = state.snapshot.queues.get(name)
                {
                    let members = members.entry(name.to_owned()).or_default();
                    join(members, uid, entry, &line, queue, name);
                    let found = entry.ungranted_usage();
                    if begun && !found.is_empty() {
                        plan.grants.push(grant(uid, name, found));
                    }
                }
                lines.push((uid.clone(), line));
            }
            let now = Instant::now();
            let places = state.placed.is_none_or(|placed| now.duration_since(placed) >= POSITION_INTERVAL);
            let mut moved = false;
            let names: Vec<String> = state.snapshot.queues.keys().cloned().collect();
            for name in names {
                let its = members.remove(&name).unwrap_or_default();
                let Some(queue) = state.snapshot.queues.get(&name).cloned() else { continue };
                let mut terms = queue.policy.clone();
                terms.stopped |= !begun;
                let admission = admit(&terms, &its.claims);
                for (place, indices) in &admission.grants {
                    plan.grants.push(grant(&its.claims[*place].uid, &name, indices.clone()));
                }
                let ends = update_reservations(state, &its.claims, &admission, now);
                plan.requeue_after = plan.requeue_after.into_iter().chain(ends).min();
                let waiting = if begun {
                    update_waiting(state, &name, &queue, &its, &admission, (places, &mut moved))
                } else {
                    Vec::new()
                };
                let namespaces = state.snapshot.namespaces_of(&queue);
                let (admitted, refused) = (its.admitted, its.refused.len() as u64);
                plan.queues.push(QueueOutcome { name, queue, namespaces, admission, waiting, admitted, refused });
            }
            if places {
                state.placed = Some(now);
            } else if moved {
                let left = state
                    .placed
                    .map_or(POSITION_INTERVAL, |placed| POSITION_INTERVAL.saturating_sub(now.duration_since(placed)));
                plan.requeue_after = plan.requeue_after.into_iter().chain([left]).min();
            }
            for (uid, line) in &lines {
                let Some(entry) = state.htcjobs.get_mut(uid) else { continue };
                let goes_by = Some((line.clone(), entry.wait.clone()));
                if !entry.finished && entry.last_observed != goes_by && entry.last_notified != goes_by {
                    entry.last_notified = goes_by;
                    plan.wake.extend(entry.reference.clone());
                }
            }
            number(state, &mut plan);
            let states = lines.iter().filter_map(|(uid, line)| {
                let entry = state.htcjobs.get(uid)?;
                State::of(entry, line, entry.wait.as_ref())
            });
            let queues = plan.queues.iter().map(QueueOutcome::measured).collect();
            plan.measured = QueuesMeasured { queues, htcjobs: counted(states) };
            plan
        })
    }
}

/// Updates skip counters and reservations. Returns the time until the next reservation ends.
fn update_reservations(
    state: &mut state::QueuesState,
    claims: &[QuotaCandidate],
    admission: &Admission,
    now: Instant,
) -> Option<Duration> {
    let mut ends: Option<Duration> = None;
    for (place, passed) in admission.skip_counts(claims) {
        let Some(entry) = state.htcjobs.get_mut(&claims[place].uid) else { continue };
        (entry.times_skipped, entry.reserved_since) =
            match entry.reserved_since.filter(|_| admission.reservations.contains(&place)) {
                // The reservation has expired: other HTCJobs have waited for long enough, too.
                Some(since) if now.duration_since(since) >= KEPT => (0, None),
                Some(since) => (passed, Some(since)),
                None => (passed, admission.reservations.contains(&place).then_some(now)),
            };
        let left = entry.reserved_since.map(|since| KEPT.saturating_sub(now.duration_since(since)));
        ends = ends.into_iter().chain(left).min();
    }
    let given_up = |place: &usize| state.htcjobs.get(&claims[*place].uid).is_some_and(|entry| entry.times_skipped == 0);
    // A reservation has just ended: its quota is free for others at once.
    if admission.reservations.iter().any(given_up) { Some(Duration::ZERO) } else { ends }
}

/// Numbers the grants, and counts them as used.
pub(super) fn number(state: &mut state::QueuesState, plan: &mut AdmissionPlan) {
    for grant in &mut plan.grants {
        state.number += 1;
        grant.number = state.number;
        reserve(state, grant);
    }
}

/// Counts a grant as used before it is durable. A decision made meanwhile may release it.
fn reserve(state: &mut state::QueuesState, grant: &mut Grant) {
    let Some(entry) = state.htcjobs.get_mut(&grant.uid) else { return };
    let asked = !entry.requested.is_empty();
    entry.granted = Indices::union(&[entry.granted.clone(), grant.indices.clone()]);
    entry.requested = entry.requested.without(&grant.indices);
    grant.per_job = entry.resources.per_job.to_ledger_text();
    (entry.granting_queue, entry.last_grant) = (Some(grant.queue.clone()), grant.number);
    if asked && entry.requested.is_empty() {
        entry.wait = None;
    }
}

pub(super) fn grant(uid: &Uid, queue: &str, indices: Indices) -> Grant {
    Grant { uid: uid.clone(), queue: queue.to_owned(), indices, number: 0, per_job: String::new() }
}

/// Adds an `HTCJob`'s usage to its queue, and its request if it may make one.
fn join(members: &mut QueueMembers, uid: &Uid, entry: &WorkloadInfo, line: &Assignment, queue: &QueueInfo, name: &str) {
    let in_use = entry.in_use().len() as u64;
    let uses = if entry.usage_unknown { entry.granted.len() as u64 } else { in_use };
    members.admitted += usize::from(in_use > 0);
    let mut claim = QuotaCandidate {
        uid: uid.clone(),
        namespace: Arc::clone(&entry.namespace),
        priority: 0,
        created: entry.created,
        per_job: entry.resources.per_job,
        uses,
        unknown: in_use - uses,
        last_grant: entry.last_grant,
        times_skipped: entry.times_skipped,
        requested: Indices::default(),
    };
    if let (Assignment::Queued { .. }, false) = (line, entry.requested.is_empty()) {
        match may_ask(name, queue, entry) {
            Ok(priority) => (claim.priority, claim.requested) = (priority, entry.requested.clone()),
            Err(error) => {
                let wait = QueueWait { reason: Reason::Misconfigured, message: error.to_string(), position: None };
                members.refused.push((uid.clone(), entry.requested.len() as u64, wait));
            }
        }
    }
    members.claims.push(claim);
}

/// Returns the priority of its request.
fn may_ask(name: &str, queue: &QueueInfo, entry: &WorkloadInfo) -> Result<i64, RequestError> {
    if let Some(resource) = entry.resources.missing(&queue.policy) {
        return Err(RequestError::UnknownAmount { queue: name.to_owned(), resource });
    }
    priority(name, &queue.spec, entry.priority_class.as_deref())
}

/// Updates the messages of those that wait. A position that has only moved is updated every [`POSITION_INTERVAL`].
/// Returns the entries for the queue's status.
fn update_waiting(
    state: &mut state::QueuesState,
    name: &str,
    queue: &QueueInfo,
    members: &QueueMembers,
    admission: &Admission,
    (places, moved): (bool, &mut bool),
) -> Vec<PendingWorkload> {
    let of_line = admission.waiting.iter().map(|waits| {
        let claim = &members.claims[waits.candidate];
        let message = words::waiting_message(name, &queue.policy, waits, &claim.per_job);
        let place = waits.position.map(|place| u32::try_from(place).unwrap_or(u32::MAX));
        (claim.uid.clone(), waits.jobs, QueueWait { reason: words::reason(waits.reason), message, position: place })
    });
    let refused = members.refused.iter().cloned();
    let mut told = Vec::new();
    for (uid, jobs, wait) in of_line.chain(refused) {
        let Some(entry) = state.htcjobs.get_mut(&uid) else { continue };
        if told.len() < SHOWN
            && let Some(reference) = &entry.reference
        {
            told.push(PendingWorkload {
                namespace: entry.namespace.to_string(),
                name: reference.name.clone(),
                jobs,
                position: wait.position.map(|place| place as usize),
                wait: wait.clone(),
            });
        }
        // The message contains the position, rounded.
        let same = entry.wait.as_ref().is_some_and(|before| before.reason == wait.reason);
        let there = entry.wait.as_ref().is_some_and(|before| before.message == wait.message);
        if !same || (places && !there) {
            entry.wait = Some(wait);
        } else if !there {
            *moved = true;
        }
    }
    told
}

/// Time for which quota is reserved for one HTCJob. Then others are admitted. It has to be skipped as often again
/// before quota is reserved once more.
const KEPT: Duration = Duration::from_secs(3600);

/// Maximum number of waiting `HTCJob`s in a queue's status.
pub(super) const SHOWN: usize = 10;

/// Returns the number of jobs that wait.
pub(super) fn jobs_waiting(waiting: &[WaitingCandidate]) -> u64 {
    waiting.iter().map(|waits| waits.jobs).fold(0, u64::saturating_add)
}
