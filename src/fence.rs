//! Whether this operator may act. Checked right before every external effect and every Kubernetes write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::clock::Clock;
use crate::machine::Timestamp;

/// Open while this operator leads and is not being stopped. It closes by itself when the Lease is not renewed in time,
/// whatever else hangs. Clones share it.
#[derive(Clone, Debug)]
pub struct Fence {
    shared: Arc<Shared>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// Milliseconds on the operator's clock.
    open_until: AtomicI64,
}

/// Why this operator may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has been told to stop.
    #[error("this operator is being stopped")]
    Stopping,
    /// Its Lease was not renewed in time.
    #[error("this operator does not lead: its Lease was not renewed in time")]
    NotLeading,
}

impl Fence {
    /// Closed until it is extended.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { shared: Arc::default(), clock }
    }

    /// Fails once this operator may no longer act.
    pub fn check(&self) -> Result<(), Refused> {
        if self.shared.stopping.load(Ordering::SeqCst) {
            Err(Refused::Stopping)
        } else if self.clock.now().0 >= self.shared.open_until.load(Ordering::SeqCst) {
            Err(Refused::NotLeading)
        } else {
            Ok(())
        }
    }

    /// The Lease was renewed: open until then.
    pub fn extend(&self, until: Timestamp) {
        self.shared.open_until.fetch_max(until.0, Ordering::SeqCst);
    }

    /// From now on nothing is begun any more.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_is_open_only_while_the_lease_is_renewed() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        assert_eq!(fence.check(), Err(Refused::NotLeading));
        let limit = clock.now().plus(Duration::from_secs(60));
        fence.extend(limit);
        assert_eq!(fence.check(), Ok(()));
        // A renewal that is answered late takes nothing back.
        fence.extend(Timestamp(0));
        assert_eq!(fence.check(), Ok(()));
        fence.close();
        assert_eq!(fence.clone().check(), Err(Refused::Stopping));
    }

    #[test]
    fn it_closes_by_itself() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        fence.extend(clock.now());
        assert_eq!(fence.check(), Err(Refused::NotLeading));
    }
}
