//! HTCondor's `USER_JOB_WRAPPER` on the workers of managed pools: starts a job confined, and ends all processes that it
//! has started.
//!
//! Jobs there run under the account of HTCondor's daemons, in the same container. So the wrapper denies a job access to
//! HTCondor's folders except the job's own, and by Landlock's domains to HTCondor's processes. There are two nested
//! domains. The wrapper itself is in the outer one, so that it can send signals to the job and to nothing else. The job
//! is in the inner one, and cannot send any to the wrapper.

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

use super::leftovers::{clear_shared_memory, end_children, end_orphans, remove_links, restore_streams};
use super::{CANNOT_START, COMMAND, ConfineArgs, landlock_version};

/// Folder of HTCondor's files on workers.
pub const POOL_FOLDER: &str = "/htcpool";
/// Folder with a subfolder for each job.
pub const EXECUTE_FOLDER: &str = "/htcpool/local/execute";
/// Variable in the environment of jobs: name of the folder that `job.sh` has for the payload. Jobs of earlier versions
/// lack it.
pub const WORK_VARIABLE: &str = "HTC_WORK";
/// Folder of the wrapper within the tree of HTCondor's programs.
pub const LIBEXEC: &str = "usr/libexec/condor";
/// Minimum version of Landlock's ABI for confining a job. With version 1, no file can be moved from one folder to
/// another.
const FILES: u8 = 2;
/// Version of Landlock's ABI with the scopes of signals and of abstract sockets.
const SCOPES: u8 = 6;
/// Maximum wait for processes to end after SIGKILL.
const MOST: Duration = Duration::from_secs(20);
/// Signals that are forwarded to the job.
const FORWARDED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// How the jobs of a worker are confined: the word in the attribute `HTCPayloads` of its slots.
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
pub enum PayloadConfinement {
    /// Not confined: the image with HTCondor has no wrapper, or the worker was created before there was one.
    ImageTooOld,
    /// Not confined: the kernel has no Landlock, or one that is too old.
    NoLandlock,
    /// Files and the memory of other processes are out of reach. Signals and abstract sockets are not.
    FilesOnly,
    /// Files, memory, signals and abstract sockets of others are out of reach.
    Confined,
}

impl PayloadConfinement {
    /// Returns how this kernel can confine jobs.
    #[must_use]
    pub fn here() -> Self {
        match landlock_version() {
            SCOPES.. => Self::Confined,
            FILES.. => Self::FilesOnly,
            _ => Self::NoLandlock,
        }
    }
}

/// Reason why a job is not started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// HTCondor's starter passed no program.
    #[error("there is no job to start")]
    NoJob,
    /// The wrapper's parent has ended.
    #[error("HTCondor's starter has ended")]
    Orphan,
    /// Processes of an earlier job do not end, so the worker must not run another one.
    #[error("processes of an earlier job on this worker do not end")]
    Leftovers,
    /// The kernel has Landlock, but does not confine this process.
    #[error("the job cannot be confined: {0}")]
    Unconfined(#[from] RulesetError),
    /// The job has run, but its output must not be read.
    #[error("links that the job has left cannot be removed: {0}")]
    Links(io::Error),
    #[error("the job cannot be started: {0}")]
    System(#[from] io::Error),
}

/// How a job has ended, and the wrapper after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrapperExit {
    Code(u8),
    /// Number of a signal.
    Signal(i32),
}

/// Starts the job and waits for its end. `words` are its program and arguments. Returns its exit code, or ends by the
/// signal that ended the job.
///
/// # Errors
/// The job was not started, or its output must not be read.
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
    clear_shared_memory(tree, &program);
    let current = std::env::current_dir()?;
    let own = own_folder(&current);
    let mut command = Command::new(&program);
    command.arg(COMMAND).arg(format!("--dies-with={}", std::process::id()));
    let mut scoped = false;
    if PayloadConfinement::here() >= PayloadConfinement::FilesOnly {
        let mut writes = apart_from(&[Path::new(POOL_FOLDER), tree])?;
        command.args(["--landlock", "--own-limits"]).args(writes.iter().map(|path| option("--write=", path)));
        if let Some(own) = &own {
            command.args(of_own_folder(own, &current, std::env::var_os(WORK_VARIABLE).as_deref()));
        }
        writes.extend(own.clone());
        // The confinement step that starts the job is a program of this tree.
        let outer = ConfineArgs { read: vec![tree.to_owned()], write: writes, ..ConfineArgs::default() };
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
        WrapperExit::Code(code) => Ok(code),
        WrapperExit::Signal(signal) => {
            end_by(signal);
            Ok(128_u8.saturating_add(signal.try_into().unwrap_or_default()))
        }
    }
}

/// Runs the job, forwards signals to it, and meanwhile reaps all processes that this one inherits.
async fn job(command: &mut Command) -> io::Result<WrapperExit> {
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
                // The job may have ended.
                let _ = kill_process(child, signal);
            }
        }
    }
}

fn end(status: WaitStatus) -> WrapperExit {
    let is_forwarded = |signal: &i32| FORWARDED.iter().any(|forwarded| forwarded.as_raw() == *signal);
    let by = status.terminating_signal().filter(|signal| !is_forwarded(signal));
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    by.map_or_else(
        || WrapperExit::Code(code.and_then(|code| code.try_into().ok()).unwrap_or(CANNOT_START)),
        WrapperExit::Signal,
    )
}

/// Ends this process by a signal. `job.sh` ends by real-time signals, which have no names. A shell sends those, because
/// rustix has no safe function for them.
fn end_by(signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = kill_process(getpid(), signal);
    } else {
        let kill = ["-c", "kill -\"$1\" \"$PPID\"", "sh"];
        let _ = std::process::Command::new("/bin/sh").args(kill).arg(signal.to_string()).status();
    }
}

/// Ends all processes that the job has started.
fn end_all(scoped: bool) {
    // The domain permits the wrapper to send signals to the job only, not even to its parent of the same account.
    let confined = || getppid().is_some_and(|parent| test_kill_process(parent) == Err(Errno::PERM));
    if scoped && confined() {
        // kill(-1) acts in one step, so that processes that start others without end cannot outrun it.
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
    }
    end_children(MOST);
}

/// Returns the folder tree of HTCondor's programs.
fn tree(program: &Path) -> &Path {
    let folder = program.parent().unwrap_or(program);
    if folder.ends_with(LIBEXEC) { folder.ancestors().nth(3).unwrap_or(folder) } else { folder }
}

/// Returns the folder that HTCondor created for the job with this working directory, if it is in [`EXECUTE_FOLDER`].
fn own_folder(current: &Path) -> Option<PathBuf> {
    let name = current.strip_prefix(EXECUTE_FOLDER).ok()?.components().next()?;
    Some(Path::new(EXECUTE_FOLDER).join(name))
}

/// Returns the options of the confinement step for the folder that HTCondor created for the job. `work` is the value of
/// [`WORK_VARIABLE`].
///
/// HTCondor's starter is not confined. It follows links in `current`, where the job is started, and returns no output
/// if a stream's file is replaced by a folder. The wrapper removes both, but the wrapper may be killed before, for
/// example for lack of memory. So no process of a job, `job.sh` included, may create anything but plain files there. In
/// the folder `work`, where HTCondor does not look, it may create anything.
fn of_own_folder(own: &Path, current: &Path, work: Option<&OsStr>) -> Vec<OsString> {
    let Some(work) = work.filter(|work| Path::new(work).file_name() == Some(work)) else {
        return vec![option("--write=", own)];
    };
    let mut options = vec![option("--read=", own), option("--plain=", current)];
    let work = current.join(work);
    // If it cannot be created, `job.sh` cannot create it either, and reports that.
    if fs::create_dir(&work).is_ok() {
        options.push(option("--write=", &work));
    }
    options
}

/// Returns all of the file system except the folders `taken`, as the entries of `/` and of each folder that contains
/// one of these.
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
    fn job_folder_is_its_own_below_the_execute_folder() {
        let of = |folder: &str| own_folder(Path::new(folder));
        assert_eq!(of("/htcpool/local/execute/dir_7"), Some("/htcpool/local/execute/dir_7".into()));
        assert_eq!(of("/htcpool/local/execute/dir_7/scratch"), Some("/htcpool/local/execute/dir_7".into()));
        assert_eq!([of("/htcpool/local/execute"), of("/htcpool/local/log"), of("/tmp/x")], [None, None, None]);
    }

    #[test]
    fn tree_is_the_installation_of_the_wrapper() {
        let of = |program: &str| tree(Path::new(program)).to_owned();
        assert_eq!(of("/htcondor/usr/libexec/condor/htc-job-wrapper"), Path::new("/htcondor"));
        assert_eq!(of("/opt/htc-job-wrapper"), Path::new("/opt"));
    }

    #[test]
    fn remaining_paths_are_all_but_the_excluded_ones() {
        let all = apart_from(&[]).unwrap();
        assert!(all.contains(&"/usr".into()) && all.contains(&"/proc".into()), "{all:?}");
        let rest = apart_from(&[Path::new("/usr/bin"), Path::new("/proc")]).unwrap();
        assert!(rest.contains(&"/usr/lib".into()) && rest.contains(&"/etc".into()), "{rest:?}");
        for path in ["/", "/usr", "/usr/bin", "/proc"] {
            assert!(!rest.contains(&path.into()), "{path}: {rest:?}");
        }
    }

    #[test]
    fn wrapper_ends_with_the_signal_of_the_job() {
        let ended = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().try_into().unwrap());
            let (_, status) = rustix::process::waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
            let _ = child.try_wait();
            end(status)
        };
        assert_eq!([ended("exit 0"), ended("exit 255")], [WrapperExit::Code(0), WrapperExit::Code(255)]);
        assert_eq!(
            [ended("kill -KILL $$"), ended("kill -43 $$"), ended("kill -TERM $$")],
            [WrapperExit::Signal(Signal::KILL.as_raw()), WrapperExit::Signal(43), WrapperExit::Code(143)]
        );
    }
}
