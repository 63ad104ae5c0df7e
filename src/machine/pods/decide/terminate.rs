//! The object is being deleted: its Job and Pods go first.

use std::time::Duration;

use super::logs::{Logs, WAITED_FOR};
use super::{Action, OwnJob, Permit, Run};
use crate::api::ConditionStatus::False;
use crate::api::{ConditionType, Reason};
use crate::machine::ids::Timestamp;
use crate::machine::phase::Phase;
use crate::machine::pods::facts::Left;
use crate::machine::pods::proofs::{NeverBegun, PodsGone};
use crate::machine::transitions::Trigger;

/// How long Pods may take to go before somebody should look.
const SLOW: Duration = Duration::from_secs(120);
/// For how long the Job of an `HTCJob` that is abandoned is asked to go.
const ASKED_FOR: Duration = Duration::from_secs(30);

impl Run<'_> {
    pub(super) fn terminate(&mut self) {
        if self.known.phase != Phase::Terminating {
            let detail = "the HTCJob is being deleted, its Job and Pods with it".to_owned();
            self.go(Trigger::Deleted, Phase::Terminating, detail, false);
        }
        if !self.facts.object.finalizer {
            return;
        }
        let name = self.facts.object.job_name.clone();
        if self.facts.object.abandon {
            self.abandon(name);
            return;
        }
        let none = self.record.job.is_none();
        // Proved from what is recorded, not from what this decision has come to know.
        if let Some(proof) = PodsGone::prove(self.facts) {
            let detail = if none { "no Job was begun".to_owned() } else { format!("Job {name} and its Pods are gone") };
            self.release(Permit::Gone(proof), detail, false);
            return;
        }
        match self.own_job() {
            OwnJob::Unknown(why) => {
                if why.is_empty() {
                    self.removing(&format!("Job {name}"));
                } else if let Some(proof) = NeverBegun::prove(self.facts) {
                    // Nobody can say whether there is a Job, for example because the operator runs none.
                    self.release(Permit::NeverBegun(proof), "no Job was begun".to_owned(), false);
                    return;
                } else {
                    self.say(ConditionType::JobsRemoved, False, Reason::WatchFailed, why);
                }
                self.look_again(self.pause_for(why));
            }
            OwnJob::Here(job) => {
                let waited = self.removing(&format!("Job {name}"));
                if job.deleting {
                    return;
                }
                // The Pods take their logs with them.
                if waited < WAITED_FOR && matches!(self.keep_logs(true), Logs::Wanted) {
                    self.look_again(WAITED_FOR.saturating_sub(waited));
                } else {
                    self.action = Action::DeleteJob(job.uid.clone());
                }
            }
            OwnJob::Gone => {
                let waited = self.removing(&format!("Pods of Job {name}"));
                match (self.facts.left, &self.facts.record.job) {
                    (Left::Some, Some(uid)) => self.action = Action::DeletePods(uid.clone()),
                    (Left::Some | Left::Unknown | Left::None, _) => {}
                }
                // A Pod that goes wakes the object only if it was seen. What lasts long is asked for after a tenth of that time.
                let longest = self.settings.pause_max.max(self.settings.pause_first);
                self.look_again((waited / 10).clamp(self.settings.pause_first, longest));
            }
        }
    }

    /// Nobody who may delete `HTCJob`s leaves a Job behind that still can be deleted: it is asked for until the Job goes, and for
    /// [`ASKED_FOR`] at most.
    fn abandon(&mut self, name: String) {
        let job = match self.own_job() {
            OwnJob::Here(job) if !job.deleting => Some(job.uid.clone()),
            // It cannot be seen, and may be there.
            OwnJob::Unknown(_) => self.record.job.clone(),
            OwnJob::Here(_) | OwnJob::Gone => None,
        };
        if let Some(job) = job.filter(|_| self.asked_for() < ASKED_FOR) {
            let message = format!(
                "abandoned by annotation: Job {name} is deleted if it can be, and the HTCJob goes, after {} s at the latest",
                ASKED_FOR.as_secs()
            );
            let news = self.told_abandoned().is_none();
            self.say(ConditionType::JobsRemoved, False, Reason::Abandoned, &message);
            if news {
                // It may have been False before for another reason.
                self.conditions.begins(ConditionType::JobsRemoved, self.now);
            }
            self.action = Action::DeleteJob(job);
            self.look_again(self.settings.pause_first);
        } else {
            let detail = format!("abandoned by annotation; Job {name} and its Pods may be left");
            self.release(Permit::Abandoned(name), detail, true);
        }
    }

    fn told_abandoned(&self) -> Option<Timestamp> {
        let told = self.conditions.get(ConditionType::JobsRemoved)?;
        (told.reason == Reason::Abandoned.to_string()).then_some(told.since)
    }

    /// For how long the Job of one that is abandoned has been asked to go.
    fn asked_for(&mut self) -> Duration {
        self.conditions.not_ahead(ConditionType::JobsRemoved, self.now);
        self.told_abandoned().map_or(Duration::ZERO, |since| self.now.since(since))
    }

    /// Says what is being removed; since when that is said.
    fn removing(&mut self, what: &str) -> Duration {
        let since = self.conditions.get(ConditionType::JobsRemoved).map_or(self.now, |told| told.since);
        let passed = self.now.since(since);
        if passed < SLOW {
            self.say(ConditionType::JobsRemoved, False, Reason::Removing, &format!("deleting {what}"));
            self.look_again(SLOW.saturating_sub(passed));
        } else {
            let message = format!(
                "{what} are still there more than {} s after the deletion: a node may not answer. `kubectl get pods -l batch.kubernetes.io/job-name={}` shows the Pods; the HTCJob goes when they have",
                SLOW.as_secs(),
                self.facts.object.job_name
            );
            self.say(ConditionType::JobsRemoved, False, Reason::NotRemovedYet, &message);
        }
        passed
    }

    fn release(&mut self, permit: Permit, detail: String, warning: bool) {
        if !self.known.released {
            self.known.released = true;
            self.tell(Some(Phase::Terminating), Trigger::Gone, None, detail, warning);
        }
        self.action = Action::ReleaseFinalizer(permit);
    }
}
