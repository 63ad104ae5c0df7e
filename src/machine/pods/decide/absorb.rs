//! What the Job and its Pods say is taken over into the record.

use std::time::Duration;

use super::{OwnJob, Run};
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{CutShort, Exceeded, Spec};
use crate::machine::ids::Index;
use crate::machine::indices::Indices;
use crate::machine::phase::Phase;
use crate::machine::pods::facts::{BatchJob, JobEnd, Left, Pod, PodPhase, PodsSeen};
use crate::machine::pods::status::{Counts, ending};
use crate::machine::runs::{Record, Run as Row, RunEnd, RunState};
use crate::machine::status::jobs;
use crate::machine::transitions::Trigger;

/// How long the exit codes of failed Pods are waited for, which come by another watch than the Job's end.
const EXIT_CODES: Duration = Duration::from_secs(3);

impl Run<'_> {
    /// Takes over what is known of the Job. When the object is over, only what its last Pods say.
    pub(super) fn absorb(&mut self) {
        if self.known.completed.is_some() {
            if self.record.job.is_some() && matches!(self.own_job(), OwnJob::Here(_)) {
                self.absorb_late();
            }
            return;
        }
        match self.own_job() {
            OwnJob::Unknown(_) => {}
            OwnJob::Gone => self.lose(),
            OwnJob::Here(job) => {
                // One that is being deleted and was never resumed has run nothing: it is made again when it is gone.
                let made = self.record.job.is_some() || !job.deleting || !self.known.new;
                if made {
                    self.record_job(job);
                    self.follow(job);
                }
            }
        }
    }

    /// From here on it may run.
    fn record_job(&mut self, job: &BatchJob) {
        if self.record.job.is_none() {
            self.record.job = Some(job.uid.clone());
        }
        if self.known.phase == Phase::Pending {
            self.known.started = Some(self.now);
            let count = jobs(self.facts.object.spec.as_ref().map_or(0, Spec::count));
            let detail = format!("Job {} is created, for {count}", self.facts.object.job_name);
            self.go(Trigger::Accepted, Phase::Submitted, detail, false);
        }
    }

    fn follow(&mut self, job: &BatchJob) {
        self.absorb_pods();
        self.end_runs(&job.succeeded, RunEnd::Succeeded);
        self.end_runs(&job.failed, RunEnd::Failed);
        if self.known.phase == Phase::Terminating {
            return;
        }
        let begun = |state: RunState| matches!(state, RunState::Running | RunState::Exited | RunState::Ended(_));
        let started = self.record.runs.values().any(|run| begun(run.state));
        if self.known.phase == Phase::Submitted && started {
            self.go(Trigger::Started, Phase::Running, "the first Pod runs".to_owned(), false);
        }
        let exceeded = match (&job.end, job.failing) {
            (Some(JobEnd::Failed { exceeded, .. }), failing) => exceeded.or(failing),
            (Some(JobEnd::Complete), _) => None,
            (None, failing) => failing,
        };
        if let Some(exceeded) = exceeded {
            self.cut_short(exceeded);
        }
        // Of how many jobs it is the end says the spec.
        if let (Some(end), Ok(_)) = (&job.end, &self.facts.object.spec) {
            if self.waits_for_exit_codes(job) {
                self.look_again(Duration::from_millis(500));
            } else {
                self.complete(end);
            }
        }
    }

    fn absorb_pods(&mut self) {
        let PodsSeen::Known(pods) = &self.facts.pods else { return };
        for (index, run) in &mut self.record.runs {
            match run.state {
                RunState::Pending | RunState::Running if !pods.contains_key(index) => {
                    (run.state, run.message) = (RunState::Waiting, None);
                }
                RunState::Exited if !pods.contains_key(index) => run.state = RunState::Waiting,
                RunState::Waiting | RunState::Pending | RunState::Running | RunState::Exited | RunState::Ended(_) => {}
            }
        }
        for (index, pod) in pods {
            self.absorb_pod(*index, pod);
        }
    }

    /// Pods are told by another watch than their Job, which may have ended before.
    fn absorb_late(&mut self) {
        let PodsSeen::Known(pods) = &self.facts.pods else { return };
        for (index, pod) in pods.iter().filter(|(index, _)| self.record.runs.contains_key(index)).collect::<Vec<_>>() {
            self.absorb_pod(*index, pod);
        }
    }

    fn absorb_pod(&mut self, index: Index, pod: &Pod) {
        let run = self.record.runs.entry(index).or_default();
        let over = run.state.end();
        if over.is_some_and(|end| !is_last(run, end, pod)) {
            return;
        }
        let (state, starts, message) = match &pod.phase {
            PodPhase::Pending(why) => (RunState::Pending, pod.failures, why.clone()),
            PodPhase::Running => (RunState::Running, pod.failures.saturating_add(1), None),
            PodPhase::Ended => (RunState::Exited, pod.failures.saturating_add(1), pod.message.clone()),
        };
        // What the Job has said stays.
        if over.is_none() {
            (run.state, run.exit) = (state, None);
        }
        run.id = Some(pod.name.clone());
        run.starts = starts;
        (run.start, run.end, run.host, run.exit) = (pod.start, pod.end, pod.node.clone(), pod.exit.or(run.exit));
        run.message = message;
    }

    fn end_runs(&mut self, ended: &Indices, end: RunEnd) {
        for index in ended.iter() {
            let run = self.record.runs.entry(index).or_default();
            if run.state.end().is_none() {
                run.state = RunState::Ended(end);
                if end == RunEnd::Succeeded {
                    if run.exit.is_some_and(|code| code != 0) {
                        // That was an earlier try. The one that succeeded was not seen yet.
                        (run.id, run.start, run.end, run.host, run.message) = (None, None, None, None, None);
                    }
                    run.exit = Some(0);
                }
                run.starts = run.starts.max(1);
            }
        }
    }

    fn waits_for_exit_codes(&self, job: &BatchJob) -> bool {
        let unknown =
            self.record.runs.values().any(|run| run.state == RunState::Ended(RunEnd::Failed) && run.exit.is_none());
        // Another clock's: one that is far ahead is not waited for.
        let ended = job.ended.filter(|ended| *ended <= self.now.plus(EXIT_CODES));
        unknown && ended.is_some_and(|ended| self.now.since(ended) < EXIT_CODES)
    }

    fn cut_short(&mut self, exceeded: Exceeded) {
        if self.known.cut_short.is_some() || !matches!(self.known.phase, Phase::Submitted | Phase::Running) {
            return;
        }
        self.known.cut_short = Some(CutShort { at: self.now, exceeded });
        let (trigger, why) = match exceeded {
            Exceeded::Deadline => (Trigger::DeadlineExceeded, "activeDeadlineSeconds has passed"),
            Exceeded::FailedIndexes => {
                (Trigger::MaxFailedIndexesExceeded, "more jobs failed than maxFailedIndexes allows")
            }
        };
        let phase = Some(self.known.phase);
        self.tell(phase, trigger, phase, format!("{why}: the Pods that have not ended are removed"), true);
    }

    /// The Job was recorded, and is gone without an end.
    fn lose(&mut self) {
        let shown = self.facts.object.shows_job && !self.known.new && !self.facts.object.submit_again;
        if (self.record.job.is_none() && !shown) || self.facts.object.deleting {
            return;
        }
        self.give_up_the_rest();
        let left = match self.facts.left {
            Left::Some => "; some of its Pods are still there, and go when the HTCJob is deleted",
            Left::None | Left::Unknown => "",
        };
        let message = format!(
            "Job {} was deleted before it ended{left}. It is not created again: create a new HTCJob to run the jobs again. So far {}",
            self.facts.object.job_name,
            ending(&self.record_now())
        );
        self.fail(Reason::Lost, message);
    }

    /// All its Pods have ended.
    fn complete(&mut self, end: &JobEnd) {
        self.give_up_the_rest();
        let counts = Counts::of(&self.record_now());
        match end {
            JobEnd::Complete if counts.failed == 0 => {
                let message = ending(&self.record_now());
                self.known.completed = Some(self.now);
                self.go(Trigger::Succeeded, Phase::Completed, message.clone(), false);
                self.say(ConditionType::Complete, ConditionStatus::True, Reason::AllSucceeded, &message);
            }
            JobEnd::Complete => self.fail(Reason::JobsFailed, ending(&self.record_now())),
            JobEnd::Failed { message, .. } => {
                let reason = self.known.cut_short.map_or(Reason::JobsFailed, |cut| cut.exceeded.reason());
                let words = ending(&self.record_now());
                self.fail(reason, format!("{words}. The Job says: {message}"));
            }
        }
        self.conditions.clear(ConditionType::Stuck, Reason::JobsEnded.into(), "every job has ended", self.now);
        let over = "every job has ended; none can be suspended";
        if self.conditions.is_true(ConditionType::Suspended) {
            self.say(ConditionType::Suspended, ConditionStatus::False, Reason::JobsEnded, over);
        }
    }

    fn fail(&mut self, reason: Reason, message: String) {
        self.known.completed = Some(self.now);
        self.say(ConditionType::Failed, ConditionStatus::True, reason, &message);
        self.go(Trigger::Failed, Phase::Completed, message, true);
    }

    /// Indexes that have not ended never will.
    fn give_up_the_rest(&mut self) {
        for run in self.record.runs.values_mut().filter(|run| run.state.end().is_none()) {
            run.state = RunState::Ended(RunEnd::Removed);
        }
        let asked = self.facts.object.spec.as_ref().map_or(0, Spec::count);
        self.known.given_up = u32::try_from(asked.saturating_sub(self.record.runs.len())).unwrap_or(u32::MAX);
    }

    /// With what is known of the object itself, for counts and words.
    fn record_now(&self) -> Record {
        Record { known: Some(self.known.clone()), ..self.record.clone() }
    }
}

/// Whether this is the Pod that has ended an index, and says more than is known of it. A Pod that is seen when a later one has gone is
/// not.
fn is_last(run: &Row, end: RunEnd, pod: &Pod) -> bool {
    let starts = pod.failures.saturating_add(1);
    let news = if run.end.is_some() { starts > run.starts } else { starts >= run.starts };
    let fits = match end {
        RunEnd::Succeeded => pod.exit.is_none_or(|code| code == 0),
        RunEnd::Failed => true,
        RunEnd::Removed => false,
    };
    pod.phase == PodPhase::Ended && news && fits
}
