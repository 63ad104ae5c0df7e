//! Remains of released objects (those that the operator has let Kubernetes delete), and their removal.

use std::sync::atomic::Ordering;
use std::time::Duration;

use htc_api::ObjectName;
use htc_machine::ids::{Timestamp, Uid};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};

/// Maximum number of rows removed in one transaction. Other tasks wait for it.
const ROWS: i64 = 1000;
/// How far the clock of Kubernetes, which sets an object's creation time, may be ahead of the operator's.
const SKEW: Duration = Duration::from_secs(60);

/// Tables of what was read for the jobs of an object.
const INPUTS: [&str; 5] = ["items", "files", "variables", "secrets", "pulls"];

/// Remains of an object, in the order in which they are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Artifact {
    /// Folder from which the jobs were submitted.
    Sandbox,
    /// Output of the jobs.
    Output,
    /// Rows in this ledger.
    Rows,
}

/// Released object with remains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub uid: Uid,
    pub name: ObjectName,
}

impl Ledger {
    /// Returns the objects that were released before `until`, have remains of kind `left`, and have no unwritten
    /// Events. They are ordered by uid and start after `uid`, at most `limit`.
    pub async fn released(
        &self,
        left: Artifact,
        until: Timestamp,
        uid: Option<Uid>,
        limit: u32,
    ) -> Result<Vec<Released>, LedgerError> {
        let condition = match left {
            Artifact::Sandbox => "sandboxGone is null",
            Artifact::Output => "outputGone is null",
            Artifact::Rows => "sandboxGone = 1 and outputGone = 1",
        };
        let query = format!(
            "select uid, namespace, name from objects o where released = 1 and {condition} and releasedAt <= ?1 and uid > ?2
             and not exists (select 1 from transitions t where t.uid = o.uid and eventAt is null) order by uid limit ?3"
        );
        self.run(move |connection| {
            let sql = || LedgerError::sql("read what is left of objects");
            let mut statement = connection.prepare_cached(&query).map_err(sql())?;
            let after = uid.as_ref().map_or("", |uid| uid.as_str());
            let rows = statement
                .query_map(params![until.0, after, limit], |row| {
                    let name = ObjectName { namespace: row.get(1)?, name: row.get(2)? };
                    Ok(Released { uid: Uid::from(row.get::<_, String>(0)?.as_str()), name })
                })
                .map_err(sql())?;
            rows.collect::<Result<_, _>>().map_err(sql())
        })
        .await
    }

    /// Records that these files of released objects are removed. With the sandbox goes what the ledger has kept for it,
    /// which may be large.
    pub async fn removed(&self, left: Artifact, uids: Vec<Uid>) -> Result<(), LedgerError> {
        let column = match left {
            Artifact::Sandbox => "sandboxGone",
            Artifact::Output => "outputGone",
            Artifact::Rows => return Ok(()),
        };
        self.run(move |connection| {
            let sql = || LedgerError::sql("note that files are removed");
            let mut statement = connection
                .prepare_cached(&format!("update objects set {column} = 1 where uid = ?1 and released = 1"))
                .map_err(sql())?;
            for uid in &uids {
                if statement.execute([uid.as_str()]).map_err(sql())? > 0 && left == Artifact::Sandbox {
                    delete(connection, uid, &INPUTS).map_err(sql())?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Removes rows of an object that was released before `until`. Returns false as long as there are more. The rows of
    /// its jobs are removed first. The rows that prove that it was ever submitted are removed last and together.
    pub async fn forget(&self, uid: Uid, until: Timestamp) -> Result<bool, LedgerError> {
        let forgotten = self.run(move |connection| {
            forget(connection, &uid, until).map_err(LedgerError::sql("remove the rows of an object"))
        });
        let (all, known_at) = forgotten.await?;
        self.forgotten.fetch_max(known_at, Ordering::SeqCst);
        Ok(all)
    }

    /// Whether rows of an object created at `created` may have been removed.
    #[must_use]
    pub fn has_forgotten(&self, created: Timestamp) -> bool {
        let until = self.forgotten.load(Ordering::SeqCst);
        until > 0 && created <= Timestamp(until).plus(SKEW)
    }
}

/// Removes an object's rows of these tables.
fn delete(connection: &Connection, uid: &Uid, tables: &[&str]) -> rusqlite::Result<()> {
    tables.iter().try_for_each(|table| {
        connection.prepare_cached(&format!("delete from {table} where uid = ?1"))?.execute([uid.as_str()]).map(drop)
    })
}

/// Returns whether all rows are removed, and when the object was first recorded; 0 if rows are left.
fn forget(connection: &Connection, uid: &Uid, until: Timestamp) -> rusqlite::Result<(bool, i64)> {
    let known_at: Option<i64> = connection
        .prepare_cached("select knownAt from objects where uid = ?1 and released = 1 and releasedAt <= ?2")?
        .query_row(params![uid.as_str(), until.0], |row| row.get(0))
        .optional()?;
    let Some(known_at) = known_at else {
        return Ok((true, 0));
    };
    super::inherited::unbind(connection, uid)?;
    let jobs = connection
        .prepare_cached("delete from htcjobs where rowid in (select rowid from htcjobs where uid = ?1 limit ?2)")?
        .execute(params![uid.as_str(), ROWS])?;
    let runs = connection
        .prepare_cached("delete from runs where uid = ?1 and idx in (select idx from runs where uid = ?1 limit ?2)")?
        .execute(params![uid.as_str(), ROWS])?;
    if i64::try_from(jobs.max(runs)).is_ok_and(|rows| rows >= ROWS) {
        return Ok((false, 0));
    }
    // With these identities HTCondor may still have jobs of objects that were abandoned.
    connection
        .prepare_cached(
            "insert or ignore into ledger(key, value)
             select distinct 'identity:' || identity || case
                    when pool is not null then char(10) || coalesce(credentials, '') || char(10) || pool
                    when coalesce(credentials, '') = '' then ''
                    else char(10) || credentials end,
                identity from submissions join objects using (uid) where uid = ?1",
        )?
        .execute([uid.as_str()])?;
    connection
        .prepare_cached(
            "insert into ledger(key, value) select 'letGo', letGo from objects where uid = ?1 and letGo is not null
             on conflict(key) do update set value = max(cast(value as integer), cast(excluded.value as integer))",
        )?
        .execute([uid.as_str()])?;
    delete(connection, uid, &INPUTS)?;
    let tables = ["callbacks", "requests", "transitions", "submissions", "images", "wishes", "exits", "objects"];
    delete(connection, uid, &tables)?;
    connection
        .prepare_cached(
            "insert into ledger(key, value) values ('forgotten', ?1)
             on conflict(key) do update set value = max(cast(value as integer), cast(excluded.value as integer))",
        )?
        .execute([known_at.to_string()])?;
    Ok((true, known_at))
}
