//! The queue of an object: an `HTCQueue`, or a `LocalQueue` of Kueue.

use std::fmt;

use strum::Display;

use crate::api::Reason;

/// What kind of queue it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Display)]
pub enum QueueKind {
    /// Of this operator.
    #[default]
    HTCQueue,
    /// Of Kueue.
    LocalQueue,
}

/// What is known of the queue that an object is in. It may submit, and release, only what has room there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queued {
    /// Whose it is.
    pub kind: QueueKind,
    /// Its name; empty as long as it is not known whether one applies.
    pub queue: String,
    /// Why there is no room for all that it asks for; none while that is not known.
    pub waits: Option<QueueWait>,
    /// It is gone, not for the object's namespace, or not known whether it applies: nothing begins and nothing is released, also what has
    /// room. What runs goes on, and what is held stays held.
    pub closed: bool,
    /// The queue holds all jobs: `stopPolicy: HoldAndDrain`, or Kueue does not admit the object any more, as `waits` says.
    /// `spec.suspend` in the facts is then true.
    pub drained: bool,
}

impl fmt::Display for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.queue.is_empty() { f.write_str("a queue") } else { write!(f, "{} {}", self.kind, self.queue) }
    }
}

impl Queued {
    /// The `HTCQueue` that the object is in, if that is known. Which LocalQueue of Kueue it is in says its label.
    #[must_use]
    pub fn is_in(&self) -> Option<&str> {
        match self.kind {
            QueueKind::HTCQueue if !self.closed => Some(&self.queue),
            QueueKind::HTCQueue | QueueKind::LocalQueue => None,
        }
    }

    /// Whether it is not known which queue applies, and nothing can be said of it.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.closed && self.waits.is_none()
    }

    /// What the condition `QuotaReserved` says of an object that has room.
    #[must_use]
    pub fn gives_room(&self) -> String {
        match &self.waits {
            Some(waits) if self.closed => format!("what runs of this HTCJob goes on: {}", waits.message),
            _ => format!("jobs of this HTCJob have room in {self}"),
        }
    }

    /// What an object waits for of which nothing can be said but that it waits.
    #[must_use]
    pub fn waits_for(&self) -> String {
        match &self.waits {
            Some(waits) => waits.message.clone(),
            None if self.closed => {
                "it is not known yet which queue applies: the operator is still listing HTCQueues and namespaces"
                    .to_owned()
            }
            None => format!("the other jobs wait for room in {self}"),
        }
    }

    /// Why all jobs are held, if the queue holds them.
    #[must_use]
    pub fn why_drained(&self) -> Option<String> {
        let says = || match (self.kind, &self.waits) {
            (QueueKind::HTCQueue, _) => format!("{self} has stopPolicy HoldAndDrain"),
            (QueueKind::LocalQueue, Some(waits)) => waits.message.clone(),
            (QueueKind::LocalQueue, None) => format!("it is not known yet whether {self} admits it"),
        };
        self.drained.then(says)
    }
}

/// Why there is no room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueWait {
    /// The reason in the condition `QuotaReserved`.
    pub reason: Reason,
    /// In words for the user.
    pub message: String,
    /// The place in the queue, from 1, roughly.
    pub place: Option<u32>,
}
