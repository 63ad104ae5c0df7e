//! What users ask for of single jobs.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use strum::IntoStaticStr;

use super::word::parse;
use super::writer::NUMBER;
use super::{Ledger, LedgerError, RequestResult};
use crate::api::Reason;
use crate::machine::ids::{Index, Kind, Timestamp, Uid};
use crate::machine::wishes::{Change, Wanted, Wish, Wished, Wishes};

/// Most bytes of what an Event says of wishes that were replaced before it.
const REPLACED: usize = 512;

/// Why a wish is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum NotTaken {
    /// The job has ended.
    Ended,
    /// A user has removed the job.
    Removed,
    /// The object is not recorded yet, or not any more.
    NotRecorded,
}

impl Ledger {
    /// Notes what a user wants of a job, in the place of what was wanted of it before; the same once more changes nothing.
    pub async fn wish(
        &self,
        uid: &Uid,
        index: Index,
        wanted: Wanted,
        user: String,
        now: Timestamp,
    ) -> Result<Result<(), NotTaken>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| wish(connection, &uid, index, wanted, &user, now)).await
    }

    /// Wishes that were last changed after transaction number `since` and not after `until`, of jobs that are not recorded.
    pub async fn wishes_changed(&self, since: i64, until: i64) -> Result<Vec<(Uid, Index, ProcWish)>, LedgerError> {
        self.run(move |connection| changed(connection, since, until)).await
    }
}

/// A wish as it is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcWish {
    /// What is wanted; none if that is over.
    pub wanted: Option<Wanted>,
    /// The job will never be submitted.
    pub withdrawn: bool,
    /// Number of the transaction that last changed it.
    pub changed: i64,
}

fn wish(
    connection: &Connection,
    uid: &Uid,
    index: Index,
    wanted: Wanted,
    user: &str,
    now: Timestamp,
) -> Result<Result<(), NotTaken>, LedgerError> {
    let sql = || LedgerError::sql("write a wish");
    // Of an object that was cut short, what is not recorded was given up.
    let over: Option<bool> = connection
        .prepare_cached(
            "select released or phase in ('Completed', 'Terminating')
                or coalesce((select outcome is not null from htcjobs where uid = ?1 and idx = ?2), coalesce(givenUp, 0) > 0)
             from objects where uid = ?1",
        )
        .and_then(|mut statement| statement.query_row(params![uid.as_str(), index.0], |row| row.get(0)).optional())
        .map_err(sql())?;
    let standing: Option<(String, bool, Option<String>)> = connection
        .prepare_cached(
            "select wanted, askedAt is not null, iif(told, null, user) from wishes where uid = ?1 and idx = ?2 and over = 0",
        )
        .and_then(|mut statement| {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            statement.query_row(params![uid.as_str(), index.0], read).optional()
        })
        .map_err(sql())?;
    match over {
        None => return Ok(Err(NotTaken::NotRecorded)),
        Some(true) => return Ok(Err(NotTaken::Ended)),
        Some(false) => {}
    }
    let mut user = user.to_owned();
    if let Some((standing, asked, untold)) = standing {
        let standing = parse::<Wanted>(uid, &standing)?;
        // A release that HTCondor was asked for may be over by an answer from before this one.
        if standing == wanted && !(standing == Wanted::Release && asked) {
            return Ok(Ok(()));
        }
        if standing == Wanted::Remove {
            return Ok(Err(NotTaken::Removed));
        }
        if let Some(whose) = untold {
            let earlier =
                if whose.len() > REPLACED { "…".to_owned() } else { format!("{whose} {}", standing.does()) };
            user = format!("{earlier}, then {user}");
        }
    }
    connection
        .prepare_cached(&format!(
            "insert or replace into wishes(uid, idx, wanted, user, at, changed) values (?1, ?2, ?3, ?4, ?5, {NUMBER})"
        ))
        .and_then(|mut statement| statement.execute(params![uid.as_str(), index.0, <&str>::from(wanted), user, now.0]))
        .map_err(sql())?;
    touch(connection, uid, index)?;
    Ok(Ok(()))
}

/// The job is shown anew.
fn touch(connection: &Connection, uid: &Uid, index: Index) -> Result<(), LedgerError> {
    connection
        .prepare_cached(&format!("update htcjobs set changed = {NUMBER} where uid = ?1 and idx = ?2"))
        .and_then(|mut statement| statement.execute(params![uid.as_str(), index.0]))
        .map(drop)
        .map_err(LedgerError::sql("write a wish"))
}

/// What a decision has made of them. One that has been replaced meanwhile has another number.
pub(super) fn change(connection: &Connection, uid: &Uid, changes: &[Change]) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("change a wish");
    // The row stays, so that who watches hears of it.
    let mut end = connection
        .prepare_cached(&format!("update wishes set over = 1, changed = {NUMBER} where number = ?1"))
        .map_err(sql())?;
    let mut update = connection
        .prepare_cached(&format!(
            "update wishes set told = ?2, askedAt = ?3, withdrawn = ?4, changed = iif(withdrawn = ?4, changed, {NUMBER}) where number = ?1"
        ))
        .map_err(sql())?;
    for Change { index, number, now } in changes {
        let Some(wished) = now else {
            end.execute([number]).map_err(sql())?;
            touch(connection, uid, *index)?;
            continue;
        };
        let asked = match &wished.wish {
            Wish::Release { asked, .. } => asked.map(|at| at.0),
            Wish::Hold | Wish::Remove { .. } => None,
        };
        let withdrawn = wished.wish == Wish::Remove { withdrawn: true };
        update.execute(params![number, wished.untold.is_none(), asked, withdrawn]).map_err(sql())?;
    }
    Ok(())
}

/// What came of a request that carries out wishes. Why HTCondor refused it is shown with those that there were when it began.
pub(super) fn answered(connection: &Connection, result: &RequestResult) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("write what came of wishes");
    let (uid, kind) = (&result.key.uid, result.key.kind);
    let wanted = match kind {
        Kind::Hold => Wanted::Hold,
        Kind::Release => Wanted::Release,
        Kind::Remove => Wanted::Remove,
        Kind::AttachFinalizer
        | Kind::Adopt
        | Kind::Submit
        | Kind::Fetch
        | Kind::Tidy
        | Kind::ReleaseFinalizer
        | Kind::DeleteObject => return Ok(()),
    };
    let failure = result.failure.as_ref();
    if failure.is_some_and(|failure| failure.known_reason() == Some(Reason::Stopped)) {
        return Ok(());
    }
    let mut statement = connection
        .prepare_cached(&format!(
            "update wishes set failure = ?3, changed = {NUMBER} where uid = ?1 and wanted = ?2 and over = 0
                 and failure is not ?3 and at <= (select startedAt from requests where uid = ?1 and kind = ?4) returning idx"
        ))
        .map_err(sql())?;
    let message = failure.map(|failure| failure.message.as_str());
    let values = params![uid.as_str(), <&str>::from(wanted), message, <&str>::from(kind)];
    let changed = statement.query_map(values, |row| row.get(0).map(Index)).map_err(sql())?;
    let changed: Vec<Index> = changed.collect::<Result<_, _>>().map_err(sql())?;
    changed.into_iter().try_for_each(|index| touch(connection, uid, index))
}

/// All of an object's.
pub(super) fn wishes(connection: &Connection, uid: &Uid) -> Result<Wishes, LedgerError> {
    let sql = || LedgerError::sql("read wishes");
    let mut statement = connection
        .prepare_cached(
            "select idx, number, wanted, user, at, told, askedAt, withdrawn from wishes where uid = ?1 and over = 0",
        )
        .map_err(sql())?;
    let read = |row: &Row<'_>| {
        let told: bool = row.get(5)?;
        Ok((
            (Index(row.get(0)?), row.get::<_, i64>(1)?, row.get::<_, String>(2)?),
            (!told).then(|| row.get::<_, String>(3)).transpose()?,
            (Timestamp(row.get(4)?), row.get::<_, Option<i64>>(6)?.map(Timestamp), row.get::<_, bool>(7)?),
        ))
    };
    let rows = statement.query_map([uid.as_str()], read).map_err(sql())?;
    rows.map(|row| {
        let ((index, number, wanted), untold, (since, asked, withdrawn)) = row.map_err(sql())?;
        let wish = match parse(uid, &wanted)? {
            Wanted::Hold => Wish::Hold,
            Wanted::Release => Wish::Release { since, asked },
            Wanted::Remove => Wish::Remove { withdrawn },
        };
        Ok((index, Wished { number, wish, untold }))
    })
    .collect()
}

/// What is wished of the jobs of an object, from an index on, at most `limit` of them.
pub(super) fn shown(
    connection: &Connection,
    uid: &Uid,
    from: Index,
    limit: i64,
) -> Result<BTreeMap<Index, ProcWish>, LedgerError> {
    let sql = || LedgerError::sql("read wishes");
    let mut statement = connection
        .prepare_cached(
            "select iif(over, null, wanted), withdrawn, changed, idx from wishes where uid = ?1 and idx >= ?2
             order by idx limit ?3",
        )
        .map_err(sql())?;
    let read = |row: &Row<'_>| Ok((wanted(row)?, Index(row.get(3)?)));
    let rows = statement.query_map(params![uid.as_str(), from.0, limit], read).map_err(sql())?;
    rows.map(|row| {
        let (shown, index) = row.map_err(sql())?;
        Ok((index, proc_wish(uid, shown)?))
    })
    .collect()
}

fn changed(connection: &Connection, since: i64, until: i64) -> Result<Vec<(Uid, Index, ProcWish)>, LedgerError> {
    let sql = || LedgerError::sql("read the wishes that have changed");
    let mut statement = connection
        .prepare_cached(
            "select iif(over, null, wanted), withdrawn, changed, idx, uid from wishes
             where changed > ?1 and changed <= ?2 and not exists (select 1 from htcjobs where htcjobs.uid = wishes.uid and htcjobs.idx = wishes.idx)",
        )
        .map_err(sql())?;
    let read = |row: &Row<'_>| Ok((wanted(row)?, Index(row.get(3)?), row.get::<_, String>(4)?));
    let rows = statement.query_map([since, until], read).map_err(sql())?;
    rows.map(|row| {
        let (shown, index, uid) = row.map_err(sql())?;
        let uid = Uid::from(uid.as_str());
        let shown = proc_wish(&uid, shown)?;
        Ok((uid, index, shown))
    })
    .collect()
}

/// From a row that begins with `wanted, withdrawn, changed`.
fn wanted(row: &Row<'_>) -> rusqlite::Result<(Option<String>, bool, i64)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn proc_wish(uid: &Uid, row: (Option<String>, bool, i64)) -> Result<ProcWish, LedgerError> {
    let (wanted, withdrawn, changed) = row;
    Ok(ProcWish { wanted: wanted.map(|wanted| parse(uid, &wanted)).transpose()?, withdrawn, changed })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{job, known, save, uid};
    use super::super::{Intent, Save};
    use super::*;
    use crate::api::Phase;
    use crate::machine::RequestKey;
    use crate::machine::facts::{Failure, JobState};
    use crate::machine::ids::Attempt;
    use crate::machine::outcome::Outcome;

    #[tokio::test]
    async fn wishes_are_taken_kept_and_changed() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let wish = async |index, wanted, user: &str| {
            ledger.wish(&uid(), Index(index), wanted, user.to_owned(), Timestamp(5)).await.unwrap()
        };
        assert_eq!(wish(0, Wanted::Hold, "alice").await, Err(NotTaken::NotRecorded));
        let ended = job(1, JobState::Ended(Outcome::Succeeded));
        let jobs = vec![(Index(0), job(0, JobState::Running)), (Index(1), ended)];
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        let since = ledger.sequence();
        assert_eq!(wish(0, Wanted::Hold, "alice").await, Ok(()));
        assert_eq!(wish(1, Wanted::Hold, "alice").await, Err(NotTaken::Ended));
        assert_eq!(wish(2, Wanted::Remove, "alice").await, Ok(()));
        assert_eq!(ledger.procs_changed(since, 9).await.unwrap().len(), 1);
        let unrecorded = ledger.wishes_changed(since, ledger.sequence()).await.unwrap();
        assert_eq!(unrecorded.iter().map(|(_, index, _)| index.0).collect::<Vec<_>>(), [2]);
        let now = ledger.sequence();
        assert_eq!(wish(0, Wanted::Hold, "bob").await, Ok(()));
        assert_eq!(ledger.sequence(), now, "the same once more is nothing new");
        assert_eq!(wish(2, Wanted::Release, "bob").await, Err(NotTaken::Removed));

        let before = ledger.load(&uid()).await.unwrap().wishes;
        assert_eq!(before.iter().map(|(_, wished)| wished.untold.as_deref()).collect::<Vec<_>>(), [Some("alice"); 2]);
        assert_eq!(wish(0, Wanted::Release, "bob").await, Ok(()));
        let mut after = before.clone();
        for (_, wished) in after.iter_mut() {
            wished.untold = None;
            if wished.wish.wanted() == Wanted::Remove {
                wished.wish = Wish::Remove { withdrawn: true };
            }
        }
        let save = Save { wishes: after.changes(&before), ..save(known(Phase::Running), Vec::new(), Vec::new()) };
        ledger.save(save).await.unwrap();
        let after = ledger.load(&uid()).await.unwrap().wishes;
        assert_eq!(after.withdrawn().to_string(), "2");
        let replaced = after.iter().next().unwrap().1;
        assert_eq!(replaced.wish, Wish::Release { since: Timestamp(5), asked: None });
        assert_eq!(replaced.untold.as_deref(), Some("alice holds, then bob"), "what replaced a wish is told");
        let shown = ledger.procs(uid(), Index(0), 9).await.unwrap();
        assert_eq!(shown.rows[0].wish, Some(Wanted::Release));
        assert!(shown.wishes[&Index(2)].withdrawn);
    }

    #[tokio::test]
    async fn what_replaces_a_wish_that_is_not_told_tells_of_both() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let jobs = vec![(Index(0), job(0, JobState::Running))];
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        let wish = async |wanted, user: &str| {
            ledger.wish(&uid(), Index(0), wanted, user.to_owned(), Timestamp(5)).await.unwrap().unwrap();
            ledger.load(&uid()).await.unwrap().wishes.iter().next().unwrap().1.untold.clone().unwrap()
        };
        assert_eq!(wish(Wanted::Hold, "ann").await, "ann");
        assert_eq!(wish(Wanted::Release, "bob").await, "ann holds, then bob");
        let long = "c".repeat(REPLACED);
        assert_eq!(wish(Wanted::Hold, &long).await, format!("ann holds, then bob releases, then {long}"));
        assert_eq!(wish(Wanted::Remove, "dora").await, "…, then dora");
    }

    #[tokio::test]
    async fn why_a_wish_is_refused_is_kept_until_it_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let jobs = (0..3).map(|index| (Index(index), job(index, JobState::Running))).collect();
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        for (index, wanted, at) in [(0, Wanted::Hold, 5), (1, Wanted::Remove, 5), (2, Wanted::Hold, 8)] {
            let taken = ledger.wish(&uid(), Index(index), wanted, "ann".to_owned(), Timestamp(at)).await.unwrap();
            assert_eq!(taken, Ok(()));
        }
        let key = RequestKey { uid: uid(), kind: Kind::Hold, attempt: Attempt(1), step: 1 };
        let answer = async |failure: Option<Failure>| {
            let before = ledger.sequence();
            ledger.intend(vec![Intent { key: key.clone(), at: Timestamp(7), submission: None }]).await.unwrap();
            let result = RequestResult::without_output(key.clone(), Timestamp(9), failure);
            ledger.resolve(vec![result]).await.unwrap();
            let rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
            let refusals: Vec<Option<String>> = rows.into_iter().map(|row| row.refusal).collect();
            (refusals, ledger.procs_changed(before, 9).await.unwrap().len())
        };
        let refused = || Some(Failure::new(Reason::ScheddUnreachable, "denied".to_owned()));
        let denied = vec![Some("denied".to_owned()), None, None];
        assert_eq!(answer(refused()).await, (denied.clone(), 1), "one is of another kind, and one came later");
        assert_eq!(answer(refused()).await, (denied.clone(), 0), "nothing new");
        let stopped = Some(Failure::new(Reason::Stopped, "the operator ends".to_owned()));
        assert_eq!(answer(stopped).await, (denied, 0), "HTCondor was not asked");
        assert_eq!(answer(None).await, (vec![None; 3], 1));
    }
}
