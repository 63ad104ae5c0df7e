//! What jobs report of themselves, as `condor/payload/job.sh` sends it and `ledger::callbacks` takes it in. A report may come at
//! any time from when it is sent, again and again, or never: nothing waits for it.

use std::collections::BTreeMap;
use std::fmt;

use htc_machine::facts::{Ad, Answer, Evidence, JobState, JobStatus, Report, ReportedEnd};
use htc_machine::outcome::Outcome;
use htc_machine::{Decision, Index, JobId, Timestamp};

use crate::steps::Model;
use crate::story::Teller;
use crate::world::{Broken, Fate, Rows, World, name};

/// What tells one report of an object from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    pub job: JobId,
    /// Which run of its payload, from 1.
    pub run: u8,
    /// The exit code, if it is a report of an end.
    pub ended: Option<i32>,
}

/// A report that was sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent {
    pub object: u8,
    pub event: Event,
    /// HTCondor began the job again all the same.
    pub undone: bool,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { job, run, ended } = self.event;
        let what = ended.map_or("begins".to_owned(), |code| format!("has ended with {code}"));
        write!(f, "job {job} of {} that its payload {what} (run {run})", name(self.object))
    }
}

/// A row of `callbacks`. The ledger keeps the newest start and end of each job, and of three before them the ids: what is read is the
/// same, and no job of a scene sends more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub at: Timestamp,
    pub refuted: bool,
    pub settled: bool,
}

impl World {
    /// The job at this place of the queue sends a report.
    pub fn send_report(&mut self, place: usize, ended: Option<i32>) {
        let job = &self.schedd.queue[place];
        let (object, id) = (job.object, job.ad.id);
        let starts = self.runs_of(object, id);
        let run = if ended.is_some() { starts } else { starts + 1 };
        self.sent.insert(Sent { object, event: Event { job: id, run, ended }, undone: false });
    }

    /// How often a job has said that it begins.
    pub fn runs_of(&self, object: u8, id: JobId) -> u8 {
        let its = |sent: &&Sent| sent.object == object && sent.event.job == id && sent.event.ended.is_none();
        u8::try_from(self.sent.iter().filter(its).count()).unwrap()
    }

    /// HTCondor does not take the last end of this job for one.
    pub fn undo_report(&mut self, object: u8, id: JobId) {
        let run = self.runs_of(object, id);
        let its = |sent: &Sent| sent.object == object && sent.event.job == id && sent.event.run == run;
        let ends: Vec<Sent> =
            self.sent.iter().filter(|sent| its(sent) && sent.event.ended.is_some()).cloned().collect();
        for end in ends {
            self.sent.remove(&end);
            self.sent.insert(Sent { undone: true, ..end });
        }
    }

    /// A report comes to an operator's ears, as `ledger::callbacks::receive` takes it.
    pub fn hear(&mut self, op: usize, sent: &Sent) {
        let at = self.tick();
        let Sent { object, event, .. } = sent;
        let all = &self.operators[op].ledger.rows;
        let anothers = all
            .iter()
            .enumerate()
            .any(|(other, rows)| other != usize::from(*object) && rows.jobs.values().any(|job| job.id == event.job));
        let rows = &mut self.operators[op].ledger.rows[usize::from(*object)];
        let job = rows.jobs.values().find(|job| job.id == event.job);
        let known = job.is_some() || (!anothers && rows.may_have_more_jobs());
        if rows.known.is_none() || !known || rows.reports.contains_key(event) {
            return;
        }
        let settled = job.is_some_and(|job| job.outcome().is_some());
        rows.reports.insert(*event, Stored { at: if settled { Timestamp(0) } else { at }, refuted: false, settled });
    }
}

impl Rows {
    fn may_have_more_jobs(&self) -> bool {
        let ran = self.submissions.iter().filter(|(_, _, fate)| *fate != Fate::NotRun);
        let attempted: std::collections::BTreeSet<Index> = ran.flat_map(|(known, ..)| known.indices.iter()).collect();
        self.jobs.len() < attempted.len()
    }

    /// As `ledger::callbacks::reports`.
    pub fn told(&self) -> BTreeMap<JobId, Report> {
        let mut open: Vec<(&Event, &Stored)> = self.reports.iter().filter(|(_, stored)| !stored.settled).collect();
        open.sort_by_key(|(_, stored)| stored.at);
        let mut told: BTreeMap<JobId, Report> = BTreeMap::new();
        for (event, stored) in open {
            let report = told.entry(event.job).or_default();
            match event.ended {
                None => report.started = Some(stored.at),
                Some(_) if stored.refuted => report.ended = None,
                Some(code) => report.ended = Some(ReportedEnd { at: stored.at, code }),
            }
        }
        told
    }

    /// As `ledger::store` settles and refutes, after the jobs of a decision are written.
    pub fn settle(&mut self, decision: &Decision) {
        let over: Vec<JobId> = decision
            .changed
            .iter()
            .filter_map(|index| self.jobs.get(index))
            .filter(|job| job.outcome().is_some())
            .map(|job| job.id)
            .collect();
        for (event, stored) in &mut self.reports {
            stored.refuted |= event.ended.is_some() && decision.details.refuted.contains(&event.job);
            if over.contains(&event.job) {
                stored.settled = true;
                // Nobody reads it any more.
                stored.at = Timestamp(0);
            }
        }
    }
}

impl Model {
    pub fn report(&self, world: &mut World, op: usize, sent: &Sent, tell: &mut Teller) {
        let before = world.operators[op].ledger.rows[usize::from(sent.object)].reports.len();
        world.hear(op, sent);
        if world.operators[op].ledger.rows[usize::from(sent.object)].reports.len() > before {
            tell.say(|| "    it is stored".to_owned());
        }
    }

    /// What a decision makes of reports, beside the truth. `told` is what it was made from.
    pub fn watch_reports(
        &self,
        world: &mut World,
        (op, object): (usize, u8),
        evidence: &Evidence,
        told: &BTreeMap<JobId, Report>,
        decision: &Decision,
    ) {
        let rows = world.operators[op].ledger.rows[usize::from(object)].clone();
        let Some(after) = decision.after.as_ref().filter(|_| !world.sent.is_empty()) else { return };
        let mut broken = None;
        for job in after.jobs.values() {
            let truth = world.ad_of(object, job.id);
            let (over, known) = (truth.is_some_and(|ad| ad.completed), truth.is_some());
            let counted =
                job.outcome().is_none() && after.reports.get(&job.id).is_some_and(|told| told.ended.is_some());
            if self.scene.retries && counted && known && !over {
                broken = Some(Broken::CountedTooMuch);
            }
            if matches!(job.state, JobState::Ended(Outcome::Succeeded | Outcome::Failed(_))) && known && !over {
                broken = Some(Broken::CompletedByHearsay);
            }
            let heard = told.get(&job.id);
            if let (Answer::Known(queue), Some(heard)) = (&evidence.queue, heard)
                && queue.birthdate == job.birthdate
                && let Some(shown) = queue.ads.iter().find(|ad| ad.id == job.id)
                && matches!(shown.status, JobStatus::Idle | JobStatus::Held)
            {
                let said = |at: Option<Timestamp>| at.is_some_and(|at| at < queue.asked_at);
                let runs = said(heard.started) && job.state == JobState::Running;
                let ended = said(heard.ended.map(|end| end.at)) && counted;
                if runs || ended {
                    broken = Some(Broken::HtcondorOverruled);
                }
            }
        }
        for id in &decision.details.refuted {
            let heard = told.get(id).and_then(|report| report.ended).map(|end| end.at);
            let which = rows.reports.iter().find(|(event, stored)| event.job == *id && Some(stored.at) == heard);
            let so =
                which.is_some_and(|(event, _)| world.sent.contains(&Sent { object, event: *event, undone: false }));
            if so && world.ad_of(object, *id).is_some_and(|ad| ad.completed) {
                broken = Some(Broken::RefutedWrongly);
            }
        }
        if let Some(broken) = broken {
            world.breaks(broken);
        }
    }
}

impl World {
    /// What HTCondor really has of a job, in its queue or in history.
    fn ad_of(&self, object: u8, id: JobId) -> Option<&Ad> {
        let queued = self.schedd.queue.iter().find(|job| job.object == object && job.ad.id == id).map(|job| &job.ad);
        let former = self.schedd.history.iter().filter_map(|former| former.job.as_ref());
        queued.or_else(|| former.filter(|(owner, ad)| *owner == object && ad.id == id).map(|(_, ad)| ad).next_back())
    }
}
