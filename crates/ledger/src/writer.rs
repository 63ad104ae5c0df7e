//! Main loop of the thread that owns the ledger file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use htc_support::health::Health;
use htc_support::metrics::Metrics;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::LedgerError;

/// SQL expression for the number of the current transaction.
pub(super) const NUMBER: &str = "(select value + 1 from ledger where key = 'sequence')";

/// Maximum number of tasks in one transaction.
const BATCH: usize = 512;

/// Runs a task's statements. Without a connection it runs nothing, and the reply is the error of the failed
/// transaction.
pub(super) type Task = Box<dyn FnOnce(Option<&Connection>) -> Reply + Send>;
/// Sends the task's result once it is known whether the transaction was committed.
pub(super) type Reply = Box<dyn FnOnce(Result<(), NotCommitted>) + Send>;

/// Reason why a transaction was not committed, for each of its tasks.
#[derive(Clone, Debug)]
pub(super) enum NotCommitted {
    /// Error of SQLite.
    Sql(String),
    /// The file at this path is no longer the open one.
    Gone(PathBuf),
}

impl From<rusqlite::Error> for NotCommitted {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error.to_string())
    }
}

impl From<NotCommitted> for LedgerError {
    fn from(why: NotCommitted) -> Self {
        match why {
            NotCommitted::Sql(words) => Self::Commit(words),
            NotCommitted::Gone(path) => Self::Gone { path },
        }
    }
}

/// Request to the thread.
pub(super) enum Message {
    Task(Task),
    /// Moves the log into the file. Replies whether all of it was moved.
    Checkpoint(oneshot::Sender<bool>),
    /// Closes the file, then replies.
    Close(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) files: OpenFiles,
    /// Number of the last transaction that changed the file.
    pub(super) sequence: Arc<AtomicI64>,
    /// Whether the last write was committed. True until a write fails.
    pub(super) writable: bool,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
}

impl Writer {
    /// Handles messages until it is asked to close the file or the last handle is dropped.
    pub(super) fn serve(mut self, receiver: &Receiver<Message>) {
        while let Ok(first) = receiver.recv() {
            self.health.ledger_busy();
            let mut tasks: Vec<Task> = Vec::new();
            let mut checkpoints = Vec::new();
            for message in std::iter::once(first).chain(receiver.try_iter().take(BATCH - 1)) {
                match message {
                    Message::Task(task) => tasks.push(task),
                    Message::Checkpoint(done) => checkpoints.push(done),
                    Message::Close(closed) => {
                        self.carry_out(tasks);
                        if let Err((_, error)) = self.connection.close() {
                            tracing::warn!(%error, "ledger not closed");
                        }
                        let _ = closed.send(());
                        self.health.ledger_idle();
                        return;
                    }
                }
            }
            if !tasks.is_empty() {
                self.carry_out(tasks);
            }
            for done in checkpoints {
                let _ = done.send(checkpoint(&self.connection));
            }
            self.health.ledger_idle();
        }
    }

    /// Runs all tasks in one transaction and then sends their replies.
    fn carry_out(&mut self, tasks: Vec<Task>) {
        let (count, since) = (tasks.len(), Instant::now());
        self.metrics.ledger_queue(-i64::try_from(count).unwrap_or(0));
        let (answers, committed) = self.transact(tasks);
        self.metrics.transaction(count, since.elapsed());
        self.writable = committed.as_ref().is_ok_and(|changed| *changed || self.writable || self.can_write());
        self.health.ledger_writable(self.writable);
        if let Err(why) = &committed {
            tracing::error!(error = %LedgerError::from(why.clone()), "transaction not stored");
        }
        let committed = committed.map(drop);
        for answer in answers {
            answer(committed.clone());
        }
    }

    /// Runs tasks in one transaction. Returns their replies and, if it was committed, whether anything changed.
    fn transact(&mut self, tasks: Vec<Task>) -> (Vec<Reply>, Result<bool, NotCommitted>) {
        let begun = self
            .files
            .check()
            .and_then(|()| Ok(self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?));
        let transaction = match begun {
            Ok(transaction) => transaction,
            Err(why) => return (tasks.into_iter().map(|task| task(None)).collect(), Err(why)),
        };
        let before = transaction.total_changes();
        let run = |task: Task| {
            self.health.ledger_busy();
            task(Some(&transaction))
        };
        let answers = tasks.into_iter().map(run).collect();
        self.health.ledger_busy();
        let changed = transaction.total_changes() != before;
        // A task may have raised the number itself.
        let stored = if changed { count(&transaction).map(Some) } else { Ok(None) };
        let committed = stored.and_then(|next| transaction.commit().map(|()| next));
        if let Ok(Some(next)) = committed {
            self.sequence.store(next, Ordering::SeqCst);
        }
        // Checks the files again after the commit, because a reply means that the change is permanent.
        let stays = committed.map_err(NotCommitted::from).and_then(|_| self.files.check());
        (answers, stays.map(|()| changed))
    }

    /// Whether the file can be written again. A successful read does not prove that.
    fn can_write(&self) -> bool {
        match count(&self.connection) {
            Ok(next) => {
                self.sequence.store(next, Ordering::SeqCst);
                true
            }
            Err(_) => false,
        }
    }
}

/// Increments the sequence number and returns it.
fn count(connection: &Connection) -> rusqlite::Result<i64> {
    let next = stored_sequence(connection)? + 1;
    connection
        .prepare_cached("update ledger set value = ?1 where key = 'sequence'")?
        .execute([next.to_string()])
        .map(|_| next)
}

/// Returns the sequence number stored in the file.
pub(super) fn stored_sequence(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("select cast(value as integer) from ledger where key = 'sequence'")?
        .query_row([], |row| row.get(0))
}

/// Files that the connection has open, each with the device and inode found under its name.
pub(super) struct OpenFiles(Vec<(PathBuf, Option<(u64, u64)>)>);

impl OpenFiles {
    /// Returns the database file and its write-ahead log.
    pub(super) fn of(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        Self([path.to_owned(), PathBuf::from(log)].into_iter().map(|path| (path.clone(), inode(&path))).collect())
    }

    /// Fails if a name no longer refers to the open file: what is written then is lost when the last handle is closed.
    fn check(&self) -> Result<(), NotCommitted> {
        let gone = self.0.iter().find(|(path, found)| inode(path) != *found);
        gone.map_or(Ok(()), |(path, _)| Err(NotCommitted::Gone(path.clone())))
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Moves the content of the log into the file. Returns whether all of it was moved. Only readers from outside depend on
/// it.
pub(super) fn checkpoint(connection: &Connection) -> bool {
    let all =
        |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(0)? == 0 && row.get::<_, i64>(1)? == row.get::<_, i64>(2)?);
    connection.query_row("pragma wal_checkpoint(passive)", [], all).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(sql: &'static str) -> Task {
        Box::new(move |connection| {
            connection.unwrap().execute_batch(sql).unwrap();
            Box::new(|_| ())
        })
    }

    #[test]
    fn readable_file_does_not_count_as_writable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let connection = Connection::open(&path).unwrap();
        super::super::schema::migrate(&connection).unwrap();
        connection.execute_batch("insert or ignore into ledger(key, value) values ('sequence', 0)").unwrap();
        let files = OpenFiles::of(&path);
        let mut writer = Writer {
            connection,
            files,
            sequence: Arc::default(),
            writable: true,
            metrics: Metrics::default(),
            health: Health::default(),
        };
        let (write, read) = ("insert into ledger(key, value) values (1, 1)", "select count(*) from ledger");
        // Simulates a full disk: nothing can be committed.
        let full = "create trigger full before update on ledger begin select raise(abort, 'full'); end";
        writer.connection.execute_batch(full).unwrap();
        writer.carry_out(vec![task(write)]);
        assert!(!writer.writable);
        writer.carry_out(vec![task(read)]);
        assert!(!writer.writable);
        writer.connection.execute_batch("drop trigger full").unwrap();
        writer.carry_out(vec![task(read)]);
        assert!(writer.writable && writer.sequence.load(Ordering::SeqCst) == 1);
        writer.carry_out(vec![task(read)]);
        assert_eq!(writer.sequence.load(Ordering::SeqCst), 1, "a read changes nothing");
    }
}
