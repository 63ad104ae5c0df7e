//! What can go wrong, said so that the reader knows what to do next.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The one error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as in "writing".
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program could not be started, failed, or ran past its time limit.
    #[error("{doing}: `{command}` {outcome}{output}")]
    Tool {
        /// What was being done.
        doing: String,
        /// The command line.
        command: String,
        /// How it ended.
        outcome: String,
        /// The end of what it wrote, with a leading line break, or nothing.
        output: String,
    },
    /// A condition did not come true in time.
    #[error("waited {limit:?} for {what}; last seen: {last}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What the last look showed.
        last: String,
    },
    /// An artefact is not in the cache.
    #[error("{what} is not in the cache {}: run `cargo run -p testbed -- setup` (or `make setup`)", cache.display())]
    NotSetUp {
        /// The artefact.
        what: String,
        /// The folder looked in.
        cache: PathBuf,
    },
    /// This machine lacks something that only its owner can change.
    #[error("{problem}; {remedy}")]
    Machine {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The demo, the proof in a cluster, or what the API server was asked for did not go as it should.
    #[error("could not {doing}: {outcome}")]
    Demo {
        /// What was being done.
        doing: String,
        /// What came of it.
        outcome: String,
    },
    /// A certificate could not be made.
    #[error("making the certificate {name}: {source}")]
    Certificate {
        /// Its name.
        name: String,
        /// What rcgen said.
        source: rcgen::Error,
    },
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Names the file and the deed in an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.to_owned(), source })
    }
}
