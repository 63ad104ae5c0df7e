//! What a tool may touch, and the step that sees to it.
//!
//! HTCondor's tools read files that a submit description or the ad of a job names, and write where an ad says. So none is
//! started as it is: this program starts itself once more with [`COMMAND`], gives up all that the call does not need, by
//! the kernel's Landlock and by resource limits, and then becomes the tool. What it gave up does not come back.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueEnum};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The hidden subcommand that is this step.
pub const COMMAND: &str = "confined";

/// What is known of Landlock here; of this, each kernel keeps to what it knows.
const KNOWN: ABI = ABI::V5;

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
#[derive(Args, Clone, Debug, Default)]
pub struct Confined {
    /// Confine it by Landlock; without this, only its resources are limited.
    #[arg(long)]
    landlock: bool,
    /// A file or folder that it may read; one that is not there is left out.
    #[arg(long)]
    read: Vec<PathBuf>,
    /// A file or folder that it may read and write.
    #[arg(long)]
    write: Vec<PathBuf>,
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
    /// Becomes the program. Comes back only if that cannot be: with why.
    #[must_use]
    pub fn become_program(self) -> String {
        let Some((program, arguments)) = self.program.split_first() else {
            return "there is no program to start".to_owned();
        };
        if let Err(why) = self.restrict() {
            return why;
        }
        let error = Command::new(program).args(arguments).exec();
        format!("{}: {error}", program.to_string_lossy())
    }

    fn restrict(&self) -> Result<(), String> {
        if self.landlock {
            match restrict_files(&self.read, &self.write) {
                Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {}
                Ok(RulesetStatus::NotEnforced) => return Err("this kernel has no Landlock any more".to_owned()),
                Err(error) => return Err(format!("cannot be confined by Landlock: {error}")),
            }
        }
        for (resource, most) in
            [(Resource::Core, Some(0)), (Resource::Fsize, self.file_size), (Resource::As, self.memory)]
        {
            if let Some(most) = most {
                let limit = Rlimit { current: Some(most), maximum: Some(most) };
                setrlimit(resource, limit).map_err(|error| format!("cannot limit {resource:?} to {most}: {error}"))?;
            }
        }
        Ok(())
    }
}

fn restrict_files(read: &[PathBuf], write: &[PathBuf]) -> Result<RulesetStatus, landlock::RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(KNOWN))?.create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(read, AccessFs::from_read(KNOWN)))?;
    let ruleset = ruleset.add_rules(path_beneath_rules(write, AccessFs::from_all(KNOWN)))?;
    Ok(ruleset.restrict_self()?.ruleset)
}

/// Whether this kernel confines: Landlock is built in (Linux 5.13 or newer) and switched on.
#[must_use]
pub fn kernel_has_landlock() -> bool {
    let wanted = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    wanted.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}
