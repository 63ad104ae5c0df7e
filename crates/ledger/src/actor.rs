//! Handle to the thread that owns the ledger file.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use htc_api::Identity;
use htc_support::clock::Clock;
use htc_support::failpoint;
use htc_support::failpoint::{Point, around};
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _};
use tokio::sync::oneshot;

use super::writer::{Message, OpenFiles, Task, Writer, checkpoint};
use super::{LedgerError, schema};

/// Identities with which jobs were submitted, each with the HTCondor user (`User` of the jobs) that it had.
pub type Users = BTreeSet<(Identity, String)>;

/// Capacity of the thread's message queue.
const QUEUE: usize = 4096;

/// Handle to the thread that owns the ledger file. Clones share the thread. The file is closed when the last clone is
/// dropped.
#[derive(Clone)]
pub struct Ledger {
    sender: SyncSender<Message>,
    id: Arc<str>,
    fresh: bool,
    /// Sequence number when the file was created or took its current id; 0 if an older version created it.
    begun: i64,
    sequence: Arc<AtomicI64>,
    /// Time at which the youngest object with removed rows was first recorded, in ms since 1970; 0 if no rows were
    /// removed.
    pub(super) forgotten: Arc<AtomicI64>,
    /// Users that are known to be in the database file itself, not only in the write-ahead log.
    pub(super) shown: Arc<Mutex<Users>>,
    metrics: Metrics,
    health: Health,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens or creates the file at `path`. Keeps it locked against every other process while the handle lives.
    pub fn open(path: &Path, metrics: &Metrics, health: &Health) -> Result<Self, LedgerError> {
        let connection = open(path)?;
        let fresh = !has_ledger_id(&connection)?;
        failpoint::at(Point::BeforeLedgerMade);
        schema::migrate(&connection)?;
        failpoint::at(Point::LedgerWithoutId);
        let (id, begun) = ledger_id(&connection)?;
        failpoint::at(Point::AfterLedgerMade);
        // Moves into the file what a killed operator left in the log, for readers that see only the file itself.
        checkpoint(&connection);
        let sequence = Arc::new(AtomicI64::new(stored_sequence(&connection)?));
        let forgotten = Arc::new(AtomicI64::new(stored_forgotten(&connection)?));
        let writer = Writer {
            connection,
            files: OpenFiles::of(path),
            sequence: Arc::clone(&sequence),
            writable: true,
            metrics: metrics.clone(),
            health: health.clone(),
        };
        let (sender, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.serve(&receiver))
            .map_err(|source| LedgerError::Open { path: path.to_owned(), source: source.into() })?;
        let (shown, metrics, health) = (Arc::default(), metrics.clone(), health.clone());
        Ok(Self { sender, id: id.into(), fresh, begun, sequence, forgotten, shown, metrics, health })
    }

    /// Opens a ledger with metrics and health of its own.
    #[cfg(test)]
    pub(crate) fn open_alone(path: &Path) -> Result<Self, LedgerError> {
        Self::open(path, &Metrics::default(), &Health::default())
    }

    /// Returns the permanent id of this ledger. Objects carry it in an annotation as the ledger's claim on them.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the file contained no ledger when it was opened.
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns the number of the last transaction that changed the file. Numbers start at the time, in ms since 1970,
    /// at which the file was created or took its id, so that no two ledgers share numbers. A file restored from a copy
    /// has a lower number than the Lease.
    #[must_use]
    pub fn sequence(&self) -> i64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Whether this ledger has used `sequence` under its current id. Numbers of another ledger, or from before this
    /// file [began anew](Self::begin_anew), return false.
    #[must_use]
    pub fn has_had(&self, sequence: i64) -> bool {
        (self.begun..=self.sequence()).contains(&sequence)
    }

    /// Returns how long the current step on the file has taken while a caller waits for it. It is long if the volume
    /// hangs, but not because the queue is long.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        self.health.ledger_silent_for()
    }

    /// Binds a new file to the operator of this name (the value of `HTCOperator`). Fails if the file belongs to another
    /// operator: HTCondor's answers for this operator would not contain the jobs in that file.
    pub async fn belong_to(&self, operator: &str) -> Result<(), LedgerError> {
        let ours = operator.to_owned();
        self.run(move |connection| {
            let sql = || LedgerError::sql("read whose it is");
            connection
                .execute("insert or ignore into ledger(key, value) values ('operator', ?1)", [&ours])
                .map_err(sql())?;
            let stored: String = connection
                .query_row("select value from ledger where key = 'operator'", [], |row| row.get(0))
                .map_err(sql())?;
            if stored == ours { Ok(()) } else { Err(LedgerError::AnotherOperator { stored, ours }) }
        })
        .await
    }

    /// Takes a new id, because this file does not know all that happened. Objects that carry the old id are then
    /// treated as another ledger's. Earlier rows no longer count as those of a new object.
    pub async fn begin_anew(&mut self) -> Result<(), LedgerError> {
        let now = Clock::default().now().0;
        let renamed = self.run(move |connection| {
            (|| {
                connection.execute_batch(
                    "update ledger set value = lower(hex(randomblob(8))) where key = 'id';
                     update ledger set value = value + 1 where key = 'epoch'",
                )?;
                // The transaction itself adds one.
                connection.execute(
                    "update ledger set value = max(cast(value as integer), ?1) where key = 'sequence'",
                    [now],
                )?;
                connection.execute(
                    "insert or replace into ledger(key, value)
                     select 'begun', cast(value as integer) + 1 from ledger where key = 'sequence'",
                    [],
                )?;
                read_id(connection)
            })()
            .map_err(LedgerError::sql("take a new id"))
        });
        let (id, begun) = around(Point::BeforeLedgerAnew, renamed, Point::AfterLedgerAnew).await?;
        (self.id, self.begun) = (id.into(), begun);
        Ok(())
    }

    /// Runs `statements` in the next transaction; they are durable when this returns `Ok`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (sender, receiver) = oneshot::channel();
        let task: Task = Box::new(move |connection| {
            let result = connection.map(|connection| within_savepoint(connection, statements));
            Box::new(move |committed| {
                let _ = sender.send(match (committed, result) {
                    (Ok(()), Some(result)) => result,
                    (Ok(()), None) => Err(LedgerError::Stopped),
                    (Err(why), _) => Err(why.into()),
                });
            })
        });
        self.send(Message::Task(task)).await?;
        self.metrics.ledger_queue(1);
        receiver.await.map_err(|_| LedgerError::Stopped)?
    }

    async fn send(&self, mut message: Message) -> Result<(), LedgerError> {
        loop {
            match self.sender.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(LedgerError::Stopped),
                Err(TrySendError::Full(back)) => {
                    message = back;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    /// Moves the content of the write-ahead log into the file itself. Returns whether all of it was moved.
    pub(super) async fn checkpoint(&self) -> bool {
        let (sender, done) = oneshot::channel();
        self.send(Message::Checkpoint(sender)).await.is_ok() && done.await.unwrap_or(false)
    }

    /// Closes the file even if other handles exist. The content of the write-ahead log moves into the file itself, and
    /// another process may then open it.
    pub async fn close(&self) {
        let (sender, closed) = oneshot::channel();
        if self.send(Message::Close(sender)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

/// Runs one task in a savepoint: its statements succeed or fail together, independently of the transaction's other
/// tasks.
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

pub(super) fn open(path: &Path) -> Result<Connection, LedgerError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| LedgerError::Open { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        make_folder(folder).map_err(|error| failed(error.into()))?;
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
    schema::must_be_known(&connection, path, held)?;
    Ok(connection)
}

/// Creates the folder of the file and synchronises the entry of that folder in its parent. SQLite synchronises only the
/// names inside the folder, so after a crash the folder itself could be missing with everything in it. Errors of the
/// synchronisation are ignored, because not every file system supports it.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    if let Some(above) = folder.parent() {
        let _ = File::open(above).and_then(|above| above.sync_all());
    }
    Ok(())
}

fn has_ledger_id(connection: &Connection) -> Result<bool, LedgerError> {
    connection
        .query_row("select count(*) from sqlite_master where name = 'ledger'", [], |row| row.get::<_, i64>(0))
        .map(|count| count > 0)
        .map_err(LedgerError::sql("read its tables"))
}

/// Returns the ledger's id and its sequence number when it took that id. Creates a random id if the file has none.
fn ledger_id(connection: &Connection) -> Result<(String, i64), LedgerError> {
    let sql = LedgerError::sql("read its id");
    let now = Clock::default().now().0;
    (|| {
        connection.execute(
            "insert into ledger(key, value)
             select column1, column2
             from (values ('id', lower(hex(randomblob(8)))), ('epoch', '1'), ('sequence', ?1), ('begun', ?1))
             where not exists (select 1 from ledger where key = 'id')",
            [now],
        )?;
        read_id(connection)
    })()
    .map_err(sql)
}

fn read_id(connection: &Connection) -> rusqlite::Result<(String, i64)> {
    connection.query_row(
        "select value, (select cast(value as integer) from ledger where key = 'begun') from ledger where key = 'id'",
        [],
        |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?.unwrap_or(0))),
    )
}

fn stored_sequence(connection: &Connection) -> Result<i64, LedgerError> {
    super::writer::stored_sequence(connection).map_err(LedgerError::sql("read its sequence number"))
}

/// Returns the time at which the youngest object with removed rows was first recorded, in ms since 1970; 0 if no rows
/// were removed.
fn stored_forgotten(connection: &Connection) -> Result<i64, LedgerError> {
    connection
        .query_row("select cast(value as integer) from ledger where key = 'forgotten'", [], |row| row.get(0))
        .optional()
        .map(Option::unwrap_or_default)
        .map_err(LedgerError::sql("read what it has forgotten"))
}
