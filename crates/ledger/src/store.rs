//! Writes of the controller and the workers.

use htc_api::{ObjectName, Reason};
use htc_machine::facts::{ErrTail, Job, JobState, ObjectRow, RequestFailure, RunHistory, WaitsFor, Witness};
use htc_machine::ids::{Index, Timestamp, Uid};
use htc_machine::indices::Indices;
use htc_machine::judge::SubmitterLock;
use htc_machine::outcome::Outcome;
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::load::StoredCondition;
use super::writer::NUMBER;
use super::{Ledger, LedgerError, Users};
use crate::messages::{Intent, NotedSubmission, RequestResult, Save, SubmitResult};

impl Ledger {
    /// Writes a decision: the object's row, the jobs that changed, and the transitions.
    pub async fn save(&self, save: Save) -> Result<(), LedgerError> {
        let saved = self.run(move |connection| write(connection, &save));
        around(Point::BeforeDecisionSaved, saved, Point::AfterDecisionSaved).await
    }

    /// Makes a batch of intents durable.
    pub async fn intend(&self, intents: Vec<Intent>) -> Result<(), LedgerError> {
        let (before, after) = if intents.iter().any(|intent| intent.submission.is_some()) {
            (Point::BeforeSubmitIntents, Point::AfterSubmitIntents)
        } else {
            (Point::BeforeOtherIntents, Point::AfterOtherIntents)
        };
        let users = users_of(&intents);
        let written = self.run(move |connection| intents.iter().try_for_each(|intent| intend(connection, intent)));
        around(before, written, after).await?;
        self.show_users(users).await;
        Ok(())
    }

    /// Records the current limits of output. Output that earlier limits refused may be kept under these.
    pub async fn limit_output(&self, limits: String) -> Result<(), LedgerError> {
        self.run(move |connection| {
            connection
                .execute("insert or replace into ledger(key, value) values ('outputLimits', ?1)", [limits])
                .map(drop)
                .map_err(LedgerError::sql("note the limits of output"))
        })
        .await
    }

    /// Writes the results of requests.
    pub async fn resolve(&self, results: Vec<RequestResult>) -> Result<(), LedgerError> {
        let written = self.run(move |connection| results.iter().try_for_each(|result| resolve(connection, result)));
        around(Point::BeforeOtherResults, written, Point::AfterOtherResults).await
    }

    /// Writes the results of fetches and the last lines of `err` that they brought. Each object keeps those of its
    /// first job.
    pub async fn resolve_fetches(
        &self,
        results: Vec<RequestResult>,
        tails: Vec<(Uid, ErrTail)>,
    ) -> Result<(), LedgerError> {
        let written = self.run(move |connection| {
            results.iter().try_for_each(|result| resolve(connection, result))?;
            tails.iter().try_for_each(|(uid, tail)| keep_tail(connection, uid, tail))
        });
        around(Point::BeforeOtherResults, written, Point::AfterOtherResults).await
    }

    /// Returns, in order, those of these jobs that have failed and may have left output.
    pub async fn failed_among(&self, jobs: Vec<(Uid, Indices)>) -> Result<Vec<(Uid, Vec<Index>)>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read outcomes");
            let mut statement = connection
                .prepare_cached("select outcome in ('Failed', 'Killed', 'FailedBefore') from htcjobs where uid = ?1 and idx = ?2 and outcome is not null")
                .map_err(sql())?;
            let mut failed = Vec::new();
            for (uid, indices) in jobs {
                let mut its = Vec::new();
                for index in indices.iter() {
                    let answer = statement.query_row(params![uid.as_str(), index.0], |row| row.get(0)).optional();
                    if answer.map_err(sql())?.unwrap_or(false) {
                        its.push(index);
                    }
                }
                failed.push((uid, its));
            }
            Ok(failed)
        })
        .await
    }

    /// Writes the results of submitters.
    pub async fn resolve_submits(&self, results: Vec<SubmitResult>) -> Result<(), LedgerError> {
        let written =
            self.run(move |connection| results.iter().try_for_each(|result| resolve_submit(connection, result)));
        around(Point::BeforeSubmitResults, written, Point::AfterSubmitResults).await
    }
}

/// Returns the users of the intents that are submissions.
fn users_of(intents: &[Intent]) -> Users {
    let submissions = intents.iter().filter_map(|intent| intent.submission.as_ref());
    submissions.map(|noted| (noted.identity.clone(), noted.user.clone())).collect()
}

/// Writes the row of an object itself.
pub(super) fn write_object(
    connection: &Connection,
    uid: &Uid,
    name: &ObjectName,
    pool: Option<&ObjectName>,
    known: &ObjectRow,
    now: Timestamp,
) -> Result<(), LedgerError> {
    let stored: Vec<StoredCondition> = known.conditions.iter().map(StoredCondition::from).collect();
    let conditions = serde_json::to_string(&stored).map_err(|error| LedgerError::row(uid, &error))?;
    connection
        .prepare_cached(&format!(
            "insert into objects(uid, namespace, name, phase, isNew, epoch, startedAt, completedAt, released, conditions, knownAt,
                expiredAt, givenUp, releasedAt, exceeded, made, letGo, pool, gaveUp, queue)
             values (?1, ?2, ?3, ?4, ?5, (select value from ledger where key = 'epoch'), ?6, ?7, ?8, ?9, ?10, ?11, ?12,
                iif(?8, ?10, null), ?13, {NUMBER}, iif(?8, {NUMBER}, null), ?14,
                iif(?12 > 0, {NUMBER}, null), ?15)
             on conflict(uid) do update set phase = excluded.phase, startedAt = excluded.startedAt,
                completedAt = excluded.completedAt, released = excluded.released, conditions = excluded.conditions,
                expiredAt = excluded.expiredAt, givenUp = excluded.givenUp, releasedAt = excluded.releasedAt,
                exceeded = excluded.exceeded, letGo = iif(excluded.released, coalesce(objects.letGo, excluded.letGo), null),
                missing = null, queue = coalesce(excluded.queue, objects.queue),
                gaveUp = iif(excluded.givenUp > 0, coalesce(objects.gaveUp, excluded.gaveUp), null)"
        ))
        .and_then(|mut statement| {
            statement.execute(params![
                uid.as_str(),
                name.namespace,
                name.name,
                <&str>::from(known.phase),
                known.new,
                known.started.map(|at| at.0),
                known.completed.map(|at| at.0),
                known.released,
                conditions,
                now.0,
                known.cut_short.map(|cut| cut.at.0),
                known.given_up,
                known.cut_short.map(|cut| <&str>::from(cut.exceeded)),
                pool.map(ObjectName::to_string),
                known.last_queue,
            ])
        })
        .map(drop)
        .map_err(LedgerError::sql("write an object"))
}

pub(super) fn write(connection: &Connection, save: &Save) -> Result<(), LedgerError> {
    write_object(connection, &save.uid, &save.name, save.pool.as_ref(), &save.row, save.now)?;
    for (index, job) in &save.jobs {
        if job.outcome().is_some() {
            super::callbacks::settle(connection, &save.uid, job.id)
                .map_err(LedgerError::sql("settle what a job reported"))?;
        }
        write_job(connection, save, *index, job).map_err(LedgerError::sql("write a job"))?;
    }
    if let Some(attempt) = save.settled {
        connection
            .prepare_cached(
                "update submissions set state = 'settled' where uid = ?1 and attempt <= ?2 and state = 'open'",
            )
            .and_then(|mut statement| statement.execute(params![save.uid.as_str(), attempt.0]))
            .map_err(LedgerError::sql("settle submissions"))?;
    }
    if let Some(attempt) = save.absent {
        connection
            .prepare_cached("update submissions set absent = 1 where uid = ?1 and attempt <= ?2 and state = 'open'")
            .and_then(|mut statement| statement.execute(params![save.uid.as_str(), attempt.0]))
            .map_err(LedgerError::sql("write that submissions came to nothing"))?;
    }
    crate::actions::change(connection, &save.uid, &save.action_updates)?;
    super::grants::give_back(connection, &save.uid, &save.returned_quota, save.row.released)?;
    super::callbacks::refute(connection, &save.uid, &save.refuted)?;
    super::journal::append(connection, &save.uid, &save.transitions, save.now)
}

/// Returns the Go operator's status code: 1 active, 4 succeeded, 7 failed; +10 once the output is fetched.
fn code(job: &Job) -> i64 {
    let base = match job.outcome() {
        None => 1,
        Some(Outcome::Succeeded) => 4,
        Some(
            Outcome::Failed(_) | Outcome::Killed(_) | Outcome::FailedBefore | Outcome::Removed(_) | Outcome::Lost(_),
        ) => 7,
    };
    if job.fetched { base + 10 } else { base }
}

/// SQL condition: the job's row looks the same to users as before. Some columns are not visible to them, for example
/// when its last run was interrupted.
const SHOWN: &str = "
    (htcjobs.jobId, htcjobs.stagedIn, htcjobs.started, htcjobs.jobStatus, htcjobs.exitCode, htcjobs.exitSignal, htcjobs.outcome,
        htcjobs.holdCode, htcjobs.holdReason, htcjobs.heldSince, htcjobs.starts, htcjobs.runStart, htcjobs.runEnd, htcjobs.host,
        htcjobs.exits, htcjobs.faults)
    is (excluded.jobId, excluded.stagedIn, excluded.started, excluded.jobStatus, excluded.exitCode, excluded.exitSignal,
        excluded.outcome, excluded.holdCode, excluded.holdReason, excluded.heldSince, excluded.starts, excluded.runStart,
        excluded.runEnd, excluded.host, excluded.exits, excluded.faults)";

fn write_job(connection: &Connection, save: &Save, index: Index, job: &Job) -> rusqlite::Result<usize> {
    let (outcome, exit_code, exit_signal): (Option<&str>, Option<i32>, Option<i32>) = match job.outcome() {
        None => (None, None, None),
        Some(Outcome::Succeeded) => (Some("Succeeded"), Some(0), None),
        Some(Outcome::Failed(code)) => (Some("Failed"), Some(*code), None),
        Some(Outcome::Killed(signal)) => (Some("Killed"), None, Some(*signal)),
        Some(Outcome::FailedBefore) => (Some("FailedBefore"), None, None),
        Some(Outcome::Removed(_)) => (Some("Removed"), None, None),
        Some(Outcome::Lost(loss)) => (Some((*loss).into()), None, None),
    };
    let (job_status, hold) = match &job.state {
        JobState::Idle => (job.runs.waits_for.map_or(1, WaitsFor::code), None),
        JobState::Running => (2, None),
        JobState::Held(hold) => (5, Some(hold)),
        JobState::Ended(Outcome::Removed(_) | Outcome::Lost(_)) => (3, None),
        JobState::Ended(Outcome::Succeeded | Outcome::Failed(_) | Outcome::Killed(_) | Outcome::FailedBefore) => {
            (4, None)
        }
    };
    let reason = match &job.state {
        JobState::Held(hold) => Some(hold.reason.as_str()),
        JobState::Ended(Outcome::Removed(reason)) if !reason.is_empty() => Some(reason.as_str()),
        JobState::Idle | JobState::Running | JobState::Ended(_) => None,
    };
    crate::exit_codes::note(connection, &save.uid, index, job)?;
    let RunHistory { count, start, end, host, exits, last_exit, vacated, faults, waits_for: _ } = &job.runs;
    connection
        .prepare_cached(&format!(
            "insert into htcjobs(htcjobName, jobId, status, tempDir, namespace, uid, idx, attempt, schedd, birthdate, recordedAt,
                stagedIn, started, jobStatus, exitCode, exitSignal, outcome, holdCode, holdSubcode, holdReason, gone, starts, runStart,
                runEnd, host, exits, lastExit, vacated, heldSince, faults, changed, stated)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
                ?25, ?26, ?27, ?28, ?29, ?30, {NUMBER}, {NUMBER})
             on conflict(uid, idx) where uid is not null do update set
                schedd = iif(htcjobs.jobId = excluded.jobId and htcjobs.attempt = excluded.attempt, htcjobs.schedd, excluded.schedd),
                jobId = excluded.jobId, attempt = excluded.attempt, birthdate = excluded.birthdate,
                recordedAt = excluded.recordedAt, stagedIn = excluded.stagedIn, started = excluded.started,
                jobStatus = excluded.jobStatus, exitCode = excluded.exitCode, exitSignal = excluded.exitSignal,
                outcome = excluded.outcome, holdCode = excluded.holdCode, holdSubcode = excluded.holdSubcode,
                holdReason = excluded.holdReason, gone = excluded.gone, starts = excluded.starts, runStart = excluded.runStart,
                runEnd = excluded.runEnd, host = excluded.host, exits = excluded.exits, lastExit = excluded.lastExit,
                vacated = excluded.vacated, heldSince = excluded.heldSince, faults = excluded.faults,
                stated = iif((htcjobs.jobId, htcjobs.jobStatus, htcjobs.outcome)
                    is (excluded.jobId, excluded.jobStatus, excluded.outcome), htcjobs.stated, excluded.stated),
                changed = iif({SHOWN} and excluded.status / 10 <= htcjobs.status / 10, htcjobs.changed, excluded.changed),
                status = excluded.status % 10 + 10 * max(excluded.status / 10, htcjobs.status / 10)"
        ))?
        .execute(params![
            save.name.name,
            job.id.to_string(),
            code(job),
            save.sandbox,
            save.name.namespace,
            save.uid.as_str(),
            index.0,
            job.attempt.0,
            save.schedd.as_str(),
            job.birthdate.0,
            job.recorded.0,
            job.staged_in.0,
            job.started,
            job_status,
            exit_code,
            exit_signal,
            outcome,
            hold.map(|hold| hold.code),
            hold.map(|hold| hold.subcode),
            reason,
            job.gone,
            count,
            start.map(|date| date.0),
            end.map(|date| date.0),
            host.as_deref(),
            exits,
            last_exit.map(crate::exit_codes::encode),
            vacated.map(|date| date.0),
            hold.and_then(|hold| hold.since).map(|date| date.0),
            faults.as_ref().map(ToString::to_string),
        ])
}

fn intend(connection: &Connection, intent: &Intent) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("write an intent");
    let key = &intent.key;
    connection
        .prepare_cached(
            "insert into requests(uid, kind, attempt, step, startedAt, failures) values (?1, ?2, ?3, ?4, ?5, 0)
             on conflict(uid, kind) do update set attempt = excluded.attempt, step = excluded.step,
                startedAt = excluded.startedAt, finishedAt = null, failure = null, failureReason = null",
        )
        .and_then(|mut statement| {
            statement.execute(params![key.uid.as_str(), <&str>::from(key.kind), key.attempt.0, key.step, intent.at.0])
        })
        .map_err(sql())?;
    if let Some(NotedSubmission { submission, witness, user, identity, lock }) = &intent.submission {
        let witness = match witness {
            Witness::Empty => "",
            Witness::Newest(id) => id,
        };
        connection
            .prepare_cached(
                "insert into submissions(uid, attempt, indices, schedd, birthdate, intentAt, intentDate, notAfter, witness, identity, credentials, lock, state)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'open')",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    key.uid.as_str(),
                    submission.attempt.0,
                    submission.indices.to_string(),
                    submission.schedd.as_str(),
                    submission.birthdate.0,
                    submission.intent_at.0,
                    submission.intent_date.0,
                    submission.submitter_deadline.0,
                    witness,
                    user,
                    identity.to_string(),
                    lock.as_ref().map(SubmitterLock::to_string),
                ])
            })
            .map_err(sql())?;
    }
    Ok(())
}

fn resolve(connection: &Connection, result: &RequestResult) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("write a result");
    let key = &result.key;
    // A request that failed before its intent has no row yet.
    connection
        .prepare_cached(
            "insert into requests(uid, kind, attempt, step, startedAt, finishedAt, failure, failureReason, failures)
             values (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?6 is not null)
             on conflict(uid, kind) do update set attempt = excluded.attempt, step = excluded.step,
                finishedAt = excluded.finishedAt, failure = excluded.failure, failureReason = excluded.failureReason,
                failures = case when excluded.failure is null then 0 else requests.failures + 1 end",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                key.uid.as_str(),
                <&str>::from(key.kind),
                key.attempt.0,
                key.step,
                result.at.0,
                result.failure.as_ref().map(|failure| failure.message.as_str()),
                result.failure.as_ref().map(|failure| failure.reason.as_str()),
            ])
        })
        .map_err(sql())?;
    let mut fetched = connection
        .prepare_cached(&format!(
            "update htcjobs set status = status + 10, outputBytes = ?3, omitted = ?4,
                changed = {NUMBER}
             where uid = ?1 and idx = ?2 and status < 10"
        ))
        .map_err(sql())?;
    for index in result.fetched.iter() {
        let bytes = result.sizes.get(&index).map(|bytes| i64::try_from(*bytes).unwrap_or(i64::MAX));
        fetched.execute(params![key.uid.as_str(), index.0, bytes, result.omitted.get(&index)]).map_err(sql())?;
    }
    let mut refused = connection
        .prepare_cached(
            "update htcjobs set refused = ?3, refusedBy = (select value from ledger where key = 'outputLimits')
             where uid = ?1 and idx = ?2",
        )
        .map_err(sql())?;
    for (index, why) in &result.refused {
        refused.execute(params![key.uid.as_str(), index.0, why]).map_err(sql())?;
    }
    crate::actions::answered(connection, result)
}

fn keep_tail(connection: &Connection, uid: &Uid, tail: &ErrTail) -> Result<(), LedgerError> {
    connection
        .prepare_cached(
            "update objects set errIdx = ?2, errTail = ?3 where uid = ?1 and (errIdx is null or errIdx >= ?2)",
        )
        .and_then(|mut statement| statement.execute(params![uid.as_str(), tail.index.0, tail.text]))
        .map(drop)
        .map_err(LedgerError::sql("write the end of an err"))
}

fn resolve_submit(connection: &Connection, result: &SubmitResult) -> Result<(), LedgerError> {
    let key = &result.key;
    let state = if result.not_run { "notRun" } else { "open" };
    connection
        .prepare_cached(
            "update submissions set deadSince = ?3, exitStatus = ?4, message = ?5, state = ?6
             where uid = ?1 and attempt = ?2 and state = 'open'",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                key.uid.as_str(),
                key.attempt.0,
                result.dead_since.map(|at| at.0),
                result.exit_status,
                result.message,
                state,
            ])
        })
        .map_err(LedgerError::sql("write a submission's result"))?;
    // Only if the tool ran: with an intent that had no effect, the proof about earlier attempts would be lost.
    if let Some(attempt) = result.supersedes.filter(|_| !result.not_run) {
        connection
            .prepare_cached(
                "update submissions set state = 'superseded' where uid = ?1 and attempt <= ?2 and state = 'open'",
            )
            .and_then(|mut statement| statement.execute(params![key.uid.as_str(), attempt.0]))
            .map_err(LedgerError::sql("supersede a submission"))?;
    }
    let failure = result
        .not_run
        .then(|| RequestFailure::new(Reason::OperatorStopping, result.message.clone().unwrap_or_default()));
    resolve(connection, &RequestResult::without_output(key.clone(), result.at, failure))
}
