//! Items read from a ConfigMap. Jobs get the same items even if the ConfigMap changes or is deleted later.

use std::collections::BTreeMap;

use htc_machine::ids::{Index, Uid};
use htc_machine::indices::Indices;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::writer::NUMBER;
use super::{Ledger, LedgerError};

impl Ledger {
    /// Stores the items of an object, unless some are stored already. Returns how many are stored.
    pub async fn keep_items(&self, uid: &Uid, items: Vec<String>) -> Result<u32, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            if let Some(kept) = count(connection, &uid)? {
                return Ok(kept);
            }
            let sql = || LedgerError::sql("keep the items of an object");
            let mut statement = connection
                .prepare_cached(&format!(
                    "insert into items(uid, idx, item, changed) values (?1, ?2, ?3, iif(?2 = 0, {NUMBER}, null))"
                ))
                .map_err(sql())?;
            for (index, item) in (0_u32..).zip(&items) {
                statement.execute(params![uid.as_str(), index, item]).map_err(sql())?;
            }
            Ok(u32::try_from(items.len()).unwrap_or(u32::MAX))
        })
        .await
    }

    /// Returns the number of items stored for an object; `None` if there are none.
    pub async fn count_items(&self, uid: &Uid) -> Result<Option<u32>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| count(connection, &uid)).await
    }

    /// Returns the number of stored items for each of these objects that has any.
    pub async fn items_counted(&self, uids: Vec<Uid>) -> Result<BTreeMap<Uid, u32>, LedgerError> {
        self.run(move |connection| {
            let counted = uids.into_iter().map(|uid| Ok(count(connection, &uid)?.map(|items| (uid, items))));
            counted.filter_map(Result::transpose).collect()
        })
        .await
    }

    /// Returns the items of these jobs. Fails if one is missing.
    pub async fn items(&self, uid: &Uid, indices: &Indices) -> Result<BTreeMap<Index, String>, LedgerError> {
        let (uid, indices) = (uid.clone(), indices.clone());
        self.run(move |connection| {
            let missing = |index| LedgerError::row(&uid, &format!("the item of job {index} is missing"));
            let found = some(connection, &uid, indices.iter())?;
            indices.iter().zip(found).map(|(index, item)| Ok((index, item.ok_or_else(|| missing(index))?))).collect()
        })
        .await
    }

    /// Returns the items of these jobs, in order; `None` for a job without a stored item.
    pub async fn items_kept(&self, uid: &Uid, wanted: Vec<Index>) -> Result<Vec<Option<String>>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| some(connection, &uid, wanted.into_iter())).await
    }
}

/// Returns the items of the wanted jobs, in order; `None` for a job without one.
fn some(
    connection: &Connection,
    uid: &Uid,
    wanted: impl Iterator<Item = Index>,
) -> Result<Vec<Option<String>>, LedgerError> {
    let sql = || LedgerError::sql("read the items of jobs");
    let mut statement =
        connection.prepare_cached("select item from items where uid = ?1 and idx = ?2").map_err(sql())?;
    wanted
        .map(|index| statement.query_row(params![uid.as_str(), index.0], |row| row.get(0)).optional().map_err(sql()))
        .collect()
}

/// Counts the items by the highest index: they are always written together.
fn count(connection: &Connection, uid: &Uid) -> Result<Option<u32>, LedgerError> {
    connection
        .prepare_cached("select max(idx) + 1 from items where uid = ?1")
        .and_then(|mut statement| statement.query_row([uid.as_str()], |row| row.get(0)))
        .map_err(LedgerError::sql("count the items of an object"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::uid;
    use super::*;

    #[tokio::test]
    async fn items_are_kept_as_first_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open_alone(&path).unwrap();
        let items = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        assert_eq!(ledger.count_items(&uid()).await.unwrap(), None);
        assert_eq!(ledger.keep_items(&uid(), items(&["a", "", "µ"])).await.unwrap(), 3);
        assert_eq!(ledger.keep_items(&uid(), items(&["b"])).await.unwrap(), 3, "the first stay");
        ledger.close().await;
        let ledger = Ledger::open_alone(&path).unwrap();
        assert_eq!(ledger.count_items(&uid()).await.unwrap(), Some(3));
        assert_eq!(ledger.count_items(&"other".into()).await.unwrap(), None);
        let read = ledger.items(&uid(), &"0,2".parse().unwrap()).await.unwrap();
        assert_eq!(read, BTreeMap::from([(Index(0), "a".to_owned()), (Index(2), "µ".to_owned())]));
        let kept = ledger.items_kept(&uid(), vec![Index(2), Index(7), Index(0)]).await.unwrap();
        assert_eq!(kept, [Some("µ".to_owned()), None, Some("a".to_owned())]);
        let missing = ledger.items(&uid(), &"2-3".parse().unwrap()).await.unwrap_err();
        assert!(missing.to_string().contains("the item of job 3 is missing"), "{missing}");
    }
}
