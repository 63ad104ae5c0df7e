//! The names under which jobs were submitted: for the operator, and for who looks at the file while an operator has it.
//!
//! The operator's lock keeps every other connection out, and so it should. Who does not change the file may read it past the
//! lock, but sees only what is in the file itself and not what is in its log; so a name goes into the file before the first
//! job is submitted under it.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::PoisonError;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::{Ledger, LedgerError, Users, schema};

/// How often a file is read that changes all the while.
const TRIES: u32 = 50;
/// What ends the path in the URI of a file, and what escapes it.
const NOT_IN_PATH: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');

/// A ledger as it looks from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerSnapshot {
    /// Another process holds it.
    pub in_use: bool,
    /// [`Ledger::id`]; none if no operator of this kind has had the file.
    pub id: Option<String>,
    /// Whose it is: the value of `HTCOperator`.
    pub operator: Option<String>,
    /// Under which names it has submitted.
    pub users: Users,
    /// Where jobs are that are not known to be gone, and of how many HTCJobs.
    pub schedds: BTreeMap<String, i64>,
}

impl Ledger {
    /// Every name under which jobs were submitted, and in whose.
    pub async fn identities(&self) -> Result<Users, LedgerError> {
        self.run(move |connection| users(connection).map_err(LedgerError::sql("read the identities"))).await
    }

    /// Looks at the file without a lock and without writing anything, whoever has it; none if there is none. Not for a process
    /// that has the ledger open itself: it would lose its lock.
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

    /// Sees to it that the names of these intents, which are durable, stand in the file itself. Nothing but `check` needs that, and
    /// so nothing waits for what fails.
    pub(super) async fn show_users(&self, intents: Users) {
        let new = |shown: &Users| intents.difference(shown).next().is_some();
        if !new(&self.shown.lock().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        if self.checkpoint().await {
            self.shown.lock().unwrap_or_else(PoisonError::into_inner).extend(intents);
        } else {
            tracing::warn!(
                "names under which jobs are submitted are only in the ledger's log: `check` does not see them"
            );
        }
    }
}

/// What tells that the file was changed.
fn stamp(file: &Metadata) -> (u64, u64, i64, i64) {
    (file.ino(), file.len(), file.mtime(), file.mtime_nsec())
}

fn look(path: &Path) -> Result<LedgerSnapshot, LedgerError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| LedgerError::Open { path: path.to_owned(), source };
    // Asked, not taken.
    let lock = File::open(path).and_then(|file| Ok(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?));
    let in_use = lock.map_err(|error| failed(error.into()))?.is_some();
    let whole = path.canonicalize().map_err(|error| failed(error.into()))?;
    let whole = whole.to_str().ok_or_else(|| failed("its name is no UTF-8".into()))?;
    // https://www.sqlite.org/uri.html#uriimmutable: no lock, no look at the log, no file beside it.
    let uri = format!("file:{}?immutable=1", utf8_percent_encode(whole, NOT_IN_PATH));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).map_err(|error| failed(error.into()))?;
    schema::must_be_known(&connection, path, |error| failed(error.into()))?;
    let read = || -> rusqlite::Result<LedgerSnapshot> {
        let (id, operator) = (value(&connection, "id")?, value(&connection, "operator")?);
        let (users, schedds) = (users(&connection)?, schedds(&connection)?);
        Ok(LedgerSnapshot { in_use, id, operator, users, schedds })
    };
    read().map_err(|error| failed(error.into()))
}

fn value(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    if schema::columns(connection, "ledger")?.is_empty() {
        return Ok(None);
    }
    connection.query_row("select value from ledger where key = ?1", [key], |row| row.get(0)).optional()
}

/// Of a file that was not brought up to date, too.
fn users(connection: &Connection) -> rusqlite::Result<Users> {
    let columns = schema::columns(connection, "submissions")?;
    if columns.is_empty() {
        return Ok(Users::new());
    }
    let credentials = if columns.iter().any(|name| name == "credentials") { "coalesce(credentials, '')" } else { "''" };
    let mut statement = connection.prepare(&format!(
        "select {credentials}, identity from submissions
         union select case when instr(key, char(10)) then substr(key, instr(key, char(10)) + 1) else '' end, value
         from ledger where key like 'identity:%'"
    ))?;
    let rows: Vec<(String, String)> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    Ok(rows.into_iter().filter_map(|(credentials, user)| Some((credentials.parse().ok()?, user))).collect())
}

/// Of a file that was not brought up to date, too. Submissions count of which no job is recorded.
fn schedds(connection: &Connection) -> rusqlite::Result<BTreeMap<String, i64>> {
    let of_ours = schema::columns(connection, "htcjobs")?.iter().any(|name| name == "gone");
    if !of_ours || schema::columns(connection, "objects")?.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut statement = connection.prepare(
        "select schedd, count(distinct uid) from (
             select uid, schedd from htcjobs where uid is not null and schedd is not null and gone = 0
             union select uid, schedd from submissions where state = 'open' and uid not in
                 (select uid from htcjobs where uid is not null)
         ) where uid in (select uid from objects where released = 0) group by schedd",
    )?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Intent;
    use super::super::tests::{intent, original};
    use super::*;
    use crate::api::Identity;
    use crate::machine::Attempt;

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
    async fn a_name_is_seen_from_outside_before_it_is_used_and_looking_changes_nothing() {
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
        assert_eq!(seen.users, ledger.identities().await.unwrap());
        assert!(files(folder.path()) == before, "a look has changed something");
        let bob = (Identity::Operator, "bob@test".to_owned());
        ledger.intend(vec![in_the_name_of(bob.clone(), 2)]).await.unwrap();
        assert_eq!(Ledger::snapshot(&path).unwrap().unwrap().users, Users::from([alice(), bob]));
    }

    #[tokio::test]
    async fn a_name_that_is_known_costs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 1)]).await.unwrap();
        let file = std::fs::read(&path).unwrap();
        ledger.intend(vec![in_the_name_of(alice(), 2)]).await.unwrap();
        assert!(std::fs::read(&path).unwrap() == file, "what is in the log goes into the file in its own time");
    }

    #[test]
    fn files_of_others_are_looked_at_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        original(&path);
        let before = files(folder.path());
        let nothing =
            LedgerSnapshot { in_use: false, id: None, operator: None, users: Users::new(), schedds: BTreeMap::new() };
        assert_eq!(Ledger::snapshot(&path).unwrap(), Some(nothing));
        assert!(files(folder.path()) == before);
        Connection::open(&path).unwrap().pragma_update(None, "user_version", schema::VERSION + 1).unwrap();
        assert!(matches!(Ledger::snapshot(&path), Err(LedgerError::TooNew { .. })));
        std::fs::write(&path, "no database ".repeat(1000)).unwrap();
        let error = Ledger::snapshot(&path).unwrap_err().to_string();
        assert!(error.contains("htcjobs.db") && error.contains("not a database"), "{error}");
    }
}
