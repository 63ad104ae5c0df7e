//! Objects in a queue: what has no room is not submitted, and not released.

use super::Run;
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{JobState, QueueKind, QueueWait, Queued, Spec, Submission};
use crate::machine::ids::{Index, Kind};
use crate::machine::indices::Indices;
use crate::machine::judge::Sightings;
use crate::machine::phase::Phase;
use crate::machine::wishes::Wanted;

use ConditionStatus::{False, True};
use ConditionType::{QuotaReserved, Submitted};

impl Run<'_> {
    /// The queue that has to give room; none if none has to.
    fn queue(&self) -> Option<&Queued> {
        self.facts.queue.as_ref().filter(|_| self.rules.granted_first)
    }

    /// Notes in which queue it is, before anything is said of it.
    pub(super) fn keep_queue(&mut self) {
        let queue = self.facts.queue.as_ref().and_then(Queued::is_in);
        if let (Some(queue), true) = (queue, self.rules.queue_is_kept && self.known.phase != Phase::Completed) {
            self.known.queue = Some(queue.to_owned());
        }
    }

    /// Whether this job has room that it may use.
    pub(super) fn has_room(&self, index: Index) -> bool {
        self.queue().is_none_or(|queue| !queue.closed && self.record.granted.contains(index))
    }

    /// Those of these jobs that have room.
    pub(super) fn with_room(&self, jobs: &Indices) -> Indices {
        if self.queue().is_none() { jobs.clone() } else { jobs.iter().filter(|index| self.has_room(*index)).collect() }
    }

    /// Those of these jobs that have room, or of which it must be found out what became of them: that asks no queue.
    pub(super) fn with_room_or_tried(&self, jobs: &Indices) -> Indices {
        let tried = |index: &Index| self.record.attempted.contains(*index) || self.has_room(*index);
        jobs.iter().filter(tried).collect()
    }

    /// Where all that was tried and may be there waits - for room, to be resumed, for the next try, or for users who hold it -, it is proved
    /// that it is not, and that is kept: it uses no room until it is tried again.
    pub(super) fn prove_absent(&mut self, spec: &Spec, sightings: &Sightings<'_>) {
        if self.queue().is_none() || self.in_flight(Kind::Submit).is_some() {
            return;
        }
        let in_doubt = self.record.in_doubt();
        let all_wait = spec.suspend || self.rests() || (self.rules.lent_for_a_try && spec.refused.is_some());
        let waits = |index: Index| all_wait || !self.has_room(index) || self.record.wishes.is(index, Wanted::Hold);
        if in_doubt.is_empty() || !in_doubt.iter().all(waits) {
            return;
        }
        let until = match self.prove_never_accepted(&self.record.tried_and_missing(), sightings) {
            Ok(proof) => proof.attempt(),
            Err(_) if !self.rules.absent_is_proved => self.record.highest,
            Err(doubt) => return self.ask_about(&doubt),
        };
        let proved = |attempt: &&mut Submission| attempt.attempt <= until;
        self.record.attempts.iter_mut().filter(proved).for_each(|attempt| attempt.absent = true);
        self.absent = Some(until);
    }

    /// What is not submitted for lack of room. Whoever gives it wakes the object.
    pub(super) fn say_queued(&mut self) {
        let Some(queue) = self.facts.queue.as_ref() else { return };
        let message = queue.waits_for();
        self.say(Submitted, False, Reason::Queued, &message);
    }

    /// Says whether it has room. It has, from when the first of its jobs does until all of it is given back: that others of its jobs
    /// wait is for `Submitted` to say.
    pub(super) fn say_quota(&mut self, spec: &Spec) {
        let told = self.conditions.get(QuotaReserved).map(|told| told.status);
        if self.known.phase == Phase::Completed {
            return;
        }
        let Some(queue) = &self.facts.queue else {
            if told.is_some() {
                let message = "no queue applies: the jobs are submitted at once";
                self.say(QuotaReserved, True, Reason::NoQueue, message);
            }
            return;
        };
        if self.say_given_back(spec) {
            return;
        }
        let has = !self.record.granted.is_empty() || !self.record.in_use().is_empty();
        if has {
            let message = queue.gives_room();
            self.say(QuotaReserved, True, Reason::QuotaReserved, &message);
        } else if queue.drained && queue.kind == QueueKind::LocalQueue {
            // Where nothing is known yet, what was told stays.
            if let Some(waits) = &queue.waits {
                self.say(QuotaReserved, False, waits.reason, &waits.message);
            }
        } else if spec.suspend {
            let why = if queue.drained { "the queue is being drained" } else { "spec.suspend is true" };
            if told.is_some() {
                let message = format!("{why}: no job of this HTCJob has room in {queue}");
                self.say(QuotaReserved, False, Reason::Suspended, &message);
            }
        } else if let Some(QueueWait { reason, message, .. }) = &queue.waits {
            // Between two parts it is nobody's news that the next one waits.
            if !(told == Some(True) && *reason == Reason::WaitingForQuota) || self.holds_some() {
                let (reason, message) = (*reason, message.clone());
                self.say(QuotaReserved, False, reason, &message);
            }
        }
    }

    /// Whether jobs of it are held that are to be released.
    fn holds_some(&self) -> bool {
        self.record.jobs.values().any(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours()))
    }

    /// Why its jobs are not held any more.
    pub(super) fn why_resumed(&self) -> String {
        match self.facts.queue.as_ref().map(|queue| queue.kind) {
            Some(QueueKind::LocalQueue) if self.record.granted.is_empty() => {
                "HTCondor has no job of this HTCJob, which waits for Kueue".to_owned()
            }
            Some(QueueKind::LocalQueue) => "spec.suspend is false, and Kueue admits the HTCJob".to_owned(),
            Some(QueueKind::HTCQueue) if self.queue().is_some_and(|queue| queue.closed) => {
                "spec.suspend is false. What is held stays held: no queue has room for it".to_owned()
            }
            Some(QueueKind::HTCQueue) | None => "spec.suspend is false".to_owned(),
        }
    }

    /// Why its jobs are held.
    pub(super) fn why_suspended(&self) -> String {
        let drained = self.facts.queue.as_ref().and_then(Queued::why_drained);
        drained.unwrap_or_else(|| "spec.suspend is true".to_owned())
    }
}
