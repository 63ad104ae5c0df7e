//! Jobs of the Go operator: recorded as soon as HTCondor answers, made this operator's own where they are in the queue, and
//! never submitted again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Look, Run};
use crate::api::{ABANDON, ConditionStatus, ConditionType, Reason, SUBMIT_AGAIN};
use crate::machine::facts::{Ad, Answer, Job, JobState, Queue, Spec};
use crate::machine::ids::{Attempt, Kind, id_ranges};
use crate::machine::inherited::{Inherited, InheritedJob};
use crate::machine::judge::{Doubt, Sightings, all_recorded};
use crate::machine::outcome::Outcome;
use crate::machine::request::Work;
use crate::machine::status::{Counts, jobs};
use crate::machine::transitions::Notice;

/// Most bytes of ids in one message.
const IDS: usize = 512;

impl Run<'_> {
    /// Records the jobs that the Go operator submitted. How one ended that it counted as ended is its word: HTCondor's is
    /// that all its jobs end with 0. How the others are doing is HTCondor's.
    pub(super) fn inherit(&mut self, queue: &Queue, sightings: &Sightings<'_>) {
        let Some(Inherited::Jobs(list)) = &self.facts.object.inherited else { return };
        // Submitted anew since: a person has said that there are none.
        if self.record.highest > Attempt::INHERITED {
            return;
        }
        let before = self.record.jobs.len();
        for inherited in list.iter() {
            if self.record.jobs.contains_key(&inherited.index) {
                continue;
            }
            let mut its = sightings.of(inherited.index).iter().map(|sighting| sighting.ad);
            let ad = its.find(|ad| ad.id == inherited.id && ad.attempt == Attempt::INHERITED);
            if ad.is_none() {
                self.doubt = Some(Doubt::NotAskedSince);
            }
            let job = self.inherited_job(inherited, queue, ad);
            self.record.jobs.insert(inherited.index, job);
            self.changed.insert(inherited.index);
        }
        if self.record.jobs.len() > before {
            self.tell_adopted(self.record.jobs.len() - before);
        }
    }

    fn inherited_job(&self, inherited: &InheritedJob, queue: &Queue, ad: Option<&Ad>) -> Job {
        let state = match (&inherited.outcome, ad) {
            (Some(outcome), _) => JobState::Ended(outcome.clone()),
            (None, Some(ad)) => super::absorb::state_of(ad),
            (None, None) => JobState::Idle,
        };
        Job {
            id: inherited.id,
            attempt: Attempt::INHERITED,
            birthdate: queue.birthdate,
            recorded: self.now,
            staged_in: ad.and_then(|ad| ad.staged_in).unwrap_or(self.facts.object.created),
            started: inherited.outcome.is_some() || ad.is_some_and(|ad| ad.started),
            state,
            fetched: inherited.fetched,
            gone: false,
            runs: ad.map(|ad| ad.runs.clone()).unwrap_or_default(),
        }
    }

    fn tell_adopted(&mut self, adopted: usize) {
        let counts = Counts::of(&self.record);
        let mut detail = format!("{} that the Go operator submitted: {}", jobs(adopted), self.ids());
        if counts.active > 0 {
            detail.push_str(
                "; those that have not ended are followed by what HTCondor says, which is that jobs of the Go operator exit with 0 even if their payload failed: look into their output",
            );
        }
        self.tell_condition(Notice::Adopted.to_string(), detail, false);
    }

    /// Has jobs of the Go operator that are in the queue made this operator's own; whether any are still to be.
    pub(super) fn adopt(&mut self, condition: ConditionType) -> bool {
        let Some(Inherited::Jobs(theirs)) = &self.facts.object.inherited else { return false };
        if !self.record.has_inherited() && self.record.highest == Attempt::INHERITED {
            self.look.more(Look::Every { history: None, soon: true });
        }
        let queued =
            self.facts.evidence.queued().iter().filter(|ad| !ad.marked).map(|ad| ad.id).collect::<BTreeSet<_>>();
        let foreign: Vec<InheritedJob> = theirs.iter().filter(|job| queued.contains(&job.id)).cloned().collect();
        let last = self.record.requests.get(&Kind::Adopt);
        if foreign.is_empty() {
            return false;
        }
        let ids: Vec<_> = foreign.iter().map(|job| job.id).collect();
        if let Some(failure) = last.and_then(|last| last.failure.clone()) {
            self.say_failure(condition, &failure);
        } else {
            let message = format!("jobs of the Go operator are being adopted: {}", id_ranges(&ids, IDS));
            self.say(condition, ConditionStatus::False, Reason::Adopting, &message);
        }
        self.ask_settled(Kind::Adopt, Work::Adopt(Arc::from(foreign)));
        true
    }

    /// What is waited for where the Go operator had the object, and none of its jobs is recorded.
    pub(super) fn say_inherited(&mut self) {
        let doubt = match (all_recorded(&self.facts.object, &self.record, self.rules), &self.facts.evidence.queue) {
            (Err(Doubt::NotAdopted) | Ok(()), Answer::Unknown(unknown)) => Doubt::Unanswered(unknown.clone()),
            (Ok(()), Answer::Known(_)) => Doubt::NotAdopted,
            (Err(doubt), _) => doubt,
        };
        let (reason, message) = self.dispel(&doubt);
        self.say(ConditionType::Submitted, ConditionStatus::False, reason, &message);
    }

    /// How many jobs the object is to have; as many as there are where the Go operator submitted them.
    pub(super) fn asked_for(&self) -> usize {
        if self.record.has_inherited() {
            return self.record.jobs.len();
        }
        self.facts.object.spec.as_ref().map_or(usize::MAX, Spec::count)
    }

    /// What to say where nobody knows which jobs the Go operator submitted.
    pub(super) fn inherited_unclear(&self, why: &str) -> String {
        if self.facts.object.deleting {
            format!(
                "the Go operator had this HTCJob: {why}; look for its jobs in HTCondor (JOB_NAME is in their Environment), remove them, and annotate the HTCJob with {ABANDON}=true"
            )
        } else if self.facts.object.published.shows_jobs() {
            format!(
                "the Go operator had this HTCJob: {why}; nothing is submitted again. Create a new HTCJob to run its jobs again"
            )
        } else {
            format!(
                "the Go operator had this HTCJob: {why}; nothing is submitted again; annotate it with {SUBMIT_AGAIN}=true if you know that its jobs never ran, or delete it"
            )
        }
    }

    /// Whether this end was told by the Go operator, so that HTCondor's word on it no longer counts.
    pub(super) fn told_before(job: &Job) -> bool {
        job.attempt == Attempt::INHERITED && matches!(job.outcome(), Some(Outcome::Succeeded | Outcome::FailedBefore))
    }
}
