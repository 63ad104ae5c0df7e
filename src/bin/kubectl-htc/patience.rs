//! What comes in a moment is waited for, for as long as the server says (`Retry-After`), and within limits.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::line;
use super::say::tell;

/// How long is waited, and since when.
pub(super) struct Patience {
    all: Duration,
    /// Since when the server says so; none if its last answer was one.
    since: Cell<Option<Instant>>,
    told: Cell<bool>,
}

impl Patience {
    pub(super) const fn new(all: Duration) -> Self {
        Self { all, since: Cell::new(None), told: Cell::new(false) }
    }

    /// It does not wait: whoever has it asks again by himself, or does not.
    pub(super) const fn none() -> Self {
        Self::new(Duration::ZERO)
    }

    /// There was an answer.
    pub(super) fn is_answered(&self) {
        self.since.set(None);
    }

    /// Waits for so long, if that is within the limit, and says so once; whether it has.
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
    async fn it_ends_and_begins_anew_with_an_answer() {
        let patience = Patience::new(10 * MOMENT);
        while patience.waits(MOMENT, "later").await {}
        assert!(!patience.waits(MOMENT, "later").await, "it has ended for all that is asked");
        patience.is_answered();
        assert!(patience.waits(MOMENT, "later").await);
        assert!(!Patience::none().waits(MOMENT, "later").await);
    }
}
