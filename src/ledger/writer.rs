//! What the thread does that owns the file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::LedgerError;
use crate::health::Health;
use crate::metrics::Metrics;

/// The number of the transaction under way, in an SQL statement.
pub(super) const NUMBER: &str = "(select value + 1 from ledger where key = 'sequence')";

/// Most statements in one transaction.
const BATCH: usize = 512;

/// Runs its statements; without a connection it only gives its answer, which is then that of the failed transaction.
pub(super) type Task = Box<dyn FnOnce(Option<&Connection>) -> Answer + Send>;
/// Sends the task's own result once the transaction's fate is known.
pub(super) type Answer = Box<dyn FnOnce(Result<(), NotCommitted>) + Send>;

/// Why a transaction was not committed, for each of its tasks.
#[derive(Clone, Debug)]
pub(super) enum NotCommitted {
    /// SQLite's words.
    Sql(String),
    /// This file is no longer the one that is open.
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

/// What the thread is asked for.
pub(super) enum Message {
    Task(Task),
    /// Bring what is in the log into the file, and say whether that was done.
    Checkpoint(oneshot::Sender<bool>),
    /// Close the file, and say so.
    Close(oneshot::Sender<()>),
}

/// The open file.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) files: Files,
    /// Of the last transaction that changed something.
    pub(super) sequence: Arc<AtomicI64>,
    /// What was last written was committed; taken to be so until a write fails.
    pub(super) writable: bool,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
}

impl Writer {
    /// Works until it is told to close the file, or the last handle is gone.
    pub(super) fn serve(mut self, receiver: &Receiver<Message>) {
        while let Ok(first) = receiver.recv() {
            self.health.ledger_at_work();
            let mut tasks: Vec<Task> = Vec::new();
            let mut checkpoints = Vec::new();
            for message in std::iter::once(first).chain(receiver.try_iter().take(BATCH - 1)) {
                match message {
                    Message::Task(task) => tasks.push(task),
                    Message::Checkpoint(done) => checkpoints.push(done),
                    Message::Close(closed) => {
                        self.carry_out(tasks);
                        if let Err((_, error)) = self.connection.close() {
                            tracing::warn!(%error, "the ledger could not be closed");
                        }
                        let _ = closed.send(());
                        self.health.ledger_at_rest();
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
            self.health.ledger_at_rest();
        }
    }

    /// One transaction for all of them, and then their answers.
    fn carry_out(&mut self, tasks: Vec<Task>) {
        let (count, since) = (tasks.len(), Instant::now());
        self.metrics.ledger_queue(-i64::try_from(count).unwrap_or(0));
        let (answers, committed) = self.transact(tasks);
        self.metrics.transaction(count, since.elapsed());
        self.writable = committed.as_ref().is_ok_and(|changed| *changed || self.writable || self.can_write());
        self.health.ledger_writable(self.writable);
        if let Err(why) = &committed {
            tracing::error!(error = %LedgerError::from(why.clone()), "nothing is stored");
        }
        let committed = committed.map(drop);
        for answer in answers {
            answer(committed.clone());
        }
    }

    /// Whether the transaction has changed anything, if it was committed.
    fn transact(&mut self, tasks: Vec<Task>) -> (Vec<Answer>, Result<bool, NotCommitted>) {
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
            self.health.ledger_at_work();
            task(Some(&transaction))
        };
        let answers = tasks.into_iter().map(run).collect();
        self.health.ledger_at_work();
        let changed = transaction.total_changes() != before;
        // A statement may have raised it.
        let stored = if changed { count(&transaction).map(Some) } else { Ok(None) };
        let committed = stored.and_then(|next| transaction.commit().map(|()| next));
        if let Ok(Some(next)) = committed {
            self.sequence.store(next, Ordering::SeqCst);
        }
        // Asked again, since an answer means that it is there to stay.
        let stays = committed.map_err(NotCommitted::from).and_then(|_| self.files.check());
        (answers, stays.map(|()| changed))
    }

    /// Whether the file can be written again; that it can be read does not tell.
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

/// Counts one transaction more; its number.
fn count(connection: &Connection) -> rusqlite::Result<i64> {
    let next = stored_sequence(connection)? + 1;
    connection
        .prepare_cached("update ledger set value = ?1 where key = 'sequence'")?
        .execute([next.to_string()])
        .map(|_| next)
}

/// The sequence number as it stands in the file.
pub(super) fn stored_sequence(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("select cast(value as integer) from ledger where key = 'sequence'")?
        .query_row([], |row| row.get(0))
}

/// The files that the connection has open, each with the device and inode that were found under its name.
pub(super) struct Files(Vec<(PathBuf, Option<(u64, u64)>)>);

impl Files {
    /// The database, and the log that holds what is not in it yet.
    pub(super) fn of(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        Self([path.to_owned(), PathBuf::from(log)].into_iter().map(|path| (path.clone(), inode(&path))).collect())
    }

    /// Fails when a name no longer leads to the open file: whatever is written then is lost with the last handle.
    fn check(&self) -> Result<(), NotCommitted> {
        let gone = self.0.iter().find(|(path, found)| inode(path) != *found);
        gone.map_or(Ok(()), |(path, _)| Err(NotCommitted::Gone(path.clone())))
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Brings all that is in the log into the file; whether that was done. Nothing depends on it but what is seen from outside.
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
    fn that_the_file_can_be_read_does_not_say_that_it_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        let connection = Connection::open(&path).unwrap();
        super::super::schema::migrate(&connection).unwrap();
        connection.execute_batch("insert or ignore into ledger(key, value) values ('sequence', 0)").unwrap();
        let files = Files::of(&path);
        let mut writer = Writer {
            connection,
            files,
            sequence: Arc::default(),
            writable: true,
            metrics: Metrics::default(),
            health: Health::default(),
        };
        let (write, read) = ("insert into ledger(key, value) values (1, 1)", "select count(*) from ledger");
        // Stands in for a disk that is full: nothing is committed any more.
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
