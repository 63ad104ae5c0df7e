//! Requests: the one in flight, and the last of each kind.

use crate::api::Reason;
use crate::machine::ids::{Attempt, Kind, RequestKey, Timestamp};
use crate::machine::rules::Rules;

/// The last request of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LastRequest {
    /// The attempt it belonged to.
    pub attempt: Attempt,
    /// How many of this kind there were, this one included.
    pub step: u32,
    /// When it was taken up.
    pub started: Timestamp,
    /// When its tool had ended; none if that was not seen.
    pub finished: Option<Timestamp>,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Failures in a row, this one included.
    pub failures: u32,
}

impl LastRequest {
    /// When it ended, or began if its end was not seen.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.finished.unwrap_or(self.started)
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// One word, for a condition.
    pub reason: String,
    /// In words for the admin.
    pub message: String,
}

impl Failure {
    /// What went wrong.
    #[must_use]
    pub fn new(reason: Reason, message: String) -> Self {
        Self { reason: reason.to_string(), message }
    }

    /// Its reason, unless another version of the operator wrote it.
    #[must_use]
    pub fn known_reason(&self) -> Option<Reason> {
        self.reason.parse().ok()
    }
}

/// A request that has been handed over and not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    /// Which.
    pub key: RequestKey,
    /// Whether its worker has taken it up.
    pub running: bool,
}

impl InFlight {
    /// Whether it can be taken back: one that no worker has taken up, and a transfer of output, which a worker stops half way.
    #[must_use]
    pub fn can_be_cancelled(&self, rules: &Rules) -> bool {
        !self.running || (self.key.kind == Kind::Fetch && rules.stop_transfers)
    }
}
