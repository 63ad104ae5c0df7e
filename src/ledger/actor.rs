//! The thread that owns the file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::oneshot;

use super::{LedgerError, schema};

/// Most statements that wait for the thread.
const QUEUE: usize = 4096;
/// Most statements in one transaction.
const BATCH: usize = 512;

/// Runs its statements; without a connection it only gives its answer, which is then that of the failed transaction.
type Task = Box<dyn FnOnce(Option<&Connection>) -> Answer + Send>;
/// Sends the task's own result once the transaction's fate is known.
type Answer = Box<dyn FnOnce(Result<(), NotCommitted>) + Send>;

/// Why a transaction was not committed, for each of its tasks.
#[derive(Clone, Debug)]
enum NotCommitted {
    /// SQLite's words.
    Sql(String),
    /// This file is no longer the one that is open.
    Gone(PathBuf),
}

impl From<NotCommitted> for LedgerError {
    fn from(why: NotCommitted) -> Self {
        match why {
            NotCommitted::Sql(words) => Self::Commit(words),
            NotCommitted::Gone(path) => Self::Gone { path },
        }
    }
}

/// The ledger: a handle to the thread that owns the file. Clones share it; the file is closed with the last of them.
#[derive(Clone)]
pub struct Ledger {
    sender: SyncSender<Task>,
    id: Arc<str>,
    fresh: bool,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens or makes the file at `path`, and holds it against every other process for as long as the handle lives.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let connection = open(path)?;
        let fresh = !has_ledger_id(&connection)?;
        schema::migrate(&connection)?;
        let id = ledger_id(&connection)?;
        let files = Files::of(path);
        let (sender, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || serve(connection, &files, &receiver))
            .map_err(|source| LedgerError::Open { path: path.to_owned(), source: source.into() })?;
        Ok(Self { sender, id: id.into(), fresh })
    }

    /// Names this ledger for good; the claim that stands in the objects' annotation.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The file had no ledger in it when it was opened.
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Runs `statements` in the next transaction; they are durable when this returns `Ok`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (sender, receiver) = oneshot::channel();
        let mut task: Task = Box::new(move |connection| {
            let result = connection.map(|connection| within_savepoint(connection, statements));
            Box::new(move |committed| {
                let _ = sender.send(match (committed, result) {
                    (Ok(()), Some(result)) => result,
                    (Ok(()), None) => Err(LedgerError::Stopped),
                    (Err(why), _) => Err(why.into()),
                });
            })
        });
        loop {
            match self.sender.try_send(task) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return Err(LedgerError::Stopped),
                Err(TrySendError::Full(back)) => {
                    task = back;
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
        }
        receiver.await.map_err(|_| LedgerError::Stopped)?
    }
}

/// One task's statements succeed or fail together, whatever the other tasks of the transaction do.
fn within_savepoint<T>(
    connection: &Connection,
    statements: impl FnOnce(&Connection) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let set = LedgerError::sql("set a savepoint");
    connection.execute_batch("savepoint task").map_err(set)?;
    let result = statements(connection);
    let end = if result.is_ok() { "release task" } else { "rollback to task; release task" };
    connection.execute_batch(end).map_err(LedgerError::sql("end a savepoint"))?;
    result
}

/// The files that the connection has open, each with the device and inode that were found under its name.
struct Files(Vec<(PathBuf, Option<(u64, u64)>)>);

impl Files {
    /// The database, and the log that holds what is not in it yet.
    fn of(path: &Path) -> Self {
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

fn serve(mut connection: Connection, files: &Files, receiver: &Receiver<Task>) {
    let sql = |error: rusqlite::Error| NotCommitted::Sql(error.to_string());
    while let Ok(first) = receiver.recv() {
        let tasks = std::iter::once(first).chain(receiver.try_iter().take(BATCH - 1));
        let begun = files
            .check()
            .and_then(|()| connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql));
        let (answers, committed): (Vec<Answer>, _) = match begun {
            Ok(transaction) => (
                tasks.map(|task| task(Some(&transaction))).collect(),
                // Asked again, since an answer means that it is there to stay.
                transaction.commit().map_err(sql).and_then(|()| files.check()),
            ),
            Err(why) => (tasks.map(|task| task(None)).collect(), Err(why)),
        };
        if let Err(why) = &committed {
            tracing::error!(error = %LedgerError::from(why.clone()), "nothing is stored");
        }
        for answer in answers {
            answer(committed.clone());
        }
    }
}

fn open(path: &Path) -> Result<Connection, LedgerError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| LedgerError::Open { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(error.into()))?;
    }
    let connection = Connection::open(path).map_err(|error| failed(error.into()))?;
    let held = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LedgerError::Locked { path: path.to_owned() },
        _ => failed(error.into()),
    };
    // Exclusive locking keeps the WAL index in our memory: network file systems have no shared memory.
    connection.pragma_update(None, "locking_mode", "exclusive").map_err(held)?;
    connection.query_row("pragma journal_mode = wal", [], |_| Ok(())).map_err(held)?;
    connection.pragma_update(None, "synchronous", "full").map_err(held)?;
    connection.execute_batch("begin immediate; commit").map_err(held)?;
    let found: i64 = connection.query_row("pragma user_version", [], |row| row.get(0)).map_err(held)?;
    if found > schema::VERSION {
        return Err(LedgerError::TooNew { path: PathBuf::from(path), found, known: schema::VERSION });
    }
    Ok(connection)
}

fn has_ledger_id(connection: &Connection) -> Result<bool, LedgerError> {
    connection
        .query_row("select count(*) from sqlite_master where name = 'ledger'", [], |row| row.get::<_, i64>(0))
        .map(|count| count > 0)
        .map_err(LedgerError::sql("read its tables"))
}

/// The ledger's id: random, made once.
fn ledger_id(connection: &Connection) -> Result<String, LedgerError> {
    let sql = LedgerError::sql("read its id");
    (|| {
        connection.execute(
            "insert or ignore into ledger(key, value) values ('id', lower(hex(randomblob(8)))), ('epoch', '1')",
            [],
        )?;
        connection.query_row("select value from ledger where key = 'id'", [], |row| row.get(0))
    })()
    .map_err(sql)
}
