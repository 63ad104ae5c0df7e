//! Doubts: what to ask HTCondor to resolve them, and which condition to set meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Decider, IDS_IN_MESSAGE, Polling};
use crate::annotations::{ABANDON_ANNOTATION, SUBMIT_AGAIN_ANNOTATION};
use crate::condition::ConditionStatus::{False, True};
use crate::condition::ConditionType::Tracked;
use crate::condition::Reason;
use crate::facts::{Answer, HistoryReach, Past, QueryError, QueryErrorKind, Spec, Witness};
use crate::ids::{Attempt, Index, id_ranges};
use crate::indices::Indices;
use crate::judge;
use crate::judge::{Doubt, ProvenNeverAccepted, Sightings};

impl Decider<'_> {
    /// Returns how far back history must reach to show what became of the missing jobs.
    pub(super) fn reach(&self) -> HistoryReach {
        // Of wholly accepted attempts only their recorded jobs can be missing.
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
        HistoryReach { witnesses, date: unwitnessed.then_some(self.facts.object.created) }
    }

    /// Returns the reach for a query of history, unless history has answered since the queue's birthdate is steady.
    /// For a caller that waits for a younger answer of the queue, and must see each one: so history is asked only once.
    pub(super) fn history_once(&self) -> Option<HistoryReach> {
        let answered = match (&self.facts.evidence.queue, &self.facts.evidence.history) {
            (Answer::Known(queue), Answer::Known(history)) => history.asked_at > queue.steady_since,
            (Answer::Known(_) | Answer::Unknown(_), _) => false,
        };
        (!answered).then(|| self.reach())
    }

    /// Whether jobs are missing for which another ledger may have had an intent.
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

    /// Proves from the current facts that these jobs were never accepted.
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

    /// Polls for what resolves a doubt. Returns the reason and the message for a condition.
    pub(super) fn resolve_doubt(&mut self, doubt: &Doubt) -> (Reason, String) {
        let reach = Some(self.reach());
        let (history, urgent, reason, message) = match doubt {
            Doubt::NotAdopted => return (Reason::LegacyJobsUnknown, self.not_adopted()),
            Doubt::NotAskedSince | Doubt::Unanswered(QueryError { kind: QueryErrorKind::NotAsked, .. }) => {
                (None, true, Reason::QueryingHTCondor, "asking HTCondor about the jobs".to_owned())
            }
            // History is not asked yet: it would have to be asked again after the next answer of the queue.
            Doubt::SeenOnce => {
                (None, true, Reason::QueryingHTCondor, "asking HTCondor about the jobs again".to_owned())
            }
            Doubt::HistoryNotAsked => {
                (reach, false, Reason::QueryingHTCondor, "searching HTCondor's history for the jobs".to_owned())
            }
            Doubt::Unanswered(unknown) => {
                // If the queue has answered, it is history that has not.
                let history = reach.filter(|_| matches!(self.facts.evidence.queue, Answer::Known(_)));
                (history, false, unknown.kind.into(), unknown.message.clone())
            }
            Doubt::SubmitterMayLive(until) => {
                // The attempt's jobs may be accepted meanwhile, and the proof needs an answer from after that time.
                let message = "a condor_submit of this HTCJob may still be running; waiting for its time limit";
                (None, self.is_due(*until), Reason::SubmitterMayLive, message.to_owned())
            }
            Doubt::PastUnknown => {
                let message = "an operator with another ledger handled this HTCJob; before anything is submitted, the operator waits for jobs that may still arrive and looks for them";
                (self.history_once(), false, Reason::PastUnknown, message.to_owned())
            }
            Doubt::Present(ids) => {
                let message = format!("HTCondor still has {}", id_ranges(ids, IDS_IN_MESSAGE));
                (None, true, Reason::JobsPresent, message)
            }
            Doubt::HistoryTooShort => {
                let message = format!(
                    "HTCondor's history does not reach back far enough to show what happened to the jobs; if you know that they never ran, annotate the HTCJob with {SUBMIT_AGAIN_ANNOTATION}=true to submit them again"
                );
                (reach, false, Reason::HistoryTooShort, message)
            }
            Doubt::BirthdateChanged => {
                let next = if self.settings.birthdate_steady == Duration::MAX {
                    format!(
                        "Check which schedd the HTCPool reaches; if the queue is lost, delete the HTCJob with the annotation {ABANDON_ANNOTATION}=true"
                    )
                } else {
                    "Check which schedd has the name; after a lost queue the operator recovers by itself".to_owned()
                };
                let message = format!(
                    "the schedd's JobQueueBirthdate changed since the jobs were submitted: the schedd lost its queue, or another schedd answers under its name. {next}"
                );
                (self.history_once(), false, Reason::AnotherSchedd, message)
            }
            Doubt::QueueLost => {
                let message = format!(
                    "the schedd lost its queue while the jobs were being submitted, so it is unknown whether they ran; if you know that they did not, annotate the HTCJob with {SUBMIT_AGAIN_ANNOTATION}=true to submit them again"
                );
                (reach, false, Reason::QueueLost, message)
            }
            Doubt::PublishedJobs => {
                let message = "the status lists jobs that are in neither HTCondor's queue nor its history; they are not submitted again. Create a new HTCJob to run them again";
                (reach, false, Reason::JobsLost, message.to_owned())
            }
        };
        self.details.polling.raise(Polling::Always { history, urgent });
        (reason, message)
    }

    /// Sets `Tracked`: whether the status is up to date. Set only while the status shows something that HTCondor can
    /// change.
    ///
    /// Damped, so that an outage is one Event, and a query that fails now and then is none.
    /// False after a silence of `Settings::silence`, True after two answers.
    /// `doubt`: why the fate of some recorded job is not known.
    pub(super) fn set_tracked_condition(&mut self, doubt: Option<Doubt>) {
        let facts = self.facts;
        let told = self.conditions.get(Tracked);
        let told = told.is_some_and(|told| told.status == False);
        match (&facts.evidence.queue, doubt) {
            (Answer::Unknown(unknown), _) if unknown.kind != QueryErrorKind::NotAsked => {
                let until = facts.silent_since.map(|since| since.plus(self.settings.silence));
                let wait = until.map_or(Duration::ZERO, |until| until.since(self.now));
                if told {
                    let reason = Reason::from(unknown.kind);
                    self.conditions.reword(Tracked, reason.into(), &unknown.message);
                } else if wait.is_zero() {
                    self.set_condition(Tracked, False, unknown.kind.into(), &unknown.message);
                } else {
                    self.requeue_within(wait);
                }
            }
            (Answer::Known(_), Some(doubt)) => {
                let (reason, message) = self.resolve_doubt(&doubt);
                let message = if doubt == Doubt::HistoryTooShort {
                    "jobs have left HTCondor's queue, and its history does not reach back far enough to show how they ended; delete the HTCJob when you no longer need it".to_owned()
                } else {
                    message
                };
                if reason != Reason::QueryingHTCondor {
                    self.set_condition(Tracked, False, reason, &message);
                }
            }
            (Answer::Known(queue), None) if told => {
                if queue.before.is_some() {
                    self.set_condition(Tracked, True, Reason::Tracking, "HTCondor answers again");
                } else {
                    self.details.polling.raise(Polling::Always { history: None, urgent: false });
                }
            }
            (Answer::Known(_), None) | (Answer::Unknown(_), _) => {}
        }
    }
}
