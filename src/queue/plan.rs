//! One pass over all queues: what is to be granted, what is to be told, and whom.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::reflector::ObjectRef;

use super::admit::{Admission, Claim, Waits, admit};
use super::line::{Line, Named};
use super::state::{self, Entry, PLACES, Queueing, Queues};
use super::states::{State, counted};
use super::terms::{field, priority};
use super::words;
use crate::api::{Observed, Reason};
use crate::ledger::Grant;
use crate::machine::facts::QueueWait;
use crate::machine::{Indices, Uid};
use crate::metrics::QueuesMeasured;

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// To be made durable, then told to [`Queues::granted`].
    pub(super) grants: Vec<Grant>,
    /// Who is to look again, whatever is granted.
    pub(super) wake: Vec<ObjectRef<Observed>>,
    /// What became of each queue.
    pub(super) queues: Vec<Outcome>,
    /// Every HTCJob of the first list was looked at.
    pub(super) begun: bool,
    /// When places are to be told again.
    pub(super) again: Option<Duration>,
    pub(super) measured: QueuesMeasured,
}

/// What became of one queue.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) queue: Named,
    /// How many namespaces it is for.
    pub(super) namespaces: usize,
    pub(super) admission: Admission,
    /// Those that wait, in the order of the admission, and those that cannot be counted.
    pub(super) waiting: Vec<Told>,
    /// HTCJobs that have room.
    pub(super) admitted: usize,
    /// HTCJobs that cannot be counted.
    pub(super) refused: u64,
}

/// One that waits.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) jobs: u64,
    pub(super) place: Option<usize>,
    pub(super) wait: QueueWait,
}

/// Those of one queue.
#[derive(Default)]
struct Members {
    claims: Vec<Claim>,
    /// Those that the queue cannot count, and why.
    refused: Vec<(Uid, u64, QueueWait)>,
    admitted: usize,
}

impl Queues {
    /// Decides. What it grants counts from now on, and must be made durable.
    pub(super) fn plan(&self) -> Plan {
        if self.mode == Queueing::Kueue {
            return self.kueue_plan();
        }
        self.with(|state| {
            let begun = state.first.as_ref().is_some_and(HashSet::is_empty);
            let mut plan = Plan { begun, ..Plan::default() };
            let mut members: BTreeMap<String, Members> = BTreeMap::new();
            let mut lines: Vec<(Uid, Line)> = Vec::with_capacity(state.htcjobs.len());
            for (uid, entry) in &state.htcjobs {
                let line = entry.line(&state.world);
                if let Some(name) = line.counts_in(entry.bound.as_deref())
                    && let Some(queue) = state.world.queues.get(name)
                {
                    let members = members.entry(name.to_owned()).or_default();
                    join(members, uid, entry, &line, queue, name);
                    let found = entry.found();
                    if begun && !found.is_empty() {
                        plan.grants.push(grant(uid, name, found));
                    }
                }
                lines.push((uid.clone(), line));
            }
            let now = Instant::now();
            let places = state.placed.is_none_or(|placed| now.duration_since(placed) >= PLACES);
            let mut moved = false;
            let names: Vec<String> = state.world.queues.keys().cloned().collect();
            for name in names {
                let its = members.remove(&name).unwrap_or_default();
                let Some(queue) = state.world.queues.get(&name).cloned() else { continue };
                let mut terms = queue.terms.clone();
                terms.stopped |= !begun;
                let admission = admit(&terms, &its.claims);
                for (place, indices) in &admission.grants {
                    plan.grants.push(grant(&its.claims[*place].uid, &name, indices.clone()));
                }
                let ends = wait_for(state, &its.claims, &admission, now);
                plan.again = plan.again.into_iter().chain(ends).min();
                let waiting =
                    if begun { tell(state, &name, &queue, &its, &admission, (places, &mut moved)) } else { Vec::new() };
                let namespaces = state.world.namespaces_of(&queue);
                let (admitted, refused) = (its.admitted, its.refused.len() as u64);
                plan.queues.push(Outcome { name, queue, namespaces, admission, waiting, admitted, refused });
            }
            if places {
                state.placed = Some(now);
            } else if moved {
                let left = state.placed.map_or(PLACES, |placed| PLACES.saturating_sub(now.duration_since(placed)));
                plan.again = plan.again.into_iter().chain([left]).min();
            }
            for (uid, line) in &lines {
                let Some(entry) = state.htcjobs.get_mut(uid) else { continue };
                let goes_by = Some((line.clone(), entry.wait.clone()));
                if !entry.over && entry.shown != goes_by && entry.woken_for != goes_by {
                    entry.woken_for = goes_by;
                    plan.wake.extend(entry.reference.clone());
                }
            }
            number(state, &mut plan);
            let states = lines.iter().filter_map(|(uid, line)| {
                let entry = state.htcjobs.get(uid)?;
                State::of(entry, line, entry.wait.as_ref())
            });
            let queues = plan.queues.iter().map(Outcome::measured).collect();
            plan.measured = QueuesMeasured { queues, htcjobs: counted(states) };
            plan
        })
    }
}

/// Notes who was passed, and for whom room is kept. Until the next of these has been waited for long enough.
fn wait_for(state: &mut state::State, claims: &[Claim], admission: &Admission, now: Instant) -> Option<Duration> {
    let mut ends: Option<Duration> = None;
    for (place, passed) in admission.passed(claims) {
        let Some(entry) = state.htcjobs.get_mut(&claims[place].uid) else { continue };
        (entry.passed, entry.waited_for) = match entry.waited_for.filter(|_| admission.waited_for.contains(&place)) {
            // Others have waited for long enough, too.
            Some(since) if now.duration_since(since) >= KEPT => (0, None),
            Some(since) => (passed, Some(since)),
            None => (passed, admission.waited_for.contains(&place).then_some(now)),
        };
        let left = entry.waited_for.map(|since| KEPT.saturating_sub(now.duration_since(since)));
        ends = ends.into_iter().chain(left).min();
    }
    let given_up = |place: &usize| state.htcjobs.get(&claims[*place].uid).is_some_and(|entry| entry.passed == 0);
    // Then there is room for others at once.
    if admission.waited_for.iter().any(given_up) { Some(Duration::ZERO) } else { ends }
}

/// What is granted gets its number, and counts.
pub(super) fn number(state: &mut state::State, plan: &mut Plan) {
    for grant in &mut plan.grants {
        state.number += 1;
        grant.number = state.number;
        reserve(state, grant);
    }
}

/// What is granted counts before it is durable: a decision that is made meanwhile may give it back.
fn reserve(state: &mut state::State, grant: &mut Grant) {
    let Some(entry) = state.htcjobs.get_mut(&grant.uid) else { return };
    let asked = !entry.asks.is_empty();
    entry.granted = Indices::union(&[entry.granted.clone(), grant.indices.clone()]);
    entry.asks = entry.asks.without(&grant.indices);
    grant.each = entry.demand.each.kept();
    (entry.bound, entry.last) = (Some(grant.queue.clone()), grant.number);
    if asked && entry.asks.is_empty() {
        entry.wait = None;
    }
}

pub(super) fn grant(uid: &Uid, queue: &str, indices: Indices) -> Grant {
    Grant { uid: uid.clone(), queue: queue.to_owned(), indices, number: 0, each: String::new() }
}

/// Counts one, and lets it ask if it may.
fn join(members: &mut Members, uid: &Uid, entry: &Entry, line: &Line, queue: &Named, name: &str) {
    let in_use = entry.in_use().len() as u64;
    let uses = if entry.unknown { entry.granted.len() as u64 } else { in_use };
    members.admitted += usize::from(in_use > 0);
    let mut claim = Claim {
        uid: uid.clone(),
        namespace: Arc::clone(&entry.namespace),
        priority: 0,
        created: entry.created,
        each: entry.demand.each,
        uses,
        unknown: in_use - uses,
        last: entry.last,
        passed: entry.passed,
        asks: Indices::default(),
    };
    if let (Line::In { .. }, false) = (line, entry.asks.is_empty()) {
        match may_ask(name, queue, entry) {
            Ok(priority) => (claim.priority, claim.asks) = (priority, entry.asks.clone()),
            Err(message) => {
                let wait = QueueWait { reason: Reason::Misconfigured, message, place: None };
                members.refused.push((uid.clone(), entry.asks.len() as u64, wait));
            }
        }
    }
    members.claims.push(claim);
}

/// Its priority; or why it cannot be served.
fn may_ask(name: &str, queue: &Named, entry: &Entry) -> Result<i64, String> {
    if let Some(resource) = entry.demand.missing(&queue.terms) {
        return Err(format!(
            "HTCQueue {name} has a quota of {resource}, and the HTCJob does not say in a number how much each job needs: create it again with {}",
            field(resource)
        ));
    }
    priority(name, &queue.spec, entry.class.as_deref())
}

/// Notes what those are told that wait. Places that have only moved are told now and then.
fn tell(
    state: &mut state::State,
    name: &str,
    queue: &Named,
    members: &Members,
    admission: &Admission,
    (places, moved): (bool, &mut bool),
) -> Vec<Told> {
    let of_line = admission.waiting.iter().map(|waits| {
        let claim = &members.claims[waits.claim];
        let message = words::waits(name, &queue.terms, waits, &claim.each);
        let place = waits.place.map(|place| u32::try_from(place).unwrap_or(u32::MAX));
        (claim.uid.clone(), waits.jobs, QueueWait { reason: words::reason(waits.why), message, place })
    });
    let refused = members.refused.iter().cloned();
    let mut told = Vec::new();
    for (uid, jobs, wait) in of_line.chain(refused) {
        let Some(entry) = state.htcjobs.get_mut(&uid) else { continue };
        if told.len() < SHOWN
            && let Some(reference) = &entry.reference
        {
            told.push(Told {
                namespace: entry.namespace.to_string(),
                name: reference.name.clone(),
                jobs,
                place: wait.place.map(|place| place as usize),
                wait: wait.clone(),
            });
        }
        // The message has the place, in round numbers.
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

/// For so long room is kept for one HTCJob; then others go on, and it is passed again as often before room is kept once more.
const KEPT: Duration = Duration::from_secs(3600);

/// Most that are shown of those that wait.
pub(super) const SHOWN: usize = 10;

/// How many jobs wait.
pub(super) fn jobs_waiting(waiting: &[Waits]) -> u64 {
    waiting.iter().map(|waits| waits.jobs).fold(0, u64::saturating_add)
}
