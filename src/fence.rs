//! Whether this operator may act. Checked right before every external effect and every Kubernetes write.
//!
//! All parts of a leader have the client that [`Fence::client`] makes: it checks by itself, so no part can forget to. Clients without a fence
//! write nothing that is the leader's: the Lease, by which the fence opens; the Secret with the keys of the jobs' tokens, which is created once
//! and never changed; and questions that are objects (a front asks whether a user may, `check` whether the operator may). Users who hold or
//! remove jobs reach the leader, and change its ledger. `order` names the files that make such clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tower::BoxError;

use crate::clock::{Clock, Reading};
use crate::machine::Timestamp;

/// By more than this the system's clock does not run ahead of the operator's between two renewals, unless the machine stood still:
/// then the Lease may have expired by the clocks of others.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Open while this operator leads and is not being stopped. It closes by itself when the Lease is not renewed in time,
/// whatever else hangs, and when the machine stood still since its last renewal. Clones share it.
#[derive(Clone, Debug)]
pub struct Fence {
    shared: Arc<Shared>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    renewed: Mutex<Option<Renewed>>,
}

/// The last good renewal of the Lease.
#[derive(Clone, Copy, Debug)]
struct Renewed {
    began: Reading,
    /// Until then it is good.
    until: Timestamp,
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
            return Err(Refused::Stopping);
        }
        let (renewed, now) = (*self.renewed(), self.clock.reading());
        let is_good = |renewed: Renewed| now.at < renewed.until && now.ahead_since(&renewed.began) <= TOLERANCE;
        if renewed.is_some_and(is_good) { Ok(()) } else { Err(Refused::NotLeading) }
    }

    /// The same client, but for requests that change something: those fail with [`Refused`] and are not sent while the fence is closed.
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

    /// The Lease was renewed, and that began then: open for so long after it.
    pub fn extend(&self, began: Reading, deadline: Duration) {
        let until = began.at.plus(deadline);
        let mut renewed = self.renewed();
        if renewed.is_none_or(|renewed| renewed.until < until) {
            *renewed = Some(Renewed { began, until });
        }
    }

    /// From now on nothing is begun any more.
    pub fn close(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    fn renewed(&self) -> std::sync::MutexGuard<'_, Option<Renewed>> {
        self.shared.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_open_only_while_the_lease_is_renewed() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        assert_eq!(fence.check(), Err(Refused::NotLeading));
        let began = clock.reading();
        fence.extend(began, MINUTE);
        assert_eq!(fence.check(), Ok(()));
        // A renewal that is answered late takes nothing back.
        fence.extend(began, Duration::ZERO);
        assert_eq!(fence.check(), Ok(()));
        fence.close();
        assert_eq!(fence.clone().check(), Err(Refused::Stopping));
    }

    #[test]
    fn it_closes_by_itself() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        fence.extend(clock.reading(), Duration::ZERO);
        assert_eq!(fence.check(), Err(Refused::NotLeading));
    }

    /// The operator's clock stands still while its machine is paused, and the Lease expires meanwhile.
    #[test]
    fn a_pause_of_the_machine_closes_it_until_the_next_renewal() {
        let clock = Clock::default();
        let fence = Fence::new(clock);
        fence.extend(clock.reading().behind(Duration::from_millis(1500)), MINUTE);
        assert_eq!(fence.check(), Err(Refused::NotLeading));
        fence.extend(clock.reading(), 2 * MINUTE);
        assert_eq!(fence.check(), Ok(()));
    }
}
