use std::path::{Path, PathBuf};
use std::time::Duration;

/// What can go wrong with a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The servers, or a tool.
    #[error(transparent)]
    Bed(#[from] testbed::Error),
    /// The API server.
    #[error("cannot {doing}: {source}")]
    Kube {
        /// What was being done.
        doing: &'static str,
        /// Its words.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// One of HTCondor's tools failed.
    #[error("{tool} ended with {status}: {words}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// How it ended.
        status: String,
        /// What it said.
        words: String,
    },
    /// Something did not come about in time.
    #[error("waited {} s for {what}; last seen: {seen}", limit.as_secs())]
    Waited {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was there instead.
        seen: String,
    },
    /// The operator does not do what the measurement relies on.
    #[error("{0}")]
    Unexpected(String),
    /// Some rows could not be measured.
    #[error("not measured: {0}")]
    Rows(String),
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Names the file and the deed in an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::File { doing, path: path.to_owned(), source })
    }
}

/// Names the deed in an error of the Kubernetes client.
pub(crate) trait Asking<T> {
    fn asking(self, doing: &'static str) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Asking<T> for std::result::Result<T, E> {
    fn asking(self, doing: &'static str) -> Result<T> {
        self.map_err(|error| Error::Kube { doing, source: error.into() })
    }
}
