//! Limits that end an object: `activeDeadlineSeconds`, `maxFailedIndexes` and `ttlSecondsAfterFinished`.

use super::Decider;
use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::facts::{Exceeded, Job, Spec};
use crate::ids::{Index, RequestKind, Timestamp};
use crate::indices::Indices;
use crate::judge;
use crate::judge::{Doubt, Sightings};
use crate::outcome::Outcome;
use crate::phase::Phase;
use crate::request::{RemovalScope, Work};
use crate::status::{Counts, jobs_text};

impl Decider<'_> {
    /// Cuts the object short if the deadline has passed. It counts from the first acceptance or the last resumption, as
    /// in `batch/v1`.
    pub(super) fn expire(&mut self, spec: &Spec) {
        let counting = self.can_be_cut_short() && !spec.suspend;
        let (Some(limit), Some(since), true) = (spec.deadline, self.counts_since(), counting) else { return };
        if !self.is_due(since.plus(limit)) {
            return;
        }
        let active = Counts::of(&self.record).active;
        let detail = format!(
            "activeDeadlineSeconds ({}) has passed; removing jobs that have not ended: {}",
            limit.as_secs(),
            jobs_text(active)
        );
        self.cut_short(Exceeded::Deadline, detail);
    }

    /// Cuts the object short if more jobs have failed than allowed. Like the deadline, this does not apply while it is
    /// suspended.
    pub(super) fn limit_failures(&mut self, spec: &Spec) {
        let counting = self.can_be_cut_short() && !spec.suspend;
        let (Some(most), true) = (spec.max_failed, counting) else { return };
        // Only HTCondor's answers count: reports of jobs may still be refuted.
        let outcomes = self.record.jobs.values().filter_map(Job::outcome);
        let ended = outcomes.filter(|outcome| **outcome != Outcome::Succeeded).count();
        let failed = ended + self.record.requested_actions.withdrawn().len();
        if failed <= most as usize {
            return;
        }
        let active = Counts::of(&self.record).active;
        let detail = format!(
            "{failed} jobs failed, more than maxFailedIndexes ({most}) allows; removing jobs that have not ended: {}",
            jobs_text(active)
        );
        self.cut_short(Exceeded::FailedIndexes, detail);
    }

    fn counts_since(&self) -> Option<Timestamp> {
        let started = self.known.started?;
        Some(match self.conditions.get(ConditionType::Suspended) {
            // This very decision resumes it.
            Some(told) if told.status == ConditionStatus::True => self.now,
            Some(told) => started.max(told.since),
            None => started,
        })
    }

    /// Ends an object that was cut short: removes jobs that have not ended, and gives up the others once they are
    /// proved never accepted.
    pub(super) fn wind_up(&mut self, spec: &Spec, sightings: &Sightings<'_>) {
        if self.known.phase == Phase::Completed {
            return;
        }
        self.cancel_queued(RequestKind::Submit);
        let recorded: Indices = self.record.jobs.keys().copied().collect();
        let missing = spec.asked_for().without(&recorded).without(&self.record.requested_actions.withdrawn());
        if !missing.is_empty() && !self.record.has_inherited() {
            self.give_up_missing(&missing, sightings);
        }
        if self.known.phase != Phase::Completed {
            self.remove_unfinished();
            self.poll_urgently();
        }
    }

    /// Removes jobs that have not ended; tries again with back-off.
    fn remove_unfinished(&mut self) {
        if self.facts.evidence.queued().iter().all(|ad| ad.status.is_over()) {
            return;
        }
        // Removals of single jobs before that do not count.
        let cut = self.known.cut_short.map_or(self.now, |cut| cut.at);
        let last = self.record.requests.get(&RequestKind::Remove).filter(|last| last.latest() > cut);
        let due = last.map(|last| last.latest().plus(self.settings.backoff(last.step.saturating_sub(1))));
        if due.is_none_or(|due| self.is_due(due)) {
            self.ask_settled(RequestKind::Remove, Work::Remove(RemovalScope::Unfinished));
        }
    }

    fn give_up_missing(&mut self, missing: &Indices, sightings: &Sightings<'_>) {
        let (reason, why) = match self.known.cut_short.map(|cut| cut.exceeded) {
            Some(Exceeded::FailedIndexes) => {
                (Reason::MaxFailedIndexesExceeded, "more jobs failed than maxFailedIndexes allows")
            }
            Some(Exceeded::Deadline) | None => (Reason::DeadlineExceeded, "activeDeadlineSeconds has passed"),
        };
        let mut condition = (reason, format!("{why}; not submitted: {}", jobs_text(missing.len())));
        if self.in_flight(RequestKind::Submit).is_none() {
            match self.prove_given_up(missing, sightings) {
                Ok(()) => {
                    self.give_up(missing.len());
                    self.complete();
                }
                Err(doubt) => {
                    let (reason, message) = self.resolve_doubt(&doubt);
                    if reason != Reason::QueryingHTCondor {
                        condition = (reason, message);
                    }
                }
            }
        }
        self.set_not_submitted(condition.0, condition.1);
    }

    /// Proves that none of the missing jobs can still be accepted: they were never tried, or all their attempts are
    /// proved to have failed.
    pub(super) fn prove_given_up(&self, missing: &Indices, sightings: &Sightings<'_>) -> Result<(), Doubt> {
        let facts = self.facts;
        let untouched = |index: &Index| !self.record.attempted.contains(*index) && sightings.of(*index).is_empty();
        let fresh: Indices = missing.iter().filter(untouched).collect();
        let untried = judge::never_attempted(&facts.object, &self.record, facts.past, &fresh, self.rules).is_ok();
        let in_doubt = if untried { missing.without(&fresh) } else { missing.clone() };
        if in_doubt.is_empty() || !self.rules.prove_given_up {
            return Ok(());
        }
        self.prove_never_accepted(&in_doubt, sightings).map(drop)
    }

    /// Deletes the object after `ttlSecondsAfterFinished`, but not before its output is fetched.
    pub(super) fn leave(&mut self) {
        let is_final =
            self.conditions.is_true(ConditionType::Complete) || self.conditions.is_true(ConditionType::Failed);
        let has_output = || self.record.jobs.values().any(Job::has_output);
        if is_final && !has_output() && self.has_outlived_ttl() {
            self.request(RequestKind::DeleteObject, Work::DeleteObject);
        }
    }
}
