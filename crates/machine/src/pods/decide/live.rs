//! Objects that are not being deleted: creates the Job, keeps it as the spec requires, and deletes the object after its
//! time.

use std::time::Duration;

use super::{DesiredJob, PodsAction, PodsDecider};
use crate::condition::ConditionStatus::{False, True};
use crate::condition::{ConditionType, Reason};
use crate::facts::{Claim, QueueFacts, Spec, SpecRefused, Unreadable};
use crate::phase::Phase;
use crate::pods::facts::{BatchJob, Creation, JobObservation, OwnJob};

/// Time until the next reconcile for objects that are not watched.
const UNWATCHED: Duration = Duration::from_secs(60);
/// Reasons for which a Job, or its ConfigMap, is not created.
const REFUSALS: [Reason; 4] = [Reason::CreateRefused, Reason::NameTaken, Reason::InvalidSpec, Reason::ItemsUnavailable];

impl PodsDecider<'_> {
    /// Takes the next step of an object that is not being deleted. The steps, in their order:
    ///
    /// 1. Copy the logs of an object that has completed, and delete it after its time. Nothing else is done about it.
    /// 2. Record the queue: the conditions that follow depend on it.
    /// 3. Create the Job, suspended. Before 4: it is resumed only once it is recorded.
    /// 4. Bring the recorded Job to what the spec requests.
    pub(super) fn live(&mut self) {
        // 1.
        if self.known.phase == Phase::Completed {
            self.leave();
            return;
        }
        self.record_queue(); // 2.
        if self.record.job.is_none() {
            self.create(); // 3.
        } else {
            self.reconcile_job(); // 4.
        }
    }

    fn create(&mut self) {
        let facts = self.facts;
        let spec = match &facts.object.spec {
            Ok(Spec { refused: Some(SpecRefused { reason, message }), .. }) => {
                return self.set_not_submitted(*reason, message);
            }
            Ok(spec) => spec,
            Err(Unreadable { reason, message, requeue_after }) => {
                return self.set_not_submitted_and_requeue(*reason, message, *requeue_after);
            }
        };
        self.suspend(spec, None);
        let name = &facts.object.job_name;
        match &facts.job {
            JobObservation::Unknown(why) => {
                if why.is_empty() {
                    self.set_not_submitted(Reason::Waiting, "the operator lists the Jobs and Pods");
                } else {
                    self.set_not_submitted(Reason::WatchFailed, why);
                }
                self.requeue_within(self.pause_for(why));
            }
            JobObservation::Foreign(whose) => {
                let message = format!(
                    "there is a Job {name} already, and it is not this HTCJob's: {whose}. It is left alone: delete it, or create the HTCJob again"
                );
                self.set_not_submitted(Reason::NameTaken, message);
                self.requeue_within(UNWATCHED);
            }
            // Once this Job is gone, another can be created.
            JobObservation::Ours(_) => {
                let message = format!(
                    "Job {name} is being deleted, and has not run anything. The operator creates it again once it is gone"
                );
                self.set_not_submitted(Reason::Creating, message);
            }
            JobObservation::Absent if !self.known.new && !facts.object.submit_again => {
                let message = "another operator, or this one with a ledger that is lost, may have run the jobs, and there is no Job of it. Nothing is created. If you know that they have not run, or may run again, set the annotation htc.cern.ch/submit-again: \"true\"";
                self.set_not_submitted(Reason::PastUnknown, message);
            }
            JobObservation::Absent if facts.object.claim != Claim::Ours => self.action = PodsAction::AttachFinalizer,
            JobObservation::Absent => match &facts.creation {
                Creation::Refused { reason, message, requeue_after } => {
                    self.set_not_submitted_and_requeue(*reason, message, *requeue_after);
                }
                Creation::Allowed => {
                    let said = self.conditions.get(ConditionType::Submitted).and_then(|said| said.reason.parse().ok());
                    // The reason of a refusal stays while creation is tried again: one Event, not one for each try.
                    if said.is_none_or(|said| !REFUSALS.contains(&said)) {
                        self.set_not_submitted(Reason::Creating, format!("creating Job {name}"));
                    }
                    self.action = PodsAction::Create;
                }
            },
        }
    }

    fn reconcile_job(&mut self) {
        let name = self.facts.object.job_name.clone();
        let job = match self.own_job() {
            OwnJob::Unknown(why) => {
                if !why.is_empty() {
                    self.set_condition(ConditionType::Tracked, False, Reason::WatchFailed, why);
                }
                self.requeue_within(self.pause_for(why));
                return;
            }
            // The object has been given up already.
            OwnJob::Gone => return,
            OwnJob::Here(job) => job,
        };
        if self.conditions.get(ConditionType::Tracked).is_some_and(|told| told.status == False) {
            self.set_condition(ConditionType::Tracked, True, Reason::Tracking, "Jobs and Pods are seen again");
        }
        let Ok(spec) = &self.facts.object.spec else { return };
        // The condition stays until the limit does not apply any more: one Event.
        if !self.set_namespace_limit_condition(spec) {
            self.set_condition(ConditionType::Submitted, True, Reason::Accepted, format!("Job {name} is created"));
        }
        self.suspend(spec, Some(job));
        self.set_quota_condition(job);
        self.find_stuck(spec, job);
        if job.end.is_none() && job.failing.is_none() && !job.deleting {
            let wanted = self.desired_job(spec, job);
            let is = DesiredJob {
                suspend: job.suspended,
                parallelism: job.parallelism.unwrap_or(1),
                deadline: job.deadline,
            };
            if is != wanted {
                if is.suspend && !wanted.suspend {
                    // As in batch/v1, `status.startTime` is when the Job was last resumed.
                    self.known.started = Some(self.now);
                }
                self.action = PodsAction::UpdateJob(job.uid.clone(), wanted);
            }
        }
        self.keep_logs(false);
    }

    /// Returns the time until more may be known.
    pub(super) fn pause_for(&self, why: &str) -> Duration {
        if why.is_empty() { self.settings.soon } else { self.settings.backoff_first }
    }

    /// Sets `Suspended` to what is seen, not to what is desired.
    /// A Job that ends is not suspended any more: the condition stays.
    /// It also stays while it is not known whether the queue holds the Job.
    fn suspend(&mut self, spec: &Spec, job: Option<&BatchJob>) {
        if !spec.suspend {
            if self.facts.queue.as_ref().is_some_and(QueueFacts::is_unknown) {
                return;
            }
            self.clear_condition(ConditionType::Suspended, Reason::Resumed, self.why_resumed());
            return;
        }
        let seen = match (job, &self.facts.update_refused) {
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
        self.set_condition(ConditionType::Suspended, True, Reason::Suspended, message);
    }

    /// Deletes the object after `ttlSecondsAfterFinished`.
    fn leave(&mut self) {
        if !self.record.granted.is_empty() && matches!(self.own_job(), OwnJob::Gone) {
            // The quota is returned when the Pods are gone.
            self.requeue_within(self.settings.backoff_first);
        }
        self.keep_logs(false);
        if self.has_outlived_ttl() {
            self.action = PodsAction::DeleteObject;
        }
    }
}
