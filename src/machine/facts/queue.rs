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
