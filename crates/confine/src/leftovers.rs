//! Removal of processes and links that earlier jobs of a worker left behind.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// Pause between two checks of processes that were sent SIGKILL.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of consecutive checks that must find no process. One check may miss a process that starts another one and
/// ends meanwhile.
const LOOKS: u32 = 5;

/// File names of a job's standard output and error in the starter. Without these files HTCondor cannot return any
/// output.
const STREAMS: [&str; 2] = ["_condor_stdout", "_condor_stderr"];

/// Folder of shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Sends SIGKILL to all processes that process 1 has inherited, and to those that it inherits when they end, until
/// there are none. Returns whether none was left within `most`.
///
/// A wrapper killed by SIGKILL cannot end what its job has started: the kernel makes process 1 the parent of these
/// processes. On a worker, process 1 is condor_master, whose own children are programs of HTCondor. So a child of
/// process 1 whose program is not in `tree` was left by a job. If the program of process 1 is not in `tree` either,
/// this is no worker's container, and nothing is done.
pub(super) fn end_orphans(tree: &Path, most: Duration) -> bool {
    if !belongs(1, tree) {
        return true;
    }
    let begin = Instant::now();
    let mut nothing = 0;
    while nothing < LOOKS {
        nothing = if kill_children(1, |pid| !belongs(pid, tree)) == 0 { nothing + 1 } else { 0 };
        if begin.elapsed() > most {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Removes the files that earlier jobs left in shared memory, where they take up memory of the worker. Does nothing while
/// another job runs on the worker: nothing says which job a file belongs to.
pub(super) fn clear_shared_memory(tree: &Path, wrapper: &Path) {
    let runs_job = |pid: u32| pid != std::process::id() && belongs(pid, wrapper);
    // Only in a worker's container, as in `end_orphans`.
    if belongs(1, tree) && !processes().any(runs_job) {
        clear(Path::new(SHARED_MEMORY));
    }
}

/// Removes what is in a folder, as far as that is possible.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
    }
}

/// Sends SIGKILL to all children of this process, and to those that it inherits when they end, until there are none or
/// `most` has passed.
pub(super) fn end_children(most: Duration) {
    let begin = Instant::now();
    // As long as there are processes that this one will inherit, it has a child.
    while let Ok(ended) = wait(WaitOptions::NOHANG) {
        if ended.is_some() {
            continue;
        }
        if begin.elapsed() > most {
            return;
        }
        kill_children(std::process::id(), |_| true);
        thread::sleep(PAUSE);
    }
}

/// Removes everything but files and folders from a job's folder and from its direct subfolders. The job's processes
/// must have ended.
///
/// HTCondor's starter is not confined. It reads the job's output and its wrapper's error file from there, and follows
/// links. It does not look into deeper folders.
///
/// # Errors
/// Links may be left.
pub(super) fn remove_links(folder: &Path) -> io::Result<()> {
    for inner in remove_links_in(folder)? {
        remove_links_in(&inner)?;
    }
    Ok(())
}

/// Creates an empty file for each stream that is missing in the folder that a job was started in: removed by the job,
/// or as a link. Does the same for a stream that the job has replaced by a folder, as then HTCondor returns no output
/// either.
///
/// # Errors
/// A stream may be missing.
pub(super) fn restore_streams(folder: &Path) -> io::Result<()> {
    for name in STREAMS {
        let stream = folder.join(name);
        if fs::symlink_metadata(&stream).is_ok_and(|metadata| metadata.is_dir()) {
            fs::remove_dir_all(&stream)?;
        }
        match fs::File::create_new(stream) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes everything but files and folders from one folder. Returns its subfolders.
fn remove_links_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mode = fs::symlink_metadata(folder)?.permissions().mode();
    if mode & 0o700 != 0o700 {
        // The starter opens files by name, so it would find links even in a folder that cannot be listed.
        fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o700))?;
    }
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            folders.push(entry.path());
        } else if !kind.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(folders)
}

/// Returns whether a process runs a program of the tree. A process whose program cannot be read does not belong to it.
fn belongs(pid: u32, tree: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(tree))
}

/// Returns the ids of all processes.
fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Sends SIGKILL to all children of `parent` that have not ended and for which `which` is true. Returns how many there
/// were.
fn kill_children(parent: u32, which: impl Fn(u32) -> bool) -> usize {
    let killed = processes().filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_it = is_child(&stat, parent) && which(*pid);
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw).filter(|_| is_it) {
            // The process may have ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        is_it
    });
    killed.count()
}

/// Returns whether the `stat` of a process shows a child of `parent` that has not ended. A process whose first thread
/// has ended is listed as a zombie while its other threads continue.
fn is_child(stat: &str, parent: u32) -> bool {
    // The name of the program is in brackets, and may contain any character.
    let words: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
    let ended =
        words.first().is_none_or(|state| ["Z", "X"].contains(state)) && number(17).is_none_or(|threads| threads <= 1);
    !ended && number(1) == Some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_a_child_until_its_last_thread_ends() {
        let stat = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 3 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 100 0 0\n")
        };
        assert!(is_child(&stat("sh", "S", 1), 3) && !is_child(&stat("sh", "S", 1), 4));
        assert!(is_child(&stat("x) S 4 (y", "R", 1), 3), "brackets in the name of a program");
        assert!(!is_child(&stat("sh", "Z", 1), 3) && is_child(&stat("sh", "Z", 2), 3));
        assert!(!is_child("", 3));
    }

    #[test]
    fn links_are_removed_where_the_starter_reads_and_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = folder.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        for place in [folder.path(), &scratch] {
            fs::write(place.join("file"), "").unwrap();
            for (to, name) in
                [("file", "link"), ("/etc", "folder"), ("/nonexistent", ".hidden"), ("/etc/passwd", STREAMS[0])]
            {
                std::os::unix::fs::symlink(to, place.join(name)).unwrap();
            }
        }
        let _socket = std::os::unix::net::UnixListener::bind(scratch.join("socket")).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o300)).unwrap();
        remove_links(folder.path()).unwrap();
        let names = |place: &Path| {
            let mut names: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(folder.path()), ["file", "scratch"]);
        assert_eq!(names(&scratch), ["file"]);
        fs::write(scratch.join(STREAMS[1]), "kept").unwrap();
        fs::create_dir(scratch.join(STREAMS[0])).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", scratch.join(STREAMS[0]).join("link")).unwrap();
        restore_streams(&scratch).unwrap();
        assert_eq!(STREAMS.map(|name| fs::read(scratch.join(name)).unwrap()), [Vec::new(), b"kept".to_vec()]);
        assert!(restore_streams(Path::new("/nonexistent")).is_err());
        assert!(remove_links(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn folder_is_cleared_and_links_are_not_followed() {
        let (outside, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("sem.x"), "").unwrap();
        clear(folder.path());
        assert_eq!(
            (fs::read_dir(folder.path()).unwrap().count(), fs::read_dir(outside.path()).unwrap().count()),
            (0, 1)
        );
    }

    #[test]
    fn no_process_is_killed_if_process_1_is_another_program() {
        assert!(end_orphans(Path::new("/nosuchtree"), Duration::ZERO));
    }
}
