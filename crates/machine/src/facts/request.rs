//! Facts about requests: the one in flight, and the last of each kind.

use crate::condition::Reason;
use crate::ids::{Attempt, RequestKey, RequestKind, Timestamp};
use crate::rules::Rules;

/// Last request of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LastRequest {
    /// Attempt that the request belonged to.
    pub attempt: Attempt,
    /// Number of requests of this kind so far, this one included.
    pub step: u32,
    /// When a worker took up the request.
    pub started: Timestamp,
    /// When its tool had ended; none if that was not seen.
    pub finished: Option<Timestamp>,
    /// Failure; none if the request succeeded, or its end was not seen.
    pub failure: Option<RequestFailure>,
    /// Number of failures in a row, this one included.
    pub failures: u32,
}

impl LastRequest {
    /// Returns when the request ended, or when it began if its end was not seen.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.finished.unwrap_or(self.started)
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestFailure {
    /// Reason for a condition, in one word.
    pub reason: String,
    /// Message for an administrator.
    pub message: String,
}

impl RequestFailure {
    /// Creates a failure with a known reason.
    #[must_use]
    pub fn new(reason: Reason, message: String) -> Self {
        Self { reason: reason.to_string(), message }
    }

    /// Returns the reason; none if another version of the operator wrote it.
    #[must_use]
    pub fn known_reason(&self) -> Option<Reason> {
        self.reason.parse().ok()
    }
}

/// A request that was handed to a worker and has no result yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    /// Key of the request.
    pub key: RequestKey,
    /// Whether a worker has taken it up.
    pub running: bool,
}

impl InFlight {
    /// Whether the request can be cancelled: it is still queued, or it is a transfer of output, which a worker can stop
    /// halfway.
    #[must_use]
    pub fn can_be_cancelled(&self, rules: &Rules) -> bool {
        !self.running || (self.key.kind == RequestKind::Fetch && rules.stop_transfers)
    }
}
