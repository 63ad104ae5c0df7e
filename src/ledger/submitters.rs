//! Submitters whose end nobody saw.

use std::str::FromStr as _;

use rusqlite::params;

use super::{Ledger, LedgerError};
use crate::api::ObjectName;
use crate::failpoint::{Point, around};
use crate::machine::ids::Timestamp;
use crate::machine::judge::{SubmitterGone, SubmitterLock};

/// A submitter whose end nobody saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// What it holds for as long as it lives.
    pub lock: SubmitterLock,
    /// Its time limit.
    pub not_after: Timestamp,
}

impl Ledger {
    /// The submitters whose end nobody saw and whose time limit lies after `since`.
    pub async fn unseen_submitters(&self, since: Timestamp) -> Result<Vec<Unseen>, LedgerError> {
        self.run(move |connection| {
            let sql = || LedgerError::sql("read which submitters were not seen to end");
            let mut statement = connection
                .prepare_cached(
                    "select lock, max(notAfter) from submissions
                     where state = 'open' and deadSince is null and lock is not null and notAfter > ?1 group by lock",
                )
                .map_err(sql())?;
            let rows = statement
                .query_map([since.0], |row| Ok((row.get::<_, String>(0)?, Timestamp(row.get(1)?))))
                .map_err(sql())?
                .collect::<Result<Vec<_>, _>>()
                .map_err(sql())?;
            // One that cannot be read is as good as none: its time limit is waited for.
            let read = |(lock, not_after): (String, _)| {
                SubmitterLock::from_str(&lock).ok().map(|lock| Unseen { lock, not_after })
            };
            Ok(rows.into_iter().filter_map(read).collect())
        })
        .await
    }

    /// Notes since when a submitter is known to have ended; gives the objects whose jobs it was to submit.
    pub async fn submitter_gone(&self, gone: SubmitterGone) -> Result<Vec<ObjectName>, LedgerError> {
        let written = self.run(move |connection| {
            let sql = || LedgerError::sql("note that a submitter has ended");
            let (lock, at) = (gone.lock().to_string(), gone.seen_at().0);
            let its = "lock = ?1 and state = 'open' and deadSince is null";
            let names = connection
                .prepare_cached(&format!(
                    "select distinct o.namespace, o.name from submissions s join objects o on o.uid = s.uid where {its}"
                ))
                .and_then(|mut statement| {
                    statement
                        .query_map([&lock], |row| Ok(ObjectName { namespace: row.get(0)?, name: row.get(1)? }))?
                        .collect::<Result<Vec<_>, _>>()
                })
                .map_err(sql())?;
            connection
                .prepare_cached(&format!("update submissions set deadSince = ?2 where {its}"))
                .and_then(|mut statement| statement.execute(params![lock, at]))
                .map_err(sql())?;
            Ok(names)
        });
        around(Point::BeforeSubmitterGone, written, Point::AfterSubmitterGone).await
    }
}
