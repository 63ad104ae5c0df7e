//! Limits writes to the API server about `HTCJob`s, because each occupies a reconcile. A namespace whose writes take
//! long, for example because a webhook hangs, gets only a share of the reconciles.

use htc_api::ObjectName;
use htc_support::fair_limiter::{FairLimiter, Shares};
use htc_support::kubernetes::{unless_changed, with_timeout};

use super::WriteError;

/// Writes in flight, by namespace.
#[derive(Debug)]
pub struct WriteLimiter(FairLimiter);

/// The write was not attempted: too many writes are in flight in namespaces where they take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("other writes about HTCJobs of this namespace take long; check the webhooks and policies for HTCJobs")]
pub struct Throttled;

impl WriteLimiter {
    /// Creates a limiter that leaves three quarters of `reconciles` to namespaces that are not slow.
    #[must_use]
    pub fn new(reconciles: u16) -> Self {
        let slow = usize::from(reconciles / 4).max(1);
        let (all, each) = (Shares::UNLIMITED, Shares::UNLIMITED);
        let what = "a write about an HTCJob took long: check the webhooks and policies for HTCJobs";
        Self(FairLimiter::new(what, Shares { all, each, slow, each_slow: (slow / 2).max(1) }))
    }

    /// Sends `request`, which does `what` to an `HTCJob`. Returns false if the object has changed since it was read.
    pub(super) async fn write<T>(
        &self,
        what: &'static str,
        name: &ObjectName,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<bool, WriteError> {
        match self.ask(what, name, request).await {
            Ok(_) => Ok(true),
            Err(WriteError::Api(error)) => Ok(unless_changed::<T>(Err(error))?),
            Err(error) => Err(error),
        }
    }

    /// Like [`Self::write`], but returns the answer.
    pub(super) async fn ask<T>(
        &self,
        what: &'static str,
        name: &ObjectName,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        let turn = self.0.try_acquire(&name.namespace).ok_or(Throttled)?;
        let result = with_timeout(what, name, request).await;
        turn.finish();
        Ok(result?)
    }
}
