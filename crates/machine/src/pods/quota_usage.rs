//! Quota that an object has, requests and returns.
//!
//! A Job limits how many Pods run at a time (`parallelism`), and the Job controller chooses which: when one has ended
//! it creates the next.
//! So quota is counted in Pods at a time.
//! It is returned when fewer indexes are left than that, or when the Pods are proved to be gone; not when one index
//! ends while others follow it.

use super::decide::{DesiredJob, PodsAction, PodsDecision};
use super::facts::{LeftoverPods, OwnJob, PodsFacts};
use crate::facts::{Claim, Spec};
use crate::indices::Indices;
use crate::phase::Phase;
use crate::quota_usage::{Concurrency, QuotaUsage};
use crate::runs::{RunState, RunsRecord};

/// Number of Pods that may run now.
enum PodsInUse {
    AtMost(usize),
    /// It is unknown: as many as possible.
    Unknown,
}

/// Returns the object's quota usage after this decision.
#[must_use]
pub fn quota_usage(facts: &PodsFacts, decision: &PodsDecision) -> QuotaUsage {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let spec = facts.object.spec.as_ref().ok();
    let asked = spec.map(Spec::asked_for).unwrap_or_default();
    let has = record.granted.len();
    // Jobs over the limit of the namespace request no quota of the queue.
    let wants = wants(facts, record).min(facts.namespace_limit.unwrap_or(usize::MAX));
    let more = |count: usize| -> Indices {
        let others = asked.iter().filter(|index| !record.granted.contains(*index));
        others.take(count.saturating_sub(has)).collect()
    };
    let asks = more(wants);
    // Quota that was granted by an operator with another ledger is not known here.
    let keeps_what_it_uses = record.granting_queue.is_none() && !record.is_kept_back();
    let usage = QuotaUsage { requested: asks, grandfathered: keeps_what_it_uses, ..QuotaUsage::default() };
    match uses(facts, record) {
        PodsInUse::Unknown => {
            let most = spec.and_then(|spec| spec.parallelism).map_or(usize::MAX, |most| most as usize);
            QuotaUsage { used: asked.take(most), usage_unknown: true, ..usage }
        }
        PodsInUse::AtMost(count) => {
            let used = Indices::union(&[record.granted.take(count), more(count)]);
            let kept = record.granted.take(count.max(wants));
            QuotaUsage { used, returned: record.granted.without(&kept), ..usage }
        }
    }
}

/// Returns how many indexes are not over.
pub(crate) fn left(spec: &Spec, record: &RunsRecord) -> usize {
    spec.count().saturating_sub(record.runs.values().filter(|run| run.state.end().is_some()).count())
}

fn uses(facts: &PodsFacts, record: &RunsRecord) -> PodsInUse {
    let has = record.granted.len();
    let live = record.runs.values().filter(|run| matches!(run.state, RunState::Pending | RunState::Running));
    let live = live.count();
    let job = match facts.own_job(record) {
        OwnJob::Here(job) => job,
        OwnJob::Unknown(_) => {
            let new = record.row.as_ref().is_some_and(|known| known.new) || !facts.object.finalizer;
            let may_be = record.job.is_some() || !new;
            return if record.granting_queue.is_none() && may_be {
                PodsInUse::Unknown
            } else {
                PodsInUse::AtMost(has.max(live))
            };
        }
        OwnJob::Gone => {
            // A Job that was never recorded was never resumed. A user who deletes a Job may leave its Pods.
            let gone = record.job.is_none() || facts.leftover_pods == LeftoverPods::None;
            return PodsInUse::AtMost(if gone { 0 } else { has.max(live) });
        }
    };
    if job.end.is_some() {
        return PodsInUse::AtMost(0);
    }
    let left = facts.object.spec.as_ref().map_or(usize::MAX, |spec| left(spec, record));
    let may_run = match (job.suspended, job.is_stopped()) {
        (_, true) => 0,
        (true, false) => has,
        (false, false) => {
            // The default parallelism is 1. A controller that has not seen a lower number still creates as many Pods as
            // before.
            let now = job.parallelism.unwrap_or(1) as usize;
            left.min(if job.settled { now } else { now.max(has) })
        }
    };
    PodsInUse::AtMost(may_run.max(live).max(job.active.saturating_add(job.terminating) as usize))
}

/// Returns how many Pods the object has and wants before a decision.
#[must_use]
pub fn concurrency(facts: &PodsFacts) -> Concurrency {
    let has = match uses(facts, &facts.record) {
        PodsInUse::AtMost(count) => Some(count),
        PodsInUse::Unknown => None,
    };
    Concurrency { current: has, wanted: wants(facts, &facts.record) }
}

/// Returns how many Pods may run after a decision; none if that is not known.
#[must_use]
pub fn concurrency_after(facts: &PodsFacts, decision: &PodsDecision) -> Option<usize> {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let PodsInUse::AtMost(count) = uses(facts, record) else { return None };
    let more = match (&decision.action, &facts.object.spec) {
        (PodsAction::UpdateJob(_, DesiredJob { suspend: false, parallelism, .. }), Ok(spec)) => {
            left(spec, record).min(*parallelism as usize)
        }
        _ => 0,
    };
    Some(count.max(more))
}

/// Returns how many Pods would run at a time now.
fn wants(facts: &PodsFacts, record: &RunsRecord) -> usize {
    let (Ok(spec), Some(known), OwnJob::Here(job)) = (&facts.object.spec, &record.row, facts.own_job(record)) else {
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
