//! Objects that are being deleted: remove, prove, release.

use std::collections::BTreeSet;

use super::{Action, Look, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{Answer, JobStatus, LastRequest};
use crate::machine::ids::{JobId, Kind, Timestamp, id_ranges};
use crate::machine::judge::{self, Doubt, ProvenGone};
use crate::machine::phase::Phase;
use crate::machine::request::{ReleasePermit, Scope, Work};
use crate::machine::status::jobs;
use crate::machine::transitions::Trigger;

use ConditionStatus::{False, True};

/// Most bytes of job ids in the Event of an abandoned object; its message may have 1024 in all.
const IDS_IN_EVENT: usize = 700;

impl Run<'_> {
    pub(super) fn terminate(&mut self) {
        self.begin_to_terminate();
        self.cancel_the_rest();
        if self.removes_some() {
            return;
        }
        if self.facts.object.abandon {
            self.remove_once_and_abandon();
            return;
        }
        self.remove_and_release();
    }

    /// Whether some of the jobs are being removed since before the deletion: that is not the removal of all of them, and ends first.
    fn removes_some(&mut self) -> bool {
        if self.conditions.get(ConditionType::JobsRemoved).is_some() {
            return false;
        }
        let Some(request) = self.in_flight(Kind::Remove) else { return false };
        if !request.running {
            self.action = Action::Cancel(request.key.clone());
        }
        true
    }

    /// Whether the object was being deleted, or was let go, and lives: the API server's data are older than the ledger.
    pub(super) fn came_back(&self) -> bool {
        (self.known.phase == Phase::Terminating || self.known.released) && self.rules.deleted_is_over
    }

    /// Its jobs were removed, or were to be: it runs no more, until a person has deleted it again.
    pub(super) fn wait_for_deletion(&mut self) {
        if !self.facts.object.finalizer {
            self.ask(Kind::AttachFinalizer, Work::AttachFinalizer);
            return;
        }
        let jobs = match self.ids() {
            _ if self.known.released || self.record.jobs.values().all(|job| job.gone) => {
                "Its jobs were removed".to_owned()
            }
            ids => format!("These jobs may still run, and deleting it removes them: {ids}"),
        };
        let message = format!(
            "the HTCJob was deleted before, and is back: the API server's data were restored from a copy. {jobs}. Nothing is submitted again. Delete it; create a new HTCJob to run the jobs again"
        );
        self.say(ConditionType::Submitted, False, Reason::WasDeleted, &message);
    }

    pub(super) fn begin_to_terminate(&mut self) {
        if self.known.phase != Phase::Terminating {
            let detail = match self.record.jobs.len() {
                0 => "the HTCJob is being deleted".to_owned(),
                count => format!("the HTCJob is being deleted; removing {} from HTCondor: {}", jobs(count), self.ids()),
            };
            self.go(Trigger::Deleted, Phase::Terminating, detail, false);
        }
    }

    /// HTCondor is asked to remove the jobs once, and nothing is concluded from what comes of it.
    fn remove_once_and_abandon(&mut self) {
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        let never = judge::never_submitted(&self.facts.object, &self.record, self.facts.past).is_some();
        if self.known.released || never || self.removal_has_ended() {
            self.abandon();
            return;
        }
        if self.conditions.get(ConditionType::JobsRemoved).is_none() {
            self.say(ConditionType::JobsRemoved, False, Reason::Removing, "removing the jobs from HTCondor");
        }
        self.ask_after_pause(Kind::Remove, Work::Remove(Scope::All));
    }

    /// Whether a removal of this deletion has ended, well or not. One that was stopped before it began does not count.
    fn removal_has_ended(&self) -> bool {
        let began = self.conditions.get(ConditionType::JobsRemoved).map_or(self.now, |told| told.since);
        self.record.requests.get(&Kind::Remove).is_some_and(|last| {
            let was_begun = last.failure.as_ref().is_none_or(|failure| failure.known_reason() != Some(Reason::Stopped));
            was_begun && last.finished.is_some_and(|finished| finished >= began && finished <= self.now)
        })
    }

    /// Lets it go with whatever is left of it.
    pub(super) fn abandon(&mut self) {
        let ids = self.may_be_left();
        let detail = format!(
            "abandoned by annotation; these jobs may be left in HTCondor: {}. The operator's log lists all; the constraint HTCJobUID == \"{}\" finds them",
            if ids.is_empty() { "none is known".to_owned() } else { id_ranges(&ids, IDS_IN_EVENT) },
            self.facts.object.uid
        );
        self.release(ReleasePermit::Abandoned(ids), detail, true);
    }

    fn remove_and_release(&mut self) {
        if self.facts.in_flight.is_none()
            && let Some(proof) = judge::never_submitted(&self.facts.object, &self.record, self.facts.past)
        {
            self.release(ReleasePermit::NeverSubmitted(proof), "nothing was ever submitted".to_owned(), false);
            return;
        }
        if self.conditions.get(ConditionType::JobsRemoved).is_none() {
            self.say(ConditionType::JobsRemoved, False, Reason::Removing, "removing the jobs from HTCondor");
        }
        if self.in_flight(Kind::Submit).is_some() {
            return;
        }
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        // What was proved gone once needs no second removal.
        let began = match self.conditions.get(ConditionType::JobsRemoved) {
            Some(_) if self.known.released => Timestamp(0),
            Some(told) => told.since,
            None => self.now,
        };
        let may_submit_until = |attempt| judge::may_submit_until(attempt, &self.record, self.settings, self.rules);
        let dead = self.record.attempts.iter().filter_map(may_submit_until).max();
        if let Some(dead) = dead.filter(|dead| *dead > self.now && self.rules.wait_for_submitter) {
            let (reason, message) = self.dispel(&Doubt::SubmitterMayLive(dead));
            self.say(ConditionType::JobsRemoved, False, reason, &message);
            return;
        }
        if self.facts.object.inherited.is_some() {
            // They are removed like all others, once they are known as this operator's.
            self.look.more(Look::Every { history: None, soon: false });
            if self.adopt(ConditionType::JobsRemoved) {
                return;
            }
        }
        let adopted = self.record.requests.get(&Kind::Adopt).map_or(began, LastRequest::latest);
        self.remove_then_prove(began.max(adopted).max(dead.unwrap_or(began)));
    }

    /// The jobs that are recorded or were seen in the last answer, and are not known to be gone.
    fn may_be_left(&self) -> Vec<JobId> {
        let recorded = self.record.jobs.values().filter(|job| !job.gone).map(|job| job.id);
        let seen = self.facts.evidence.queued().iter();
        recorded.chain(seen.map(|ad| ad.id)).collect::<BTreeSet<JobId>>().into_iter().collect()
    }

    /// Nothing more is done for the object but what makes its jobs go.
    fn cancel_the_rest(&mut self) {
        let request = self.facts.in_flight.as_ref().filter(|request| request.can_be_cancelled(self.rules));
        if let Some(request) = request
            && !matches!(request.key.kind, Kind::Adopt | Kind::Remove | Kind::ReleaseFinalizer)
        {
            self.action = Action::Cancel(request.key.clone());
        }
    }

    fn remove_then_prove(&mut self, after: Timestamp) {
        let last = self.record.requests.get(&Kind::Remove);
        let failure = last.and_then(|last| last.failure.clone());
        // One that ended ahead of now ended on another clock, and may have been before the deletion.
        let is_of_now = |finished: &Timestamp| *finished <= self.now || self.known.released;
        let finished = last.and_then(|last| last.finished).filter(is_of_now);
        let removed = finished.filter(|finished| *finished >= after && failure.is_none());
        let Some(removed) = removed else {
            if let Some(failure) = failure {
                self.say_failure(ConditionType::JobsRemoved, &failure);
            }
            self.ask_after_pause(Kind::Remove, Work::Remove(Scope::All));
            return;
        };
        let facts = self.facts;
        match judge::prove_gone(&facts.object, &self.record, facts.past, &facts.evidence, self.settings, self.rules) {
            Ok(proof) => self.release_proved(proof),
            Err(doubt) => {
                self.remove_again(&doubt, removed);
                let (reason, message) = self.dispel(&doubt);
                let stuck = reason == Reason::JobsPresent && self.is_stuck(removed);
                if stuck {
                    let what_to_do = if self.untouched_since(removed) {
                        "condor_rm has not removed them: check that the operator's credentials are those of the user who submitted them, or may remove other users' jobs"
                    } else {
                        "if their nodes are gone for good, remove them with `condor_rm -forcex`"
                    };
                    let message = format!("{message}; {what_to_do}");
                    self.say(ConditionType::JobsRemoved, False, Reason::NotRemovedYet, &message);
                } else if reason != Reason::Asking {
                    self.say(ConditionType::JobsRemoved, False, reason, &message);
                }
            }
        }
    }

    /// Jobs that an answer younger than the removal shows and that are not being removed: once more, with pauses.
    fn remove_again(&mut self, doubt: &Doubt, removed: Timestamp) {
        if matches!(doubt, Doubt::Present(_)) && self.untouched_since(removed) {
            let step = self.record.requests.get(&Kind::Remove).map_or(0, |last| last.step);
            let due = removed.plus(self.settings.pause(step));
            if due <= self.now {
                self.ask(Kind::Remove, Work::Remove(Scope::All));
            } else {
                self.look_again(due.since(self.now));
            }
        }
    }

    /// Whether it is time to say that the jobs do not go. What was said once stays said: each further removal begins anew.
    fn is_stuck(&self, removed: Timestamp) -> bool {
        let said = self
            .conditions
            .get(ConditionType::JobsRemoved)
            .is_some_and(|told| told.reason.parse() == Ok(Reason::NotRemovedYet));
        let removals = self.record.requests.get(&Kind::Remove).map_or(0, |last| last.step);
        said || self.now.since(removed) > self.settings.eager || (removals >= 3 && self.untouched_since(removed))
    }

    /// Whether an answer younger than the removal shows jobs that are not being removed.
    fn untouched_since(&self, removed: Timestamp) -> bool {
        match &self.facts.evidence.queue {
            Answer::Known(queue) => {
                queue.asked_at > removed && queue.ads.iter().any(|ad| ad.status != JobStatus::Removed)
            }
            Answer::Unknown(_) => false,
        }
    }

    fn release_proved(&mut self, proof: ProvenGone) {
        let detail = match self.record.jobs.len() {
            0 => "HTCondor has no job of this HTCJob".to_owned(),
            _ => format!("HTCondor has none of its jobs left: {}", self.ids()),
        };
        self.release(ReleasePermit::Gone(proof), detail, false);
    }

    fn release(&mut self, permit: ReleasePermit, detail: String, warning: bool) {
        if !self.free() {
            return;
        }
        if !self.known.released {
            self.known.released = true;
            if self.conditions.get(ConditionType::JobsRemoved).is_some() {
                self.say(ConditionType::JobsRemoved, True, Reason::Removed, &detail);
            }
            self.tell(Some(Phase::Terminating), Trigger::Gone, None, detail, warning);
        }
        self.look = Look::Nothing;
        if self.facts.object.finalizer {
            self.ask(Kind::ReleaseFinalizer, Work::ReleaseFinalizer(permit));
        }
    }
}
