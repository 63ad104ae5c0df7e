//! Jobs as users see them: some jobs of one object, or the jobs that have changed.

use std::collections::{BTreeMap, BTreeSet};

use htc_machine::actions::JobAction;
use htc_machine::facts::{Exit, Job, ReportedEnd};
use htc_machine::ids::{Index, ScheddName, Timestamp, Uid};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::load::{JOB, JOB_COLUMNS, job};
use super::writer::NUMBER;
use super::{Ledger, LedgerError, ProcAction};
use crate::enum_text::parse;

/// SQL expression for the recorded exits of a job, as a JSON array of pairs.
const EXITS: &str = "(select json_group_array(json_array(number, exit)) from
        (select number, exit from exits e where e.uid = htcjobs.uid and e.idx = htcjobs.idx order by number))";

/// SQL expressions for the end that a job reports itself: its time and its exit code. They are null once HTCondor has
/// confirmed how the job ended or has contradicted the report. The last two are the requested action and HTCondor's
/// refusal of it.
const REPORTED: &str = "(select max(at) from callbacks c where c.uid = htcjobs.uid and c.jobId = htcjobs.jobId
        and c.retcode is not null and c.settled = 0 and c.refuted = 0),
    (select retcode from callbacks c where c.uid = htcjobs.uid and c.jobId = htcjobs.jobId
        and c.retcode is not null and c.settled = 0 and c.refuted = 0),
    (select wanted from wishes w where w.uid = htcjobs.uid and w.idx = htcjobs.idx and w.over = 0),
    (select failure from wishes w where w.uid = htcjobs.uid and w.idx = htcjobs.idx and w.over = 0)";

/// SQL expression for the transaction since which the job has the state that it shows. If the job has reported an end,
/// this is the last change: a reported state has no number of its own and may be refuted.
const STATED: &str =
    "iif(stated is null or outcome is null and exists (select 1 from callbacks c where c.uid = htcjobs.uid
        and c.jobId = htcjobs.jobId and c.retcode is not null), changed, stated)";

/// Recorded job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRow {
    /// Number of the job in its HTCJob.
    pub index: Index,
    /// Recorded facts.
    pub job: Job,
    /// Schedd that has or had the job.
    pub schedd: Option<ScheddName>,
    /// End that the job reported itself, until HTCondor has confirmed how it ended.
    pub reported: Option<ReportedEnd>,
    /// Action that a user has requested.
    pub requested: Option<JobAction>,
    /// Reason why HTCondor refused that action the last time.
    pub refusal: Option<String>,
    /// Parts of the output that did not come back.
    pub omitted: Option<String>,
    /// Size of the output in bytes, if known.
    pub output_bytes: Option<i64>,
    /// Exits of the job's own process that were seen, each with its number.
    pub exits: Vec<(u32, Exit)>,
    /// Number of the transaction that last changed the job ([`Ledger::sequence`]); 0 if an older version did.
    pub changed: i64,
    /// Number of the transaction that last changed the job's state, or a later one if that is unknown.
    pub stated: i64,
}

/// Some recorded jobs of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcRows {
    /// Jobs, ordered by index.
    pub rows: Vec<ProcRow>,
    /// Whether a limit ended the object early, so that jobs without a row were given up.
    pub given_up: bool,
    /// Requested actions of jobs from the first index on, with or without a row. They reach at least as far as `rows`.
    pub requested_actions: BTreeMap<Index, ProcAction>,
}

impl Ledger {
    /// Returns at most `limit` recorded jobs of this object, ordered by index, starting at `from`.
    pub async fn procs(&self, uid: Uid, from: Index, limit: usize) -> Result<ProcRows, LedgerError> {
        self.run(move |connection| {
            let given_up = connection
                .prepare_cached("select coalesce(givenUp, 0) > 0 from objects where uid = ?1")
                .and_then(|mut rows| rows.query_row([uid.as_str()], |row| row.get(0)).optional())
                .map_err(LedgerError::sql("read an object"))?;
            let most = i64::try_from(limit).unwrap_or(i64::MAX);
            let wishes = crate::actions::shown(connection, &uid, from, most)?;
            let rows = procs(connection, &uid, from, limit)?;
            Ok(ProcRows { rows, given_up: given_up.unwrap_or_default(), requested_actions: wishes })
        })
        .await
    }

    /// Returns the objects of which jobs were given up after transaction number `since` and that were not released. -1
    /// returns all of them.
    pub async fn given_up_since(&self, since: i64) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where gaveUp > ?1 and released = 0", [since])
                .map_err(LedgerError::sql("read the objects that were cut short"))
        })
        .await
    }

    /// Returns the objects that were released, or whose items were counted, after transaction number `since`.
    pub async fn let_go_or_counted_since(&self, since: i64) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(
                connection,
                "select uid from objects where letGo > ?1 union all select uid from items where changed > ?1",
                [since],
            )
            .map_err(LedgerError::sql("read which objects have changed"))
        })
        .await
    }

    /// Whether, after transaction number `since`, jobs of an object were given up or its items counted. Only objects of
    /// `namespace`, if one is given, that were recorded by `since` are considered. Such a change affects jobs without a
    /// row, which have no number of their own.
    pub async fn changed_as_a_whole_since(&self, namespace: Option<String>, since: i64) -> Result<bool, LedgerError> {
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "select exists(select 1 from objects where (gaveUp > ?1 or uid in (select uid from items where changed > ?1))
                        and coalesce(made, 0) <= ?1 and (?2 is null or namespace = ?2))",
                )
                .and_then(|mut rows| rows.query_row(params![since, namespace], |row| row.get(0)))
                .map_err(LedgerError::sql("read whether objects have changed as a whole"))
        })
        .await
    }

    /// Returns the objects that were recorded by transaction number `until`.
    pub async fn recorded_until(&self, until: i64) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where coalesce(made, 0) <= ?1", [until])
                .map_err(LedgerError::sql("read which objects are recorded"))
        })
        .await
    }

    /// Returns the objects that are recorded and not released, without those passed to [`Self::note_missing`].
    pub async fn expected(&self) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where released = 0 and missing is null", [])
                .map_err(LedgerError::sql("read which objects are expected to exist"))
        })
        .await
    }

    /// Records that these objects are gone without having been released: their finalizers were removed by hand.
    pub async fn note_missing(&self, missing: BTreeSet<Uid>) -> Result<(), LedgerError> {
        self.run(move |connection| {
            connection
                .prepare_cached(&format!(
                    "update objects set missing = {NUMBER} where uid = ?1 and released = 0 and missing is null"
                ))
                .and_then(|mut statement| {
                    missing.iter().try_for_each(|uid| statement.execute([uid.as_str()]).map(drop))
                })
                .map_err(LedgerError::sql("note which objects are missing"))
        })
        .await
    }

    /// Whether an object was released or recorded as missing after transaction number `since`. Only objects of
    /// `namespace` count, if one is given. Released objects whose rows are removed count for every namespace.
    pub async fn let_go_since(&self, namespace: Option<String>, since: i64) -> Result<bool, LedgerError> {
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "select exists(select 1 from objects where (letGo > ?1 or missing > ?1) and (?2 is null or namespace = ?2))
                        or exists(select 1 from ledger where key = 'letGo' and cast(value as integer) > ?1)",
                )
                .and_then(|mut rows| rows.query_row(params![since, namespace], |row| row.get(0)))
                .map_err(LedgerError::sql("read whether objects were let go"))
        })
        .await
    }

    /// Returns those of these objects that were released.
    pub async fn let_go(&self, uids: Vec<Uid>) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            let mut let_go = BTreeSet::new();
            for uid in uids {
                let found =
                    self::uids(connection, "select uid from objects where uid = ?1 and released = 1", [uid.as_str()]);
                let_go.extend(found.map_err(LedgerError::sql("read which objects were let go"))?);
            }
            Ok(let_go)
        })
        .await
    }

    /// Returns at most `limit` jobs that changed after transaction number `since`, the longest unchanged first.
    pub async fn procs_changed(&self, since: i64, limit: usize) -> Result<Vec<(Uid, ProcRow)>, LedgerError> {
        self.run(move |connection| changed(connection, since, limit)).await
    }
}

/// Runs a query and returns its first column.
fn uids(connection: &Connection, query: &str, parameters: impl Params) -> rusqlite::Result<BTreeSet<Uid>> {
    let mut statement = connection.prepare_cached(query)?;
    let uids = statement.query_map(parameters, |row| Ok(Uid::from(row.get_ref(0)?.as_str()?)))?;
    uids.collect()
}

fn procs(connection: &Connection, uid: &Uid, from: Index, limit: usize) -> Result<Vec<ProcRow>, LedgerError> {
    let sql = || LedgerError::sql("read jobs");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection
        .prepare_cached(&format!(
            "select {JOB}, schedd, changed, {REPORTED}, outputBytes, {EXITS}, {STATED}, omitted from htcjobs where uid = ?1 and idx >= ?2 order by idx limit ?3"
        ))
        .map_err(sql())?;
    let mut rows = statement.query(params![uid.as_str(), from.0, limit]).map_err(sql())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(sql())? {
        found.push(proc(row, uid)?);
    }
    Ok(found)
}

fn changed(connection: &Connection, since: i64, limit: usize) -> Result<Vec<(Uid, ProcRow)>, LedgerError> {
    let sql = || LedgerError::sql("read the jobs that have changed");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    // Selects the changes of a transaction completely, because the caller continues from the number of the last row.
    let mut statement = connection
        .prepare_cached(&format!(
            "select {JOB}, schedd, changed, {REPORTED}, outputBytes, {EXITS}, {STATED}, omitted, uid from htcjobs where changed > ?1 and changed <=
                coalesce((select changed from htcjobs where changed > ?1 order by changed limit 1 offset ?2), 1 << 62)
             and uid is not null order by changed, uid, idx"
        ))
        .map_err(sql())?;
    let mut rows = statement.query(params![since, limit]).map_err(sql())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(sql())? {
        let uid: String = row.get(JOB_COLUMNS + 10).map_err(sql())?;
        let uid = Uid::from(uid.as_str());
        let row = proc(row, &uid)?;
        found.push((uid, row));
    }
    Ok(found)
}

fn proc(row: &Row<'_>, uid: &Uid) -> Result<ProcRow, LedgerError> {
    let (index, job) = job(row, uid)?;
    let wish: Option<String> = row.get(JOB_COLUMNS + 4).map_err(LedgerError::sql("read jobs"))?;
    let read = || -> rusqlite::Result<_> {
        let at = row.get::<_, Option<i64>>(JOB_COLUMNS + 2)?.map(Timestamp);
        let code = row.get::<_, Option<i32>>(JOB_COLUMNS + 3)?;
        Ok(ProcRow {
            index,
            schedd: row.get::<_, Option<String>>(JOB_COLUMNS)?.map(|name| ScheddName::from(name.as_str())),
            changed: row.get::<_, Option<i64>>(JOB_COLUMNS + 1)?.unwrap_or_default(),
            reported: at.zip(code).map(|(at, code)| ReportedEnd { at, code }),
            requested: None,
            refusal: row.get(JOB_COLUMNS + 5)?,
            output_bytes: row.get(JOB_COLUMNS + 6)?,
            omitted: row.get(JOB_COLUMNS + 9)?,
            stated: row.get::<_, Option<i64>>(JOB_COLUMNS + 8)?.unwrap_or_default(),
            exits: crate::exit_codes::parse_pairs(row.get_ref(JOB_COLUMNS + 7)?.as_str()?),
            job,
        })
    };
    let row = read().map_err(LedgerError::sql("read jobs"))?;
    Ok(ProcRow { requested: wish.map(|wish| parse(uid, &wish)).transpose()?, ..row })
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::facts::{JobState, ObjectRow, RunHistory};
    use htc_machine::ids::{Attempt, SchedDate};
    use htc_machine::outcome::Outcome;
    use htc_machine::{RequestKey, RequestKind};

    use super::super::tests::{job, known, save, uid};
    use super::super::{Artifact, JobReport, ReportKind, RequestResult};
    use super::*;
    use crate::messages::Save;

    #[tokio::test]
    async fn output_size_is_stored_with_the_first_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let ended = |index| (Index(index), job(index, JobState::Ended(Outcome::Succeeded)));
        let jobs: Vec<_> = (0..3).map(ended).collect();
        ledger.save(save(known(Phase::Completed), jobs.clone(), Vec::new())).await.unwrap();
        let result = |fetched: &str, sizes: &[(u32, u64)]| RequestResult {
            key: RequestKey { uid: uid(), kind: RequestKind::Fetch, attempt: Attempt(1), step: 1 },
            at: Timestamp(9),
            failure: None,
            fetched: fetched.parse().unwrap(),
            sizes: sizes.iter().map(|(index, bytes)| (Index(*index), *bytes)).collect(),
            refused: Vec::new(),
            omitted: BTreeMap::new(),
        };
        let before = ledger.sequence();
        ledger.resolve(vec![result("0-1", &[(1, 77)])]).await.unwrap();
        let sizes = async || -> Vec<Option<i64>> {
            ledger.procs(uid(), Index(0), 9).await.unwrap().rows.iter().map(|row| row.output_bytes).collect()
        };
        assert_eq!(sizes().await, [None, Some(77), None]);
        let told = ledger.procs_changed(before, 9).await.unwrap();
        assert_eq!(told.iter().map(|(_, row)| row.output_bytes).collect::<Vec<_>>(), [None, Some(77)]);
        ledger.resolve(vec![result("0-1", &[(0, 5), (1, 5)])]).await.unwrap();
        ledger.save(save(known(Phase::Completed), jobs, Vec::new())).await.unwrap();
        assert_eq!(sizes().await, [None, Some(77), None], "the first size stays");
    }

    #[tokio::test]
    async fn released_objects_are_found_by_their_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let other = Uid::from("0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0002");
        for uid in [uid(), other.clone()] {
            ledger.save(Save { uid, ..save(known(Phase::Running), Vec::new(), Vec::new()) }).await.unwrap();
        }
        let before = ledger.sequence();
        let since =
            async |namespace: &str, since| ledger.let_go_since(Some(namespace.to_owned()), since).await.unwrap();
        assert!(!since("physics", 0).await);
        let released = ObjectRow { released: true, ..known(Phase::Terminating) };
        ledger.save(save(released.clone(), Vec::new(), Vec::new())).await.unwrap();
        let let_go = ledger.sequence();
        // A repeated release changes nothing.
        ledger.save(save(released, Vec::new(), Vec::new())).await.unwrap();
        assert_eq!(ledger.let_go(vec![uid(), other]).await.unwrap(), BTreeSet::from([uid()]));
        assert!(since("physics", before).await && !since("physics", let_go).await && !since("chemistry", before).await);
        assert!(ledger.let_go_since(None, before).await.unwrap());
        for left in [Artifact::Sandbox, Artifact::Output] {
            ledger.removed(left, vec![uid()]).await.unwrap();
        }
        assert!(ledger.forget(uid(), Timestamp(i64::MAX)).await.unwrap());
        assert!(since("chemistry", before).await, "it may have been there");
        assert!(!since("physics", let_go).await);
    }

    #[tokio::test]
    async fn invisible_attribute_is_not_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let write = async |job: &Job| {
            let before = ledger.sequence();
            ledger.save(save(known(Phase::Running), vec![(Index(0), job.clone())], Vec::new())).await.unwrap();
            ledger.procs_changed(before, 9).await.unwrap().len()
        };
        let mut ran = job(0, JobState::Running);
        assert_eq!(write(&ran).await, 1);
        ran.runs.vacated = Some(SchedDate(90));
        ran.gone = true;
        assert_eq!(write(&ran).await, 0);
        let load = ledger.procs(uid(), Index(0), 1).await.unwrap().rows.remove(0);
        assert_eq!(load.job, ran, "it is kept all the same");
        ran.runs.host = Some("slot1_1@node".into());
        assert_eq!(write(&ran).await, 1);
        ran.fetched = true;
        assert_eq!(write(&ran).await, 1);
        ran.state = JobState::Ended(Outcome::Failed(3));
        assert_eq!(write(&ran).await, 1);
    }

    #[tokio::test]
    async fn jobs_are_read_in_pages_and_changes_are_tracked() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let runs = RunHistory {
            count: 2,
            start: Some(SchedDate(70)),
            end: Some(SchedDate(80)),
            host: Some("slot1_1@node".into()),
            ..RunHistory::default()
        };
        let ran = Job { runs, ..job(1, JobState::Ended(Outcome::Failed(3))) };
        let jobs =
            vec![(Index(0), job(0, JobState::Running)), (Index(1), ran.clone()), (Index(7), job(7, JobState::Idle))];
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        let first = ledger.sequence();
        let ProcRows { rows: page, given_up, .. } = ledger.procs(uid(), Index(1), 5).await.unwrap();
        assert!(!given_up);
        assert!(ledger.recorded_until(first - 1).await.unwrap().is_empty());
        assert!(ledger.recorded_until(first).await.unwrap().contains(&uid()));
        assert_eq!(page.iter().map(|row| row.index.0).collect::<Vec<_>>(), [1, 7]);
        assert_eq!((&page[0].job, page[0].changed, page[0].reported), (&ran, first, None));
        assert_eq!(ledger.procs(uid(), Index(0), 1).await.unwrap().rows.len(), 1);

        let end = JobReport {
            uid: uid(),
            name: "zero".to_owned(),
            id: "12.0".parse().unwrap(),
            event: "e".to_owned(),
            kind: ReportKind::Ended(4),
        };
        ledger.receive(end, Timestamp(9)).await.unwrap();
        let changed = ledger.procs_changed(first, 100).await.unwrap();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].0.clone(), changed[0].1.index), (uid(), Index(0)));
        assert_eq!(changed[0].1.reported, Some(ReportedEnd { at: Timestamp(9), code: 4 }));
        assert_eq!(changed[0].1.changed, ledger.sequence());

        // The changes of one transaction are returned together.
        assert_eq!(ledger.procs_changed(0, 1).await.unwrap().len(), 2);
        let ended = (Index(0), job(0, JobState::Ended(Outcome::Succeeded)));
        ledger.save(save(known(Phase::Completed), vec![ended], Vec::new())).await.unwrap();
        assert_eq!(ledger.procs(uid(), Index(0), 1).await.unwrap().rows[0].reported, None);
    }
}
