//! Confinement of HTCondor's tools and of jobs, and the confinement step that enforces it.
//!
//! HTCondor's tools read files that a submit description or a job's ad names, and write where an ad says. So no tool is
//! started directly. Instead, this program starts itself again with [`COMMAND`], and gives up all access that the call
//! does not need, by the kernel's Landlock and by resource limits. Then it executes the tool. The access cannot be
//! regained.
//!
//! The program `htc-confine` is the same step in the image with HTCondor's daemons:
//! `htc-confine --landlock --read=PATH … -- PROGRAM …`.

pub mod job_wrapper;
mod leftovers;
mod limits;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::{Parser, ValueEnum};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

/// Hidden subcommand that runs the confinement step.
pub const COMMAND: &str = "confined";

/// Newest Landlock ABI that this program uses. An older kernel enforces the part that it knows.
const KNOWN: ABI = ABI::V6;

/// Rights to create anything but files and folders.
const MAKES_MORE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{MakeSym | MakeSock | MakeFifo | MakeChar | MakeBlock | IoctlDev});

/// Rights on a folder of plain files, beyond the rights on the files.
const PLAIN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadDir | MakeReg | RemoveFile | RemoveDir | Refer});

/// Exit codes of the step, as in a shell: the program cannot be started, or does not exist.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Reason why tools are not confined although they should be.
pub const NO_LANDLOCK: &str = "this kernel has no Landlock, or the container's seccomp profile does not allow it";

/// Whether HTCondor's tools are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Confinement {
    /// They are, or the operator does not start.
    Required,
    /// They are if the kernel has Landlock. Their resources are limited in any case.
    Auto,
    /// They are not, nor are their resources limited.
    Off,
}

/// What one process may touch, as its command line.
#[derive(Parser, Clone, Debug, Default)]
#[command(name = COMMAND)]
struct ConfineArgs {
    /// Confine it by Landlock; without this, only its resources are limited.
    #[arg(long)]
    landlock: bool,
    /// Number of the operator's process. The program ends by SIGKILL when its parent ends, and does not start if the operator has ended.
    #[arg(long)]
    dies_with: Option<u32>,
    /// It may change resource limits of no process but itself.
    #[arg(long)]
    own_limits: bool,
    /// A file or folder that it may read; one that is not there is left out.
    #[arg(long)]
    read: Vec<PathBuf>,
    /// A file or folder that it may read and write.
    #[arg(long)]
    write: Vec<PathBuf>,
    /// A folder in which it may read, make, change and remove files and folders, but make no symbolic link, socket, pipe or
    /// device, and start no program. Files may move, and be hard links, between these folders.
    #[arg(long)]
    files: Vec<PathBuf>,
    /// The same, but no file moves or is linked into or out of it.
    #[arg(long)]
    logs: Vec<PathBuf>,
    /// A folder in which it may do everything with files, and make nothing else: no folder, symbolic link, socket, pipe or device.
    /// None of these may move there either. Files may move between these folders and those of `write`.
    #[arg(long)]
    plain: Vec<PathBuf>,
    /// Largest address space, in bytes.
    #[arg(long)]
    memory: Option<u64>,
    /// Largest file that it may write, in bytes.
    #[arg(long)]
    file_size: Option<u64>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Reason why the program is not started. The text continues after its name.
#[derive(Debug, thiserror::Error)]
enum ConfineError {
    #[error("cannot be made to end with its parent: {0}")]
    DeathSignal(#[source] Errno),
    #[error("is not started without the operator, process {operator}: {source}")]
    NoOperator { operator: u32, source: io::Error },
    #[error("cannot be confined: {NO_LANDLOCK}")]
    NoLandlock,
    #[error("cannot be confined by Landlock: {0}")]
    Landlock(#[from] RulesetError),
    #[error("cannot be kept to limits of its own: {0}")]
    OwnLimits(#[from] seccompiler::Error),
    #[error("cannot limit {resource:?} to {most}: {source}")]
    Limit { resource: Resource, most: u64, source: Errno },
}

impl ConfineArgs {
    fn become_program(self) -> (String, u8) {
        let Some((program, arguments)) = self.program.split_first() else {
            return ("there is no program to start".to_owned(), CANNOT_START);
        };
        if let Err(error) = self.restrict() {
            return (error.to_string(), CANNOT_START);
        }
        let error = Command::new(program).args(arguments).exec();
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START };
        (format!("{}: {error}", program.to_string_lossy()), code)
    }

    fn restrict(&self) -> Result<(), ConfineError> {
        if let Some(operator) = self.dies_with {
            set_parent_process_death_signal(Some(Signal::KILL)).map_err(ConfineError::DeathSignal)?;
            // The signal is bound to the present parent, which may already be another process. A process that has ended
            // has no `exe` link, even before it is waited for.
            std::fs::read_link(format!("/proc/{operator}/exe"))
                .map_err(|source| ConfineError::NoOperator { operator, source })?;
        }
        if self.landlock {
            match self.restrict_files()? {
                RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => {}
                RulesetStatus::NotEnforced => return Err(ConfineError::NoLandlock),
            }
        }
        if self.own_limits {
            limits::keep_to_own_limits()?;
        }
        for (resource, most) in
            [(Resource::Core, Some(0)), (Resource::Fsize, self.file_size), (Resource::As, self.memory)]
        {
            if let Some(most) = most {
                let limit = lowered(&getrlimit(resource), most);
                setrlimit(resource, limit).map_err(|source| ConfineError::Limit { resource, most, source })?;
            }
        }
        Ok(())
    }

    /// Restricts file access. Also blocks signals and abstract sockets to outside processes, where the kernel knows
    /// these scopes.
    fn restrict_files(&self) -> Result<RulesetStatus, RulesetError> {
        let mut ruleset = Ruleset::default();
        if !self.files.is_empty() {
            // Linux 5.13 to 5.18 let no file move from one folder to another, whatever the rights.
            ruleset = ruleset.set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer)?;
            ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
        }
        let ruleset = ruleset.handle_access(AccessFs::from_all(KNOWN))?.scope(Scope::from_all(KNOWN))?.create()?;
        // Landlock's read rights include executing programs.
        let logs = AccessFs::from_all(KNOWN) & !(MAKES_MORE | AccessFs::Execute | AccessFs::Refer);
        let files = logs | AccessFs::Refer;
        let ruleset = ruleset.add_rules(path_beneath_rules(&self.read, AccessFs::from_read(KNOWN)))?;
        let ruleset = ruleset.add_rules(path_beneath_rules(&self.write, AccessFs::from_all(KNOWN)))?;
        let ruleset = ruleset.add_rules(path_beneath_rules(&self.files, files))?;
        let ruleset = ruleset.add_rules(path_beneath_rules(&self.logs, logs))?;
        let ruleset = ruleset.add_rules(path_beneath_rules(&self.plain, AccessFs::from_file(KNOWN) | PLAIN))?;
        Ok(ruleset.restrict_self()?.ruleset)
    }
}

/// Runs the confinement step: replaces this process by the program in `words`, which follow the operator's own name.
/// Returns only on failure, with the reason and the exit code.
#[must_use]
pub fn run_step(words: impl Iterator<Item = OsString>) -> (String, u8) {
    match ConfineArgs::try_parse_from(words) {
        Ok(confined) => confined.become_program(),
        Err(error) => (error.to_string(), CANNOT_START),
    }
}

/// Returns `most`, or the hard limit if that is lower: it cannot be raised.
fn lowered(now: &Rlimit, most: u64) -> Rlimit {
    let most = Some(now.maximum.map_or(most, |hard| hard.min(most)));
    Rlimit { current: most, maximum: most }
}

/// Returns the version of Landlock's ABI whose file rights and scopes this kernel has, or 0 without Landlock. Version 4
/// adds only network rights, and counts as 3. Versions newer than [`KNOWN`] count as that one.
///
/// Opens no file. So a lack of file descriptors cannot make it report that there is no Landlock.
fn landlock_version() -> u8 {
    let versions = [(6, ABI::V6), (5, ABI::V5), (3, ABI::V3), (2, ABI::V2), (1, ABI::V1)];
    let has = |(_, abi): &(u8, ABI)| {
        let wanted = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let files = wanted.handle_access(AccessFs::from_all(*abi));
        let scopes = Scope::from_all(*abi);
        files.and_then(|ruleset| if scopes.is_empty() { Ok(ruleset) } else { ruleset.scope(scopes) }).is_ok()
    };
    versions.into_iter().find(has).map_or(0, |(version, _)| version)
}

/// Returns whether this kernel can confine: Landlock is built in (Linux 5.13 or newer), enabled, and allowed here.
#[must_use]
pub fn kernel_has_landlock() -> bool {
    landlock_version() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_with(words: &[&str]) -> (String, u8) {
        run_step([COMMAND].iter().chain(words).map(OsString::from))
    }

    #[test]
    fn failure_before_exec_has_its_own_exit_code() {
        for words in [&["--read=", "--", "/bin/true"][..], &["--no-such-word", "--", "/bin/true"], &[]] {
            assert_eq!(step_with(words).1, CANNOT_START, "{words:?}");
        }
    }

    #[test]
    fn landlock_version_is_read_without_a_file_descriptor() {
        const KNOWN: &str = "HTC_TEST_LANDLOCK";
        if let Some(known) = std::env::var_os(KNOWN) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            assert_eq!(OsString::from(landlock_version().to_string()), known);
            return;
        }
        let own = "tests::landlock_version_is_read_without_a_file_descriptor";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", own]).env(KNOWN, landlock_version().to_string()).output().unwrap();
        let has_run = String::from_utf8_lossy(&output.stdout).contains("1 passed");
        assert!(kernel_has_landlock() && output.status.success() && has_run, "{output:?}");
    }

    #[test]
    fn resource_limit_never_exceeds_the_hard_limit() {
        let lowered = |maximum| lowered(&Rlimit { current: None, maximum }, 7).current;
        assert_eq!([None, Some(9), Some(3)].map(lowered), [Some(7), Some(7), Some(3)]);
    }
}
