//! Progress of an `HTCJob` whose jobs are Pods, as reported to Kueue.

use crate::phase::Phase;
use crate::pods::{PodsDecision, PodsFacts, counts, left};
use crate::progress::Progress;
use crate::quota_usage::QuotaUsage;
use crate::runs::{Run, RunState};

/// Returns the progress after a decision. `room`: quota usage after it.
#[must_use]
pub fn progress(facts: &PodsFacts, decision: &PodsDecision, room: &QuotaUsage, suspend: bool) -> Option<Progress> {
    let record = decision.after.as_ref()?;
    let known = record.row.as_ref()?;
    let spec = facts.object.spec.as_ref().ok()?;
    let ended = (known.phase == Phase::Completed).then(|| counts(record).succeeded < spec.count());
    // An object whose Job cannot be created must not keep others waiting.
    if record.job.is_none() && ended.is_none() {
        return None;
    }
    let follow = if known.cut_short.is_some() { 0 } else { left(spec, record) };
    // Pods that are being deleted count, even if their indexes are over.
    let left = follow.max(room.used.len());
    let has = record.granted.without(&room.returned).len();
    let waits = |run: &Run| matches!(run.state, RunState::Waiting | RunState::Pending);
    let begun = record.runs.values().filter(|run| !waits(run)).count();
    Some(Progress {
        at_a_time: spec.count().min(spec.parallelism.map_or(usize::MAX, |most| most as usize)),
        unfinished: left,
        suspend,
        idle: facts.namespace_limit == Some(0),
        deleting: facts.object.deleting,
        accepted: has > 0 && begun >= has,
        ended,
    })
}
