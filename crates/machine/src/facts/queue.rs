//! Facts about the queue of an object: an `HTCQueue`, or a `LocalQueue` of Kueue.

use std::fmt;

use strum::Display;

use crate::condition::Reason;

/// Kind of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Display)]
pub enum QueueKind {
    /// An `HTCQueue` of this operator.
    #[default]
    HTCQueue,
    /// A `LocalQueue` of Kueue.
    LocalQueue,
}

/// Facts about the queue that an object is in. The object may submit and release only jobs that have quota there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueFacts {
    /// Kind of the queue.
    pub kind: QueueKind,
    /// Name of the queue; empty while it is not known whether the object is in one.
    pub queue: String,
    /// Why the queue has no quota for all jobs that need it; none while that is not known.
    pub wait: Option<QueueWait>,
    /// True if the queue is gone, is not for the object's namespace, or it is not known whether it applies.
    /// No job is then submitted or released, not even one that has quota. Running jobs go on, held jobs stay held.
    pub closed: bool,
    /// True if the queue holds all jobs: `stopPolicy: HoldAndDrain`, or Kueue does not admit the object any more (see
    /// `wait`).
    /// `spec.suspend` in the facts is then true.
    pub drained: bool,
}

impl fmt::Display for QueueFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.queue.is_empty() { f.write_str("a queue") } else { write!(f, "{} {}", self.kind, self.queue) }
    }
}

impl QueueFacts {
    /// Returns the name of the `HTCQueue` that the object is in, if that is known. None for Kueue: there the object's
    /// label names the LocalQueue.
    #[must_use]
    pub fn is_in(&self) -> Option<&str> {
        match self.kind {
            QueueKind::HTCQueue if !self.closed => Some(&self.queue),
            QueueKind::HTCQueue | QueueKind::LocalQueue => None,
        }
    }

    /// Whether it is not known which queue applies.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.closed && self.wait.is_none()
    }

    /// Returns the message of the condition `QuotaReserved` for an object that has quota.
    #[must_use]
    pub fn reserved_message(&self) -> String {
        match &self.wait {
            Some(waits) if self.closed => format!("what runs of this HTCJob goes on: {}", waits.message),
            _ => format!("jobs of this HTCJob have quota in {self}"),
        }
    }

    /// Returns the message for an object that waits for its queue.
    #[must_use]
    pub fn waiting_message(&self) -> String {
        match &self.wait {
            Some(waits) => waits.message.clone(),
            None if self.closed => {
                "it is not known yet which queue applies: the operator is still listing HTCQueues and namespaces"
                    .to_owned()
            }
            None => format!("the other jobs wait for quota in {self}"),
        }
    }

    /// Returns why all jobs are held, if the queue holds them.
    #[must_use]
    pub fn drained_message(&self) -> Option<String> {
        let says = || match (self.kind, &self.wait) {
            (QueueKind::HTCQueue, _) => format!("{self} has stopPolicy HoldAndDrain"),
            (QueueKind::LocalQueue, Some(waits)) => waits.message.clone(),
            (QueueKind::LocalQueue, None) => format!("it is not known yet whether {self} admits it"),
        };
        self.drained.then(says)
    }
}

/// Why the queue grants no quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueWait {
    /// Reason for the condition `QuotaReserved`.
    pub reason: Reason,
    /// Message for the user.
    pub message: String,
    /// Approximate position in the queue, from 1.
    pub position: Option<u32>,
}

/// Returns the reason and the cause why an `HTCJob` that is suspended has no quota.
pub(crate) const fn suspension_cause(drained: bool) -> (Reason, &'static str) {
    if drained {
        (Reason::QueueStopped, "the queue is being drained")
    } else {
        (Reason::Suspended, "spec.suspend is true")
    }
}
