//! Jobs as they are shown to people: a part of those of one object, or those that have changed.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::load::{JOB, JOB_COLUMNS, job};
use super::word::parse;
use super::writer::NUMBER;
use super::{Ledger, LedgerError, ProcWish};
use crate::machine::facts::{End, Exit, Job};
use crate::machine::ids::{Index, ScheddName, Timestamp, Uid};
use crate::machine::wishes::Wanted;

/// How it ended by itself, as a JSON array of pairs.
const EXITS: &str = "(select json_group_array(json_array(number, exit)) from
        (select number, exit from exits e where e.uid = htcjobs.uid and e.idx = htcjobs.idx order by number))";

/// The exit code that a job reports itself, and when, as long as HTCondor has not said how it ended or that it has not; and what a
/// user wants of it.
const REPORTED: &str = "(select max(at) from callbacks c where c.uid = htcjobs.uid and c.jobId = htcjobs.jobId
        and c.retcode is not null and c.settled = 0 and c.refuted = 0),
    (select retcode from callbacks c where c.uid = htcjobs.uid and c.jobId = htcjobs.jobId
        and c.retcode is not null and c.settled = 0 and c.refuted = 0),
    (select wanted from wishes w where w.uid = htcjobs.uid and w.idx = htcjobs.idx and w.over = 0),
    (select failure from wishes w where w.uid = htcjobs.uid and w.idx = htcjobs.idx and w.over = 0)";

/// Since which transaction it is in the state that it shows. What it reports itself has none, and may turn out to be wrong.
const STATED: &str =
    "iif(stated is null or outcome is null and exists (select 1 from callbacks c where c.uid = htcjobs.uid
        and c.jobId = htcjobs.jobId and c.retcode is not null), changed, stated)";

/// One recorded job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRow {
    /// Its number in its `HTCJob`.
    pub index: Index,
    /// What is recorded of it.
    pub job: Job,
    /// The schedd that has, or had, it.
    pub schedd: Option<ScheddName>,
    /// Its end by its own account, until HTCondor has said how it ended.
    pub reported: Option<End>,
    /// What a user wants of it.
    pub wish: Option<Wanted>,
    /// Why HTCondor refused that the last time.
    pub refusal: Option<String>,
    /// What of its output did not come back.
    pub omitted: Option<String>,
    /// Size of its output in bytes, if that is known.
    pub output_bytes: Option<i64>,
    /// How it ended by itself, each with its number, as far as that was seen.
    pub exits: Vec<(u32, Exit)>,
    /// Number of the transaction that last changed it ([`Ledger::sequence`]); 0 if that was by an older version.
    pub changed: i64,
    /// Number of the transaction that last changed its state, or a later one if that is not known.
    pub stated: i64,
}

/// Some of an object's recorded jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcRows {
    /// The jobs, by index.
    pub rows: Vec<ProcRow>,
    /// The object was cut short: what is not recorded was given up.
    pub given_up: bool,
    /// What users want of the jobs from there on, whether or not they are recorded: of no fewer than there are rows.
    pub wishes: BTreeMap<Index, ProcWish>,
}

impl Ledger {
    /// At most `limit` recorded jobs of this object, by index, from `from` on.
    pub async fn procs(&self, uid: Uid, from: Index, limit: usize) -> Result<ProcRows, LedgerError> {
        self.run(move |connection| {
            let given_up = connection
                .prepare_cached("select coalesce(givenUp, 0) > 0 from objects where uid = ?1")
                .and_then(|mut rows| rows.query_row([uid.as_str()], |row| row.get(0)).optional())
                .map_err(LedgerError::sql("read an object"))?;
            let most = i64::try_from(limit).unwrap_or(i64::MAX);
            let wishes = super::wishes::shown(connection, &uid, from, most)?;
            let rows = procs(connection, &uid, from, limit)?;
            Ok(ProcRows { rows, given_up: given_up.unwrap_or_default(), wishes })
        })
        .await
    }

    /// The objects of which jobs were given up after transaction number `since`, as long as they are not let go; from -1 on all.
    pub async fn given_up_since(&self, since: i64) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where gaveUp > ?1 and released = 0", [since])
                .map_err(LedgerError::sql("read the objects that were cut short"))
        })
        .await
    }

    /// The objects that were let go, or whose items were counted, after transaction number `since`.
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

    /// Whether of an object of this namespace, or any, that was recorded by transaction number `since` jobs were given up, or items
    /// counted, after it. That changes jobs which have no row, and so no number of their own.
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

    /// The objects that were recorded by transaction number `until` or before it.
    pub async fn recorded_until(&self, until: i64) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where coalesce(made, 0) <= ?1", [until])
                .map_err(LedgerError::sql("read which objects are recorded"))
        })
        .await
    }

    /// The objects that are recorded and were not let go, but for those of which [`Self::note_missing`] was told.
    pub async fn expected(&self) -> Result<BTreeSet<Uid>, LedgerError> {
        self.run(move |connection| {
            uids(connection, "select uid from objects where released = 0 and missing is null", [])
                .map_err(LedgerError::sql("read which objects are expected to exist"))
        })
        .await
    }

    /// Notes that these objects are gone without having been let go: somebody has removed their finalizers.
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

    /// Whether an object of this namespace, or any, was let go after transaction number `since`, or noted to be missing. One whose rows
    /// are removed counts for all namespaces.
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

    /// Those of these objects that were let go.
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

    /// At most `limit` jobs that were changed after transaction number `since`, the longest unchanged first.
    pub async fn procs_changed(&self, since: i64, limit: usize) -> Result<Vec<(Uid, ProcRow)>, LedgerError> {
        self.run(move |connection| changed(connection, since, limit)).await
    }
}

/// The first column of what a query finds.
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
    // What one transaction has changed comes whole: it is asked on from the number of the last.
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
            reported: at.zip(code).map(|(at, code)| End { at, code }),
            wish: None,
            refusal: row.get(JOB_COLUMNS + 5)?,
            output_bytes: row.get(JOB_COLUMNS + 6)?,
            omitted: row.get(JOB_COLUMNS + 9)?,
            stated: row.get::<_, Option<i64>>(JOB_COLUMNS + 8)?.unwrap_or_default(),
            exits: super::exits::list(row.get_ref(JOB_COLUMNS + 7)?.as_str()?),
            job,
        })
    };
    let row = read().map_err(LedgerError::sql("read jobs"))?;
    Ok(ProcRow { wish: wish.map(|wish| parse(uid, &wish)).transpose()?, ..row })
}

#[cfg(test)]
mod tests {
    use super::super::entries::Save;
    use super::super::tests::{job, known, save, uid};
    use super::super::{Artifact, Callback, RequestResult, Told};
    use super::*;
    use crate::api::Phase;
    use crate::machine::facts::{JobState, Known, Runs};
    use crate::machine::ids::{Attempt, SchedDate};
    use crate::machine::outcome::Outcome;
    use crate::machine::{Kind, RequestKey};

    #[tokio::test]
    async fn the_size_of_output_is_known_if_it_was_when_that_came() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let ended = |index| (Index(index), job(index, JobState::Ended(Outcome::Succeeded)));
        let jobs: Vec<_> = (0..3).map(ended).collect();
        ledger.save(save(known(Phase::Completed), jobs.clone(), Vec::new())).await.unwrap();
        let result = |fetched: &str, sizes: &[(u32, u64)]| RequestResult {
            key: RequestKey { uid: uid(), kind: Kind::Fetch, attempt: Attempt(1), step: 1 },
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
        assert_eq!(sizes().await, [None, Some(77), None], "what came first stays");
    }

    #[tokio::test]
    async fn what_was_let_go_is_known_by_its_transaction() {
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
        let released = Known { released: true, ..known(Phase::Terminating) };
        ledger.save(save(released.clone(), Vec::new(), Vec::new())).await.unwrap();
        let let_go = ledger.sequence();
        // Once more changes nothing.
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
    async fn what_nobody_is_shown_is_no_change() {
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
    async fn jobs_are_read_in_parts_and_those_that_changed_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let runs = Runs {
            count: 2,
            start: Some(SchedDate(70)),
            end: Some(SchedDate(80)),
            host: Some("slot1_1@node".into()),
            ..Runs::default()
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

        let end = Callback {
            uid: uid(),
            name: "zero".to_owned(),
            id: "12.0".parse().unwrap(),
            event: "e".to_owned(),
            told: Told::Ended(4),
        };
        ledger.receive(end, Timestamp(9)).await.unwrap();
        let changed = ledger.procs_changed(first, 100).await.unwrap();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].0.clone(), changed[0].1.index), (uid(), Index(0)));
        assert_eq!(changed[0].1.reported, Some(End { at: Timestamp(9), code: 4 }));
        assert_eq!(changed[0].1.changed, ledger.sequence());

        // What one transaction has changed is not torn apart.
        assert_eq!(ledger.procs_changed(0, 1).await.unwrap().len(), 2);
        let ended = (Index(0), job(0, JobState::Ended(Outcome::Succeeded)));
        ledger.save(save(known(Phase::Completed), vec![ended], Vec::new())).await.unwrap();
        assert_eq!(ledger.procs(uid(), Index(0), 1).await.unwrap().rows[0].reported, None);
    }
}
