//! Lock that a submitter holds while it lives: see [`htc_machine::judge::SubmitterLock`].

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use htc_machine::judge::{LockObservation, SubmitterLock};
use htc_support::clock::Clock;
use rustix::fs::{FsWord, fstatfs};

/// Kernel's id of its current boot, the same in all containers of a machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Values of `f_type` for file systems that only one kernel can mount, and whose locks that kernel keeps: ext4, XFS,
/// Btrfs, tmpfs, F2FS, ZFS, bcachefs. A network file system may lose a lock while its holder still lives.
const LOCAL: &[FsWord] = &[0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010, 0x2FC1_2FC1, 0xCA45_1A4E];

/// Folder of the lock files.
#[derive(Clone, Debug)]
pub struct SubmitterLocks {
    folder: PathBuf,
}

/// A lock held by this process for a submitter that it is about to start.
#[derive(Debug)]
pub struct HeldLock {
    file: File,
    path: PathBuf,
    lock: SubmitterLock,
}

impl SubmitterLocks {
    /// Uses a subfolder of the operator's data folder.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self { folder: data.join("submitters") }
    }

    /// Takes a new lock. Returns none where a lock would prove nothing.
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

    /// Inspects the file of a lock.
    pub fn look(&self, lock: &SubmitterLock, clock: &Clock) -> io::Result<LockObservation> {
        let boot = boot_id().unwrap_or_default();
        let file = File::open(self.path(lock))?;
        let metadata = file.metadata()?;
        let free = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        Ok(LockObservation { at: clock.now(), boot, device: metadata.dev(), inode: metadata.ino(), free })
    }

    /// Removes the file of a lock that is no longer needed.
    pub fn discard(&self, lock: &SubmitterLock) {
        remove(&self.path(lock));
    }

    /// Removes all lock files except those of `locks`.
    pub fn keep_only<'a>(&self, locks: impl Iterator<Item = &'a SubmitterLock>) {
        let kept: HashSet<&str> = locks.map(|lock| lock.file.as_str()).collect();
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let others = files.filter(|file| file.file_name().to_str().is_none_or(|name| !kept.contains(name)));
        others.for_each(|file| remove(&file.path()));
    }

    fn path(&self, lock: &SubmitterLock) -> PathBuf {
        // Only the file name is used: a name with folders is none of this operator's.
        self.folder.join(Path::new(&lock.file).file_name().unwrap_or_default())
    }
}

impl HeldLock {
    /// Returns the lock as the intent records it.
    #[must_use]
    pub const fn lock(&self) -> &SubmitterLock {
        &self.lock
    }

    /// Duplicates the file descriptor, so that every process started while the duplicate exists inherits it. An
    /// unrelated process started then also holds the lock, which only makes it last longer.
    pub(super) fn inheritable(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::dup(self.file.as_fd())?)
    }

    /// Removes the lock file of a submitter that has provably ended.
    pub fn discard(self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "lock file not removed");
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

    use htc_machine::Rules;
    use htc_machine::judge::submitter_gone;
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::*;

    struct LockFixture {
        _folder: tempfile::TempDir,
        locks: SubmitterLocks,
    }

    impl LockFixture {
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

    /// Starts a submitter as `Tools` does, in a process group of its own.
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
    fn lock_is_held_until_the_last_descendant_process_ends() {
        let site = LockFixture::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        assert!(!site.gone(&lock), "the operator that made the intent lives");
        // The grandchild has a session of its own, and its parents end at once.
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
    fn lock_of_an_unstarted_submitter_ends_with_the_operator() {
        let site = LockFixture::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        drop(held);
        // Another test of this program may be about to start a process, which has these files open until then.
        site.wait_gone(&lock);
    }

    #[test]
    fn lock_is_not_inherited_by_other_processes() {
        let site = LockFixture::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        let mut other = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        drop(held);
        site.wait_gone(&lock);
        kill_process_group(Pid::from_child(&other), Signal::KILL).unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn replaced_or_missing_lock_file_proves_nothing() {
        let site = LockFixture::new();
        let held = site.locks.take().unwrap().unwrap();
        let lock = held.lock().clone();
        let path = held.path.clone();
        fs::rename(&path, path.with_extension("moved")).unwrap();
        assert!(!site.gone(&lock), "there is none");
        fs::copy(path.with_extension("moved"), &path).unwrap();
        assert!(!site.gone(&lock), "it is a copy without a lock");
    }

    #[test]
    fn unneeded_lock_files_are_removed() {
        let site = LockFixture::new();
        let (kept, other) = (site.locks.take().unwrap().unwrap(), site.locks.take().unwrap().unwrap());
        site.locks.keep_only([kept.lock()].into_iter());
        assert!(kept.path.exists() && !other.path.exists());
        kept.discard();
        assert_eq!(fs::read_dir(&site.locks.folder).unwrap().count(), 0);
    }
}
