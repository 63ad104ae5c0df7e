//! Objects that are not being deleted: what is to be done about them next.

use super::wishes::is_loose;
use super::{Look, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::decide::Action;
use crate::machine::facts::{Answer, Claim, Hold, JobState, JobStatus, LastRequest, Past, Queued, Spec, SpecRefused};
use crate::machine::ids::{Attempt, Index, JobId, Kind};
use crate::machine::indices::Indices;
use crate::machine::judge::{self, Acceptance, SeenIn, Sightings};
use crate::machine::phase::Phase;
use crate::machine::request::{Scope, Work};
use crate::machine::status::{held_by_others, jobs};

use ConditionStatus::{False, True};

/// Most jobs of which something is wanted at once that is no submission: their output, or that they leave.
pub(super) const AT_ONCE: usize = 2000;

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
        self.look_behind_removals();
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
        self.keep_queue();
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
        let missing = self.wanted(spec).without(&recorded);
        let kept_back = self.kept_back();
        self.prove_absent(spec, sightings);
        self.find_use_of_room(spec, &missing.without(&kept_back), sightings);
        self.suspend(spec);
        self.say_quota(spec);
        self.remove_extra(sightings);
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
            let missing = if self.awaits_schedd() { missing.without(&self.fresh(&missing)) } else { missing };
            if missing.is_empty() {
                self.say_no_room(spec);
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
            // Where it is not known whether the queue holds it, what was said stays.
            if !self.facts.queue.as_ref().is_some_and(Queued::is_unknown) {
                if self.conditions.is_true(ConditionType::Suspended) && self.known.started.is_some() {
                    // As in batch/v1: the deadline counts from here.
                    self.known.started = Some(self.now);
                }
                let message = self.why_resumed();
                self.conditions.clear(ConditionType::Suspended, Reason::Resumed.into(), &message, self.now);
            }
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
            self.await_effect();
        }
    }

    /// A job that is being removed leaves the queue soon, and only a look at the queue shows that it has left.
    fn look_behind_removals(&mut self) {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return };
        let last = self.record.requests.get(&Kind::Remove).map(LastRequest::latest);
        let leaving = queue.ads.iter().any(|ad| ad.status == JobStatus::Removed);
        if leaving || last.is_some_and(|last| queue.asked_at <= last && self.record.jobs.values().any(|job| !job.gone))
        {
            self.await_effect();
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
            self.await_effect();
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
}
