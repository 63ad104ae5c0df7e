//! Objects that are not being deleted: submit, hold and release, fetch, tidy.

use std::time::Duration;

use super::wishes::is_loose;
use super::{Look, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::decide::Action;
use crate::machine::facts::{Answer, Claim, Hold, Job, JobState, JobStatus, LastRequest, Past, Spec, SpecRefused};
use crate::machine::ids::{Attempt, Index, JobId, Kind, Timestamp};
use crate::machine::indices::Indices;
use crate::machine::judge::{self, Acceptance, Doubt, SeenIn, Sightings, all_recorded};
use crate::machine::phase::Phase;
use crate::machine::request::{Scope, SubmitPermit, Work};
use crate::machine::status::{Counts, ending, held_by_others, jobs, wrote_last};

use ConditionStatus::{False, True};

/// A submission that is refused goes again in so many.
const PARTS: usize = 4;

/// Most jobs of which something is wanted at once that is no submission: their output, or that they leave.
const AT_ONCE: usize = 2000;

impl Run<'_> {
    pub(super) fn live(&mut self, sightings: &Sightings<'_>) {
        if !self.facts.object.finalizer && self.rules.finalizer_first {
            // Taken away by hand, or the view is older than our own patch: nothing happens without it.
            self.ask(Kind::AttachFinalizer, Work::AttachFinalizer);
            return;
        }
        let adopting = self.adopt(ConditionType::Submitted);
        match &self.facts.object.spec {
            Ok(spec) => self.pursue(spec, sightings, adopting),
            // What the Go operator has submitted needs no spec that could be submitted.
            Err(_) if self.record.has_inherited() => self.say_accepted(adopting),
            Err(_) if self.is_still_the_go_operators() => self.say_inherited(),
            // Jobs from when the spec could still be read are followed all the same.
            Err(unreadable) => {
                self.say(ConditionType::Submitted, False, unreadable.reason, &unreadable.message);
                if let Some(again) = unreadable.again {
                    self.look_again(again);
                }
            }
        }
        self.say_held();
        if !adopting {
            self.output();
        }
        if self.record.jobs.values().any(|job| !job.gone) {
            self.look.more(Look::Changes);
            self.say_tracked();
        }
        if self.known.phase == Phase::Completed {
            self.say_how_it_ended();
            self.leave();
        }
    }

    /// What the spec asks for.
    fn pursue(&mut self, spec: &Spec, sightings: &Sightings<'_>, adopting: bool) {
        let recorded: Indices = self.record.jobs.keys().copied().collect();
        self.tell_wishes();
        let doubt = self.withdraw(&self.wanted(spec).without(&recorded), sightings);
        self.claim_anew();
        self.limit_failures(spec);
        self.expire(spec);
        if self.known.cut_short.is_some() {
            if !spec.suspend {
                let kind = ConditionType::Suspended;
                self.conditions.clear(kind, Reason::Resumed.into(), "spec.suspend is false", self.now);
            }
            self.remove_extra(sightings);
            self.wind_up(spec, sightings);
            return;
        }
        self.remove_wished();
        self.prove_absent(spec, sightings);
        self.suspend(spec);
        self.say_quota(spec);
        self.remove_extra(sightings);
        let missing = self.wanted(spec).without(&recorded);
        let kept_back = self.kept_back();
        if missing.is_empty() || self.record.has_inherited() {
            self.say_accepted(adopting);
        } else if spec.refused.is_some() && self.is_still_the_go_operators() {
            self.say_inherited();
        } else if let (Some(SpecRefused { reason, message }), true) = (&spec.refused, self.record.attempts.is_empty()) {
            self.say(ConditionType::Submitted, False, *reason, message);
        } else if spec.suspend && self.record.attempts.is_empty() {
            let message = format!("{}: nothing is submitted", self.why_suspended());
            self.say(ConditionType::Submitted, False, Reason::Suspended, &message);
        } else if missing.iter().all(|index| kept_back.contains(index)) {
            self.say_kept_back(&missing, doubt.as_ref(), sightings);
        } else {
            let missing = self.with_room_or_tried(&missing.without(&kept_back));
            if missing.is_empty() {
                self.say_queued();
            } else {
                self.submit(spec, &missing, sightings);
            }
        }
    }

    /// The Go operator had it, and nothing was submitted of it since.
    fn is_still_the_go_operators(&self) -> bool {
        self.facts.object.inherited.is_some() && self.record.highest == Attempt::INHERITED
    }

    fn say_accepted(&mut self, adopting: bool) {
        if adopting {
            return;
        }
        if self.record.jobs.is_empty() {
            let message = "users removed all of the jobs before they were submitted";
            self.say(ConditionType::Submitted, False, Reason::Removed, message);
            return;
        }
        let message = format!("HTCondor has accepted {}", jobs(self.record.jobs.len()));
        self.say(ConditionType::Submitted, True, Reason::Accepted, &message);
    }

    /// An object that another ledger has claimed, once its jobs are known: with the claim its past counts as known, so the
    /// look must be younger than the wait for an earlier operator's submitter.
    fn claim_anew(&mut self) {
        if self.facts.object.claim == Claim::Ours {
            return;
        }
        let looked = match (&self.facts.evidence.queue, self.facts.past) {
            (Answer::Known(queue), past @ Past::Unknown { .. }) => judge::past_settled(past, queue, self.rules).is_ok(),
            (Answer::Known(_), Past::Continuous) | (Answer::Unknown(_), _) => false,
        };
        if looked {
            self.ask(Kind::AttachFinalizer, Work::AttachFinalizer);
        } else {
            self.look.more(Look::Every { history: self.history_once(), soon: false });
        }
    }

    /// `spec.suspend` is level-triggered: each look holds what is idle or running, or releases what we hold.
    fn suspend(&mut self, spec: &Spec) {
        if self.known.phase == Phase::Completed {
            // What was still to be held, or to be let go, has ended before it came to that.
            if self.conditions.is_true(ConditionType::Suspended) {
                let message = "every job has ended; none can be suspended";
                self.say(ConditionType::Suspended, False, Reason::JobsEnded, message);
            }
            return;
        }
        self.look_behind_holds();
        let states = || self.record.jobs.values().map(|job| &job.state);
        let loose = states().filter(|state| is_loose(state)).count();
        let ours = states().filter(|state| matches!(state, JobState::Held(hold) if hold.is_ours())).count();
        if spec.suspend {
            if let Some(request) = self.in_flight(Kind::Submit).filter(|request| !request.running) {
                self.action = Action::Cancel(request.key.clone());
            }
            let because = self.why_suspended();
            let message = match (loose, ours) {
                (0, 0) => format!("{because}: nothing is submitted"),
                (0, held) => format!("{because}: {} held", jobs(held)),
                (loose, _) => match self.failed(Kind::Hold) {
                    Some(why) => format!("{because}: {} cannot be held: {why}", jobs(loose)),
                    None => format!("{because}: {} being held", jobs(loose)),
                },
            };
            self.say(ConditionType::Suspended, True, Reason::Suspended, &message);
            if loose > 0 {
                self.ask_settled(Kind::Hold, Work::Hold);
            }
            self.release_wished(true);
        } else {
            if self.conditions.is_true(ConditionType::Suspended) && self.known.started.is_some() {
                // As in batch/v1: the deadline counts from here.
                self.known.started = Some(self.now);
            }
            let message = self.why_resumed();
            self.conditions.clear(ConditionType::Suspended, Reason::Resumed.into(), &message, self.now);
            self.hold_wished();
            self.release_wished(false);
        }
    }

    /// Why the last request of this kind came to nothing.
    fn failed(&self, kind: Kind) -> Option<&str> {
        self.record.requests.get(&kind)?.failure.as_ref().map(|failure| failure.message.as_str())
    }

    /// An answer from before the last hold or release shows what is no longer so: when `spec.suspend` has changed meanwhile,
    /// nothing else would ask again before the usual interval.
    pub(super) fn look_behind_holds(&mut self) {
        let facts = self.facts;
        let requests = [Kind::Hold, Kind::Release].into_iter().filter_map(|kind| self.record.requests.get(&kind));
        let last = requests.map(LastRequest::latest).max();
        if let (Some(last), Answer::Known(queue)) = (last, &facts.evidence.queue)
            && queue.asked_at <= last
        {
            self.watch_closely(last);
        }
    }

    /// Asks for a hold or release, but only on an answer that is younger than the last one of its kind.
    pub(super) fn ask_settled(&mut self, kind: Kind, work: Work) {
        let last = self.record.requests.get(&kind).map(LastRequest::latest);
        let fresh = match (&self.facts.evidence.queue, last) {
            (Answer::Known(queue), Some(last)) => queue.asked_at > last,
            (Answer::Known(_), None) => true,
            (Answer::Unknown(_), _) => false,
        };
        if fresh {
            self.ask_after_pause(kind, work);
        } else {
            self.watch_closely(last.unwrap_or(self.now));
        }
    }

    /// Late jobs and duplicates never count and are not kept.
    fn remove_extra(&mut self, sightings: &Sightings<'_>) {
        let kept = |index: Index| self.record.jobs.get(&index).map(|job| job.id);
        let extra: Vec<JobId> = sightings
            .iter()
            .filter(|(index, sighting)| {
                let surplus = sighting.acceptance == Acceptance::Accepted && kept(*index) != Some(sighting.ad.id);
                sighting.place == SeenIn::Queue
                    && sighting.ad.status != JobStatus::Removed
                    && (surplus || sighting.acceptance == Acceptance::Late)
            })
            .map(|(_, sighting)| sighting.ad.id)
            .take(AT_ONCE)
            .collect();
        if !extra.is_empty() && self.rules.remove_extra {
            self.look.more(Look::Every { history: None, soon: false });
            self.ask_settled(Kind::Remove, Work::Remove(Scope::Extra(extra)));
        }
    }

    /// Judges what was tried and submits what is missing.
    fn submit(&mut self, spec: &Spec, missing: &Indices, sightings: &Sightings<'_>) {
        if let Some(request) = self.in_flight(Kind::Submit) {
            if self.record.attempts.iter().any(|attempt| attempt.attempt != request.key.attempt) {
                // Jobs of the steps before are being accepted meanwhile.
                self.look.more(Look::Changes);
            }
            self.say_submitting(missing);
            return;
        }
        let facts = self.facts;
        if let Err(doubt @ Doubt::Inherited(_)) = all_recorded(&facts.object, &self.record, self.rules) {
            let (reason, message) = self.dispel(&doubt, self.now);
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
        if !self.record.attempts.is_empty() || !matches!(permit, Ok(SubmitPermit::First(_))) {
            // Jobs of what was tried may still be accepted. And the answer is kept for as long as it is gone by: thrown
            // away, it would be asked for again at each pass, and each pass would say something else.
            self.look.more(Look::Changes);
        }
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

    fn submit_after_pause(&mut self, indices: Indices, missing: &Indices, permit: SubmitPermit) {
        // What was never tried goes at once behind what is being accepted.
        let failures = if matches!(permit, SubmitPermit::First(_)) { self.refused() } else { self.record.refused };
        let after_refusal = self.record.attempts.last().map(|last| last.intent_at.plus(self.settings.pause(failures)));
        let last = self.record.requests.get(&Kind::Submit);
        let after_failure = last.map(|last| last.latest().plus(self.settings.pause(last.failures)));
        let wait =
            after_refusal.into_iter().chain(after_failure).max().map_or(Duration::ZERO, |until| until.since(self.now));
        let refusal = self.record.attempts.iter().rev().find_map(|attempt| attempt.refusal.clone());
        match (last.and_then(|last| last.failure.clone()), refusal) {
            (Some(failure), _) => self.say_failure(ConditionType::Submitted, &failure),
            (None, Some(refusal)) => {
                let message = format!(
                    "condor_submit failed: {refusal}; retrying with growing pauses. If the schedd refuses permanently, create a corrected HTCJob"
                );
                self.say(ConditionType::Submitted, False, Reason::SubmitRefused, &message);
            }
            (None, None) => self.say_submitting(missing),
        }
        if wait.is_zero() {
            self.ask(Kind::Submit, Work::Submit(indices, permit));
        } else {
            self.look_again(wait);
        }
    }

    /// How many of these jobs may go, beside those that HTCondor has or may have, and by what the others are kept back. `free`: proved
    /// not to be there.
    fn places(&self, spec: &Spec, candidates: &Indices, free: &Indices) -> (usize, Reason) {
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
    fn keep_back(&mut self, spec: &Spec, reason: Reason) {
        if reason == Reason::Queued {
            self.say_queued();
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
    fn refused(&self) -> u32 {
        let last = self.record.attempts.iter().rev().take_while(|attempt| attempt.refusal.is_some());
        u32::try_from(last.count()).unwrap_or(u32::MAX)
    }

    /// What the schedd refuses it may take in parts, whatever it says. Parts that it takes stay as small while what it has
    /// refused is to go again.
    fn most_at_once(&self) -> usize {
        let attempts = &self.record.attempts;
        let part = match attempts.last() {
            Some(last) if last.refusal.is_some() => (last.indices.len() / PARTS).max(1),
            Some(last) if attempts.iter().any(|attempt| attempt.refusal.is_some()) => last.indices.len().max(1),
            Some(_) | None => usize::MAX,
        };
        part.min(self.settings.jobs_per_attempt)
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
        let since = self.record.attempts.iter().map(|attempt| attempt.dead_since.unwrap_or(attempt.intent_at)).max();
        let (mut reason, mut message) = self.dispel(doubt, since.unwrap_or(self.now));
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

    fn say_held(&mut self) {
        if let Some((held, id, Hold { code, reason, .. })) = held_by_others(&self.record) {
            let code = *code;
            let what_to_do = if code == Hold::OUTPUT_TOO_LARGE {
                "its output is larger than the operator's --output-limit: delete the HTCJob and create one with less output"
            } else {
                "release held jobs with kubectl htc release or condor_release"
            };
            let message = format!("{held} of {} held; {id}: {reason}; {what_to_do}", jobs(self.record.jobs.len()));
            self.say(ConditionType::Held, True, Reason::JobsHeld, &message);
        } else {
            self.conditions.clear(ConditionType::Held, Reason::NotHeld.into(), "no job is held by HTCondor", self.now);
        }
    }

    /// Fetches output and lets jobs leave the queue.
    fn output(&mut self) {
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
            let message = format!("the output of {} is in {folder}{}", jobs(with_output), self.says_how_long_kept());
            self.say(ConditionType::OutputFetched, True, Reason::Fetched, &message);
        }
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
