//! Output: fetches it, lets jobs leave the queue, and sets the conditions of the outcome.

use std::time::Duration;

use super::{AT_ONCE, Decider};
use crate::condition::ConditionStatus::{False, True};
use crate::condition::{ConditionType, Reason};
use crate::facts::{Job, LastRequest, OmittedOutput};
use crate::ids::{Index, RequestKind, Timestamp};
use crate::indices::Indices;
use crate::phase::Phase;
use crate::request::Work;
use crate::status::{Counts, ending, jobs_text, wrote_last};

impl Decider<'_> {
    /// Fetches output and lets jobs leave the queue.
    pub(super) fn output(&mut self) {
        if self.in_flight(RequestKind::Fetch).is_some() {
            return;
        }
        let completed = self.known.phase == Phase::Completed;
        let waiting = self.record.to_fetch();
        let last = self.record.requests.get(&RequestKind::Fetch);
        let failure = last.and_then(|last| last.failure.clone());
        let (failures, step) = last.map_or((0, 0), |last| (last.failures, last.step));
        let since = last.map(LastRequest::latest).or(self.known.started).unwrap_or(Timestamp(0));
        if waiting.is_empty() {
            self.set_output_condition(completed);
            self.tidy();
            return;
        }
        match &failure {
            Some(failure) => self.set_failure_condition(ConditionType::OutputFetched, failure),
            None => {
                self.say_refused();
            }
        }
        if completed || self.is_due(since.plus(self.settings.fetch_every)) {
            // Output that does not arrive in time at once may arrive in parts. Each try fetches another part, as one
            // job's may never arrive.
            let most = AT_ONCE.checked_shr(2 * failures.min(30)).unwrap_or(0).max(1);
            let part = if failures > 0 { turn(&waiting, step as usize, most) } else { waiting.take(most) };
            self.request_with_backoff(RequestKind::Fetch, Work::Fetch(part));
        }
        self.tidy();
    }

    fn set_output_condition(&mut self, completed: bool) {
        if !completed {
            self.say_refused();
            return;
        }
        let refused = |index: &Index| self.record.refusals.contains_key(index);
        let with_output = self.record.jobs.values().filter(|job| job.left_output()).count();
        let unfetched = self.record.jobs.iter().filter(|(_, job)| job.left_output() && !job.fetched);
        let lost = unfetched.filter(|(index, job)| job.gone && !refused(index)).count();
        let folder = &self.facts.object.output;
        if with_output == 0 {
            self.set_condition(ConditionType::OutputFetched, True, Reason::NothingToFetch, "no job left output");
        } else if lost > 0 {
            let message =
                format!("the output of {} was lost: they left HTCondor's queue before it was fetched", jobs_text(lost));
            self.set_condition(ConditionType::OutputFetched, False, Reason::OutputLost, &message);
        } else if !self.say_refused() {
            let kept = self.says_how_long_kept();
            let message = format!("the output of {} is in {folder}{kept}{}", jobs_text(with_output), self.omitted());
            self.set_condition(ConditionType::OutputFetched, True, Reason::Fetched, &message);
        }
    }

    /// Describes output that was left out: of how many jobs, and what of the first of them.
    fn omitted(&self) -> String {
        let Some(OmittedOutput { jobs: number, index, what }) = &self.record.omitted else { return String::new() };
        format!("; not all of {} came back. Job {index}: {what}", jobs_text(*number))
    }

    /// Sets the condition for refused output; returns false if there is none.
    fn say_refused(&mut self) -> bool {
        let kept = |index: &Index| self.record.jobs.get(index).is_none_or(|job| job.fetched);
        let refused: Vec<_> = self.record.refusals.iter().filter(|(index, _)| !kept(index)).collect();
        let Some((index, refusal)) = refused.first() else { return false };
        let message = format!(
            "the output of {} was fetched and is not kept. Job {index}: {}. It is not fetched again, unless --output-limit is \
             changed while HTCondor still has it",
            jobs_text(refused.len()),
            refusal.why
        );
        self.set_condition(ConditionType::OutputFetched, False, Reason::OutputRefused, &message);
        true
    }

    /// Lets jobs leave the queue whose output was fetched.
    fn tidy(&mut self) {
        let lingering = |(_, job): &(&Index, &Job)| job.fetched && !job.gone;
        // Jobs whose output was refused stay until their HTCJob is deleted.
        let leaves = |(index, job): (&Index, &Job)| !job.gone && !self.record.refusals.contains_key(index);
        let lingering: Indices = self.record.jobs.iter().filter(lingering).map(|(index, _)| *index).collect();
        let lingering = lingering.take(AT_ONCE);
        let fetched = self.record.last_request(&[RequestKind::Fetch]);
        let tidied = self.record.last_request(&[RequestKind::Tidy]);
        // The schedd lets them leave when it next evaluates its queue (PERIODIC_EXPR_INTERVAL, 60 s).
        let due = tidied.filter(|tidied| fetched.is_none_or(|fetched| fetched <= *tidied));
        let wait = due.map_or(Duration::ZERO, |tidied| tidied.plus(self.settings.fetch_every).since(self.now));
        if !lingering.is_empty() && wait.is_zero() {
            self.ask_settled(RequestKind::Tidy, Work::Tidy(lingering));
        } else if !lingering.is_empty() {
            self.poll_after(tidied.unwrap_or(self.now));
            self.requeue_within(wait);
        } else if self.known.phase == Phase::Completed && self.record.jobs.iter().any(leaves) {
            let since = self.known.completed.unwrap_or(self.now);
            self.poll_after(since);
        }
    }

    pub(super) fn set_outcome_conditions(&mut self) {
        let completed = self.known.completed.unwrap_or(self.now);
        let is_fetched = self.conditions.get(ConditionType::OutputFetched).is_some();
        if !is_fetched && !self.is_due(completed.plus(self.settings.output_wait)) {
            return;
        }
        let counts = Counts::of(&self.record);
        let mut message = ending(&self.record, &counts);
        let wrote = wrote_last(&self.record);
        if let Some(wrote) = &wrote {
            message = format!("{message}; {wrote}");
        }
        if counts.failed == 0 {
            self.set_condition(ConditionType::Complete, True, Reason::AllSucceeded, &message);
        } else {
            let reason = if let Some(cut) = self.known.cut_short {
                cut.exceeded.reason()
            } else if counts.removed == self.record.jobs.len() {
                Reason::Removed
            } else if counts.lost > 0 {
                Reason::JobsLost
            } else {
                Reason::JobsFailed
            };
            // The Event of the end came before the output.
            let told = self.conditions.get(ConditionType::Failed).is_some_and(|told| told.message == message);
            if wrote.is_some() && !told {
                self.record_condition(reason.to_string(), message.clone(), true);
            }
            self.set_condition(ConditionType::Failed, True, reason, &message);
        }
    }
}

/// Returns at most `most` of these, different ones at each `step`, so that all are tried in rotation.
fn turn(all: &Indices, step: usize, most: usize) -> Indices {
    let all: Vec<Index> = all.iter().collect();
    let first = step.wrapping_mul(most) % all.len().max(1);
    all.iter().cycle().skip(first).take(most.min(all.len())).copied().collect()
}
