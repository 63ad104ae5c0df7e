//! Actions that users request for single jobs: hold, release, remove.

use std::collections::BTreeMap;

use htc_api::Reason;
use htc_machine::actions::{ActionUpdate, JobAction, RequestedAction, RequestedActions, StoredAction};
use htc_machine::ids::{Index, RequestKind, Timestamp, Uid};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use strum::IntoStaticStr;

use super::writer::NUMBER;
use super::{Ledger, LedgerError, RequestResult};
use crate::enum_text::parse;

/// Maximum size, in bytes, of the text about earlier requests that a later one replaced before they were reported in an
/// Event.
const REPLACED: usize = 512;

/// Reason why a requested action is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum ActionRefusal {
    /// The job has ended.
    Ended,
    /// A user has removed the job.
    Removed,
    /// The object is not recorded yet, or its rows were already removed.
    NotRecorded,
}

impl Ledger {
    /// Records the action that a user requests for a job. It replaces an earlier request. A repeated request changes
    /// nothing.
    pub async fn request_action(
        &self,
        uid: &Uid,
        index: Index,
        wanted: JobAction,
        user: String,
        now: Timestamp,
    ) -> Result<Result<(), ActionRefusal>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| wish(connection, &uid, index, wanted, &user, now)).await
    }

    /// Returns requested actions that last changed after transaction number `since` and not after `until`, for jobs
    /// without a row.
    pub async fn actions_changed(&self, since: i64, until: i64) -> Result<Vec<(Uid, Index, ProcAction)>, LedgerError> {
        self.run(move |connection| changed(connection, since, until)).await
    }
}

/// Requested action as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcAction {
    /// Requested action; `None` if it is finished.
    pub action: Option<JobAction>,
    /// Whether the job will never be submitted.
    pub withdrawn: bool,
    /// Number of the transaction that last changed the request.
    pub changed: i64,
}

fn wish(
    connection: &Connection,
    uid: &Uid,
    index: Index,
    wanted: JobAction,
    user: &str,
    now: Timestamp,
) -> Result<Result<(), ActionRefusal>, LedgerError> {
    let sql = || LedgerError::sql("write a wish");
    // If a limit ended the object early, jobs without a row were given up.
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
        None => return Ok(Err(ActionRefusal::NotRecorded)),
        Some(true) => return Ok(Err(ActionRefusal::Ended)),
        Some(false) => {}
    }
    let mut user = user.to_owned();
    if let Some((standing, asked, untold)) = standing {
        let standing = parse::<JobAction>(uid, &standing)?;
        // A release already sent to HTCondor may be finished by an answer from before this request, so it is recorded
        // anew.
        if standing == wanted && !(standing == JobAction::Release && asked) {
            return Ok(Ok(()));
        }
        if standing == JobAction::Remove {
            return Ok(Err(ActionRefusal::Removed));
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

/// Marks the job as changed, so that watchers see it again.
fn touch(connection: &Connection, uid: &Uid, index: Index) -> Result<(), LedgerError> {
    connection
        .prepare_cached(&format!("update htcjobs set changed = {NUMBER} where uid = ?1 and idx = ?2"))
        .and_then(|mut statement| statement.execute(params![uid.as_str(), index.0]))
        .map(drop)
        .map_err(LedgerError::sql("write a wish"))
}

/// Applies what a decision has made of requested actions. A request that was replaced meanwhile has another number and
/// stays.
pub(super) fn change(connection: &Connection, uid: &Uid, changes: &[ActionUpdate]) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("change a wish");
    // The row stays, so that watchers see the change.
    let mut end = connection
        .prepare_cached(&format!("update wishes set over = 1, changed = {NUMBER} where number = ?1"))
        .map_err(sql())?;
    let mut update = connection
        .prepare_cached(&format!(
            "update wishes set told = ?2, askedAt = ?3, withdrawn = ?4, changed = iif(withdrawn = ?4, changed, {NUMBER}) where number = ?1"
        ))
        .map_err(sql())?;
    for ActionUpdate { index, number, now } in changes {
        let Some(wished) = now else {
            end.execute([number]).map_err(sql())?;
            touch(connection, uid, *index)?;
            continue;
        };
        let asked = match &wished.action {
            RequestedAction::Release { asked, .. } => asked.map(|at| at.0),
            RequestedAction::Hold | RequestedAction::Remove { .. } => None,
        };
        let withdrawn = wished.action == RequestedAction::Remove { withdrawn: true };
        update.execute(params![number, wished.unreported.is_none(), asked, withdrawn]).map_err(sql())?;
    }
    Ok(())
}

/// Records the result of a request that carries out actions. A refusal by HTCondor is recorded only for the actions
/// that existed when the request began.
pub(super) fn answered(connection: &Connection, result: &RequestResult) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("write what came of wishes");
    let (uid, kind) = (&result.key.uid, result.key.kind);
    let wanted = match kind {
        RequestKind::Hold => JobAction::Hold,
        RequestKind::Release => JobAction::Release,
        RequestKind::Remove => JobAction::Remove,
        RequestKind::AttachFinalizer
        | RequestKind::Submit
        | RequestKind::Fetch
        | RequestKind::Tidy
        | RequestKind::ReleaseFinalizer
        | RequestKind::DeleteObject => return Ok(()),
    };
    let failure = result.failure.as_ref();
    if failure.is_some_and(|failure| failure.known_reason() == Some(Reason::OperatorStopping)) {
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

/// Returns all unfinished requested actions of an object.
pub(super) fn wishes(connection: &Connection, uid: &Uid) -> Result<RequestedActions, LedgerError> {
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
            JobAction::Hold => RequestedAction::Hold,
            JobAction::Release => RequestedAction::Release { since, asked },
            JobAction::Remove => RequestedAction::Remove { withdrawn },
        };
        Ok((index, StoredAction { number, action: wish, unreported: untold }))
    })
    .collect()
}

/// Returns the requested actions of an object's jobs, at most `limit`, starting at index `from`.
pub(super) fn shown(
    connection: &Connection,
    uid: &Uid,
    from: Index,
    limit: i64,
) -> Result<BTreeMap<Index, ProcAction>, LedgerError> {
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

fn changed(connection: &Connection, since: i64, until: i64) -> Result<Vec<(Uid, Index, ProcAction)>, LedgerError> {
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

/// Reads a row that begins with `wanted, withdrawn, changed`.
fn wanted(row: &Row<'_>) -> rusqlite::Result<(Option<String>, bool, i64)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn proc_wish(uid: &Uid, row: (Option<String>, bool, i64)) -> Result<ProcAction, LedgerError> {
    let (wanted, withdrawn, changed) = row;
    Ok(ProcAction { action: wanted.map(|wanted| parse(uid, &wanted)).transpose()?, withdrawn, changed })
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::RequestKey;
    use htc_machine::facts::{JobState, RequestFailure};
    use htc_machine::ids::Attempt;
    use htc_machine::outcome::Outcome;

    use super::super::tests::{job, known, save, uid};
    use super::super::{Intent, Save};
    use super::*;

    #[tokio::test]
    async fn requested_actions_are_accepted_stored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let wish = async |index, wanted, user: &str| {
            ledger.request_action(&uid(), Index(index), wanted, user.to_owned(), Timestamp(5)).await.unwrap()
        };
        assert_eq!(wish(0, JobAction::Hold, "alice").await, Err(ActionRefusal::NotRecorded));
        let ended = job(1, JobState::Ended(Outcome::Succeeded));
        let jobs = vec![(Index(0), job(0, JobState::Running)), (Index(1), ended)];
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        let since = ledger.sequence();
        assert_eq!(wish(0, JobAction::Hold, "alice").await, Ok(()));
        assert_eq!(wish(1, JobAction::Hold, "alice").await, Err(ActionRefusal::Ended));
        assert_eq!(wish(2, JobAction::Remove, "alice").await, Ok(()));
        assert_eq!(ledger.procs_changed(since, 9).await.unwrap().len(), 1);
        let unrecorded = ledger.actions_changed(since, ledger.sequence()).await.unwrap();
        assert_eq!(unrecorded.iter().map(|(_, index, _)| index.0).collect::<Vec<_>>(), [2]);
        let now = ledger.sequence();
        assert_eq!(wish(0, JobAction::Hold, "bob").await, Ok(()));
        assert_eq!(ledger.sequence(), now, "the same once more is nothing new");
        assert_eq!(wish(2, JobAction::Release, "bob").await, Err(ActionRefusal::Removed));

        let before = ledger.load(&uid()).await.unwrap().requested_actions;
        assert_eq!(
            before.iter().map(|(_, wished)| wished.unreported.as_deref()).collect::<Vec<_>>(),
            [Some("alice"); 2]
        );
        assert_eq!(wish(0, JobAction::Release, "bob").await, Ok(()));
        let mut after = before.clone();
        for (_, wished) in after.iter_mut() {
            wished.unreported = None;
            if wished.action.action() == JobAction::Remove {
                wished.action = RequestedAction::Remove { withdrawn: true };
            }
        }
        let save =
            Save { action_updates: after.changes(&before), ..save(known(Phase::Running), Vec::new(), Vec::new()) };
        ledger.save(save).await.unwrap();
        let after = ledger.load(&uid()).await.unwrap().requested_actions;
        assert_eq!(after.withdrawn().to_string(), "2");
        let replaced = after.iter().next().unwrap().1;
        assert_eq!(replaced.action, RequestedAction::Release { since: Timestamp(5), asked: None });
        assert_eq!(replaced.unreported.as_deref(), Some("alice holds, then bob"), "the replacement is reported");
        let shown = ledger.procs(uid(), Index(0), 9).await.unwrap();
        assert_eq!(shown.rows[0].requested, Some(JobAction::Release));
        assert!(shown.requested_actions[&Index(2)].withdrawn);
    }

    #[tokio::test]
    async fn replacement_of_an_unreported_action_names_both_users() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let jobs = vec![(Index(0), job(0, JobState::Running))];
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        let wish = async |wanted, user: &str| {
            ledger.request_action(&uid(), Index(0), wanted, user.to_owned(), Timestamp(5)).await.unwrap().unwrap();
            ledger.load(&uid()).await.unwrap().requested_actions.iter().next().unwrap().1.unreported.clone().unwrap()
        };
        assert_eq!(wish(JobAction::Hold, "ann").await, "ann");
        assert_eq!(wish(JobAction::Release, "bob").await, "ann holds, then bob");
        let long = "c".repeat(REPLACED);
        assert_eq!(wish(JobAction::Hold, &long).await, format!("ann holds, then bob releases, then {long}"));
        assert_eq!(wish(JobAction::Remove, "dora").await, "…, then dora");
    }

    #[tokio::test]
    async fn refusal_of_an_action_is_kept_until_the_action_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let jobs = (0..3).map(|index| (Index(index), job(index, JobState::Running))).collect();
        ledger.save(save(known(Phase::Running), jobs, Vec::new())).await.unwrap();
        for (index, wanted, at) in [(0, JobAction::Hold, 5), (1, JobAction::Remove, 5), (2, JobAction::Hold, 8)] {
            let taken =
                ledger.request_action(&uid(), Index(index), wanted, "ann".to_owned(), Timestamp(at)).await.unwrap();
            assert_eq!(taken, Ok(()));
        }
        let key = RequestKey { uid: uid(), kind: RequestKind::Hold, attempt: Attempt(1), step: 1 };
        let answer = async |failure: Option<RequestFailure>| {
            let before = ledger.sequence();
            ledger.intend(vec![Intent { key: key.clone(), at: Timestamp(7), submission: None }]).await.unwrap();
            let result = RequestResult::without_output(key.clone(), Timestamp(9), failure);
            ledger.resolve(vec![result]).await.unwrap();
            let rows = ledger.procs(uid(), Index(0), 9).await.unwrap().rows;
            let refusals: Vec<Option<String>> = rows.into_iter().map(|row| row.refusal).collect();
            (refusals, ledger.procs_changed(before, 9).await.unwrap().len())
        };
        let refused = || Some(RequestFailure::new(Reason::ScheddUnreachable, "denied".to_owned()));
        let denied = vec![Some("denied".to_owned()), None, None];
        assert_eq!(answer(refused()).await, (denied.clone(), 1), "one is of another kind, and one came later");
        assert_eq!(answer(refused()).await, (denied.clone(), 0), "nothing new");
        let stopped = Some(RequestFailure::new(Reason::OperatorStopping, "the operator ends".to_owned()));
        assert_eq!(answer(stopped).await, (denied, 0), "HTCondor was not asked");
        assert_eq!(answer(None).await, (vec![None; 3], 1));
    }
}
