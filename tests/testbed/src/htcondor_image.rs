//! The root file system of the image `htcondor`, from the same list of packages as the Dockerfile's.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::{Doing as _, Result};
use crate::operator_image::{debian, listed};
use crate::packages::{Arch, Suite};
use crate::tool::run_ok;

/// What the Dockerfile unpacks.
const PACKAGES: &str = include_str!("../../../deploy/image/htcondor-packages");
/// Makes it run from a folder of any image; the Dockerfile runs it too.
const RELOCATE: &str = include_str!("../../../deploy/image/relocate.sh");
/// That folder.
const HOME: &str = "htcondor";
/// Where the programs of this checkout are in it, as the Dockerfile says.
const LIBEXEC: &str = "usr/libexec/condor";
const OWN: &[&str] = &["htc-confine", "htc-job-wrapper"];

/// Changes with what this recipe itself makes.
const LAYOUT: &str = "1";

const LIMIT: Duration = Duration::from_mins(2);

/// The image's root folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HtcondorImage<'a> {
    /// The Dockerfile's release.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Recipe for HtcondorImage<'_> {
    fn key(&self) -> String {
        let of = digest(&[PACKAGES, RELOCATE, LAYOUT]);
        format!("htcondor-image-{}-{}-{of}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        format!("the root file system of the image htcondor, of Debian {} (50 MB, about 20 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        debian(self.suite, &[], staging)?;
        let tree = staging.join(HOME);
        self.suite.unpack(&listed(PACKAGES).collect::<Vec<_>>(), &tree)?;
        relocate(&tree)
    }
}

/// A layer on the image, with the programs of this checkout that it has; `programs` is where they are.
pub(crate) fn own_programs(programs: &Path, layer: &Path) -> Result<()> {
    let tree = layer.join(HOME);
    let folder = tree.join(LIBEXEC);
    fs::create_dir_all(&folder).doing("making the folder", &folder)?;
    for name in OWN {
        let program = programs.join(name);
        fs::copy(&program, folder.join(name)).doing("copying", &program)?;
    }
    relocate(&tree)
}

/// Makes what is in this folder run from the image's folder with HTCondor.
fn relocate(tree: &Path) -> Result<()> {
    let mut relocate = Command::new("sh");
    relocate.args(["-s", "--"]).arg(tree).arg(format!("/{HOME}"));
    run_ok("relocating HTCondor", &mut relocate, RELOCATE, LIMIT).map(drop)
}
