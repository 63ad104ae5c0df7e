//! From the record to counts, conditions and words.

use super::facts::{Condition, Hold, Job, JobState, Record};
use super::ids::{JobId, Timestamp};
use super::outcome::{Loss, Outcome};
use crate::api::{ConditionStatus, ConditionType};

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
            let reported = record.reports.get(&job.id).and_then(|report| report.ended).map(|end| end.outcome());
            match &job.state {
                JobState::Idle | JobState::Running | JobState::Held(_) if reported == Some(Outcome::Succeeded) => {
                    counts.succeeded += 1;
                }
                JobState::Idle | JobState::Running | JobState::Held(_) if reported.is_some() => counts.failed += 1,
                JobState::Idle => counts.idle += 1,
                JobState::Running => counts.running += 1,
                JobState::Held(_) => counts.held += 1,
                JobState::Ended(Outcome::Succeeded) => counts.succeeded += 1,
                JobState::Ended(Outcome::Failed(_) | Outcome::Killed(_) | Outcome::FailedBefore) => counts.failed += 1,
                JobState::Ended(Outcome::Removed) => {
                    counts.failed += 1;
                    counts.removed += 1;
                }
                JobState::Ended(Outcome::Lost(_)) => {
                    counts.failed += 1;
                    counts.lost += 1;
                }
            }
        }
        counts.failed += record.known.as_ref().map_or(0, |known| known.given_up as usize);
        counts.active = counts.idle + counts.running + counts.held;
        counts
    }
}

/// `3 jobs` or `1 job`.
#[must_use]
pub fn jobs(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// How the jobs of `record` ended, in one sentence: how many, and the first failure by name.
#[must_use]
pub fn ending(record: &Record, counts: &Counts) -> String {
    if counts.failed == 0 {
        return format!("{} succeeded", jobs(counts.succeeded));
    }
    let total = counts.succeeded + counts.failed;
    let first = record
        .jobs
        .iter()
        .find_map(|(index, job)| failure(job).map(|what| format!("; job {index} ({}) {what}", job.id)))
        .unwrap_or_default();
    format!("{} of {} failed{first}", counts.failed, jobs(total))
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

fn failure(job: &Job) -> Option<String> {
    match job.outcome()? {
        Outcome::Succeeded => None,
        Outcome::Failed(code) => Some(match crate::api::PayloadFailure::from_exit_code(*code) {
            Some(known) => format!("exited with {code}: {}", known.sentence()),
            None => format!("exited with {code}"),
        }),
        Outcome::Killed(signal) => Some(format!("was killed by signal {signal}")),
        Outcome::FailedBefore => Some("failed before the upgrade".to_owned()),
        Outcome::Removed => Some("was removed from HTCondor".to_owned()),
        Outcome::Lost(Loss::Vanished) => Some("is in neither HTCondor's queue nor its history".to_owned()),
        Outcome::Lost(Loss::QueueReset) => Some("was lost with the schedd's queue".to_owned()),
    }
}

/// The jobs that somebody else than we holds: how many, and the first one with HTCondor's reason.
#[must_use]
pub fn held_by_others(record: &Record) -> Option<(usize, JobId, &Hold)> {
    let mut held = record.jobs.values().filter_map(|job| match &job.state {
        JobState::Held(hold) if !hold.is_ours() => Some((job.id, hold)),
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
