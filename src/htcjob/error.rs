//! Errors of the reconcile of one object.

use std::time::Duration;

use htc_ledger::LedgerError;
use htc_machine::transitions::IllegalTransition;
use htc_support::fence::FenceClosed;
use htc_support::kubernetes::ApiError;
use strum::IntoStaticStr;

use crate::htcjob::write_limiter::Throttled;

/// Why a reconcile failed, by its step. It is retried with growing pauses.
#[derive(Debug, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ReconcileError {
    /// The facts could not be gathered.
    #[error("cannot gather the facts: {0}")]
    Gather(#[from] GatherError),
    /// The decision is not a legal transition.
    #[error(transparent)]
    Decide(#[from] IllegalTransition),
    /// The decision was not written to the ledger; nothing was started.
    #[error("cannot commit the decision: {0}")]
    Commit(#[from] LedgerError),
    /// The decision was not carried out.
    #[error(transparent)]
    Act(#[from] ActError),
    /// The status was not written.
    #[error(transparent)]
    Publish(#[from] WriteError),
}

/// Why the facts could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    #[error("the API server sent an HTCJob without {0}")]
    Nameless(&'static str),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Why a decision was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The items or the files of a submission could not be read.
    #[error("cannot read the items and files of the jobs: {0}")]
    Items(#[from] LedgerError),
}

/// Why a write to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The write was not attempted.
    #[error(transparent)]
    Throttled(#[from] Throttled),
}

impl WriteError {
    /// Whether nothing was sent because this operator may not write now.
    pub(super) const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_fence_closed())
    }
}

impl ReconcileError {
    /// Failed write of an action or of the status.
    const fn write(&self) -> Option<&WriteError> {
        match self {
            Self::Act(ActError::Write(error)) | Self::Publish(error) => Some(error),
            Self::Gather(_) | Self::Decide(_) | Self::Commit(_) | Self::Act(ActError::Items(_)) => None,
        }
    }

    /// Whether this operator may not write now; the next leader continues.
    pub(super) fn is_fence_closed(&self) -> bool {
        self.write().is_some_and(WriteError::is_fence_closed)
    }

    /// Labels for metrics: few distinct values each.
    pub(super) fn step_and_reason(&self) -> (&'static str, &'static str) {
        let reason = match self {
            Self::Gather(GatherError::Nameless(_)) => "IncompleteObject",
            Self::Gather(GatherError::Ledger(_)) | Self::Commit(_) | Self::Act(ActError::Items(_)) => "Ledger",
            Self::Decide(_) => "IllegalTransition",
            Self::Act(ActError::Write(error)) | Self::Publish(error) => match error {
                WriteError::Throttled(Throttled) => "Throttled",
                WriteError::Api(ApiError::Failed { .. }) => "Failed",
                WriteError::Api(ApiError::TimedOut { .. }) => "TimedOut",
                WriteError::Api(ApiError::FenceClosed { source: FenceClosed::Stopping, .. }) => "Stopping",
                WriteError::Api(ApiError::FenceClosed { source: FenceClosed::NotLeading, .. }) => "NotLeading",
            },
        };
        (self.into(), reason)
    }

    /// `Retry-After` of the API server.
    pub(super) fn retry_after(&self) -> Duration {
        match self.write() {
            Some(WriteError::Api(error)) => error.retry_after(),
            Some(WriteError::Throttled(_)) | None => Duration::ZERO,
        }
    }
}
