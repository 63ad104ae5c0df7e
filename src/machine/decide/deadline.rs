//! What ends an object: `activeDeadlineSeconds`, `maxFailedIndexes` and `ttlSecondsAfterFinished`.

use super::{Action, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{CutShort, Exceeded, Job, Spec};
use crate::machine::ids::{Index, Kind, Timestamp};
use crate::machine::indices::Indices;
use crate::machine::judge::{self, Doubt, Sightings};
use crate::machine::outcome::Outcome;
use crate::machine::phase::Phase;
use crate::machine::request::{Scope, Work};
use crate::machine::status::{Counts, jobs};
use crate::machine::transitions::Trigger;

impl Run<'_> {
    /// Notes that the deadline has passed. It counts from the first acceptance or the last resumption, as in `batch/v1`.
    pub(super) fn expire(&mut self, spec: &Spec) {
        let counting = matches!(self.known.phase, Phase::Submitted | Phase::Running) && !spec.suspend;
        let (Some(limit), Some(since), true, None) =
            (spec.deadline, self.counts_since(), counting, self.known.cut_short)
        else {
            return;
        };
        let due = since.plus(limit);
        if due > self.now {
            self.look_again(due.since(self.now));
            return;
        }
        self.known.cut_short = Some(CutShort { at: self.now, exceeded: Exceeded::Deadline });
        let active = Counts::of(&self.record).active;
        let detail = format!(
            "activeDeadlineSeconds ({}) has passed; removing jobs that have not ended: {}",
            limit.as_secs(),
            jobs(active)
        );
        let phase = self.known.phase;
        self.tell(Some(phase), Trigger::DeadlineExceeded, Some(phase), detail, true);
    }

    /// Notes that more jobs have failed than may. Like the deadline it does not count while the object is suspended.
    pub(super) fn limit_failures(&mut self, spec: &Spec) {
        let counting = matches!(self.known.phase, Phase::Submitted | Phase::Running) && !spec.suspend;
        let (Some(most), true, None) = (spec.max_failed, counting, self.known.cut_short) else { return };
        // By HTCondor's word: what jobs report may still be refuted.
        let outcomes = self.record.jobs.values().filter_map(Job::outcome);
        let ended = outcomes.filter(|outcome| **outcome != Outcome::Succeeded).count();
        let failed = ended + self.record.wishes.withdrawn().len();
        if failed <= most as usize {
            return;
        }
        self.known.cut_short = Some(CutShort { at: self.now, exceeded: Exceeded::FailedIndexes });
        let active = Counts::of(&self.record).active;
        let detail = format!(
            "{failed} jobs failed, more than maxFailedIndexes ({most}) allows; removing jobs that have not ended: {}",
            jobs(active)
        );
        let phase = self.known.phase;
        self.tell(Some(phase), Trigger::MaxFailedIndexesExceeded, Some(phase), detail, true);
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

    /// After it was cut short: removes what has not ended, and gives up what was never accepted once that is proved.
    pub(super) fn wind_up(&mut self, spec: &Spec, sightings: &Sightings<'_>) {
        if self.known.phase == Phase::Completed {
            return;
        }
        if let Some(request) = self.in_flight(Kind::Submit).filter(|request| !request.running) {
            self.action = Action::Cancel(request.key.clone());
        }
        let recorded: Indices = self.record.jobs.keys().copied().collect();
        let missing = spec.asked_for().without(&recorded).without(&self.record.wishes.withdrawn());
        if !missing.is_empty() && !self.record.has_inherited() {
            self.give_up(&missing, sightings);
        }
        if self.known.phase != Phase::Completed {
            self.remove_unfinished();
            self.await_effect();
        }
    }

    /// What does not go is tried again with growing pauses.
    fn remove_unfinished(&mut self) {
        if self.facts.evidence.queued().iter().all(|ad| ad.status.is_over()) {
            return;
        }
        // Not those of single jobs before.
        let cut = self.known.cut_short.map_or(self.now, |cut| cut.at);
        let last = self.record.requests.get(&Kind::Remove).filter(|last| last.latest() > cut);
        let due = last.map(|last| last.latest().plus(self.settings.pause(last.step.saturating_sub(1))));
        match due.filter(|due| *due > self.now) {
            Some(due) => self.look_again(due.since(self.now)),
            None => self.ask_settled(Kind::Remove, Work::Remove(Scope::Unfinished)),
        }
    }

    fn give_up(&mut self, missing: &Indices, sightings: &Sightings<'_>) {
        let (reason, why) = match self.known.cut_short.map(|cut| cut.exceeded) {
            Some(Exceeded::FailedIndexes) => {
                (Reason::MaxFailedIndexesExceeded, "more jobs failed than maxFailedIndexes allows")
            }
            Some(Exceeded::Deadline) | None => (Reason::DeadlineExceeded, "activeDeadlineSeconds has passed"),
        };
        let mut say = (reason, format!("{why}; not submitted: {}", jobs(missing.len())));
        if self.in_flight(Kind::Submit).is_none() {
            match self.prove_given_up(missing, sightings) {
                Ok(()) => {
                    let given_up = u32::try_from(missing.len()).unwrap_or(u32::MAX);
                    self.known.given_up = given_up;
                    if let Some(known) = &mut self.record.known {
                        known.given_up = given_up;
                    }
                    self.complete();
                }
                Err(doubt) => {
                    let (reason, message) = self.dispel(&doubt);
                    if reason != Reason::Asking {
                        say = (reason, message);
                    }
                }
            }
        }
        self.say(ConditionType::Submitted, ConditionStatus::False, say.0, &say.1);
    }

    /// Whether none of the missing jobs can still be accepted: never tried, or proved to have come to nothing.
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

    /// After `ttlSecondsAfterFinished` the object goes, but not before its output is here.
    pub(super) fn leave(&mut self) {
        let ttl = self.facts.object.spec.as_ref().ok().and_then(|spec| spec.ttl);
        let told = self.conditions.is_true(ConditionType::Complete) || self.conditions.is_true(ConditionType::Failed);
        let (Some(ttl), Some(completed), true) = (ttl, self.known.completed, told) else {
            return;
        };
        if self.record.jobs.values().any(Job::has_output) {
            return;
        }
        let due = completed.plus(ttl);
        if due > self.now {
            self.look_again(due.since(self.now));
        } else {
            self.ask(Kind::DeleteObject, Work::DeleteObject);
        }
    }
}
