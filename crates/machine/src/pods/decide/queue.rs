//! Objects in a queue: their Job runs as many Pods at a time as have quota, and is suspended while none has.

use super::{DesiredJob, PodsDecider};
use crate::condition::ConditionStatus::False;
use crate::condition::ConditionType::QuotaReserved;
use crate::condition::Reason;
use crate::facts::{QueueWait, Spec};
use crate::pods::facts::BatchJob;
use crate::pods::quota_usage::left;

impl PodsDecider<'_> {
    /// Returns the desired Job, within the limits of its queue and its namespace.
    pub(super) fn desired_job(&self, spec: &Spec, job: &BatchJob) -> DesiredJob {
        let asked = DesiredJob::of(spec);
        if self.facts.queue.is_none() && self.facts.namespace_limit.is_none() {
            return asked;
        }
        let (now, left) = (job.parallelism.unwrap_or(1), self.left(spec));
        let (room, waits) = if self.was_never_counted() {
            // The Job goes on as it is, and quota for it is granted afterwards.
            (now, job.suspended)
        } else if self.is_closed() {
            // Running Pods go on, and no new ones begin.
            let room = now.min(self.room());
            (room, job.suspended || room == 0)
        } else {
            let room = self.room();
            // A controller that creates no Pods does not report that it has seen a lower number. It does report a
            // suspension.
            let untold = asked.parallelism == 0 && !job.settled && !self.record.granted.is_empty();
            (room, room == 0 && asked.parallelism > 0 || untold)
        };
        let at_a_time = asked.parallelism.min(room).min(left);
        // The last Pods are fewer than that without a change.
        let parallelism = if waits || now.min(left) == at_a_time { now } else { at_a_time };
        // Before the Job controller has seen the resumption, it cannot report that the Pods are gone.
        let suspend = (asked.suspend || waits) && (job.suspended || job.is_begun());
        DesiredJob { suspend, parallelism, ..asked }
    }

    /// Whether nothing may begin, not even Pods with quota.
    fn is_closed(&self) -> bool {
        self.facts.queue.as_ref().is_some_and(|queue| queue.closed)
    }

    /// Whether the Job was resumed without quota: the ledger was lost, or the queue applies only since then.
    fn was_never_counted(&self) -> bool {
        self.facts.queue.is_some() && self.record.granting_queue.is_none() && !self.facts.record.is_kept_back()
    }

    /// Returns the number of Pods that have quota.
    fn room(&self) -> u32 {
        let granted = self.facts.queue.as_ref().map(|_| self.record.granted.len());
        let most = granted.into_iter().chain(self.facts.namespace_limit).min();
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    fn left(&self, spec: &Spec) -> u32 {
        u32::try_from(left(spec, &self.record)).unwrap_or(u32::MAX)
    }

    /// Sets the condition for the namespace's limit, and returns true, if that limit keeps Pods from running.
    pub(super) fn set_namespace_limit_condition(&mut self, spec: &Spec) -> bool {
        let Some(room) = self.facts.namespace_limit else { return false };
        let wants = DesiredJob::of(spec).parallelism.min(self.left(spec)) as usize;
        let granted = self.facts.queue.as_ref().map_or(usize::MAX, |_| self.record.granted.len());
        let keeps_back = !spec.suspend && room < wants && room <= granted;
        if keeps_back {
            self.requeue_within(self.settings.fetch_every);
            let message = format!(
                "the namespace has as many active jobs as --namespace-active-jobs allows: {room} of {wants} Pods of this HTCJob may run at a time, and more when others end. Delete HTCJobs that nobody needs"
            );
            self.set_not_submitted(Reason::NamespaceLimitReached, message);
        }
        keeps_back
    }

    /// Sets `QuotaReserved`. It is True from the first job's grant until all quota is returned.
    pub(super) fn set_quota_condition(&mut self, job: &BatchJob) {
        let facts = self.facts;
        let Some(queue) = &facts.queue else { return self.set_no_queue_condition("run at once") };
        let kept_back = facts.record.is_kept_back();
        let ran_before = self.record.granting_queue.is_none() && !job.suspended && !kept_back;
        let reserved = !self.record.granted.is_empty() || ran_before;
        if self.set_reserved_condition(queue, reserved, kept_back) {
            return;
        }
        if facts.namespace_limit == Some(0) {
            let message = format!(
                "this HTCJob keeps no quota in {queue} while its namespace has none: the condition Submitted says more"
            );
            self.set_condition(QuotaReserved, False, Reason::Waiting, message);
        } else if let Some(QueueWait { reason, message, .. }) = &queue.wait {
            self.set_condition(QuotaReserved, False, *reason, message);
        } else if kept_back && self.conditions.get(QuotaReserved).is_none() {
            let message = format!("it is not decided yet whether jobs of this HTCJob get quota in {queue}");
            self.set_condition(QuotaReserved, False, Reason::Waiting, message);
        }
    }
}
