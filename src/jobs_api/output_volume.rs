//! Reads the output of jobs from a volume that may hang. Limits the time of each step, and the number of steps that
//! may hang.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use tokio::sync::Semaphore;

use crate::jobs_api::resource::status_error::StatusError;

/// Time limit of one step.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of steps at once, including those that hang.
const MOST: usize = 32;

/// The volume; clones share the limits.
#[derive(Clone, Debug)]
pub struct OutputVolume {
    root: PathBuf,
    turns: Arc<Semaphore>,
    /// Number of steps done.
    #[cfg(test)]
    pub(super) steps: Arc<std::sync::atomic::AtomicUsize>,
}

impl OutputVolume {
    /// Returns the volume at `root`, which may be a link that an administrator has made. Below it no link is
    /// followed.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            turns: Arc::new(Semaphore::new(MOST)),
            #[cfg(test)]
            steps: Arc::default(),
        }
    }

    /// Opens a folder.
    pub(super) fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(open(&self.root, path, OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// Runs one step of work on the volume. It must be small: a slow volume is not one that hangs.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, StatusError> {
        let Ok(Ok(turn)) = tokio::time::timeout(LIMIT, Arc::clone(&self.turns).acquire_owned()).await else {
            return Err(StatusError::unavailable("the operator's data volume does not answer; check it"));
        };
        #[cfg(test)]
        self.steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let handle = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(turn);
            result
        });
        match tokio::time::timeout(LIMIT, handle).await {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::NotFound => {
                Err(StatusError::not_found("the job has left no such file, or its output was removed"))
            }
            Ok(Ok(Err(error))) => Err(StatusError::internal(format!("the job's output cannot be read: {error}"))),
            Ok(Err(error)) => Err(StatusError::internal(error.to_string())),
            Err(_) => Err(StatusError::unavailable(format!(
                "the operator's data volume has not answered for {} s; check it",
                LIMIT.as_secs()
            ))),
        }
    }

    /// Opens a regular file outside the async threads. Returns it with its length.
    pub(super) async fn opened(&self, path: PathBuf) -> Result<(Arc<File>, u64), StatusError> {
        let root = self.root.clone();
        self.step(move || {
            let file = File::from(open(&root, &path, OFlags::RDONLY | OFlags::NONBLOCK)?);
            let metadata = file.metadata()?;
            if metadata.is_file() { Ok((Arc::new(file), metadata.len())) } else { Err(io::ErrorKind::NotFound.into()) }
        })
        .await
    }

    /// Reads at most `most` bytes of an open file, starting at `from`.
    pub(super) async fn read(&self, file: &Arc<File>, from: u64, most: usize) -> Result<Vec<u8>, StatusError> {
        let file = Arc::clone(file);
        self.step(move || {
            let mut part = Vec::new();
            let mut file = &*file;
            file.seek(SeekFrom::Start(from))?;
            file.take(u64::try_from(most).unwrap_or(u64::MAX)).read_to_end(&mut part)?;
            Ok(part)
        })
        .await
    }
}

/// Opens a path component by component: users who may write there can replace any of them by a link at any time.
fn open(root: &Path, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    if path == root {
        return rustix::fs::open(root, flags, Mode::empty());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(rustix::io::Errno::NOENT) };
    let parent = open(root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
    openat(parent, name, flags | OFlags::NOFOLLOW, Mode::empty())
}
