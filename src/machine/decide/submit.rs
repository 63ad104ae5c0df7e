//! What is missing is submitted, as far as it may be.

use std::time::Duration;

use super::{Look, Run};
use crate::api::ConditionStatus::False;
use crate::api::{ConditionType, Reason};
use crate::machine::facts::{Claim, JobState, Past, Spec, SpecRefused};
use crate::machine::ids::{Attempt, Index, Kind};
use crate::machine::indices::Indices;
use crate::machine::judge::{self, Acceptance, Doubt, SeenIn, Sightings, all_recorded};
use crate::machine::request::{Scope, SubmitPermit, Work};
use crate::machine::status::jobs;

/// A submission that is refused goes again in so many.
const PARTS: usize = 4;

impl Run<'_> {
    /// Judges what was tried and submits what is missing.
    pub(super) fn submit(&mut self, spec: &Spec, missing: &Indices, sightings: &Sightings<'_>) {
        if let Some(request) = self.in_flight(Kind::Submit) {
            let under_way = request.key.attempt;
            self.await_acceptance(Some(under_way));
            self.say_submitting(missing);
            return;
        }
        let facts = self.facts;
        if let Err(doubt @ Doubt::Inherited(_)) = all_recorded(&facts.object, &self.record, self.rules) {
            let (reason, message) = self.dispel(&doubt);
            self.say(ConditionType::Submitted, False, reason, &message);
            return;
        }
        let fresh = missing.without(&self.record.attempted);
        let free = self.held_and_not_accepted(sightings);
        let again = |indices: &Indices| self.prove_never_accepted(indices, sightings).map(SubmitPermit::Again);
        let tried = missing.without(&fresh);
        // What was tried and may still be accepted takes the places of what was not: it is judged first.
        let first = !fresh.is_empty() && (tried.is_empty() || self.places(spec, &fresh, &free).0 > 0);
        let candidates = if first { &fresh } else { &tried };
        let (places, kept_back) = self.places(spec, candidates, &free);
        let with_room = self.with_room(candidates);
        // What has no room is judged all the same.
        let (places, kept_back, going) =
            if with_room.is_empty() { (0, Reason::Queued, candidates) } else { (places, kept_back, &with_room) };
        let indices = going.take(self.most_at_once().min(places.max(1)));
        // Of those that are kept back none may come beside those that go.
        let again = || {
            let all = places.min(going.len()) >= candidates.len();
            if all { again(&indices) } else { again(candidates).and_then(|_| again(&indices)) }
        };
        let permit = if first {
            judge::never_attempted(&facts.object, &self.record, facts.past, &indices, self.rules)
                .map(SubmitPermit::First)
                .or_else(|_| again())
        } else {
            again()
        };
        if !matches!(permit, Ok(SubmitPermit::First(_))) {
            // The answer is kept for as long as it is gone by: thrown away, it would be asked for again at each pass, and each
            // pass would say something else.
            self.look.more(Look::Changes);
        }
        self.await_acceptance(None);
        match (permit, &spec.refused) {
            (Ok(_), Some(SpecRefused { reason, message })) => {
                self.say(ConditionType::Submitted, False, *reason, message);
            }
            (Ok(permit), None) if !spec.suspend && (facts.object.claim == Claim::Ours || !self.rules.only_claimant) => {
                if places == 0 {
                    self.keep_back(spec, kept_back);
                } else {
                    self.submit_after_pause(indices, missing, permit);
                }
            }
            (Ok(_), None) => self.say(ConditionType::Submitted, False, Reason::Waiting, "nothing is submitted now"),
            (Err(doubt), _) => self.wait_for_attempt(&doubt, sightings),
        }
    }

    /// Asks for the jobs of earlier parts that HTCondor has not been seen to accept, while other parts go in. `under_way`: the attempt
    /// whose submitter runs, which is judged once it has ended.
    fn await_acceptance(&mut self, under_way: Option<Attempt>) {
        let mut ended = self.record.attempts.iter().filter(|attempt| Some(attempt.attempt) != under_way).peekable();
        if ended.peek().is_none() {
            return;
        }
        let withdrawn = self.record.wishes.withdrawn();
        let unseen = |index: Index| !self.record.jobs.contains_key(&index) && !withdrawn.contains(index);
        let open =
            ended.find(|attempt| !attempt.absent && attempt.refusal.is_none() && attempt.indices.iter().any(unseen));
        self.look.more(open.map_or(Look::Changes, |attempt| Look::Accepting(attempt.attempt)));
    }

    fn submit_after_pause(&mut self, indices: Indices, missing: &Indices, permit: SubmitPermit) {
        let wait = self.pause_before(matches!(permit, SubmitPermit::First(_)));
        if !self.say_why_it_failed() {
            self.say_submitting(missing);
        }
        if wait.is_zero() {
            self.ask(Kind::Submit, Work::Submit(indices, permit));
        } else {
            self.look_again(wait);
        }
    }

    /// How long nothing is submitted after submissions that came to nothing; `first`: of what was never tried, which goes at once behind
    /// what is being accepted.
    pub(super) fn pause_before(&self, first: bool) -> Duration {
        let failures = if first { self.refused() } else { self.record.refused };
        let after_refusal = self.record.attempts.last().map(|last| last.intent_at.plus(self.settings.pause(failures)));
        let last = self.record.requests.get(&Kind::Submit);
        let after_failure = last.map(|last| last.latest().plus(self.settings.pause(last.failures)));
        after_refusal.into_iter().chain(after_failure).max().map_or(Duration::ZERO, |until| until.since(self.now))
    }

    /// Says by what the last submission failed, if it has failed.
    pub(super) fn say_why_it_failed(&mut self) -> bool {
        let failure = self.record.requests.get(&Kind::Submit).and_then(|last| last.failure.clone());
        let refusal = self.record.attempts.iter().rev().find_map(|attempt| attempt.refusal.clone());
        match (failure, refusal) {
            (Some(failure), _) => self.say_failure(ConditionType::Submitted, &failure),
            (None, Some(refusal)) => {
                let message = format!(
                    "condor_submit failed: {refusal}; retrying with growing pauses. If the schedd refuses permanently, create a corrected HTCJob"
                );
                self.say(ConditionType::Submitted, False, Reason::SubmitRefused, &message);
            }
            (None, None) => return false,
        }
        true
    }

    /// How many of these jobs may go, beside those that HTCondor has or may have, and by what the others are kept back. `free`: proved
    /// not to be there.
    pub(super) fn places(&self, spec: &Spec, candidates: &Indices, free: &Indices) -> (usize, Reason) {
        if spec.parallelism.is_none() && self.settings.namespace_room.is_none() {
            return (usize::MAX, Reason::Waiting);
        }
        let active = self.record.jobs.values().filter(|job| !matches!(job.state, JobState::Ended(_))).count();
        let tried =
            if self.rules.tried_counts { self.record.in_doubt().without(candidates).without(free).len() } else { 0 };
        let left = |most: Option<usize>| most.map_or(usize::MAX, |most| most.saturating_sub(active + tried));
        let own = left(spec.parallelism.map(|most| most as usize));
        let namespace = left(self.settings.namespace_room);
        if own <= namespace { (own, Reason::Parallelism) } else { (namespace, Reason::NamespaceLimit) }
    }

    /// It is woken when others end: those of its queue, those of its namespace, or its own.
    pub(super) fn keep_back(&mut self, spec: &Spec, reason: Reason) {
        if reason == Reason::Queued {
            self.say_no_room(spec);
            return;
        }
        let message = match (reason, spec.parallelism) {
            (Reason::Parallelism, Some(0)) => {
                "spec.parallelism is 0: no more jobs are submitted until it is increased".to_owned()
            }
            (Reason::Parallelism, Some(most)) => {
                format!("spec.parallelism is {most}: the other jobs are submitted as these end")
            }
            _ => {
                self.namespace_is_full = true;
                self.look_again(self.settings.fetch_every);
                "the namespace has as many active jobs as --namespace-active-jobs allows: the rest is submitted when others end. Delete HTCJobs that nobody needs".to_owned()
            }
        };
        self.say(ConditionType::Submitted, False, reason, &message);
    }

    /// Attempts in a row, the last ones, that the schedd has refused.
    pub(super) fn refused(&self) -> u32 {
        let last = self.record.attempts.iter().rev().take_while(|attempt| attempt.refusal.is_some());
        u32::try_from(last.count()).unwrap_or(u32::MAX)
    }

    /// What the schedd refuses it may take in parts, whatever it says. Parts that it takes stay as small while what it has
    /// refused is to go again.
    pub(super) fn part(&self) -> usize {
        let attempts = &self.record.attempts;
        match attempts.last() {
            Some(last) if last.refusal.is_some() => (last.indices.len() / PARTS).max(1),
            Some(last) if attempts.iter().any(|attempt| attempt.refusal.is_some()) => last.indices.len().max(1),
            Some(_) | None => usize::MAX,
        }
    }

    fn most_at_once(&self) -> usize {
        self.part().min(self.settings.jobs_per_attempt)
    }

    fn say_submitting(&mut self, missing: &Indices) {
        let most = self.settings.jobs_per_attempt;
        match self.settings.refused_more.as_ref().filter(|_| missing.len() > most) {
            Some(words) => {
                let message =
                    format!("submitting at most {most} jobs at once, because the schedd refused more: {words}");
                self.say(ConditionType::Submitted, False, Reason::SmallerSubmissions, &message);
            }
            None => {
                self.say(ConditionType::Submitted, False, Reason::Submitting, "submitting the jobs to HTCondor");
            }
        }
    }

    pub(super) fn wait_for_attempt(&mut self, doubt: &Doubt, sightings: &Sightings<'_>) {
        let staging = sightings
            .iter()
            .filter(|(_, sighting)| sighting.place == SeenIn::Queue && sighting.acceptance == Acceptance::Staging)
            .count();
        let dead = self.record.attempts.iter().map(|attempt| judge::dead_at(attempt, self.settings)).max();
        // Jobs of an attempt that this ledger lacks: their submitter is dead since the wait for it was over.
        let settled = match self.facts.past {
            Past::Unknown { settled } => settled,
            Past::Continuous => {
                self.conditions.get(ConditionType::Submitted).filter(|told| told.status == False).map(|told| told.since)
            }
        };
        let (mut reason, mut message) = self.dispel(doubt);
        if staging > 0 && matches!(doubt, Doubt::Present(_)) {
            (reason, message) = (Reason::Staging, format!("HTCondor is receiving the files of {}", jobs(staging)));
            let patience = dead.or(settled).unwrap_or(self.now).plus(self.settings.staging);
            if patience <= self.now {
                self.ask_settled(Kind::Remove, Work::Remove(Scope::Staging));
            } else {
                self.look_again(patience.since(self.now));
            }
        }
        self.say(ConditionType::Submitted, False, reason, &message);
    }
}
