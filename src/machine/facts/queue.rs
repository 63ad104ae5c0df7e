//! The `HTCQueue` of an object.

use crate::api::Reason;

/// What is known of the queue that an object is in. It may submit, and release, only what has room there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queued {
    /// Its name.
    pub queue: String,
    /// Why there is no room for all that it asks for; none while that is not known.
    pub waits: Option<QueueWait>,
    /// The queue holds all jobs: `stopPolicy: HoldAndDrain`. `spec.suspend` in the facts is then true.
    pub drained: bool,
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
