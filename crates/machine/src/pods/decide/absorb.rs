//! Records the states of the Job and its Pods.

use std::time::Duration;

use super::PodsDecider;
use crate::condition::ConditionStatus::True;
use crate::condition::{ConditionType, Reason};
use crate::facts::{Exceeded, Spec};
use crate::ids::Index;
use crate::indices::Indices;
use crate::phase::Phase;
use crate::pods::facts::{BatchJob, JobEnd, LeftoverPods, OwnJob, Pod, PodPhase, PodsObservation};
use crate::pods::status::{counts, ending};
use crate::runs::{Run, RunEnd, RunState};
use crate::status::jobs_text;
use crate::transitions::Trigger;

/// How long to wait for the exit codes of failed Pods, which come by another watch than the Job's end.
const EXIT_CODES: Duration = Duration::from_secs(3);

impl PodsDecider<'_> {
    /// Records what is known about the Job. Once the object is over, only its last Pods matter.
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
                // A Job that is being deleted and was never resumed has run nothing. It is created again when it is
                // gone.
                let made = self.record.job.is_some() || !job.deleting || !self.known.new;
                if made {
                    self.record_job(job);
                    self.follow(job);
                }
            }
        }
    }

    /// Records the Job. From here on it may run.
    fn record_job(&mut self, job: &BatchJob) {
        if self.record.job.is_none() {
            self.record.job = Some(job.uid.clone());
        }
        if self.known.phase == Phase::Pending {
            self.known.started = Some(self.now);
            let count = jobs_text(self.facts.object.spec.as_ref().map_or(0, Spec::count));
            let detail = format!("Job {} is created, for {count}", self.facts.object.job_name);
            self.set_phase(Trigger::Accepted, Phase::Submitted, detail, false);
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
            self.set_phase(Trigger::Started, Phase::Running, "the first Pod runs".to_owned(), false);
        }
        let exceeded = match (&job.end, job.failing) {
            (Some(JobEnd::Failed { exceeded, .. }), failing) => exceeded.or(failing),
            (Some(JobEnd::Complete), _) => None,
            (None, failing) => failing,
        };
        if let Some(exceeded) = exceeded.filter(|_| self.can_be_cut_short()) {
            let why = match exceeded {
                Exceeded::Deadline => "activeDeadlineSeconds has passed",
                Exceeded::FailedIndexes => "more jobs failed than maxFailedIndexes allows",
            };
            self.cut_short(exceeded, format!("{why}: the Pods that have not ended are removed"));
        }
        // The end is recorded only with a readable spec, which has the number of jobs.
        if let (Some(end), Ok(_)) = (&job.end, &self.facts.object.spec) {
            if self.waits_for_exit_codes(job) {
                self.requeue_within(Duration::from_millis(500));
            } else {
                self.complete(end);
            }
        }
    }

    fn absorb_pods(&mut self) {
        let PodsObservation::Known(pods) = &self.facts.pods else { return };
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

    /// Updates runs after the end. Pods come by another watch than their Job, which may have ended before.
    fn absorb_late(&mut self) {
        let PodsObservation::Known(pods) = &self.facts.pods else { return };
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
        // The Job's report takes precedence.
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
                        // The exit code is that of an earlier try. The one that succeeded was not seen yet.
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
        // The time is from another clock: do not wait if it is far ahead.
        let ended = job.ended.filter(|ended| *ended <= self.now.plus(EXIT_CODES));
        unknown && ended.is_some_and(|ended| self.now.since(ended) < EXIT_CODES)
    }

    /// Fails an object whose Job was recorded and is gone without an end.
    fn lose(&mut self) {
        let shown = self.facts.object.shows_job && !self.known.new && !self.facts.object.submit_again;
        if (self.record.job.is_none() && !shown) || self.facts.object.deleting {
            return;
        }
        self.give_up_the_rest();
        let left = match self.facts.leftover_pods {
            LeftoverPods::Some => "; some of its Pods are still there, and go when the HTCJob is deleted",
            LeftoverPods::None | LeftoverPods::Unknown => "",
        };
        let message = format!(
            "Job {} was deleted before it ended{left}. It is not created again: create a new HTCJob to run the jobs again. So far {}",
            self.facts.object.job_name,
            ending(&self.record)
        );
        self.fail(Reason::JobsLost, message);
    }

    /// Completes an object all of whose Pods have ended.
    fn complete(&mut self, end: &JobEnd) {
        self.give_up_the_rest();
        let message = ending(&self.record);
        match end {
            JobEnd::Complete if counts(&self.record).failed == 0 => {
                self.set_condition(ConditionType::Complete, True, Reason::AllSucceeded, &message);
                self.complete_phase(true, message);
            }
            JobEnd::Complete => self.fail(Reason::JobsFailed, message),
            JobEnd::Failed { message: why, .. } => {
                let reason = self.known.cut_short.map_or(Reason::JobsFailed, |cut| cut.exceeded.reason());
                self.fail(reason, format!("{message}. The Job says: {why}"));
            }
        }
        self.clear_condition(ConditionType::Stuck, Reason::JobsEnded, "every job has ended");
        self.end_suspension();
    }

    fn fail(&mut self, reason: Reason, message: String) {
        self.set_condition(ConditionType::Failed, True, reason, &message);
        self.complete_phase(false, message);
    }

    /// Ends the indexes that have not ended: they never will.
    fn give_up_the_rest(&mut self) {
        for run in self.record.runs.values_mut().filter(|run| run.state.end().is_none()) {
            run.state = RunState::Ended(RunEnd::Removed);
        }
        let asked = self.facts.object.spec.as_ref().map_or(0, Spec::count);
        self.give_up(asked.saturating_sub(self.record.runs.len()));
    }
}

/// Whether this Pod has ended the index, and has more information than is recorded.
/// An older Pod that is seen after a later one has gone does not count.
fn is_last(run: &Run, end: RunEnd, pod: &Pod) -> bool {
    let starts = pod.failures.saturating_add(1);
    let news = if run.end.is_some() { starts > run.starts } else { starts >= run.starts };
    let fits = match end {
        RunEnd::Succeeded => pod.exit.is_none_or(|code| code == 0),
        RunEnd::Failed => true,
        RunEnd::Removed => false,
    };
    pod.phase == PodPhase::Ended && news && fits
}
