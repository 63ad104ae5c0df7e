//! Journal of transitions, with a mark on those that are written as Events.

use htc_api::ObjectName;
use htc_machine::ids::{Timestamp, Uid};
use htc_machine::transitions::Transition;
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};

/// Row of the journal that has not been written as an Event yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    pub uid: Uid,
    pub name: ObjectName,
    /// Number of the row within its object, starting at 1.
    pub seq: i64,
    /// Time of the transition.
    pub time: Timestamp,
    /// Reason of the Event.
    pub reason: String,
    /// Message of the Event.
    pub detail: String,
    /// Whether the Event has type `Warning`.
    pub warning: bool,
    /// Whether an Event of this number may already exist: written from another ledger, or from this file before a copy
    /// replaced it.
    pub maybe_written: bool,
}

/// Row of the journal, for display to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryRow {
    /// Number of the row within its object, starting at 1.
    pub seq: i64,
    /// Time of the transition.
    pub time: Timestamp,
    /// Phase before the transition.
    pub from: Option<String>,
    /// Phase after the transition.
    pub to: Option<String>,
    /// Reason of its Event.
    pub reason: String,
    /// Message of its Event.
    pub detail: String,
    /// Whether the Event has type `Warning`.
    pub warning: bool,
    /// Number of jobs that had not ended.
    pub active: i64,
    /// Number of jobs that had succeeded.
    pub succeeded: i64,
    /// Number of jobs that had failed.
    pub failed: i64,
}

/// Set of journal rows by object or by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// All rows of these objects.
    pub objects: Vec<Uid>,
    /// All rows of all objects in these namespaces.
    pub namespaces: Vec<String>,
}

impl EventFilter {
    /// Returns objects and namespaces as JSON arrays, for SQL's `json_each`.
    fn json(&self) -> (String, String) {
        let objects: Vec<&str> = self.objects.iter().map(Uid::as_str).collect();
        (serde_json::json!(objects).to_string(), serde_json::json!(self.namespaces).to_string())
    }
}

/// Number of the oldest rows among which namespaces and objects take turns. The limit keeps the cost of a read
/// independent of the backlog, because a read occupies the ledger's only thread.
pub(super) const OLDEST: usize = 2000;

/// Number of an object's last rows that are always kept. Older rows are removed once they are written as Events.
pub(super) const KEPT: i64 = 200;

/// Columns of a [`JournalRow`].
const COLUMNS: &str = "t.uid, o.namespace, o.name, t.seq, t.time, t.reason, t.detail, t.warning,
    not (o.isNew and o.epoch = (select value from ledger where key = 'epoch'))";

/// Returns the query for rows that are not Events yet: at most ?1 of the oldest ?4, without objects ?2 and namespaces
/// ?3. The oldest rows of an object are its first ones, because the times of one object never decrease.
pub(super) fn unwritten_in_turn() -> String {
    format!(
        "with oldest as (
             select t.uid, t.seq, t.time, o.namespace
             from transitions t indexed by transitions_to_tell cross join objects o using (uid)
             where t.eventAt is null and t.uid not in (select value from json_each(?2))
                 and o.namespace not in (select value from json_each(?3))
             order by t.time, t.uid, t.seq limit ?4
         ), waiting as (
             select uid, seq, time, namespace, row_number() over (partition by uid order by seq) as nth from oldest
         ), turns as (
             select uid, seq, row_number() over (partition by namespace order by nth, time, uid) as turn from waiting
         )
         select {COLUMNS} from turns cross join transitions t using (uid, seq) cross join objects o using (uid)
         order by turns.turn, t.time, t.uid, t.seq limit ?1"
    )
}

fn journaled(row: &rusqlite::Row<'_>) -> rusqlite::Result<JournalRow> {
    Ok(JournalRow {
        uid: Uid::from(row.get::<_, String>(0)?.as_str()),
        name: ObjectName { namespace: row.get(1)?, name: row.get(2)? },
        seq: row.get(3)?,
        time: Timestamp(row.get(4)?),
        reason: row.get(5)?,
        detail: row.get(6)?,
        warning: row.get(7)?,
        maybe_written: row.get(8)?,
    })
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Appends `transitions` to the journal of `uid` and removes rows that are too old. Numbers keep increasing. None is
/// missing among the last [`KEPT`] rows, nor among rows that are not Events yet. If `now` is earlier than the time of
/// the row before, that time is used: the system clock may have been set back between two starts of the operator.
pub(super) fn append(
    connection: &Connection,
    uid: &Uid,
    transitions: &[Transition],
    now: Timestamp,
) -> Result<(), LedgerError> {
    for transition in transitions {
        let phase = |phase: Option<htc_api::Phase>| phase.map(<&str>::from);
        connection
            .prepare_cached(
                "insert into transitions(uid, seq, time, \"from\", \"to\", trigger, active, succeeded, failed, detail, reason, warning)
                 values (?1, (select coalesce(max(seq), 0) + 1 from transitions where uid = ?1),
                     max(?2, coalesce((select time from transitions where uid = ?1 order by seq desc limit 1), ?2)), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    uid.as_str(),
                    now.0,
                    phase(transition.from),
                    phase(transition.to),
                    <&str>::from(transition.trigger),
                    number(transition.active),
                    number(transition.succeeded),
                    number(transition.failed),
                    transition.detail,
                    transition.reason,
                    transition.warning,
                ])
            })
            .map_err(LedgerError::sql("write the journal"))?;
    }
    if transitions.is_empty() { Ok(()) } else { prune(connection, uid) }
}

fn prune(connection: &Connection, uid: &Uid) -> Result<(), LedgerError> {
    connection
        .prepare_cached(
            "delete from transitions where uid = ?1 and eventAt is not null
                 and seq <= (select max(seq) from transitions where uid = ?1) - ?2",
        )
        .and_then(|mut statement| statement.execute(params![uid.as_str(), KEPT]))
        .map(drop)
        .map_err(LedgerError::sql("shorten the journal"))
}

impl Ledger {
    /// Returns rows that are not Events yet, at most `limit` of the oldest 2000. Namespaces take turns, and so do the
    /// objects of each namespace. The rows of an object come oldest first.
    pub async fn unwritten_events(&self, limit: usize, except: EventFilter) -> Result<Vec<JournalRow>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the journal");
            let (objects, namespaces) = except.json();
            let mut statement = connection.prepare_cached(&unwritten_in_turn()).map_err(sql())?;
            let oldest = number(OLDEST.max(limit));
            let rows =
                statement.query_map(params![number(limit), objects, namespaces, oldest], journaled).map_err(sql())?;
            rows.collect::<Result<_, _>>().map_err(sql())
        })
        .await
    }

    /// Returns the last rows of this object, at most [`KEPT`], oldest first, whether or not they are Events.
    pub async fn story(&self, uid: Uid) -> Result<Vec<StoryRow>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the journal");
            let mut statement = connection
                .prepare_cached(
                    "select seq, time, \"from\", \"to\", reason, detail, warning, active, succeeded, failed from transitions
                     where uid = ?1 order by seq desc limit ?2",
                )
                .map_err(sql())?;
            let rows = statement.query_map(params![uid.as_str(), KEPT], |row| {
                Ok(StoryRow {
                    seq: row.get(0)?,
                    time: Timestamp(row.get(1)?),
                    from: row.get(2)?,
                    to: row.get(3)?,
                    reason: row.get(4)?,
                    detail: row.get(5)?,
                    warning: row.get(6)?,
                    active: row.get(7)?,
                    succeeded: row.get(8)?,
                    failed: row.get(9)?,
                })
            });
            let mut rows: Vec<StoryRow> = rows.and_then(Iterator::collect).map_err(sql())?;
            rows.reverse();
            Ok(rows)
        })
        .await
    }

    /// Returns the oldest row of this object that is not an Event yet.
    pub async fn unwritten_of(&self, uid: Uid) -> Result<Option<JournalRow>, LedgerError> {
        self.run(move |connection| {
            connection
                .prepare_cached(&format!(
                    "select {COLUMNS} from transitions t join objects o using (uid)
                     where t.uid = ?1 and t.eventAt is null order by t.seq limit 1"
                ))
                .and_then(|mut statement| statement.query_row([uid.as_str()], journaled).optional())
                .map_err(LedgerError::sql("read the journal"))
        })
        .await
    }

    /// Returns the oldest row in this namespace that is not an Event yet, without the objects in `except`.
    pub async fn unwritten_in(&self, namespace: String, except: Vec<Uid>) -> Result<Option<JournalRow>, LedgerError> {
        let (objects, _) = EventFilter { objects: except, namespaces: Vec::new() }.json();
        self.run(move |connection| {
            connection
                .prepare_cached(&format!(
                    "select {COLUMNS} from transitions t cross join objects o using (uid)
                     where t.eventAt is null and o.namespace = ?1 and t.uid not in (select value from json_each(?2))
                     order by t.time, t.uid, t.seq limit 1"
                ))
                .and_then(|mut statement| statement.query_row(params![namespace, objects], journaled).optional())
                .map_err(LedgerError::sql("read the journal"))
        })
        .await
    }

    /// Marks the rows of `whose` from before `until` as written without writing Events. Returns how many there were.
    pub async fn drop_events(&self, whose: EventFilter, until: Timestamp, at: Timestamp) -> Result<usize, LedgerError> {
        let (objects, namespaces) = whose.json();
        self.run(move |connection| {
            connection
                .execute(
                    "update transitions set eventAt = ?4 where eventAt is null and time < ?3 and (uid in (select value from json_each(?1))
                         or uid in (select uid from objects where namespace in (select value from json_each(?2))))",
                    params![objects, namespaces, until.0, at.0],
                )
                .map_err(LedgerError::sql("mark the journal"))
        })
        .await
    }

    /// Marks journal rows as written as Events.
    pub async fn mark_written(&self, rows: Vec<(Uid, i64)>, at: Timestamp) -> Result<(), LedgerError> {
        let marked = self.run(move |connection| {
            let sql = || LedgerError::sql("mark the journal");
            let mut statement = connection
                .prepare_cached("update transitions set eventAt = ?3 where uid = ?1 and seq = ?2")
                .map_err(sql())?;
            rows.iter()
                .try_for_each(|(uid, seq)| statement.execute(params![uid.as_str(), seq, at.0]).map(drop).map_err(sql()))
        });
        around(Point::BeforeEventsMarked, marked, Point::AfterEventsMarked).await
    }
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;
    use htc_machine::facts::ObjectRow;

    use super::super::tests::{known, said, save, uid};
    use super::*;

    #[tokio::test]
    async fn events_of_an_object_from_another_ledger_are_maybe_written() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let claimed = ObjectRow { new: false, ..known(Phase::Pending) };
        ledger.save(save(claimed, Vec::new(), vec![said("A")])).await.unwrap();
        assert!(ledger.unwritten_of(uid()).await.unwrap().unwrap().maybe_written);
    }

    #[tokio::test]
    async fn story_is_the_last_rows_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        assert_eq!(ledger.story(uid()).await.unwrap(), []);
        let rows = (1..=KEPT + 5).map(|number| said(&number.to_string())).collect();
        ledger.save(save(known(Phase::Running), Vec::new(), rows)).await.unwrap();
        let story = ledger.story(uid()).await.unwrap();
        let numbers: Vec<i64> = story.iter().map(|row| row.seq).collect();
        assert_eq!(numbers, (6..=KEPT + 5).collect::<Vec<_>>(), "those that are no Events yet are there, too");
        let untold = ledger.unwritten_of(uid()).await.unwrap().unwrap();
        ledger.mark_written(vec![(uid(), KEPT + 5)], Timestamp(9)).await.unwrap();
        assert_eq!(ledger.story(uid()).await.unwrap(), story);
        assert_eq!((untold.seq, story[0].time, story[0].reason.as_str()), (1, untold.time, "6"));
    }
}
