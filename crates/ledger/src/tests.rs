use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use htc_api::{ConditionStatus, ConditionType, FrozenInputs, Identity, KeyRef, ObjectName, Phase, SealedKey};
use htc_machine::facts::{
    ConditionRecord, ErrTail, Hold, Job, JobState, ObjectRow, Record, RequestFailure, RunHistory, Submission, Witness,
};
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::transitions::{Transition, Trigger};
use htc_machine::{
    Attempt, Birthdate, ClusterId, Index, Indices, JobId, RequestKey, RequestKind, SchedDate, ScheddName, Timestamp,
    Uid,
};
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use rusqlite::Connection;

use super::*;

mod sequence;

pub(super) fn uid() -> Uid {
    Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001")
}

fn name() -> ObjectName {
    ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() }
}

pub(super) fn known(phase: Phase) -> ObjectRow {
    let condition = ConditionRecord {
        kind: ConditionType::Held,
        status: ConditionStatus::True,
        reason: "JobsHeld".to_owned(),
        message: "it \"is\" held".to_owned(),
        since: Timestamp(17),
    };
    ObjectRow {
        phase,
        new: true,
        started: Some(Timestamp(5)),
        completed: None,
        cut_short: None,
        given_up: 0,
        released: false,
        last_queue: None,
        conditions: vec![condition],
    }
}

pub(super) fn job(proc: u32, state: JobState) -> Job {
    Job {
        id: JobId { cluster: ClusterId(12), proc },
        attempt: Attempt(1),
        birthdate: Birthdate(1000),
        recorded: Timestamp(6),
        staged_in: SchedDate(2000),
        started: true,
        state,
        fetched: false,
        gone: false,
        runs: RunHistory::default(),
    }
}

pub(super) fn save(known: ObjectRow, jobs: Vec<(Index, Job)>, transitions: Vec<Transition>) -> Save {
    Save {
        returned_quota: htc_machine::Indices::default(),
        uid: uid(),
        name: name(),
        pool: None,
        row: known,
        jobs,
        settled: None,
        absent: None,
        action_updates: Vec::new(),
        schedd: ScheddName::from("schedd@test"),
        sandbox: "/data/sandbox/x".to_owned(),
        transitions,
        refuted: Vec::new(),
        now: Timestamp(100),
    }
}

fn key(kind: RequestKind, attempt: u32) -> RequestKey {
    RequestKey { uid: uid(), kind, attempt: Attempt(attempt), step: attempt }
}

fn submission(attempt: u32, indices: &str) -> NotedSubmission {
    let submission = Submission {
        attempt: Attempt(attempt),
        indices: indices.parse().unwrap(),
        schedd: ScheddName::from("schedd@test"),
        birthdate: Birthdate(1000),
        intent_at: Timestamp(50),
        intent_date: SchedDate(60),
        submitter_deadline: Timestamp(70),
        dead_since: None,
        refusal: None,
        absent: false,
    };
    NotedSubmission {
        submission,
        witness: Witness::Newest("s#1.0#5".to_owned()),
        user: "operator@test".to_owned(),
        identity: Identity::Operator,
        lock: None,
    }
}

pub(super) fn intent(attempt: u32, indices: &str) -> Intent {
    Intent { key: key(RequestKind::Submit, attempt), at: Timestamp(50), submission: Some(submission(attempt, indices)) }
}

pub(super) fn said(reason: &str) -> Transition {
    Transition {
        from: None,
        to: Some(Phase::Pending),
        trigger: Trigger::Guarded,
        reason: reason.to_owned(),
        detail: "d".to_owned(),
        warning: false,
        active: 1,
        succeeded: 0,
        failed: 0,
    }
}

pub(super) fn original(path: &Path) {
    let file = Connection::open(path).unwrap();
    file.execute_batch(
        "create table htcjobs(htcjobName varchar, jobId char(10), status integer, tempDir varchar, uniqid integer);
         insert into htcjobs values ('zero', '884426.0', 24, '/tmp/a', 5577006791947779410), ('many', '884427.1', 1, '/tmp/b', 7);",
    )
    .unwrap();
}

#[tokio::test]
async fn record_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sqlite/htcjobs.db");
    let hold = Hold { code: 1, subcode: 42, reason: "why not".to_owned(), since: Some(SchedDate(77)) };
    let states = [
        JobState::Idle,
        JobState::Running,
        JobState::Held(hold),
        JobState::Ended(Outcome::Succeeded),
        JobState::Ended(Outcome::Failed(7)),
        JobState::Ended(Outcome::Killed(9)),
        JobState::Ended(Outcome::Removed(String::new())),
        JobState::Ended(Outcome::Removed("the job exceeded its run time".to_owned())),
        JobState::Ended(Outcome::Lost(Loss::QueueReset)),
    ];
    let jobs: Vec<(Index, Job)> =
        states.into_iter().zip(0..).map(|(state, proc)| (Index(proc), job(proc, state))).collect();
    let ledger = Ledger::open_alone(&path).unwrap();
    assert!(ledger.is_fresh());
    ledger.save(save(known(Phase::Running), jobs.clone(), Vec::new())).await.unwrap();
    ledger.intend(vec![intent(1, "0-7")]).await.unwrap();
    let id = ledger.id().to_owned();
    ledger.close().await;
    let ledger = Ledger::open_alone(&path).unwrap();
    assert_eq!((ledger.id(), ledger.is_fresh()), (id.as_str(), false));
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!(record.row, Some(known(Phase::Running)));
    assert_eq!(record.jobs.into_iter().collect::<Vec<_>>(), jobs);
    assert_eq!(record.attempts, [submission(1, "0-7").submission]);
    assert_eq!(record.witnesses[&Attempt(1)], Witness::Newest("s#1.0#5".to_owned()));
    let operator = (Identity::Operator, "operator@test".to_owned());
    assert_eq!(ledger.identities(None).await.unwrap().into_iter().collect::<Vec<_>>(), [operator]);
}

/// The schedd of a job does not change when the operator queries another schedd.
#[tokio::test]
async fn job_stays_at_the_schedd_that_accepted_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let ledger = Ledger::open_alone(&path).unwrap();
    let schedds = async || ledger.load(&uid()).await.unwrap().schedds.into_iter().collect::<Vec<_>>();
    ledger.save(save(known(Phase::Submitted), vec![(Index(0), job(0, JobState::Idle))], Vec::new())).await.unwrap();
    let at_another =
        |job| Save { schedd: "other@test".into(), ..save(known(Phase::Running), vec![(Index(0), job)], Vec::new()) };
    ledger.save(at_another(job(0, JobState::Running))).await.unwrap();
    assert_eq!(schedds().await, ["schedd@test".into()]);
    ledger.save(at_another(Job { attempt: Attempt(2), ..job(0, JobState::Running) })).await.unwrap();
    assert_eq!(schedds().await, ["other@test".into()], "another job of the same index");
    ledger
        .save(at_another(Job { attempt: Attempt(2), gone: true, ..job(0, JobState::Ended(Outcome::Succeeded)) }))
        .await
        .unwrap();
    assert_eq!(schedds().await, []);
}

#[tokio::test]
async fn file_of_the_go_operator_keeps_its_rows_and_is_usable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    original(&path);
    let ledger = Ledger::open_alone(&path).unwrap();
    assert!(ledger.is_fresh());
    ledger.save(save(known(Phase::Submitted), vec![(Index(0), job(0, JobState::Idle))], Vec::new())).await.unwrap();
    ledger.close().await;
    let file = Connection::open(&path).unwrap();
    let mut rows =
        file.prepare("select htcjobName, jobId, status, tempDir, uniqid from htcjobs order by rowid").unwrap();
    let rows: Vec<(String, String, i64, String, Option<i64>)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(rows[0], ("zero".into(), "884426.0".into(), 24, "/tmp/a".into(), Some(5_577_006_791_947_779_410)));
    assert_eq!(rows[1], ("many".into(), "884427.1".into(), 1, "/tmp/b".into(), Some(7)));
    assert_eq!(rows[2], ("zero".into(), "12.0".into(), 1, "/data/sandbox/x".into(), None));
}

#[test]
fn second_process_is_locked_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let _first = Ledger::open_alone(&path).unwrap();
    let error = Ledger::open_alone(&path).unwrap_err();
    assert!(matches!(error, LedgerError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("held by another process"), "{error}");
}

/// A power failure loses what was not synchronised, even though SIGKILL does not: tests/e2e/outages/power_failure.rs.
#[test]
fn each_transaction_is_synchronised_to_disk() {
    let folder = tempfile::tempdir().unwrap();
    let connection = super::actor::open(&folder.path().join("htcjobs.db")).unwrap();
    let pragma = |name: &str| -> rusqlite::types::Value {
        connection.query_row(&format!("pragma {name}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!(pragma("journal_mode"), "wal".to_owned().into());
    assert_eq!(pragma("synchronous"), 2.into(), "full: the WAL after each transaction");
}

#[test]
fn file_of_a_later_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(Ledger::open_alone(&path), Err(LedgerError::TooNew { found: 99, .. })));
}

#[test]
fn non_database_file_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    std::fs::write(&path, "this is no database, and long enough to be seen as none ".repeat(40)).unwrap();
    let error = Ledger::open_alone(&path).unwrap_err();
    assert!(matches!(error, LedgerError::Open { .. }) && error.to_string().contains("htcjobs.db"), "{error}");
}

#[tokio::test]
async fn save_of_an_older_view_keeps_fetched_output() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let ended = job(0, JobState::Ended(Outcome::Succeeded));
    ledger.save(save(known(Phase::Completed), vec![(Index(0), ended.clone())], Vec::new())).await.unwrap();
    let result = RequestResult {
        key: key(RequestKind::Fetch, 1),
        at: Timestamp(9),
        failure: None,
        fetched: Indices::first(1),
        sizes: BTreeMap::new(),
        refused: Vec::new(),
        omitted: BTreeMap::new(),
    };
    ledger.resolve(vec![result]).await.unwrap();
    ledger
        .save(save(known(Phase::Completed), vec![(Index(0), Job { gone: true, ..ended })], Vec::new()))
        .await
        .unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert!(record.jobs[&Index(0)].fetched && record.jobs[&Index(0)].gone);
}

#[tokio::test]
async fn attempts_are_counted_superseded_and_closed() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let ended = |attempt: u32, not_run: bool| SubmitResult {
        key: key(RequestKind::Submit, attempt),
        at: Timestamp(80),
        dead_since: Some(Timestamp(80)),
        exit_status: Some(1),
        message: Some("ERROR: no".to_owned()),
        not_run,
        supersedes: (attempt > 1).then(|| Attempt(attempt - 1)),
    };
    ledger.intend(vec![intent(1, "0-2")]).await.unwrap();
    ledger.resolve_submits(vec![ended(1, false)]).await.unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!((record.refused, record.highest, record.attempts.len()), (1, Attempt(1), 1));
    assert_eq!(record.attempts[0].dead_since, Some(Timestamp(80)));
    assert_eq!(record.attempts[0].refusal.as_deref(), Some("ERROR: no"));
    let open = |record: &Record| record.attempts.iter().map(|attempt| attempt.attempt.0).collect::<Vec<_>>();
    ledger.intend(vec![intent(2, "0-2")]).await.unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!((record.refused, open(&record)), (2, vec![1, 2]));
    // An attempt whose tool never ran supersedes no other.
    ledger.resolve_submits(vec![ended(2, true)]).await.unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!((record.refused, record.highest, open(&record)), (1, Attempt(2), vec![1]));
    assert_eq!(record.requests[&RequestKind::Submit].failures, 1);
    // The proof about this attempt stays, and does not cover the next one.
    ledger
        .save(Save { absent: Some(Attempt(1)), ..save(known(Phase::Pending), Vec::new(), Vec::new()) })
        .await
        .unwrap();
    ledger.intend(vec![intent(3, "0-2")]).await.unwrap();
    let absent = |record: &Record| record.attempts.iter().map(|attempt| attempt.absent).collect::<Vec<_>>();
    assert_eq!(absent(&ledger.load(&uid()).await.unwrap()), [true, false]);
    ledger.resolve_submits(vec![ended(3, false)]).await.unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!((record.refused, open(&record)), (2, vec![3]));
    assert_eq!(record.attempted.to_string(), "0-2");
}

#[tokio::test]
async fn consecutive_failures_are_counted_until_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let result = |step: u32, failed: bool| RequestResult {
        key: RequestKey { step, ..key(RequestKind::Remove, 1) },
        at: Timestamp(i64::from(step)),
        failure: failed.then(|| RequestFailure { reason: "ScheddUnreachable".to_owned(), message: "down".to_owned() }),
        fetched: Indices::default(),
        sizes: BTreeMap::new(),
        refused: Vec::new(),
        omitted: BTreeMap::new(),
    };
    for (step, failed, failures) in [(1, true, 1), (2, true, 2), (3, false, 0), (4, true, 1)] {
        let again = Intent { key: result(step, failed).key, at: Timestamp(1), submission: None };
        ledger.intend(vec![again]).await.unwrap();
        ledger.resolve(vec![result(step, failed)]).await.unwrap();
        let last = ledger.load(&uid()).await.unwrap().requests[&RequestKind::Remove].clone();
        assert_eq!((last.step, last.failures, last.failure.is_some()), (step, failures, failed));
    }
}

#[tokio::test]
async fn journal_rows_are_written_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let two = vec![said("A"), said("B")];
    ledger.save(save(known(Phase::Submitted), Vec::new(), two)).await.unwrap();
    ledger.save(save(known(Phase::Running), Vec::new(), vec![said("C")])).await.unwrap();
    let rows = ledger.unwritten_events(10, EventFilter::default()).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| (row.seq, row.reason.as_str())).collect::<Vec<_>>(),
        [(1, "A"), (2, "B"), (3, "C")]
    );
    ledger.mark_written(vec![(uid(), 1), (uid(), 3)], Timestamp(1)).await.unwrap();
    assert_eq!(
        ledger
            .unwritten_events(10, EventFilter::default())
            .await
            .unwrap()
            .iter()
            .map(|row| row.seq)
            .collect::<Vec<_>>(),
        [2]
    );
}

/// The bound holds however long an object lives and however often its conditions change.
#[tokio::test]
async fn written_journal_of_an_object_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let rows = async |told: bool| {
        let query = format!(
            "select min(seq), max(seq), count(*) from transitions where (eventAt is null) = {}",
            i32::from(!told)
        );
        let row = ledger.run(move |connection| {
            let row = connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            row.map_err(LedgerError::sql("count"))
        });
        let (first, last, count): (Option<i64>, Option<i64>, i64) = row.await.unwrap();
        (first.unwrap_or(0), last.unwrap_or(0), count)
    };
    let many = journal::KEPT + 50;
    let all = (0..many).map(|_| said("A")).collect();
    ledger.save(save(known(Phase::Running), Vec::new(), all)).await.unwrap();
    assert_eq!(rows(false).await, (1, many, many), "unwritten rows stay");
    // All rows but the second.
    let told = (1..=many).filter(|seq| *seq != 2).map(|seq| (uid(), seq)).collect();
    ledger.mark_written(told, Timestamp(1)).await.unwrap();
    ledger.save(save(known(Phase::Running), Vec::new(), vec![said("B")])).await.unwrap();
    assert_eq!(rows(true).await, (many + 2 - journal::KEPT, many, journal::KEPT - 1));
    assert_eq!(rows(false).await, (2, many + 1, 2), "the numbers go on");
    ledger.save(save(known(Phase::Running), Vec::new(), vec![said("C")])).await.unwrap();
    assert_eq!(ledger.unwritten_of(uid()).await.unwrap().unwrap().seq, 2);
    assert_eq!(rows(false).await.1, many + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_measures_how_long_the_file_is_unresponsive() {
    let folder = tempfile::tempdir().unwrap();
    let health = Health::default();
    let ledger = Ledger::open(&folder.path().join("htcjobs.db"), &Metrics::default(), &health).unwrap();
    // Simulates a volume that hangs.
    let (go_on, hangs) = std::sync::mpsc::channel::<()>();
    let hang = ledger.run(move |_| {
        assert!(hangs.recv().is_err());
        Ok(())
    });
    let (ended, ()) = tokio::join!(hang, async {
        let pause = std::time::Duration::from_millis(20);
        while ledger.silent_for() < pause {
            tokio::time::sleep(pause).await;
        }
        drop(go_on);
    });
    ended.unwrap();
    while ledger.silent_for() > std::time::Duration::ZERO {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn failed_task_does_not_fail_others_in_its_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    ledger.intend(vec![intent(1, "0")]).await.unwrap();
    // Repeating the attempt violates the primary key. All three are sent before the first reply is awaited.
    let (bad, good, worse) = tokio::join!(
        ledger.intend(vec![intent(2, "0"), intent(1, "0")]),
        ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new())),
        ledger.intend(vec![intent(1, "0")]),
    );
    assert!(matches!(bad, Err(LedgerError::Sql { .. })) && good.is_ok() && worse.is_err());
    let record = ledger.load(&uid()).await.unwrap();
    assert!(record.row.is_some());
    assert_eq!(record.highest, Attempt(1), "half of a failed task must not stay");
}

#[tokio::test]
async fn ledger_belongs_to_one_operator() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    ledger.belong_to("cluster/namespace/name").await.unwrap();
    ledger.belong_to("cluster/namespace/name").await.unwrap();
    let error = ledger.belong_to("cluster/namespace/another").await.unwrap_err();
    assert!(
        matches!(&error, LedgerError::AnotherOperator { stored, .. } if stored == "cluster/namespace/name"),
        "{error}"
    );
}

#[tokio::test]
async fn restarted_ledger_treats_no_object_as_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let mut ledger = Ledger::open_alone(&path).unwrap();
    let begun = ledger.sequence();
    ledger.save(save(known(Phase::Submitted), Vec::new(), vec![said("A")])).await.unwrap();
    let (id, sequence) = (ledger.id().to_owned(), ledger.sequence());
    assert_eq!(sequence, begun + 1);
    assert!(!ledger.unwritten_of(uid()).await.unwrap().unwrap().maybe_written);
    ledger.load(&uid()).await.unwrap();
    assert_eq!(ledger.sequence(), sequence, "only changes count");
    ledger.begin_anew().await.unwrap();
    let anew = ledger.sequence();
    assert!(anew > sequence);
    assert_ne!(ledger.id(), id);
    assert!(!ledger.load(&uid()).await.unwrap().row.unwrap().new);
    assert!(
        ledger.unwritten_of(uid()).await.unwrap().unwrap().maybe_written,
        "perhaps by the file that this one replaces"
    );
    let id = ledger.id().to_owned();
    ledger.close().await;
    assert!(matches!(ledger.load(&uid()).await, Err(LedgerError::Stopped)));
    let ledger = Ledger::open_alone(&path).unwrap();
    assert_eq!((ledger.id(), ledger.sequence()), (id.as_str(), anew));
    assert!(!ledger.has_had(sequence) && ledger.has_had(anew));
}

/// Data written to a file that has lost its name would be missing at the next start.
#[tokio::test]
async fn removed_or_replaced_file_accepts_no_write() {
    for file in ["htcjobs.db", "htcjobs.db-wal"] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let store = || ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new()));
        store().await.unwrap();
        let (here, away) = (folder.path().join(file), folder.path().join("away"));
        std::fs::rename(&here, &away).unwrap();
        assert!(matches!(store().await, Err(LedgerError::Gone { path }) if path == here), "{file} deleted");
        std::fs::copy(&away, &here).unwrap();
        assert!(matches!(ledger.load(&uid()).await, Err(LedgerError::Gone { .. })), "{file} replaced");
        std::fs::rename(&away, &here).unwrap();
        store().await.unwrap();
        assert!(ledger.load(&uid()).await.unwrap().row.is_some(), "{file} back");
    }
}

#[tokio::test]
async fn tail_of_the_first_failed_err_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let ledger = Ledger::open_alone(&path).unwrap();
    let outcomes = [Outcome::Succeeded, Outcome::Failed(1), Outcome::Killed(9), Outcome::Removed(String::new())];
    let jobs =
        (0..).zip(outcomes).map(|(index, outcome)| (Index(index), job(index, JobState::Ended(outcome)))).collect();
    ledger.save(save(known(Phase::Completed), jobs, Vec::new())).await.unwrap();
    let failed = ledger.failed_among(vec![(uid(), Indices::first(9))]).await.unwrap();
    assert_eq!(failed, [(uid(), vec![Index(1), Index(2)])]);
    let fetched = |index: u32, text: &str| {
        let fetched: Indices = [Index(index)].into_iter().collect();
        let (key, sizes) = (key(RequestKind::Fetch, 1), BTreeMap::new());
        let result = RequestResult {
            key,
            at: Timestamp(9),
            failure: None,
            fetched,
            sizes,
            refused: Vec::new(),
            omitted: BTreeMap::new(),
        };
        let tail = ErrTail { index: Index(index), text: text.to_owned() };
        ledger.resolve_fetches(vec![result], vec![(uid(), tail)])
    };
    for (index, text, kept) in [(2, "two", (2, "two")), (1, "one", (1, "one")), (2, "again", (1, "one"))] {
        fetched(index, text).await.unwrap();
        let err = ledger.load(&uid()).await.unwrap().err_tail.unwrap();
        assert_eq!((err.index.0, err.text.as_str()), kept);
    }
    // A later decision keeps it.
    ledger.save(save(known(Phase::Completed), Vec::new(), Vec::new())).await.unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert!(record.err_tail.is_some() && record.jobs[&Index(1)].fetched && !record.jobs[&Index(0)].fetched);
}

#[tokio::test]
async fn file_of_the_first_schema_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let live = Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0002");
    let path = folder.path().join("htcjobs.db");
    {
        let ledger = Ledger::open_alone(&path).unwrap();
        ledger
            .save(save(ObjectRow { released: true, ..known(Phase::Terminating) }, Vec::new(), Vec::new()))
            .await
            .unwrap();
        let running = vec![(Index(0), job(0, JobState::Running))];
        ledger.save(Save { uid: live.clone(), ..save(known(Phase::Running), running, Vec::new()) }).await.unwrap();
        let key = RequestKey { uid: live.clone(), ..key(RequestKind::Submit, 2) };
        ledger.intend(vec![Intent { key, ..intent(2, "1") }]).await.unwrap();
        ledger.close().await;
    }
    let file = Connection::open(&path).unwrap();
    file.execute_batch(
        "drop index objects_pool; drop index objects_sandbox; drop index objects_output; drop index objects_rows;
         alter table objects drop column errIdx; alter table objects drop column errTail;
         alter table objects drop column releasedAt; alter table objects drop column sandboxGone;
         alter table objects drop column outputGone; alter table htcjobs drop column outputBytes;
         alter table htcjobs drop column heldSince; alter table htcjobs drop column exits;
         alter table htcjobs drop column lastExit; alter table htcjobs drop column vacated; drop table exits; alter table objects drop column made;
         alter table objects drop column pool; alter table wishes drop column failure;
         pragma user_version = 1",
    )
    .unwrap();
    drop(file);
    let ledger = Ledger::open_alone(&path).unwrap();
    assert!(ledger.load(&uid()).await.unwrap().row.unwrap().released);
    assert_eq!(ledger.released(Artifact::Sandbox, Timestamp(99), None, 10).await.unwrap(), []);
    assert_eq!(ledger.released(Artifact::Sandbox, Timestamp(100), None, 10).await.unwrap().len(), 1, "let go at 100");
    // That version had no HTCPools: the object stays in the pool in which it was recorded.
    assert_eq!(ledger.pools().await.unwrap(), [(live.clone(), None)]);
    let record = ledger.load(&live).await.unwrap();
    assert_eq!(record.schedds, BTreeSet::from([ScheddName::from("schedd@test")]));
    assert_eq!(record.attempts, [submission(2, "1").submission]);
}

#[tokio::test]
async fn only_released_objects_are_forgotten_after_retention() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    original(&path);
    let ledger = Ledger::open_alone(&path).unwrap();
    let released = ObjectRow { released: true, ..known(Phase::Terminating) };
    let jobs = || (0..2500).map(|index| (Index(index), job(index, JobState::Idle))).collect();
    let told = Transition {
        from: Some(Phase::Terminating),
        to: None,
        trigger: Trigger::Gone,
        reason: "JobsRemoved".to_owned(),
        detail: "d".to_owned(),
        warning: false,
        active: 0,
        succeeded: 0,
        failed: 0,
    };
    ledger.intend(vec![intent(1, "0-2")]).await.unwrap();
    ledger.save(save(known(Phase::Submitted), jobs(), Vec::new())).await.unwrap();
    let another = Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0002");
    ledger.save(Save { uid: another.clone(), ..save(known(Phase::Running), jobs(), Vec::new()) }).await.unwrap();
    let find = |left, until| ledger.released(left, Timestamp(until), None, 10);
    assert_eq!(find(Artifact::Sandbox, 1_000_000).await.unwrap(), [], "neither is let go");
    ledger.save(Save { now: Timestamp(500), ..save(released, Vec::new(), vec![told]) }).await.unwrap();
    assert_eq!(find(Artifact::Sandbox, 500).await.unwrap(), [], "its Event is not written yet");
    ledger.mark_written(vec![(uid(), 1)], Timestamp(501)).await.unwrap();
    let ours = Released { uid: uid(), name: name() };
    let secret = SealedKey { key: KeyRef { name: "s".to_owned(), key: "k".to_owned() }, seal: "x".to_owned() };
    for uid in [uid(), another.clone()] {
        let inputs = FrozenInputs { secrets: vec![secret.clone()], ..FrozenInputs::default() };
        ledger.keep_inputs(&uid, inputs).await.unwrap();
    }
    for left in [Artifact::Sandbox, Artifact::Output] {
        assert_eq!(find(left, 499).await.unwrap(), []);
        assert_eq!(find(Artifact::Rows, 500).await.unwrap(), [], "rows stay as long as files do");
        assert_eq!(find(left, 500).await.unwrap(), std::slice::from_ref(&ours));
        ledger.removed(left, vec![uid(), another.clone()]).await.unwrap();
        assert_eq!(find(left, 500).await.unwrap(), []);
    }
    assert_eq!(ledger.kept_inputs(&uid()).await.unwrap(), None, "nothing is submitted any more");
    assert_eq!(ledger.kept_inputs(&another).await.unwrap(), Some(Vec::new()));
    assert_eq!(find(Artifact::Rows, 500).await.unwrap(), [ours]);
    assert!(
        ledger.forget(uid(), Timestamp(499)).await.unwrap()
            && ledger.forget(another.clone(), Timestamp(999)).await.unwrap()
    );
    assert!(ledger.load(&uid()).await.unwrap().row.is_some(), "too early, or not let go: nothing is removed");
    assert!(!ledger.has_forgotten(Timestamp(0)));

    let mut rounds = 1;
    while !ledger.forget(uid(), Timestamp(500)).await.unwrap() {
        // While the object has rows, its submissions are kept.
        assert_eq!(ledger.load(&uid()).await.unwrap().attempted.to_string(), "0-2");
        rounds += 1;
    }
    assert_eq!(rounds, 3);
    assert_eq!(ledger.load(&uid()).await.unwrap(), Record::default());
    assert_eq!(ledger.load(&another).await.unwrap().jobs.len(), 2500);
    let operator = (Identity::Operator, "operator@test".to_owned());
    assert_eq!(ledger.identities(None).await.unwrap().into_iter().collect::<Vec<_>>(), [operator]);
    let known = |ledger: &Ledger| [100, 60_100, 60_101].map(|created| ledger.has_forgotten(Timestamp(created)));
    assert_eq!(known(&ledger), [true, true, false], "first known at 100, and a minute for the clocks");
    ledger.close().await;
    assert_eq!(known(&Ledger::open_alone(&path).unwrap()), [true, true, false]);
    let file = Connection::open(&path).unwrap();
    let left: i64 = file.query_row("select count(*) from htcjobs where uid is null", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2, "the Go operator's rows stay");
    for table in ["htcjobs", "objects", "submissions", "requests", "transitions"] {
        let query = format!("select count(*) from {table} where uid = '{}'", uid());
        assert_eq!(file.query_row::<i64, _, _>(&query, [], |row| row.get(0)).unwrap(), 0, "{table}");
    }
}

/// An operator of an older version does not record when a job's state changed.
#[tokio::test]
async fn row_written_by_an_older_version_counts_as_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let ledger = Ledger::open_alone(&path).unwrap();
    let running = |index| (Index(index), job(index, JobState::Running));
    ledger.save(save(known(Phase::Running), (0..3).map(running).collect(), Vec::new())).await.unwrap();
    let began = ledger.sequence();
    ledger.close().await;
    let older = |change: &str, index: u32| {
        let change = format!("update htcjobs set {change}, changed = 99 where uid = ?1 and idx = {index}");
        Connection::open(&path).unwrap().execute(&change, [uid().as_str()]).unwrap();
    };
    older("outcome = 'Succeeded'", 0);
    older("host = 'other'", 1);
    let ledger = Ledger::open_alone(&path).unwrap();
    let rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
    let versions: Vec<(i64, i64)> = rows.iter().map(|row| (row.changed, row.stated)).collect();
    assert_eq!(versions, [(99, 99), (99, began), (began, began)]);
}

#[tokio::test]
async fn submitter_end_is_recorded_for_all_attempts_of_its_lock() {
    use htc_machine::Rules;
    use htc_machine::judge::{LockObservation, SubmitterLock, submitter_gone};

    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new())).await.unwrap();
    let lock = |file: &str| SubmitterLock { boot: "b".to_owned(), device: 1, inode: 2, file: file.to_owned() };
    let held = |attempt, file: Option<&str>| {
        let mut intent = intent(attempt, "0");
        intent.submission.as_mut().unwrap().lock = file.map(&lock);
        intent
    };
    // The first submitter has no lock, and the second was seen to end.
    ledger.intend(vec![held(1, None), held(2, Some("old"))]).await.unwrap();
    let ended = SubmitResult {
        key: key(RequestKind::Submit, 2),
        at: Timestamp(51),
        dead_since: Some(Timestamp(51)),
        exit_status: Some(0),
        message: None,
        not_run: false,
        supersedes: None,
    };
    ledger.resolve_submits(vec![ended]).await.unwrap();
    ledger.intend(vec![held(3, Some("one")), held(4, Some("other")), held(5, Some("one"))]).await.unwrap();

    let unseen = ledger.unseen_submitters(Timestamp(69)).await.unwrap();
    let locks: Vec<&SubmitterLock> = unseen.iter().map(|unseen| &unseen.lock).collect();
    assert_eq!(locks, [&lock("one"), &lock("other")]);
    assert_eq!(ledger.unseen_submitters(Timestamp(70)).await.unwrap(), [], "their time is over");

    let seen = LockObservation { at: Timestamp(55), boot: "b".to_owned(), device: 1, inode: 2, free: true };
    let gone = submitter_gone(&lock("one"), &seen, &Rules::ALL).unwrap();
    assert_eq!(ledger.submitter_gone(gone).await.unwrap(), [name()]);
    let record = ledger.load(&uid()).await.unwrap();
    let dead: Vec<Option<i64>> =
        record.attempts.iter().map(|attempt| attempt.dead_since.map(|since| since.0)).collect();
    assert_eq!(dead, [None, Some(51), Some(55), None, Some(55)]);
    let unseen = ledger.unseen_submitters(Timestamp(0)).await.unwrap();
    assert_eq!(unseen.iter().map(|unseen| &unseen.lock).collect::<Vec<_>>(), [&lock("other")]);
}

/// Thousands of rows of one HTCJob or namespace do not delay the Events of others.
#[tokio::test]
async fn events_are_written_in_turn_over_namespaces_and_objects() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let objects = [("a1", "a", 100, 3), ("a2", "a", 200, 1), ("b1", "b", 300, 2), ("c1", "c", 400, 1)];
    for (uid, namespace, now, count) in objects {
        let name = ObjectName { namespace: namespace.to_owned(), name: uid.to_owned() };
        let rows = vec![said(uid); count];
        let save = Save { uid: uid.into(), name, now: Timestamp(now), ..save(known(Phase::Pending), Vec::new(), rows) };
        ledger.save(save).await.unwrap();
    }
    let told = async |except: EventFilter| -> Vec<String> {
        let rows = ledger.unwritten_events(10, except).await.unwrap();
        rows.iter().map(|row| format!("{}.{}", row.uid, row.seq)).collect()
    };
    assert_eq!(told(EventFilter::default()).await, ["a1.1", "b1.1", "c1.1", "a2.1", "b1.2", "a1.2", "a1.3"]);
    let except = EventFilter { objects: vec!["a1".into()], namespaces: vec!["c".to_owned()] };
    assert_eq!(told(except.clone()).await, ["a2.1", "b1.1", "b1.2"]);
    assert_eq!(ledger.unwritten_of("b1".into()).await.unwrap().unwrap().seq, 1);
    assert_eq!(ledger.unwritten_in("a".to_owned(), vec!["a1".into()]).await.unwrap().unwrap().uid, "a2".into());
    assert_eq!(ledger.drop_events(except, Timestamp(150), Timestamp(500)).await.unwrap(), 3, "only old rows");
    assert_eq!(told(EventFilter::default()).await, ["a2.1", "b1.1", "c1.1", "b1.2"]);
}

/// The rows of one object are returned in order, oldest first, whatever the clock says.
#[tokio::test]
async fn clock_set_back_does_not_change_journal_order() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    for now in [Timestamp(100), Timestamp(50), Timestamp(70), Timestamp(200)] {
        let save = Save { now, ..save(known(Phase::Pending), Vec::new(), vec![said("A")]) };
        ledger.save(save).await.unwrap();
    }
    let rows = ledger.unwritten_events(10, EventFilter::default()).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| (row.seq, row.time.0)).collect::<Vec<_>>(),
        [(1, 100), (2, 100), (3, 100), (4, 200)]
    );
}

/// The ledger has one thread, which must not spend its time on reads of waiting rows.
#[tokio::test]
async fn cost_of_reading_events_is_independent_of_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
    let steps = async |rows: usize| -> i32 {
        for uid in 0..rows / 250 {
            let uid = Uid::from(format!("{rows}-{uid}").as_str());
            ledger.save(Save { uid, ..save(known(Phase::Pending), Vec::new(), vec![said("A"); 250]) }).await.unwrap();
        }
        let count = ledger.run(|connection| {
            let mut statement = connection.prepare(&journal::unwritten_in_turn()).unwrap();
            let read = statement
                .query_map((200, "[]", "[]", i64::try_from(journal::OLDEST).unwrap()), |_| Ok(()))
                .unwrap()
                .count();
            Ok((read, statement.get_status(rusqlite::StatementStatus::VmStep)))
        });
        let (read, steps) = count.await.unwrap();
        assert_eq!(read, 200);
        steps
    };
    let (few, many) = (steps(3000).await, steps(12_000).await);
    assert!(many < few + few / 10, "{few} steps, then {many}");
}

/// If that queue is deleted, nothing else records that the object was in it.
#[tokio::test]
async fn last_queue_of_an_object_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("htcjobs.db");
    let in_queue = |queue: &str| ObjectRow { last_queue: Some(queue.to_owned()), ..known(Phase::Pending) };
    let ledger = Ledger::open_alone(&path).unwrap();
    ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new())).await.unwrap();
    assert_eq!(ledger.load(&uid()).await.unwrap().row.unwrap().last_queue, None);
    for queue in ["first", "second"] {
        ledger.save(save(in_queue(queue), Vec::new(), Vec::new())).await.unwrap();
    }
    ledger.close().await;
    let ledger = Ledger::open_alone(&path).unwrap();
    let record = ledger.load(&uid()).await.unwrap();
    assert_eq!((record.row.unwrap().last_queue.as_deref(), record.granting_queue), (Some("second"), None));
    let runs = ledger.load_runs(&uid()).await.unwrap();
    assert_eq!(runs.row.unwrap().last_queue.as_deref(), Some("second"));
}
