//! Actions on single jobs that users request: reported once, and carried out on the jobs that HTCondor has.

use super::{AT_ONCE, Action, Decider, IDS_IN_MESSAGE, Polling};
use crate::actions::{JobAction, RequestedAction, StoredAction};
use crate::condition::Reason;
use crate::facts::{Answer, Job, JobState, JobStatus, Spec};
use crate::ids::{Index, JobId, RequestKind, Timestamp};
use crate::indices::Indices;
use crate::judge::{Doubt, Sightings};
use crate::phase::Phase;
use crate::request::{RemovalScope, Work};
use crate::status::jobs_text;
use crate::transitions::Notice;

impl Decider<'_> {
    /// Reports new requests of users: one Event for those of a user that came together.
    pub(super) fn record_new_actions(&mut self) {
        let mut new: Vec<(JobAction, String, Vec<Index>)> = Vec::new();
        let mut keeps_back = false;
        for (index, wished) in self.record.requested_actions.iter_mut() {
            let Some(user) = wished.unreported.take() else { continue };
            let wanted = wished.action.action();
            keeps_back |= wished.action.prevents_submission();
            match new.iter_mut().find(|(other, whose, _)| *other == wanted && *whose == user) {
                Some((_, _, indices)) => indices.push(index),
                None => new.push((wanted, user, vec![index])),
            }
        }
        for (wanted, user, indices) in new {
            let notice = match wanted {
                JobAction::Hold => Notice::HeldByUser,
                JobAction::Release => Notice::ReleasedByUser,
                JobAction::Remove => Notice::RemovedByUser,
            };
            let which: Indices = indices.iter().copied().collect();
            let detail =
                format!("{user} {} {}: {}", wanted.does(), jobs_text(which.len()), which.within(IDS_IN_MESSAGE));
            self.record_condition(notice.to_string(), detail, false);
        }
        // A submission that has not begun may contain these jobs.
        if keeps_back {
            self.cancel_queued(RequestKind::Submit);
        }
    }

    /// Returns the jobs of the spec that no user has removed.
    pub(super) fn wanted(&self, spec: &Spec) -> Indices {
        spec.asked_for().without(&self.record.requested_actions.withdrawn())
    }

    /// Returns the jobs that are not to be submitted now.
    pub(super) fn held_back(&self) -> Indices {
        if self.rules.wishes_keep_back { self.record.requested_actions.held_back() } else { Indices::default() }
    }

    /// Withdraws jobs that users have removed and that HTCondor is not known to have.
    /// A job is withdrawn once it is proved that it never was accepted, and never will be. Waits for a submission under
    /// way.
    /// Returns a doubt about the rest.
    pub(super) fn withdraw(&mut self, missing: &Indices, sightings: &Sightings<'_>) -> Option<Doubt> {
        let removed: Indices =
            missing.iter().filter(|index| self.record.requested_actions.is(*index, JobAction::Remove)).collect();
        let over = self.known.phase == Phase::Completed || self.record.has_inherited();
        if removed.is_empty() || over || self.in_flight(RequestKind::Submit).is_some() {
            return None;
        }
        let untried = removed.without(&self.record.attempted);
        let tried = removed.without(&untried);
        let mut left = None;
        for part in [untried, tried].iter().filter(|part| !part.is_empty()) {
            let proved = if self.rules.prove_withdrawn { self.prove_given_up(part, sightings) } else { Ok(()) };
            match proved {
                Ok(()) => {
                    for (_, wished) in
                        self.record.requested_actions.iter_mut().filter(|(index, _)| part.contains(*index))
                    {
                        wished.action = RequestedAction::Remove { withdrawn: true };
                    }
                }
                Err(doubt) => {
                    self.resolve_doubt(&doubt);
                    left = Some(doubt);
                }
            }
        }
        self.complete();
        left
    }

    /// Sets the condition if users hold or remove all jobs that are left. `doubt`: what is not proved about the jobs
    /// that they removed.
    pub(super) fn set_held_back_condition(
        &mut self,
        missing: &Indices,
        doubt: Option<&Doubt>,
        sightings: &Sightings<'_>,
    ) {
        // Jobs of earlier attempts may still be accepted.
        self.details.polling.raise(Polling::OnChange);
        let held: Indices =
            missing.iter().filter(|index| self.record.requested_actions.is(*index, JobAction::Hold)).collect();
        if let Some(doubt) = doubt {
            self.wait_for_attempt(doubt, sightings);
        } else if !held.is_empty() {
            let message = format!(
                "users hold {} that HTCondor does not have yet: {}; to submit them, release them with kubectl htc release",
                jobs_text(held.len()),
                held.within(IDS_IN_MESSAGE)
            );
            self.set_not_submitted(Reason::Waiting, &message);
        }
    }

    /// Removes jobs that users have removed and that HTCondor has, unless they have ended.
    pub(super) fn remove_requested(&mut self) {
        let ids = self.ids_of(JobAction::Remove, |_, status| !status.is_over());
        if !ids.is_empty() {
            self.ask_settled(RequestKind::Remove, Work::Remove(RemovalScope::Requested(ids)));
            if self.record.requests.contains_key(&RequestKind::Remove) {
                // An answer from before the last removal is out of date.
                self.poll_urgently();
            }
        }
    }

    /// Holds jobs that users hold, each time that they are found not to be held.
    pub(super) fn hold_requested(&mut self) {
        let loose =
            [JobStatus::Idle, JobStatus::Running, JobStatus::Suspended, JobStatus::Blocked, JobStatus::Preparing];
        let ids = self.ids_of(JobAction::Hold, |job, status| is_loose(&job.state) && loose.contains(&status));
        if !ids.is_empty() {
            self.ask_settled(RequestKind::Hold, Work::HoldJobs(ids));
        }
    }

    /// Releases jobs that users release, and jobs that the operator holds for `spec.suspend` unless users hold them.
    /// If `suspended`, the latter stay held.
    pub(super) fn release_requested(&mut self, suspended: bool) {
        self.forget_releases();
        let wishes = &self.record.requested_actions;
        let wanted = |index: &Index, job: &Job| match (&job.state, wishes.of(*index)) {
            (JobState::Held(hold), Some(RequestedAction::Release { .. })) => {
                !suspended && (!hold.awaits_quota() || self.has_quota(*index))
            }
            (JobState::Held(hold), None) => !suspended && hold.is_ours() && self.has_quota(*index),
            (JobState::Held(_), Some(RequestedAction::Hold | RequestedAction::Remove { .. }))
            | (JobState::Idle | JobState::Running | JobState::Ended(_), _) => false,
        };
        let held = self.record.jobs.iter().filter(|(index, job)| wanted(index, job));
        let (indices, ids): (Vec<Index>, Vec<JobId>) = held.map(|(index, job)| (*index, job.id)).take(AT_ONCE).unzip();
        if ids.is_empty() {
            return;
        }
        let past = |(index, wished): (Index, &StoredAction)| {
            let ended = self.record.jobs.get(&index).is_none_or(|job| job.outcome().is_some());
            wished.action.action() == JobAction::Remove && ended
        };
        let waits_for_room = |(index, job): (&Index, &Job)| {
            matches!(&job.state, JobState::Held(why) if why.is_ours()) && !self.has_quota(*index)
        };
        let all = wishes.iter().all(past) && !self.record.jobs.iter().any(waits_for_room);
        let work = if all { Work::Release } else { Work::ReleaseJobs(ids) };
        let free = self.action == Action::Nothing;
        self.ask_settled(RequestKind::Release, work);
        let asked =
            free && matches!(&self.action, Action::Dispatch(request) if request.key.kind == RequestKind::Release);
        if asked {
            let now = self.now;
            for (index, wished) in self.record.requested_actions.iter_mut() {
                if let RequestedAction::Release { asked, .. } = &mut wished.action
                    && indices.contains(&index)
                {
                    *asked = Some(now);
                }
            }
        }
    }

    /// Drops releases that are complete: a young enough answer shows that the job is not held, or it was released and
    /// is held again.
    fn forget_releases(&mut self) {
        let last = self.record.requests.get(&RequestKind::Release);
        let well = last.filter(|last| last.failure.is_none()).and_then(|last| last.finished);
        // A hold from before the request may still be under way, and take effect after the answer.
        let both = [RequestKind::Hold, RequestKind::Release];
        let latest = self.record.last_request(&both);
        let under_way = both.iter().any(|kind| self.in_flight(*kind).is_some());
        let answer = match &self.facts.evidence.queue {
            Answer::Known(queue) => Some(queue.asked_at),
            Answer::Unknown(_) => None,
        };
        let fresh = |since| answer > Some(since) && answer > latest && !under_way;
        let recorded = &self.record.jobs;
        let until_done = self.rules.release_until_done;
        let over = |index: Index, since, asked: Option<Timestamp>| match recorded.get(&index) {
            // A job that is not recorded is submitted.
            None => true,
            Some(job) if job.outcome().is_some() => true,
            Some(job) if is_loose(&job.state) => fresh(since),
            Some(_) if !until_done => asked.is_some(),
            Some(_) => asked.is_some_and(|asked| fresh(since) && well.is_some_and(|well| well >= asked)),
        };
        self.record.requested_actions.retain(|index, wish| match wish {
            RequestedAction::Release { since, asked } => !over(index, *since, *asked),
            RequestedAction::Hold | RequestedAction::Remove { .. } => true,
        });
        let since = self.record.requested_actions.iter().filter_map(|(_, wished)| match &wished.action {
            RequestedAction::Release { since, .. } => Some(*since),
            RequestedAction::Hold | RequestedAction::Remove { .. } => None,
        });
        if let Some(since) = since.chain(latest).max().filter(|_| self.record.requested_actions.releases()) {
            self.poll_after(since);
        }
    }

    /// Returns the jobs for which this action is requested, that have not ended and that the queue shows.
    /// `may` filters them by the record and by the status in the queue.
    /// Ids in another queue belong to other jobs.
    fn ids_of(&self, wanted: JobAction, may: impl Fn(&Job, JobStatus) -> bool) -> Vec<JobId> {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return Vec::new() };
        let shown = |job: &&Job| {
            let place = queue.ads.binary_search_by_key(&job.id, |ad| ad.id);
            queue.birthdate == job.birthdate && place.is_ok_and(|place| may(job, queue.ads[place].status))
        };
        let wished = self.record.requested_actions.iter().filter(|(_, wished)| wished.action.action() == wanted);
        let jobs = wished.filter_map(|(index, _)| self.record.jobs.get(&index)).filter(|job| job.outcome().is_none());
        jobs.filter(shown).map(|job| job.id).take(AT_ONCE).collect()
    }

    /// Returns the attempted jobs that users hold and that are proved never to have been accepted: they do not count
    /// toward limits.
    pub(super) fn held_and_not_accepted(&mut self, sightings: &Sightings<'_>) -> Indices {
        let in_doubt = self.record.in_doubt();
        let held: Indices =
            in_doubt.iter().filter(|index| self.record.requested_actions.is(*index, JobAction::Hold)).collect();
        if held.is_empty() || self.in_flight(RequestKind::Submit).is_some() {
            return Indices::default();
        }
        match self.prove_given_up(&held, sightings) {
            Ok(()) => held,
            Err(doubt) => {
                self.resolve_doubt(&doubt);
                Indices::default()
            }
        }
    }
}

pub(super) fn is_loose(state: &JobState) -> bool {
    matches!(state, JobState::Idle | JobState::Running)
}
