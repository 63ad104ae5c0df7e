//! Reads the output of jobs, on a volume that may hang: with a limit of time, and of how much may hang.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use tokio::sync::Semaphore;

use crate::procs::answer::Failure;

/// How long one step may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Most steps at once, those included that hang.
const MOST: usize = 32;

/// The volume; clones share the steps that hang.
#[derive(Clone, Debug)]
pub struct Volume {
    root: PathBuf,
    turns: Arc<Semaphore>,
    /// How many steps were done.
    #[cfg(test)]
    pub(super) steps: Arc<std::sync::atomic::AtomicUsize>,
}

impl Volume {
    /// Below `root`, which may be a link that an admin has made, no link is followed.
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

    /// Does one step of work on the volume, which must be a small one: a volume that is slow is not one that hangs.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let Ok(Ok(turn)) = tokio::time::timeout(LIMIT, Arc::clone(&self.turns).acquire_owned()).await else {
            return Err(Failure::unavailable("the operator's data volume does not answer; check it"));
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
                Err(Failure::not_found("the job has left no such file, or its output was removed"))
            }
            Ok(Ok(Err(error))) => Err(Failure::internal(format!("the job's output cannot be read: {error}"))),
            Ok(Err(error)) => Err(Failure::internal(error.to_string())),
            Err(_) => Err(Failure::unavailable(format!(
                "the operator's data volume has not answered for {} s; check it",
                LIMIT.as_secs()
            ))),
        }
    }

    /// Opens a regular file beside the async threads; and its length.
    pub(super) async fn opened(&self, path: PathBuf) -> Result<(Arc<File>, u64), Failure> {
        let root = self.root.clone();
        self.step(move || {
            let file = File::from(open(&root, &path, OFlags::RDONLY | OFlags::NONBLOCK)?);
            let metadata = file.metadata()?;
            if metadata.is_file() { Ok((Arc::new(file), metadata.len())) } else { Err(io::ErrorKind::NotFound.into()) }
        })
        .await
    }

    /// At most `most` bytes of an open file from `from` on.
    pub(super) async fn read(&self, file: &Arc<File>, from: u64, most: usize) -> Result<Vec<u8>, Failure> {
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

/// One part of the path after another: whoever may write there can put a link in the place of any of them, at any time.
fn open(root: &Path, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    if path == root {
        return rustix::fs::open(root, flags, Mode::empty());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(rustix::io::Errno::NOENT) };
    let parent = open(root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
    openat(parent, name, flags | OFlags::NOFOLLOW, Mode::empty())
}
