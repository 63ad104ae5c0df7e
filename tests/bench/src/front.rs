//! The jobs API beside the operator: its front, and the API server that knows it.

use std::time::Duration;

use serde_json::json;
use testbed::{Owned, Port, Spec, wait_for};

use crate::bed::Bed;
use crate::error::Result;
use crate::usage::Usage;

/// The API server's name for the API.
const API_SERVICE: &str = "v1alpha1.procs.htc.cern.ch";

/// A front that runs; ends with this value.
pub(crate) struct Front {
    process: Owned,
    _ports: [Port; 2],
}

impl Front {
    /// Starts the operator again with the jobs API, and a front of it; returns when the API server hands requests on.
    pub(crate) fn start(bed: &mut Bed) -> Result<Self> {
        let ports = [Port::reserve()?, Port::reserve()?];
        let [leader, port] = ports.each_ref().map(|port| port.number);
        bed.restart_with(&[format!("--jobs-api-listen=127.0.0.1:{leader}")])?;
        let spec = bed
            .with_kubeconfig(Spec::new(bed.program(), bed.scratch.path().join("front.log")))
            .arg("jobs-api")
            .arg(format!("--front-listen=127.0.0.1:{port}"))
            .arg(format!("--leader-url=https://127.0.0.1:{leader}"));
        let front = Self { process: Owned::spawn(&spec)?, _ports: ports };
        // There is no network of pods: the Service stands for a port of this machine.
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "htc-operator-jobs-api", "namespace": "htc-operator" },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        let known = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": API_SERVICE },
            "spec": {
                "group": "procs.htc.cern.ch", "version": "v1alpha1",
                "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": { "namespace": "htc-operator", "name": "htc-operator-jobs-api", "port": port },
            },
        });
        bed.kube().apply_stdin(&service.to_string())?;
        bed.kube().apply_stdin(&known.to_string())?;
        wait_for("the jobs API", Duration::from_mins(2), || {
            bed.kube().kubectl_ok(&["get", "htcprocs", "--all-namespaces", "--field-selector=spec.index=0"]).map(drop)
        })?;
        Ok(front)
    }

    /// What it takes of the machine.
    pub(crate) fn usage(&self) -> Result<Usage> {
        Usage::of(self.process.pid())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Who measures next finds no API that does not answer.
    pub(crate) fn end(self, bed: &mut Bed) -> Result<()> {
        bed.kube().kubectl_ok(&["delete", "apiservice", API_SERVICE])?;
        drop(self);
        bed.restart_with(&[])
    }
}
