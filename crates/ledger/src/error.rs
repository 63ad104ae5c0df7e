use std::path::PathBuf;

/// Errors of the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process holds the file.
    #[error(
        "the ledger {path} is held by another process: stop the other htc-operator, or give this one another --data-dir"
    )]
    Locked {
        /// Path of the ledger file.
        path: PathBuf,
    },
    /// The folder or file cannot be made or opened.
    #[error("cannot open the ledger {path}: {source}; check that its folder exists and is writable")]
    Open {
        path: PathBuf,
        /// Error of SQLite or of the operating system.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file was written by a later version.
    #[error(
        "the ledger {path} has schema {found}, this operator knows {known}: use the version that wrote it, or a later one"
    )]
    TooNew {
        path: PathBuf,
        /// `user_version` of the file.
        found: i64,
        /// Newest version that this operator knows.
        known: i64,
    },
    /// A statement failed. None of its changes were stored.
    #[error("the ledger could not {what}: {source}; check the disk's space and health")]
    Sql {
        /// Operation that failed.
        what: &'static str,
        source: rusqlite::Error,
    },
    /// A row has a value that this version of the operator never writes.
    #[error("the ledger's row of {what} cannot be read: {detail}")]
    Row {
        /// Object or item that the row belongs to.
        what: String,
        /// Description of the invalid value.
        detail: String,
    },
    /// The transaction that contained the statements was not committed.
    #[error("the ledger could not commit: {0}; check the disk's space and health")]
    Commit(String),
    /// The file belongs to an operator of another name or of another cluster.
    #[error(
        "the ledger belongs to operator {stored}, and this is {ours}: the jobs in HTCondor carry the other name and would not be found; \
         start with the same --operator-namespace and --operator-name for the same cluster as before, or with another --data-dir"
    )]
    AnotherOperator {
        /// Cluster, namespace and name of the operator in the file.
        stored: String,
        /// Cluster, namespace and name of this operator.
        ours: String,
    },
    /// The file was deleted, moved or replaced while it was open.
    #[error(
        "the ledger {path} is no longer the file that this operator has open: somebody deleted, moved or replaced it. The operator does nothing without it. \
         Put that very file back, or restart the operator: it then looks for its jobs in HTCondor before it does anything"
    )]
    Gone {
        /// Path of the ledger file.
        path: PathBuf,
    },
    /// The thread of the ledger has ended.
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
