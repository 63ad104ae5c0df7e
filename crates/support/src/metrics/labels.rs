//! Labels of the metrics.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FailureLabels {
    pub(super) step: &'static str,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VerdictLabels {
    pub(super) verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ToolLabels {
    pub(super) tool: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallbackLabels {
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AdLabels {
    pub(super) pool: Arc<str>,
    pub(super) place: &'static str,
    pub(super) owner: &'static str,
    /// Old name of `owner`, for one release.
    pub(super) whose: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PoolLabel {
    pub(super) pool: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CredentialLabels {
    pub(super) pool: Arc<str>,
    pub(super) owner: &'static str,
    /// Old name of `owner`, for one release.
    pub(super) whose: &'static str,
}

impl AdLabels {
    pub(super) fn new(pool: &Arc<str>, place: &'static str, owner: &'static str) -> Self {
        Self { pool: Arc::clone(pool), place, owner, whose: if owner == "none" { "nobody" } else { owner } }
    }
}

impl CredentialLabels {
    pub(super) fn new(pool: &Arc<str>, owner: &'static str) -> Self {
        Self { pool: Arc::clone(pool), owner, whose: owner }
    }
}
