//! HTCJobs of backends that report the state of their jobs themselves (Kubernetes): the created Job, and the state of
//! each index.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use htc_api::ObjectName;
use htc_machine::facts::ObjectRow;
use htc_machine::ids::{Index, SchedDate, Timestamp, Uid};
use htc_machine::indices::Indices;
use htc_machine::runs::{JobUid, KeptLog, Run, RunState, RunsRecord};
use htc_machine::transitions::Transition;
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::load::known;
use super::writer::NUMBER;
use super::{Ledger, LedgerError};
use crate::enum_text::parse;

/// Decision about such an object, to be written in one transaction.
pub struct SaveRuns {
    pub uid: Uid,
    pub name: ObjectName,
    pub row: ObjectRow,
    /// Job that was created for the object. The first one written stays.
    pub job: Option<JobUid>,
    pub runs: Vec<(Index, Run)>,
    /// Queue quota that the object no longer needs.
    pub returned_quota: Indices,
    pub transitions: Vec<Transition>,
    pub now: Timestamp,
}

/// Recorded index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Number of the index in its HTCJob.
    pub index: Index,
    /// Recorded facts.
    pub run: Run,
    /// Number of the transaction that last changed the index ([`Ledger::sequence`]).
    pub changed: i64,
    /// Number of the transaction that last changed its state, or a later one if that is unknown.
    pub stated: i64,
}

/// Some indexes of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRows {
    /// Recorded indexes, in order.
    pub rows: Vec<RunRow>,
    /// Whether a limit ended the object early, so that indexes without a row were given up.
    pub given_up: bool,
}

const RUN: &str = "idx, pod, state, starts, runStart, runEnd, host, exitCode, message, changed, uid, logPod, logBytes, logTries, logAt, \
     logFailure, coalesce(stated, changed)";

impl Ledger {
    /// Writes a decision: the object's row, the indexes that changed, and the transitions.
    pub async fn save_runs(&self, save: SaveRuns) -> Result<(), LedgerError> {
        let saved = self.run(move |connection| write(connection, &save));
        around(Point::BeforeDecisionSaved, saved, Point::AfterDecisionSaved).await
    }

    /// Writes the state of the logs of some indexes.
    pub async fn save_logs(&self, uid: Uid, logs: Vec<(Index, KeptLog)>) -> Result<(), LedgerError> {
        let saved = self.run(move |connection| {
            logs.iter()
                .try_for_each(|(index, log)| write_log(connection, &uid, *index, log).map(drop))
                .map_err(LedgerError::sql("write what became of logs"))
        });
        around(Point::BeforeLogsSaved, saved, Point::AfterLogsSaved).await
    }

    /// Returns all that is recorded about one such object; an empty record if there is nothing.
    pub async fn load_runs(&self, uid: &Uid) -> Result<RunsRecord, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            let runs = rows(connection, &uid, Index(0), i64::MAX)?;
            let grant = super::grants::of(connection, &uid)?;
            let (queue, granted) = grant.map_or_else(Default::default, |grant| (Some(grant.queue), grant.indices));
            Ok(RunsRecord {
                granting_queue: queue,
                granted,
                row: known(connection, &uid)?,
                job: batch_job(connection, &uid)?,
                runs: runs.into_iter().map(|row| (row.index, row.run)).collect::<BTreeMap<_, _>>(),
            })
        })
        .await
    }

    /// Returns the objects for which a Job was created and that were not released.
    pub async fn with_runs(&self) -> Result<HashSet<Uid>, LedgerError> {
        self.run(|connection| {
            let sql = || LedgerError::sql("read the objects with Jobs");
            let mut statement = connection
                .prepare("select uid from objects where released = 0 and batchJob is not null")
                .map_err(sql())?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(sql())?;
            rows.map(|row| Ok(Uid::from(row.map_err(sql())?.as_str()))).collect()
        })
        .await
    }

    /// Returns at most `limit` recorded indexes of this object, starting at `from`.
    pub async fn runs(&self, uid: Uid, from: Index, limit: usize) -> Result<RunRows, LedgerError> {
        self.run(move |connection| {
            let given_up = connection
                .prepare_cached("select coalesce(givenUp, 0) > 0 from objects where uid = ?1")
                .and_then(|mut rows| rows.query_row([uid.as_str()], |row| row.get(0)).optional())
                .map_err(LedgerError::sql("read an object"))?;
            let rows = rows(connection, &uid, from, i64::try_from(limit).unwrap_or(i64::MAX))?;
            Ok(RunRows { rows, given_up: given_up.unwrap_or_default() })
        })
        .await
    }

    /// Returns the Job created for an object, if it is recorded.
    pub async fn job_of(&self, uid: Uid) -> Result<Option<JobUid>, LedgerError> {
        self.run(move |connection| batch_job(connection, &uid)).await
    }

    /// Returns at most `limit` indexes that changed after transaction number `since`, the longest unchanged first. The
    /// changes of one transaction are returned completely, even beyond the limit.
    pub async fn runs_changed(&self, since: i64, limit: usize) -> Result<Vec<(Uid, RunRow)>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the runs that have changed");
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut statement = connection
                .prepare_cached(&format!(
                    "select {RUN} from runs where changed > ?1 and changed <=
                        coalesce((select changed from runs where changed > ?1 order by changed limit 1 offset ?2), 1 << 62)
                     order by changed, uid, idx"
                ))
                .map_err(sql())?;
            let mut rows = statement.query(params![since, limit]).map_err(sql())?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().map_err(sql())? {
                let uid: String = row.get(10).map_err(sql())?;
                let uid = Uid::from(uid.as_str());
                found.push((uid.clone(), run(row, &uid)?));
            }
            Ok(found)
        })
        .await
    }
}

fn write(connection: &Connection, save: &SaveRuns) -> Result<(), LedgerError> {
    super::store::write_object(connection, &save.uid, &save.name, None, &save.row, save.now)?;
    if let Some(job) = &save.job {
        connection
            .prepare_cached("update objects set batchJob = coalesce(batchJob, ?2) where uid = ?1")
            .and_then(|mut statement| statement.execute(params![save.uid.as_str(), job.as_str()]))
            .map_err(LedgerError::sql("write the Job of an object"))?;
    }
    for (index, run) in &save.runs {
        write_run(connection, &save.uid, *index, run).map_err(LedgerError::sql("write an index"))?;
    }
    super::grants::give_back(connection, &save.uid, &save.returned_quota, save.row.released)?;
    super::journal::append(connection, &save.uid, &save.transitions, save.now)
}

fn word(state: RunState) -> &'static str {
    match state {
        RunState::Waiting => "Waiting",
        RunState::Pending => "Pending",
        RunState::Running => "Running",
        RunState::Exited => "Exited",
        RunState::Ended(end) => end.into(),
    }
}

fn write_run(connection: &Connection, uid: &Uid, index: Index, run: &Run) -> rusqlite::Result<usize> {
    // The log is written only by [`Ledger::save_logs`].
    let Run { id, state, starts, start, end, host, exit, message, log: _ } = run;
    connection
        .prepare_cached(&format!(
            "insert into runs(uid, idx, pod, state, starts, runStart, runEnd, host, exitCode, message, changed, stated)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, {NUMBER}, {NUMBER})
             on conflict(uid, idx) do update set pod = excluded.pod, state = excluded.state, starts = excluded.starts,
                runStart = excluded.runStart, runEnd = excluded.runEnd, host = excluded.host, exitCode = excluded.exitCode,
                message = excluded.message, changed = excluded.changed,
                stated = iif(runs.state = excluded.state, runs.stated, excluded.stated)"
        ))?
        .execute(params![
            uid.as_str(),
            index.0,
            id.as_deref(),
            word(*state),
            starts,
            start.map(|date| date.0),
            end.map(|date| date.0),
            host.as_deref(),
            exit,
            message.as_deref(),
        ])
}

/// Writes the state of a log. `logTries` is null if the log was not requested yet. It is 0 if the log is stored
/// (`logPod` is set) or its Pod was gone (`logPod` is null).
fn write_log(connection: &Connection, uid: &Uid, index: Index, log: &KeptLog) -> rusqlite::Result<usize> {
    let (id, bytes, tries, at, failure) = match log {
        KeptLog::NotYet => (None, None, None, None, None),
        KeptLog::Failed { tries, at, why } => (None, None, Some(*tries), Some(at.0), Some(&**why)),
        KeptLog::Kept { id, bytes } => {
            (Some(&**id), Some(i64::try_from(*bytes).unwrap_or(i64::MAX)), Some(0), None, None)
        }
        KeptLog::Gone => (None, None, Some(0), None, None),
    };
    connection
        .prepare_cached(&format!(
            "update runs set logPod = ?3, logBytes = ?4, logTries = ?5, logAt = ?6, logFailure = ?7, changed = {NUMBER}
             where uid = ?1 and idx = ?2"
        ))?
        .execute(params![uid.as_str(), index.0, id, bytes, tries, at, failure])
}

fn read_log(row: &Row<'_>) -> rusqlite::Result<KeptLog> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.map(Arc::<str>::from));
    Ok(match (row.get::<_, Option<u32>>(13)?, text(11)?) {
        (None, _) => KeptLog::NotYet,
        (Some(0), Some(id)) => {
            let bytes: Option<i64> = row.get(12)?;
            KeptLog::Kept { id, bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default() }
        }
        (Some(0), None) => KeptLog::Gone,
        (Some(tries), _) => {
            let at = row.get::<_, Option<i64>>(14)?.unwrap_or_default();
            KeptLog::Failed { tries, at: Timestamp(at), why: text(15)?.unwrap_or_default() }
        }
    })
}

fn batch_job(connection: &Connection, uid: &Uid) -> Result<Option<JobUid>, LedgerError> {
    let read = |row: &Row<'_>| Ok(row.get::<_, Option<String>>(0)?.map(|uid| JobUid::from(uid.as_str())));
    connection
        .prepare_cached("select batchJob from objects where uid = ?1")
        .and_then(|mut statement| statement.query_row([uid.as_str()], read).optional())
        .map(Option::flatten)
        .map_err(LedgerError::sql("read the Job of an object"))
}

fn rows(connection: &Connection, uid: &Uid, from: Index, limit: i64) -> Result<Vec<RunRow>, LedgerError> {
    let sql = || LedgerError::sql("read the runs of an object");
    let query = format!("select {RUN} from runs where uid = ?1 and idx >= ?2 order by idx limit ?3");
    let mut statement = connection.prepare_cached(&query).map_err(sql())?;
    let mut rows = statement.query(params![uid.as_str(), from.0, limit]).map_err(sql())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(sql())? {
        found.push(run(row, uid)?);
    }
    Ok(found)
}

fn run(row: &Row<'_>, uid: &Uid) -> Result<RunRow, LedgerError> {
    let read = || -> rusqlite::Result<_> {
        let text = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(column)?.map(Into::into));
        let date = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(SchedDate));
        let run = Run {
            id: text(1)?,
            state: RunState::Waiting,
            starts: row.get(3)?,
            start: date(4)?,
            end: date(5)?,
            host: text(6)?,
            exit: row.get(7)?,
            message: text(8)?,
            log: read_log(row)?,
        };
        Ok((
            RunRow { index: Index(row.get(0)?), run, changed: row.get(9)?, stated: row.get(16)? },
            row.get::<_, String>(2)?,
        ))
    };
    let (row, state) = read().map_err(LedgerError::sql("read the runs of an object"))?;
    let state = match state.as_str() {
        "Waiting" => RunState::Waiting,
        "Pending" => RunState::Pending,
        "Running" => RunState::Running,
        "Exited" => RunState::Exited,
        end => RunState::Ended(parse(uid, end)?),
    };
    Ok(RunRow { run: Run { state, ..row.run }, ..row })
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::runs::RunEnd;

    use super::super::tests::{known as row, uid};
    use super::*;

    fn save(job: Option<&str>, runs: Vec<(Index, Run)>) -> SaveRuns {
        let name = ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() };
        let job = job.map(JobUid::from);
        SaveRuns {
            uid: uid(),
            name,
            row: row(Phase::Running),
            job,
            runs,
            returned_quota: Indices::default(),
            transitions: Vec::new(),
            now: Timestamp(5),
        }
    }

    #[tokio::test]
    async fn runs_round_trip_and_the_first_job_uid_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        let states = [
            RunState::Waiting,
            RunState::Pending,
            RunState::Running,
            RunState::Exited,
            RunState::Ended(RunEnd::Succeeded),
            RunState::Ended(RunEnd::Failed),
            RunState::Ended(RunEnd::Removed),
        ];
        let run = |state| Run {
            id: Some("a-0-xyz".into()),
            state,
            starts: 2,
            start: Some(SchedDate(7)),
            end: Some(SchedDate(9)),
            host: Some("node".into()),
            exit: Some(3),
            message: Some("it is broken".into()),
            log: KeptLog::NotYet,
        };
        let runs: Vec<(Index, Run)> = (0..).map(Index).zip(states.map(run)).collect();
        ledger.save_runs(save(Some("one"), runs.clone())).await.unwrap();
        ledger.save_runs(save(Some("two"), vec![(Index(9), Run::default())])).await.unwrap();
        ledger.close().await;
        let ledger = Ledger::open_alone(&path).unwrap();
        let logs = [
            KeptLog::Kept { id: "a-0-xyz".into(), bytes: 7 },
            KeptLog::Failed { tries: 2, at: Timestamp(9), why: "no answer".into() },
            KeptLog::Gone,
        ];
        let asked: Vec<(Index, KeptLog)> = (0..).map(Index).zip(logs).collect();
        assert_eq!(ledger.with_runs().await.unwrap(), HashSet::from([uid()]));
        let record = ledger.load_runs(&uid()).await.unwrap();
        assert_eq!(record.job, Some(JobUid::from("one")));
        assert_eq!(record.runs.len(), 8);
        assert!(runs.iter().all(|(index, run)| record.runs[index] == *run), "{record:?}");
        ledger.save_logs(uid(), asked.clone()).await.unwrap();
        // A decision made before the logs were saved does not change them.
        ledger.save_runs(save(Some("one"), runs.clone())).await.unwrap();
        let kept = ledger.load_runs(&uid()).await.unwrap();
        for (index, log) in &asked {
            assert_eq!(kept.runs[index], Run { log: log.clone(), ..runs[index.0 as usize].1.clone() });
        }
        let first = ledger.sequence();
        ledger.save_runs(save(Some("two"), vec![(Index(9), Run::default())])).await.unwrap();
        let part = ledger.runs(uid(), Index(5), 2).await.unwrap();
        assert_eq!(part.rows.iter().map(|row| row.index.0).collect::<Vec<_>>(), [5, 6]);
        let changed = ledger.runs_changed(first, 10).await.unwrap();
        assert_eq!(changed.iter().map(|(_, row)| row.index.0).collect::<Vec<_>>(), [9]);
        assert_eq!(ledger.runs_changed(0, 1).await.unwrap().len(), 7, "the changes of one transaction stay together");
        assert!(ledger.load(&uid()).await.unwrap().jobs.is_empty());
    }

    #[tokio::test]
    async fn granted_quota_of_runs_is_kept_until_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        ledger.save_runs(save(None, Vec::new())).await.unwrap();
        let indices: Indices = "0-3".parse().unwrap();
        let grant = super::super::Grant {
            uid: uid(),
            queue: "q".to_owned(),
            indices: indices.clone(),
            number: 1,
            per_job: String::new(),
        };
        ledger.grant(vec![grant]).await.unwrap();
        let record = ledger.load_runs(&uid()).await.unwrap();
        assert_eq!((record.granting_queue.as_deref(), record.granted), (Some("q"), indices));
        let gives_back = "2-3".parse().unwrap();
        ledger.save_runs(SaveRuns { returned_quota: gives_back, ..save(None, Vec::new()) }).await.unwrap();
        assert_eq!(ledger.load_runs(&uid()).await.unwrap().granted.to_string(), "0-1");
        let mut released = save(None, Vec::new());
        released.row.released = true;
        ledger.save_runs(released).await.unwrap();
        assert!(ledger.grants().await.unwrap().is_empty());
    }
}
