//! The lock that a submitter holds for as long as it lives: see [`crate::machine::judge::SubmitterLock`].

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, fstatfs};

use crate::clock::Clock;
use crate::machine::judge::{LockSeen, SubmitterLock};

/// The kernel's name of its own run, the same in all containers of a machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// `f_type` of file systems that only one kernel can mount, and whose locks it keeps itself: ext4, XFS, Btrfs, tmpfs, F2FS,
/// ZFS, bcachefs. A network's lock may be lost while the process lives that held it.
const LOCAL: &[FsWord] = &[0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010, 0x2FC1_2FC1, 0xCA45_1A4E];

/// Where the files lie that are locked.
#[derive(Clone, Debug)]
pub struct SubmitterLocks {
    folder: PathBuf,
}

/// A lock that this process holds, for a submitter that it will start.
#[derive(Debug)]
pub struct HeldLock {
    file: File,
    path: PathBuf,
    lock: SubmitterLock,
}

impl SubmitterLocks {
    /// In the operator's data folder.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self { folder: data.join("submitters") }
    }

    /// A new lock; none where it would prove nothing.
    pub fn take(&self) -> io::Result<Option<HeldLock>> {
        let Some(boot) = boot_id() else { return Ok(None) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let name = format!("{:032x}", u128::from_ne_bytes(random));
        let path = self.folder.join(&name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let metadata = file.metadata()?;
        let lock = SubmitterLock { boot, device: metadata.dev(), inode: metadata.ino(), file: name };
        let held = HeldLock { file, path, lock };
        let locked = held.file.try_lock();
        if !fstatfs(&held.file).is_ok_and(|system| LOCAL.contains(&system.f_type)) || locked.is_err() {
            held.discard();
            return Ok(None);
        }
        Ok(Some(held))
    }

    /// What is found under the name of a lock's file.
    pub fn look(&self, lock: &SubmitterLock, clock: &Clock) -> io::Result<LockSeen> {
        let boot = boot_id().unwrap_or_default();
        let file = File::open(self.path(lock))?;
        let metadata = file.metadata()?;
        let free = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        Ok(LockSeen { at: clock.now(), boot, device: metadata.dev(), inode: metadata.ino(), free })
    }

    /// Removes the file of a lock that nobody need look at any more.
    pub fn discard(&self, lock: &SubmitterLock) {
        remove(&self.path(lock));
    }

    /// Removes all files but those of `locks`.
    pub fn keep_only<'a>(&self, locks: impl Iterator<Item = &'a SubmitterLock>) {
        let kept: HashSet<&str> = locks.map(|lock| lock.file.as_str()).collect();
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let others = files.filter(|file| file.file_name().to_str().is_none_or(|name| !kept.contains(name)));
        others.for_each(|file| remove(&file.path()));
    }

    fn path(&self, lock: &SubmitterLock) -> PathBuf {
        // A name that leads elsewhere was never one of these.
        self.folder.join(Path::new(&lock.file).file_name().unwrap_or_default())
    }
}

impl HeldLock {
    /// What the intent says of it.
    #[must_use]
    pub const fn lock(&self) -> &SubmitterLock {
        &self.lock
    }

    /// The file once more, open for every process that is started while this lives. One that is started for something else
    /// holds the lock as well, which only makes it last longer.
    pub(super) fn inheritable(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(self.file.as_fd())?)
    }

    /// The submitter was seen to end: its lock is no longer needed.
    pub fn discard(self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "the file of a lock cannot be removed");
    }
}

fn boot_id() -> Option<String> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    let id = text.trim();
    (!id.is_empty() && !id.contains(':')).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::*;
    use crate::machine::Rules;
    use crate::machine::judge::submitter_gone;

    struct Site {
        _folder: tempfile::TempDir,
        locks: SubmitterLocks,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            Self { locks: SubmitterLocks::new(folder.path()), _folder: folder }
        }

        fn gone(&self, lock: &SubmitterLock) -> bool {
            let seen = self.locks.look(lock, &Clock::default());
            seen.is_ok_and(|seen| submitter_gone(lock, &seen, &Rules::ALL).is_some())
        }

        fn wait_gone(&self, lock: &SubmitterLock) {
            let began = Instant::now();
            while !self.gone(lock) {
                assert!(began.elapsed() < Duration::from_secs(10), "still held");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// As `Tools` starts a submitter, in a group of its own.
    fn start(held: &HeldLock, script: &str) -> Child {
        let _inherited = held.inheritable().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).process_group(0).spawn().unwrap()
    }

    fn said(child: &mut Child) -> Pid {
        use std::io::{BufRead as _, BufReader};
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Pid::from_raw(line.trim().parse().unwrap()).unwrap()
    }

    #[test]
    fn it_is_held_until_the_last_process_is_gone_whoever_that_is() {
        let site = Site::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        assert!(!site.gone(&lock), "the operator that made the intent lives");
        // A grandchild in a session of its own, whose parents end at once.
        let mut child = start(&held, "setsid sh -c 'echo $$; exec sleep 1000' & exit 0");
        let grandchild = said(&mut child);
        child.wait().unwrap();
        drop(held);
        assert!(!site.gone(&lock), "it lives under another parent");
        kill_process(grandchild, Signal::STOP).unwrap();
        assert!(!site.gone(&lock), "it is stopped");
        kill_process(grandchild, Signal::KILL).unwrap();
        site.wait_gone(&lock);
    }

    #[test]
    fn a_submitter_that_was_never_started_is_gone_with_its_operator() {
        let site = Site::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        drop(held);
        // Another test of this program may be about to start a process, which has its files until then.
        site.wait_gone(&lock);
    }

    #[test]
    fn others_do_not_inherit_it() {
        let site = Site::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        let mut other = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        drop(held);
        site.wait_gone(&lock);
        kill_process_group(Pid::from_child(&other), Signal::KILL).unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn another_file_of_its_name_and_none_are_unknown() {
        let site = Site::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        let path = held.path.clone();
        fs::rename(&path, path.with_extension("moved")).unwrap();
        assert!(!site.gone(&lock), "there is none");
        fs::copy(path.with_extension("moved"), &path).unwrap();
        assert!(!site.gone(&lock), "it is a copy, which nobody has locked");
    }

    #[test]
    fn what_nobody_needs_is_removed() {
        let site = Site::new();
        let (kept, other) = (site.locks.take().unwrap().unwrap(), site.locks.take().unwrap().unwrap());
        site.locks.keep_only([kept.lock()].into_iter());
        assert!(kept.path.exists() && !other.path.exists());
        kept.discard();
        assert_eq!(fs::read_dir(&site.locks.folder).unwrap().count(), 0);
    }
}
