//! What a spec takes from ConfigMaps, items and files: read once, before the first submission, and kept in the ledger.

use std::time::Duration;

use htc_api::{Reason, Use};
use htc_machine::facts::Unreadable;
use htc_support::consent::{self, SourceError};
use k8s_openapi::api::core::v1::ConfigMap;

use super::memory::Content;
use super::pass::Pass;

/// State of the object whose spec is read.
pub(super) struct SpecState {
    /// Whether it has our finalizer and is not being deleted.
    pub(super) ours: bool,
    /// Whether the ledger has a row for it.
    pub(super) recorded: bool,
    /// Whether jobs of it were submitted.
    pub(super) submitted: bool,
}

/// Content that is read once.
pub(super) enum ReadOnce<T> {
    /// The ledger has it.
    Kept(T),
    /// Jobs were submitted, but the content was lost with a ledger.
    Lost,
    /// It is not known yet.
    NotYet(Unreadable),
}

impl<T> ReadOnce<T> {
    /// Returns what is known of content that the ledger does not have; `None` if it is to be read now.
    pub(super) fn before_reading(pass: &Pass<'_>, content: Content, state: &SpecState) -> Option<Self> {
        // The ConfigMaps may have changed since those jobs were submitted.
        if state.submitted {
            return Some(Self::Lost);
        }
        if let Some(not_yet) = before_record(content.name(), state) {
            return Some(Self::NotYet(not_yet));
        }
        let (message, wait) = pass.context.memory.read_failed_before(&pass.uid, content, pass.now())?;
        Some(Self::unavailable(content, message, wait))
    }

    /// Records that the content could not be read. It is read again after a pause.
    pub(super) fn failed(pass: &Pass<'_>, content: Content, error: &impl ToString) -> Self {
        let message = error.to_string();
        let wait = pass.context.memory.read_failed(&pass.uid, content, &message, pass.now());
        Self::unavailable(content, message, wait)
    }

    fn unavailable(content: Content, message: String, wait: Duration) -> Self {
        let reason = match content {
            Content::Items => Reason::ItemsUnavailable,
            Content::Files => Reason::InputsUnavailable,
        };
        Self::NotYet(Unreadable { reason, message, requeue_after: Some(wait) })
    }
}

/// Returns that the content is not read yet, if the ledger has no row for the object.
pub(super) fn before_record(content: &str, state: &SpecState) -> Option<Unreadable> {
    let message = format!("the {content} can be read once the HTCJob is recorded");
    let requeue_after = state.ours.then_some(Duration::ZERO);
    (!state.ours || !state.recorded).then_some(Unreadable { reason: Reason::Waiting, message, requeue_after })
}

impl Content {
    const fn name(self) -> &'static str {
        match self {
            Self::Items => "items",
            Self::Files => "files",
        }
    }

    const fn consent(self) -> Use {
        match self {
            Self::Items => Use::Items,
            Self::Files => Use::Files,
        }
    }
}

/// Reads a ConfigMap of the object's namespace, if its label allows this use.
pub(super) async fn get(pass: &Pass<'_>, content: Content, name: &str) -> Result<ConfigMap, SourceError> {
    consent::read(&pass.context.client, content.consent(), &pass.name.namespace, name).await
}
