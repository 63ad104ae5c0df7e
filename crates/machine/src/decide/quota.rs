//! Requests for quota. Quota is lent for a try: jobs that cannot be tried now request none and keep none.

use super::Decider;
use crate::actions::{JobAction, RequestedAction};
use crate::condition::ConditionStatus::False;
use crate::condition::{ConditionType, Reason};
use crate::facts::{Claim, Hold, JobState, QueryError, QueryErrorKind, Spec};
use crate::ids::{Index, RequestKind};
use crate::indices::Indices;
use crate::judge::{Doubt, Sightings};
use crate::phase::Phase;

impl Decider<'_> {
    /// Finds the jobs that would be submitted or released now if they had quota.
    /// `missing`: jobs of the spec that HTCondor is not known to have, and that no user holds or removes.
    pub(super) fn find_quota_requests(&mut self, spec: &Spec, missing: &Indices, sightings: &Sightings<'_>) {
        let live = matches!(self.known.phase, Phase::Pending | Phase::Submitted | Phase::Running);
        let ours = self.facts.object.claim == Claim::Ours && !self.known.released && !self.record.has_inherited();
        if self.facts.queue.is_none() || !live || !ours || spec.suspend {
            return;
        }
        if self.rules.lent_for_a_try && self.fails() {
            let last = self.record.last_request(&[RequestKind::Submit]);
            self.details.failed_at =
                last.into_iter().chain(self.record.attempts.last().map(|last| last.intent_at)).max();
        }
        if self.awaits_schedd() {
            self.requeue_within(self.settings.eager);
            return;
        }
        let at_a_time = spec.parallelism.map_or(usize::MAX, |most| most as usize);
        let left = at_a_time.saturating_sub(self.record.in_use().len());
        let held = self.releasable();
        let held = self.with_room_first(&[held], left);
        if spec.refused.is_some() {
            self.details.quota_requests = held;
            return;
        }
        let missing = missing.without(&self.record.in_doubt());
        let fresh = self.fresh(&missing);
        let tried = missing.without(&fresh);
        if !self.rules.lent_for_a_try {
            let missing = self.with_room_first(&[fresh, tried], left.saturating_sub(held.len()));
            self.details.quota_requests = Indices::union(&[held, missing]);
            return;
        }
        let (fresh, tried) = (self.unless_backing_off(fresh, true), self.unless_backing_off(tried, false));
        let tried = self.unless_in_doubt(tried, sightings);
        let (places, reason) = self.submission_limit(spec, &Indices::default(), &Indices::default());
        if places == 0 && reason == Reason::NamespaceLimitReached && !(fresh.is_empty() && tried.is_empty()) {
            // The end of other jobs in the namespace triggers a reconcile.
            self.details.namespace_is_full = true;
            self.requeue_within(self.settings.fetch_every);
        }
        let most = left.saturating_sub(held.len()).min(places).min(self.probe());
        let missing = self.with_room_first(&[fresh, tried], most);
        self.details.quota_requests = Indices::union(&[held, missing]);
    }

    /// Returns those of these jobs that never were part of an attempt.
    pub(super) fn fresh(&self, jobs: &Indices) -> Indices {
        jobs.without(&self.record.attempted)
    }

    /// Whether the object is in a queue and its schedd answers no identity. Then nothing is tried: a try would keep
    /// quota from others until it times out.
    pub(super) fn awaits_schedd(&self) -> bool {
        self.facts.schedd_is_silent && self.rules.lent_for_a_try && self.facts.queue.is_some()
    }

    /// Whether the last submissions failed: they could not be made, the schedd refused them, or it dropped their jobs.
    pub(super) fn fails(&self) -> bool {
        self.could_not_submit() || self.refused() > 0
    }

    /// Like [`Self::fails`], but not if the schedd may accept the jobs in smaller parts.
    fn could_not_submit(&self) -> bool {
        let failures = self.record.requests.get(&RequestKind::Submit).map_or(0, |last| last.failures);
        let before = &self.facts.record;
        let accepted = before.jobs.values().map(|job| job.attempt).max();
        let newer = before.attempts.iter().filter(|attempt| Some(attempt.attempt) > accepted);
        // Attempts that are not in the list any more were superseded by later ones.
        failures > 0 || (!self.has_new_jobs() && before.refused as usize > newer.count())
    }

    /// Returns the maximum number of jobs that are tried at once, beside those whose fate is not known.
    /// After a failure it is one: once that is accepted, the others follow.
    fn probe(&self) -> usize {
        match if self.could_not_submit() { 1 } else { self.part() } {
            usize::MAX => usize::MAX,
            part => part.saturating_sub(self.record.in_doubt().len()),
        }
    }

    /// Whether the back-off after failed submissions is not over. Then nothing is tried, and for attempted jobs
    /// only their absence is to be proved.
    pub(super) fn is_backing_off(&self) -> bool {
        self.rules.lent_for_a_try && self.fails() && !self.submit_backoff(false).is_zero()
    }

    /// Returns these jobs; none during the back-off after failed submissions.
    fn unless_backing_off(&mut self, jobs: Indices, first: bool) -> Indices {
        let pause = self.submit_backoff(first);
        if jobs.is_empty() || pause.is_zero() || !self.fails() {
            return jobs;
        }
        self.requeue_within(pause);
        Indices::default()
    }

    /// Returns these jobs, which were tried and are proved to be absent; none if that cannot be proved anew before the
    /// next try.
    fn unless_in_doubt(&self, tried: Indices, sightings: &Sightings<'_>) -> Indices {
        if tried.is_empty() {
            return tried;
        }
        match self.prove_never_accepted(&tried, sightings).map(drop) {
            // Proved, or HTCondor is being asked for what the proof lacks.
            Ok(())
            | Err(
                Doubt::NotAskedSince
                | Doubt::SeenOnce
                | Doubt::HistoryNotAsked
                | Doubt::Unanswered(QueryError { kind: QueryErrorKind::NotAsked, .. }),
            ) => tried,
            Err(_) => Indices::default(),
        }
    }

    /// Returns the jobs that may be released: held for `spec.suspend`, or held by users who now release them.
    /// Jobs that users want to be held or removed are not among them.
    /// Returns none during the back-off after a failed release, and one job after it.
    fn releasable(&mut self) -> Indices {
        let wishes = &self.record.requested_actions;
        let goes_on = |index: Index, hold: &Hold| match wishes.of(index).map(RequestedAction::action) {
            Some(JobAction::Hold | JobAction::Remove) => false,
            Some(JobAction::Release) => hold.awaits_quota(),
            None => hold.is_ours(),
        };
        let held = self.record.jobs.iter().filter(|(index, job)| match &job.state {
            JobState::Held(hold) => goes_on(**index, hold),
            JobState::Idle | JobState::Running | JobState::Ended(_) => false,
        });
        let held: Indices = held.map(|(index, _)| *index).collect();
        let last = self.record.requests.get(&RequestKind::Release).filter(|last| last.failures > 0);
        let Some(last) = last.filter(|_| self.rules.lent_for_a_try && !held.is_empty()) else { return held };
        let pause = last.latest().plus(self.settings.backoff(last.failures)).since(self.now);
        if pause.is_zero() {
            return self.with_room_first(&[held], 1);
        }
        self.requeue_within(pause);
        Indices::default()
    }

    /// Returns up to `most` of these jobs: those that have quota first, then those of the first set.
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

    /// Sets the condition for jobs that are not submitted and have no quota.
    /// It gives the failure of the last try, or the limit that would apply even with quota, or that they wait for
    /// quota.
    pub(super) fn set_no_quota_condition(&mut self, spec: &Spec) {
        if !self.rules.lent_for_a_try || self.facts.queue.is_none() {
            self.set_queued_condition();
        } else if self.fails() && self.set_submit_failure_condition() {
            // The condition stays until the next try.
        } else if self.awaits_schedd() {
            let message =
                format!("schedd {} does not answer: the jobs ask for quota when it answers again", self.facts.schedd);
            self.set_not_submitted(Reason::ScheddUnreachable, &message);
        } else {
            match self.submission_limit(spec, &Indices::default(), &Indices::default()) {
                (0, reason) => self.set_limited_condition(spec, reason),
                _ => self.set_queued_condition(),
            }
        }
    }

    /// Sets the condition and returns true if the object keeps no quota now, because it could not use it. Set once, not
    /// for each try.
    pub(super) fn set_quota_released_condition(&mut self, spec: &Spec) -> bool {
        let Some(queue) = self.facts.queue.as_ref().filter(|_| self.rules.lent_for_a_try) else { return false };
        let waits = !spec.suspend && spec.refused.is_none() && self.record.in_use().is_empty();
        if !waits || !(self.fails() || self.details.namespace_is_full || self.awaits_schedd()) {
            return false;
        }
        let message = format!(
            "this HTCJob keeps no quota in {queue} while it cannot submit, and asks for quota when it is tried again; the condition Submitted says why"
        );
        self.set_condition(ConditionType::QuotaReserved, False, Reason::Waiting, &message);
        true
    }
}
