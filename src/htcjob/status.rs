//! The part of the status that is the same for all backends.

use htc_api::{Condition, HTCJobStatus, InputStatus};
use htc_machine::facts::{ConditionRecord, ObjectRow, QueueFacts, Spec};
use htc_machine::status::Counts;
use htc_machine::summary::{QUEUED, summary};
use htc_machine::{Indices, Timestamp};
use jiff::Timestamp as Moment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;

use super::pass::Pass;
use crate::htcqueue::messages as words;

/// Maximum length of the succeeded indexes, and of the failed indexes, in bytes.
const RANGES_OF_INDEXES: usize = 16 * 1024;
/// Maximum length of the message next to the state, in characters.
const MESSAGE: usize = 200;

/// Inputs of the status that all backends have.
pub(super) struct CommonStatus<'a> {
    pub(super) row: Option<&'a ObjectRow>,
    /// Spec, if it can be read.
    pub(super) spec: Option<&'a Spec>,
    /// Numbers of jobs by state.
    pub(super) counts: Counts,
    /// Succeeded indexes and failed indexes.
    pub(super) indexes: [Indices; 2],
    pub(super) queue: Option<&'a QueueFacts>,
    /// Files that the jobs get, if they are known.
    pub(super) inputs: &'a [InputStatus],
}

impl CommonStatus<'_> {
    /// Builds the status without what only one backend has.
    pub(super) fn build(self, pass: &Pass<'_>) -> HTCJobStatus {
        let (counts, generation) = (self.counts, pass.object.meta().generation);
        let conditions = self.row.map(|row| row.conditions.as_slice()).unwrap_or_default();
        // The phase never goes back: the status may have been written by an operator with another ledger.
        let old = pass.status();
        let phase = self.row.map(|row| row.phase).max(old.and_then(|old| old.phase));
        let (state, message) = phase.map(|phase| summary(phase, counts.failed, conditions)).unzip();
        let [completed_indexes, failed_indexes] =
            self.indexes.map(|set| (!set.is_empty()).then(|| set.within(RANGES_OF_INDEXES)));
        HTCJobStatus {
            phase,
            state: state.map(|state| with_position(&state, self.queue)),
            message: message.flatten().map(|condition| first_words(&condition.message)),
            observed_generation: generation,
            total: self.spec.map(|spec| number(spec.count())),
            inputs: if self.inputs.is_empty() {
                old.map(|old| old.inputs.clone()).unwrap_or_default()
            } else {
                self.inputs.to_vec()
            },
            active: number(counts.active),
            succeeded: number(counts.succeeded),
            failed: number(counts.failed),
            idle: number(counts.idle),
            running: number(counts.running),
            held: number(counts.held),
            completed_indexes,
            failed_indexes,
            start_time: self.row.and_then(|row| row.started).and_then(time),
            completion_time: self.row.and_then(|row| row.completed).and_then(time),
            conditions: conditions_of_crd(conditions, generation),
            ..HTCJobStatus::default()
        }
    }
}

/// Converts a count to the type of the CRD.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Adds the position to the state: `Queued (4th)`.
fn with_position(state: &str, queue: Option<&QueueFacts>) -> String {
    let wait = queue.and_then(|queue| queue.wait.as_ref());
    match wait.and_then(|wait| wait.position).filter(|_| state == QUEUED) {
        Some(place) => format!("{state} ({})", words::position_text(place as usize)),
        None => state.to_owned(),
    }
}

/// Returns the conditions in the form of the CRD.
fn conditions_of_crd(conditions: &[ConditionRecord], generation: Option<i64>) -> Vec<Condition> {
    let shown = conditions.iter().filter_map(|condition| {
        Some(Condition {
            type_: condition.kind.to_string(),
            status: condition.status,
            reason: condition.reason.clone(),
            message: condition.message.chars().take(4000).collect(),
            last_transition_time: time(condition.since)?,
            observed_generation: generation,
        })
    });
    shown.collect()
}

fn time(at: Timestamp) -> Option<Time> {
    Moment::from_second(at.0.div_euclid(1000)).ok().map(Time)
}

/// Cuts the message to fit a line of `kubectl get -o wide`; the condition holds all of it.
fn first_words(message: &str) -> String {
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}
