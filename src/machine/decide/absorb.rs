//! HTCondor's answers into the record, and the phases that follow from it.

use super::Run;
use crate::machine::facts::{Ad, Answer, Hold, Job, JobState, JobStatus, Queue, Spec};
use crate::machine::ids::{Index, JobId, SchedDate, id_ranges};
use crate::machine::judge::{self, Acceptance, Doubt, SeenIn, Sighting, Sightings};
use crate::machine::outcome::{Loss, Outcome};
use crate::machine::phase::Phase;
use crate::machine::status::{Counts, ending, jobs};
use crate::machine::transitions::Trigger;

/// Most bytes of job ids in one message.
const IDS_IN_MESSAGE: usize = 512;

impl Run<'_> {
    /// Brings the rows of the accepted jobs up to date and records jobs that have been accepted since.
    pub(super) fn absorb(&mut self, sightings: &Sightings<'_>) {
        let facts = self.facts;
        let Answer::Known(queue) = &facts.evidence.queue else {
            return;
        };
        let recorded: Vec<Index> =
            self.record.jobs.iter().filter(|(_, job)| !job.gone).map(|(index, _)| *index).collect();
        for index in recorded {
            self.update(index, queue, sightings.of(index));
        }
        self.inherit(queue, sightings);
        self.record_accepted(queue, sightings);
    }

    fn update(&mut self, index: Index, queue: &Queue, seen: &[Sighting<'_>]) {
        let Some(job) = self.record.jobs.get(&index) else {
            return;
        };
        // After a queue reset the ids begin anew: the same number is then another job.
        let same = |sighting: &&Sighting<'_>| {
            let ad = sighting.ad;
            ad.id == job.id
                && ad.attempt == job.attempt
                && (sighting.place == SeenIn::History || queue.birthdate == job.birthdate)
        };
        let mut updated = job.clone();
        match seen.iter().find(same) {
            Some(sighting) => {
                updated.started |= sighting.ad.started;
                updated.runs = sighting.ad.runs.clone();
                let state = state_of(sighting.ad);
                let over = sighting.place == SeenIn::History;
                let reopened =
                    state_is_open(&state) && self.known.phase < Phase::Completed && !over && !Self::told_before(job);
                if job.outcome().is_none() || reopened {
                    self.ran_again += usize::from(job.outcome().is_some());
                    updated.state = state;
                }
                // 25.14 lets a job go once its output was fetched: by us, even if a crash kept us from writing it down.
                // What was fetched and refused goes as well.
                let kept = !self.record.refusals.contains_key(&index);
                updated.fetched |= over && sighting.ad.staged_out.is_some() && job.has_output() && kept;
                updated.gone = over && updated.outcome().is_some();
            }
            None if job.outcome().is_some() => match self.has_left(job, queue) {
                Ok(()) => updated.gone = judge::birthdate_agrees(queue, job.birthdate, self.settings, self.rules),
                Err(doubt) => self.doubt = Some(doubt),
            },
            None => match judge::is_lost(job, &self.record, &self.facts.evidence, seen, self.settings, self.rules) {
                Ok(loss) => {
                    updated.state = JobState::Ended(Outcome::Lost(loss));
                    updated.gone = true;
                }
                Err(doubt) => self.doubt = Some(doubt),
            },
        }
        if updated != *job {
            self.record.jobs.insert(index, updated);
            self.changed.insert(index);
        }
    }

    /// Whether a job that has ended has left the queue, as history can say whose output is not here.
    fn has_left(&self, job: &Job, queue: &Queue) -> Result<(), Doubt> {
        judge::has_left(job, queue, self.rules)?;
        if job.has_output() && !self.history_answered(queue) { Err(Doubt::HistoryNotAsked) } else { Ok(()) }
    }

    /// Whether history was asked after this answer of the queue.
    fn history_answered(&self, queue: &Queue) -> bool {
        matches!(&self.facts.evidence.history, Answer::Known(history) if history.asked_at > queue.asked_at)
    }

    fn record_accepted(&mut self, queue: &Queue, sightings: &Sightings<'_>) {
        let asked_for = self.facts.object.spec.as_ref().ok().map(Spec::asked_for);
        let withdrawn = self.record.wishes.withdrawn();
        let is_asked_for =
            |index| asked_for.as_ref().is_none_or(|asked_for| asked_for.contains(index)) && !withdrawn.contains(index);
        let mut accepted: Vec<(Index, Job)> = Vec::new();
        for (index, sighting) in sightings.iter() {
            let first = accepted.last().is_none_or(|(last, _)| *last != index);
            let new = first && is_asked_for(index) && !self.record.jobs.contains_key(&index);
            if new && judge::counts(sighting.acceptance) {
                accepted.push((index, self.accept(queue, sighting)));
            }
        }
        self.new_jobs = accepted.len();
        for (index, job) in accepted {
            self.record.jobs.insert(index, job);
            self.changed.insert(index);
        }
    }

    fn accept(&self, queue: &Queue, sighting: &Sighting<'_>) -> Job {
        let ad = sighting.ad;
        let removed = sighting.acceptance == Acceptance::RemovedByOthers;
        let state = if removed { JobState::Ended(judge::removed(ad)) } else { state_of(ad) };
        let over = sighting.place == SeenIn::History;
        Job {
            id: ad.id,
            attempt: ad.attempt,
            birthdate: queue.birthdate,
            recorded: self.now,
            staged_in: ad.staged_in.unwrap_or(SchedDate(0)),
            started: ad.started,
            // By an operator whose ledger is lost.
            fetched: over && ad.staged_out.is_some() && state.left_output(),
            gone: over && !state_is_open(&state),
            runs: ad.runs.clone(),
            state,
        }
    }

    /// Moves through the phases as far as the record goes.
    pub(super) fn advance(&mut self) {
        let asked_for = self.asked_for();
        if self.known.phase == Phase::Pending && !self.record.jobs.is_empty() {
            self.known.started = Some(self.now);
            let detail = if self.record.has_inherited() {
                format!("HTCondor had accepted {} of the Go operator: {}", jobs(self.record.jobs.len()), self.ids())
            } else {
                format!("HTCondor accepted {}: {}", jobs(self.record.jobs.len()), self.ids())
            };
            self.go(Trigger::Accepted, Phase::Submitted, detail, false);
        } else if self.new_jobs > 0
            && self.record.jobs.len() + self.record.wishes.withdrawn().len() >= asked_for
            && matches!(self.known.phase, Phase::Submitted | Phase::Running)
        {
            let phase = self.known.phase;
            let detail = format!("HTCondor accepted all {}: {}", jobs(self.record.jobs.len()), self.ids());
            self.tell(Some(phase), Trigger::AllAccepted, Some(phase), detail, false);
        }
        if self.known.phase == Phase::Submitted && self.record.jobs.values().any(|job| job.started) {
            self.go(Trigger::Started, Phase::Running, "the first job started".to_owned(), false);
        }
        if self.ran_again > 0 && self.known.phase == Phase::Running {
            let detail = format!("HTCondor runs {} again that had ended", jobs(self.ran_again));
            self.tell(Some(Phase::Running), Trigger::RanAgain, Some(Phase::Running), detail, true);
        }
        self.complete();
    }

    /// Completes the object once every job has an outcome.
    pub(super) fn complete(&mut self) {
        let counts = Counts::of(&self.record);
        let asked_for = self.asked_for();
        let withdrawn = self.record.wishes.withdrawn().len();
        let in_htcondor = match self.known.phase {
            Phase::Submitted | Phase::Running => true,
            // Users have removed all of them.
            Phase::Pending => withdrawn > 0 && self.record.jobs.is_empty(),
            Phase::Completed | Phase::Terminating => false,
        };
        // What jobs report of themselves counts, but only HTCondor's word completes.
        let ended = self.record.jobs.values().all(|job| job.outcome().is_some());
        let over = self.record.jobs.len() + withdrawn + self.known.given_up as usize;
        if in_htcondor && ended && over >= asked_for {
            self.known.completed = Some(self.now);
            let trigger = if counts.failed == 0 { Trigger::Succeeded } else { Trigger::Failed };
            let detail = ending(&self.record, &counts);
            self.go(trigger, Phase::Completed, detail, counts.failed > 0);
        }
    }

    /// The ids of all recorded jobs, as ranges.
    pub(super) fn ids(&self) -> String {
        let mut ids: Vec<JobId> = self.record.jobs.values().map(|job| job.id).collect();
        ids.sort_unstable();
        id_ranges(&ids, IDS_IN_MESSAGE)
    }
}

fn state_is_open(state: &JobState) -> bool {
    !matches!(state, JobState::Ended(_))
}

/// `JobStatus` first: hold codes may be left over from before (`HoldReasonCode` 16 stays for a while after spooling).
pub(super) fn state_of(ad: &Ad) -> JobState {
    if let Some(outcome) = judge::outcome(ad) {
        return JobState::Ended(outcome);
    }
    match ad.status {
        JobStatus::Held if ad.hold.code != Hold::SPOOLING => JobState::Held(ad.hold.clone()),
        JobStatus::Held | JobStatus::Idle | JobStatus::Blocked | JobStatus::Preparing => JobState::Idle,
        JobStatus::Running | JobStatus::TransferringOutput | JobStatus::Suspended => JobState::Running,
        // An ad with these always has an outcome.
        JobStatus::Removed | JobStatus::Completed | JobStatus::Failed => JobState::Ended(Outcome::Lost(Loss::Vanished)),
    }
}
