//! Objects that are not being deleted: the next step.

use super::{AT_ONCE, Decider, Polling};
use crate::condition::ConditionStatus::True;
use crate::condition::{ConditionType, Reason};
use crate::decide::actions::is_loose;
use crate::facts::{
    Answer, Claim, Hold, JobState, JobStatus, Past, QueueFacts, Spec, SpecRefused, Unreadable, WaitsFor,
};
use crate::ids::{Index, JobId, RequestKind};
use crate::indices::Indices;
use crate::judge;
use crate::judge::{Acceptance, AdSource, Doubt, Sightings};
use crate::phase::Phase;
use crate::request::{RemovalScope, Work};
use crate::status::{held_by_others, jobs_text};

impl Decider<'_> {
    /// Takes the next step of an object that is not being deleted. `doubt`: why the fate of some recorded job is not
    /// known. The steps, in their order:
    ///
    /// 1. Attach the finalizer: no other step is taken without it.
    /// 2. Bring the jobs to what the spec requests, or report why the spec cannot be read.
    /// 3. Report jobs that HTCondor or an administrator holds, and faults of nodes.
    /// 4. Ask soon about jobs that are being removed.
    /// 5. Fetch output and let jobs leave the queue. After 2: there is one request for each decision, and a hold or a
    ///    removal is more urgent.
    /// 6. Report whether the status is up to date, while a job may still change.
    /// 7. Set `Complete` or `Failed`. After 5: they wait for the output.
    /// 8. Delete the object after its time. After 7: only an object whose end is reported.
    pub(super) fn live(&mut self, sightings: &Sightings<'_>, doubt: Option<Doubt>) {
        if !self.facts.object.finalizer && self.rules.finalizer_first {
            // 1. The finalizer was removed by hand, or the object was read before our own patch.
            self.request(RequestKind::AttachFinalizer, Work::AttachFinalizer);
            return;
        }
        // 2.
        match &self.facts.object.spec {
            Ok(spec) => self.pursue(spec, sightings),
            // Jobs that the Go operator submitted do not need a valid spec.
            Err(_) if self.record.has_inherited() => self.set_accepted_condition(),
            // Jobs from when the spec could still be read are followed all the same.
            Err(Unreadable { reason, message, requeue_after }) => {
                self.set_not_submitted_and_requeue(*reason, message, *requeue_after);
            }
        }
        self.set_held_condition(); // 3.
        self.set_node_faults_condition();
        self.look_behind_removals(); // 4.
        self.output(); // 5.
        // 6.
        if self.record.jobs.values().any(|job| !job.gone) {
            self.details.polling.raise(Polling::OnChange);
            self.set_tracked_condition(doubt);
        }
        if self.known.phase == Phase::Completed {
            self.set_outcome_conditions(); // 7.
            self.leave(); // 8.
        }
    }

    /// Brings the jobs to what the spec requests. The steps, in their order:
    ///
    /// 1. Record the queue: the conditions that follow depend on it.
    /// 2. Report new actions of users, and withdraw jobs that they removed and that HTCondor never accepted.
    /// 3. Claim an object that another ledger has claimed.
    /// 4. Check `maxFailedIndexes` and `activeDeadlineSeconds`.
    /// 5. End an object that was cut short. Before 6 to 11: nothing of it is held, released or submitted any more.
    /// 6. Remove jobs that users removed. Before 8: a removal is made first, for a job that is to be held, too.
    /// 7. Find the jobs that need quota. Before 8 and 9, which report whether there is some.
    /// 8. Hold or release jobs. Before 11: a submission that is queued is cancelled while the object is suspended.
    /// 9. Set `QuotaReserved`.
    /// 10. Remove late jobs and duplicates. Before 11: of two requests the first is made.
    /// 11. Submit what is missing, or report why nothing is.
    fn pursue(&mut self, spec: &Spec, sightings: &Sightings<'_>) {
        let recorded: Indices = self.record.jobs.keys().copied().collect();
        // 1.
        if self.rules.queue_is_kept && self.known.phase != Phase::Completed {
            self.record_queue();
        }
        self.record_new_actions(); // 2.
        let doubt = self.withdraw(&self.wanted(spec).without(&recorded), sightings);
        self.claim_anew(); // 3.
        self.limit_failures(spec); // 4.
        self.expire(spec);
        // 5.
        if self.known.cut_short.is_some() {
            if !spec.suspend {
                self.clear_condition(ConditionType::Suspended, Reason::Resumed, "spec.suspend is false");
            }
            self.remove_extra(sightings);
            self.wind_up(spec, sightings);
            return;
        }
        self.remove_requested(); // 6.
        let missing = self.wanted(spec).without(&recorded); // 7.
        let kept_back = self.held_back();
        self.prove_absent(spec, sightings);
        self.find_quota_requests(spec, &missing.without(&kept_back), sightings);
        self.suspend(spec); // 8.
        self.set_quota_condition(spec); // 9.
        self.remove_extra(sightings); // 10.
        // 11.
        if missing.is_empty() || self.record.has_inherited() {
            self.set_accepted_condition();
        } else if let (Some(SpecRefused { reason, message }), true) = (&spec.refused, self.record.attempts.is_empty()) {
            self.set_not_submitted(*reason, message);
        } else if spec.suspend && self.record.attempts.is_empty() {
            self.set_not_submitted(Reason::Suspended, format!("{}: nothing is submitted", self.why_suspended()));
        } else if missing.iter().all(|index| kept_back.contains(index)) {
            self.set_held_back_condition(&missing, doubt.as_ref(), sightings);
        } else {
            let missing = self.with_quota_or_attempted(&missing.without(&kept_back));
            let missing = if self.awaits_schedd() { missing.without(&self.fresh(&missing)) } else { missing };
            if missing.is_empty() {
                self.set_no_quota_condition(spec);
            } else {
                self.submit(spec, &missing, sightings);
            }
        }
    }

    fn set_accepted_condition(&mut self) {
        if self.record.jobs.is_empty() {
            let message = "users removed all of the jobs before they were submitted";
            self.set_not_submitted(Reason::Removed, message);
            return;
        }
        let message = format!("HTCondor has accepted {}", jobs_text(self.record.jobs.len()));
        self.set_condition(ConditionType::Submitted, True, Reason::Accepted, &message);
    }

    /// Claims an object that another ledger has claimed, once its jobs are known.
    /// After the claim its past counts as known. So the answer must be younger than the end of the wait for an earlier
    /// operator's submitter.
    fn claim_anew(&mut self) {
        if self.facts.object.claim == Claim::Ours {
            return;
        }
        let looked = match (&self.facts.evidence.queue, self.facts.past) {
            (Answer::Known(queue), past @ Past::Unknown { .. }) => judge::past_settled(past, queue, self.rules).is_ok(),
            (Answer::Known(_), Past::Continuous) | (Answer::Unknown(_), _) => false,
        };
        if looked {
            self.request(RequestKind::AttachFinalizer, Work::AttachFinalizer);
        } else {
            self.details.polling.raise(Polling::Always { history: self.history_once(), urgent: false });
        }
    }

    /// Holds or releases jobs. `spec.suspend` is level-triggered: each reconcile holds jobs that are idle or running,
    /// or releases those that we hold.
    fn suspend(&mut self, spec: &Spec) {
        if self.known.phase == Phase::Completed {
            self.end_suspension();
            return;
        }
        self.look_behind_holds();
        let jobs = || self.record.jobs.values();
        // HTCondor holds a job already that waits for another node. It is held for the suspension once it is released.
        let loose =
            jobs().filter(|job| is_loose(&job.state) && job.runs.waits_for != Some(WaitsFor::OtherNode)).count();
        let ours = jobs().filter(|job| matches!(&job.state, JobState::Held(hold) if hold.is_ours())).count();
        if spec.suspend {
            self.cancel_queued(RequestKind::Submit);
            let because = self.why_suspended();
            let message = match (loose, ours) {
                (0, 0) => format!("{because}: nothing is submitted"),
                (0, held) => format!("{because}: {} held", jobs_text(held)),
                (loose, _) => match self.failed(RequestKind::Hold) {
                    Some(why) => format!("{because}: {} cannot be held: {why}", jobs_text(loose)),
                    None => format!("{because}: {} being held", jobs_text(loose)),
                },
            };
            self.set_condition(ConditionType::Suspended, True, Reason::Suspended, &message);
            if loose > 0 {
                self.ask_settled(RequestKind::Hold, Work::Hold);
            }
            self.release_requested(true);
        } else {
            // While it is not known whether the queue holds the jobs, the condition stays.
            if !self.facts.queue.as_ref().is_some_and(QueueFacts::is_unknown) {
                if self.conditions.is_true(ConditionType::Suspended) && self.known.started.is_some() {
                    // As in batch/v1: the deadline counts from here.
                    self.known.started = Some(self.now);
                }
                self.clear_condition(ConditionType::Suspended, Reason::Resumed, self.why_released());
            }
            self.hold_requested();
            self.release_requested(false);
        }
    }

    /// Returns the failure of the last request of this kind.
    fn failed(&self, kind: RequestKind) -> Option<&str> {
        self.record.requests.get(&kind)?.failure.as_ref().map(|failure| failure.message.as_str())
    }

    /// Polls soon if the answer is older than the last hold or release, and so out of date.
    /// Otherwise, if `spec.suspend` has changed meanwhile, no query would be sent before the usual interval.
    pub(super) fn look_behind_holds(&mut self) {
        let last = self.record.last_request(&[RequestKind::Hold, RequestKind::Release]);
        if let (Some(last), Answer::Known(queue)) = (last, &self.facts.evidence.queue)
            && queue.asked_at <= last
        {
            self.poll_urgently();
        }
    }

    /// Polls soon while a job is being removed: it leaves the queue soon, and only the queue's answer shows that.
    fn look_behind_removals(&mut self) {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return };
        let last = self.record.last_request(&[RequestKind::Remove]);
        let leaving = queue.ads.iter().any(|ad| ad.status == JobStatus::Removed);
        if leaving || last.is_some_and(|last| queue.asked_at <= last && self.record.jobs.values().any(|job| !job.gone))
        {
            self.poll_urgently();
        }
    }

    /// Makes a request, but only if the queue's answer is younger than the last request of this kind.
    pub(super) fn ask_settled(&mut self, kind: RequestKind, work: Work) {
        let last = self.record.last_request(&[kind]);
        let fresh = match &self.facts.evidence.queue {
            Answer::Known(queue) => last.is_none_or(|last| queue.asked_at > last),
            Answer::Unknown(_) => false,
        };
        if fresh {
            self.request_with_backoff(kind, work);
        } else {
            self.poll_urgently();
        }
    }

    /// Removes late jobs and duplicates, which never count.
    fn remove_extra(&mut self, sightings: &Sightings<'_>) {
        let kept = |index: Index| self.record.jobs.get(&index).map(|job| job.id);
        let extra: Vec<JobId> = sightings
            .iter()
            .filter(|(index, sighting)| {
                let surplus = sighting.acceptance == Acceptance::Accepted && kept(*index) != Some(sighting.ad.id);
                sighting.source == AdSource::Queue
                    && sighting.ad.status != JobStatus::Removed
                    && (surplus || sighting.acceptance == Acceptance::Late)
            })
            .map(|(_, sighting)| sighting.ad.id)
            .take(AT_ONCE)
            .collect();
        if !extra.is_empty() && self.rules.remove_extra {
            self.details.polling.raise(Polling::Always { history: None, urgent: false });
            self.ask_settled(RequestKind::Remove, Work::Remove(RemovalScope::Extra(extra)));
        }
    }

    fn set_held_condition(&mut self) {
        if let Some((held, id, Hold { code, reason, .. })) = held_by_others(&self.record) {
            let code = *code;
            let what_to_do = if code == Hold::OUTPUT_TOO_LARGE {
                "its output is larger than the operator's --output-limit: delete the HTCJob and create one with less output"
            } else {
                "release held jobs with kubectl htc release or condor_release"
            };
            let message = format!("{held} of {} held; {id}: {reason}; {what_to_do}", jobs_text(self.record.jobs.len()));
            self.set_condition(ConditionType::Held, True, Reason::JobsHeld, &message);
        } else {
            self.clear_condition(ConditionType::Held, Reason::NotHeld, "no job is held by HTCondor");
        }
    }
}
