//! Writes to the API server about `HTCJob`s. Each keeps a reconcile waiting. Where they take long, because a webhook hangs for example,
//! a namespace has only a share of the reconciles.

use super::WriteError;
use crate::api::ObjectName;
use crate::kubernetes::{limited, unless_changed};
use crate::turns::{Shares, Turns};

/// The writes under way, by namespace.
#[derive(Debug)]
pub struct Writes(Turns);

/// Too many writes are under way in namespaces where they take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("other writes about HTCJobs of this namespace take long; check the webhooks and policies for HTCJobs")]
pub struct PutOff;

impl Writes {
    /// Three quarters of so many reconciles are for namespaces that are not slow.
    #[must_use]
    pub fn new(reconciles: u16) -> Self {
        let slow = usize::from(reconciles / 4).max(1);
        let (all, each) = (Shares::UNLIMITED, Shares::UNLIMITED);
        let what = "a write about an HTCJob took long: check the webhooks and policies for HTCJobs";
        Self(Turns::new(what, Shares { all, each, slow, each_slow: (slow / 2).max(1) }))
    }

    /// Does `what` to an `HTCJob`; false if it is no longer the one that was seen.
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

    /// The same where the answer itself is wanted.
    pub(super) async fn ask<T>(
        &self,
        what: &'static str,
        name: &ObjectName,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        let turn = self.0.try_next(&name.namespace).ok_or(PutOff)?;
        let result = limited(what, name, request).await;
        turn.ended();
        Ok(result?)
    }
}
