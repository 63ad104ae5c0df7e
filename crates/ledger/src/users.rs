//! HTCondor users as which jobs were submitted. They are read by the operator, and by `check` while an operator has the
//! file open.
//!
//! The operator's lock keeps every other connection out, as it should. A process that does not change the file may read
//! it despite the lock, but sees only the file itself and not its write-ahead log. Therefore a user is written to the
//! file itself before the first job is submitted as that user.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use htc_api::ObjectName;
use htc_machine::Uid;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::{Ledger, LedgerError, Users, schema};

/// Maximum number of attempts to read a file that keeps changing.
const TRIES: u32 = 50;
/// Characters to escape in the path of a file's URI: those that end the path, and the escape character.
const NOT_IN_PATH: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');

/// Contents of a ledger, read without opening it for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerSnapshot {
    /// Whether another process has the ledger open.
    pub in_use: bool,
    /// [`Ledger::id`]; `None` if no operator of this kind has had the file.
    pub id: Option<String>,
    /// Operator that the ledger belongs to: the value of `HTCOperator`.
    pub operator: Option<String>,
    /// Users as which the operator has submitted jobs to the pool of its flags.
    pub users: Users,
    /// Users of each HTCPool in which there are or were HTCJobs.
    pub pools: BTreeMap<ObjectName, Users>,
    /// Number of HTCJobs per schedd with jobs that are not known to be gone, without HTCJobs in HTCPools.
    pub schedds: BTreeMap<String, i64>,
}

impl Ledger {
    /// Returns the users as which jobs were submitted to a pool, with their identities. `None` means the pool of the
    /// operator's flags.
    pub async fn identities(&self, pool: Option<ObjectName>) -> Result<Users, LedgerError> {
        self.run(move |connection| users(connection, pool.as_ref()).map_err(LedgerError::sql("read the identities")))
            .await
    }

    /// Returns the objects in a pool that were not released and were submitted with the operator's own credentials.
    pub async fn submitted_by_operator(&self, pool: ObjectName) -> Result<Vec<Uid>, LedgerError> {
        self.run(move |connection| {
            let read = || -> rusqlite::Result<Vec<Uid>> {
                let mut statement = connection.prepare(
                    "select distinct uid from submissions join objects using (uid)
                     where pool = ?1 and released = 0 and coalesce(credentials, '') = ''",
                )?;
                let uids = statement.query_map([pool.to_string()], |row| row.get::<_, String>(0))?;
                uids.map(|uid| Ok(Uid::from(uid?.as_str()))).collect()
            };
            read().map_err(LedgerError::sql("read who submitted objects"))
        })
        .await
    }

    /// Reads the file without a lock and without writing, even if another process has it open. Returns `None` if there
    /// is no file. A process that has the ledger open itself must not call this: it would lose its lock.
    pub fn snapshot(path: &Path) -> Result<Option<LedgerSnapshot>, LedgerError> {
        let failed = |source: std::io::Error| LedgerError::Open { path: path.to_owned(), source: source.into() };
        if !path.try_exists().map_err(failed)? {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let before = stamp(&path.metadata().map_err(failed)?);
            let seen = look(path);
            if stamp(&path.metadata().map_err(failed)?) == before {
                return seen.map(Some);
            }
        }
        Err(failed(std::io::Error::other("it changes all the while")))
    }

    /// Moves the users of these durable intents into the file itself. Only `check` needs that, so a failure is logged
    /// and delays nothing.
    pub(super) async fn show_users(&self, intents: Users) {
        let new = |shown: &Users| intents.difference(shown).next().is_some();
        if !new(&self.shown.lock()) {
            return;
        }
        if self.checkpoint().await {
            self.shown.lock().extend(intents);
        } else {
            tracing::warn!("users not written to the database file, `check` does not see them");
        }
    }
}

/// Returns values that differ after the file was changed.
fn stamp(file: &Metadata) -> (u64, u64, i64, i64) {
    (file.ino(), file.len(), file.mtime(), file.mtime_nsec())
}

fn look(path: &Path) -> Result<LedgerSnapshot, LedgerError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| LedgerError::Open { path: path.to_owned(), source };
    // Queries the lock without taking it.
    let lock = File::open(path).and_then(|file| Ok(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?));
    let in_use = lock.map_err(|error| failed(error.into()))?.is_some();
    let whole = path.canonicalize().map_err(|error| failed(error.into()))?;
    let whole = whole.to_str().ok_or_else(|| failed("its name is no UTF-8".into()))?;
    // https://www.sqlite.org/uri.html#uriimmutable: no lock, no use of the log, no file beside it.
    let uri = format!("file:{}?immutable=1", utf8_percent_encode(whole, NOT_IN_PATH));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(|error| failed(error.into()))?;
    schema::must_be_known(&connection, path, |error| failed(error.into()))?;
    let read = || -> rusqlite::Result<LedgerSnapshot> {
        let (id, operator) = (value(&connection, "id")?, value(&connection, "operator")?);
        let with_users = |pool: ObjectName| users(&connection, Some(&pool)).map(|users| (pool, users));
        let pools = pools(&connection)?.into_iter().map(with_users).collect::<Result<_, _>>()?;
        let (users, schedds) = (users(&connection, None)?, schedds(&connection)?);
        Ok(LedgerSnapshot { in_use, id, operator, users, pools, schedds })
    };
    read().map_err(|error| failed(error.into()))
}

fn value(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    if schema::columns(connection, "ledger")?.is_empty() {
        return Ok(None);
    }
    connection.query_row("select value from ledger where key = ?1", [key], |row| row.get(0)).optional()
}

/// Reads the users of a pool, also from a file with an older schema. Objects whose rows were removed have left a key
/// `identity:` with a user, followed by credentials and HTCPool on lines of their own.
fn users(connection: &Connection, pool: Option<&ObjectName>) -> rusqlite::Result<Users> {
    let columns = schema::columns(connection, "submissions")?;
    if columns.is_empty() {
        return Ok(Users::new());
    }
    let credentials = if columns.iter().any(|name| name == "credentials") { "coalesce(credentials, '')" } else { "''" };
    let knows_pools = schema::has_column(connection, "objects", "pool")?;
    let of_pool = if knows_pools { "coalesce((select pool from objects o where o.uid = s.uid), '')" } else { "''" };
    let pool = pool.map(ObjectName::to_string).unwrap_or_default();
    let mut statement = connection.prepare(&format!(
        "select {credentials}, identity from submissions s where {of_pool} = ?1
         union select key, value from ledger where key like 'identity:%'"
    ))?;
    let rows: Vec<(String, String)> =
        statement.query_map([&pool], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let read = |(credentials, user): (String, String)| {
        let credentials = if credentials.starts_with("identity:") {
            let mut lines = credentials.split('\n').skip(1);
            let (credentials, its) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            (its == pool).then(|| credentials.to_owned())?
        } else {
            credentials
        };
        Some((credentials.parse().ok()?, user))
    };
    Ok(rows.into_iter().filter_map(read).collect())
}

/// Reads the pools of objects and of objects whose rows were removed, also from a file with an older schema.
fn pools(connection: &Connection) -> rusqlite::Result<Vec<ObjectName>> {
    if !schema::has_column(connection, "objects", "pool")? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare(
        "select pool from objects where pool is not null union select key from ledger where key like 'identity:%'",
    )?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let pool = |name: &String| match name.strip_prefix("identity:") {
        Some(left) => left.split('\n').nth(2)?.parse().ok(),
        None => name.parse().ok(),
    };
    Ok(names.iter().filter_map(pool).collect())
}

/// Counts HTCJobs per schedd, also in a file with an older schema. Submissions without a recorded job count, too.
fn schedds(connection: &Connection) -> rusqlite::Result<BTreeMap<String, i64>> {
    let of_ours = schema::has_column(connection, "htcjobs", "gone")?;
    if !of_ours || schema::columns(connection, "objects")?.is_empty() {
        return Ok(BTreeMap::new());
    }
    let knows_pools = schema::has_column(connection, "objects", "pool")?;
    let in_its_own_pool = if knows_pools { "pool is null" } else { "true" };
    let mut statement = connection.prepare(&format!(
        "select schedd, count(distinct uid) from (
             select uid, schedd from htcjobs where uid is not null and schedd is not null and gone = 0
             union select uid, schedd from submissions where state = 'open' and uid not in
                 (select uid from htcjobs where uid is not null)
         ) where uid in (select uid from objects where released = 0 and {in_its_own_pool}) group by schedd",
    ))?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use htc_api::{Identity, Phase};
    use htc_machine::facts::ObjectRow;
    use htc_machine::{Attempt, Timestamp};

    use super::super::tests::{intent, known, original, save};
    use super::super::{Intent, Save};
    use super::*;

    fn alice() -> (Identity, String) {
        (Identity::Secret { namespace: "physics".to_owned(), name: "mine".to_owned() }, "alice@test".to_owned())
    }

    fn in_the_name_of((identity, user): (Identity, String), attempt: u32) -> Intent {
        let mut intent = intent(attempt, "0");
        let noted = intent.submission.as_mut().unwrap();
        noted.submission.attempt = Attempt(attempt);
        (noted.identity, noted.user) = (identity, user);
        intent
    }

    fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    }

    #[tokio::test]
    async fn user_is_in_the_snapshot_before_use_and_snapshots_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd?name#of%20it.db");
        assert_eq!(Ledger::snapshot(&path).unwrap(), None);
        let ledger = Ledger::open_alone(&path).unwrap();
        assert_eq!(Ledger::snapshot(&path).unwrap().unwrap().id.as_deref(), Some(ledger.id()));
        ledger.belong_to("uid/ns/name").await.unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 1)]).await.unwrap();
        let before = files(folder.path());
        let seen = Ledger::snapshot(&path).unwrap().unwrap();
        assert_eq!((seen.id.as_deref(), seen.operator.as_deref()), (Some(ledger.id()), Some("uid/ns/name")));
        assert_eq!(seen.users, Users::from([alice()]));
        assert_eq!(seen.users, ledger.identities(None).await.unwrap());
        assert!(files(folder.path()) == before, "a look has changed something");
        let bob = (Identity::Operator, "bob@test".to_owned());
        ledger.intend(vec![in_the_name_of(bob.clone(), 2)]).await.unwrap();
        assert_eq!(Ledger::snapshot(&path).unwrap().unwrap().users, Users::from([alice(), bob]));
    }

    #[tokio::test]
    async fn known_user_causes_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 1)]).await.unwrap();
        let file = std::fs::read(&path).unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 2)]).await.unwrap();
        assert!(std::fs::read(&path).unwrap() == file, "the WAL is checkpointed later");
    }

    #[test]
    fn snapshot_leaves_foreign_files_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        original(&path);
        let before = files(folder.path());
        let nothing = LedgerSnapshot {
            in_use: false,
            id: None,
            operator: None,
            users: Users::new(),
            pools: BTreeMap::new(),
            schedds: BTreeMap::new(),
        };
        assert_eq!(Ledger::snapshot(&path).unwrap(), Some(nothing));
        assert!(files(folder.path()) == before);
        Connection::open(&path).unwrap().pragma_update(None, "user_version", schema::VERSION + 1).unwrap();
        assert!(matches!(Ledger::snapshot(&path), Err(LedgerError::TooNew { .. })));
        std::fs::write(&path, "no database ".repeat(1000)).unwrap();
        let error = Ledger::snapshot(&path).unwrap_err().to_string();
        assert!(error.contains("htcjobs.db") && error.contains("not a database"), "{error}");
    }

    fn in_pool(pool: &ObjectName, released: bool) -> Save {
        let known = ObjectRow { released, ..known(Phase::Pending) };
        Save { pool: Some(pool.clone()), ..save(known, Vec::new(), Vec::new()) }
    }

    #[tokio::test]
    async fn users_are_known_per_pool_after_their_rows_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        let pool: ObjectName = "physics/lhc".parse().unwrap();
        let saved = in_pool(&pool, true);
        let uid = saved.uid.clone();
        ledger.save(saved).await.unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 1)]).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ledger.identities(Some(pool.clone())).await.unwrap(), Users::from([alice()]));
            assert_eq!(ledger.identities(None).await.unwrap(), Users::new());
            assert!(ledger.checkpoint().await);
            let seen = Ledger::snapshot(&path).unwrap().unwrap();
            assert_eq!(seen.pools, BTreeMap::from([(pool.clone(), Users::from([alice()]))]));
            assert!(ledger.forget(uid.clone(), Timestamp(i64::MAX)).await.unwrap());
        }
    }

    #[tokio::test]
    async fn htcjobs_submitted_by_the_operator_identity_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let pool: ObjectName = "physics/lhc".parse().unwrap();
        let saved = in_pool(&pool, false);
        let uid = saved.uid.clone();
        ledger.save(saved).await.unwrap();
        let operators = async || ledger.submitted_by_operator(pool.clone()).await.unwrap();
        assert!(operators().await.is_empty());
        let of_namespace = (Identity::Namespace("physics".to_owned()), "ns-physics@lhc".to_owned());
        ledger.intend(vec![in_the_name_of(of_namespace, 1)]).await.unwrap();
        assert!(operators().await.is_empty());
        ledger.intend(vec![in_the_name_of((Identity::Operator, "operator@lhc".to_owned()), 2)]).await.unwrap();
        assert_eq!(operators().await, [uid]);
        assert!(ledger.submitted_by_operator("physics/other".parse().unwrap()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn pool_keeps_its_place_while_it_has_objects() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let pool: ObjectName = "physics/lhc".parse().unwrap();
        let settle = |place: &str| ledger.settle_pool(pool.clone(), place.to_owned());
        assert_eq!(settle("a").await.unwrap(), "a");
        assert_eq!(settle("b").await.unwrap(), "b");
        ledger.save(in_pool(&pool, false)).await.unwrap();
        assert_eq!(settle("c").await.unwrap(), "b");
        assert_eq!((ledger.count_in(pool.clone()).await.unwrap(), ledger.pools().await.unwrap().len()), (1, 1));
        ledger.save(in_pool(&pool, true)).await.unwrap();
        assert_eq!(settle("c").await.unwrap(), "c");
        assert_eq!((ledger.count_in(pool.clone()).await.unwrap(), ledger.pools().await.unwrap().len()), (0, 0));
    }
}
