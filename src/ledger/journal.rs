//! The journal of transitions, and which of them have become Events.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};
use crate::api::ObjectName;
use crate::failpoint::{Point, around};
use crate::machine::ids::{Timestamp, Uid};
use crate::machine::transitions::Transition;

/// One row of the journal that is to become an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journaled {
    /// The object.
    pub uid: Uid,
    /// Its name.
    pub name: ObjectName,
    /// Number of the row within its object, from 1.
    pub seq: i64,
    /// When it happened.
    pub time: Timestamp,
    /// Reason of the Event.
    pub reason: String,
    /// Message of the Event.
    pub detail: String,
    /// Event type `Warning`.
    pub warning: bool,
    /// Another ledger, or this file before a copy of it was put in its place, may have told rows of this number.
    pub told_before: bool,
}

/// One row of the journal, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryRow {
    /// Number of the row within its object, from 1.
    pub seq: i64,
    /// When it happened.
    pub time: Timestamp,
    /// The phase before it.
    pub from: Option<String>,
    /// The phase after it.
    pub to: Option<String>,
    /// Reason of its Event.
    pub reason: String,
    /// Message of its Event.
    pub detail: String,
    /// Event type `Warning`.
    pub warning: bool,
    /// Jobs that had not ended.
    pub active: i64,
    /// Jobs that had succeeded.
    pub succeeded: i64,
    /// Jobs that had failed.
    pub failed: i64,
}

/// Whose rows are left alone, or are meant alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Except {
    /// All rows of these objects.
    pub objects: Vec<Uid>,
    /// All rows of all objects in these namespaces.
    pub namespaces: Vec<String>,
}

impl Except {
    /// As JSON, for `json_each`.
    fn json(&self) -> (String, String) {
        let objects: Vec<&str> = self.objects.iter().map(Uid::as_str).collect();
        (serde_json::json!(objects).to_string(), serde_json::json!(self.namespaces).to_string())
    }
}

/// So many of the oldest rows take turns. A read must not cost more the more rows wait: it has the ledger's one thread to itself.
pub(super) const OLDEST: usize = 2000;

/// So many of the last rows of an object are kept. Older ones are removed once they are told.
pub(super) const KEPT: i64 = 200;

/// The columns of a [`Journaled`].
const COLUMNS: &str = "t.uid, o.namespace, o.name, t.seq, t.time, t.reason, t.detail, t.warning,
    not (o.isNew and o.epoch = (select value from ledger where key = 'epoch'))";

/// Reads rows in turn: at most ?1 of the oldest ?4, without objects ?2 and namespaces ?3. An object's oldest rows are its first:
/// times of one object never go back.
pub(super) fn untold_in_turn() -> String {
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

fn journaled(row: &rusqlite::Row<'_>) -> rusqlite::Result<Journaled> {
    Ok(Journaled {
        uid: Uid::from(row.get::<_, String>(0)?.as_str()),
        name: ObjectName { namespace: row.get(1)?, name: row.get(2)? },
        seq: row.get(3)?,
        time: Timestamp(row.get(4)?),
        reason: row.get(5)?,
        detail: row.get(6)?,
        warning: row.get(7)?,
        told_before: row.get(8)?,
    })
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Adds `transitions` to the journal of `uid`, and removes what is too old. The numbers go on: only from the last [`KEPT`] on, and of
/// rows that are not told, are none missing. Their time is that of the row before them if `now` is earlier: the clock may have been
/// set back between two starts.
pub(super) fn append(
    connection: &Connection,
    uid: &Uid,
    transitions: &[Transition],
    now: Timestamp,
) -> Result<(), LedgerError> {
    for transition in transitions {
        let phase = |phase: Option<crate::api::Phase>| phase.map(<&str>::from);
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
    /// Rows that are not Events yet, at most `limit` of the oldest 2000: namespaces in turn, in each its objects in turn, of each the
    /// oldest first.
    pub async fn untold(&self, limit: usize, except: Except) -> Result<Vec<Journaled>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the journal");
            let (objects, namespaces) = except.json();
            let mut statement = connection.prepare_cached(&untold_in_turn()).map_err(sql())?;
            let oldest = number(OLDEST.max(limit));
            let rows =
                statement.query_map(params![number(limit), objects, namespaces, oldest], journaled).map_err(sql())?;
            rows.collect::<Result<_, _>>().map_err(sql())
        })
        .await
    }

    /// The last rows of this object, at most [`KEPT`], the oldest first: whether or not they are Events.
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

    /// The oldest row of this object that is not an Event yet.
    pub async fn untold_of(&self, uid: Uid) -> Result<Option<Journaled>, LedgerError> {
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

    /// The oldest row in this namespace that is not an Event yet, of an object that is none of these.
    pub async fn untold_in(&self, namespace: String, except: Vec<Uid>) -> Result<Option<Journaled>, LedgerError> {
        let (objects, _) = Except { objects: except, namespaces: Vec::new() }.json();
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

    /// Marks rows of these objects and namespaces that are from before `until` as told; how many there were.
    pub async fn give_up_telling(&self, whose: Except, until: Timestamp, at: Timestamp) -> Result<usize, LedgerError> {
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

    /// Marks rows of the journal as told.
    pub async fn told(&self, rows: Vec<(Uid, i64)>, at: Timestamp) -> Result<(), LedgerError> {
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
    use super::super::tests::{known, said, save, uid};
    use super::*;
    use crate::api::Phase;
    use crate::machine::facts::Known;

    #[tokio::test]
    async fn rows_of_an_object_that_another_ledger_has_claimed_may_have_been_told() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        let claimed = Known { new: false, ..known(Phase::Pending) };
        ledger.save(save(claimed, Vec::new(), vec![said("A")])).await.unwrap();
        assert!(ledger.untold_of(uid()).await.unwrap().unwrap().told_before);
    }

    #[tokio::test]
    async fn the_story_is_the_last_rows_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        assert_eq!(ledger.story(uid()).await.unwrap(), []);
        let rows = (1..=KEPT + 5).map(|number| said(&number.to_string())).collect();
        ledger.save(save(known(Phase::Running), Vec::new(), rows)).await.unwrap();
        let story = ledger.story(uid()).await.unwrap();
        let numbers: Vec<i64> = story.iter().map(|row| row.seq).collect();
        assert_eq!(numbers, (6..=KEPT + 5).collect::<Vec<_>>(), "those that are no Events yet are there, too");
        let untold = ledger.untold_of(uid()).await.unwrap().unwrap();
        ledger.told(vec![(uid(), KEPT + 5)], Timestamp(9)).await.unwrap();
        assert_eq!(ledger.story(uid()).await.unwrap(), story);
        assert_eq!((untold.seq, story[0].time, story[0].reason.as_str()), (1, untold.time, "6"));
    }
}
