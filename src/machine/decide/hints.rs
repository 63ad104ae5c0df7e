//! What jobs say of themselves. HTCondor's answers have been taken in before; where they say otherwise, they win.
//!
//! A start moves a job on at once. An end counts at once where nothing can follow it, and in any case HTCondor is asked
//! soon: only its word completes an `HTCJob`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Run;
use crate::machine::facts::{Answer, End, Job, JobState, JobStatus, Report};
use crate::machine::ids::{Index, JobId, Timestamp};
use crate::machine::judge::{SeenIn, Sightings};
use crate::machine::status::{Counts, jobs};
use crate::machine::transitions::{Notice, Transition, Trigger};

/// How long a job may still be shown as running after its payload has ended: its output is on the way.
const UNCONFIRMED: Duration = Duration::from_secs(60);

/// One job of which HTCondor says otherwise.
struct Refuted {
    id: JobId,
    said: End,
    truth: String,
}

impl Run<'_> {
    /// Takes in what the jobs report. What stays in the record's reports are the ends that count.
    pub(super) fn hints(&mut self, sightings: &Sightings<'_>) {
        let reports = std::mem::take(&mut self.record.reports);
        if reports.is_empty() {
            return;
        }
        let recorded: BTreeMap<JobId, Index> = self.record.jobs.iter().map(|(index, job)| (job.id, *index)).collect();
        let mut refuted = Vec::new();
        for (id, report) in reports {
            match recorded.get(&id) {
                Some(index) => {
                    self.begun(*index, &report);
                    refuted.extend(report.ended.and_then(|end| self.ended(*index, end, sightings)));
                }
                // HTCondor has accepted it, and nobody has seen that yet.
                None => self.watch_for_a_while(report.started.max(report.ended.map(|end| end.at))),
            }
        }
        self.tell_refuted(&refuted);
        self.refuted = refuted.into_iter().map(|refuted| refuted.id).collect();
    }

    fn watch_for_a_while(&mut self, event: Option<Timestamp>) {
        if let Some(event) = event.filter(|event| self.now.since(*event) < self.settings.eager) {
            self.watch_closely(event);
        }
    }

    /// A job whose payload began has started, and runs unless HTCondor was asked since.
    fn begun(&mut self, index: Index, report: &Report) {
        let Some(at) = report.started.or(report.ended.map(|end| end.at)) else { return };
        let asked_since = matches!(&self.facts.evidence.queue, Answer::Known(queue) if queue.asked_at > at)
            && self.rules.htcondor_is_right;
        let Some(job) = self.record.jobs.get_mut(&index).filter(|job| job.outcome().is_none()) else { return };
        job.started = true;
        if job.state == JobState::Idle && !asked_since {
            job.state = JobState::Running;
        }
        if self.facts.record.jobs.get(&index) == Some(job) {
            self.changed.remove(&index);
        } else {
            self.changed.insert(index);
        }
    }

    /// Whether HTCondor says otherwise than that the job's payload has ended so.
    fn ended(&mut self, index: Index, end: End, sightings: &Sightings<'_>) -> Option<Refuted> {
        let counts = !self.facts.object.may_rerun || !self.rules.only_last_ends_count;
        let job = self.record.jobs.get(&index)?;
        let id = job.id;
        let refuted = |truth: String| Some(Refuted { id, said: end, truth });
        if let Some(outcome) = job.outcome() {
            let news = self.facts.record.jobs.get(&index).is_none_or(|before| before.outcome().is_none());
            return if counts && news && *outcome != end.outcome() { refuted(format!("{outcome:?}")) } else { None };
        }
        if !counts {
            self.watch_for_a_while(Some(end.at));
            return None;
        }
        if let Some(truth) = self.contradiction(index, job, end, sightings) {
            return refuted(truth);
        }
        if !self.rules.only_htcondor_completes {
            self.record.jobs.entry(index).and_modify(|job| job.state = JobState::Ended(end.outcome()));
            self.changed.insert(index);
            return None;
        }
        self.record.reports.insert(id, Report { started: None, ended: Some(end) });
        self.watch_closely(end.at);
        None
    }

    /// How HTCondor shows a job that cannot be so after its payload's end.
    fn contradiction(&self, index: Index, job: &Job, end: End, sightings: &Sightings<'_>) -> Option<String> {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return None };
        if !self.rules.htcondor_is_right {
            return None;
        }
        let its = |place: SeenIn, id: JobId| place == SeenIn::Queue && id == job.id && queue.birthdate == job.birthdate;
        let ad = sightings.of(index).iter().find(|sighting| its(sighting.place, sighting.ad.id))?.ad;
        let patience = match ad.status {
            // The schedd shows a job as running before its payload can begin: it is not any more.
            JobStatus::Idle | JobStatus::Held | JobStatus::Blocked | JobStatus::Preparing => Duration::ZERO,
            JobStatus::Running | JobStatus::Suspended => UNCONFIRMED,
            JobStatus::TransferringOutput | JobStatus::Removed | JobStatus::Completed | JobStatus::Failed => {
                return None;
            }
        };
        let asked_since = queue.asked_at > end.at.plus(patience) || !self.rules.ask_after_report;
        asked_since.then(|| format!("{:?}", ad.status))
    }

    fn tell_refuted(&mut self, refuted: &[Refuted]) {
        let Some(Refuted { id, said, truth }) = refuted.first() else { return };
        let others = match refuted.len() {
            1 => String::new(),
            count => format!("; the same applies to {}", jobs(count)),
        };
        let counts = Counts::of(&self.record);
        self.transitions.push(Transition {
            from: Some(self.known.phase),
            to: Some(self.known.phase),
            trigger: Trigger::ConditionChanged,
            reason: Notice::CallbackRefuted.to_string(),
            detail: format!(
                "job {id} reported that it ended with {}, but HTCondor reports {truth}, which counts{others}",
                said.code
            ),
            warning: true,
            active: counts.active,
            succeeded: counts.succeeded,
            failed: counts.failed,
        });
    }
}
