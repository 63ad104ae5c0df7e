//! What an object could do with room now. Room is lent for a try: what cannot be tried now asks for none, and keeps none.

use super::Run;
use crate::api::{ConditionStatus::False, ConditionType, Reason};
use crate::machine::facts::{Claim, Hold, JobState, LastRequest, Spec, Unknown, Why};
use crate::machine::ids::{Index, Kind};
use crate::machine::indices::Indices;
use crate::machine::judge::{Doubt, Sightings, all_recorded};
use crate::machine::phase::Phase;
use crate::machine::wishes::{Wanted, Wish};

impl Run<'_> {
    /// Finds the jobs that would be submitted or released now if they had room. `missing`: those that are asked for, that HTCondor is not
    /// known to have, and that no user holds or removes.
    pub(super) fn find_use_of_room(&mut self, spec: &Spec, missing: &Indices, sightings: &Sightings<'_>) {
        let live = matches!(self.known.phase, Phase::Pending | Phase::Submitted | Phase::Running);
        let ours = self.facts.object.claim == Claim::Ours && !self.known.released && !self.record.has_inherited();
        if self.facts.queue.is_none() || !live || !ours || spec.suspend {
            return;
        }
        if self.rules.lent_for_a_try && self.fails() {
            let last = self.record.requests.get(&Kind::Submit).map(LastRequest::latest);
            self.failed_at = last.into_iter().chain(self.record.attempts.last().map(|last| last.intent_at)).max();
        }
        if self.awaits_schedd() {
            self.look_again(self.settings.eager);
            return;
        }
        let at_a_time = spec.parallelism.map_or(usize::MAX, |most| most as usize);
        let left = at_a_time.saturating_sub(self.record.in_use().len());
        let held = self.releasable();
        let held = self.with_room_first(&[held], left);
        if spec.refused.is_some() {
            self.wants = held;
            return;
        }
        let missing = missing.without(&self.record.in_doubt());
        let fresh = self.fresh(&missing);
        let tried = missing.without(&fresh);
        if !self.rules.lent_for_a_try {
            let missing = self.with_room_first(&[fresh, tried], left.saturating_sub(held.len()));
            self.wants = Indices::union(&[held, missing]);
            return;
        }
        let (fresh, tried) = (self.unless_resting(fresh, true), self.unless_resting(tried, false));
        let tried = self.unless_in_doubt(tried, sightings);
        let (places, reason) = self.places(spec, &Indices::default(), &Indices::default());
        if places == 0 && reason == Reason::NamespaceLimit && !(fresh.is_empty() && tried.is_empty()) {
            // It is woken when others of its namespace end.
            self.namespace_is_full = true;
            self.look_again(self.settings.fetch_every);
        }
        let most = left.saturating_sub(held.len()).min(places).min(self.probe());
        let missing = self.with_room_first(&[fresh, tried], most);
        self.wants = Indices::union(&[held, missing]);
    }

    /// Those of these jobs that never were part of an attempt.
    pub(super) fn fresh(&self, jobs: &Indices) -> Indices {
        jobs.without(&self.record.attempted)
    }

    /// In a queue nothing is tried at a schedd that answers nobody: it would keep room from others until its time is over.
    pub(super) fn awaits_schedd(&self) -> bool {
        self.facts.schedd_is_silent && self.rules.lent_for_a_try && self.facts.queue.is_some()
    }

    /// The last submissions came to nothing: they could not be made, the schedd refused them, or it dropped their jobs.
    pub(super) fn fails(&self) -> bool {
        self.could_not_submit() || self.refused() > 0
    }

    /// The same, but for what the schedd may take in parts.
    fn could_not_submit(&self) -> bool {
        let failures = self.record.requests.get(&Kind::Submit).map_or(0, |last| last.failures);
        let before = &self.facts.record;
        let accepted = before.jobs.values().map(|job| job.attempt).max();
        let newer = before.attempts.iter().filter(|attempt| Some(attempt.attempt) > accepted);
        // Those that are not among the attempts any more went again.
        failures > 0 || (self.new_jobs == 0 && before.refused as usize > newer.count())
    }

    /// Most jobs that are tried at once, beside those of which it is not known what became of them. After a failure it is one: with that
    /// accepted, the others follow.
    fn probe(&self) -> usize {
        match if self.could_not_submit() { 1 } else { self.part() } {
            usize::MAX => usize::MAX,
            part => part.saturating_sub(self.record.in_doubt().len()),
        }
    }

    /// Whether a pause after failed submissions is not over. Then nothing is tried, and all that was tried is proved to be absent or not.
    pub(super) fn rests(&self) -> bool {
        self.rules.lent_for_a_try && self.fails() && !self.pause_before(false).is_zero()
    }

    /// These jobs; none during the pause after failed submissions.
    fn unless_resting(&mut self, jobs: Indices, first: bool) -> Indices {
        let pause = self.pause_before(first);
        if jobs.is_empty() || pause.is_zero() || !self.fails() {
            return jobs;
        }
        self.look_again(pause);
        Indices::default()
    }

    /// These jobs, which were tried and are proved to be absent; none if that cannot be proved anew before they go again.
    fn unless_in_doubt(&self, tried: Indices, sightings: &Sightings<'_>) -> Indices {
        if tried.is_empty() {
            return tried;
        }
        let recorded = all_recorded(&self.facts.object, &self.record, self.rules);
        let proof = recorded.and_then(|()| self.prove_never_accepted(&tried, sightings).map(drop));
        match proof {
            // It is asked.
            Ok(())
            | Err(
                Doubt::NotAskedSince
                | Doubt::SeenOnce
                | Doubt::HistoryNotAsked
                | Doubt::Unanswered(Unknown { why: Why::NotAsked, .. }),
            ) => tried,
            Err(_) => Indices::default(),
        }
    }

    /// Jobs that are held for `spec.suspend`, or that users held and release, and that users do not want to be held or removed. None during
    /// the pause after a release that failed; one after it.
    fn releasable(&mut self) -> Indices {
        let wishes = &self.record.wishes;
        let goes_on = |index: Index, hold: &Hold| match wishes.of(index).map(Wish::wanted) {
            Some(Wanted::Hold | Wanted::Remove) => false,
            Some(Wanted::Release) => hold.waits_for_room(),
            None => hold.is_ours(),
        };
        let held = self.record.jobs.iter().filter(|(index, job)| match &job.state {
            JobState::Held(hold) => goes_on(**index, hold),
            JobState::Idle | JobState::Running | JobState::Ended(_) => false,
        });
        let held: Indices = held.map(|(index, _)| *index).collect();
        let last = self.record.requests.get(&Kind::Release).filter(|last| last.failures > 0);
        let Some(last) = last.filter(|_| self.rules.lent_for_a_try && !held.is_empty()) else { return held };
        let pause = last.latest().plus(self.settings.pause(last.failures)).since(self.now);
        if pause.is_zero() {
            return self.with_room_first(&[held], 1);
        }
        self.look_again(pause);
        Indices::default()
    }

    /// So many of these jobs: those that have room first, then those of the first set.
    fn with_room_first(&self, sets: &[Indices], most: usize) -> Indices {
        let all = Indices::union(sets);
        if all.len() <= most {
            return all;
        }
        let granted = &self.record.granted;
        let mut taken: Indices = granted.iter().filter(|index| all.contains(*index)).take(most).collect();
        for set in sets {
            let more = set.without(&taken).take(most - taken.len());
            taken = Indices::union(&[taken, more]);
        }
        taken
    }

    /// Says why jobs are not submitted that have no room: by what the last try failed, by which limit they would be kept back with room, or
    /// that they wait for it.
    pub(super) fn say_no_room(&mut self, spec: &Spec) {
        if !self.rules.lent_for_a_try || self.facts.queue.is_none() {
            self.say_queued();
        } else if self.fails() && self.say_why_it_failed() {
            // It stays said until it is tried again.
        } else if self.awaits_schedd() {
            let message =
                format!("schedd {} does not answer: the jobs ask for room when it answers again", self.facts.schedd);
            self.say(ConditionType::Submitted, False, Reason::ScheddUnreachable, &message);
        } else {
            match self.places(spec, &Indices::default(), &Indices::default()) {
                (0, reason) => self.keep_back(spec, reason),
                _ => self.say_queued(),
            }
        }
    }

    /// Whether it keeps no room for now, as it could do nothing with it. It says so once, not for each try.
    pub(super) fn say_given_back(&mut self, spec: &Spec) -> bool {
        let Some(queue) = self.facts.queue.as_ref().filter(|_| self.rules.lent_for_a_try) else { return false };
        let waits = !spec.suspend && spec.refused.is_none() && self.record.in_use().is_empty();
        if !waits || !(self.fails() || self.namespace_is_full || self.awaits_schedd()) {
            return false;
        }
        let message = format!(
            "this HTCJob keeps no room in {queue} while it cannot submit, and asks for room again when it is tried again; the condition Submitted says why"
        );
        self.say(ConditionType::QuotaReserved, False, Reason::Waiting, &message);
        true
    }
}
