//! Reads the rows of an object into a [`Record`].

use std::collections::{BTreeMap, BTreeSet};

use htc_api::ObjectName;
use htc_machine::facts::{
    ConditionRecord, CutShort, ErrTail, Exceeded, Hold, Job, JobState, LastRequest, ObjectRow, OmittedOutput,
    OutputRefusal, Record, RequestFailure, RunHistory, Submission, WaitsFor, Witness,
};
use htc_machine::ids::{Attempt, Birthdate, ClusterId, Index, JobId, SchedDate, ScheddName, Timestamp, Uid};
use htc_machine::indices::Indices;
use htc_machine::outcome::{Loss, Outcome};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Ledger, LedgerError};
use crate::enum_text::parse;

impl Ledger {
    /// Returns all that is recorded about one object; an empty record if there is nothing.
    pub async fn load(&self, uid: &Uid) -> Result<Record, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| load(connection, &uid)).await
    }

    /// Returns the pool of each object that was not released.
    pub async fn pools(&self) -> Result<Vec<(Uid, Option<ObjectName>)>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the pools of objects");
            let mut statement = connection.prepare("select uid, pool from objects where released = 0").map_err(sql())?;
            let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?));
            let rows = statement.query_map([], read).map_err(sql())?;
            rows.map(|row| {
                let (uid, pool) = row.map_err(sql())?;
                let uid = Uid::from(uid.as_str());
                let pool = pool.map(|pool| parse(&uid, &pool)).transpose()?;
                Ok((uid, pool))
            })
            .collect()
        })
        .await
    }

    /// Returns the location of this pool, as recorded with the first of its objects. As long as it has none, `place` is
    /// recorded anew.
    pub async fn settle_pool(&self, pool: ObjectName, place: String) -> Result<String, LedgerError> {
        self.run(move |connection| {
            let (name, key) = (pool.to_string(), format!("pool:{pool}"));
            let settle = || -> rusqlite::Result<String> {
                connection
                    .prepare_cached(
                        "insert into ledger(key, value) values (?1, ?2) on conflict(key) do update set value = excluded.value
                         where not exists (select 1 from objects where pool = ?3 and released = 0)",
                    )?
                    .execute([&key, &place, &name])?;
                let mut statement = connection.prepare_cached("select value from ledger where key = ?1")?;
                statement.query_row([&key], |row| row.get(0))
            };
            settle().map_err(LedgerError::sql("note where a pool is"))
        })
        .await
    }

    /// Returns the number of objects in this pool that were not released.
    pub async fn count_in(&self, pool: ObjectName) -> Result<u32, LedgerError> {
        self.run(move |connection| {
            let query = "select count(*) from objects where pool = ?1 and released = 0";
            connection
                .prepare_cached(query)
                .and_then(|mut statement| statement.query_row([pool.to_string()], |row| row.get(0)))
                .map_err(LedgerError::sql("count the objects of a pool"))
        })
        .await
    }

    /// Returns what `of` makes of each object that is in a named pool and was not released. `of` gets the object's
    /// record and the number of its items, if any are stored. The record of a completed object has only the object's
    /// own row.
    pub async fn in_pools<T: Send + 'static>(
        &self,
        of: impl Fn(&Record, Option<u32>) -> Option<T> + Send + 'static,
    ) -> Result<Vec<(Uid, T)>, LedgerError> {
        self.run(move |connection| in_pools(connection, &of)).await
    }

    /// Returns all HTCJobs that were neither released nor completed, with their namespaces.
    pub async fn live(&self) -> Result<Vec<(String, Uid, Record)>, LedgerError> {
        self.run(live).await
    }
}

fn load(connection: &Connection, uid: &Uid) -> Result<Record, LedgerError> {
    let (jobs, refusals, omitted) = jobs(connection, uid)?;
    let schedds = schedds(connection, uid)?;
    let mut record = Record { row: known(connection, uid)?, jobs, refusals, omitted, schedds, ..Record::default() };
    let accepted = record.jobs.values().map(|job| job.attempt).max().unwrap_or_default();
    let mut attempted: Vec<Indices> = Vec::new();
    for (submission, state, witness) in submissions(connection, uid)? {
        record.highest = record.highest.max(submission.attempt);
        if state == "notRun" {
            continue;
        }
        record.refused += u32::from(submission.attempt > accepted);
        attempted.push(submission.indices.clone());
        record.witnesses.insert(submission.attempt, seen_before(witness));
        if state == "open" {
            record.attempts.push(submission);
        }
    }
    record.attempted = Indices::union(&attempted);
    witnesses_of_settled(connection, uid, &mut record)?;
    record.requests = requests(connection, uid)?.into_iter().collect();
    record.reports = super::callbacks::reports(connection, uid)?;
    record.err_tail = err(connection, uid)?;
    record.requested_actions = crate::actions::wishes(connection, uid)?;
    if let Some(grant) = super::grants::of(connection, uid)? {
        (record.granting_queue, record.granted) = (Some(grant.queue), grant.indices);
    }
    Ok(record)
}

fn in_pools<T>(
    connection: &Connection,
    of: &impl Fn(&Record, Option<u32>) -> Option<T>,
) -> Result<Vec<(Uid, T)>, LedgerError> {
    let sql = || LedgerError::sql("read the objects in pools");
    let query = "select o.uid, o.phase = 'Completed', (select count(*) from items i where i.uid = o.uid)
                 from objects o where o.released = 0 and o.pool is not null";
    let mut statement = connection.prepare(query).map_err(sql())?;
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?, row.get::<_, u32>(2)?));
    let rows = statement.query_map([], read).map_err(sql())?;
    let read = |row: rusqlite::Result<_>| {
        let (uid, completed, items): (String, bool, u32) = row.map_err(sql())?;
        let uid = Uid::from(uid.as_str());
        let record = if completed {
            Record { row: known(connection, &uid)?, ..Record::default() }
        } else {
            load(connection, &uid)?
        };
        let made = of(&record, (items > 0).then_some(items));
        Ok(made.map(|made| (uid, made)))
    };
    rows.filter_map(|row| read(row).transpose()).collect()
}

fn live(connection: &Connection) -> Result<Vec<(String, Uid, Record)>, LedgerError> {
    let sql = || LedgerError::sql("read the objects that are live");
    let mut statement = connection
        .prepare("select namespace, uid from objects where released = 0 and phase != 'Completed'")
        .map_err(sql())?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).map_err(sql())?;
    rows.map(|row| {
        let (namespace, uid) = row.map_err(sql())?;
        let uid = Uid::from(uid.as_str());
        let record = load(connection, &uid)?;
        Ok((namespace, uid, record))
    })
    .collect()
}

pub(super) fn known(connection: &Connection, uid: &Uid) -> Result<Option<ObjectRow>, LedgerError> {
    let mut statement = connection
        .prepare_cached(
            "select phase, isNew and epoch = (select value from ledger where key = 'epoch'), startedAt, completedAt, released, conditions,
                    expiredAt, givenUp, exceeded, queue
             from objects where uid = ?1",
        )
        .map_err(LedgerError::sql("read an object"))?;
    let mut rows = statement.query([uid.as_str()]).map_err(LedgerError::sql("read an object"))?;
    let Some(row) = rows.next().map_err(LedgerError::sql("read an object"))? else {
        return Ok(None);
    };
    let read = || -> Result<_, rusqlite::Error> {
        let phase: String = row.get(0)?;
        let conditions: String = row.get(5)?;
        let known = ObjectRow {
            phase: htc_api::Phase::Pending,
            new: row.get(1)?,
            started: row.get::<_, Option<i64>>(2)?.map(Timestamp),
            completed: row.get::<_, Option<i64>>(3)?.map(Timestamp),
            cut_short: None,
            given_up: row.get::<_, Option<u32>>(7)?.unwrap_or_default(),
            released: row.get(4)?,
            last_queue: row.get(9)?,
            conditions: Vec::new(),
        };
        let cut_short = row.get::<_, Option<i64>>(6)?.zip(Some(row.get::<_, Option<String>>(8)?));
        Ok((phase, conditions, cut_short, known))
    };
    let (phase, conditions, cut_short, known) = read().map_err(LedgerError::sql("read an object"))?;
    let cut_short = cut_short.map(|(at, exceeded)| {
        let exceeded = exceeded.map_or(Ok(Exceeded::Deadline), |word| parse(uid, &word))?;
        Ok::<_, LedgerError>(CutShort { at: Timestamp(at), exceeded })
    });
    let stored: Vec<StoredCondition> =
        serde_json::from_str(&conditions).map_err(|error| LedgerError::row(uid, &error))?;
    let conditions = stored.into_iter().map(ConditionRecord::from).collect();
    Ok(Some(ObjectRow { phase: parse(uid, &phase)?, cut_short: cut_short.transpose()?, conditions, ..known }))
}

fn err(connection: &Connection, uid: &Uid) -> Result<Option<ErrTail>, LedgerError> {
    connection
        .prepare_cached("select errIdx, errTail from objects where uid = ?1 and errTail is not null")
        .and_then(|mut statement| {
            let read = |row: &Row<'_>| Ok(ErrTail { index: Index(row.get(0)?), text: row.get(1)? });
            statement.query_row([uid.as_str()], read).optional()
        })
        .map_err(LedgerError::sql("read the end of an err"))
}

/// Condition as stored in `objects.conditions`.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct StoredCondition {
    kind: htc_api::ConditionType,
    status: htc_api::ConditionStatus,
    reason: String,
    message: String,
    since: i64,
}

impl From<StoredCondition> for ConditionRecord {
    fn from(stored: StoredCondition) -> Self {
        let StoredCondition { kind, status, reason, message, since } = stored;
        Self { kind, status, reason, message, since: Timestamp(since) }
    }
}

impl From<&ConditionRecord> for StoredCondition {
    fn from(condition: &ConditionRecord) -> Self {
        Self {
            kind: condition.kind,
            status: condition.status,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.since.0,
        }
    }
}

fn submissions(connection: &Connection, uid: &Uid) -> Result<Vec<(Submission, String, String)>, LedgerError> {
    let sql = || LedgerError::sql("read submissions");
    let mut statement = connection
        .prepare_cached(
            "select attempt, indices, schedd, birthdate, intentAt, intentDate, notAfter, deadSince, message, state, witness, absent
             from submissions where uid = ?1 and state <> 'settled' order by attempt",
        )
        .map_err(sql())?;
    let rows = statement
        .query_map([uid.as_str()], |row| {
            let indices: String = row.get(1)?;
            let submission = Submission {
                attempt: Attempt(row.get(0)?),
                indices: Indices::default(),
                schedd: ScheddName::from(row.get::<_, String>(2)?.as_str()),
                birthdate: Birthdate(row.get(3)?),
                intent_at: Timestamp(row.get(4)?),
                intent_date: SchedDate(row.get(5)?),
                submitter_deadline: Timestamp(row.get(6)?),
                dead_since: row.get::<_, Option<i64>>(7)?.map(Timestamp),
                refusal: row.get(8)?,
                absent: row.get::<_, Option<bool>>(11)?.unwrap_or_default(),
            };
            Ok((submission, indices, row.get::<_, String>(9)?, row.get::<_, String>(10)?))
        })
        .map_err(sql())?;
    rows.map(|row| {
        let (submission, indices, state, witness) = row.map_err(sql())?;
        Ok((Submission { indices: parse(uid, &indices)?, ..submission }, state, witness))
    })
    .collect()
}

/// Reads the witnesses of settled attempts that have jobs in HTCondor. There may be thousands of settled attempts, so
/// the others are not read.
fn witnesses_of_settled(connection: &Connection, uid: &Uid, record: &mut Record) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("read what was seen before a submission");
    let mut statement = connection
        .prepare_cached("select witness from submissions where uid = ?1 and attempt = ?2 and state = 'settled'")
        .map_err(sql())?;
    let live: BTreeSet<Attempt> = record.jobs.values().filter(|job| !job.gone).map(|job| job.attempt).collect();
    for attempt in live {
        if record.witnesses.contains_key(&attempt) {
            continue;
        }
        let found = statement.query_row(params![uid.as_str(), attempt.0], |row| row.get(0)).optional();
        if let Some(witness) = found.map_err(sql())? {
            record.witnesses.insert(attempt, seen_before(witness));
        }
    }
    Ok(())
}

fn seen_before(witness: String) -> Witness {
    if witness.is_empty() { Witness::Empty } else { Witness::Newest(witness) }
}

/// Returns the schedds of this object's jobs, without those of jobs that are known to be gone.
fn schedds(connection: &Connection, uid: &Uid) -> Result<BTreeSet<ScheddName>, LedgerError> {
    connection
        .prepare_cached("select distinct schedd from htcjobs where uid = ?1 and gone = 0 and schedd is not null")
        .and_then(|mut statement| {
            let read = |row: &Row<'_>| Ok(ScheddName::from(row.get::<_, String>(0)?.as_str()));
            statement.query_map([uid.as_str()], read)?.collect()
        })
        .map_err(LedgerError::sql("read the schedds of jobs"))
}

fn requests(connection: &Connection, uid: &Uid) -> Result<Vec<(htc_machine::RequestKind, LastRequest)>, LedgerError> {
    let sql = || LedgerError::sql("read requests");
    let mut statement = connection
        .prepare_cached("select kind, attempt, step, startedAt, finishedAt, failure, failures, failureReason from requests where uid = ?1")
        .map_err(sql())?;
    let rows = statement
        .query_map([uid.as_str()], |row| {
            let message: Option<String> = row.get(5)?;
            let reason: Option<String> = row.get(7)?;
            let failure = message.map(|message| RequestFailure { reason: reason.unwrap_or_default(), message });
            let last = LastRequest {
                attempt: Attempt(row.get(1)?),
                step: row.get(2)?,
                started: Timestamp(row.get(3)?),
                finished: row.get::<_, Option<i64>>(4)?.map(Timestamp),
                failure,
                failures: row.get(6)?,
            };
            Ok((row.get::<_, String>(0)?, last))
        })
        .map_err(sql())?;
    rows.map(|row| {
        let (kind, last) = row.map_err(sql())?;
        Ok((parse(uid, &kind)?, last))
    })
    .collect()
}

type JobRows = (BTreeMap<Index, Job>, BTreeMap<Index, OutputRefusal>, Option<OmittedOutput>);

fn jobs(connection: &Connection, uid: &Uid) -> Result<JobRows, LedgerError> {
    let sql = || LedgerError::sql("read jobs");
    let mut statement = connection
        .prepare_cached(&format!(
            "select {JOB}, refused, refusedBy is (select value from ledger where key = 'outputLimits'), omitted
             from htcjobs where uid = ?1 order by idx"
        ))
        .map_err(sql())?;
    let mut rows = statement.query(params![uid.as_str()]).map_err(sql())?;
    let (mut jobs, mut refusals) = (BTreeMap::new(), BTreeMap::new());
    let mut omitted: Option<OmittedOutput> = None;
    while let Some(row) = rows.next().map_err(sql())? {
        let (index, job) = job(row, uid)?;
        jobs.insert(index, job);
        if let Some(why) = row.get(JOB_COLUMNS).map_err(sql())? {
            refusals.insert(index, OutputRefusal { why, stands: row.get(JOB_COLUMNS + 1).map_err(sql())? });
        }
        match (&mut omitted, row.get_ref(JOB_COLUMNS + 2).map_err(sql())?) {
            (_, ValueRef::Null) => {}
            (Some(omitted), _) => omitted.jobs += 1,
            (None, what) => {
                omitted = Some(OmittedOutput { jobs: 1, index, what: what.as_str().unwrap_or_default().to_owned() });
            }
        }
    }
    Ok((jobs, refusals, omitted))
}

/// Columns that [`job`] reads.
pub(super) const JOB: &str =
    "idx, jobId, attempt, birthdate, recordedAt, stagedIn, started, jobStatus, exitCode, exitSignal, outcome,
    holdCode, holdSubcode, holdReason, gone, status, starts, runStart, runEnd, host,
    exits, lastExit, vacated, heldSince, faults";
/// Number of columns in [`JOB`].
pub(super) const JOB_COLUMNS: usize = 25;

/// Reads one job of this object from a row that begins with [`JOB`].
pub(super) fn job(row: &Row<'_>, uid: &Uid) -> Result<(Index, Job), LedgerError> {
    let read = || -> Result<_, rusqlite::Error> {
        let date = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(SchedDate));
        let runs = RunHistory {
            count: row.get::<_, Option<u32>>(16)?.unwrap_or_default(),
            start: date(17)?,
            end: date(18)?,
            host: row.get::<_, Option<String>>(19)?.map(Into::into),
            exits: row.get::<_, Option<u32>>(20)?.unwrap_or_default(),
            last_exit: row.get::<_, Option<i32>>(21)?.map(crate::exit_codes::decode),
            vacated: date(22)?,
            faults: row.get::<_, Option<String>>(24)?.and_then(|faults| faults.parse().ok()).map(Box::new),
            waits_for: row.get::<_, Option<i64>>(7)?.and_then(WaitsFor::from_code),
        };
        let job = Job {
            id: JobId { cluster: ClusterId(0), proc: 0 },
            attempt: Attempt(row.get(2)?),
            birthdate: Birthdate(row.get(3)?),
            recorded: Timestamp(row.get(4)?),
            staged_in: SchedDate(row.get(5)?),
            started: row.get(6)?,
            state: JobState::Idle,
            fetched: row.get::<_, i64>(15)? >= 10,
            gone: row.get(14)?,
            runs,
        };
        Ok((Index(row.get(0)?), row.get::<_, String>(1)?, job))
    };
    let (index, id, job) = read().map_err(LedgerError::sql("read jobs"))?;
    Ok((index, Job { id: parse(uid, &id)?, state: state(row, uid)?, ..job }))
}

fn state(row: &Row<'_>, uid: &Uid) -> Result<JobState, LedgerError> {
    let sql = || LedgerError::sql("read jobs");
    let outcome: Option<String> = row.get(10).map_err(sql())?;
    let number = |column: usize| row.get::<_, Option<i32>>(column).map(Option::unwrap_or_default).map_err(sql());
    Ok(match outcome.as_deref() {
        Some("Succeeded") => JobState::Ended(Outcome::Succeeded),
        Some("Failed") => JobState::Ended(Outcome::Failed(number(8)?)),
        Some("Killed") => JobState::Ended(Outcome::Killed(number(9)?)),
        Some("FailedBefore") => JobState::Ended(Outcome::FailedBefore),
        Some("Removed") => {
            let reason = row.get::<_, Option<String>>(13).map_err(sql())?.unwrap_or_default();
            JobState::Ended(Outcome::Removed(reason))
        }
        Some(loss) => JobState::Ended(Outcome::Lost(parse::<Loss>(uid, loss)?)),
        None => match number(7)? {
            2 => JobState::Running,
            5 => JobState::Held(Hold {
                code: row.get(11).map_err(sql())?,
                subcode: row.get(12).map_err(sql())?,
                reason: row.get(13).map_err(sql())?,
                since: row.get::<_, Option<i64>>(23).map_err(sql())?.map(SchedDate),
            }),
            _ => JobState::Idle,
        },
    })
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::{RequestKey, RequestKind};

    use super::super::tests::{intent, job, known, save, uid};
    use super::super::{Ledger, RequestResult, Save};
    use super::*;

    #[tokio::test]
    async fn output_refusal_stands_while_the_limits_are_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        ledger.limit_output("1 5".to_owned()).await.unwrap();
        let ended = |index| (Index(index), job(index, JobState::Ended(Outcome::Succeeded)));
        let jobs = vec![ended(0), ended(1)];
        ledger.save(save(known(Phase::Completed), jobs.clone(), Vec::new())).await.unwrap();
        let refuse = async |ledger: &Ledger| {
            let result = RequestResult {
                key: RequestKey { uid: uid(), kind: RequestKind::Fetch, attempt: Attempt(1), step: 1 },
                at: Timestamp(9),
                failure: None,
                fetched: Indices::default(),
                sizes: BTreeMap::new(),
                refused: vec![(Index(1), "it is too much".to_owned())],
                omitted: BTreeMap::new(),
            };
            ledger.resolve(vec![result]).await.unwrap();
        };
        refuse(&ledger).await;
        ledger.save(save(known(Phase::Completed), jobs, Vec::new())).await.unwrap();
        let refused = async |ledger: &Ledger| {
            let record = ledger.load(&uid()).await.unwrap();
            (record.refusals[&Index(1)].clone(), record.to_fetch().to_string())
        };
        let refusal = |stands| OutputRefusal { why: "it is too much".to_owned(), stands };
        assert_eq!(refused(&ledger).await, (refusal(true), "0".to_owned()));
        drop(ledger);

        let ledger = Ledger::open_alone(&path).unwrap();
        for (limits, stands, to_fetch) in [("1 5", true, "0"), ("1 6", false, "0-1")] {
            ledger.limit_output(limits.to_owned()).await.unwrap();
            assert_eq!(refused(&ledger).await, (refusal(stands), to_fetch.to_owned()), "{limits}");
        }
        refuse(&ledger).await;
        assert_eq!(refused(&ledger).await, (refusal(true), "0".to_owned()));
    }

    #[tokio::test]
    async fn only_witnesses_of_live_jobs_are_loaded_for_settled_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let attempts = 1..=1000_u32;
        ledger.intend(attempts.clone().map(|attempt| intent(attempt, &attempt.to_string())).collect()).await.unwrap();
        let of = |attempt: u32| {
            let (state, gone) = if attempt == 3 {
                (JobState::Running, false)
            } else {
                (JobState::Ended(htc_machine::outcome::Outcome::Succeeded), true)
            };
            (Index(attempt), Job { attempt: Attempt(attempt), gone, ..job(attempt, state) })
        };
        let jobs = attempts.clone().take(999).map(of).collect();
        let settled = Some(Attempt(998));
        ledger.save(Save { settled, ..save(known(Phase::Running), jobs, Vec::new()) }).await.unwrap();
        let record = ledger.load(&uid()).await.unwrap();
        let open: Vec<u32> = record.attempts.iter().map(|attempt| attempt.attempt.0).collect();
        let witnesses: Vec<u32> = record.witnesses.keys().map(|attempt| attempt.0).collect();
        assert_eq!((open, witnesses), (vec![999, 1000], vec![3, 999, 1000]));
        assert_eq!((record.highest, record.refused, record.jobs.len()), (Attempt(1000), 1, 999));
        assert_eq!(record.in_doubt().to_string(), "1000");
    }

    /// The answer is correct right after a start, as later.
    #[tokio::test]
    async fn htcjobs_in_pools_are_known_right_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        let pool: Option<ObjectName> = Some("pools/small".parse().unwrap());
        let states = [JobState::Idle, JobState::Running, JobState::Ended(Outcome::Succeeded)];
        let jobs: Vec<_> = states.into_iter().zip(0..).map(|(state, n)| (Index(n), job(n, state))).collect();
        let of = |uid: &str, phase, pool: &Option<ObjectName>| {
            let (uid, pool) = (Uid::from(uid), pool.clone());
            Save { uid, pool, ..save(known(phase), jobs.clone(), Vec::new()) }
        };
        ledger.save(of("live", Phase::Running, &pool)).await.unwrap();
        ledger.save(of("completed", Phase::Completed, &pool)).await.unwrap();
        ledger.save(of("elsewhere", Phase::Running, &None)).await.unwrap();
        let mut gone = of("gone", Phase::Terminating, &pool);
        gone.row.released = true;
        ledger.save(gone).await.unwrap();
        ledger.keep_items(&"live".into(), vec!["a".to_owned(); 5]).await.unwrap();
        ledger.close().await;
        let ledger = Ledger::open_alone(&path).unwrap();
        let seen = |record: &Record, items| Some((record.row.clone()?.phase, record.jobs.len(), items));
        let mut found = ledger.in_pools(seen).await.unwrap();
        found.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let completed = ("completed".into(), (Phase::Completed, 0, None));
        assert_eq!(found, [completed, ("live".into(), (Phase::Running, 3, Some(5)))]);
    }
}
