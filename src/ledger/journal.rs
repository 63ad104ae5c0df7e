//! The journal of transitions, and which of them have become Events.

use rusqlite::{Connection, params};

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
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Adds `transitions` to the journal of `uid`.
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
                 values (?1, (select coalesce(max(seq), 0) + 1 from transitions where uid = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
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
    Ok(())
}

impl Ledger {
    /// The oldest rows that are not Events yet, at most `limit`.
    pub async fn untold(&self, limit: usize) -> Result<Vec<Journaled>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read the journal");
            let mut statement = connection
                .prepare_cached(
                    // The order of the index, so that no more rows are read than are told; `cross join` keeps that order.
                    "select t.uid, o.namespace, o.name, t.seq, t.time, t.reason, t.detail, t.warning
                     from transitions t cross join objects o using (uid) where t.eventAt is null order by t.time, t.uid, t.seq limit ?1",
                )
                .map_err(sql())?;
            let rows = statement
                .query_map([number(limit)], |row| {
                    Ok(Journaled {
                        uid: Uid::from(row.get::<_, String>(0)?.as_str()),
                        name: ObjectName { namespace: row.get(1)?, name: row.get(2)? },
                        seq: row.get(3)?,
                        time: Timestamp(row.get(4)?),
                        reason: row.get(5)?,
                        detail: row.get(6)?,
                        warning: row.get(7)?,
                    })
                })
                .map_err(sql())?;
            rows.collect::<Result<_, _>>().map_err(sql())
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
