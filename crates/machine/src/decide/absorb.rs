//! Records HTCondor's answers, and makes the transitions that follow from them.

use super::{Decider, IDS_IN_MESSAGE};
use crate::facts::{Ad, Answer, Hold, Job, JobState, JobStatus, QueueAnswer, Spec};
use crate::ids::{Index, JobId, SchedDate, id_ranges};
use crate::judge;
use crate::judge::{Acceptance, AdSource, Doubt, Sighting, Sightings};
use crate::outcome::{Loss, Outcome};
use crate::phase::Phase;
use crate::status::{Counts, ending, jobs_text};
use crate::transitions::Trigger;

/// What HTCondor's answers show beside the states of the jobs.
#[derive(Default)]
pub(super) struct Absorbed {
    /// Number of jobs that run again although they had ended.
    pub(super) ran_again: usize,
    /// Why the fate of some recorded job is not known.
    pub(super) doubt: Option<Doubt>,
}

impl Decider<'_> {
    /// Updates the rows of accepted jobs and records jobs that have been accepted since.
    pub(super) fn absorb(&mut self, sightings: &Sightings<'_>) -> Absorbed {
        let (facts, mut absorbed) = (self.facts, Absorbed::default());
        let Answer::Known(queue) = &facts.evidence.queue else { return absorbed };
        let recorded: Vec<Index> =
            self.record.jobs.iter().filter(|(_, job)| !job.gone).map(|(index, _)| *index).collect();
        for index in recorded {
            self.update(index, queue, sightings.of(index), &mut absorbed);
        }
        self.record_accepted(queue, sightings);
        absorbed
    }

    fn update(&mut self, index: Index, queue: &QueueAnswer, seen: &[Sighting<'_>], absorbed: &mut Absorbed) {
        let Some(job) = self.record.jobs.get(&index) else { return };
        // After a queue reset the ids begin anew: the same number is then another job.
        let same = |sighting: &&Sighting<'_>| {
            let ad = sighting.ad;
            ad.id == job.id
                && ad.attempt == job.attempt
                && (sighting.source == AdSource::History || queue.birthdate == job.birthdate)
        };
        let mut updated = job.clone();
        match seen.iter().find(same) {
            Some(sighting) => {
                updated.started |= sighting.ad.started;
                let faults = updated.runs.faults.take();
                updated.runs = sighting.ad.runs.clone();
                // A later hold for something else takes their place in the ad.
                updated.runs.faults = updated.runs.faults.take().or(faults);
                let state = state_of(sighting.ad);
                let over = sighting.source == AdSource::History;
                let reopened =
                    state_is_open(&state) && self.known.phase < Phase::Completed && !over && !Self::told_before(job);
                if job.outcome().is_none() || reopened {
                    absorbed.ran_again += usize::from(job.outcome().is_some());
                    updated.state = state;
                }
                // 25.14 lets a job leave the queue once its output was fetched: by us, even if a crash kept us from
                // recording that.
                // Jobs whose output was fetched and refused leave as well.
                let kept = !self.record.refusals.contains_key(&index);
                updated.fetched |= over && sighting.ad.staged_out.is_some() && job.has_output() && kept;
                updated.gone = over && updated.outcome().is_some();
            }
            None if job.outcome().is_some() => match self.has_left(job, queue) {
                Ok(()) => updated.gone = judge::birthdate_agrees(queue, job.birthdate, self.settings, self.rules),
                Err(doubt) => absorbed.doubt = Some(doubt),
            },
            None => match judge::is_lost(job, &self.record, &self.facts.evidence, seen, self.settings, self.rules) {
                Ok(loss) => {
                    updated.state = JobState::Ended(Outcome::Lost(loss));
                    updated.gone = true;
                }
                Err(doubt) => absorbed.doubt = Some(doubt),
            },
        }
        if updated != *job {
            self.record.jobs.insert(index, updated);
        }
    }

    /// Checks that an ended job has left the queue. If its output was not fetched, history must have been asked, too.
    fn has_left(&self, job: &Job, queue: &QueueAnswer) -> Result<(), Doubt> {
        judge::has_left(job, queue, self.rules)?;
        if job.has_output() && !self.history_answered(queue) { Err(Doubt::HistoryNotAsked) } else { Ok(()) }
    }

    /// Whether history was asked after this answer of the queue.
    fn history_answered(&self, queue: &QueueAnswer) -> bool {
        matches!(&self.facts.evidence.history, Answer::Known(history) if history.asked_at > queue.asked_at)
    }

    fn record_accepted(&mut self, queue: &QueueAnswer, sightings: &Sightings<'_>) {
        let asked_for = self.facts.object.spec.as_ref().ok().map(Spec::asked_for);
        let withdrawn = self.record.requested_actions.withdrawn();
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
        self.record.jobs.extend(accepted);
    }

    fn accept(&self, queue: &QueueAnswer, sighting: &Sighting<'_>) -> Job {
        let ad = sighting.ad;
        let removed = sighting.acceptance == Acceptance::RemovedByOthers;
        let state = if removed { JobState::Ended(judge::removed(ad)) } else { state_of(ad) };
        let over = sighting.source == AdSource::History;
        Job {
            id: ad.id,
            attempt: ad.attempt,
            birthdate: queue.birthdate,
            recorded: self.now,
            staged_in: ad.staged_in.unwrap_or(SchedDate(0)),
            started: ad.started,
            // The output was fetched by an operator whose ledger is lost.
            fetched: over && ad.staged_out.is_some() && state.left_output(),
            gone: over && !state_is_open(&state),
            runs: ad.runs.clone(),
            state,
        }
    }

    /// Makes all transitions of the phase that the record allows.
    /// `ran_again`: number of jobs that run again although they had ended.
    pub(super) fn advance(&mut self, ran_again: usize) {
        let asked_for = self.asked_for();
        if self.known.phase == Phase::Pending && !self.record.jobs.is_empty() {
            self.known.started = Some(self.now);
            let detail = format!("HTCondor accepted {}: {}", jobs_text(self.record.jobs.len()), self.ids());
            self.set_phase(Trigger::Accepted, Phase::Submitted, detail, false);
        } else if self.has_new_jobs()
            && self.record.jobs.len() + self.record.requested_actions.withdrawn().len() >= asked_for
            && matches!(self.known.phase, Phase::Submitted | Phase::Running)
        {
            let detail = format!("HTCondor accepted all {}: {}", jobs_text(self.record.jobs.len()), self.ids());
            self.record_in_phase(Trigger::AllAccepted, detail, false);
        }
        if self.known.phase == Phase::Submitted && self.record.jobs.values().any(|job| job.started) {
            self.set_phase(Trigger::Started, Phase::Running, "the first job started".to_owned(), false);
        }
        if ran_again > 0 && self.known.phase == Phase::Running {
            let detail = format!("HTCondor runs {} again that had ended", jobs_text(ran_again));
            self.record_in_phase(Trigger::RanAgain, detail, true);
        }
        self.complete();
    }

    /// Completes the object once every job has an outcome.
    pub(super) fn complete(&mut self) {
        let counts = Counts::of(&self.record);
        let asked_for = self.asked_for();
        let withdrawn = self.record.requested_actions.withdrawn().len();
        let in_htcondor = match self.known.phase {
            Phase::Submitted | Phase::Running => true,
            // Users have removed all of the jobs.
            Phase::Pending => withdrawn > 0 && self.record.jobs.is_empty(),
            Phase::Completed | Phase::Terminating => false,
        };
        // Reports of the jobs themselves are counted, but only HTCondor's answers complete an object.
        let ended = self.record.jobs.values().all(|job| job.outcome().is_some());
        let over = self.record.jobs.len() + withdrawn + self.known.given_up as usize;
        if in_htcondor && ended && over >= asked_for {
            self.complete_phase(counts.failed == 0, ending(&self.record, &counts));
        }
    }

    /// Whether this decision records jobs for the first time.
    pub(super) fn has_new_jobs(&self) -> bool {
        self.record.jobs.len() > self.facts.record.jobs.len()
    }

    /// Formats the ids of all recorded jobs as ranges.
    pub(super) fn ids(&self) -> String {
        let mut ids: Vec<JobId> = self.record.jobs.values().map(|job| job.id).collect();
        ids.sort_unstable();
        id_ranges(&ids, IDS_IN_MESSAGE)
    }
}

fn state_is_open(state: &JobState) -> bool {
    !matches!(state, JobState::Ended(_))
}

/// Returns the state that an ad shows.
/// `JobStatus` comes first: hold codes may be left over from before (`HoldReasonCode` 16 stays for a while after
/// spooling). A job that HTCondor holds until it runs it elsewhere waits for a machine like one that is idle.
pub(super) fn state_of(ad: &Ad) -> JobState {
    if let Some(outcome) = judge::outcome(ad) {
        return JobState::Ended(outcome);
    }
    match ad.status {
        JobStatus::Held if ad.hold.code != Hold::SPOOLING && ad.runs.waits_for.is_none() => {
            JobState::Held(ad.hold.clone())
        }
        JobStatus::Held | JobStatus::Idle | JobStatus::Blocked | JobStatus::Preparing => JobState::Idle,
        JobStatus::Running | JobStatus::TransferringOutput | JobStatus::Suspended => JobState::Running,
        // An ad with one of these always has an outcome.
        JobStatus::Removed | JobStatus::Completed | JobStatus::Failed => JobState::Ended(Outcome::Lost(Loss::Vanished)),
    }
}
