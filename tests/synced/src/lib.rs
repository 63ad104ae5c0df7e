//! Keeps what a power failure would leave of a program's files: what the program has synchronised, and nothing else. And it has the
//! volume hang.
//!
//! `LD_PRELOAD` brings this library into the program. `HTC_SYNCED` is `PROGRAM:STORE:VOLUME[:FOLDER…]`: in the program of that file
//! name, files below `VOLUME` are kept in the folder `STORE`. Each of the `FOLDER`s, below `VOLUME`, is a volume of its own.
//!
//! - `fsync` and `fdatasync` of a file keep what is in it, but not its name, even if it is new.
//! - `fsync` of a folder keeps the names in it, and which files and folders they stand for. So a file that was made, renamed or
//!   removed was not until its folder is synchronised.
//! - `syncfs` keeps all that is below the folder that it is given. The real call also covers what else is on that file system.
//!
//! What is kept is what was there when the call began, and it counts once the call has succeeded. Nothing is kept that the kernel
//! would have written by itself: of all that a power failure may leave, this is the least.
//!
//! While there is a file `hangs` in the store, none of these calls returns for a file below `VOLUME`: so it is on a volume that does not
//! answer, while the kernel still takes in what is written, and reads what it knows. The first call that waits makes a file `waits`.
//!
//! In the store, each other file is called `INODE-BIRTH`, and holds what is in a file, where a link leads, or, of a folder, a line for each
//! entry: kind, store's name, name. A volume is called `volume-0`, `volume-1` and so on. All that is there when a program begins
//! and the store is empty counts as kept.
#![allow(clippy::unwrap_used, reason = "a panic ends the program, and fails its test")]

mod trap;

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, UNIX_EPOCH};
use std::{env, io, process, thread};

use libc::{c_int, c_long};

static DISK: LazyLock<Option<Disk>> = LazyLock::new(|| {
    let text = env::var("HTC_SYNCED").ok()?;
    let mut parts = text.split(':');
    let (program, store) = (parts.next()?, PathBuf::from(parts.next()?));
    let volumes: Vec<PathBuf> = parts.map(PathBuf::from).collect();
    let is_meant = env::current_exe().is_ok_and(|path| path.file_name().is_some_and(|name| name == program));
    is_meant.then_some(Disk { store, volumes })
});

/// Runs before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let Some(disk) = &*DISK else { return };
    if !disk.store.join("volume-0").exists() {
        let mut call = Call::default();
        disk.keep_all(&disk.volumes[0], &mut call);
        call.succeeded();
    }
    trap::syncfs_calls();
}

/// In the place of the C library's: SQLite and std call it.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(file: c_int) -> c_int {
    synchronise(file, libc::SYS_fsync, false)
}

/// In the place of the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    synchronise(file, libc::SYS_fdatasync, false)
}

/// Keeps and calls; `whole`: all that is below it, too. One at a time, so that nothing older takes the place of what is kept.
fn synchronise(file: RawFd, number: c_long, whole: bool) -> c_int {
    static TURN: Mutex<()> = Mutex::new(());
    let mut call = Call::default();
    let _turn = DISK.as_ref().map(|disk| {
        disk.wait_while_it_hangs(file);
        let turn = TURN.lock().unwrap();
        disk.keep(file, whole, &mut call);
        turn
    });
    // SAFETY: each of the calls takes a number and no memory. The last argument is for `trap`.
    let result = unsafe { libc::syscall(number, file, trap::PASS) };
    if result == 0 {
        call.succeeded();
        return 0;
    }
    -1
}

struct Disk {
    store: PathBuf,
    volumes: Vec<PathBuf>,
}

/// What a call synchronises: files in the store with the names that they get once it has succeeded.
#[derive(Default)]
struct Call(Vec<(PathBuf, PathBuf)>);

impl Call {
    fn succeeded(self) {
        self.0.iter().for_each(|(new, kept)| fs::rename(new, kept).unwrap());
    }
}

impl Disk {
    /// The path of an open file, if it is on one of the volumes.
    fn path(&self, file: RawFd) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default();
        path.starts_with(&self.volumes[0]).then_some(path)
    }

    fn wait_while_it_hangs(&self, file: RawFd) {
        let hangs = self.store.join("hangs");
        while hangs.exists() && self.path(file).is_some() {
            fs::write(self.store.join("waits"), "").unwrap();
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn keep(&self, file: RawFd, whole: bool, call: &mut Call) {
        let Some(path) = self.path(file) else { return };
        // SAFETY: it belongs to the caller, who has it open during the call, and it is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(file) });
        let metadata = file.metadata().unwrap();
        if whole {
            self.keep_all(&path, call);
        } else if metadata.is_dir() {
            self.keep_names(&path, call).unwrap();
        } else {
            // To open it once more, and close it, ends the locks that the program has on it: only where it cannot be read as it is.
            let mut contents = vec![0; usize::try_from(metadata.len()).unwrap()];
            let read = file.read_exact_at(&mut contents, 0);
            let contents = read.map(|()| contents).or_else(|_| fs::read(&path)).unwrap();
            self.put(&self.name(&path, &metadata), &contents, call);
        }
    }

    /// A folder with all that is below it. What goes away meanwhile is not kept.
    fn keep_all(&self, folder: &Path, call: &mut Call) {
        let Ok(entries) = self.keep_names(folder, call) else { return };
        for (path, metadata) in entries {
            if metadata.is_dir() {
                self.keep_all(&path, call);
            } else if metadata.is_file()
                && let Ok(contents) = fs::read(&path)
            {
                self.put(&self.name(&path, &metadata), &contents, call);
            }
        }
    }

    /// The names in a folder, and where its links lead; the entries.
    fn keep_names(&self, folder: &Path, call: &mut Call) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let mut names = String::new();
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let Ok(metadata) = path.symlink_metadata() else { continue };
            let kept = self.name(&path, &metadata);
            let kind = if metadata.is_dir() {
                "folder"
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).unwrap_or_default();
                self.put(&kept, target.as_os_str().as_encoded_bytes(), call);
                "link"
            } else {
                "file"
            };
            writeln!(names, "{kind} {kept} {}", entry_name(&path)).unwrap();
            entries.push((path, metadata));
        }
        self.put(&self.name(folder, &folder.symlink_metadata()?), names.as_bytes(), call);
        Ok(entries)
    }

    /// What it is called in the store: the number of an inode comes again, once its file is gone.
    fn name(&self, path: &Path, metadata: &Metadata) -> String {
        if let Some(number) = self.volumes.iter().position(|volume| volume == path) {
            return format!("volume-{number}");
        }
        let birth = metadata.created().map_or(0, |time| time.duration_since(UNIX_EPOCH).unwrap().as_nanos());
        format!("{}-{birth}", metadata.ino())
    }

    fn put(&self, name: &str, contents: &[u8], call: &mut Call) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let new = self.store.join(format!(".{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::write(&new, contents).unwrap();
        call.0.push((new, self.store.join(name)));
    }
}

fn entry_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8")
}
