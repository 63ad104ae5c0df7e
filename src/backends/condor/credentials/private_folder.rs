//! A folder on this machine that only the operator can read. It is removed when the operator ends, or by the next
//! operator.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Error, Result, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Prefix of the folder's name.
const PREFIX: &str = "htc-operator-credentials.";
/// File that is locked while the folder is in use.
const LOCK: &str = "lock";
/// Time after which a folder without a lock is abandoned. A younger one may still be under construction.
const BEING_MADE: Duration = Duration::from_secs(60);

/// A folder with mode 0700 that is removed when dropped.
#[derive(Debug)]
pub(super) struct Private {
    path: PathBuf,
    _lock: File,
}

impl Private {
    /// Creates one in `base`, and removes those that a killed operator left there.
    pub(super) fn make(base: &Path) -> Result<Self> {
        sweep(base);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(Error::other)?;
        let path = base.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|found| {
                found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o777 == 0o700
            });
        if ours && is_left(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left(folder: &Path) -> bool {
    if let Ok(lock) = File::open(folder.join(LOCK)) {
        return flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    }
    let age = fs::metadata(folder).and_then(|found| found.modified()).ok().and_then(|made| made.elapsed().ok());
    age.is_some_and(|age| age > BEING_MADE)
}

/// Creates a folder with mode 0700, and its missing parents.
pub(super) fn make_folder(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file atomically, with the mode that HTCondor and Kerberos require.
pub(super) fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?.write_all(contents)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_folder_has_mode_0700_and_is_removed_on_drop() {
        let base = tempfile::tempdir().unwrap();
        let (one, other) = (Private::make(base.path()).unwrap(), Private::make(base.path()).unwrap());
        assert_eq!(fs::metadata(one.path()).unwrap().mode() & 0o777, 0o700);
        let file = one.path().join("a/b/token");
        make_folder(file.parent().unwrap()).unwrap();
        write(&file, b"1").unwrap();
        write(&file, b"22").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"22");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(one.path().join("a")).unwrap().mode() & 0o777, 0o700);
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn only_folders_of_killed_operators_are_swept() {
        let base = tempfile::tempdir().unwrap();
        let left = base.path().join(format!("{PREFIX}left"));
        let being_made = base.path().join(format!("{PREFIX}new"));
        let not_ours = base.path().join("other");
        for folder in [&left, &being_made, &not_ours] {
            DirBuilder::new().mode(0o700).create(folder).unwrap();
        }
        for folder in [&left, &not_ours] {
            write(&folder.join(LOCK), b"").unwrap();
        }
        let used = Private::make(base.path()).unwrap();
        let _next = Private::make(base.path()).unwrap();
        assert!(!left.exists() && being_made.exists() && not_ours.exists() && used.path().exists());
    }
}
