//! A machine whose power can be cut: what the operator has not synchronised is gone then. Or its disk hangs (tests/synced).

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use testbed::{Account, wait_for};

use super::{Bed, PATIENCE, files_below};

/// What the operator has brought to the disk.
pub struct Disk {
    store: PathBuf,
    failures: AtomicU32,
}

impl Bed {
    /// From its next start on, what the operator synchronises is kept. Output has a volume of its own, as in deploy/base.
    pub fn keep_what_is_on_the_disk(&mut self) {
        let tests = std::env::current_exe().unwrap();
        let library = self.scratch.share(&tests.with_file_name("libsynced.so")).unwrap();
        let store = self.scratch.dir("disk").unwrap();
        let output = self.data.join("htc_out");
        Account::unprivileged().make_dir(&output, 0o755).unwrap();
        self.set_env("LD_PRELOAD", library.to_str().unwrap());
        let folders = [&store, &self.data, &output].map(|folder| folder.display().to_string());
        self.set_env("HTC_SYNCED", &format!("htc-operator:{}", folders.join(":")));
        self.disk = Some(Disk { store, failures: AtomicU32::new(0) });
    }

    /// From now on nothing that the operator writes comes to the disk, and its calls for that do not return.
    pub fn hang_the_disk(&self) {
        fs::write(self.sign("hangs"), "").unwrap();
    }

    /// Waits until a call is seen to wait.
    pub fn wait_for_the_hanging_disk(&self) {
        let waits = self.sign("waits");
        let _ = fs::remove_file(&waits);
        wait_for("a call that the disk does not answer", PATIENCE, || waits.exists()).unwrap();
    }

    /// The disk answers again, also the calls that wait.
    pub fn have_the_disk_answer(&self) {
        fs::remove_file(self.sign("hangs")).unwrap();
    }

    fn sign(&self, name: &str) -> PathBuf {
        self.disk.as_ref().expect("the disk is looked at").store.join(name)
    }

    /// The operator ends, and of its files only what it has synchronised is left. What it has started goes on, as on another
    /// machine, which has the files that it reads.
    pub fn cut_the_power(&self) {
        self.kill_operator();
        self.lose_what_is_not_on_the_disk();
    }

    /// Does nothing where the disk is not looked at. Of the files that jobs are submitted with the names are left, and nothing in
    /// them: a file system may write these first, and that is worse than no file. While a submitter lives they are left to it.
    pub(crate) fn lose_what_is_not_on_the_disk(&self) {
        let Some(disk) = &self.disk else { return };
        let account = Account::unprivileged();
        let failure = disk.failures.fetch_add(1, Ordering::Relaxed);
        let lost = self.scratch.path().join(format!("lost-{failure}"));
        fs::rename(&self.data, &lost).unwrap();
        restore(&disk.store, "volume-0", &self.data);
        let sandboxes = lost.join("sandbox");
        if sandboxes.exists() && a_submitter_lives(&lost) {
            let _ = fs::remove_dir_all(self.data.join("sandbox"));
            fs::rename(&sandboxes, self.data.join("sandbox")).unwrap();
        }
        account.make_dir(&self.data.join("sandbox"), 0o755).unwrap();
        for file in files_below(&sandboxes, &|_| true) {
            let place = self.data.join("sandbox").join(file.strip_prefix(&sandboxes).unwrap());
            if file.is_dir() {
                account.make_dir(&place, 0o755).unwrap();
            } else {
                account.write(&place, "", 0o755).unwrap();
            }
        }
        fs::remove_dir_all(&disk.store).unwrap();
        account.make_dir(&disk.store, 0o755).unwrap();
    }
}

/// Whether a submitter holds its lock, which is in the operator's data folder.
fn a_submitter_lives(data: &Path) -> bool {
    let held = |lock: &PathBuf| matches!(File::open(lock).unwrap().try_lock(), Err(TryLockError::WouldBlock));
    files_below(&data.join("submitters"), &|_| true).iter().any(held)
}

/// Makes a folder again as the store has it.
fn restore(store: &Path, kept: &str, folder: &Path) {
    let account = Account::unprivileged();
    account.make_dir(folder, 0o755).unwrap();
    // Of what was never synchronised only the name is there, in its own folder.
    let contents = |kept: &str| fs::read(store.join(kept)).unwrap_or_default();
    for line in String::from_utf8(contents(kept)).unwrap().lines() {
        let [kind, kept, name] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let place = folder.join(name);
        match kind {
            "folder" => restore(store, kept, &place),
            "link" => {
                symlink(String::from_utf8(contents(kept)).unwrap(), &place).unwrap();
                lchown(&place, Some(account.uid), Some(account.gid)).unwrap();
            }
            _ => account.write(&place, contents(kept), 0o644).unwrap(),
        }
    }
}
