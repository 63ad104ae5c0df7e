//! nginx and XRootD of Debian, and XRootD's client, relocated.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::Result;
use crate::packages::{Arch, Suite, relocate};
use crate::tool::run_ok;

const CHECK: Duration = Duration::from_mins(1);

/// The servers, `xrdcp`, and what they link. nginx's own package has all modules that tests use: nginx-light adds others.
const PACKAGES: [&str; 24] = [
    "nginx",
    "libcrypt1",
    "libpcre2-8-0",
    "xrootd-server",
    "xrootd-server-plugins",
    "xrootd-client",
    "libxrdserver3t64",
    "libxrdcl3t64",
    "libxrdutils3t64",
    "libxrdapputils2t64",
    "libxrdxml3t64",
    "libsystemd0",
    "libcap2",
    "libisal2",
    "libxml2",
    "liblzma5",
    "libtinyxml2.6.2v5",
    "libuuid1",
    "libssl3t64",
    "libgcc-s1",
    "libstdc++6",
    "libc6",
    "zlib1g",
    "libzstd1",
];

/// A tree with all of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileServers<'a> {
    /// Where its packages come from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl FileServers<'_> {
    /// The folder of XRootD's programs, and of those alone.
    #[must_use]
    pub(crate) fn xrootd_bin(home: &Path) -> PathBuf {
        home.join("usr/bin")
    }

    /// nginx.
    #[must_use]
    pub(crate) fn nginx(home: &Path) -> PathBuf {
        home.join("usr/sbin/nginx")
    }
}

impl Recipe for FileServers<'_> {
    fn key(&self) -> String {
        format!("file-servers-{}-{}-{}", self.suite.name(), self.arch.debian, digest(&PACKAGES))
    }

    fn waits_for(&self) -> String {
        format!("nginx and XRootD of Debian {} (11 MB, about 5 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, home: &Path) -> Result<()> {
        self.suite.unpack(&PACKAGES, staging)?;
        let libraries = staging.join("usr/lib").join(self.arch.triplet);
        for superfluous in ["gconv", "audit"] {
            crate::cache::remove(&libraries.join(superfluous))?;
        }
        relocate(staging, home, self.arch, &["usr/bin", "usr/sbin"])
    }

    fn check(&self, home: &Path) -> Result<()> {
        let [xrootd, xrdcp] = ["xrootd", "xrdcp"].map(|program| Self::xrootd_bin(home).join(program));
        for (program, version) in [(Self::nginx(home), "-v"), (xrootd, "-v"), (xrdcp, "--version")] {
            run_ok("trying a file server", Command::new(program).arg(version), "", CHECK)?;
        }
        Ok(())
    }
}
