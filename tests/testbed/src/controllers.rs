//! kube-controller-manager: what deletes the objects of a deleted namespace, aggregates ClusterRoles and makes the pods of a Job.

use std::path::Path;

use crate::assets::Assets;
use crate::error::Result;
use crate::kube::Kube;
use crate::owned::{Owned, Spec};
use crate::scratch::Scratch;

/// A kube-controller-manager with some of its controllers; ends with this value.
#[derive(Debug)]
pub struct Controllers {
    // Fields drop in this order.
    process: Owned,
    _scratch: Scratch,
}

impl Controllers {
    /// Starts these, such as `namespace-controller` or `job-controller`, beside a control plane. Each acts under the rights that it
    /// has in every cluster.
    pub fn start(assets: &Assets, kube: &Kube, which: &[&str]) -> Result<Self> {
        let scratch = Scratch::new()?;
        let spec = spec(assets.kube_controller_manager(), kube, &scratch)?
            .arg(format!("--controllers={}", which.join(",")))
            // Any number of them may run on this machine.
            .arg("--secure-port=0");
        Ok(Self { process: Owned::spawn(&spec)?, _scratch: scratch })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn run(&self) -> bool {
        self.process.is_running()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log_text()
    }
}

/// All controllers, unless more is said.
pub(crate) fn spec(program: &Path, kube: &Kube, scratch: &Scratch) -> Result<Spec> {
    let kubeconfig = kube.kubeconfig_for("system:kube-controller-manager", None)?;
    let certs = kube.authority();
    let files = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|flag| format!("--{flag}={}", kubeconfig.display()));
    Ok(Spec::new(program, scratch.path().join("kube-controller-manager.log"))
        .args(files)
        .args(["--leader-elect=false", "--bind-address=127.0.0.1", "--authentication-tolerate-lookup-failure=true"])
        .args(["--use-service-account-credentials=true", "--service-cluster-ip-range=10.96.0.0/16"])
        .arg(format!("--cert-dir={}", scratch.dir("kube-controller-manager")?.display()))
        .arg(format!("--service-account-private-key-file={}", certs.service_account_key().display()))
        .arg(format!("--root-ca-file={}", certs.ca().display())))
}
