//! Counts, conditions and messages of the status, computed from the record.

use std::collections::BTreeMap;

use super::facts::{ConditionRecord, Hold, Job, JobState, ObjectRow, Record, RunHistory};
use super::ids::{Index, JobId, Timestamp};
use super::indices::Indices;
use super::outcome::{Loss, Outcome};
use super::payload_failure::JobShEnd;
use crate::actions::JobAction;
use crate::condition::{ConditionStatus, ConditionType};
use crate::text::sanitize;

/// Maximum number of different ways of failure that one sentence lists.
const WAYS: usize = 8;

/// Maximum number of bytes of HTCondor's reason for a removal in such a sentence, which may have several.
const REASON_IN_WAYS: usize = 120;

/// Way of failure of a job that a user removed.
const REMOVED_BY_A_USER: &str = "removed by a user";

/// Numbers of accepted jobs of one object, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that have not ended.
    pub active: usize,
    /// Jobs that exited with 0.
    pub succeeded: usize,
    /// Jobs that ended otherwise.
    pub failed: usize,
    /// Active jobs that wait.
    pub idle: usize,
    /// Active jobs that run.
    pub running: usize,
    /// Active jobs that are held, by the operator or anyone else.
    pub held: usize,
    /// Failed jobs that were removed.
    pub removed: usize,
    /// Failed jobs that were lost.
    pub lost: usize,
}

impl Counts {
    /// Counts the jobs of `record`: by HTCondor's answers and, until there is one, by the ends that the jobs themselves
    /// report.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let mut counts = Self::default();
        for job in record.jobs.values() {
            match ended(record, job) {
                Some(Outcome::Succeeded) => counts.succeeded += 1,
                Some(outcome) => {
                    counts.failed += 1;
                    counts.removed += usize::from(matches!(outcome, Outcome::Removed(_)));
                    counts.lost += usize::from(matches!(outcome, Outcome::Lost(_)));
                }
                None => match job.state {
                    JobState::Running => counts.running += 1,
                    JobState::Held(_) => counts.held += 1,
                    JobState::Idle | JobState::Ended(_) => counts.idle += 1,
                },
            }
        }
        let withdrawn = record.requested_actions.withdrawn().len();
        counts.removed += withdrawn;
        counts.failed += withdrawn + record.row.as_ref().map_or(0, |known| known.given_up as usize);
        counts.active = counts.idle + counts.running + counts.held;
        counts
    }
}

/// Returns a job's outcome: by HTCondor's answers and, until there is one, by the job's own report.
fn ended(record: &Record, job: &Job) -> Option<Outcome> {
    let reported = || record.reports.get(&job.id).and_then(|report| report.ended).map(|end| end.outcome());
    job.outcome().cloned().or_else(reported)
}

/// Returns which of the jobs in `asked_for` succeeded, and which failed, as in [`Counts`].
#[must_use]
pub fn indexes(record: &Record, asked_for: &Indices) -> [Indices; 2] {
    let ended = record.jobs.iter().filter_map(|(index, job)| Some((*index, ended(record, job)? == Outcome::Succeeded)));
    let recorded = record.jobs.keys().copied().collect();
    let [succeeded, failed] = split_by_success(ended, record.row.as_ref(), &recorded, asked_for);
    [succeeded, Indices::union(&[failed, record.requested_actions.withdrawn()])]
}

/// Returns the jobs that succeeded, and those that failed: jobs of `asked_for` that are not recorded have failed once
/// they are given up. `ended`: jobs that have ended, and whether they succeeded.
pub(crate) fn split_by_success(
    ended: impl Iterator<Item = (Index, bool)>,
    row: Option<&ObjectRow>,
    recorded: &Indices,
    asked_for: &Indices,
) -> [Indices; 2] {
    let (succeeded, failed): (Vec<_>, Vec<_>) = ended.partition(|(_, succeeded)| *succeeded);
    let given_up = row.is_some_and(|known| known.given_up > 0);
    let never = if given_up { asked_for.without(recorded) } else { Indices::default() };
    let failed = failed.into_iter().map(|(index, _)| index).collect();
    [succeeded.into_iter().map(|(index, _)| index).collect(), Indices::union(&[failed, never])]
}

/// Formats a number of jobs: `3 jobs` or `1 job`.
#[must_use]
pub fn jobs_text(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// Describes in one sentence how the jobs of `record` ended: how many, in which ways, and which failed first.
#[must_use]
pub fn ending(record: &Record, counts: &Counts) -> String {
    if counts.failed == 0 {
        return format!("{} succeeded", jobs_text(counts.succeeded));
    }
    let total = counts.succeeded + counts.failed;
    let first = record
        .jobs
        .iter()
        .find_map(|(index, job)| {
            let what = failure(job, record.requested_actions.is(*index, JobAction::Remove))?;
            Some(format!("; job {index} ({}) {what}", job.id))
        })
        .unwrap_or_default();
    let ways = if counts.failed > 1 || first.is_empty() { format!(": {}", ways(record)) } else { String::new() };
    format!("{} of {} failed{ways}{first}", counts.failed, jobs_text(total))
}

/// Lists the ways in which jobs failed, with numbers, most frequent first: `exit code 1 (2), signal 9 (1)`.
fn ways(record: &Record) -> String {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let by_user = |index: Index| record.requested_actions.is(index, JobAction::Remove);
    for way in record.jobs.iter().filter_map(|(index, job)| way(job.outcome()?, by_user(*index))) {
        *numbers.entry(way).or_default() += 1;
    }
    let withdrawn = record.requested_actions.withdrawn().len();
    if withdrawn > 0 {
        *numbers.entry(REMOVED_BY_A_USER.to_owned()).or_default() += withdrawn;
    }
    if let Some(known) = record.row.as_ref().filter(|known| known.given_up > 0) {
        numbers.insert("never submitted".to_owned(), known.given_up as usize);
    }
    let (shown, rest) = most_frequent(numbers);
    if rest > 0 { format!("{shown}, other ways ({rest})") } else { shown }
}

/// Lists the most frequent ways of failure with their numbers. Returns how many failures are left out, too.
pub(crate) fn most_frequent(numbers: BTreeMap<String, usize>) -> (String, usize) {
    let mut ways: Vec<(String, usize)> = numbers.into_iter().collect();
    ways.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let rest = ways.iter().skip(WAYS).map(|(_, number)| number).sum();
    let shown: Vec<String> = ways.iter().take(WAYS).map(|(way, number)| format!("{way} ({number})")).collect();
    (shown.join(", "), rest)
}

fn way(outcome: &Outcome, removed_by_user: bool) -> Option<String> {
    match outcome {
        Outcome::Succeeded => None,
        Outcome::Failed(code) => Some(format!("exit code {code}")),
        Outcome::Killed(signal) => Some(match JobShEnd::from_signal(*signal) {
            Some(end) if end.is_node_fault() => format!("node fault {}", end.failure.code()),
            Some(end) => format!("job.sh {}", end.failure.code()),
            None => format!("signal {signal}"),
        }),
        Outcome::FailedBefore => Some("before the upgrade".to_owned()),
        Outcome::Removed(_) if removed_by_user => Some(REMOVED_BY_A_USER.to_owned()),
        Outcome::Removed(reason) if reason.is_empty() => Some("removed".to_owned()),
        Outcome::Removed(reason) => Some(format!("removed: {}", sanitize(reason, REASON_IN_WAYS))),
        Outcome::Lost(_) => Some("lost".to_owned()),
    }
}

/// Returns the last output of the first failed job, if it is known.
#[must_use]
pub fn wrote_last(record: &Record) -> Option<String> {
    let err = record.err_tail.as_ref()?;
    let failed =
        |job: &&Job| matches!(job.outcome(), Some(Outcome::Failed(_) | Outcome::Killed(_) | Outcome::FailedBefore));
    record.jobs.get(&err.index).filter(failed)?;
    Some(format!("the err of job {} ends with: {}", err.index, err.text))
}

fn failure(job: &Job, removed_by_user: bool) -> Option<String> {
    match job.outcome()? {
        Outcome::Succeeded => None,
        Outcome::Failed(code) => Some(format!("exited with {code}")),
        Outcome::Killed(signal) => Some(match JobShEnd::from_signal(*signal) {
            Some(end) => ended_by_job_sh(end, &job.runs),
            None => format!("was killed by signal {signal}"),
        }),
        Outcome::FailedBefore => Some("failed before the upgrade".to_owned()),
        Outcome::Removed(_) if removed_by_user => Some("was removed by a user".to_owned()),
        Outcome::Removed(reason) if reason.is_empty() => Some("was removed from HTCondor".to_owned()),
        Outcome::Removed(reason) => Some(format!("was removed from HTCondor: {reason}")),
        Outcome::Lost(Loss::Vanished) => Some("is in neither HTCondor's queue nor its history".to_owned()),
        Outcome::Lost(Loss::QueueReset) => Some("was lost with the schedd's queue".to_owned()),
    }
}

/// Describes the end of a job by `job.sh`, with the machines on which it was tried.
#[must_use]
pub fn ended_by_job_sh(end: JobShEnd, runs: &RunHistory) -> String {
    let (code, sentence) = (end.failure.code(), end.failure.sentence());
    let machine = runs.host.as_deref().map_or("unknown", |host| host.rsplit('@').next().unwrap_or(host));
    if end.after_payload {
        return format!("ran its script, and then failed on {machine} ({code}): {sentence}");
    }
    match &runs.faults {
        Some(faults) if end.is_node_fault() => format!(
            "could not run its script ({code}): {sentence}; HTCondor tried it {} times, on {},{machine}",
            faults.count + 1,
            faults.machines
        ),
        _ => format!("could not run its script on {machine} ({code}): {sentence}"),
    }
}

/// Returns the number of jobs that are held neither by us nor for a user of the object, and the first of them with
/// HTCondor's reason.
#[must_use]
pub fn held_by_others(record: &Record) -> Option<(usize, JobId, &Hold)> {
    let as_wished =
        |index: Index, hold: &Hold| hold.is_for_user() && record.requested_actions.is(index, JobAction::Hold);
    let mut held = record.jobs.iter().filter_map(|(index, job)| match &job.state {
        JobState::Held(hold) if !hold.is_ours() && !as_wished(*index, hold) => Some((job.id, hold)),
        JobState::Held(_) | JobState::Idle | JobState::Running | JobState::Ended(_) => None,
    });
    let (id, first) = held.next()?;
    Some((1 + held.count(), id, first))
}

/// Conditions of one object. The list is changed in place, so that order and times are kept.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    list: Vec<ConditionRecord>,
    changed: Vec<ConditionRecord>,
}

impl Conditions {
    /// Starts from the conditions as last set.
    #[must_use]
    pub fn new(list: Vec<ConditionRecord>) -> Self {
        Self { list, changed: Vec::new() }
    }

    /// Sets a condition. Its time changes only when `status` changes; a change of status or reason counts as changed.
    pub fn set(&mut self, kind: ConditionType, status: ConditionStatus, reason: &str, message: &str, now: Timestamp) {
        let new =
            |since| ConditionRecord { kind, status, reason: reason.to_owned(), message: message.to_owned(), since };
        let known = self.list.iter().position(|condition| condition.kind == kind);
        if let Some(known) = known {
            let old = &mut self.list[known];
            let news = old.status != status || old.reason != reason;
            *old = new(if old.status == status { old.since } else { now });
            if news {
                self.changed.push(old.clone());
            }
        } else {
            self.list.push(new(now));
            self.list.sort_by_key(|condition| condition.kind);
            self.changed.push(new(now));
        }
    }

    /// Changes reason and message of an existing condition. It does not count as changed.
    pub fn reword(&mut self, kind: ConditionType, reason: &str, message: &str) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            (told.reason, told.message) = (reason.to_owned(), message.to_owned());
        }
    }

    /// Sets a condition's time to now if it is in the future: it was taken from another clock.
    pub fn not_ahead(&mut self, kind: ConditionType, now: Timestamp) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            told.since = told.since.min(now);
        }
    }

    /// Sets a condition's time to now, because it was set for another reason before.
    pub fn begins(&mut self, kind: ConditionType, now: Timestamp) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            told.since = now;
        }
    }

    /// Sets a condition to False, if it exists.
    pub fn clear(&mut self, kind: ConditionType, reason: &str, message: &str, now: Timestamp) {
        if self.get(kind).is_some() {
            self.set(kind, ConditionStatus::False, reason, message, now);
        }
    }

    /// Returns a condition.
    #[must_use]
    pub fn get(&self, kind: ConditionType) -> Option<&ConditionRecord> {
        self.list.iter().find(|condition| condition.kind == kind)
    }

    /// Whether a condition exists and is True.
    #[must_use]
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.get(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// Returns all conditions, and those whose status or reason has changed since [`Self::new`].
    #[must_use]
    pub fn finish(self) -> (Vec<ConditionRecord>, Vec<ConditionRecord>) {
        (self.list, self.changed)
    }
}
