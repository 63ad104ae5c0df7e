//! Fence: whether this operator may act. It is checked right before every external effect and every Kubernetes write.
//!
//! All parts of a leader use the client that [`Fence::client`] returns. That client checks the fence itself, so no part
//! can forget to. Clients without a fence write none of the leader's objects. They write the Lease, which opens the
//! fence; the Secret with the keys of the jobs' tokens, which is created once and never changed; and review objects,
//! which ask whether a user or the operator may do something (in the front ends and in `check`). Requests of users to
//! hold or remove jobs reach the leader and change its ledger. `order` names the files that create such clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use htc_machine::Timestamp;
use http::Request;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tower::BoxError;

use crate::clock::{Clock, Reading};

/// Maximum that the system's clock may run ahead of the operator's between two renewals. More means that the machine
/// was suspended, so by the clocks of others the Lease may have expired.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Fence that is open while this operator leads and is not being stopped. It closes by itself if the Lease is not
/// renewed in time, whatever else hangs, and if the machine was suspended after the last renewal. Clones share it.
#[derive(Clone, Debug)]
pub struct Fence {
    shared: Arc<FenceState>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct FenceState {
    stopping: AtomicBool,
    renewed: Mutex<Option<Renewed>>,
}

/// Last successful renewal of the Lease.
#[derive(Clone, Copy, Debug)]
struct Renewed {
    began: Reading,
    /// Time until which the renewal is valid.
    until: Timestamp,
}

/// Reason why this operator may not act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceClosed {
    /// The operator is being stopped.
    #[error("this operator is being stopped")]
    Stopping,
    /// The Lease was not renewed in time.
    #[error("this operator does not lead: its Lease was not renewed in time")]
    NotLeading,
}

impl Fence {
    /// Creates a fence that is closed until it is extended.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { shared: Arc::default(), clock }
    }

    /// Fails if this operator may not act.
    pub fn check(&self) -> Result<(), FenceClosed> {
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(FenceClosed::Stopping);
        }
        let (renewed, now) = (*self.renewed(), self.clock.reading());
        let is_good = |renewed: Renewed| now.at < renewed.until && now.ahead_since(&renewed.began) <= TOLERANCE;
        if renewed.is_some_and(is_good) { Ok(()) } else { Err(FenceClosed::NotLeading) }
    }

    /// Returns a client that behaves like `plain`, except for requests that change something. While the fence is
    /// closed, these fail with [`FenceClosed`] and are not sent.
    #[must_use]
    pub fn client(&self, plain: &Client) -> Client {
        let (fence, inner) = (self.clone(), plain.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (fence, inner) = (fence.clone(), inner.clone());
            async move {
                if !request.method().is_safe() {
                    fence.check()?;
                }
                Ok::<_, BoxError>(inner.send(request).await?)
            }
        });
        Client::new(service, plain.default_namespace()).with_valid_until(*plain.valid_until())
    }

    /// Opens the fence for `deadline` after `began`, the start of a successful renewal of the Lease.
    pub fn extend(&self, began: Reading, deadline: Duration) {
        let until = began.at.plus(deadline);
        let mut renewed = self.renewed();
        if renewed.is_none_or(|renewed| renewed.until < until) {
            *renewed = Some(Renewed { began, until });
        }
    }

    /// Closes the fence for good: nothing new is started.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    fn renewed(&self) -> parking_lot::MutexGuard<'_, Option<Renewed>> {
        self.shared.renewed.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn fence_is_open_only_while_the_lease_is_renewed() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        assert_eq!(fence.check(), Err(FenceClosed::NotLeading));
        let began = clock.reading();
        fence.extend(began, MINUTE);
        assert_eq!(fence.check(), Ok(()));
        // A renewal that is answered late does not shorten the current one.
        fence.extend(began, Duration::ZERO);
        assert_eq!(fence.check(), Ok(()));
        fence.close();
        assert_eq!(fence.clone().check(), Err(FenceClosed::Stopping));
    }

    #[test]
    fn fence_closes_at_its_deadline() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        fence.extend(clock.reading(), Duration::ZERO);
        assert_eq!(fence.check(), Err(FenceClosed::NotLeading));
    }

    /// The operator's clock stands still while its machine is paused, and the Lease expires meanwhile.
    #[test]
    fn machine_pause_closes_the_fence_until_the_next_renewal() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        fence.extend(clock.reading().behind(Duration::from_millis(1500)), MINUTE);
        assert_eq!(fence.check(), Err(FenceClosed::NotLeading));
        fence.extend(clock.reading(), 2 * MINUTE);
        assert_eq!(fence.check(), Ok(()));
    }
}
