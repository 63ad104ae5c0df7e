//! Processes and links that jobs of a worker have left behind.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// Between two looks at processes that were sent SIGKILL.
const PAUSE: Duration = Duration::from_millis(2);
/// So many looks in sequence have to find nothing: one may miss a process that starts another one and ends meanwhile.
const LOOKS: u32 = 5;

/// What the starter calls a job's standard output and error. HTCondor can give back no output without them.
const STREAMS: [&str; 2] = ["_condor_stdout", "_condor_stderr"];

/// Sends SIGKILL to all processes that have been inherited by process 1, and to those that they leave to it, until there are none.
/// Returns whether that was so before `most` was over.
///
/// A wrapper that gets SIGKILL cannot end what its job has started: the kernel makes process 1 the parent of that. On a worker this
/// is condor_master, whose own children are programs of HTCondor. So what has it as its parent, and is no program in `tree`, was left
/// by a job. Where process 1 is no program in `tree` either, this is no worker's container, and nothing is done.
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

/// Sends SIGKILL to all children of this process, and to those that it inherits by that, until there are none or `most` is over.
pub(super) fn end_children(most: Duration) {
    let begin = Instant::now();
    // While there is a process that it will inherit, it has a child.
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

/// Removes what is neither a file nor a folder from the folder of a job, and from the folders in that one. The job's processes have
/// ended.
///
/// HTCondor's starter, which is confined by nothing, takes the job's output and the reasons of its wrapper from there, and follows
/// links. It does not look into the folders below.
///
/// # Errors
/// Something may be left.
pub(super) fn remove_links(folder: &Path) -> io::Result<()> {
    for inner in remove_links_in(folder)? {
        remove_links_in(&inner)?;
    }
    Ok(())
}

/// Makes an empty file of each stream that is not there any more in the folder that a job was started in: removed by the job, or as a link.
/// The same of a stream that the job has made a folder of: with that HTCondor gives back no output either.
///
/// # Errors
/// One may be missing.
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

/// Returns the folders in this one.
fn remove_links_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mode = fs::symlink_metadata(folder)?.permissions().mode();
    if mode & 0o700 != 0o700 {
        // The starter needs no list of what it finds by its name.
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

/// Whether its program is one of the tree. What hides its program does not belong to it.
fn belongs(pid: u32, tree: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(tree))
}

/// Sends SIGKILL to those children of `parent` that have not ended and that `which` is true for. Returns how many.
fn kill_children(parent: u32, which: impl Fn(u32) -> bool) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let killed = pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_it = is_child(&stat, parent) && which(*pid);
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw).filter(|_| is_it) {
            // It may have ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        is_it
    });
    killed.count()
}

/// Whether `stat` of a process says that it is a child of `parent` and has not ended. One whose first thread has ended is a zombie in
/// name, and goes on with its others.
fn is_child(stat: &str, parent: u32) -> bool {
    // The name of the program is in brackets, and may have any characters in it.
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
    fn a_process_is_a_child_until_its_last_thread_has_ended() {
        let stat = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 3 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 100 0 0\n")
        };
        assert!(is_child(&stat("sh", "S", 1), 3) && !is_child(&stat("sh", "S", 1), 4));
        assert!(is_child(&stat("x) S 4 (y", "R", 1), 3), "brackets in the name of a program");
        assert!(!is_child(&stat("sh", "Z", 1), 3) && is_child(&stat("sh", "Z", 2), 3));
        assert!(!is_child("", 3));
    }

    #[test]
    fn links_are_removed_where_the_starter_looks_and_files_stay() {
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
    fn nothing_is_ended_where_process_1_is_another_program() {
        assert!(end_orphans(Path::new("/nosuchtree"), Duration::ZERO));
    }
}
