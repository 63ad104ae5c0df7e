//! What a node runs beside Kubernetes' own programs: containerd, runc and CNI plugins, from Debian's packages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::Result;
use crate::packages::{Arch, Suite, relocate};
use crate::tool::run_ok;

const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "nftables"];
const CHECK: Duration = Duration::from_mins(1);

/// A container runtime, relocated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerRuntime<'a> {
    /// Where its packages come from. kubelet 1.36 asks for containerd 2.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl ContainerRuntime<'_> {
    /// The folder of `containerd`, its shim and `ctr`.
    pub(crate) fn bin(home: &Path) -> PathBuf {
        home.join("usr/bin")
    }

    /// The folder of `runc` and `nft`.
    pub(crate) fn sbin(home: &Path) -> PathBuf {
        home.join("usr/sbin")
    }

    /// The folder of the CNI plugins.
    pub(crate) fn plugins(home: &Path) -> PathBuf {
        home.join("usr/lib/cni")
    }
}

impl Recipe for ContainerRuntime<'_> {
    fn key(&self) -> String {
        format!("container-runtime-{}-{}-{}", self.suite.name(), self.arch.debian, digest(&PACKAGES))
    }

    fn waits_for(&self) -> String {
        format!("containerd, runc and CNI plugins of Debian {} (100 MB, about 30 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, home: &Path) -> Result<()> {
        self.suite.install(&PACKAGES, staging)?;
        relocate(staging, home, self.arch, &["usr/bin", "usr/sbin", "usr/lib/cni"])
    }

    fn check(&self, home: &Path) -> Result<()> {
        for program in [Self::bin(home).join("containerd"), Self::sbin(home).join("runc"), Self::sbin(home).join("nft")]
        {
            run_ok("trying the container runtime", Command::new(program).arg("--version"), "", CHECK)?;
        }
        Ok(())
    }
}
