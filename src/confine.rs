//! What a tool may touch, and the step that sees to it.
//!
//! HTCondor's tools read files that a submit description or the ad of a job names, and write where an ad says. So none is
//! started as it is: this program starts itself once more with [`COMMAND`], gives up all that the call does not need, by
//! the kernel's Landlock and by resource limits, and then becomes the tool. What it gave up does not come back.
//!
//! The program `htc-confine` is the same step in the image with HTCondor's daemons: `htc-confine --landlock --read=PATH … -- PROGRAM …`.

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
    RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

/// The hidden subcommand that is this step.
pub const COMMAND: &str = "confined";

/// What is known of Landlock here; of this, each kernel keeps to what it knows.
const KNOWN: ABI = ABI::V6;

/// The rights to make what is neither a file nor a folder.
const MAKES_MORE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{MakeSym | MakeSock | MakeFifo | MakeChar | MakeBlock | IoctlDev});

/// The rights on a folder of plain files, beside those on the files.
const PLAIN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadDir | MakeReg | RemoveFile | RemoveDir | Refer});

/// Exit codes of the step, as a shell has them: the program cannot be started, or is not there.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why tools are not confined although they should be.
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
struct Confined {
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

impl Confined {
    fn become_program(self) -> (String, u8) {
        let Some((program, arguments)) = self.program.split_first() else {
            return ("there is no program to start".to_owned(), CANNOT_START);
        };
        if let Err(why) = self.restrict() {
            return (why, CANNOT_START);
        }
        let error = Command::new(program).args(arguments).exec();
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START };
        (format!("{}: {error}", program.to_string_lossy()), code)
    }

    fn restrict(&self) -> Result<(), String> {
        if let Some(operator) = self.dies_with {
            set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(|error| format!("cannot be made to end with its parent: {error}"))?;
            // The signal is that of who is the parent by now. A process that has ended has no program, also before it is waited for.
            std::fs::read_link(format!("/proc/{operator}/exe"))
                .map_err(|error| format!("is not started without the operator, process {operator}: {error}"))?;
        }
        if self.landlock {
            match self.restrict_files() {
                Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {}
                Ok(RulesetStatus::NotEnforced) => return Err(format!("cannot be confined: {NO_LANDLOCK}")),
                Err(error) => return Err(format!("cannot be confined by Landlock: {error}")),
            }
        }
        if self.own_limits {
            limits::keep_to_own_limits().map_err(|error| format!("cannot be kept to limits of its own: {error}"))?;
        }
        for (resource, most) in
            [(Resource::Core, Some(0)), (Resource::Fsize, self.file_size), (Resource::As, self.memory)]
        {
            if let Some(most) = most {
                let limit = lowered(&getrlimit(resource), most);
                setrlimit(resource, limit).map_err(|error| format!("cannot limit {resource:?} to {most}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Signals and abstract sockets of processes outside are out of reach, too, where the kernel knows these scopes.
    fn restrict_files(&self) -> Result<RulesetStatus, landlock::RulesetError> {
        let mut ruleset = Ruleset::default();
        if !self.files.is_empty() {
            // Linux 5.13 to 5.18 let no file move from one folder to another, in whatever rights.
            ruleset = ruleset.set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::Refer)?;
            ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
        }
        let ruleset = ruleset.handle_access(AccessFs::from_all(KNOWN))?.scope(Scope::from_all(KNOWN))?.create()?;
        // Landlock counts starting a program as reading.
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

/// The step: becomes the program that the words after the operator's own name say. Comes back only if that cannot be: with
/// why, and the exit code.
#[must_use]
pub fn step(words: impl Iterator<Item = OsString>) -> (String, u8) {
    match Confined::try_parse_from(words) {
        Ok(confined) => confined.become_program(),
        Err(error) => (error.to_string(), CANNOT_START),
    }
}

/// `most`, or what the hard limit allows: nobody may raise that.
fn lowered(now: &Rlimit, most: u64) -> Rlimit {
    let most = Some(now.maximum.map_or(most, |hard| hard.min(most)));
    Rlimit { current: most, maximum: most }
}

/// The version of Landlock's ABI whose rights on files and whose scopes this kernel has, 0 without any. Version 4 is of the network alone,
/// and counts as 3; versions that are newer than [`KNOWN`] count as that.
///
/// Opens no file: what cannot confine itself for want of a file descriptor is not to go on without.
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

/// Whether this kernel confines: Landlock is built in (Linux 5.13 or newer), switched on, and allowed here.
#[must_use]
pub fn kernel_has_landlock() -> bool {
    landlock_version() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_with(words: &[&str]) -> (String, u8) {
        step([COMMAND].iter().chain(words).map(OsString::from))
    }

    #[test]
    fn what_fails_before_the_program_starts_is_not_taken_for_its_answer() {
        for words in [&["--read=", "--", "/bin/true"][..], &["--no-such-word", "--", "/bin/true"], &[]] {
            assert_eq!(step_with(words).1, CANNOT_START, "{words:?}");
        }
    }

    #[test]
    fn landlock_is_known_without_a_file_descriptor() {
        const KNOWN: &str = "HTC_TEST_LANDLOCK";
        if let Some(known) = std::env::var_os(KNOWN) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            assert_eq!(OsString::from(landlock_version().to_string()), known);
            return;
        }
        let own = "confine::tests::landlock_is_known_without_a_file_descriptor";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", own]).env(KNOWN, landlock_version().to_string()).output().unwrap();
        assert!(kernel_has_landlock() && output.status.success(), "{output:?}");
    }

    #[test]
    fn a_limit_is_never_above_the_hard_one() {
        let lowered = |maximum| lowered(&Rlimit { current: None, maximum }, 7).current;
        assert_eq!([None, Some(9), Some(3)].map(lowered), [Some(7), Some(7), Some(3)]);
    }
}
