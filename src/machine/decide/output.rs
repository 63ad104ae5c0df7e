//! Output is fetched, jobs leave the queue, and what all of them have come to is said.

use std::time::Duration;

use super::Run;
use super::live::AT_ONCE;
use crate::api::ConditionStatus::{False, True};
use crate::api::{ConditionType, Reason};
use crate::machine::facts::{Answer, Job, LastRequest, Omitted};
use crate::machine::ids::{Index, Kind, Timestamp};
use crate::machine::indices::Indices;
use crate::machine::phase::Phase;
use crate::machine::request::Work;
use crate::machine::status::{Counts, ending, jobs, wrote_last};

impl Run<'_> {
    /// Fetches output and lets jobs leave the queue.
    pub(super) fn output(&mut self) {
        if self.in_flight(Kind::Fetch).is_some() {
            return;
        }
        let completed = self.known.phase == Phase::Completed;
        let waiting = self.record.to_fetch();
        let last = self.record.requests.get(&Kind::Fetch);
        let failure = last.and_then(|last| last.failure.clone());
        let (failures, step) = last.map_or((0, 0), |last| (last.failures, last.step));
        let since = last.map(LastRequest::latest).or(self.known.started).unwrap_or(Timestamp(0));
        if waiting.is_empty() {
            self.say_output(completed);
            self.tidy();
            return;
        }
        match &failure {
            Some(failure) => self.say_failure(ConditionType::OutputFetched, failure),
            None => {
                self.say_refused();
            }
        }
        // Fetching names the uid, and whether jobs of the Go operator carry it by now only HTCondor knows. Until it answers,
        // `Tracked` says what is wrong.
        if self.record.has_inherited() && matches!(self.facts.evidence.queue, Answer::Unknown(_)) {
            self.watch_closely(self.now);
            return;
        }
        let due = since.plus(self.settings.fetch_every);
        if completed || due <= self.now {
            // What does not come in time at once may come in parts; another part at each try, as one job's may never come.
            let most = AT_ONCE.checked_shr(2 * failures.min(30)).unwrap_or(0).max(1);
            let part = if failures > 0 { turn(&waiting, step as usize, most) } else { waiting.take(most) };
            self.ask_after_pause(Kind::Fetch, Work::Fetch(part));
        } else {
            self.look_again(due.since(self.now));
        }
        self.tidy();
    }

    fn say_output(&mut self, completed: bool) {
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
            self.say(ConditionType::OutputFetched, True, Reason::NothingToFetch, "no job left output");
        } else if lost > 0 {
            let message =
                format!("the output of {} was lost: they left HTCondor's queue before it was fetched", jobs(lost));
            self.say(ConditionType::OutputFetched, False, Reason::OutputLost, &message);
        } else if !self.say_refused() {
            let kept = self.says_how_long_kept();
            let message = format!("the output of {} is in {folder}{kept}{}", jobs(with_output), self.omitted());
            self.say(ConditionType::OutputFetched, True, Reason::Fetched, &message);
        }
    }

    /// What did not come back of output that was fetched: of how many jobs, and of the first of them what.
    fn omitted(&self) -> String {
        let Some(Omitted { jobs: number, index, what }) = &self.record.omitted else { return String::new() };
        format!("; not all of {} came back. Job {index}: {what}", jobs(*number))
    }

    /// Says whose output was refused; false if that is nobody's.
    fn say_refused(&mut self) -> bool {
        let kept = |index: &Index| self.record.jobs.get(index).is_none_or(|job| job.fetched);
        let refused: Vec<_> = self.record.refusals.iter().filter(|(index, _)| !kept(index)).collect();
        let Some((index, refusal)) = refused.first() else { return false };
        let message = format!(
            "the output of {} was fetched and is not kept. Job {index}: {}. It is not fetched again, unless --output-limit is \
             changed while HTCondor still has it",
            jobs(refused.len()),
            refusal.why
        );
        self.say(ConditionType::OutputFetched, False, Reason::OutputRefused, &message);
        true
    }

    /// Jobs whose output is here, or that have none, need not stay in the queue.
    fn tidy(&mut self) {
        let lingering = |(_, job): &(&Index, &Job)| job.fetched && !job.gone;
        // What was refused stays until its HTCJob is deleted.
        let leaves = |(index, job): (&Index, &Job)| !job.gone && !self.record.refusals.contains_key(index);
        let lingering: Indices = self.record.jobs.iter().filter(lingering).map(|(index, _)| *index).collect();
        let lingering = lingering.take(AT_ONCE);
        let ended = |kind| self.record.requests.get(&kind).map(LastRequest::latest);
        let (fetched, tidied) = (ended(Kind::Fetch), ended(Kind::Tidy));
        // The schedd lets them go when it next looks at its queue (PERIODIC_EXPR_INTERVAL, 60 s).
        let due = tidied.filter(|tidied| fetched.is_none_or(|fetched| fetched <= *tidied));
        let wait = due.map_or(Duration::ZERO, |tidied| tidied.plus(self.settings.fetch_every).since(self.now));
        if !lingering.is_empty() && wait.is_zero() {
            self.ask_settled(Kind::Tidy, Work::Tidy(lingering));
        } else if !lingering.is_empty() {
            self.watch_closely(tidied.unwrap_or(self.now));
            self.look_again(wait);
        } else if self.known.phase == Phase::Completed && self.record.jobs.iter().any(leaves) {
            let since = self.known.completed.unwrap_or(self.now);
            self.watch_closely(since);
        }
    }

    pub(super) fn say_how_it_ended(&mut self) {
        let completed = self.known.completed.unwrap_or(self.now);
        let patience = completed.plus(self.settings.output_wait);
        if self.conditions.get(ConditionType::OutputFetched).is_none() && self.now < patience {
            self.look_again(patience.since(self.now));
            return;
        }
        let counts = Counts::of(&self.record);
        let mut message = ending(&self.record, &counts);
        let wrote = wrote_last(&self.record);
        if let Some(wrote) = &wrote {
            message = format!("{message}; {wrote}");
        }
        if counts.failed == 0 {
            self.say(ConditionType::Complete, True, Reason::AllSucceeded, &message);
        } else {
            let reason = if let Some(cut) = self.known.cut_short {
                cut.exceeded.reason()
            } else if counts.removed == self.record.jobs.len() {
                Reason::Removed
            } else if counts.lost > 0 {
                Reason::Lost
            } else {
                Reason::JobsFailed
            };
            // The Event of the end came before the output.
            let told = self.conditions.get(ConditionType::Failed).is_some_and(|told| told.message == message);
            if wrote.is_some() && !told {
                self.tell_condition(reason.to_string(), message.clone(), true);
            }
            self.say(ConditionType::Failed, True, reason, &message);
        }
    }
}

/// At most `most` of these, others at each `step`, so that each has its turn.
fn turn(all: &Indices, step: usize, most: usize) -> Indices {
    let all: Vec<Index> = all.iter().collect();
    let first = step.wrapping_mul(most) % all.len().max(1);
    all.iter().cycle().skip(first).take(most.min(all.len())).copied().collect()
}
