//! While the object is not being deleted: its Job is created, kept as the spec wants it, and in the end left.

use std::time::Duration;

use super::{Action, Adjust, OwnJob, Run};
use crate::api::ConditionStatus::{False, True};
use crate::api::{ConditionType, Reason};
use crate::machine::facts::{Claim, Queued, Spec, SpecRefused, Unreadable};
use crate::machine::phase::Phase;
use crate::machine::pods::facts::{BatchJob, Create, JobSeen};

/// What is not watched is looked at again after this time.
const UNWATCHED: Duration = Duration::from_secs(60);
/// For what a Job, or its ConfigMap, is not created.
const REFUSALS: [Reason; 4] = [Reason::CreateRefused, Reason::NameTaken, Reason::InvalidSpec, Reason::ItemsUnavailable];

impl Run<'_> {
    /// The object was let go, or was being deleted, and is back: the API server's data were restored.
    pub(super) fn wait_for_deletion(&mut self) {
        let message = "the HTCJob was deleted before, and is back: the API server's data were restored from a copy. Nothing is created again. Delete it; create a new HTCJob to run the jobs again";
        self.say(ConditionType::Submitted, False, Reason::WasDeleted, message);
    }

    pub(super) fn live(&mut self) {
        if self.known.phase == Phase::Completed {
            self.leave();
            return;
        }
        self.keep_queue();
        if self.record.job.is_none() {
            self.create();
        } else {
            self.keep();
        }
    }

    fn create(&mut self) {
        let facts = self.facts;
        let spec = match &facts.object.spec {
            Ok(Spec { refused: Some(SpecRefused { reason, message }), .. }) => {
                self.say(ConditionType::Submitted, False, *reason, message);
                return;
            }
            Ok(spec) => spec,
            Err(Unreadable { reason, message, again }) => {
                self.say(ConditionType::Submitted, False, *reason, message);
                if let Some(again) = again {
                    self.look_again(*again);
                }
                return;
            }
        };
        self.suspend(spec, None);
        let name = &facts.object.job_name;
        match &facts.job {
            JobSeen::Unknown(why) => {
                if why.is_empty() {
                    self.say(ConditionType::Submitted, False, Reason::Waiting, "the operator lists the Jobs and Pods");
                } else {
                    self.say(ConditionType::Submitted, False, Reason::WatchFailed, why);
                }
                self.look_again(self.pause_for(why));
            }
            JobSeen::Foreign(whose) => {
                let message = format!(
                    "there is a Job {name} already, and it is not this HTCJob's: {whose}. It is left alone: delete it, or create the HTCJob again"
                );
                self.say(ConditionType::Submitted, False, Reason::NameTaken, &message);
                self.look_again(UNWATCHED);
            }
            // It goes, and another can be created then.
            JobSeen::Ours(_) => {
                let message = format!(
                    "Job {name} is being deleted, and has not run anything. The operator creates it again once it is gone"
                );
                self.say(ConditionType::Submitted, False, Reason::Creating, &message);
            }
            JobSeen::Absent if !self.known.new && !facts.object.submit_again => {
                let message = "another operator, or this one with a ledger that is lost, may have run the jobs, and there is no Job of it. Nothing is created. If you know that they have not run, or may run again, set the annotation htc.cern.ch/submit-again: \"true\"";
                self.say(ConditionType::Submitted, False, Reason::PastUnknown, message);
            }
            JobSeen::Absent if facts.object.claim != Claim::Ours => self.action = Action::AttachFinalizer,
            JobSeen::Absent => match &facts.create {
                Create::Refused { reason, message, again } => {
                    self.say(ConditionType::Submitted, False, *reason, message);
                    if let Some(again) = again {
                        self.look_again(*again);
                    }
                }
                Create::May => {
                    let said = self.conditions.get(ConditionType::Submitted).and_then(|said| said.reason.parse().ok());
                    // What it was refused for stays said while it is tried again: one Event, not one for each try.
                    if said.is_none_or(|said| !REFUSALS.contains(&said)) {
                        self.say(ConditionType::Submitted, False, Reason::Creating, &format!("creating Job {name}"));
                    }
                    self.action = Action::Create;
                }
            },
        }
    }

    fn keep(&mut self) {
        let name = self.facts.object.job_name.clone();
        let job = match self.own_job() {
            OwnJob::Unknown(why) => {
                if !why.is_empty() {
                    self.say(ConditionType::Tracked, False, Reason::WatchFailed, why);
                }
                self.look_again(self.pause_for(why));
                return;
            }
            // It has been given up already.
            OwnJob::Gone => return,
            OwnJob::Here(job) => job,
        };
        if self.conditions.get(ConditionType::Tracked).is_some_and(|told| told.status == False) {
            self.say(ConditionType::Tracked, True, Reason::Tracking, "Jobs and Pods are seen again");
        }
        let Ok(spec) = &self.facts.object.spec else { return };
        // It stays said until it is so no more: one Event.
        if !self.say_share(spec) {
            self.say(ConditionType::Submitted, True, Reason::Accepted, &format!("Job {name} is created"));
        }
        self.suspend(spec, Some(job));
        self.say_quota(spec, job);
        self.find_stuck(spec, job);
        if job.end.is_none() && job.failing.is_none() && !job.deleting {
            let wanted = self.wanted(spec, job);
            let is =
                Adjust { suspend: job.suspended, parallelism: job.parallelism.unwrap_or(1), deadline: job.deadline };
            if is != wanted {
                if is.suspend && !wanted.suspend {
                    // As in batch/v1, `status.startTime` is when it was resumed last.
                    self.known.started = Some(self.now);
                }
                self.action = Action::Adjust(job.uid.clone(), wanted);
            }
        }
        self.keep_logs(false);
    }

    /// How long it takes until more may be known.
    pub(super) fn pause_for(&self, why: &str) -> Duration {
        if why.is_empty() { self.settings.soon } else { self.settings.pause_first }
    }

    /// Says what is seen of it, not what is wanted. A Job that ends is suspended no more: nothing new is said. Where it is not known
    /// whether the queue holds it, what was said stays.
    fn suspend(&mut self, spec: &Spec, job: Option<&BatchJob>) {
        if !spec.suspend {
            if self.facts.queue.as_ref().is_some_and(Queued::is_unknown) {
                return;
            }
            let why = self.why_resumed();
            self.conditions.clear(ConditionType::Suspended, Reason::Resumed.into(), why, self.now);
            return;
        }
        let seen = match (job, &self.facts.adjust_refused) {
            (None, _) => "the Job will be suspended when it is created".to_owned(),
            (Some(job), _) if job.is_stopped() => match job.active + job.terminating {
                0 => "the Job is suspended, and has no Pods".to_owned(),
                left => format!("the Job is suspended; Pods that have not ended yet: {left}"),
            },
            (Some(job), _) if job.end.is_some() || job.failing.is_some() || job.deleting => return,
            (Some(job), _) if job.suspended => {
                "the Job is suspended; the Job controller has not deleted its Pods yet".to_owned()
            }
            (Some(_), Some(why)) => format!("the Job cannot be suspended: {why}"),
            (Some(_), None) => "the Job is being suspended".to_owned(),
        };
        let message = format!("{}: {seen}", self.why_suspended());
        self.say(ConditionType::Suspended, True, Reason::Suspended, &message);
    }

    /// After `ttlSecondsAfterFinished` the object goes.
    fn leave(&mut self) {
        if !self.record.granted.is_empty() && matches!(self.own_job(), OwnJob::Gone) {
            // Its room is given back when its Pods are gone.
            self.look_again(self.settings.pause_first);
        }
        self.keep_logs(false);
        let ttl = self.facts.object.spec.as_ref().ok().and_then(|spec| spec.ttl);
        let (Some(ttl), Some(completed)) = (ttl, self.known.completed) else { return };
        let due = completed.plus(ttl);
        if due > self.now {
            self.look_again(due.since(self.now));
        } else {
            self.action = Action::DeleteObject;
        }
    }
}
