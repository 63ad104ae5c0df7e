//! What jobs report of themselves. Hints: they stand beside the jobs' rows and never change them.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};
use crate::api::ObjectName;
use crate::failpoint::{Point, around};
use crate::machine::facts::{End, Report};
use crate::machine::ids::{JobId, Timestamp, Uid};
use crate::machine::indices::Indices;

/// Most events kept of one job: twice the starts and ends of a job that is run again fifty times.
const EVENTS: i64 = 200;

/// What a job reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    /// Its HTCJob.
    pub uid: Uid,
    /// The name that it gives its HTCJob.
    pub name: String,
    /// The job.
    pub id: JobId,
    /// The event's own id: one that comes twice is the same.
    pub event: String,
    /// What happened.
    pub told: Told,
}

/// What happened to a job by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its payload begins.
    Started,
    /// Its payload has ended with this exit code.
    Ended(i32),
}

/// What became of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is stored, and news to the object of this name.
    Stored(ObjectName),
    /// It was stored before.
    Again,
    /// The object has no such job, and can have none that is not recorded yet.
    Unknown,
    /// The job has too many already.
    TooMany,
}

impl Ledger {
    /// Stores what a job reports; it is durable when this returns.
    pub async fn receive(&self, callback: Callback, at: Timestamp) -> Result<Receipt, LedgerError> {
        let stored = self.run(move |connection| receive(connection, &callback, at));
        around(Point::BeforeCallbackStored, stored, Point::AfterCallbackStored).await
    }
}

fn receive(connection: &Connection, callback: &Callback, at: Timestamp) -> Result<Receipt, LedgerError> {
    let sql = || LedgerError::sql("store what a job reports");
    let Callback { uid, name, id, event, told } = callback;
    let id = id.to_string();
    let exists = |statement: &str| -> Result<bool, LedgerError> {
        connection.prepare_cached(statement).and_then(|mut rows| rows.exists(params![uid.as_str(), id])).map_err(sql())
    };
    let namespace: Option<String> = connection
        .prepare_cached("select namespace from objects where uid = ?1 and name = ?2")
        .and_then(|mut rows| rows.query_row(params![uid.as_str(), name], |row| row.get(0)).optional())
        .map_err(sql())?;
    let Some(namespace) = namespace else { return Ok(Receipt::Unknown) };
    let again = connection
        .prepare_cached("select 1 from callbacks where uid = ?1 and jobId = ?2 and event = ?3")
        .and_then(|mut rows| rows.exists(params![uid.as_str(), id, event]))
        .map_err(sql())?;
    if again {
        return Ok(Receipt::Again);
    }
    if !exists("select 1 from htcjobs where jobId = ?2 and uid = ?1")? {
        // A job may begin before the operator has seen that HTCondor accepted it.
        let anothers = "select 1 from htcjobs where jobId = ?2 and uid <> ?1 and birthdate >=
                            (select max(birthdate) from submissions where uid = ?1)";
        if exists(anothers)? || !may_have_more_jobs(connection, uid)? {
            return Ok(Receipt::Unknown);
        }
    }
    let events: i64 = connection
        .prepare_cached("select count(*) from callbacks where uid = ?1 and jobId = ?2")
        .and_then(|mut rows| rows.query_row(params![uid.as_str(), id], |row| row.get(0)))
        .map_err(sql())?;
    if events >= EVENTS {
        return Ok(Receipt::TooMany);
    }
    let code = match told {
        Told::Started => None,
        Told::Ended(code) => Some(*code),
    };
    connection
        .prepare_cached(
            "insert into callbacks(uid, jobId, event, at, retcode, settled) values (?1, ?2, ?3, ?4, ?5, exists
                (select 1 from htcjobs where jobId = ?2 and uid = ?1 and outcome is not null))",
        )
        .and_then(|mut row| row.execute(params![uid.as_str(), id, event, at.0, code]))
        .map_err(sql())?;
    Ok(Receipt::Stored(ObjectName { namespace, name: name.clone() }))
}

/// Whether HTCondor may have accepted jobs of this object that are not recorded, and whether there is room for what they
/// report: their ids are not known, so that their number alone says how many there can be.
fn may_have_more_jobs(connection: &Connection, uid: &Uid) -> Result<bool, LedgerError> {
    let sql = || LedgerError::sql("store what a job reports");
    let count = |statement: &str| -> Result<i64, LedgerError> {
        connection
            .prepare_cached(statement)
            .and_then(|mut rows| rows.query_row([uid.as_str()], |row| row.get(0)))
            .map_err(sql())
    };
    let mut statement = connection
        .prepare_cached("select indices from submissions where uid = ?1 and state <> 'notRun'")
        .map_err(sql())?;
    let mut rows = statement.query([uid.as_str()]).map_err(sql())?;
    let mut attempted = Indices::default();
    while let Some(row) = rows.next().map_err(sql())? {
        let text: String = row.get(0).map_err(sql())?;
        let indices: Indices = text.parse().map_err(|_| LedgerError::row(uid, &"its indices cannot be read"))?;
        attempted = attempted.iter().chain(indices.iter()).collect();
    }
    let attempted = i64::try_from(attempted.len()).unwrap_or(i64::MAX);
    let recorded = count("select count(*) from htcjobs where uid = ?1")?;
    let stored = count("select count(*) from callbacks where uid = ?1")?;
    Ok(recorded < attempted && stored < attempted.saturating_mul(EVENTS))
}

/// What the jobs of an object report, by id, as long as HTCondor has not said how they ended: of each the newest end, and the
/// newest start.
pub(super) fn reports(connection: &Connection, uid: &Uid) -> Result<BTreeMap<JobId, Report>, LedgerError> {
    let sql = || LedgerError::sql("read what jobs report");
    let mut statement = connection
        .prepare_cached("select jobId, at, retcode, refuted from callbacks where uid = ?1 and settled = 0 order by at")
        .map_err(sql())?;
    let mut rows = statement.query([uid.as_str()]).map_err(sql())?;
    let mut reports: BTreeMap<JobId, Report> = BTreeMap::new();
    while let Some(row) = rows.next().map_err(sql())? {
        let read = || -> rusqlite::Result<(String, Timestamp, Option<i32>, bool)> {
            Ok((row.get(0)?, Timestamp(row.get(1)?), row.get(2)?, row.get(3)?))
        };
        let (id, at, code, refuted) = read().map_err(sql())?;
        let id: JobId = id.parse().map_err(|error| LedgerError::row(uid, &error))?;
        let report = reports.entry(id).or_default();
        match code {
            None => report.started = Some(at),
            Some(_) if refuted => report.ended = None,
            Some(code) => report.ended = Some(End { at, code }),
        }
    }
    Ok(reports)
}

/// HTCondor has said how this job ended.
pub(super) fn settle(connection: &Connection, uid: &Uid, id: JobId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("update callbacks set settled = 1 where uid = ?1 and jobId = ?2")?
        .execute(params![uid.as_str(), id.to_string()])
        .map(drop)
}

/// HTCondor has said otherwise than these jobs: the ends that they have reported so far no longer count.
pub(super) fn refute(connection: &Connection, uid: &Uid, ids: &[JobId]) -> Result<(), LedgerError> {
    let mut statement = connection
        .prepare_cached("update callbacks set refuted = 1 where uid = ?1 and jobId = ?2 and retcode is not null")
        .map_err(LedgerError::sql("write that HTCondor said otherwise"))?;
    for id in ids {
        statement
            .execute(params![uid.as_str(), id.to_string()])
            .map_err(LedgerError::sql("write that HTCondor said otherwise"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{intent, job, known, save, uid};
    use super::*;
    use crate::api::Phase;
    use crate::machine::facts::JobState;
    use crate::machine::ids::Index;
    use crate::machine::outcome::Outcome;

    fn callback(id: &str, event: &str, told: Told) -> Callback {
        Callback { uid: uid(), name: "zero".to_owned(), id: id.parse().unwrap(), event: event.to_owned(), told }
    }

    /// An object with two jobs submitted, of which 12.0 is recorded.
    async fn ledger(folder: &tempfile::TempDir) -> Ledger {
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        ledger
            .save(save(known(Phase::Submitted), vec![(Index(0), job(0, JobState::Running))], Vec::new()))
            .await
            .unwrap();
        ledger.intend(vec![intent(1, "0-1")]).await.unwrap();
        ledger
    }

    async fn receive(ledger: &Ledger, callback: Callback, at: i64) -> Receipt {
        ledger.receive(callback, Timestamp(at)).await.unwrap()
    }

    fn stored(receipt: &Receipt) -> bool {
        matches!(receipt, Receipt::Stored(name) if name.namespace == "physics" && name.name == "zero")
    }

    #[tokio::test]
    async fn what_a_job_reports_is_read_back_once() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        let end = callback("12.0", "b", Told::Ended(7));
        assert!(stored(&receive(&ledger, callback("12.0", "a", Told::Started), 5).await));
        assert!(stored(&receive(&ledger, end.clone(), 6).await));
        for _ in 0..3 {
            assert_eq!(receive(&ledger, end.clone(), 900).await, Receipt::Again);
        }
        let expected = Report { started: Some(Timestamp(5)), ended: Some(End { at: Timestamp(6), code: 7 }) };
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, BTreeMap::from([("12.0".parse().unwrap(), expected)]));
        // HTCondor has the last word.
        let ended = job(0, JobState::Ended(Outcome::Succeeded));
        ledger.save(save(known(Phase::Running), vec![(Index(0), ended)], Vec::new())).await.unwrap();
        assert!(ledger.load(&uid()).await.unwrap().reports.is_empty());
        assert!(stored(&receive(&ledger, callback("12.0", "late", Told::Ended(1)), 7).await));
        assert!(ledger.load(&uid()).await.unwrap().reports.is_empty());
    }

    #[tokio::test]
    async fn what_htcondor_contradicts_does_not_come_back_and_a_new_end_counts_again() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        let first = callback("12.0", "first", Told::Ended(0));
        receive(&ledger, first.clone(), 6).await;
        let mut contradicted = save(known(Phase::Running), Vec::new(), Vec::new());
        contradicted.refuted = vec!["12.0".parse().unwrap()];
        ledger.save(contradicted).await.unwrap();
        let ended = |record: crate::machine::facts::Record| record.reports.values().find_map(|report| report.ended);
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), None);
        assert_eq!(receive(&ledger, first, 7).await, Receipt::Again);
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), None);
        receive(&ledger, callback("12.0", "second", Told::Ended(3)), 8).await;
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), Some(End { at: Timestamp(8), code: 3 }));
    }

    #[tokio::test]
    async fn only_jobs_that_the_object_has_or_may_have_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        // Its other job may run before the operator has seen that it was accepted.
        assert!(stored(&receive(&ledger, callback("12.1", "a", Told::Started), 5).await));
        let other = Callback { name: "another".to_owned(), ..callback("12.0", "x", Told::Started) };
        assert_eq!(receive(&ledger, other, 5).await, Receipt::Unknown);
        let other = Callback { uid: "another".into(), ..callback("12.0", "x", Told::Started) };
        assert_eq!(receive(&ledger, other, 5).await, Receipt::Unknown);
        // Another object's job of the same queue.
        let mut others = save(known(Phase::Submitted), vec![(Index(0), job(9, JobState::Idle))], Vec::new());
        others.uid = "another".into();
        ledger.save(others).await.unwrap();
        assert_eq!(receive(&ledger, callback("12.9", "x", Told::Ended(0)), 5).await, Receipt::Unknown);
        // All are recorded.
        ledger.save(save(known(Phase::Submitted), vec![(Index(1), job(1, JobState::Idle))], Vec::new())).await.unwrap();
        assert_eq!(receive(&ledger, callback("13.0", "x", Told::Started), 5).await, Receipt::Unknown);
        assert!(stored(&receive(&ledger, callback("12.1", "b", Told::Ended(0)), 5).await));
    }

    #[tokio::test]
    async fn a_job_cannot_fill_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        for number in 0..EVENTS {
            assert!(stored(&receive(&ledger, callback("12.0", &number.to_string(), Told::Ended(1)), number).await));
        }
        assert_eq!(receive(&ledger, callback("12.0", "one more", Told::Ended(1)), 1).await, Receipt::TooMany);
        assert_eq!(receive(&ledger, callback("12.0", "0", Told::Ended(1)), 1).await, Receipt::Again);
        assert!(stored(&receive(&ledger, callback("12.1", "0", Told::Started), 1).await));
    }
}
