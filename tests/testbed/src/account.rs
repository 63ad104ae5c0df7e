//! The account that servers and the operator run under: never root.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{fs, iter};

use crate::error::{Doing, Error, Result};

/// Debian's `nobody`: HTCondor's master does not start without a passwd entry, and this one is always there.
const NOBODY: u32 = 65534;

/// The user and group that test programs run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// True when this process is root and has to change user on start of a program.
    pub drops: bool,
}

/// Where `setpriv` is. With a path std starts it by posix_spawn; with a name and another PATH it forks, which copies the page
/// tables of a program with hundreds of tests at each call.
pub(crate) fn setpriv() -> &'static Path {
    static FOUND: LazyLock<PathBuf> = LazyLock::new(|| {
        let places = ["/usr/bin/setpriv", "/bin/setpriv"].map(PathBuf::from);
        places.into_iter().find(|path| path.exists()).unwrap_or_else(|| PathBuf::from("setpriv"))
    });
    &FOUND
}

impl Account {
    /// `nobody` when this process is root, else the user it runs as.
    #[must_use]
    pub fn unprivileged() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        if uid == 0 {
            Self { uid: NOBODY, gid: NOBODY, drops: true }
        } else {
            Self { uid, gid: rustix::process::getegid().as_raw(), drops: false }
        }
    }

    /// The user this process runs as, be it root.
    #[must_use]
    pub fn caller() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), drops: false }
    }

    /// A command that runs `program` as this account. The program takes the place of `setpriv`: same process id.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        if !self.drops {
            return Command::new(program);
        }
        let mut command = Command::new(setpriv());
        command.args(self.setpriv()).arg("--").arg(program);
        command
    }

    /// The arguments with which `setpriv` becomes this account; none when it already is.
    pub(crate) fn setpriv(self) -> Vec<String> {
        if !self.drops {
            return Vec::new();
        }
        vec![
            format!("--reuid={}", self.uid),
            format!("--regid={}", self.gid),
            "--clear-groups".to_owned(),
            "--inh-caps=-all".to_owned(),
        ]
    }

    /// Makes this account the owner of `path`.
    pub fn own(self, path: &Path) -> Result<()> {
        if self.drops || self == Self::caller() {
            chown(path, Some(self.uid), Some(self.gid)).doing("changing the owner of", path)?;
        }
        Ok(())
    }

    /// Writes a file that belongs to this account, with exactly this mode.
    pub fn write(self, path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        fs::write(path, content).doing("writing", path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).doing("setting the mode of", path)?;
        self.own(path)
    }

    /// Makes a folder that belongs to this account, with exactly this mode.
    pub fn make_dir(self, path: &Path, mode: u32) -> Result<()> {
        fs::create_dir_all(path).doing("making the folder", path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).doing("setting the mode of", path)?;
        self.own(path)
    }

    /// An error when this account cannot get at `path` because a folder above it is closed to others.
    pub fn must_reach(self, path: &Path) -> Result<()> {
        if self.can_reach(path) {
            return Ok(());
        }
        Err(Error::Machine {
            problem: format!("the account {} cannot enter every folder above {}", self.uid, path.display()),
            remedy:
                "move it (HTC_TESTBED_CACHE names the cache, TMPDIR the folder for runs) or chmod o+x those folders"
                    .to_owned(),
        })
    }

    pub(crate) fn can_reach(self, path: &Path) -> bool {
        !self.drops
            || iter::successors(path.parent(), |dir| dir.parent())
                .all(|dir| fs::metadata(dir).is_ok_and(|m| m.permissions().mode() & 0o001 != 0))
    }
}
