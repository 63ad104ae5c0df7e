//! Kerberos of Debian: a KDC, what fills its database, and `kinit`, relocated.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::{Doing, Result};
use crate::packages::{Arch, Suite, relocate};
use crate::tool::run_ok;

const CHECK: Duration = Duration::from_mins(1);

/// The KDC, its tools, the client's, and what they link.
const PACKAGES: [&str; 21] = [
    "krb5-kdc",
    "krb5-admin-server",
    "krb5-user",
    "libkrb5-3",
    "libkrb5support0",
    "libk5crypto3",
    "libcom-err2",
    "libkeyutils1",
    "libgssapi-krb5-2",
    "libgssrpc4t64",
    "libkadm5srv-mit12",
    "libkadm5clnt-mit12",
    "libkdb5-10t64",
    "libss2",
    "libverto1t64",
    "libverto-libev1t64",
    "libev4t64",
    "libssl3t64",
    "libc6",
    "zlib1g",
    "libzstd1",
];

/// What Debian calls by another name, and links to by its alternatives.
const CLIENTS: [&str; 2] = ["kinit", "klist"];

/// A tree with all of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kerberos<'a> {
    /// Where its packages come from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Kerberos<'_> {
    /// The folder of the client's programs.
    #[must_use]
    pub(crate) fn bin(home: &Path) -> PathBuf {
        home.join("usr/bin")
    }
}

impl Recipe for Kerberos<'_> {
    fn key(&self) -> String {
        format!("kerberos-{}-{}-{}", self.suite.name(), self.arch.debian, digest(&PACKAGES))
    }

    fn waits_for(&self) -> String {
        format!("a Kerberos KDC of Debian {} (about 5 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, home: &Path) -> Result<()> {
        self.suite.unpack(&PACKAGES, staging)?;
        let libraries = format!("usr/lib/{}", self.arch.triplet);
        for superfluous in ["gconv", "audit"] {
            crate::cache::remove(&staging.join(&libraries).join(superfluous))?;
        }
        let plugins = format!("{libraries}/krb5/plugins");
        relocate(staging, home, self.arch, &["usr/bin", "usr/sbin"])?;
        for program in CLIENTS {
            let link = staging.join("usr/bin").join(program);
            symlink(format!("{program}.mit"), &link).doing("linking", &link)?;
        }
        let place = staging.join("plugins");
        fs::write(&place, &plugins).doing("writing", &place)
    }

    fn check(&self, home: &Path) -> Result<()> {
        run_ok("trying Kerberos", Command::new(Self::bin(home).join("klist")).arg("-V"), "", CHECK).map(drop)
    }
}
