//! What is not known: what to ask HTCondor, and what to say meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Look, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{Answer, Past, Reach, Spec, Why, Witness};
use crate::machine::ids::{Attempt, Index, id_ranges};
use crate::machine::indices::Indices;
use crate::machine::judge::{self, Doubt, ProvenNeverAccepted, Sightings};

impl Run<'_> {
    /// How far back history must reach to say what became of what is missing.
    pub(super) fn reach(&self) -> Reach {
        // What has all been accepted has nothing missing but its jobs.
        let open = self.record.attempts.iter().filter(|attempt| judge::is_open(attempt, &self.record, self.rules));
        let open = open.map(|attempt| attempt.attempt);
        let live = self.record.jobs.values().filter(|job| job.outcome().is_none()).map(|job| job.attempt);
        let attempts: BTreeSet<Attempt> = open.chain(live).collect();
        let witnesses = attempts
            .iter()
            .filter_map(|attempt| match self.record.witnesses.get(attempt) {
                Some(Witness::Newest(id)) => Some(id.clone()),
                Some(Witness::Empty) | None => None,
            })
            .collect();
        let unwitnessed = (attempts.is_empty() && self.record.attempts.is_empty())
            || attempts.iter().any(|attempt| !self.record.witnesses.contains_key(attempt))
            || self.intents_may_be_unknown();
        Reach { witnesses, date: unwitnessed.then_some(self.facts.object.created) }
    }

    /// What history has is of interest, but it is the age of the queue's answer that is waited for: each must be shown, so
    /// history is asked only once.
    pub(super) fn history_once(&self) -> Option<Reach> {
        let answered = match (&self.facts.evidence.queue, &self.facts.evidence.history) {
            (Answer::Known(queue), Answer::Known(history)) => history.asked_at > queue.steady_since,
            (Answer::Known(_) | Answer::Unknown(_), _) => false,
        };
        (!answered).then(|| self.reach())
    }

    /// Whether jobs are missing that another ledger may have had an intent of.
    pub(super) fn intents_may_be_unknown(&self) -> bool {
        let new = self.known.new && self.facts.past == Past::Continuous;
        let tried: Vec<Indices> = self.record.attempts.iter().map(|attempt| attempt.indices.clone()).collect();
        let tried = Indices::union(&tried);
        let accounted_for = |index: Index| {
            self.record.jobs.contains_key(&index)
                || (new && !self.record.attempted.contains(index))
                || tried.contains(index)
        };
        let asked_for = self.facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
        asked_for.iter().any(|index| !accounted_for(index))
    }

    /// Proves it by what is known now.
    pub(super) fn prove_never_accepted(
        &self,
        indices: &Indices,
        sightings: &Sightings<'_>,
    ) -> Result<ProvenNeverAccepted, Doubt> {
        let facts = self.facts;
        judge::prove_never_accepted(
            &facts.object,
            &self.record,
            facts.past,
            indices,
            &facts.evidence,
            sightings,
            self.settings,
            self.rules,
        )
    }

    /// What to do, and to say, about a doubt: the condition's reason and message.
    pub(super) fn dispel(&mut self, doubt: &Doubt) -> (Reason, String) {
        let history = Some(self.reach());
        match doubt {
            Doubt::NotAskedSince => {
                self.await_effect();
                (Reason::Asking, "asking HTCondor about the jobs".to_owned())
            }
            Doubt::SeenOnce => {
                // Without history: it would have to be asked again after the next answer.
                self.look.more(Look::Every { history: None, soon: true });
                (Reason::Asking, "asking HTCondor about the jobs again".to_owned())
            }
            Doubt::HistoryNotAsked => {
                self.look.more(Look::Every { history, soon: false });
                (Reason::Asking, "searching HTCondor's history for the jobs".to_owned())
            }
            Doubt::Unanswered(unknown) if unknown.why == Why::NotAsked => {
                self.look.more(Look::Every { history: None, soon: true });
                (Reason::Asking, "asking HTCondor about the jobs".to_owned())
            }
            Doubt::Unanswered(unknown) => {
                // Where the queue has answered, it is history that has not.
                let history = history.filter(|_| matches!(self.facts.evidence.queue, Answer::Known(_)));
                self.look.more(Look::Every { history, soon: false });
                (unknown.why.into(), unknown.message.clone())
            }
            Doubt::SubmitterMayLive(until) => {
                // Its jobs may be accepted meanwhile; and the proof needs an answer from after that time.
                if *until > self.now {
                    self.look.more(Look::Every { history: None, soon: false });
                    self.look_again(until.since(self.now));
                } else {
                    self.await_effect();
                }
                (
                    Reason::SubmitterMayLive,
                    "a condor_submit of this HTCJob may still be running; waiting for its time limit".to_owned(),
                )
            }
            Doubt::PastUnknown => {
                self.look.more(Look::Every { history: self.history_once(), soon: false });
                (Reason::PastUnknown, "an operator with another ledger handled this HTCJob; before anything is submitted, the operator waits for jobs that may still arrive and looks for them".to_owned())
            }
            Doubt::Present(ids) => {
                self.await_effect();
                (Reason::JobsPresent, format!("HTCondor still has {}", id_ranges(ids, 512)))
            }
            Doubt::HistoryTooShort => {
                self.look.more(Look::Every { history, soon: false });
                (
                    Reason::HistoryTooShort,
                    format!(
                        "HTCondor's history does not reach back far enough to show what happened to the jobs; if you know that they never ran, annotate the HTCJob with {}=true to submit them again",
                        crate::api::SUBMIT_AGAIN
                    ),
                )
            }
            Doubt::BirthdateChanged => {
                self.look.more(Look::Every { history: self.history_once(), soon: false });
                let next = if self.settings.birthdate_steady == Duration::MAX {
                    format!(
                        "Check which schedd the HTCPool reaches; if the queue is lost, delete the HTCJob with the annotation {}=true",
                        crate::api::ABANDON
                    )
                } else {
                    "Check which schedd has the name; after a lost queue the operator recovers by itself".to_owned()
                };
                (
                    Reason::AnotherSchedd,
                    format!(
                        "the schedd's JobQueueBirthdate changed since the jobs were submitted: the schedd lost its queue, or another schedd answers under its name. {next}"
                    ),
                )
            }
            Doubt::QueueLost => {
                self.look.more(Look::Every { history, soon: false });
                (
                    Reason::QueueLost,
                    format!(
                        "the schedd lost its queue while the jobs were being submitted, so it is unknown whether they ran; if you know that they did not, annotate the HTCJob with {}=true to submit them again",
                        crate::api::SUBMIT_AGAIN
                    ),
                )
            }
            Doubt::NotAdopted => {
                self.look.more(Look::Every { history: None, soon: true });
                (Reason::Adopting, "asking HTCondor about the jobs that the Go operator submitted".to_owned())
            }
            Doubt::Inherited(why) => (Reason::GoOperator, self.inherited_unclear(why)),
            Doubt::PublishedJobs => {
                self.look.more(Look::Every { history, soon: false });
                (Reason::Lost, "the status lists jobs that are in neither HTCondor's queue nor its history; they are not submitted again. Create a new HTCJob to run them again".to_owned())
            }
        }
    }

    /// Says whether what is shown can be trusted: only while something is shown that HTCondor can change.
    ///
    /// Damped, so that an outage is one Event and a question that fails now and then is none: False after a silence, True after
    /// two answers.
    pub(super) fn say_tracked(&mut self) {
        let facts = self.facts;
        let told = self.conditions.get(ConditionType::Tracked);
        let told = told.is_some_and(|told| told.status == ConditionStatus::False);
        match (&facts.evidence.queue, self.doubt.take()) {
            (Answer::Unknown(unknown), _) if unknown.why != Why::NotAsked => {
                let until = facts.silent_since.map(|since| since.plus(self.settings.silence));
                let wait = until.map_or(Duration::ZERO, |until| until.since(self.now));
                if told {
                    let reason = Reason::from(unknown.why);
                    self.conditions.reword(ConditionType::Tracked, reason.into(), &unknown.message);
                } else if wait.is_zero() {
                    self.say(ConditionType::Tracked, ConditionStatus::False, unknown.why.into(), &unknown.message);
                } else {
                    self.look_again(wait);
                }
            }
            (Answer::Known(_), Some(doubt)) => {
                let (reason, message) = self.dispel(&doubt);
                let message = if doubt == Doubt::HistoryTooShort {
                    "jobs have left HTCondor's queue, and its history does not reach back far enough to show how they ended; delete the HTCJob when you no longer need it".to_owned()
                } else {
                    message
                };
                if reason != Reason::Asking {
                    self.say(ConditionType::Tracked, ConditionStatus::False, reason, &message);
                }
            }
            (Answer::Known(queue), None) if told => {
                if queue.before.is_some() {
                    self.say(ConditionType::Tracked, ConditionStatus::True, Reason::Tracking, "HTCondor answers again");
                } else {
                    self.look.more(Look::Every { history: None, soon: false });
                }
            }
            (Answer::Known(_), None) | (Answer::Unknown(_), _) => {}
        }
    }
}
