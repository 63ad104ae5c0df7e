//! Quota granted in queues. A grant is durable before any job that uses it is submitted.

use htc_machine::ids::Uid;
use htc_machine::indices::Indices;
use htc_support::failpoint::{Point, around};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Grant, Ledger, LedgerError};
use crate::enum_text::parse;

impl Ledger {
    /// Grants quota in addition to what the objects already have. Returns the grants that were stored. Objects that
    /// were released meanwhile get none.
    pub async fn grant(&self, grants: Vec<Grant>) -> Result<Vec<Grant>, LedgerError> {
        let granted = self.run(move |connection| {
            let mut granted = Vec::with_capacity(grants.len());
            for grant in grants {
                if grant_one(connection, &grant)? {
                    granted.push(grant);
                }
            }
            Ok(granted)
        });
        around(Point::BeforeGrants, granted, Point::AfterGrants).await
    }

    /// Returns the grants of all objects that were not released, including those that have given back all quota.
    pub async fn grants(&self) -> Result<Vec<Grant>, LedgerError> {
        self.run(|connection| {
            let sql = || LedgerError::sql("read all grants");
            let mut statement = connection.prepare("select uid from grants").map_err(sql())?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(sql())?;
            let mut grants = Vec::new();
            for row in rows {
                grants.extend(of(connection, &Uid::from(row.map_err(sql())?.as_str()))?);
            }
            Ok(grants)
        })
        .await
    }
}

fn grant_one(connection: &Connection, grant: &Grant) -> Result<bool, LedgerError> {
    let sql = || LedgerError::sql("grant quota in a queue");
    let there: bool = connection
        .prepare_cached("select exists (select 1 from objects where uid = ?1 and released = 0)")
        .and_then(|mut statement| statement.query_row([grant.uid.as_str()], |row| row.get(0)))
        .map_err(sql())?;
    if !there {
        return Ok(false);
    }
    let before = of(connection, &grant.uid)?.map(|before| before.indices).unwrap_or_default();
    let indices = Indices::union(&[before, grant.indices.clone()]);
    connection
        .prepare_cached(
            "insert into grants(uid, queue, indices, number, each) values (?1, ?2, ?3, ?4, ?5)
             on conflict(uid) do update set
                 queue = excluded.queue, indices = excluded.indices, number = excluded.number, each = excluded.each",
        )
        .and_then(|mut statement| {
            let number = i64::try_from(grant.number).unwrap_or(i64::MAX);
            statement.execute(params![grant.uid.as_str(), grant.queue, indices.to_string(), number, grant.per_job])
        })
        .map_err(sql())?;
    Ok(true)
}

/// Returns the quota of one object.
pub(super) fn of(connection: &Connection, uid: &Uid) -> Result<Option<Grant>, LedgerError> {
    let row = connection
        .prepare_cached("select queue, indices, number, each from grants where uid = ?1")
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| {
                let each: Option<String> = row.get(3)?;
                Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?, each.unwrap_or_default()))
            };
            statement.query_row([uid.as_str()], read).optional()
        })
        .map_err(LedgerError::sql("read the quota of an object"))?;
    let Some((queue, indices, number, each)) = row else { return Ok(None) };
    let (indices, number) = (parse(uid, &indices)?, u64::try_from(number).unwrap_or_default());
    Ok(Some(Grant { uid: uid.clone(), queue, indices, number, per_job: each }))
}

/// Gives back the quota of `indices`. If the object is `released`, its grant is deleted with its queue.
pub(super) fn give_back(
    connection: &Connection,
    uid: &Uid,
    indices: &Indices,
    released: bool,
) -> Result<(), LedgerError> {
    let sql = || LedgerError::sql("release quota in a queue");
    if released {
        let delete = connection.prepare_cached("delete from grants where uid = ?1");
        return delete.and_then(|mut statement| statement.execute([uid.as_str()])).map(drop).map_err(sql());
    }
    if indices.is_empty() {
        return Ok(());
    }
    let Some(grant) = of(connection, uid)? else { return Ok(()) };
    let left = grant.indices.without(indices).to_string();
    connection
        .prepare_cached("update grants set indices = ?2 where uid = ?1")
        .and_then(|mut statement| statement.execute([uid.as_str(), &left]))
        .map(drop)
        .map_err(sql())
}

#[cfg(test)]
mod tests {
    use htc_api::Phase;

    use super::super::Save;
    use super::super::tests::{known, save, uid};
    use super::*;

    fn grant(indices: &str, number: u64) -> Grant {
        let each = format!("cpus={number}");
        Grant { uid: uid(), queue: "q".to_owned(), indices: indices.parse().unwrap(), number, per_job: each }
    }

    #[tokio::test]
    async fn grant_is_kept_until_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        assert!(ledger.grant(vec![grant("0", 1)]).await.unwrap().is_empty(), "the object is unknown");
        ledger.save(save(known(Phase::Pending), Vec::new(), Vec::new())).await.unwrap();
        assert_eq!(ledger.grant(vec![grant("0-3", 1)]).await.unwrap(), [grant("0-3", 1)]);
        ledger.grant(vec![grant("7", 2)]).await.unwrap();
        ledger.close().await;

        let ledger = Ledger::open_alone(&path).unwrap();
        let record = ledger.load(&uid()).await.unwrap();
        assert_eq!((record.granted.to_string(), record.granting_queue.as_deref()), ("0-3,7".to_owned(), Some("q")));
        let gives_back = "1-2,5".parse().unwrap();
        ledger
            .save(Save { returned_quota: gives_back, ..save(known(Phase::Pending), Vec::new(), Vec::new()) })
            .await
            .unwrap();
        assert_eq!(ledger.grants().await.unwrap(), [grant("0,3,7", 2)]);

        let mut released = known(Phase::Terminating);
        released.released = true;
        ledger.save(save(released, Vec::new(), Vec::new())).await.unwrap();
        assert!(ledger.grants().await.unwrap().is_empty());
        assert!(ledger.grant(vec![grant("0", 3)]).await.unwrap().is_empty(), "it was let go");
    }
}
