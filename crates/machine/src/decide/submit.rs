//! Submission of missing jobs, as far as the limits allow.

use std::time::Duration;

use super::{Decider, Polling};
use crate::condition::ConditionStatus::False;
use crate::condition::{ConditionType, Reason};
use crate::facts::{Claim, JobState, Past, Spec, SpecRefused};
use crate::ids::{Attempt, Index, RequestKind};
use crate::indices::Indices;
use crate::judge;
use crate::judge::{Acceptance, AdSource, Doubt, Sightings};
use crate::request::{RemovalScope, SubmitPermit, Work};
use crate::status::jobs_text;

/// Number of parts into which a refused submission is divided.
const PARTS: usize = 4;

impl Decider<'_> {
    /// Judges earlier attempts and submits missing jobs.
    pub(super) fn submit(&mut self, spec: &Spec, missing: &Indices, sightings: &Sightings<'_>) {
        if let Some(request) = self.in_flight(RequestKind::Submit) {
            let under_way = request.key.attempt;
            self.await_acceptance(Some(under_way));
            self.set_submitting_condition(missing);
            return;
        }
        let facts = self.facts;
        let fresh = missing.without(&self.record.attempted);
        let free = self.held_and_not_accepted(sightings);
        let again = |indices: &Indices| self.prove_never_accepted(indices, sightings).map(SubmitPermit::Again);
        let tried = missing.without(&fresh);
        // Jobs of earlier attempts that may still be accepted count before new ones: they are judged first.
        let first = !fresh.is_empty() && (tried.is_empty() || self.submission_limit(spec, &fresh, &free).0 > 0);
        let candidates = if first { &fresh } else { &tried };
        let (places, kept_back) = self.submission_limit(spec, candidates, &free);
        let with_room = self.with_quota(candidates);
        // Jobs without quota are judged all the same.
        let (places, kept_back, going) =
            if with_room.is_empty() { (0, Reason::Queued, candidates) } else { (places, kept_back, &with_room) };
        let indices = going.take(self.most_at_once().min(places.max(1)));
        // None of the jobs that wait may be accepted beside those that are submitted.
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
            // The answer is kept as long as it is needed. If it were dropped, each reconcile would ask again, and set
            // another condition.
            self.details.polling.raise(Polling::OnChange);
        }
        self.await_acceptance(None);
        match (permit, &spec.refused) {
            (Ok(_), Some(SpecRefused { reason, message })) => {
                self.set_not_submitted(*reason, message);
            }
            (Ok(permit), None) if !spec.suspend && (facts.object.claim == Claim::Ours || !self.rules.only_claimant) => {
                if places == 0 {
                    self.set_limited_condition(spec, kept_back);
                } else {
                    self.submit_after_pause(indices, missing, permit);
                }
            }
            (Ok(_), None) => {
                self.set_not_submitted(Reason::Waiting, "nothing is submitted now");
            }
            (Err(doubt), _) => self.wait_for_attempt(&doubt, sightings),
        }
    }

    /// Polls for jobs of earlier parts that HTCondor has not been seen to accept, while other parts are submitted.
    /// `under_way`: the attempt whose submitter runs. It is judged once the submitter has ended.
    fn await_acceptance(&mut self, under_way: Option<Attempt>) {
        let mut ended = self.record.attempts.iter().filter(|attempt| Some(attempt.attempt) != under_way).peekable();
        if ended.peek().is_none() {
            return;
        }
        let withdrawn = self.record.requested_actions.withdrawn();
        let unseen = |index: Index| !self.record.jobs.contains_key(&index) && !withdrawn.contains(index);
        let open =
            ended.find(|attempt| !attempt.absent && attempt.refusal.is_none() && attempt.indices.iter().any(unseen));
        self.details.polling.raise(open.map_or(Polling::OnChange, |attempt| Polling::Accepting(attempt.attempt)));
    }

    fn submit_after_pause(&mut self, indices: Indices, missing: &Indices, permit: SubmitPermit) {
        let wait = self.submit_backoff(matches!(permit, SubmitPermit::First(_)));
        if !self.set_submit_failure_condition() {
            self.set_submitting_condition(missing);
        }
        if wait.is_zero() {
            self.request(RequestKind::Submit, Work::Submit(indices, permit));
        } else {
            self.requeue_within(wait);
        }
    }

    /// Returns how long nothing is submitted after failed submissions.
    /// `first`: for jobs that were never tried, which are submitted at once behind jobs that are being accepted.
    pub(super) fn submit_backoff(&self, first: bool) -> Duration {
        let failures = if first { self.refused() } else { self.record.refused };
        let after_refusal =
            self.record.attempts.last().map(|last| last.intent_at.plus(self.settings.backoff(failures)));
        let last = self.record.requests.get(&RequestKind::Submit);
        let after_failure = last.map(|last| last.latest().plus(self.settings.backoff(last.failures)));
        after_refusal.into_iter().chain(after_failure).max().map_or(Duration::ZERO, |until| until.since(self.now))
    }

    /// Sets the condition to the failure of the last submission; returns false if it did not fail.
    pub(super) fn set_submit_failure_condition(&mut self) -> bool {
        let failure = self.record.requests.get(&RequestKind::Submit).and_then(|last| last.failure.clone());
        let refusal = self.record.attempts.iter().rev().find_map(|attempt| attempt.refusal.clone());
        match (failure, refusal) {
            (Some(failure), _) => self.set_failure_condition(ConditionType::Submitted, &failure),
            (None, Some(refusal)) => {
                let message = format!(
                    "condor_submit failed: {refusal}; retrying with growing pauses. If the schedd refuses permanently, create a corrected HTCJob"
                );
                self.set_not_submitted(Reason::SubmitRefused, &message);
            }
            (None, None) => return false,
        }
        true
    }

    /// Returns how many of these jobs may be submitted beside those that HTCondor has or may have, and which limit
    /// applies to the others.
    /// `free`: jobs that are proved not to be there.
    pub(super) fn submission_limit(&self, spec: &Spec, candidates: &Indices, free: &Indices) -> (usize, Reason) {
        if spec.parallelism.is_none() && self.settings.namespace_limit.is_none() {
            return (usize::MAX, Reason::Waiting);
        }
        let active = self.record.jobs.values().filter(|job| !matches!(job.state, JobState::Ended(_))).count();
        let tried =
            if self.rules.tried_counts { self.record.in_doubt().without(candidates).without(free).len() } else { 0 };
        let left = |most: Option<usize>| most.map_or(usize::MAX, |most| most.saturating_sub(active + tried));
        let own = left(spec.parallelism.map(|most| most as usize));
        let namespace = left(self.settings.namespace_limit);
        if own <= namespace { (own, Reason::ParallelismReached) } else { (namespace, Reason::NamespaceLimitReached) }
    }

    /// Sets the condition for a limit. The end of other jobs triggers a reconcile: of the queue, of the namespace, or
    /// of the object.
    pub(super) fn set_limited_condition(&mut self, spec: &Spec, reason: Reason) {
        if reason == Reason::Queued {
            self.set_no_quota_condition(spec);
            return;
        }
        let message = match (reason, spec.parallelism) {
            (Reason::ParallelismReached, Some(0)) => {
                "spec.parallelism is 0: no more jobs are submitted until it is increased".to_owned()
            }
            (Reason::ParallelismReached, Some(most)) => {
                format!("spec.parallelism is {most}: the other jobs are submitted as these end")
            }
            _ => {
                self.details.namespace_is_full = true;
                self.requeue_within(self.settings.fetch_every);
                "the namespace has as many active jobs as --namespace-active-jobs allows: the rest is submitted when others end. Delete HTCJobs that nobody needs".to_owned()
            }
        };
        self.set_not_submitted(reason, &message);
    }

    /// Returns the number of attempts in a row, up to the last one, that the schedd has refused.
    pub(super) fn refused(&self) -> u32 {
        let last = self.record.attempts.iter().rev().take_while(|attempt| attempt.refusal.is_some());
        u32::try_from(last.count()).unwrap_or(u32::MAX)
    }

    /// Returns the maximum size of the next part. What the schedd refuses it may accept in parts, whatever its message.
    /// Parts that it accepts keep their size while refused jobs are to be submitted again.
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

    fn set_submitting_condition(&mut self, missing: &Indices) {
        let most = self.settings.jobs_per_attempt;
        match self.settings.size_refusal.as_ref().filter(|_| missing.len() > most) {
            Some(words) => {
                let message =
                    format!("submitting at most {most} jobs at once, because the schedd refused more: {words}");
                self.set_not_submitted(Reason::SmallerSubmissions, &message);
            }
            None => {
                self.set_not_submitted(Reason::Submitting, "submitting the jobs to HTCondor");
            }
        }
    }

    pub(super) fn wait_for_attempt(&mut self, doubt: &Doubt, sightings: &Sightings<'_>) {
        let staging = sightings
            .iter()
            .filter(|(_, sighting)| sighting.source == AdSource::Queue && sighting.acceptance == Acceptance::Staging)
            .count();
        let dead = self.record.attempts.iter().map(|attempt| judge::dead_at(attempt, self.settings)).max();
        // Some attempts may be missing in this ledger. Their submitters are dead since the wait for them was over.
        let settled = match self.facts.past {
            Past::Unknown { settled } => settled,
            Past::Continuous => {
                self.conditions.get(ConditionType::Submitted).filter(|told| told.status == False).map(|told| told.since)
            }
        };
        let (mut reason, mut message) = self.resolve_doubt(doubt);
        if staging > 0 && matches!(doubt, Doubt::Present(_)) {
            (reason, message) = (Reason::Staging, format!("HTCondor is receiving the files of {}", jobs_text(staging)));
            let patience = dead.or(settled).unwrap_or(self.now).plus(self.settings.staging);
            if self.is_due(patience) {
                self.ask_settled(RequestKind::Remove, Work::Remove(RemovalScope::Staging));
            }
        }
        self.set_not_submitted(reason, &message);
    }
}
