//! What jobs report of themselves. Hints: they stand beside the jobs' rows and never change them.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::writer::NUMBER;
use super::{Ledger, LedgerError};
use crate::api::ObjectName;
use crate::failpoint::{Point, around};
use crate::machine::facts::{End, Report};
use crate::machine::ids::{JobId, Timestamp, Uid};
use crate::machine::indices::Indices;

/// So many events that a newer one has replaced are still known by their ids: a job sends one again for some seconds, and may have
/// begun again meanwhile.
const REMEMBERED: usize = 3;
/// What a job has at most: its newest start and its newest end.
const KINDS: i64 = 2;

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
    /// The object has reported of too many jobs that are not recorded.
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
    let Callback { uid, name, id, event, told } = callback;
    let namespace: Option<String> = connection
        .prepare_cached("select namespace from objects where uid = ?1 and name = ?2")
        .and_then(|mut rows| rows.query_row(params![uid.as_str(), name], |row| row.get(0)).optional())
        .map_err(sql())?;
    let Some(namespace) = namespace else { return Ok(Receipt::Unknown) };
    let kept = kept(connection, uid, *id).map_err(sql())?;
    if kept.iter().any(|kept| kept.is(event)) {
        return Ok(Receipt::Again);
    }
    let code = match told {
        Told::Started => None,
        Told::Ended(code) => Some(*code),
    };
    let mut replaced = kept.into_iter().filter(|kept| kept.ended == code.is_some()).peekable();
    if !exists(connection, "select 1 from htcjobs where jobId = ?2 and uid = ?1", uid, *id)? {
        // A job may begin before the operator has seen that HTCondor accepted it.
        let anothers = "select 1 from htcjobs where jobId = ?2 and uid <> ?1 and birthdate >=
                            (select max(birthdate) from submissions where uid = ?1)";
        if exists(connection, anothers, uid, *id)? {
            return Ok(Receipt::Unknown);
        }
        let Unrecorded { attempted, jobs } = unrecorded(connection, uid)?;
        if jobs == 0 {
            return Ok(Receipt::Unknown);
        }
        if replaced.peek().is_none() && !one_more(connection, uid, attempted).map_err(sql())? {
            return Ok(Receipt::TooMany);
        }
    }
    let earlier: Vec<String> = replaced.flat_map(Kept::ids).take(REMEMBERED).collect();
    replace(connection, callback, (at, code), &earlier).map_err(sql())?;
    Ok(Receipt::Stored(ObjectName { namespace, name: name.clone() }))
}

fn sql() -> impl FnOnce(rusqlite::Error) -> LedgerError {
    LedgerError::sql("store what a job reports")
}

fn exists(connection: &Connection, statement: &str, uid: &Uid, id: JobId) -> Result<bool, LedgerError> {
    connection
        .prepare_cached(statement)
        .and_then(|mut rows| rows.exists(params![uid.as_str(), id.to_string()]))
        .map_err(sql())
}

/// A row: the newest start or end of a job.
struct Kept {
    event: String,
    ended: bool,
    /// The ids of those that it has replaced, newest first.
    earlier: Vec<String>,
}

impl Kept {
    fn is(&self, event: &str) -> bool {
        self.event == event || self.earlier.iter().any(|earlier| earlier == event)
    }

    /// Newest first.
    fn ids(self) -> impl Iterator<Item = String> {
        std::iter::once(self.event).chain(self.earlier)
    }
}

/// What is kept of this job, newest first.
fn kept(connection: &Connection, uid: &Uid, id: JobId) -> rusqlite::Result<Vec<Kept>> {
    let mut statement = connection.prepare_cached(
        "select event, retcode is not null, earlier from callbacks where uid = ?1 and jobId = ?2 order by at desc",
    )?;
    let rows = statement.query_map(params![uid.as_str(), id.to_string()], |row| {
        let earlier: Option<String> = row.get(2)?;
        // What cannot be read is forgotten: a report that comes again is then a new one, which HTCondor confirms or refutes.
        let earlier = earlier.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(Kept { event: row.get(0)?, ended: row.get(1)?, earlier })
    })?;
    rows.collect()
}

/// Puts this event in the place of those of its job and kind.
fn replace(
    connection: &Connection,
    Callback { uid, id, event, .. }: &Callback,
    (at, code): (Timestamp, Option<i32>),
    earlier: &[String],
) -> rusqlite::Result<()> {
    let id = id.to_string();
    connection
        .prepare_cached("delete from callbacks where uid = ?1 and jobId = ?2 and (retcode is not null) = ?3")?
        .execute(params![uid.as_str(), id, code.is_some()])?;
    connection
        .prepare_cached(
            "insert into callbacks(uid, jobId, event, at, retcode, earlier, settled) values (?1, ?2, ?3, ?4, ?5, ?6, exists
                (select 1 from htcjobs where jobId = ?2 and uid = ?1 and outcome is not null))",
        )?
        .execute(params![uid.as_str(), id, event, at.0, code, serde_json::json!(earlier).to_string()])?;
    connection
        .prepare_cached(&format!("update htcjobs set changed = {NUMBER} where jobId = ?2 and uid = ?1"))?
        .execute(params![uid.as_str(), id])
        .map(drop)
}

/// Jobs that HTCondor may have accepted: their ids are not known, so that their number alone says how many there can be.
struct Unrecorded {
    /// All that submissions were tried for.
    attempted: i64,
    /// Those of them that are not recorded.
    jobs: i64,
}

/// Counts them only after something has changed: triggers of the schema clear the counts.
fn unrecorded(connection: &Connection, uid: &Uid) -> Result<Unrecorded, LedgerError> {
    let counts: Option<(i64, i64)> = connection
        .prepare_cached(
            "select attempted, recorded from objects where uid = ?1 and attempted is not null and recorded is not null",
        )
        .and_then(|mut rows| rows.query_row([uid.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional())
        .map_err(sql())?;
    let (attempted, recorded) = match counts {
        Some(counts) => counts,
        None => count(connection, uid)?,
    };
    Ok(Unrecorded { attempted, jobs: attempted.saturating_sub(recorded).max(0) })
}

/// Counts the jobs that were attempted and those that are recorded, and stores both.
fn count(connection: &Connection, uid: &Uid) -> Result<(i64, i64), LedgerError> {
    let mut statement = connection
        .prepare_cached("select indices from submissions where uid = ?1 and state <> 'notRun'")
        .map_err(sql())?;
    let mut rows = statement.query([uid.as_str()]).map_err(sql())?;
    let mut attempts: Vec<Indices> = Vec::new();
    while let Some(row) = rows.next().map_err(sql())? {
        let text: String = row.get(0).map_err(sql())?;
        attempts.push(text.parse().map_err(|_| LedgerError::row(uid, &"its indices cannot be read"))?);
    }
    let attempted = i64::try_from(Indices::union(&attempts).len()).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "update objects set attempted = ?2, recorded = (select count(*) from htcjobs where uid = ?1) where uid = ?1
             returning attempted, recorded",
        )
        .and_then(|mut row| row.query_row(params![uid.as_str(), attempted], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(sql())
}

/// Counts one more row of a job that is not recorded; false if there is no room for it.
fn one_more(connection: &Connection, uid: &Uid, attempted: i64) -> rusqlite::Result<bool> {
    let counted = connection
        .prepare_cached("update objects set early = coalesce(early, 0) + 1 where uid = ?1 and coalesce(early, 0) < ?2")?
        .execute(params![uid.as_str(), attempted.saturating_mul(KINDS)])?;
    Ok(counted > 0)
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

    /// The ledger has its file to itself.
    async fn rows(folder: &tempfile::TempDir, ledger: Ledger) -> i64 {
        ledger.close().await;
        let file = Connection::open(folder.path().join("htcjobs.db")).unwrap();
        file.query_row("select count(*) from callbacks", [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn of_each_job_the_newest_start_and_the_newest_end_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        for run in 0..250 {
            let (start, end) = (format!("start {run}"), format!("end {run}"));
            assert!(stored(&receive(&ledger, callback("12.0", &start, Told::Started), i64::from(2 * run)).await));
            assert!(stored(&receive(&ledger, callback("12.0", &end, Told::Ended(run)), i64::from(2 * run + 1)).await));
        }
        let newest = Report { started: Some(Timestamp(498)), ended: Some(End { at: Timestamp(499), code: 249 }) };
        let expected = BTreeMap::from([("12.0".parse().unwrap(), newest)]);
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, expected);
        // Those that were replaced last come again, and replace nothing.
        for run in [249, 248, 246] {
            let end = callback("12.0", &format!("end {run}"), Told::Ended(run));
            assert_eq!(receive(&ledger, end, 900).await, Receipt::Again, "{run}");
        }
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, expected);
        assert_eq!(rows(&folder, ledger).await, 2);
    }

    #[tokio::test]
    async fn jobs_that_are_not_recorded_cannot_fill_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        for job in 0..4 {
            assert!(stored(&receive(&ledger, callback(&format!("90.{job}"), "a", Told::Started), 1).await));
        }
        assert_eq!(receive(&ledger, callback("90.4", "a", Told::Started), 1).await, Receipt::TooMany);
        assert!(stored(&receive(&ledger, callback("90.3", "b", Told::Started), 2).await), "it replaces its own");
        assert!(stored(&receive(&ledger, callback("12.0", "a", Told::Ended(1)), 1).await), "recorded ones have room");
        assert_eq!(rows(&folder, ledger).await, 5);
    }

    #[tokio::test]
    async fn jobs_are_counted_once_and_not_for_each_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        ledger(&folder).await.close().await;
        // Not what a count would give.
        Connection::open(&path).unwrap().execute_batch("update objects set attempted = 4, recorded = 1").unwrap();
        let ledger = Ledger::open_alone(&path).unwrap();
        for job in 0..8 {
            assert!(stored(&receive(&ledger, callback(&format!("90.{job}"), "a", Told::Started), 1).await), "{job}");
        }
        assert_eq!(receive(&ledger, callback("90.8", "a", Told::Started), 1).await, Receipt::TooMany);
    }

    /// However the file is written: also by an operator that knows nothing of the counts.
    #[tokio::test]
    async fn the_count_of_jobs_that_are_not_recorded_is_never_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let opened = ledger(&folder).await;
        assert!(stored(&receive(&opened, callback("12.1", "first", Told::Started), 1).await));
        opened.close().await;
        for (change, expected) in [
            ("insert into htcjobs(htcjobName, jobId, uid, idx) values ('zero', '12.5', ?1, 1)", false),
            ("update htcjobs set uid = null, idx = null where uid = ?1 and idx = 1", true),
            ("update htcjobs set uid = ?1, idx = 1 where jobId = '12.5'", false),
            (
                "insert into submissions(uid, attempt, indices, schedd, birthdate, intentAt, intentDate, notAfter, witness, identity, state)
                 values (?1, 2, '1-2', 's', 1000, 0, 0, 0, '', 'o', 'open')",
                true,
            ),
            ("update submissions set state = 'notRun' where uid = ?1 and attempt = 2", false),
        ] {
            Connection::open(&path).unwrap().execute(change, [uid().as_str()]).unwrap();
            let reopened = Ledger::open_alone(&path).unwrap();
            let receipt = receive(&reopened, callback("13.0", change, Told::Started), 2).await;
            assert_eq!(stored(&receipt), expected, "{change}: {receipt:?}");
            reopened.close().await;
        }
    }

    /// What was kept of a job before is brought down to its newest start and end, once.
    #[tokio::test]
    async fn events_of_an_older_version_are_brought_down_to_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        ledger(&folder).await.close().await;
        let path = folder.path().join("htcjobs.db");
        let file = Connection::open(&path).unwrap();
        file.execute_batch("delete from ledger where key = 'callbacks'").unwrap();
        for (event, at, code, refuted) in
            [("a", 1, None, 0), ("b", 2, Some(5), 0), ("c", 3, None, 0), ("d", 4, Some(0), 1)]
        {
            let row =
                "insert into callbacks(uid, jobId, event, at, retcode, refuted) values (?1, '12.0', ?2, ?3, ?4, ?5)";
            file.execute(row, params![uid().as_str(), event, at, code, refuted]).unwrap();
        }
        drop(file);
        let ledger = Ledger::open_alone(&path).unwrap();
        let expected = Report { started: Some(Timestamp(3)), ended: None };
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, BTreeMap::from([("12.0".parse().unwrap(), expected)]));
        assert_eq!(receive(&ledger, callback("12.0", "d", Told::Ended(0)), 9).await, Receipt::Again);
        assert_eq!(rows(&folder, ledger).await, 2);
    }
}
