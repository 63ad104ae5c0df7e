//! The root file system of the operator's image, from the same list of packages as the Dockerfile's.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::{Doing, Result};
use crate::packages::{Arch, Suite};
use crate::tool::run_ok;

/// What the Dockerfile installs.
const PACKAGES: &str = include_str!("../../../deploy/image/packages");
/// Makes the image's account and folders; the Dockerfile runs it too.
const PREPARE: &str = include_str!("../../../deploy/image/prepare.sh");

/// Changes with what this recipe itself makes.
const LAYOUT: &str = "2";

const LIMIT: Duration = Duration::from_mins(1);

/// The account that the image runs as: its user's and its group's number.
pub const IMAGE_ACCOUNT: u32 = 10001;

/// The image's root folder, without the operator's program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperatorImage<'a> {
    /// The Dockerfile's release.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

/// The packages of a list.
pub(crate) fn listed(packages: &'static str) -> impl Iterator<Item = &'static str> {
    packages.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What Debian's own images have, and these packages, in the folder `root`; no script of a package has run.
pub(crate) fn debian(suite: &Suite, packages: &[&str], root: &Path) -> Result<()> {
    suite.install(&[&["?essential"], packages].concat(), root)?;
    let etc = root.join("etc");
    for file in ["passwd", "group"] {
        let (from, to) = (root.join("usr/share/base-passwd").join(format!("{file}.master")), etc.join(file));
        fs::copy(&from, &to).doing("copying", &from)?;
    }
    // A container runtime mounts its own over them.
    for file in ["hosts", "hostname", "resolv.conf"] {
        let path = etc.join(file);
        fs::write(&path, "").doing("writing", &path)?;
    }
    Ok(())
}

impl Recipe for OperatorImage<'_> {
    fn key(&self) -> String {
        let of = digest(&[PACKAGES, PREPARE, LAYOUT]);
        format!("operator-image-{}-{}-{of}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        format!("the root file system of the operator's image, of Debian {} (70 MB, about 30 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        debian(self.suite, &listed(PACKAGES).collect::<Vec<_>>(), staging)?;
        // What these packages' scripts would make, as far as the operator sees it.
        let etc = staging.join("etc");
        let authorities = staging.join("usr/share/ca-certificates/mozilla");
        fs::create_dir_all(etc.join("ssl/certs")).doing("making the folder", &etc)?;
        let path = etc.join("ssl/certs/ca-certificates.crt");
        let mut bundle = fs::File::create(&path).doing("making", &path)?;
        for entry in fs::read_dir(&authorities).doing("listing", &authorities)? {
            let path = entry.doing("listing", &authorities)?.path();
            bundle.write_all(&fs::read(&path).doing("reading", &path)?).doing("writing", &path)?;
        }
        let bin = staging.join("usr/bin");
        for entry in fs::read_dir(&bin).doing("listing", &bin)? {
            let name = entry.doing("listing", &bin)?.file_name().to_string_lossy().into_owned();
            if let Some(plain) = name.strip_suffix(".mit") {
                let link = bin.join(plain);
                symlink(&name, &link).doing("linking", &link)?;
            }
        }
        run_ok("preparing the operator's image", Command::new("sh").args(["-s", "--"]).arg(staging), PREPARE, LIMIT)?;
        let program = staging.join("usr/local/bin/htc-operator");
        fs::write(&program, "").doing("making", &program)
    }
}
