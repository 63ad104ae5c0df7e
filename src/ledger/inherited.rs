//! The Go operator's rows: read by name, and bound to the object whose jobs they are. What the Go operator wrote stays as it
//! is, but for `status`.

use rusqlite::{Connection, params};

use super::{Ledger, LedgerError, Save};
use crate::machine::facts::Job;
use crate::machine::inherited::OldRow;
use crate::machine::{Attempt, Index, Uid};

/// By the Go operator's only key; its rows have no uid until they are bound.
pub(super) const INDEX: &str = "create index if not exists htcjobs_name on htcjobs(htcjobName) where uid is null";

impl Ledger {
    /// The Go operator's rows of this name that are bound to no object or to this one.
    pub async fn inherited(&self, name: &str, uid: &Uid) -> Result<Vec<OldRow>, LedgerError> {
        let (name, uid) = (name.to_owned(), uid.clone());
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the Go operator's rows");
            let mut statement = connection
                .prepare_cached(
                    "select jobId, status, tempDir, uniqid from htcjobs where uid is null and htcjobName = ?1
                     union all select jobId, status, tempDir, uniqid from htcjobs where uid = ?2 and attempt = ?3",
                )
                .map_err(sql())?;
            // What another hand left there, such as a null, is no reason to stop.
            let rows = statement
                .query_map(params![name, uid.as_str(), Attempt::INHERITED.0], |row| {
                    Ok(OldRow {
                        id: row.get::<_, String>(0).unwrap_or_default(),
                        status: row.get(1).unwrap_or_default(),
                        folder: row.get::<_, String>(2).unwrap_or_default(),
                        uniqid: row.get(3).ok(),
                    })
                })
                .map_err(sql())?;
            rows.collect::<Result<_, _>>().map_err(sql())
        })
        .await
    }
}

/// Binds the Go operator's row of a job to its object, unless that is done.
pub(super) fn bind(connection: &Connection, save: &Save, index: Index, job: &Job) -> Result<(), LedgerError> {
    let Some(inherited) = save.inherited.iter().find(|inherited| inherited.id == job.id) else { return Ok(()) };
    connection
        .prepare_cached(
            "update htcjobs set uid = ?1, idx = ?2, namespace = ?3, attempt = ?4 where rowid =
                (select rowid from htcjobs where uid is null and htcjobName = ?5 and trim(jobId) = ?6 and tempDir = ?7)
             and not exists (select 1 from htcjobs where uid = ?1 and idx = ?2)",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                save.uid.as_str(),
                index.0,
                save.name.namespace,
                job.attempt.0,
                save.name.name,
                job.id.to_string(),
                &*inherited.folder,
            ])
        })
        .map(drop)
        .map_err(LedgerError::sql("bind a row of the Go operator"))
}

/// Lets the rows go that the Go operator wrote: they stay.
pub(super) fn unbind(connection: &Connection, uid: &Uid) -> rusqlite::Result<()> {
    connection
        .prepare_cached("update htcjobs set uid = null, idx = null where uid = ?1 and attempt = ?2")?
        .execute(params![uid.as_str(), Attempt::INHERITED.0])
        .map(drop)
}
