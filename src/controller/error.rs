//! Why a pass over one object failed.

use std::time::Duration;

use strum::IntoStaticStr;

use super::writes::PutOff;
use crate::fence::Refused;
use crate::kubernetes::ApiError;
use crate::ledger::LedgerError;
use crate::machine::transitions::IllegalTransition;

/// Why a pass failed, by the step in which it did. It is tried again with growing pauses.
#[derive(Debug, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ReconcileError {
    /// The facts are not known.
    #[error("cannot gather the facts: {0}")]
    Gather(#[source] GatherError),
    /// There is no decision.
    #[error(transparent)]
    Decide(IllegalTransition),
    /// The decision is not durable: nothing was begun.
    #[error("cannot commit the decision: {0}")]
    Commit(#[source] LedgerError),
    /// What was decided was not carried out.
    #[error(transparent)]
    Act(WriteError),
    /// The status was not written.
    #[error(transparent)]
    Publish(WriteError),
}

/// Why the facts are not known.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The object has no uid or namespace.
    #[error("the API server sent an HTCJob without {0}")]
    Nameless(&'static str),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Why something was not written to the API server.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// It was not tried.
    #[error(transparent)]
    PutOff(#[from] PutOff),
}

impl WriteError {
    /// Nothing was sent, as this operator may not write now.
    pub(super) const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_fence_closed())
    }
}

impl ReconcileError {
    /// This operator may not write now: the next leader goes on.
    pub(super) const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::Act(error) | Self::Publish(error) if error.is_fence_closed())
    }

    /// For metrics: a few words each.
    pub(super) fn step_and_reason(&self) -> (&'static str, &'static str) {
        let reason = match self {
            Self::Gather(GatherError::Nameless(_)) => "Nameless",
            Self::Gather(GatherError::Ledger(_)) | Self::Commit(_) => "Ledger",
            Self::Decide(_) => "IllegalTransition",
            Self::Act(WriteError::Api(error)) | Self::Publish(WriteError::Api(error)) => match error {
                ApiError::Failed { .. } => "Failed",
                ApiError::Silent { .. } => "Silent",
                ApiError::FenceClosed { source: Refused::Stopping, .. } => "Stopping",
                ApiError::FenceClosed { source: Refused::NotLeading, .. } => "NotLeading",
            },
            Self::Act(WriteError::PutOff(PutOff)) | Self::Publish(WriteError::PutOff(PutOff)) => "PutOff",
        };
        (self.into(), reason)
    }

    /// How long the API server asks to be left alone.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            Self::Act(WriteError::Api(error)) | Self::Publish(WriteError::Api(error)) => error.retry_after(),
            Self::Gather(_)
            | Self::Decide(_)
            | Self::Commit(_)
            | Self::Act(WriteError::PutOff(_))
            | Self::Publish(WriteError::PutOff(_)) => Duration::ZERO,
        }
    }
}
