//! What users ask for of single jobs: told once, and done as far as HTCondor has the job.

use super::{Action, Look, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{Answer, Job, JobState, JobStatus, LastRequest, Spec};
use crate::machine::ids::{Index, JobId, Kind, Timestamp};
use crate::machine::indices::Indices;
use crate::machine::judge::{Doubt, Sightings};
use crate::machine::phase::Phase;
use crate::machine::request::{Scope, Work};
use crate::machine::status::jobs;
use crate::machine::transitions::Notice;
use crate::machine::wishes::{Wanted, Wish, Wished};

/// Most jobs of which something is asked at once.
const AT_ONCE: usize = 2000;
/// Most bytes of ids, or of indexes, in one message.
const IDS_IN_MESSAGE: usize = 512;

impl Run<'_> {
    /// Tells of new wishes: one Event for those of a user that have come together.
    pub(super) fn tell_wishes(&mut self) {
        let mut new: Vec<(Wanted, String, Vec<Index>)> = Vec::new();
        let mut keeps_back = false;
        for (index, wished) in self.record.wishes.iter_mut() {
            let Some(user) = wished.untold.take() else { continue };
            let wanted = wished.wish.wanted();
            keeps_back |= wished.wish.keeps_back();
            match new.iter_mut().find(|(other, whose, _)| *other == wanted && *whose == user) {
                Some((_, _, indices)) => indices.push(index),
                None => new.push((wanted, user, vec![index])),
            }
        }
        for (wanted, user, indices) in new {
            let notice = match wanted {
                Wanted::Hold => Notice::HeldByUser,
                Wanted::Release => Notice::ReleasedByUser,
                Wanted::Remove => Notice::RemovedByUser,
            };
            let which: Indices = indices.iter().copied().collect();
            let detail = format!("{user} {} {}: {}", wanted.does(), jobs(which.len()), which.within(IDS_IN_MESSAGE));
            self.tell_condition(notice.to_string(), detail, false);
        }
        // What has not begun may have these jobs in it.
        if let Some(request) = self.in_flight(Kind::Submit).filter(|request| keeps_back && !request.running) {
            self.action = Action::Cancel(request.key.clone());
        }
    }

    /// The jobs that are asked for and that no user has removed.
    pub(super) fn wanted(&self, spec: &Spec) -> Indices {
        spec.asked_for().without(&self.record.wishes.withdrawn())
    }

    /// Jobs that are not to be submitted now.
    pub(super) fn kept_back(&self) -> Indices {
        if self.rules.wishes_keep_back { self.record.wishes.kept_back() } else { Indices::default() }
    }

    /// What users have removed and HTCondor is not known to have: gone once it is proved that it never was accepted, and never
    /// will be. A submission under way is waited for. Gives what is not proved.
    pub(super) fn withdraw(&mut self, missing: &Indices, sightings: &Sightings<'_>) -> Option<Doubt> {
        let removed: Indices = missing.iter().filter(|index| self.record.wishes.is(*index, Wanted::Remove)).collect();
        let over = self.known.phase == Phase::Completed || self.record.has_inherited();
        if removed.is_empty() || over || self.in_flight(Kind::Submit).is_some() {
            return None;
        }
        let untried = removed.without(&self.record.attempted);
        let tried = removed.without(&untried);
        let mut left = None;
        for part in [untried, tried].iter().filter(|part| !part.is_empty()) {
            let proved = if self.rules.prove_withdrawn { self.prove_given_up(part, sightings) } else { Ok(()) };
            match proved {
                Ok(()) => {
                    for (_, wished) in self.record.wishes.iter_mut().filter(|(index, _)| part.contains(*index)) {
                        wished.wish = Wish::Remove { withdrawn: true };
                    }
                }
                Err(doubt) => {
                    self.ask_about(&doubt);
                    left = Some(doubt);
                }
            }
        }
        self.complete();
        left
    }

    /// Says why nothing more is submitted now, if users keep all of the rest back; `doubt`: what is not proved of what they removed.
    pub(super) fn say_kept_back(&mut self, missing: &Indices, doubt: Option<&Doubt>, sightings: &Sightings<'_>) {
        // Jobs of what was tried may still be accepted.
        self.look.more(Look::Changes);
        let held: Indices = missing.iter().filter(|index| self.record.wishes.is(*index, Wanted::Hold)).collect();
        if let Some(doubt) = doubt {
            self.wait_for_attempt(doubt, sightings);
        } else if !held.is_empty() {
            let message = format!(
                "users hold {} that HTCondor does not have yet: {}; to submit them, release them with kubectl htc release",
                jobs(held.len()),
                held.within(IDS_IN_MESSAGE)
            );
            self.say(ConditionType::Submitted, ConditionStatus::False, Reason::Waiting, &message);
        }
    }

    /// Removes what users have removed, while HTCondor has it and it has not ended.
    pub(super) fn remove_wished(&mut self) {
        let ids = self.ids_of(Wanted::Remove, |_, status| !status.is_over());
        if !ids.is_empty() {
            self.ask_settled(Kind::Remove, Work::Remove(Scope::Wished(ids)));
            self.look_behind(Kind::Remove);
        }
    }

    /// Holds what users hold, each time that it is loose.
    pub(super) fn hold_wished(&mut self) {
        let loose =
            [JobStatus::Idle, JobStatus::Running, JobStatus::Suspended, JobStatus::Blocked, JobStatus::Preparing];
        let ids = self.ids_of(Wanted::Hold, |job, status| is_loose(&job.state) && loose.contains(&status));
        if !ids.is_empty() {
            self.ask_settled(Kind::Hold, Work::HoldJobs(ids));
        }
    }

    /// Releases what the operator holds for `spec.suspend`, but not what users hold; and what users release. `suspended`: the former
    /// stays.
    pub(super) fn release_wished(&mut self, suspended: bool) {
        self.forget_releases();
        let wishes = &self.record.wishes;
        let wanted = |index: &Index, job: &Job| match (&job.state, wishes.of(*index)) {
            (JobState::Held(hold), Some(Wish::Release { .. })) => {
                !suspended && (!hold.waits_for_room() || self.has_room(*index))
            }
            (JobState::Held(hold), None) => !suspended && hold.is_ours() && self.has_room(*index),
            (JobState::Held(_), Some(Wish::Hold | Wish::Remove { .. }))
            | (JobState::Idle | JobState::Running | JobState::Ended(_), _) => false,
        };
        let held = self.record.jobs.iter().filter(|(index, job)| wanted(index, job));
        let (indices, ids): (Vec<Index>, Vec<JobId>) = held.map(|(index, job)| (*index, job.id)).take(AT_ONCE).unzip();
        if ids.is_empty() {
            return;
        }
        let past = |(index, wished): (Index, &Wished)| {
            let ended = self.record.jobs.get(&index).is_none_or(|job| job.outcome().is_some());
            wished.wish.wanted() == Wanted::Remove && ended
        };
        let waits_for_room = |(index, job): (&Index, &Job)| {
            matches!(&job.state, JobState::Held(why) if why.is_ours()) && !self.has_room(*index)
        };
        let all = wishes.iter().all(past) && !self.record.jobs.iter().any(waits_for_room);
        let work = if all { Work::Release } else { Work::ReleaseJobs(ids) };
        let free = self.action == Action::Nothing;
        self.ask_settled(Kind::Release, work);
        let asked = free && matches!(&self.action, Action::Hand(request) if request.key.kind == Kind::Release);
        if asked {
            let now = self.now;
            for (index, wished) in self.record.wishes.iter_mut() {
                if let Wish::Release { asked, .. } = &mut wished.wish
                    && indices.contains(&index)
                {
                    *asked = Some(now);
                }
            }
        }
    }

    /// Releases that are over: the job is not held, by an answer that is young enough, or it was released and is held again.
    fn forget_releases(&mut self) {
        let last = self.record.requests.get(&Kind::Release);
        let well = last.filter(|last| last.failure.is_none()).and_then(|last| last.finished);
        // A hold from before the wish may still be under way, and act after the answer.
        let both = || [Kind::Hold, Kind::Release].into_iter();
        let latest = both().filter_map(|kind| self.record.requests.get(&kind)).map(LastRequest::latest).max();
        let under_way = both().any(|kind| self.in_flight(kind).is_some());
        let answer = match &self.facts.evidence.queue {
            Answer::Known(queue) => Some(queue.asked_at),
            Answer::Unknown(_) => None,
        };
        let fresh = |since| answer > Some(since) && answer > latest && !under_way;
        let recorded = &self.record.jobs;
        let until_done = self.rules.release_until_done;
        let over = |index: Index, since, asked: Option<Timestamp>| match recorded.get(&index) {
            // One that waits is submitted.
            None => true,
            Some(job) if job.outcome().is_some() => true,
            Some(job) if is_loose(&job.state) => fresh(since),
            Some(_) if !until_done => asked.is_some(),
            Some(_) => asked.is_some_and(|asked| fresh(since) && well.is_some_and(|well| well >= asked)),
        };
        self.record.wishes.retain(|index, wish| match wish {
            Wish::Release { since, asked } => !over(index, *since, *asked),
            Wish::Hold | Wish::Remove { .. } => true,
        });
        let since = self.record.wishes.iter().filter_map(|(_, wished)| match &wished.wish {
            Wish::Release { since, .. } => Some(*since),
            Wish::Hold | Wish::Remove { .. } => None,
        });
        if let Some(since) = since.chain(latest).max().filter(|_| self.record.wishes.releases()) {
            self.watch_closely(since);
        }
    }

    /// The jobs of which this is wished, that have not ended and that the queue shows, of those that may be asked for, by what is
    /// recorded and by the status that the queue shows. An id of another queue is another job's.
    fn ids_of(&self, wanted: Wanted, may: impl Fn(&Job, JobStatus) -> bool) -> Vec<JobId> {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return Vec::new() };
        let shown = |job: &&Job| {
            let place = queue.ads.binary_search_by_key(&job.id, |ad| ad.id);
            queue.birthdate == job.birthdate && place.is_ok_and(|place| may(job, queue.ads[place].status))
        };
        let wished = self.record.wishes.iter().filter(|(_, wished)| wished.wish.wanted() == wanted);
        let jobs = wished.filter_map(|(index, _)| self.record.jobs.get(&index)).filter(|job| job.outcome().is_none());
        jobs.filter(shown).map(|job| job.id).take(AT_ONCE).collect()
    }

    /// Of what users hold and was tried: those that are proved never to have been accepted, and so take nobody's place.
    pub(super) fn held_and_not_accepted(&mut self, sightings: &Sightings<'_>) -> Indices {
        let in_doubt = self.record.in_doubt();
        let held: Indices = in_doubt.iter().filter(|index| self.record.wishes.is(*index, Wanted::Hold)).collect();
        if held.is_empty() || self.in_flight(Kind::Submit).is_some() {
            return Indices::default();
        }
        match self.prove_given_up(&held, sightings) {
            Ok(()) => held,
            Err(doubt) => {
                self.ask_about(&doubt);
                Indices::default()
            }
        }
    }

    /// Asks HTCondor what a doubt about attempts is to be dispelled by.
    pub(super) fn ask_about(&mut self, doubt: &Doubt) {
        self.dispel(doubt);
    }

    /// An answer from before the last request of this kind shows what is no longer so.
    fn look_behind(&mut self, kind: Kind) {
        if self.record.requests.contains_key(&kind) {
            self.await_effect();
        }
    }
}

pub(super) fn is_loose(state: &JobState) -> bool {
    matches!(state, JobState::Idle | JobState::Running)
}
