//! The handle to the thread that owns the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension as _};
use tokio::sync::oneshot;

use super::writer::{Files, Message, Task, Writer, checkpoint};
use super::{LedgerError, schema};
use crate::api::Identity;
use crate::clock::Clock;
use crate::failpoint::{self, Point, around};
use crate::health::Health;
use crate::metrics::Metrics;

/// Every name under which jobs were submitted, and in whose.
pub type Users = BTreeSet<(Identity, String)>;

/// Most statements that wait for the thread.
const QUEUE: usize = 4096;

/// The ledger: a handle to the thread that owns the file. Clones share it; the file is closed with the last of them.
#[derive(Clone)]
pub struct Ledger {
    sender: SyncSender<Message>,
    id: Arc<str>,
    fresh: bool,
    /// Its sequence number when it was made, or took its id; 0 if an older version made it.
    begun: i64,
    sequence: Arc<AtomicI64>,
    /// When the youngest object was first known whose rows are removed; 0 if none are.
    pub(super) forgotten: Arc<AtomicI64>,
    /// Names that are known to stand in the file itself.
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
    /// Opens or makes the file at `path`, and holds it against every other process for as long as the handle lives.
    pub fn open(path: &Path, metrics: &Metrics, health: &Health) -> Result<Self, LedgerError> {
        let connection = open(path)?;
        let fresh = !has_ledger_id(&connection)?;
        failpoint::at(Point::BeforeLedgerMade);
        schema::migrate(&connection)?;
        failpoint::at(Point::LedgerWithoutId);
        let (id, begun) = ledger_id(&connection)?;
        failpoint::at(Point::AfterLedgerMade);
        // What an operator left in the log that was killed, for who looks at the file.
        checkpoint(&connection);
        let sequence = Arc::new(AtomicI64::new(stored_sequence(&connection)?));
        let forgotten = Arc::new(AtomicI64::new(stored_forgotten(&connection)?));
        let writer = Writer {
            connection,
            files: Files::of(path),
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

    /// One that nobody asks how it is.
    #[cfg(test)]
    pub(crate) fn open_alone(path: &Path) -> Result<Self, LedgerError> {
        Self::open(path, &Metrics::default(), &Health::default())
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

    /// Number of the last transaction that has changed the file. The first one follows the time, in ms since 1970, at which the file was
    /// made or took its id, so that no two ledgers count alike. A copy that is put back has a lower number than the Lease does.
    #[must_use]
    pub fn sequence(&self) -> i64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Whether a sequence number is one that this ledger has had under its id. A number of another ledger, or one from before this file
    /// [began anew](Self::begin_anew), is not.
    #[must_use]
    pub fn has_had(&self, sequence: i64) -> bool {
        (self.begun..=self.sequence()).contains(&sequence)
    }

    /// How long the file has been at one step while somebody waits for the answer: long if its volume hangs, and not because
    /// many wait.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        self.health.ledger_silent_for()
    }

    /// Binds a new file to the operator of this name (the value of `HTCOperator`), and refuses one that is another's: its
    /// jobs would be in no answer of HTCondor.
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

    /// Takes a new id: this file does not know all that happened. Every object that carries the old one is then treated as
    /// another ledger's, and no row of before counts as that of a new object.
    pub async fn begin_anew(&mut self) -> Result<(), LedgerError> {
        let now = Clock::default().now().0;
        let renamed = self.run(move |connection| {
            (|| {
                connection.execute_batch(
                    "update ledger set value = lower(hex(randomblob(8))) where key = 'id';
                     update ledger set value = value + 1 where key = 'epoch'",
                )?;
                // The transaction adds one.
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

    /// Brings all that is in the write-ahead log into the file itself; whether that was done.
    pub(super) async fn checkpoint(&self) -> bool {
        let (sender, done) = oneshot::channel();
        self.send(Message::Checkpoint(sender)).await.is_ok() && done.await.unwrap_or(false)
    }

    /// Closes the file, whoever else has a handle: what stands in the write-ahead log goes into the file itself, and another
    /// process may open it.
    pub async fn close(&self) {
        let (sender, closed) = oneshot::channel();
        if self.send(Message::Close(sender)).await.is_ok() {
            let _ = closed.await;
        }
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

/// SQLite synchronises the names in this folder; without that of the folder itself all that is in it would be lost. Not every file
/// system can do that.
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

/// The ledger's id, random and made once, and its sequence number at that time.
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

/// When the youngest object was first known whose rows are removed; 0 if none are.
fn stored_forgotten(connection: &Connection) -> Result<i64, LedgerError> {
    connection
        .query_row("select cast(value as integer) from ledger where key = 'forgotten'", [], |row| row.get(0))
        .optional()
        .map(Option::unwrap_or_default)
        .map_err(LedgerError::sql("read what it has forgotten"))
}
