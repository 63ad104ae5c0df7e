//! Reports that jobs send about themselves. They are only hints: they are stored beside the jobs' rows and never change
//! their state.

use std::collections::BTreeMap;

use htc_api::ObjectName;
use htc_machine::facts::{Report, ReportedEnd};
use htc_machine::ids::{JobId, Timestamp, Uid};
use htc_machine::indices::Indices;
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::writer::NUMBER;
use super::{Ledger, LedgerError};

/// Number of replaced events whose ids are remembered. A job repeats the sending of an event for some seconds, and may
/// have started again meanwhile.
const REMEMBERED: usize = 3;
/// Maximum number of stored events per job: the newest start and the newest end.
const KINDS: i64 = 2;

/// Report that a job sends about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// HTCJob of the job.
    pub uid: Uid,
    /// Name of the HTCJob, as given by the job.
    pub name: String,
    pub id: JobId,
    /// Id of the event. Two reports with the same id are the same event.
    pub event: String,
    pub kind: ReportKind,
}

/// Kind of event that a job reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// The payload begins.
    Started,
    /// The payload has ended with this exit code.
    Ended(i32),
}

/// Result of storing a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// The report is stored and is new for the object of this name.
    Stored(ObjectName),
    /// The report was stored before.
    Duplicate,
    /// The object has no such job, and can have no job without a row.
    Unknown,
    /// The object has too many reports for jobs without a row.
    TooMany,
}

impl Ledger {
    /// Stores a report of a job. The report is durable when this returns.
    pub async fn receive(&self, callback: JobReport, at: Timestamp) -> Result<Receipt, LedgerError> {
        let stored = self.run(move |connection| receive(connection, &callback, at));
        around(Point::BeforeCallbackStored, stored, Point::AfterCallbackStored).await
    }
}

fn receive(connection: &Connection, callback: &JobReport, at: Timestamp) -> Result<Receipt, LedgerError> {
    let JobReport { uid, name, id, event, kind: told } = callback;
    let namespace: Option<String> = connection
        .prepare_cached("select namespace from objects where uid = ?1 and name = ?2")
        .and_then(|mut rows| rows.query_row(params![uid.as_str(), name], |row| row.get(0)).optional())
        .map_err(sql())?;
    let Some(namespace) = namespace else { return Ok(Receipt::Unknown) };
    let kept = kept(connection, uid, *id).map_err(sql())?;
    if kept.iter().any(|kept| kept.is(event)) {
        return Ok(Receipt::Duplicate);
    }
    let code = match told {
        ReportKind::Started => None,
        ReportKind::Ended(code) => Some(*code),
    };
    let mut replaced = kept.into_iter().filter(|kept| kept.ended == code.is_some()).peekable();
    if !exists(connection, "select 1 from htcjobs where jobId = ?2 and uid = ?1", uid, *id)? {
        // A job may start before the operator has seen that HTCondor accepted it.
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
    let earlier: Vec<String> = replaced.flat_map(StoredReport::ids).take(REMEMBERED).collect();
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

/// Stored event: the newest start or end of a job.
struct StoredReport {
    event: String,
    ended: bool,
    /// Ids of the events that this one replaced, newest first.
    earlier: Vec<String>,
}

impl StoredReport {
    fn is(&self, event: &str) -> bool {
        self.event == event || self.earlier.iter().any(|earlier| earlier == event)
    }

    /// Returns this event's id and the ids of those it replaced, newest first.
    fn ids(self) -> impl Iterator<Item = String> {
        std::iter::once(self.event).chain(self.earlier)
    }
}

/// Returns the stored events of a job, newest first.
fn kept(connection: &Connection, uid: &Uid, id: JobId) -> rusqlite::Result<Vec<StoredReport>> {
    let mut statement = connection.prepare_cached(
        "select event, retcode is not null, earlier from callbacks where uid = ?1 and jobId = ?2 order by at desc",
    )?;
    let rows = statement.query_map(params![uid.as_str(), id.to_string()], |row| {
        let earlier: Option<String> = row.get(2)?;
        // Unreadable ids are dropped. A repeated report then counts as a new one, which HTCondor confirms or refutes.
        let earlier = earlier.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(StoredReport { event: row.get(0)?, ended: row.get(1)?, earlier })
    })?;
    rows.collect()
}

/// Replaces the stored event of the same job and kind.
fn replace(
    connection: &Connection,
    JobReport { uid, id, event, .. }: &JobReport,
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

/// Number of jobs that HTCondor may have accepted but that have no row yet. Their ids are unknown, so only their number
/// limits how many reports are stored.
struct Unrecorded {
    /// Number of jobs in all attempted submissions.
    attempted: i64,
    /// Number of those jobs without a row.
    jobs: i64,
}

/// Returns the stored counts, or counts again after a change: triggers of the schema clear the counts.
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

/// Counts the jobs in attempted submissions and the jobs with a row, and stores both counts.
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

/// Counts one more report for a job without a row. Returns false if the limit is reached.
fn one_more(connection: &Connection, uid: &Uid, attempted: i64) -> rusqlite::Result<bool> {
    let counted = connection
        .prepare_cached("update objects set early = coalesce(early, 0) + 1 where uid = ?1 and coalesce(early, 0) < ?2")?
        .execute(params![uid.as_str(), attempted.saturating_mul(KINDS)])?;
    Ok(counted > 0)
}

/// Returns the newest start and end that each job reports, by job id, for jobs whose end HTCondor has not confirmed
/// yet.
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
            Some(code) => report.ended = Some(ReportedEnd { at, code }),
        }
    }
    Ok(reports)
}

/// Marks the reports of a job as settled: HTCondor has confirmed how it ended.
pub(super) fn settle(connection: &Connection, uid: &Uid, id: JobId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("update callbacks set settled = 1 where uid = ?1 and jobId = ?2")?
        .execute(params![uid.as_str(), id.to_string()])
        .map(drop)
}

/// Marks the ends that these jobs have reported so far as refuted, because HTCondor contradicts them.
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
    use htc_api::Phase;
    use htc_machine::facts::JobState;
    use htc_machine::ids::Index;
    use htc_machine::outcome::Outcome;

    use super::super::tests::{intent, job, known, save, uid};
    use super::*;

    fn callback(id: &str, event: &str, told: ReportKind) -> JobReport {
        JobReport { uid: uid(), name: "zero".to_owned(), id: id.parse().unwrap(), event: event.to_owned(), kind: told }
    }

    /// Returns a ledger with an object that has two submitted jobs, of which 12.0 has a row.
    async fn ledger(folder: &tempfile::TempDir) -> Ledger {
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        ledger
            .save(save(known(Phase::Submitted), vec![(Index(0), job(0, JobState::Running))], Vec::new()))
            .await
            .unwrap();
        ledger.intend(vec![intent(1, "0-1")]).await.unwrap();
        ledger
    }

    async fn receive(ledger: &Ledger, callback: JobReport, at: i64) -> Receipt {
        ledger.receive(callback, Timestamp(at)).await.unwrap()
    }

    fn stored(receipt: &Receipt) -> bool {
        matches!(receipt, Receipt::Stored(name) if name.namespace == "physics" && name.name == "zero")
    }

    #[tokio::test]
    async fn report_is_stored_once_and_loaded_until_the_job_ends() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        let end = callback("12.0", "b", ReportKind::Ended(7));
        assert!(stored(&receive(&ledger, callback("12.0", "a", ReportKind::Started), 5).await));
        assert!(stored(&receive(&ledger, end.clone(), 6).await));
        for _ in 0..3 {
            assert_eq!(receive(&ledger, end.clone(), 900).await, Receipt::Duplicate);
        }
        let expected = Report { started: Some(Timestamp(5)), ended: Some(ReportedEnd { at: Timestamp(6), code: 7 }) };
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, BTreeMap::from([("12.0".parse().unwrap(), expected)]));
        // HTCondor's answer is final.
        let ended = job(0, JobState::Ended(Outcome::Succeeded));
        ledger.save(save(known(Phase::Running), vec![(Index(0), ended)], Vec::new())).await.unwrap();
        assert!(ledger.load(&uid()).await.unwrap().reports.is_empty());
        assert!(stored(&receive(&ledger, callback("12.0", "late", ReportKind::Ended(1)), 7).await));
        assert!(ledger.load(&uid()).await.unwrap().reports.is_empty());
    }

    #[tokio::test]
    async fn refuted_report_stays_dropped_and_a_new_end_counts() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        let first = callback("12.0", "first", ReportKind::Ended(0));
        receive(&ledger, first.clone(), 6).await;
        let mut contradicted = save(known(Phase::Running), Vec::new(), Vec::new());
        contradicted.refuted = vec!["12.0".parse().unwrap()];
        ledger.save(contradicted).await.unwrap();
        let ended = |record: htc_machine::facts::Record| record.reports.values().find_map(|report| report.ended);
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), None);
        assert_eq!(receive(&ledger, first, 7).await, Receipt::Duplicate);
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), None);
        receive(&ledger, callback("12.0", "second", ReportKind::Ended(3)), 8).await;
        assert_eq!(ended(ledger.load(&uid()).await.unwrap()), Some(ReportedEnd { at: Timestamp(8), code: 3 }));
    }

    #[tokio::test]
    async fn reports_are_accepted_only_for_possible_jobs_of_the_object() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        // The object's other job may start before the operator has seen that HTCondor accepted it.
        assert!(stored(&receive(&ledger, callback("12.1", "a", ReportKind::Started), 5).await));
        let other = JobReport { name: "another".to_owned(), ..callback("12.0", "x", ReportKind::Started) };
        assert_eq!(receive(&ledger, other, 5).await, Receipt::Unknown);
        let other = JobReport { uid: "another".into(), ..callback("12.0", "x", ReportKind::Started) };
        assert_eq!(receive(&ledger, other, 5).await, Receipt::Unknown);
        // A job of another object in the queue of the same schedd.
        let mut others = save(known(Phase::Submitted), vec![(Index(0), job(9, JobState::Idle))], Vec::new());
        others.uid = "another".into();
        ledger.save(others).await.unwrap();
        assert_eq!(receive(&ledger, callback("12.9", "x", ReportKind::Ended(0)), 5).await, Receipt::Unknown);
        // Now all jobs have rows.
        ledger.save(save(known(Phase::Submitted), vec![(Index(1), job(1, JobState::Idle))], Vec::new())).await.unwrap();
        assert_eq!(receive(&ledger, callback("13.0", "x", ReportKind::Started), 5).await, Receipt::Unknown);
        assert!(stored(&receive(&ledger, callback("12.1", "b", ReportKind::Ended(0)), 5).await));
    }

    /// Counts the stored reports. Closes the ledger first, because it has the file locked.
    async fn rows(folder: &tempfile::TempDir, ledger: Ledger) -> i64 {
        ledger.close().await;
        let file = Connection::open(folder.path().join("htcjobs.db")).unwrap();
        file.query_row("select count(*) from callbacks", [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn newest_start_and_end_of_each_job_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        for run in 0..250 {
            let (start, end) = (format!("start {run}"), format!("end {run}"));
            assert!(stored(&receive(&ledger, callback("12.0", &start, ReportKind::Started), i64::from(2 * run)).await));
            assert!(stored(
                &receive(&ledger, callback("12.0", &end, ReportKind::Ended(run)), i64::from(2 * run + 1)).await
            ));
        }
        let newest =
            Report { started: Some(Timestamp(498)), ended: Some(ReportedEnd { at: Timestamp(499), code: 249 }) };
        let expected = BTreeMap::from([("12.0".parse().unwrap(), newest)]);
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, expected);
        // Repeated events that were replaced most recently are recognised and replace nothing.
        for run in [249, 248, 246] {
            let end = callback("12.0", &format!("end {run}"), ReportKind::Ended(run));
            assert_eq!(receive(&ledger, end, 900).await, Receipt::Duplicate, "{run}");
        }
        assert_eq!(ledger.load(&uid()).await.unwrap().reports, expected);
        assert_eq!(rows(&folder, ledger).await, 2);
    }

    #[tokio::test]
    async fn reports_of_unrecorded_jobs_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(&folder).await;
        for job in 0..4 {
            assert!(stored(&receive(&ledger, callback(&format!("90.{job}"), "a", ReportKind::Started), 1).await));
        }
        assert_eq!(receive(&ledger, callback("90.4", "a", ReportKind::Started), 1).await, Receipt::TooMany);
        assert!(stored(&receive(&ledger, callback("90.3", "b", ReportKind::Started), 2).await), "it replaces its own");
        assert!(
            stored(&receive(&ledger, callback("12.0", "a", ReportKind::Ended(1)), 1).await),
            "recorded jobs are not limited"
        );
        assert_eq!(rows(&folder, ledger).await, 5);
    }

    #[tokio::test]
    async fn jobs_are_counted_once_not_per_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        ledger(&folder).await.close().await;
        // Counts that differ from the real numbers, so that a recount would be noticed.
        Connection::open(&path).unwrap().execute_batch("update objects set attempted = 4, recorded = 1").unwrap();
        let ledger = Ledger::open_alone(&path).unwrap();
        for job in 0..8 {
            assert!(
                stored(&receive(&ledger, callback(&format!("90.{job}"), "a", ReportKind::Started), 1).await),
                "{job}"
            );
        }
        assert_eq!(receive(&ledger, callback("90.8", "a", ReportKind::Started), 1).await, Receipt::TooMany);
    }

    /// The count is right however the file is written, even by an older operator that does not know of the counts.
    #[tokio::test]
    async fn count_of_unrecorded_jobs_is_never_stale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let opened = ledger(&folder).await;
        assert!(stored(&receive(&opened, callback("12.1", "first", ReportKind::Started), 1).await));
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
            let receipt = receive(&reopened, callback("13.0", change, ReportKind::Started), 2).await;
            assert_eq!(stored(&receipt), expected, "{change}: {receipt:?}");
            reopened.close().await;
        }
    }

    /// Events that an older version stored are reduced, once, to each job's newest start and newest end.
    #[tokio::test]
    async fn reports_of_an_older_version_are_reduced_to_the_newest() {
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
        assert_eq!(receive(&ledger, callback("12.0", "d", ReportKind::Ended(0)), 9).await, Receipt::Duplicate);
        assert_eq!(rows(&folder, ledger).await, 2);
    }
}
