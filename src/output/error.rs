//! Errors of the operator's data volume.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinError;

use super::disk_budget::BudgetExceeded;

/// Reason why output or a sandbox cannot be stored. The texts are for users, and end with what to check.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Nothing was done: an earlier operation on the files of the same object has not ended.
    #[error(
        "the operator's data volume has not answered an earlier call for the files of this HTCJob; check the operator's data volume"
    )]
    Busy,
    /// Nothing was done: too many other operations hang.
    #[error("the operator's data volume does not answer: {0} calls wait for it; check the operator's data volume")]
    TooMany(usize),
    /// The operation has not ended within this limit, and goes on.
    #[error("the operator's data volume has not answered for {} s; check the operator's data volume", .0.as_secs())]
    TimedOut(Duration),
    #[error(transparent)]
    Panicked(JoinError),
    /// A file or a folder cannot be used in this way.
    #[error("cannot {what} {}: {source}; check the operator's data volume", path.display())]
    Failed { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot sync the output: {0}")]
    Sync(#[source] io::Error),
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// The namespace may store no more output. `bytes` and `limit` are of all its output, which is in `folder`.
    #[error(
        "no output is fetched: namespace {namespace} has {} MiB of output, and --namespace-output-limit is {} MiB. Delete HTCJobs whose output nobody needs (it is removed --output-retention later), or have the operator's administrator delete output in {}",
        bytes >> 20, limit >> 20, folder.display()
    )]
    NamespaceLimit { namespace: String, bytes: u64, limit: u64, folder: PathBuf },
}

impl VolumeError {
    pub(crate) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Failed { what, path: path.to_owned(), source }
    }
}
