//! HTCondor's `USER_JOB_WRAPPER` on the workers of managed pools: starts a job confined, and ends all that it has started.
//!
//! Jobs there have the account of HTCondor's daemons, and no container of their own. So the wrapper takes from a job what is
//! HTCondor's: its folders but for the job's own, and by Landlock's domains its processes. There are two domains, one in the other. The
//! wrapper itself is in the outer one, so that it may send signals to the job and to nothing else. The job is in the inner one, and
//! cannot send any to the wrapper.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landlock::{RulesetError, RulesetStatus};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, test_kill_process, wait,
};
use tokio::signal::unix::{SignalKind, signal};

use super::leftovers::{end_children, end_orphans, remove_links, restore_streams};
use super::{CANNOT_START, COMMAND, Confined, landlock_version};

/// Where workers have what is HTCondor's.
pub const POOL: &str = "/htcpool";
/// Where each job has a folder.
pub const EXECUTE: &str = "/htcpool/local/execute";
/// Variable in the environment of jobs: the name of the folder that their `job.sh` has for the payload. Jobs of an earlier version have none.
pub const WORK: &str = "HTC_WORK";
/// Where the wrapper is in the folder of HTCondor's programs.
pub const LIBEXEC: &str = "usr/libexec/condor";
/// The version of Landlock's ABI that a job is confined by at least. By the first one, no file could be moved from a folder to another.
const FILES: u8 = 2;
/// The version that knows the scopes of signals and of abstract sockets.
const SCOPES: u8 = 6;
/// How long processes may take to end after SIGKILL.
const MOST: Duration = Duration::from_secs(20);
/// Signals that are the job's.
const FORWARDED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// What the jobs of a worker are confined by: the word in the attribute `HTCPayloads` of its slots.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumIter,
    strum::EnumString,
    strum::IntoStaticStr,
)]
pub enum Payloads {
    /// By nothing: the image with HTCondor has no wrapper, or the worker was made before there was one.
    ImageTooOld,
    /// By nothing: the kernel has no Landlock that would do.
    NoLandlock,
    /// Files and the memory of other processes are out of reach, signals and abstract sockets are not.
    FilesOnly,
    /// Signals and abstract sockets are, too.
    Confined,
}

impl Payloads {
    /// What this kernel can do.
    #[must_use]
    pub fn here() -> Self {
        match landlock_version() {
            SCOPES.. => Self::Confined,
            FILES.. => Self::FilesOnly,
            _ => Self::NoLandlock,
        }
    }
}

/// Why a job is not started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// HTCondor's starter names none.
    #[error("there is no job to start")]
    NoJob,
    /// Its parent has ended.
    #[error("HTCondor's starter has ended")]
    Orphan,
    /// The worker is not fit for another job.
    #[error("processes of an earlier job on this worker do not end")]
    Leftovers,
    /// The kernel has Landlock, and does not confine this process.
    #[error("the job cannot be confined: {0}")]
    Unconfined(#[from] RulesetError),
    /// It has run, and its output is not to be read.
    #[error("links that the job has left cannot be removed: {0}")]
    Links(io::Error),
    /// Anything else.
    #[error("the job cannot be started: {0}")]
    System(#[from] io::Error),
}

/// How a job has ended, as the wrapper ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(u8),
    Signal(Signal),
}

/// Starts the job that `words` are the program and the arguments of, and waits for its end. Returns its exit code, or ends by the signal
/// that has ended it.
///
/// # Errors
/// It was not started.
pub fn run(words: &[OsString]) -> Result<u8, NotStarted> {
    if words.is_empty() {
        return Err(NotStarted::NoJob);
    }
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    if getppid().is_none_or(Pid::is_init) {
        return Err(NotStarted::Orphan);
    }
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let program = std::env::current_exe()?;
    let tree = tree(&program);
    if !end_orphans(tree, MOST) {
        return Err(NotStarted::Leftovers);
    }
    let current = std::env::current_dir()?;
    let own = own_folder(&current);
    let mut command = Command::new(&program);
    command.arg(COMMAND).arg(format!("--dies-with={}", std::process::id()));
    let mut scoped = false;
    if Payloads::here() >= Payloads::FilesOnly {
        let mut writes = apart_from(&[Path::new(POOL), tree])?;
        command.args(["--landlock", "--own-limits"]).args(writes.iter().map(|path| option("--write=", path)));
        if let Some(own) = &own {
            command.args(of_own_folder(own, &current, std::env::var_os(WORK).as_deref()));
        }
        writes.extend(own.clone());
        // The step that the job is started by is a program of the tree.
        let outer = Confined { read: vec![tree.to_owned()], write: writes, ..Confined::default() };
        scoped = outer.restrict_files()? == RulesetStatus::FullyEnforced;
    }
    command.arg("--").args(words);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = runtime.block_on(job(&mut command))?;
    end_all(scoped);
    if let Some(own) = own {
        remove_links(&own).and_then(|()| restore_streams(&current)).map_err(NotStarted::Links)?;
    }
    match end {
        End::Code(code) => Ok(code),
        End::Signal(signal) => {
            let _ = kill_process(getpid(), signal);
            Ok(128_u8.saturating_add(signal.as_raw().try_into().unwrap_or_default()))
        }
    }
}

/// Runs the job, hands signals on to it, and waits for all processes that it leaves to this one.
async fn job(command: &mut Command) -> io::Result<End> {
    let (sender, mut came) = tokio::sync::mpsc::unbounded_channel();
    for forwarded in FORWARDED {
        let mut stream = signal(SignalKind::from_raw(forwarded.as_raw()))?;
        let sender = sender.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(forwarded).is_ok() {} });
    }
    let mut children = signal(SignalKind::child())?;
    let child = command.spawn()?;
    let child = child.id().try_into().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == child {
                return Ok(end(status));
            }
        }
        tokio::select! {
            _ = children.recv() => {}
            Some(signal) = came.recv() => {
                // It may have ended.
                let _ = kill_process(child, signal);
            }
        }
    }
}

fn end(status: WaitStatus) -> End {
    let by = status.terminating_signal().and_then(Signal::from_named_raw).filter(|signal| !FORWARDED.contains(signal));
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    by.map_or_else(|| End::Code(code.and_then(|code| code.try_into().ok()).unwrap_or(CANNOT_START)), End::Signal)
}

/// Ends all that the job has started.
fn end_all(scoped: bool) {
    // By its domain, the wrapper may send signals to nothing but the job: not even to its parent, which has the same account.
    let confined = || getppid().is_some_and(|parent| test_kill_process(parent) == Err(Errno::PERM));
    if scoped && confined() {
        // kill(-1): in one step, so that what starts others without end does not outrun it.
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
    }
    end_children(MOST);
}

/// The folder of HTCondor's programs.
fn tree(program: &Path) -> &Path {
    let folder = program.parent().unwrap_or(program);
    if folder.ends_with(LIBEXEC) { folder.ancestors().nth(3).unwrap_or(folder) } else { folder }
}

/// The folder that HTCondor has made for the job whose working directory this is, if it is one of those.
fn own_folder(current: &Path) -> Option<PathBuf> {
    let name = current.strip_prefix(EXECUTE).ok()?.components().next()?;
    Some(Path::new(EXECUTE).join(name))
}

/// What a job may do in the folder that HTCondor has made for it, as options of the step. `work` is the value of [`WORK`].
///
/// HTCondor's starter, which is confined by nothing, follows links in `current`, where the job is started, and with a folder in the place
/// of a stream it gives back no output. The wrapper removes both, but something may end the wrapper before, such as a want of memory. So
/// no process of a job, `job.sh` included, may make there anything but plain files. In the folder `work`, which HTCondor does not look
/// into, it may make everything.
fn of_own_folder(own: &Path, current: &Path, work: Option<&OsStr>) -> Vec<OsString> {
    let Some(work) = work.filter(|work| Path::new(work).file_name() == Some(work)) else {
        return vec![option("--write=", own)];
    };
    let mut options = vec![option("--read=", own), option("--plain=", current)];
    let work = current.join(work);
    // Where it cannot be made, `job.sh` cannot make it either, and says so.
    if fs::create_dir(&work).is_ok() {
        options.push(option("--write=", &work));
    }
    options
}

/// All of the file system but for the folders `taken`: what is in `/`, and in each folder that one of them is in.
fn apart_from(taken: &[&Path]) -> io::Result<Vec<PathBuf>> {
    let (mut apart, mut folders) = (Vec::new(), vec![PathBuf::from("/")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(path) = entry.path().canonicalize() else { continue };
            if taken.iter().any(|taken| path.starts_with(taken)) {
                continue;
            }
            if !taken.iter().any(|taken| taken.starts_with(&path)) {
                apart.push(path);
            } else if entry.file_type()?.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(apart)
}

fn option(name: &str, path: &Path) -> OsString {
    [OsStr::new(name), path.as_os_str()].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_its_own_folder_of_those_of_the_worker() {
        let of = |folder: &str| own_folder(Path::new(folder));
        assert_eq!(of("/htcpool/local/execute/dir_7"), Some("/htcpool/local/execute/dir_7".into()));
        assert_eq!(of("/htcpool/local/execute/dir_7/scratch"), Some("/htcpool/local/execute/dir_7".into()));
        assert_eq!([of("/htcpool/local/execute"), of("/htcpool/local/log"), of("/tmp/x")], [None, None, None]);
    }

    #[test]
    fn the_tree_is_what_the_wrapper_was_brought_with() {
        let of = |program: &str| tree(Path::new(program)).to_owned();
        assert_eq!(of("/htcondor/usr/libexec/condor/htc-job-wrapper"), Path::new("/htcondor"));
        assert_eq!(of("/opt/htc-job-wrapper"), Path::new("/opt"));
    }

    #[test]
    fn all_but_what_is_taken_is_left() {
        let all = apart_from(&[]).unwrap();
        assert!(all.contains(&"/usr".into()) && all.contains(&"/proc".into()), "{all:?}");
        let rest = apart_from(&[Path::new("/usr/bin"), Path::new("/proc")]).unwrap();
        assert!(rest.contains(&"/usr/lib".into()) && rest.contains(&"/etc".into()), "{rest:?}");
        for path in ["/", "/usr", "/usr/bin", "/proc"] {
            assert!(!rest.contains(&path.into()), "{path}: {rest:?}");
        }
    }

    #[test]
    fn a_signal_that_ends_the_job_ends_the_wrapper() {
        let ended = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().try_into().unwrap());
            let (_, status) = rustix::process::waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
            let _ = child.try_wait();
            end(status)
        };
        assert_eq!([ended("exit 0"), ended("exit 255")], [End::Code(0), End::Code(255)]);
        assert_eq!([ended("kill -KILL $$"), ended("kill -TERM $$")], [End::Signal(Signal::KILL), End::Code(143)]);
    }
}
