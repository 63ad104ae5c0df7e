//! Objects that are being deleted: deletes their Job and Pods first.

use std::time::Duration;

use super::logs::{Logs, WAITED_FOR};
use super::{PodsAction, PodsDecider, PodsReleasePermit};
use crate::condition::ConditionStatus::False;
use crate::condition::{ConditionType, Reason};
use crate::ids::Timestamp;
use crate::pods::facts::{LeftoverPods, OwnJob};
use crate::pods::proofs::{NeverBegun, PodsGone};

/// How long Pods may take to disappear before a person should look.
const SLOW: Duration = Duration::from_secs(120);
/// How long deletion of the Job is tried for an `HTCJob` that is abandoned.
const ASKED_FOR: Duration = Duration::from_secs(30);

impl PodsDecider<'_> {
    /// Deletes the Job and the Pods of an object that is being deleted, and releases it. The steps, in their order:
    ///
    /// 1. Move to `Terminating`.
    /// 2. Do nothing more about an object without our finalizer.
    /// 3. Delete the Job of an abandoned object for a while, and release it. Before 4 to 7, which may wait for ever.
    /// 4. Release an object whose Job and Pods are proved gone. Before 5 to 7: nothing is left to be deleted.
    /// 5. Wait while the Job cannot be seen, but release an object whose Job was never begun.
    /// 6. Copy the logs, for a while, then delete the Job: the logs are deleted with the Pods.
    /// 7. Delete the Pods that a deleted Job has left.
    pub(super) fn terminate(&mut self) {
        self.begin_termination(|_| "the HTCJob is being deleted, its Job and Pods with it".to_owned()); // 1.
        // 2.
        if !self.facts.object.finalizer {
            return;
        }
        let name = self.facts.object.job_name.clone();
        // 3.
        if self.facts.object.abandon {
            self.abandon(name);
            return;
        }
        let none = self.record.job.is_none();
        // 4. Proved from what was recorded before, not from what this decision adds.
        if let Some(proof) = PodsGone::prove(self.facts) {
            let detail = if none { "no Job was begun".to_owned() } else { format!("Job {name} and its Pods are gone") };
            self.release(PodsReleasePermit::Gone(proof), detail, false);
            return;
        }
        match self.own_job() {
            // 5.
            OwnJob::Unknown(why) => {
                if why.is_empty() {
                    self.removing(&format!("Job {name}"));
                } else if let Some(proof) = NeverBegun::prove(self.facts) {
                    // It cannot be known whether there is a Job, for example because the operator does not run Jobs.
                    self.release(PodsReleasePermit::NeverBegun(proof), "no Job was begun".to_owned(), false);
                    return;
                } else {
                    self.set_condition(ConditionType::JobsRemoved, False, Reason::WatchFailed, why);
                }
                self.requeue_within(self.pause_for(why));
            }
            // 6.
            OwnJob::Here(job) => {
                let waited = self.removing(&format!("Job {name}"));
                if job.deleting {
                    return;
                }
                if waited < WAITED_FOR && matches!(self.keep_logs(true), Logs::Wanted) {
                    self.requeue_within(WAITED_FOR.saturating_sub(waited));
                } else {
                    self.action = PodsAction::DeleteJob(job.uid.clone());
                }
            }
            // 7.
            OwnJob::Gone => {
                let waited = self.removing(&format!("Pods of Job {name}"));
                match (self.facts.leftover_pods, &self.facts.record.job) {
                    (LeftoverPods::Some, Some(uid)) => self.action = PodsAction::DeletePods(uid.clone()),
                    (LeftoverPods::Some | LeftoverPods::Unknown | LeftoverPods::None, _) => {}
                }
                // The end of a Pod triggers a reconcile only if the Pod was seen. A long wait is checked after each
                // tenth of its length so far.
                let longest = self.settings.backoff_max.max(self.settings.backoff_first);
                self.requeue_within((waited / 10).clamp(self.settings.backoff_first, longest));
            }
        }
    }

    /// Abandons the object, but not a Job that can still be deleted, so that users cannot leave Jobs behind.
    /// Deletion is tried until the Job is being deleted, and for [`ASKED_FOR`] at most.
    fn abandon(&mut self, name: String) {
        let job = match self.own_job() {
            OwnJob::Here(job) if !job.deleting => Some(job.uid.clone()),
            // It cannot be seen, and may exist.
            OwnJob::Unknown(_) => self.record.job.clone(),
            OwnJob::Here(_) | OwnJob::Gone => None,
        };
        if let Some(job) = job.filter(|_| self.asked_for() < ASKED_FOR) {
            let message = format!(
                "abandoned by annotation: Job {name} is deleted if it can be, and the HTCJob goes, after {} s at the latest",
                ASKED_FOR.as_secs()
            );
            let news = self.told_abandoned().is_none();
            self.set_condition(ConditionType::JobsRemoved, False, Reason::Abandoned, &message);
            if news {
                // The condition may have been False before for another reason.
                self.conditions.begins(ConditionType::JobsRemoved, self.now);
            }
            self.action = PodsAction::DeleteJob(job);
            self.requeue_within(self.settings.backoff_first);
        } else {
            let detail = format!("abandoned by annotation; Job {name} and its Pods may be left");
            self.release(PodsReleasePermit::Abandoned(name), detail, true);
        }
    }

    fn told_abandoned(&self) -> Option<Timestamp> {
        let told = self.conditions.get(ConditionType::JobsRemoved)?;
        (told.reason == Reason::Abandoned.to_string()).then_some(told.since)
    }

    /// Returns for how long deletion of an abandoned Job has been tried.
    fn asked_for(&mut self) -> Duration {
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        self.told_abandoned().map_or(Duration::ZERO, |since| self.now.since(since))
    }

    /// Sets the condition to what is being removed. Returns for how long it has been False.
    fn removing(&mut self, what: &str) -> Duration {
        let since = self.conditions.get(ConditionType::JobsRemoved).map_or(self.now, |told| told.since);
        let passed = self.now.since(since);
        if passed < SLOW {
            self.set_condition(ConditionType::JobsRemoved, False, Reason::Removing, format!("deleting {what}"));
            self.requeue_within(SLOW.saturating_sub(passed));
        } else {
            let message = format!(
                "{what} are still there more than {} s after the deletion: a node may not answer. `kubectl get pods -l batch.kubernetes.io/job-name={}` shows the Pods; the HTCJob goes when they have",
                SLOW.as_secs(),
                self.facts.object.job_name
            );
            self.set_condition(ConditionType::JobsRemoved, False, Reason::NotRemovedYet, &message);
        }
        passed
    }

    fn release(&mut self, permit: PodsReleasePermit, detail: String, warning: bool) {
        self.record_release(detail, warning);
        self.action = PodsAction::ReleaseFinalizer(permit);
    }
}
