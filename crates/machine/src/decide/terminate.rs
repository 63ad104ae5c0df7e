//! Objects that are being deleted: removes their jobs, proves that they are gone, releases the finalizer.

use std::collections::BTreeSet;

use super::{Action, Decider, Polling};
use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::facts::{Answer, JobStatus};
use crate::ids::{JobId, RequestKind, Timestamp, id_ranges};
use crate::judge;
use crate::judge::{Doubt, ProvenGone};
use crate::request::{ReleasePermit, RemovalScope, Work};
use crate::status::jobs_text;

use ConditionStatus::{False, True};

/// Maximum number of bytes of job ids in the Event of an abandoned object; the whole message may have 1024.
const IDS_IN_EVENT: usize = 700;

impl Decider<'_> {
    /// Removes the jobs of an object that is being deleted, and releases it. The steps, in their order:
    ///
    /// 1. Move to `Terminating`.
    /// 2. Cancel requests that do not serve the removal: it would wait for them.
    /// 3. Wait for a removal from before the deletion. Before 4 and 5: it may not cover all jobs.
    /// 4. Remove the jobs of an abandoned object once, and release it whatever the result. Before 5, which waits for a
    ///    proof.
    /// 5. Remove the jobs until they are proved gone, and release the object.
    pub(super) fn terminate(&mut self) {
        self.begin_to_terminate(); // 1.
        self.cancel_the_rest(); // 2.
        // 3.
        if self.removes_some() {
            return;
        }
        // 4.
        if self.facts.object.abandon {
            self.remove_once_and_abandon();
            return;
        }
        self.remove_and_release(); // 5.
    }

    /// Whether a removal from before the deletion is still running. It may not cover all jobs, and must end first.
    fn removes_some(&mut self) -> bool {
        if self.conditions.get(ConditionType::JobsRemoved).is_some() {
            return false;
        }
        self.cancel_queued(RequestKind::Remove);
        self.in_flight(RequestKind::Remove).is_some()
    }

    /// Waits until a person deletes the object again. Its jobs were removed, or were to be, so no job of it runs again.
    pub(super) fn wait_for_deletion(&mut self) {
        if !self.facts.object.finalizer {
            self.request(RequestKind::AttachFinalizer, Work::AttachFinalizer);
            return;
        }
        let jobs = match self.ids() {
            _ if self.known.released || self.record.jobs.values().all(|job| job.gone) => {
                "Its jobs were removed".to_owned()
            }
            ids => format!("These jobs may still run, and deleting it removes them: {ids}"),
        };
        self.set_came_back_condition(&format!("{jobs}. Nothing is submitted again"));
    }

    pub(super) fn begin_to_terminate(&mut self) {
        self.begin_termination(|draft| match draft.record.jobs.len() {
            0 => "the HTCJob is being deleted".to_owned(),
            count => {
                format!("the HTCJob is being deleted; removing {} from HTCondor: {}", jobs_text(count), draft.ids())
            }
        });
    }

    /// Asks HTCondor once to remove the jobs, and releases the object whatever the result.
    fn remove_once_and_abandon(&mut self) {
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        let never = judge::never_submitted(&self.facts.object, &self.record, self.facts.past).is_some();
        if self.known.released || never || self.removal_has_ended() {
            self.abandon();
            return;
        }
        self.begin_removal();
        self.request_with_backoff(RequestKind::Remove, Work::Remove(RemovalScope::All));
    }

    /// Sets `JobsRemoved`, unless it is set already: its time is when the removal began.
    fn begin_removal(&mut self) {
        if self.conditions.get(ConditionType::JobsRemoved).is_none() {
            self.set_condition(ConditionType::JobsRemoved, False, Reason::Removing, "removing the jobs from HTCondor");
        }
    }

    /// Whether a removal of this deletion has ended, successfully or not. A removal that was stopped before it began
    /// does not count.
    fn removal_has_ended(&self) -> bool {
        let began = self.conditions.get(ConditionType::JobsRemoved).map_or(self.now, |told| told.since);
        self.record.requests.get(&RequestKind::Remove).is_some_and(|last| {
            let was_begun =
                last.failure.as_ref().is_none_or(|failure| failure.known_reason() != Some(Reason::OperatorStopping));
            was_begun && last.finished.is_some_and(|finished| finished >= began && finished <= self.now)
        })
    }

    /// Releases the object although jobs may be left.
    pub(super) fn abandon(&mut self) {
        let ids = self.may_be_left();
        let detail = format!(
            "abandoned by annotation; these jobs may be left in HTCondor: {}. The operator's log lists all; the constraint HTCJobUID == \"{}\" finds them",
            if ids.is_empty() { "none is known".to_owned() } else { id_ranges(&ids, IDS_IN_EVENT) },
            self.facts.object.uid
        );
        self.release(ReleasePermit::Abandoned(ids), detail, true);
    }

    /// Releases the object with a proof. The steps, in their order:
    ///
    /// 1. Wait for the adoption of an object of the Go operator: it may have jobs that are not known.
    /// 2. Release an object that never was submitted, unless a request is under way, which may submit it.
    /// 3. Wait for the end of a submission. Before 5: its jobs may not be there yet when the others are removed.
    /// 4. Wait until each submitter is dead, for the same reason.
    /// 5. Remove the jobs, and prove from a younger answer that they are gone.
    fn remove_and_release(&mut self) {
        // 1.
        if let Err(doubt) = judge::adopted(&self.facts.object, self.rules) {
            let (reason, message) = self.resolve_doubt(&doubt);
            self.set_condition(ConditionType::JobsRemoved, False, reason, &message);
            return;
        }
        // 2.
        if self.facts.in_flight.is_none()
            && let Some(proof) = judge::never_submitted(&self.facts.object, &self.record, self.facts.past)
        {
            self.release(ReleasePermit::NeverSubmitted(proof), "nothing was ever submitted".to_owned(), false);
            return;
        }
        self.begin_removal(); // 3.
        if self.in_flight(RequestKind::Submit).is_some() {
            return;
        }
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        // Jobs that were once proved gone need no second removal.
        let began = match self.conditions.get(ConditionType::JobsRemoved) {
            Some(_) if self.known.released => Timestamp(0),
            Some(told) => told.since,
            None => self.now,
        };
        // 4.
        let may_submit_until = |attempt| judge::may_submit_until(attempt, &self.record, self.settings, self.rules);
        let dead = self.record.attempts.iter().filter_map(may_submit_until).max();
        if let Some(dead) = dead.filter(|dead| *dead > self.now && self.rules.wait_for_submitter) {
            let (reason, message) = self.resolve_doubt(&Doubt::SubmitterMayLive(dead));
            self.set_condition(ConditionType::JobsRemoved, False, reason, &message);
            return;
        }
        self.remove_then_prove(began.max(dead.unwrap_or(began))); // 5.
    }

    /// Returns the jobs that are recorded, or were in the last answer, and are not known to be gone.
    fn may_be_left(&self) -> Vec<JobId> {
        let recorded = self.record.jobs.values().filter(|job| !job.gone).map(|job| job.id);
        let seen = self.facts.evidence.queued().iter();
        recorded.chain(seen.map(|ad| ad.id)).collect::<BTreeSet<JobId>>().into_iter().collect()
    }

    /// Cancels requests that do not serve the removal of the jobs.
    fn cancel_the_rest(&mut self) {
        let request = self.facts.in_flight.as_ref().filter(|request| request.can_be_cancelled(self.rules));
        if let Some(request) = request
            && !matches!(request.key.kind, RequestKind::Remove | RequestKind::ReleaseFinalizer)
        {
            self.action = Action::Cancel(request.key.clone());
        }
    }

    fn remove_then_prove(&mut self, after: Timestamp) {
        let last = self.record.requests.get(&RequestKind::Remove);
        let failure = last.and_then(|last| last.failure.clone());
        // A removal that ended in the future ended on another clock, and may have been before the deletion.
        let is_of_now = |finished: &Timestamp| *finished <= self.now || self.known.released;
        let finished = last.and_then(|last| last.finished).filter(is_of_now);
        let removed = finished.filter(|finished| *finished >= after && failure.is_none());
        let Some(removed) = removed else {
            if let Some(failure) = failure {
                self.set_failure_condition(ConditionType::JobsRemoved, &failure);
            }
            self.request_with_backoff(RequestKind::Remove, Work::Remove(RemovalScope::All));
            return;
        };
        let facts = self.facts;
        match judge::prove_gone(&facts.object, &self.record, facts.past, &facts.evidence, self.settings, self.rules) {
            Ok(proof) => self.release_proved(proof),
            Err(doubt) => {
                self.remove_again(&doubt, removed);
                let (reason, message) = self.resolve_doubt(&doubt);
                let stuck = reason == Reason::JobsPresent && self.is_stuck(removed);
                if stuck {
                    let what_to_do = if self.untouched_since(removed) {
                        "condor_rm has not removed them: check that the operator's credentials are those of the user who submitted them, or may remove other users' jobs"
                    } else {
                        "if their nodes are gone for good, remove them with `condor_rm -forcex`"
                    };
                    let message = format!("{message}; {what_to_do}");
                    self.set_condition(ConditionType::JobsRemoved, False, Reason::NotRemovedYet, message);
                } else if reason != Reason::QueryingHTCondor {
                    self.set_condition(ConditionType::JobsRemoved, False, reason, &message);
                }
            }
        }
    }

    /// Removes jobs again, with back-off, if an answer younger than the removal shows that they are not being removed.
    fn remove_again(&mut self, doubt: &Doubt, removed: Timestamp) {
        if matches!(doubt, Doubt::Present(_)) && self.untouched_since(removed) {
            let step = self.record.requests.get(&RequestKind::Remove).map_or(0, |last| last.step);
            if self.is_due(removed.plus(self.settings.backoff(step))) {
                self.request(RequestKind::Remove, Work::Remove(RemovalScope::All));
            }
        }
    }

    /// Whether to report that the jobs do not leave. Once reported it stays so, because each further removal begins
    /// anew.
    fn is_stuck(&self, removed: Timestamp) -> bool {
        let said = self
            .conditions
            .get(ConditionType::JobsRemoved)
            .is_some_and(|told| told.reason.parse() == Ok(Reason::NotRemovedYet));
        let removals = self.record.requests.get(&RequestKind::Remove).map_or(0, |last| last.step);
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
        if !self.can_request() {
            return;
        }
        if self.record_release(detail.clone(), warning) && self.conditions.get(ConditionType::JobsRemoved).is_some() {
            self.set_condition(ConditionType::JobsRemoved, True, Reason::Removed, detail);
        }
        self.details.polling = Polling::Off;
        if self.facts.object.finalizer {
            self.request(RequestKind::ReleaseFinalizer, Work::ReleaseFinalizer(permit));
        }
    }
}
