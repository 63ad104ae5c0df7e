use std::path::PathBuf;

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process holds the file.
    #[error(
        "the ledger {path} is held by another process: stop the other htc-operator, or give this one another --data-dir"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The folder or file cannot be made or opened.
    #[error("cannot open the ledger {path}: {source}; check that its folder exists and is writable")]
    Open {
        /// The file.
        path: PathBuf,
        /// SQLite's or the system's words.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file was written by a later version.
    #[error(
        "the ledger {path} has schema {found}, this operator knows {known}: use the version that wrote it, or a later one"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its `user_version`.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// A statement failed; nothing of it was stored.
    #[error("the ledger could not {what}: {source}; check the disk's space and health")]
    Sql {
        /// What was being done.
        what: &'static str,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// A row has something that no version of this operator writes.
    #[error("the ledger's row of {what} cannot be read: {detail}")]
    Row {
        /// Which row.
        what: String,
        /// What is wrong.
        detail: String,
    },
    /// The transaction that this was part of was not committed.
    #[error("the ledger could not commit: {0}; check the disk's space and health")]
    Commit(String),
    /// The file is that of an operator of another name, or of another cluster.
    #[error(
        "the ledger belongs to operator {stored}, and this is {ours}: the jobs in HTCondor carry the other name and would not be found; \
         start with the same --operator-namespace and --operator-name for the same cluster as before, or with another --data-dir"
    )]
    AnotherOperator {
        /// Cluster, namespace and name in the file.
        stored: String,
        /// This operator's.
        ours: String,
    },
    /// The file was deleted, moved or replaced while it was open.
    #[error(
        "the ledger {path} is no longer the file that this operator has open: somebody deleted, moved or replaced it. The operator does nothing without it. \
         Put that very file back, or restart the operator: it then looks for its jobs in HTCondor before it does anything"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The ledger's thread is gone.
    #[error("the ledger has stopped; restart the operator")]
    Stopped,
}

impl LedgerError {
    pub(super) fn sql(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sql { what, source }
    }

    pub(super) fn row(what: &impl ToString, detail: &impl ToString) -> Self {
        Self::Row { what: what.to_string(), detail: detail.to_string() }
    }
}
