//! What `spec.files` and `spec.env` take from elsewhere. All attempts of all jobs get the same bytes, even if the
//! ConfigMaps change or are deleted later. Of Secrets only a keyed checksum is stored.

use htc_api::{FrozenFile, FrozenInputs, InputStatus, KeyRef, PullLogin, SealedKey};
use htc_machine::ids::Uid;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};

impl Ledger {
    /// Stores the inputs of an object, unless some are stored already. Returns path, size and checksum of the files that
    /// are stored.
    pub async fn keep_inputs(&self, uid: &Uid, inputs: FrozenInputs) -> Result<Vec<InputStatus>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            if let Some(kept) = kept(connection, &uid)? {
                return Ok(kept);
            }
            insert(connection, &uid, &inputs).map_err(LedgerError::sql("keep the inputs of an object"))?;
            Ok(inputs.files.iter().map(FrozenFile::status).collect())
        })
        .await
    }

    /// Returns path, size and checksum of the files stored for an object, in the order of `spec.files`; none if no inputs
    /// are stored.
    pub async fn kept_inputs(&self, uid: &Uid) -> Result<Option<Vec<InputStatus>>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| kept(connection, &uid)).await
    }

    /// Returns the files stored for an object, in the order of `spec.files`.
    pub async fn files(&self, uid: &Uid) -> Result<Vec<FrozenFile>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| files(connection, &uid)).await
    }

    /// Returns the files stored for an object, if it is in that namespace.
    pub async fn files_in(&self, namespace: &str, uid: &Uid) -> Result<Vec<FrozenFile>, LedgerError> {
        let (namespace, uid) = (namespace.to_owned(), uid.clone());
        self.run(move |connection| {
            let is_there = connection
                .prepare_cached("select 1 from objects where uid = ?1 and namespace = ?2")
                .and_then(|mut statement| statement.exists([uid.as_str(), &namespace]))
                .map_err(LedgerError::sql("read the namespace of an object"))?;
            if is_there { files(connection, &uid) } else { Ok(Vec::new()) }
        })
        .await
    }

    /// Returns names and values of the variables stored for an object.
    pub async fn variables(&self, uid: &Uid) -> Result<Vec<(String, String)>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            connection
                .prepare_cached("select name, value from variables where uid = ?1 order by idx")
                .and_then(|mut statement| {
                    statement.query_map([uid.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
                })
                .map_err(LedgerError::sql("read the variables of an object"))
        })
        .await
    }

    /// Returns the namespace of an object that is not released, and where its jobs have the login of their image's
    /// registry from.
    pub async fn pull_login(&self, uid: &Uid) -> Result<Option<(String, PullLogin)>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            let row = |row: &rusqlite::Row<'_>| {
                let secrets: String = row.get(2)?;
                let secrets = secrets.split(',').map(str::to_owned).collect();
                Ok((row.get(0)?, PullLogin { repository: row.get(1)?, secrets }))
            };
            connection
                .prepare_cached(
                    "select namespace, repository, pulls.secrets from pulls join objects using (uid)
                     where uid = ?1 and released = 0",
                )
                .and_then(|mut statement| statement.query_row([uid.as_str()], row).optional())
                .map_err(LedgerError::sql("read the pull Secrets of an object"))
        })
        .await
    }

    /// Returns the namespace of an object that is not released, and the seal of a key of a Secret that it uses.
    pub async fn seal(&self, uid: &Uid, key: &KeyRef) -> Result<Option<(String, String)>, LedgerError> {
        let (uid, KeyRef { name, key }) = (uid.clone(), key.clone());
        self.run(move |connection| {
            connection
                .prepare_cached(
                    "select namespace, seal from secrets join objects using (uid)
                     where uid = ?1 and secrets.name = ?2 and key = ?3 and released = 0",
                )
                .and_then(|mut statement| {
                    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                    statement.query_row(params![uid.as_str(), name, key], row).optional()
                })
                .map_err(LedgerError::sql("read the seal of a Secret"))
        })
        .await
    }
}

fn files(connection: &Connection, uid: &Uid) -> Result<Vec<FrozenFile>, LedgerError> {
    connection
        .prepare_cached("select path, mode, sha256, content from files where uid = ?1 order by idx")
        .and_then(|mut statement| {
            let row = |row: &rusqlite::Row<'_>| {
                Ok(FrozenFile { path: row.get(0)?, mode: row.get(1)?, sha256: row.get(2)?, content: row.get(3)? })
            };
            statement.query_map([uid.as_str()], row)?.collect()
        })
        .map_err(LedgerError::sql("read the files of an object"))
}

fn insert(connection: &Connection, uid: &Uid, inputs: &FrozenInputs) -> rusqlite::Result<()> {
    let FrozenInputs { files, variables, secrets, pull } = inputs;
    let mut statement = connection.prepare_cached(
        "insert into files(uid, idx, path, mode, bytes, sha256, content) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (index, file) in (0_u32..).zip(files) {
        let FrozenFile { path, mode, sha256, content } = file;
        let bytes = file.status().bytes;
        statement.execute(params![uid.as_str(), index, path, mode, bytes, sha256, content])?;
    }
    let mut statement =
        connection.prepare_cached("insert into variables(uid, idx, name, value) values (?1, ?2, ?3, ?4)")?;
    for (index, (name, value)) in (0_u32..).zip(variables) {
        statement.execute(params![uid.as_str(), index, name, value])?;
    }
    let mut statement =
        connection.prepare_cached("insert into secrets(uid, name, key, seal) values (?1, ?2, ?3, ?4)")?;
    for SealedKey { key: KeyRef { name, key }, seal } in secrets {
        statement.execute(params![uid.as_str(), name, key, seal])?;
    }
    if let Some(PullLogin { repository, secrets }) = pull {
        connection
            .prepare_cached("insert into pulls(uid, repository, secrets) values (?1, ?2, ?3)")?
            .execute(params![uid.as_str(), repository, secrets.join(",")])?;
    }
    Ok(())
}

/// Returns what is stored of the files; none if nothing is stored of any inputs.
fn kept(connection: &Connection, uid: &Uid) -> Result<Option<Vec<InputStatus>>, LedgerError> {
    let sql = || LedgerError::sql("read the checksums of an object's files");
    let files: Vec<InputStatus> = connection
        .prepare_cached("select path, bytes, sha256 from files where uid = ?1 order by idx")
        .and_then(|mut statement| {
            let row = |row: &rusqlite::Row<'_>| {
                Ok(InputStatus { path: row.get(0)?, bytes: row.get(1)?, sha256: row.get(2)? })
            };
            statement.query_map([uid.as_str()], row)?.collect()
        })
        .map_err(sql())?;
    let others = "select 1 from variables where uid = ?1 union all select 1 from secrets where uid = ?1
                  union all select 1 from pulls where uid = ?1";
    let is_kept = !files.is_empty()
        || connection.prepare_cached(others).and_then(|mut rows| rows.exists([uid.as_str()])).map_err(sql())?;
    Ok(is_kept.then_some(files))
}

#[cfg(test)]
mod tests {
    use super::super::tests::uid;
    use super::*;

    #[tokio::test]
    async fn inputs_stay_as_first_stored() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        assert_eq!(ledger.kept_inputs(&uid()).await.unwrap(), None);
        let file = |content: &[u8]| FrozenFile {
            path: "a/b".to_owned(),
            mode: 0o755,
            sha256: "0f".to_owned(),
            content: content.to_vec(),
        };
        let of = |content: &[u8]| FrozenInputs { files: vec![file(content)], ..FrozenInputs::default() };
        let first = ledger.keep_inputs(&uid(), of(b"x\0y")).await.unwrap();
        assert_eq!(first, [file(b"x\0y").status()]);
        assert_eq!(ledger.keep_inputs(&uid(), of(b"other")).await.unwrap(), first);
        assert_eq!(ledger.files(&uid()).await.unwrap(), [file(b"x\0y")]);
        assert_eq!(ledger.kept_inputs(&uid()).await.unwrap(), Some(first));
        let other = Uid::from("other");
        assert_eq!(ledger.files(&other).await.unwrap(), []);
        let variables = |value: &str| vec![("A".to_owned(), value.to_owned())];
        let of = |value: &str| FrozenInputs { variables: variables(value), ..FrozenInputs::default() };
        assert_eq!(ledger.keep_inputs(&other, of("first")).await.unwrap(), []);
        assert_eq!(ledger.keep_inputs(&other, of("second")).await.unwrap(), []);
        assert_eq!(ledger.variables(&other).await.unwrap(), variables("first"));
        assert_eq!(ledger.kept_inputs(&other).await.unwrap(), Some(Vec::new()));
        ledger.close().await;
    }
}
