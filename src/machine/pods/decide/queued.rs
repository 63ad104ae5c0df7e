//! Objects in a queue: their Job runs as many Pods at a time as there is room for, and is suspended while there is none.

use super::{Adjust, Run};
use crate::api::ConditionStatus::{False, True};
use crate::api::ConditionType::{QuotaReserved, Submitted};
use crate::api::Reason;
use crate::machine::facts::{QueueKind, QueueWait, Queued, Spec};
use crate::machine::pods::facts::BatchJob;
use crate::machine::pods::room::left;

impl Run<'_> {
    /// How the Job is to be, within what its queue and its namespace give.
    pub(super) fn wanted(&self, spec: &Spec, job: &BatchJob) -> Adjust {
        let asked = Adjust::of(spec);
        if self.facts.queue.is_none() && self.facts.namespace_room.is_none() {
            return asked;
        }
        let (now, left) = (job.parallelism.unwrap_or(1), self.left(spec));
        let (room, waits) = if self.was_never_counted() {
            // It goes on as it is, and is granted that.
            (now, job.suspended)
        } else if self.is_closed() {
            // What runs goes on, and nothing begins.
            let room = now.min(self.room());
            (room, job.suspended || room == 0)
        } else {
            let room = self.room();
            // A controller that makes no Pods has nothing to tell about a smaller number: that it is suspended it tells.
            let untold = asked.parallelism == 0 && !job.settled && !self.record.granted.is_empty();
            (room, room == 0 && asked.parallelism > 0 || untold)
        };
        let at_a_time = asked.parallelism.min(room).min(left);
        // The last ones are less than that by themselves.
        let parallelism = if waits || now.min(left) == at_a_time { now } else { at_a_time };
        // Before the Job controller has seen that it was resumed, it cannot say that the Pods are gone.
        let suspend = (asked.suspend || waits) && (job.suspended || job.is_begun());
        Adjust { suspend, parallelism, ..asked }
    }

    /// Whether nothing may begin, also of what has room.
    fn is_closed(&self) -> bool {
        self.facts.queue.as_ref().is_some_and(|queue| queue.closed)
    }

    /// Notes in which queue it is, before anything is said of it.
    pub(super) fn keep_queue(&mut self) {
        if let Some(queue) = self.facts.queue.as_ref().and_then(Queued::is_in) {
            self.known.queue = Some(queue.to_owned());
        }
    }

    /// The ledger was lost, or the queue applies only since it was resumed.
    fn was_never_counted(&self) -> bool {
        self.facts.queue.is_some() && self.record.queue.is_none() && !self.facts.record.is_kept_back()
    }

    /// How many Pods have room.
    fn room(&self) -> u32 {
        let granted = self.facts.queue.as_ref().map(|_| self.record.granted.len());
        let most = granted.into_iter().chain(self.facts.namespace_room).min();
        most.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    fn left(&self, spec: &Spec) -> u32 {
        u32::try_from(left(spec, &self.record)).unwrap_or(u32::MAX)
    }

    /// Says that the namespace has no more room, if it is that which keeps some of it back.
    pub(super) fn say_share(&mut self, spec: &Spec) -> bool {
        let Some(room) = self.facts.namespace_room else { return false };
        let wants = Adjust::of(spec).parallelism.min(self.left(spec)) as usize;
        let granted = self.facts.queue.as_ref().map_or(usize::MAX, |_| self.record.granted.len());
        let keeps_back = !spec.suspend && room < wants && room <= granted;
        if keeps_back {
            self.look_again(self.settings.fetch_every);
            let message = format!(
                "the namespace has as many active jobs as --namespace-active-jobs allows: {room} of {wants} Pods of this HTCJob may run at a time, and more when others end. Delete HTCJobs that nobody needs"
            );
            self.say(Submitted, False, Reason::NamespaceLimit, &message);
        }
        keeps_back
    }

    /// Says whether it has room: from when the first of its jobs has until all of it is given back.
    pub(super) fn say_quota(&mut self, spec: &Spec, job: &BatchJob) {
        let told = self.conditions.get(QuotaReserved).map(|told| told.status);
        let Some(queue @ Queued { kind, waits, drained, .. }) = &self.facts.queue else {
            if told.is_some() {
                self.say(QuotaReserved, True, Reason::NoQueue, "no queue applies: the jobs run at once");
            }
            return;
        };
        let kept_back = self.facts.record.is_kept_back();
        let ran_before = self.record.queue.is_none() && !job.suspended && !kept_back;
        if !self.record.granted.is_empty() || ran_before {
            let message = queue.gives_room();
            self.say(QuotaReserved, True, Reason::QuotaReserved, &message);
        } else if *drained && *kind == QueueKind::LocalQueue {
            // Where nothing is known yet, what was told stays.
            if let Some(QueueWait { reason, message, .. }) = waits {
                self.say(QuotaReserved, False, *reason, message);
            }
        } else if spec.suspend {
            let why = if *drained { "the queue is being drained" } else { "spec.suspend is true" };
            if told.is_some() || kept_back {
                let message = format!("{why}: no job of this HTCJob has room in {queue}");
                self.say(QuotaReserved, False, Reason::Suspended, &message);
            }
        } else if self.facts.namespace_room == Some(0) {
            let message = format!(
                "this HTCJob keeps no room in {queue} while its namespace has none: the condition Submitted says more"
            );
            self.say(QuotaReserved, False, Reason::Waiting, &message);
        } else if let Some(QueueWait { reason, message, .. }) = waits {
            self.say(QuotaReserved, False, *reason, message);
        } else if kept_back && told.is_none() {
            let message = format!("it has not been decided yet whether jobs of this HTCJob have room in {queue}");
            self.say(QuotaReserved, False, Reason::Waiting, &message);
        }
    }

    /// Why its Job is not suspended any more.
    pub(super) fn why_resumed(&self) -> &'static str {
        match self.facts.queue.as_ref().map(|queue| queue.kind) {
            Some(QueueKind::LocalQueue) => "spec.suspend is false, and Kueue admits the HTCJob",
            Some(QueueKind::HTCQueue) | None => "spec.suspend is false",
        }
    }

    /// Why its Job is suspended.
    pub(super) fn why_suspended(&self) -> String {
        let drained = self.facts.queue.as_ref().and_then(Queued::why_drained);
        drained.unwrap_or_else(|| "spec.suspend is true".to_owned())
    }
}
