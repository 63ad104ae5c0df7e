//! Objects in a queue: jobs without quota are neither submitted nor released.

use super::Decider;
use crate::actions::JobAction;
use crate::condition::ConditionStatus::False;
use crate::condition::ConditionType::QuotaReserved;
use crate::condition::Reason;
use crate::facts::{JobState, QueueFacts, QueueKind, QueueWait, Spec, Submission};
use crate::ids::{Index, RequestKind};
use crate::indices::Indices;
use crate::judge::Sightings;
use crate::phase::Phase;

impl Decider<'_> {
    /// Returns the queue whose quota is needed; none if no quota is needed.
    fn queue(&self) -> Option<&QueueFacts> {
        self.facts.queue.as_ref().filter(|_| self.rules.granted_first)
    }

    /// Whether this job has quota that it may use.
    pub(super) fn has_quota(&self, index: Index) -> bool {
        self.queue().is_none_or(|queue| !queue.closed && self.record.granted.contains(index))
    }

    /// Returns those of these jobs that have quota.
    pub(super) fn with_quota(&self, jobs: &Indices) -> Indices {
        if self.queue().is_none() { jobs.clone() } else { jobs.iter().filter(|index| self.has_quota(*index)).collect() }
    }

    /// Returns those of these jobs that have quota, or whose fate must be found out: that needs no quota.
    pub(super) fn with_quota_or_attempted(&self, jobs: &Indices) -> Indices {
        let tried = |index: &Index| self.record.attempted.contains(*index) || self.has_quota(*index);
        jobs.iter().filter(tried).collect()
    }

    /// Proves that attempted jobs were not accepted, if all that may have been are waiting.
    /// They may wait for quota, to be resumed, for the next try, or for users who hold them.
    /// The proof is recorded: such a job uses no quota until it is tried again.
    pub(super) fn prove_absent(&mut self, spec: &Spec, sightings: &Sightings<'_>) {
        if self.queue().is_none() || self.in_flight(RequestKind::Submit).is_some() {
            return;
        }
        let in_doubt = self.record.in_doubt();
        let all_wait = spec.suspend || self.is_backing_off() || (self.rules.lent_for_a_try && spec.refused.is_some());
        let waits = |index: Index| {
            all_wait || !self.has_quota(index) || self.record.requested_actions.is(index, JobAction::Hold)
        };
        if in_doubt.is_empty() || !in_doubt.iter().all(waits) {
            return;
        }
        let until = match self.prove_never_accepted(&self.record.tried_and_missing(), sightings) {
            Ok(proof) => proof.attempt(),
            Err(_) if !self.rules.absent_is_proved => self.record.highest,
            Err(doubt) => {
                self.resolve_doubt(&doubt);
                return;
            }
        };
        let proved = |attempt: &&mut Submission| attempt.attempt <= until;
        self.record.attempts.iter_mut().filter(proved).for_each(|attempt| attempt.absent = true);
        self.details.absent = Some(until);
    }

    /// Sets the condition for jobs that are not submitted for lack of quota. A grant triggers a reconcile.
    pub(super) fn set_queued_condition(&mut self) {
        let Some(queue) = self.facts.queue.as_ref() else { return };
        self.set_not_submitted(Reason::Queued, queue.waiting_message());
    }

    /// Sets `QuotaReserved`. It is True from the first job's grant until all quota is returned.
    /// That other jobs wait is reported by `Submitted`.
    pub(super) fn set_quota_condition(&mut self, spec: &Spec) {
        if self.known.phase == Phase::Completed {
            return;
        }
        let facts = self.facts;
        let Some(queue) = &facts.queue else { return self.set_no_queue_condition("are submitted at once") };
        if self.set_quota_released_condition(spec) {
            return;
        }
        let reserved = !self.record.granted.is_empty() || !self.record.in_use().is_empty();
        let had_quota = self.conditions.is_true(QuotaReserved);
        if !self.set_reserved_condition(queue, reserved, false)
            && let Some(QueueWait { reason, message, .. }) = &queue.wait
        {
            // Between two parts, the wait of the next one is not worth an Event.
            if !(had_quota && *reason == Reason::WaitingForQuota) || self.holds_some() {
                self.set_condition(QuotaReserved, False, *reason, message);
            }
        }
    }

    /// Whether the object has held jobs that are to be released.
    fn holds_some(&self) -> bool {
        self.record.jobs.values().any(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours()))
    }

    /// Returns why the jobs are not held any more.
    pub(super) fn why_released(&self) -> &'static str {
        match self.facts.queue.as_ref().map(|queue| queue.kind) {
            Some(QueueKind::LocalQueue) if self.record.granted.is_empty() => {
                "HTCondor has no job of this HTCJob, which waits for Kueue"
            }
            Some(QueueKind::HTCQueue) if self.queue().is_some_and(|queue| queue.closed) => {
                "spec.suspend is false. Held jobs stay held: no queue has quota for them"
            }
            Some(QueueKind::LocalQueue | QueueKind::HTCQueue) | None => self.why_resumed(),
        }
    }
}
