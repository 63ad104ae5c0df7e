//! Run folders: one for each server or test, gone when it is.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use crate::account::Account;
use crate::error::{Doing, Result};
use crate::progress;

const PREFIX: &str = "htb-";
const LOCK: &str = ".lock";

/// A folder for one run, open to the unprivileged account; removed on drop unless `HTC_TESTBED_KEEP=1`.
///
/// Its path is short, since the path of a unix socket in it must stay below 108 bytes.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
    /// Held for the life of the folder: a folder whose lock is free was left by a killed owner.
    _lock: File,
}

impl Scratch {
    /// Makes a new, empty folder; removes those of owners that were killed.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let account = Account::unprivileged();
        let mut base = env::temp_dir();
        if base.as_os_str().len() > 30 || !account.can_reach(&base.join("x")) {
            base = PathBuf::from("/tmp");
        }
        sweep(&base);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{}-{number}", process::id()));
        // Left by a killed process that had the same id, and kept on request.
        let _ = fs::remove_dir_all(&path);
        account.make_dir(&path, 0o755)?;
        account.must_reach(&path)?;
        let keep = env::var_os("HTC_TESTBED_KEEP").is_some_and(|v| v == "1");
        let (file, unlocked) = (path.join(LOCK), path.join(".unlocked"));
        let lock = File::create(&unlocked).doing("making", &unlocked)?;
        lock.lock().doing("locking", &unlocked)?;
        // Nobody sweeps the folder before its lock has this name, nor ever when it is to be kept.
        if !keep {
            fs::rename(&unlocked, &file).doing("naming", &file)?;
        }
        Ok(Self { path, keep, _lock: lock })
    }

    /// Its path, without symbolic links of the caller's making and at most 50 bytes long.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder in it that belongs to the unprivileged account (mode 0755) and gives its path.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path.join(name);
        Account::unprivileged().make_dir(&dir, 0o755)?;
        Ok(dir)
    }

    /// Gives a path under which the unprivileged account can run `program`, which may lie in a closed home folder.
    pub fn share(&self, program: &Path) -> Result<PathBuf> {
        if Account::unprivileged().can_reach(program) {
            return Ok(program.to_owned());
        }
        let shared = self.dir("programs")?.join(program.file_name().unwrap_or_default());
        put(program, &shared)?;
        Ok(shared)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep {
            progress::say(&format!("kept: {}", self.path.display()));
        } else if let Err(e) = fs::remove_dir_all(&self.path) {
            progress::say(&format!("removing {}: {e}", self.path.display()));
        }
    }
}

/// Puts a program where others reach it, unless it is there: to copy it to its own hard link would leave nothing of either.
fn put(program: &Path, shared: &Path) -> Result<()> {
    match fs::hard_link(program, shared) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => fs::copy(program, shared).map(drop),
        Ok(()) | Err(_) => Ok(()),
    }
    .doing("sharing", program)
}

/// Removes the folders whose owners are dead. One that cannot be opened belongs to another user.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::options().append(true).open(path.join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_ok() && fs::remove_dir_all(&path).is_err() {
            // Servers that are just dying still write: whoever comes next finds the lock and tries again.
            let _ = File::create(path.join(LOCK));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn program_shared_twice_stays_unchanged() {
        let scratch = Scratch::new().unwrap();
        let (program, shared) = (scratch.path().join("program"), scratch.path().join("shared"));
        fs::write(&program, "of two lives").unwrap();
        for _ in 0..2 {
            put(&program, &shared).unwrap();
            assert_eq!(fs::read_to_string(&shared).unwrap(), "of two lives");
        }
    }
}
