//! How much output is kept for each namespace. It is measured now and then; what comes meanwhile is added.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a measurement counts.
const FRESH: Duration = Duration::from_secs(600);
/// How long it counts for a namespace that has too much: somebody may have deleted some.
const FRESH_ABOVE: Duration = Duration::from_secs(60);

/// What is kept for each namespace, and how much that may be.
#[derive(Debug)]
pub struct NamespaceOutput {
    folder: PathBuf,
    limit: u64,
    of: Mutex<HashMap<String, Measured>>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    at: Instant,
}

impl NamespaceOutput {
    /// Of the output in `folder`; at most `limit` bytes for each namespace (0: no limit).
    #[must_use]
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit, of: Mutex::default() }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<String, Measured>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes a namespace may still get, none if there is no limit; else in words why it gets nothing. It may read the
    /// whole folder of the namespace: not for an asynchronous thread.
    pub(super) fn left(&self, namespace: &str) -> Result<Option<u64>, String> {
        if self.limit == 0 {
            return Ok(None);
        }
        let known = self.of().get(namespace).copied();
        let bytes = match known.filter(|known| known.at.elapsed() < self.fresh(known.bytes)) {
            Some(known) => known.bytes,
            None => self.measure(namespace),
        };
        if bytes < self.limit { Ok(Some(self.limit - bytes)) } else { Err(self.too_much(namespace, bytes)) }
    }

    fn fresh(&self, bytes: u64) -> Duration {
        if bytes < self.limit { FRESH } else { FRESH_ABOVE }
    }

    fn measure(&self, namespace: &str) -> u64 {
        let bytes = bytes_below(&self.folder.join(namespace));
        self.of().insert(namespace.to_owned(), Measured { bytes, at: Instant::now() });
        bytes
    }

    /// So many bytes have come.
    pub(super) fn add(&self, namespace: &str, bytes: u64) {
        if let Some(measured) = self.of().get_mut(namespace) {
            measured.bytes = measured.bytes.saturating_add(bytes);
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

    #[test]
    fn a_namespace_has_its_limit_and_others_have_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("physics/zero/11111111/0");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("out"), [0; 40]).unwrap();
        std::os::unix::fs::symlink("/usr", place.join("link")).unwrap();
        let output = NamespaceOutput::new(folder.path().to_owned(), 100);
        assert_eq!(output.left("physics"), Ok(Some(60)));
        // What comes is added, and what is on the disk is not read for it again.
        output.add("physics", 59);
        assert_eq!(output.left("physics"), Ok(Some(1)));
        output.add("physics", 1);
        let message = output.left("physics").unwrap_err();
        assert!(message.contains("--namespace-output-limit") && message.contains("Delete HTCJobs"), "{message}");
        assert_eq!(output.left("chemistry"), Ok(Some(100)));
        // Somebody has made room.
        let Some(past) = Instant::now().checked_sub(FRESH_ABOVE) else { return };
        output.of().get_mut("physics").unwrap().at = past;
        assert_eq!(output.left("physics"), Ok(Some(60)));
    }

    #[test]
    fn without_a_limit_nothing_is_read() {
        let output = NamespaceOutput::new(PathBuf::from("/"), 0);
        assert_eq!(output.left("proc"), Ok(None));
    }
}
