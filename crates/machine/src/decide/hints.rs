//! Reports of the jobs themselves. HTCondor's answers are absorbed before, and take precedence.
//!
//! A report of a start takes effect at once.
//! A report of an end takes effect at once if no further run can follow.
//! In any case HTCondor is asked soon: only its answer completes an `HTCJob`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Decider;
use crate::facts::{Answer, Job, JobState, JobStatus, Report, ReportedEnd};
use crate::ids::{Index, JobId, Timestamp};
use crate::judge::{AdSource, Sightings};
use crate::status::jobs_text;
use crate::transitions::Notice;

/// How long the status may have a job as running after its payload has ended: its output is being transferred.
const UNCONFIRMED: Duration = Duration::from_secs(60);

/// A job whose report HTCondor contradicts.
struct Refuted {
    id: JobId,
    said: ReportedEnd,
    truth: String,
}

impl Decider<'_> {
    /// Applies the reports of the jobs. Only the ends that count stay in the record's reports.
    pub(super) fn apply_reports(&mut self, sightings: &Sightings<'_>) {
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
                // HTCondor has accepted the job, and no answer has had that yet.
                None => self.watch_for_a_while(report.started.max(report.ended.map(|end| end.at))),
            }
        }
        self.record_refuted(&refuted);
        self.details.refuted = refuted.into_iter().map(|refuted| refuted.id).collect();
    }

    fn watch_for_a_while(&mut self, event: Option<Timestamp>) {
        if let Some(event) = event.filter(|event| self.now.since(*event) < self.settings.eager) {
            self.poll_after(event);
        }
    }

    /// Marks a job as started, and as running unless HTCondor was asked since the report.
    fn begun(&mut self, index: Index, report: &Report) {
        let Some(at) = report.started.or(report.ended.map(|end| end.at)) else { return };
        let asked_since = matches!(&self.facts.evidence.queue, Answer::Known(queue) if queue.asked_at > at)
            && self.rules.htcondor_is_right;
        let Some(job) = self.record.jobs.get_mut(&index).filter(|job| job.outcome().is_none()) else { return };
        job.started = true;
        if job.state == JobState::Idle && !asked_since {
            job.state = JobState::Running;
        }
    }

    /// Applies a report of an end. Returns the contradiction if HTCondor shows something else.
    fn ended(&mut self, index: Index, end: ReportedEnd, sightings: &Sightings<'_>) -> Option<Refuted> {
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
            return None;
        }
        self.record.reports.insert(id, Report { started: None, ended: Some(end) });
        self.poll_after(end.at);
        None
    }

    /// Returns the status in HTCondor if it is impossible after the payload's end.
    fn contradiction(&self, index: Index, job: &Job, end: ReportedEnd, sightings: &Sightings<'_>) -> Option<String> {
        let Answer::Known(queue) = &self.facts.evidence.queue else { return None };
        if !self.rules.htcondor_is_right {
            return None;
        }
        let its =
            |place: AdSource, id: JobId| place == AdSource::Queue && id == job.id && queue.birthdate == job.birthdate;
        let ad = sightings.of(index).iter().find(|sighting| its(sighting.source, sighting.ad.id))?.ad;
        let patience = match ad.status {
            // The schedd shows a job as running before its payload can begin. So an idle or held job has stopped
            // running.
            JobStatus::Idle | JobStatus::Held | JobStatus::Blocked | JobStatus::Preparing => Duration::ZERO,
            JobStatus::Running | JobStatus::Suspended => UNCONFIRMED,
            JobStatus::TransferringOutput | JobStatus::Removed | JobStatus::Completed | JobStatus::Failed => {
                return None;
            }
        };
        let asked_since = queue.asked_at > end.at.plus(patience) || !self.rules.ask_after_report;
        asked_since.then(|| format!("{:?}", ad.status))
    }

    fn record_refuted(&mut self, refuted: &[Refuted]) {
        let Some(Refuted { id, said, truth }) = refuted.first() else { return };
        let others = match refuted.len() {
            1 => String::new(),
            count => format!("; the same applies to {}", jobs_text(count)),
        };
        let detail = format!(
            "job {id} reported that it ended with {}, but HTCondor reports {truth}, which counts{others}",
            said.code
        );
        self.record_condition(Notice::CallbackRefuted.to_string(), detail, true);
    }
}
