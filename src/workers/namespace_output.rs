//! How much output is kept for each namespace. It is measured now and then; what comes meanwhile is added.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a measurement counts.
const FRESH: Duration = Duration::from_secs(600);
/// How long it counts for a namespace that has too much: somebody may have deleted some.
const FRESH_ABOVE: Duration = Duration::from_secs(60);

/// What is kept for each namespace, and how much that may be.
#[derive(Debug)]
pub struct NamespaceOutput {
    folder: PathBuf,
    limit: u64,
    of: Mutex<HashMap<String, Kept>>,
    /// Notified after each measurement.
    measured: Notify,
}

/// What is kept for one namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// None if it was never measured.
    bytes: Option<u64>,
    /// When it was measured last.
    at: Option<Instant>,
    /// It is being measured, and so much has come since that began.
    measuring: Option<u64>,
}

impl NamespaceOutput {
    /// Of the output in `folder`; at most `limit` bytes for each namespace (0: no limit).
    #[must_use]
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit, of: Mutex::default(), measured: Notify::new() }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes a namespace may still get, none if there is no limit; else in words why it gets nothing. The first time it waits
    /// until the whole folder of the namespace was read, which may take long; later a new measurement counts once it is there.
    pub(super) async fn left(self: &Arc<Self>, namespace: &str) -> Result<Option<u64>, String> {
        if self.limit == 0 {
            return Ok(None);
        }
        let bytes = loop {
            let measured = self.measured.notified();
            if let Some(bytes) = self.kept(namespace) {
                break bytes;
            }
            measured.await;
        };
        if bytes < self.limit { Ok(Some(self.limit - bytes)) } else { Err(self.too_much(namespace, bytes)) }
    }

    /// What is known. Has it measured, once at a time, if that is not known or old.
    fn kept(self: &Arc<Self>, namespace: &str) -> Option<u64> {
        let mut of = self.of();
        let kept = of.entry(namespace.to_owned()).or_default();
        let fresh = if kept.bytes.is_some_and(|bytes| bytes >= self.limit) { FRESH_ABOVE } else { FRESH };
        if kept.measuring.is_none() && kept.at.is_none_or(|at| at.elapsed() >= fresh) {
            kept.measuring = Some(0);
            let (all, namespace) = (Arc::clone(self), namespace.to_owned());
            tokio::task::spawn_blocking(move || all.measure(&namespace));
        }
        kept.bytes
    }

    fn measure(&self, namespace: &str) {
        let bytes = bytes_below(&self.folder.join(namespace));
        if let Some(kept) = self.of().get_mut(namespace) {
            // What has come meanwhile may be in it or not.
            let bytes = bytes.saturating_add(kept.measuring.unwrap_or_default());
            *kept = Kept { bytes: Some(bytes), at: Some(Instant::now()), measuring: None };
        }
        self.measured.notify_waiters();
    }

    /// So many bytes have come.
    pub(super) fn add(&self, namespace: &str, bytes: u64) {
        if let Some(kept) = self.of().get_mut(namespace) {
            kept.bytes = kept.bytes.map(|kept| kept.saturating_add(bytes));
            kept.measuring = kept.measuring.map(|came| came.saturating_add(bytes));
        }
    }

    fn too_much(&self, namespace: &str, bytes: u64) -> String {
        format!(
            "no output is fetched: namespace {namespace} has {} MiB of output, and --namespace-output-limit is {} MiB. Delete HTCJobs whose output nobody needs (it is removed --keep-output later), or have the operator's administrator delete output in {}",
            bytes >> 20,
            self.limit >> 20,
            self.folder.join(namespace).display()
        )
    }
}

/// Bytes of the files below a folder. What cannot be read is left out, and no link is followed.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0_u64, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) if found.is_file() => bytes = bytes.saturating_add(found.len()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_namespace_has_its_limit_and_others_have_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("physics/zero/11111111/0");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("out"), [0; 40]).unwrap();
        std::os::unix::fs::symlink("/usr", place.join("link")).unwrap();
        let output = Arc::new(NamespaceOutput::new(folder.path().to_owned(), 100));
        assert_eq!(output.left("physics").await, Ok(Some(60)));
        // What comes is added, and what is on the disk is not read for it again.
        output.add("physics", 59);
        assert_eq!(output.left("physics").await, Ok(Some(1)));
        output.add("physics", 1);
        let message = output.left("physics").await.unwrap_err();
        assert!(message.contains("--namespace-output-limit") && message.contains("Delete HTCJobs"), "{message}");
        assert_eq!(output.left("chemistry").await, Ok(Some(100)));
        // Somebody has made room.
        let Some(past) = Instant::now().checked_sub(FRESH_ABOVE) else { return };
        output.of().get_mut("physics").unwrap().at = Some(past);
        let measured = output.measured.notified();
        assert!(output.left("physics").await.is_err(), "it is being measured");
        measured.await;
        assert_eq!(output.left("physics").await, Ok(Some(60)));
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_read() {
        let output = NamespaceOutput::new(PathBuf::from("/"), 0);
        assert_eq!(Arc::new(output).left("proc").await, Ok(None));
    }
}
