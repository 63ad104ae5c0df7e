//! Digests of images. All attempts of all jobs get the same image, even if its tag is moved later.

use htc_machine::ids::Uid;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, LedgerError};

/// Digest of an image, or the reason why its registry did not give it.
pub type ImageDigest = Result<String, String>;

impl Ledger {
    /// Stores the digest of an object's image, unless one is stored already. Returns the stored one.
    pub async fn keep_image(&self, uid: &Uid, digest: ImageDigest) -> Result<ImageDigest, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| {
            if let Some(kept) = image(connection, &uid)? {
                return Ok(kept);
            }
            connection
                .prepare_cached("insert into images(uid, digest, problem) values (?1, ?2, ?3)")
                .and_then(|mut statement| {
                    statement.execute(params![uid.as_str(), digest.as_ref().ok(), digest.as_ref().err()])
                })
                .map_err(LedgerError::sql("keep the digest of an image"))?;
            Ok(digest)
        })
        .await
    }

    /// Returns what is stored for an object; `None` if nothing is.
    pub async fn image(&self, uid: &Uid) -> Result<Option<ImageDigest>, LedgerError> {
        let uid = uid.clone();
        self.run(move |connection| image(connection, &uid)).await
    }
}

fn image(connection: &Connection, uid: &Uid) -> Result<Option<ImageDigest>, LedgerError> {
    let row = |row: &rusqlite::Row<'_>| {
        let (digest, problem): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        Ok(digest.ok_or_else(|| problem.unwrap_or_default()))
    };
    connection
        .prepare_cached("select digest, problem from images where uid = ?1")
        .and_then(|mut statement| statement.query_row([uid.as_str()], row).optional())
        .map_err(LedgerError::sql("read the digest of an image"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::uid;
    use super::*;

    #[tokio::test]
    async fn image_digest_is_kept_as_first_read() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open_alone(&folder.path().join("htcjobs.db")).unwrap();
        assert_eq!(ledger.image(&uid()).await.unwrap(), None);
        let digest = |text: &str| Ok(text.to_owned());
        assert_eq!(ledger.keep_image(&uid(), digest("sha256:1")).await.unwrap(), digest("sha256:1"));
        assert_eq!(ledger.keep_image(&uid(), digest("sha256:2")).await.unwrap(), digest("sha256:1"), "the first stays");
        assert_eq!(ledger.image(&uid()).await.unwrap(), Some(digest("sha256:1")));
        let problem = Err("no answer".to_owned());
        assert_eq!(ledger.keep_image(&"other".into(), problem.clone()).await.unwrap(), problem);
        assert_eq!(ledger.image(&"other".into()).await.unwrap(), Some(problem));
    }
}
