//! Size of the stored output of each namespace. It is measured from time to time; what arrives in between is added.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::error::VolumeError;

/// Time for which a measurement is valid.
const FRESH: Duration = Duration::from_secs(600);
/// The same for a namespace above its limit: its users may have deleted some output.
const FRESH_ABOVE: Duration = Duration::from_secs(60);

/// Size of the stored output of each namespace, and its limit.
#[derive(Debug)]
pub struct NamespaceOutput {
    folder: PathBuf,
    limit: u64,
    of: Mutex<HashMap<String, MeasuredOutput>>,
    /// Notified after each measurement.
    measured: Notify,
}

/// Size of one namespace's stored output.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuredOutput {
    /// `None` if it was never measured.
    bytes: Option<u64>,
    /// Time of the last measurement.
    at: Option<Instant>,
    /// Bytes that have arrived since the running measurement began; `None` if none is running.
    measuring: Option<u64>,
}

impl NamespaceOutput {
    /// Returns the sizes of the output in `folder`; at most `limit` bytes are allowed for each namespace (0: no
    /// limit).
    #[must_use]
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit, of: Mutex::default(), measured: Notify::new() }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<String, MeasuredOutput>> {
        self.of.lock()
    }

    /// Returns how many bytes a namespace may still store; `None` if there is no limit. The first call waits
    /// until the whole folder of the namespace was read, which may take long. Later calls use the last measurement.
    pub async fn left(self: &Arc<Self>, namespace: &str) -> Result<Option<u64>, VolumeError> {
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
        if bytes < self.limit {
            return Ok(Some(self.limit - bytes));
        }
        let folder = self.folder.join(namespace);
        Err(VolumeError::NamespaceLimit { namespace: namespace.to_owned(), bytes, limit: self.limit, folder })
    }

    /// Returns the last known size. Starts a measurement if that is missing or old and none is running.
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
            // The measurement may or may not include what has arrived meanwhile.
            let bytes = bytes.saturating_add(kept.measuring.unwrap_or_default());
            *kept = MeasuredOutput { bytes: Some(bytes), at: Some(Instant::now()), measuring: None };
        }
        self.measured.notify_waiters();
    }

    /// Adds bytes that have arrived.
    pub fn add(&self, namespace: &str, bytes: u64) {
        if let Some(kept) = self.of().get_mut(namespace) {
            kept.bytes = kept.bytes.map(|kept| kept.saturating_add(bytes));
            kept.measuring = kept.measuring.map(|came| came.saturating_add(bytes));
        }
    }
}

/// Returns the bytes of the files below a folder. Skips what cannot be read, and follows no link.
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
    async fn each_namespace_has_its_own_output_limit() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("physics/zero/11111111/0");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("out"), [0; 40]).unwrap();
        std::os::unix::fs::symlink("/usr", place.join("link")).unwrap();
        let output = Arc::new(NamespaceOutput::new(folder.path().to_owned(), 100));
        assert_eq!(output.left("physics").await.unwrap(), Some(60));
        // Arriving output is added, without reading the disk again for it.
        output.add("physics", 59);
        assert_eq!(output.left("physics").await.unwrap(), Some(1));
        output.add("physics", 1);
        let message = output.left("physics").await.unwrap_err().to_string();
        assert!(message.contains("--namespace-output-limit") && message.contains("Delete HTCJobs"), "{message}");
        assert_eq!(output.left("chemistry").await.unwrap(), Some(100));
        // Output was deleted by hand.
        let Some(past) = Instant::now().checked_sub(FRESH_ABOVE) else { return };
        output.of().get_mut("physics").unwrap().at = Some(past);
        let measured = output.measured.notified();
        assert!(output.left("physics").await.is_err(), "it is being measured");
        measured.await;
        assert_eq!(output.left("physics").await.unwrap(), Some(60));
    }

    #[tokio::test]
    async fn without_a_limit_no_folder_is_measured() {
        let output = NamespaceOutput::new(PathBuf::from("/"), 0);
        assert_eq!(Arc::new(output).left("proc").await.unwrap(), None);
    }
}
