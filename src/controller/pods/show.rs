//! What is known becomes the object's status.

use kube::Resource as _;

use crate::api::{Condition, HTCJobStatus, Observed};
use crate::controller::publish::{RANGES_OF_INDEXES, conditions, first_words, time, with_place};
use crate::machine::facts::Spec;
use crate::machine::pods::{Counts, Facts, indexes};
use crate::machine::runs::Record;
use crate::machine::summary::summary;

/// The status that says what `record` has.
pub(super) fn status(record: &Record, facts: &Facts, object: &Observed) -> HTCJobStatus {
    let old = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let counts = Counts::of(record);
    let known = record.known.as_ref();
    let generation = object.meta().generation;
    let told: Vec<Condition> =
        conditions(known.map(|known| known.conditions.as_slice()).unwrap_or_default(), generation);
    let phase = known.map(|known| known.phase).max(old.and_then(|old| old.phase));
    let summary = phase
        .map(|phase| summary(phase, counts.failed, known.map(|known| known.conditions.as_slice()).unwrap_or_default()));
    let asked_for = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
    let [completed_indexes, failed_indexes] =
        indexes(record, &asked_for).map(|set| (!set.is_empty()).then(|| set.within(RANGES_OF_INDEXES)));
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let has_job = record.job.is_some();
    HTCJobStatus {
        phase,
        state: summary.as_ref().map(|(state, _)| with_place(state, facts.queue.as_ref())),
        message: summary.and_then(|(_, told)| told).map(|told| first_words(&told.message)),
        observed_generation: generation,
        job_name: has_job.then(|| facts.object.job_name.clone()).or_else(|| old.and_then(|old| old.job_name.clone())),
        total: facts.object.spec.as_ref().ok().map(|spec| number(spec.count())),
        active: number(counts.active),
        succeeded: number(counts.succeeded),
        failed: number(counts.failed),
        completed_indexes,
        failed_indexes,
        idle: number(counts.idle),
        running: number(counts.running),
        start_time: known.and_then(|known| known.started).and_then(time),
        completion_time: known.and_then(|known| known.completed).and_then(time),
        conditions: told,
        ..HTCJobStatus::default()
    }
}
