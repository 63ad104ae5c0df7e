//! From the record to counts, conditions and words.

use std::collections::BTreeMap;

use super::facts::{Condition, Hold, Job, JobState, Record};
use super::ids::{Index, JobId, Timestamp};
use super::indices::Indices;
use super::outcome::{Loss, Outcome};
use super::wishes::Wanted;
use crate::api::text::harmless;
use crate::api::{ConditionStatus, ConditionType};

/// Ways in which jobs failed that are told apart in one sentence.
const WAYS: usize = 8;

/// Most bytes of HTCondor's reason for a removal, where ways are counted: several stand in one sentence.
const REASON_IN_WAYS: usize = 120;

/// What became of a job that a user removed.
const REMOVED_BY_A_USER: &str = "removed by a user";

/// Counts over the accepted jobs of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Not ended.
    pub active: usize,
    /// Exit code 0.
    pub succeeded: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// Of the active ones: waiting.
    pub idle: usize,
    /// Of the active ones: running.
    pub running: usize,
    /// Of the active ones: held, by whomever.
    pub held: usize,
    /// Of the failed ones: removed.
    pub removed: usize,
    /// Of the failed ones: lost.
    pub lost: usize,
}

impl Counts {
    /// Counts the jobs of `record`: by what HTCondor says, and until it does so by the ends that they report themselves.
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
        let withdrawn = record.wishes.withdrawn().len();
        counts.removed += withdrawn;
        counts.failed += withdrawn + record.known.as_ref().map_or(0, |known| known.given_up as usize);
        counts.active = counts.idle + counts.running + counts.held;
        counts
    }
}

/// How a job ended: by what HTCondor says, and until it does so by what the job reports itself.
fn ended(record: &Record, job: &Job) -> Option<Outcome> {
    let reported = || record.reports.get(&job.id).and_then(|report| report.ended).map(|end| end.outcome());
    job.outcome().cloned().or_else(reported)
}

/// Which jobs of those that were asked for succeeded, and which failed, in the sense of [`Counts`].
#[must_use]
pub fn indexes(record: &Record, asked_for: &Indices) -> [Indices; 2] {
    let (mut succeeded, mut failed) = (Vec::new(), Vec::new());
    for (index, job) in &record.jobs {
        match ended(record, job) {
            Some(Outcome::Succeeded) => succeeded.push(*index),
            Some(_) => failed.push(*index),
            None => {}
        }
    }
    let failed: Indices = failed.into_iter().collect();
    let mut failed = Indices::union(&[failed, record.wishes.withdrawn()]);
    if record.known.as_ref().is_some_and(|known| known.given_up > 0) {
        let recorded = record.jobs.keys().copied().collect();
        failed = Indices::union(&[failed, asked_for.without(&recorded)]);
    }
    [succeeded.into_iter().collect(), failed]
}

/// `3 jobs` or `1 job`.
#[must_use]
pub fn jobs(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// How the jobs of `record` ended, in one sentence: how many, in which ways, and the first failure by name.
#[must_use]
pub fn ending(record: &Record, counts: &Counts) -> String {
    if counts.failed == 0 {
        return format!("{} succeeded", jobs(counts.succeeded));
    }
    let total = counts.succeeded + counts.failed;
    let first = record
        .jobs
        .iter()
        .find_map(|(index, job)| {
            let what = failure(job, record.wishes.is(*index, Wanted::Remove))?;
            Some(format!("; job {index} ({}) {what}", job.id))
        })
        .unwrap_or_default();
    let ways = if counts.failed > 1 || first.is_empty() { format!(": {}", ways(record)) } else { String::new() };
    format!("{} of {} failed{ways}{first}", counts.failed, jobs(total))
}

/// In which ways jobs failed, and how many in each, the commonest first: `exit code 1 (2), signal 9 (1)`.
fn ways(record: &Record) -> String {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let by_user = |index: Index| record.wishes.is(index, Wanted::Remove);
    for way in record.jobs.iter().filter_map(|(index, job)| way(job.outcome()?, by_user(*index))) {
        *numbers.entry(way).or_default() += 1;
    }
    let withdrawn = record.wishes.withdrawn().len();
    if withdrawn > 0 {
        *numbers.entry(REMOVED_BY_A_USER.to_owned()).or_default() += withdrawn;
    }
    if let Some(known) = record.known.as_ref().filter(|known| known.given_up > 0) {
        numbers.insert("never submitted".to_owned(), known.given_up as usize);
    }
    let mut ways: Vec<(String, usize)> = numbers.into_iter().collect();
    ways.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let rest: usize = ways.iter().skip(WAYS).map(|(_, number)| number).sum();
    let mut shown: Vec<String> = ways.iter().take(WAYS).map(|(way, number)| format!("{way} ({number})")).collect();
    if rest > 0 {
        shown.push(format!("other ways ({rest})"));
    }
    shown.join(", ")
}

fn way(outcome: &Outcome, removed_by_user: bool) -> Option<String> {
    match outcome {
        Outcome::Succeeded => None,
        Outcome::Failed(code) => Some(format!("exit code {code}")),
        Outcome::Killed(signal) => Some(format!("signal {signal}")),
        Outcome::FailedBefore => Some("before the upgrade".to_owned()),
        Outcome::Removed(_) if removed_by_user => Some(REMOVED_BY_A_USER.to_owned()),
        Outcome::Removed(reason) if reason.is_empty() => Some("removed".to_owned()),
        Outcome::Removed(reason) => Some(format!("removed: {}", harmless(reason, REASON_IN_WAYS))),
        Outcome::Lost(_) => Some("lost".to_owned()),
    }
}

/// What the first failed job wrote last, where that is known.
#[must_use]
pub fn wrote_last(record: &Record) -> Option<String> {
    let err = record.err.as_ref()?;
    let failed =
        |job: &&Job| matches!(job.outcome(), Some(Outcome::Failed(_) | Outcome::Killed(_) | Outcome::FailedBefore));
    record.jobs.get(&err.index).filter(failed)?;
    Some(format!("the err of job {} ends with: {}", err.index, err.text))
}

fn failure(job: &Job, removed_by_user: bool) -> Option<String> {
    match job.outcome()? {
        Outcome::Succeeded => None,
        Outcome::Failed(code) => Some(match crate::api::PayloadFailure::from_exit_code(*code) {
            Some(known) => format!("exited with {code}: {}", known.sentence()),
            None => format!("exited with {code}"),
        }),
        Outcome::Killed(signal) => Some(format!("was killed by signal {signal}")),
        Outcome::FailedBefore => Some("failed before the upgrade".to_owned()),
        Outcome::Removed(_) if removed_by_user => Some("was removed by a user".to_owned()),
        Outcome::Removed(reason) if reason.is_empty() => Some("was removed from HTCondor".to_owned()),
        Outcome::Removed(reason) => Some(format!("was removed from HTCondor: {reason}")),
        Outcome::Lost(Loss::Vanished) => Some("is in neither HTCondor's queue nor its history".to_owned()),
        Outcome::Lost(Loss::QueueReset) => Some("was lost with the schedd's queue".to_owned()),
    }
}

/// The jobs that neither we hold nor a user of the object: how many, and the first one with HTCondor's reason.
#[must_use]
pub fn held_by_others(record: &Record) -> Option<(usize, JobId, &Hold)> {
    let as_wished = |index: Index, hold: &Hold| hold.is_wished() && record.wishes.is(index, Wanted::Hold);
    let mut held = record.jobs.iter().filter_map(|(index, job)| match &job.state {
        JobState::Held(hold) if !hold.is_ours() && !as_wished(*index, hold) => Some((job.id, hold)),
        JobState::Held(_) | JobState::Idle | JobState::Running | JobState::Ended(_) => None,
    });
    let (id, first) = held.next()?;
    Some((1 + held.count(), id, first))
}

/// The conditions of one object, as a list that is changed in place so that order and times stay.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    list: Vec<Condition>,
    changed: Vec<Condition>,
}

impl Conditions {
    /// Starts from what was last said.
    #[must_use]
    pub fn new(list: Vec<Condition>) -> Self {
        Self { list, changed: Vec::new() }
    }

    /// Says `kind`. The time moves only when `status` flips; a change of status or reason is remembered.
    pub fn set(&mut self, kind: ConditionType, status: ConditionStatus, reason: &str, message: &str, now: Timestamp) {
        let new = |since| Condition { kind, status, reason: reason.to_owned(), message: message.to_owned(), since };
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

    /// Gives another reason for what is said of `kind` already. That is no news.
    pub fn reword(&mut self, kind: ConditionType, reason: &str, message: &str) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            (told.reason, told.message) = (reason.to_owned(), message.to_owned());
        }
    }

    /// Brings the time of what is said of `kind` back to now if it lies ahead: it was another clock's.
    pub fn not_ahead(&mut self, kind: ConditionType, now: Timestamp) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            told.since = told.since.min(now);
        }
    }

    /// Counts the time of what is said of `kind` from now: it was said for another reason before.
    pub fn begins(&mut self, kind: ConditionType, now: Timestamp) {
        if let Some(told) = self.list.iter_mut().find(|condition| condition.kind == kind) {
            told.since = now;
        }
    }

    /// Says that `kind` no longer holds, if it ever was said.
    pub fn clear(&mut self, kind: ConditionType, reason: &str, message: &str, now: Timestamp) {
        if self.get(kind).is_some() {
            self.set(kind, ConditionStatus::False, reason, message, now);
        }
    }

    /// What is said of `kind`.
    #[must_use]
    pub fn get(&self, kind: ConditionType) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.kind == kind)
    }

    /// Whether `kind` is True.
    #[must_use]
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.get(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// The list, and the conditions whose status or reason has changed since [`Self::new`].
    #[must_use]
    pub fn finish(self) -> (Vec<Condition>, Vec<Condition>) {
        (self.list, self.changed)
    }
}
