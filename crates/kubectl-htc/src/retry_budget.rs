//! Waits before a request is repeated: for as long as the server requests (`Retry-After`), within limits.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::line;
use crate::terminal::tell;

/// Maximum time of waiting, and when it began.
pub(super) struct RetryBudget {
    all: Duration,
    /// Since when the server has requested to wait; `None` if its last answer was a proper one.
    since: Cell<Option<Instant>>,
    told: Cell<bool>,
}

impl RetryBudget {
    pub(super) const fn new(all: Duration) -> Self {
        Self { all, since: Cell::new(None), told: Cell::new(false) }
    }

    /// Returns a budget that never waits: the caller repeats requests itself, or does not.
    pub(super) const fn none() -> Self {
        Self::new(Duration::ZERO)
    }

    /// Records a proper answer.
    pub(super) fn is_answered(&self) {
        self.since.set(None);
    }

    /// Waits for this time, if that is within the limit, and reports it once. Returns whether it has waited.
    pub(super) async fn waits(&self, pause: Duration, why: &str) -> bool {
        let now = Instant::now();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        if now.duration_since(since) + pause > self.all {
            return false;
        }
        if !self.told.replace(true) {
            tell!("{}: trying again for {} s", line(why), self.all.as_secs());
        }
        tokio::time::sleep(pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn retry_budget_is_exhausted_and_reset_by_an_answer() {
        let patience = RetryBudget::new(10 * MOMENT);
        while patience.waits(MOMENT, "later").await {}
        assert!(!patience.waits(MOMENT, "later").await, "it has ended for all that is asked");
        patience.is_answered();
        assert!(patience.waits(MOMENT, "later").await);
        assert!(!RetryBudget::none().waits(MOMENT, "later").await);
    }
}
