//! How far an `HTCJob` is whose jobs are Pods, as far as Kueue is told.

use serde_json::Value;

use crate::api::Phase;
use crate::machine::pods::{Counts, Decision, Facts, left};
use crate::machine::room::Room;
use crate::machine::runs::{Run, RunState};
use crate::queue::Progress;

/// After a decision, with the room that it has then. `pod`: what each of its Pods is, as [`asked_for`](super::asked_for) says it.
#[must_use]
pub fn progress(facts: &Facts, decision: &Decision, room: &Room, suspend: bool, pod: Value) -> Option<Progress> {
    let record = decision.after.as_ref()?;
    let known = record.known.as_ref()?;
    let spec = facts.object.spec.as_ref().ok()?;
    let ended = (known.phase == Phase::Completed).then(|| Counts::of(record).succeeded < spec.count());
    // What cannot be created keeps nobody waiting.
    if record.job.is_none() && ended.is_none() {
        return None;
    }
    let follow = if known.cut_short.is_some() { 0 } else { left(spec, record) };
    // Those that are being deleted count, also if their indexes are over.
    let left = follow.max(room.uses.len());
    let has = record.granted.without(&room.gives_back).len();
    let waits = |run: &Run| matches!(run.state, RunState::Waiting | RunState::Pending);
    let begun = record.runs.values().filter(|run| !waits(run)).count();
    Some(Progress {
        at_a_time: spec.count().min(spec.parallelism.map_or(usize::MAX, |most| most as usize)),
        left,
        suspend,
        idle: facts.namespace_room == Some(0),
        deleting: facts.object.deleting,
        accepted: has > 0 && begun >= has,
        ended,
        pod: Some(pod),
    })
}
