//! Rows of the Go operator. They are found by the name of the HTCJob and bound to the object that the jobs belong to.
//! Except for `status`, what the Go operator wrote stays unchanged.

use std::sync::Arc;

use htc_machine::inherited::{InheritedJob, OldRow};
use htc_machine::{Attempt, Uid};
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, params};

use super::store::write;
use super::{Ledger, LedgerError, Save};

impl Ledger {
    /// Returns the Go operator's rows of this name that are bound to no object or to this one.
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
            // Unexpected values, for example a null that was written by hand, do not make this fail.
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

    /// Writes the decision about an object together with the Go operator's jobs that it adopts, and binds their rows to
    /// the object.
    pub async fn adopt(&self, save: Save, jobs: Arc<[InheritedJob]>) -> Result<(), LedgerError> {
        let saved = self.run(move |connection| {
            jobs.iter().try_for_each(|job| bind(connection, &save, job))?;
            write(connection, &save)
        });
        around(Point::BeforeDecisionSaved, saved, Point::AfterDecisionSaved).await
    }
}

/// Binds the Go operator's row of a job to the object, unless it is already bound.
fn bind(connection: &Connection, save: &Save, inherited: &InheritedJob) -> Result<(), LedgerError> {
    connection
        .prepare_cached(
            "update htcjobs set uid = ?1, idx = ?2, namespace = ?3, attempt = ?4 where rowid =
                (select rowid from htcjobs where uid is null and htcjobName = ?5 and trim(jobId) = ?6 and tempDir = ?7)
             and not exists (select 1 from htcjobs where uid = ?1 and idx = ?2)",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                save.uid.as_str(),
                inherited.index.0,
                save.name.namespace,
                Attempt::INHERITED.0,
                save.name.name,
                inherited.id.to_string(),
                &*inherited.folder,
            ])
        })
        .map(drop)
        .map_err(LedgerError::sql("bind a row of the Go operator"))
}

/// Unbinds the rows that the Go operator wrote. The rows themselves stay.
pub(super) fn unbind(connection: &Connection, uid: &Uid) -> rusqlite::Result<()> {
    connection
        .prepare_cached("update htcjobs set uid = null, idx = null where uid = ?1 and attempt = ?2")?
        .execute(params![uid.as_str(), Attempt::INHERITED.0])
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use htc_api::Phase;
    use htc_machine::facts::{Job, JobState, ObjectRow};
    use htc_machine::inherited::{Inherited, inherited};
    use htc_machine::outcome::Outcome;
    use htc_machine::{ClusterId, Index, JobId, Timestamp};

    use super::super::tests::{job, known, original, save, uid};
    use super::*;

    const OLD: &str = "select htcjobName, jobId, tempDir, uniqid, status from htcjobs order by rowid";

    type OldColumns = (String, String, String, i64, i64);

    fn rows(path: &Path) -> Vec<OldColumns> {
        let file = Connection::open(path).unwrap();
        let mut statement = file.prepare(OLD).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
        statement.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[tokio::test]
    async fn inherited_row_is_bound_to_its_object_and_outlives_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        original(&path);
        // Another row with the same name and id, from another queue.
        let file = Connection::open(&path).unwrap();
        file.execute_batch("insert into htcjobs values ('zero', '884426.0', 1, '/tmp/c', 8)").unwrap();
        drop(file);
        let before = rows(&path);
        let ledger = Ledger::open_alone(&path).unwrap();
        let found = ledger.inherited("zero", &uid()).await.unwrap();
        assert_eq!(found.len(), 2);
        let ids = ["884426.0".to_owned()];
        let Inherited::Jobs(jobs) = inherited(&ids, found[0].uniqid, &found) else { panic!("unclear") };
        let id = JobId { cluster: ClusterId(884_426), proc: 0 };
        let ended = JobState::Ended(Outcome::Succeeded);
        let mine = Job { id, attempt: Attempt::INHERITED, fetched: true, ..job(0, ended) };
        for _ in 0..2 {
            let save = save(known(Phase::Completed), vec![(Index(0), mine.clone())], Vec::new());
            ledger.adopt(save, Arc::clone(&jobs)).await.unwrap();
            let record = ledger.load(&uid()).await.unwrap();
            assert_eq!(record.jobs.into_iter().collect::<Vec<_>>(), [(Index(0), mine.clone())]);
        }
        assert_eq!(ledger.inherited("zero", &uid()).await.unwrap().len(), 2, "it finds its own again");
        assert_eq!(ledger.inherited("zero", &Uid::from("another")).await.unwrap().len(), 1, "no other object has it");
        let released = ObjectRow { released: true, ..known(Phase::Terminating) };
        ledger.save(Save { now: Timestamp(500), ..save(released, Vec::new(), Vec::new()) }).await.unwrap();
        assert!(ledger.forget(uid(), Timestamp(500)).await.unwrap());
        assert!(ledger.load(&uid()).await.unwrap().jobs.is_empty());
        ledger.close().await;
        assert_eq!(rows(&path), before, "not even the code has changed: 24 stays 24");
    }
}
