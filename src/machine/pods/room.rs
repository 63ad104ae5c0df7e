//! What an object has of its queue, what it asks for, and what it gives back.
//!
//! A Job says how many Pods run at a time (`parallelism`), and the Job controller which: as soon as one has ended it makes the next.
//! So room is so many Pods at a time. It is given back when fewer indexes are left than that, or when it is proved that the Pods
//! are gone; not when one index ends while others follow it.

use super::decide::{Action, Adjust, Decision};
use super::facts::{BatchJob, Facts, JobSeen, Left};
use crate::machine::facts::{Claim, Spec};
use crate::machine::indices::Indices;
use crate::machine::phase::Phase;
use crate::machine::room::{Room, Share};
use crate::machine::runs::{Record, RunState};

/// Pods that may run now.
enum Uses {
    AtMost(usize),
    /// All that there could be.
    Unknown,
}

/// What the object has of its queue after this decision.
#[must_use]
pub fn room(facts: &Facts, decision: &Decision) -> Room {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let spec = facts.object.spec.as_ref().ok();
    let asked = spec.map(Spec::asked_for).unwrap_or_default();
    let has = record.granted.len();
    // What the namespace has no room for asks for none of the queue's.
    let wants = wants(facts, record).min(facts.namespace_room.unwrap_or(usize::MAX));
    let more = |count: usize| -> Indices {
        let others = asked.iter().filter(|index| !record.granted.contains(*index));
        others.take(count.saturating_sub(has)).collect()
    };
    let asks = more(wants);
    // The room that an operator with another ledger gave is not known here.
    let keeps_what_it_uses = record.queue.is_none() && !record.is_kept_back();
    match uses(facts, record) {
        Uses::Unknown => {
            let most = spec.and_then(|spec| spec.parallelism).map_or(usize::MAX, |most| most as usize);
            let uses = asked.take(most);
            Room { uses, unknown: true, asks, keeps_what_it_uses, ..Room::default() }
        }
        Uses::AtMost(count) => {
            let uses = Indices::union(&[record.granted.take(count), more(count)]);
            let kept = record.granted.take(count.max(wants));
            Room { uses, asks, gives_back: record.granted.without(&kept), keeps_what_it_uses, ..Room::default() }
        }
    }
}

/// How many of its indexes are not over.
pub(crate) fn left(spec: &Spec, record: &Record) -> usize {
    spec.count().saturating_sub(record.runs.values().filter(|run| run.state.end().is_some()).count())
}

/// As what is recorded.
fn own_job<'a>(facts: &'a Facts, record: &Record) -> Option<&'a BatchJob> {
    match &facts.job {
        JobSeen::Ours(job) if record.job.as_ref().is_none_or(|uid| *uid == job.uid) => Some(job),
        JobSeen::Ours(_) | JobSeen::Absent | JobSeen::Foreign(_) | JobSeen::Unknown(_) => None,
    }
}

fn uses(facts: &Facts, record: &Record) -> Uses {
    let has = record.granted.len();
    let live = record.runs.values().filter(|run| matches!(run.state, RunState::Pending | RunState::Running));
    let live = live.count();
    let job = match (own_job(facts, record), &facts.job) {
        (Some(job), _) => job,
        (None, JobSeen::Unknown(_)) => {
            let new = record.known.as_ref().is_some_and(|known| known.new) || !facts.object.finalizer;
            let may_be = record.job.is_some() || !new;
            return if record.queue.is_none() && may_be { Uses::Unknown } else { Uses::AtMost(has.max(live)) };
        }
        (None, JobSeen::Absent | JobSeen::Foreign(_) | JobSeen::Ours(_)) => {
            // One that was never recorded was never resumed. Who deletes a Job may leave its Pods.
            let gone = record.job.is_none() || facts.left == Left::None;
            return Uses::AtMost(if gone { 0 } else { has.max(live) });
        }
    };
    if job.end.is_some() {
        return Uses::AtMost(0);
    }
    let left = facts.object.spec.as_ref().map_or(usize::MAX, |spec| left(spec, record));
    let may_run = match (job.suspended, job.is_stopped()) {
        (_, true) => 0,
        (true, false) => has,
        (false, false) => {
            // Without a number it is one. A controller that has not seen a smaller one makes as many as before.
            let now = job.parallelism.unwrap_or(1) as usize;
            left.min(if job.settled { now } else { now.max(has) })
        }
    };
    Uses::AtMost(may_run.max(live).max(job.active.saturating_add(job.terminating) as usize))
}

/// What the object has before a decision.
#[must_use]
pub fn share(facts: &Facts) -> Share {
    let has = match uses(facts, &facts.record) {
        Uses::AtMost(count) => Some(count),
        Uses::Unknown => None,
    };
    Share { has, wants: wants(facts, &facts.record) }
}

/// How many it may have after a decision; none if that is not known.
#[must_use]
pub fn share_after(facts: &Facts, decision: &Decision) -> Option<usize> {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let Uses::AtMost(count) = uses(facts, record) else { return None };
    let more = match (&decision.action, &facts.object.spec) {
        (Action::Adjust(_, Adjust { suspend: false, parallelism, .. }), Ok(spec)) => {
            left(spec, record).min(*parallelism as usize)
        }
        _ => 0,
    };
    Some(count.max(more))
}

/// How many would run at a time now.
fn wants(facts: &Facts, record: &Record) -> usize {
    let (Ok(spec), Some(known), Some(job)) = (&facts.object.spec, &record.known, own_job(facts, record)) else {
        return 0;
    };
    let live = matches!(known.phase, Phase::Pending | Phase::Submitted | Phase::Running)
        && !facts.object.deleting
        && facts.object.finalizer
        && facts.object.claim == Claim::Ours
        && known.cut_short.is_none()
        && !known.released;
    let goes_on = job.end.is_none() && job.failing.is_none() && !job.deleting;
    if !live || !goes_on || spec.suspend || spec.refused.is_some() {
        return 0;
    }
    let at_a_time = spec.parallelism.map_or(usize::MAX, |most| most as usize);
    left(spec, record).min(at_a_time)
}
