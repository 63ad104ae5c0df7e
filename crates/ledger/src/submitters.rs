//! Submitters (processes that submit jobs) whose end was not seen.

use std::str::FromStr as _;

use htc_api::ObjectName;
use htc_machine::ids::Timestamp;
use htc_machine::judge::{SubmitterGone, SubmitterLock};
use htc_support::failpoint::{Point, around};
use rusqlite::params;

use super::{Ledger, LedgerError};

/// Submitter whose end was not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenSubmitter {
    /// Lock that the submitter holds while it lives.
    pub lock: SubmitterLock,
    /// Time limit of the submitter.
    pub submitter_deadline: Timestamp,
}

impl Ledger {
    /// Returns the submitters whose end was not seen and whose time limit is after `since`.
    pub async fn unseen_submitters(&self, since: Timestamp) -> Result<Vec<UnseenSubmitter>, LedgerError> {
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
            // An unreadable lock counts as none: the time limit then has to pass.
            let read = |(lock, submitter_deadline): (String, _)| {
                SubmitterLock::from_str(&lock).ok().map(|lock| UnseenSubmitter { lock, submitter_deadline })
            };
            Ok(rows.into_iter().filter_map(read).collect())
        })
        .await
    }

    /// Records since when a submitter is known to have ended. Returns the objects whose jobs it was to submit.
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
