//! The front of the jobs API, and the API server that knows it.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{Owned, Port, Spec, tool, wait_for};

use super::{Bed, PATIENCE, checkout, program};

const KUBECTL: Duration = Duration::from_secs(60);
/// The API server's name for the API.
pub const API_SERVICE: &str = "v1alpha1.procs.htc.cern.ch";

/// A front that the API server hands requests on to.
pub struct Front {
    process: Mutex<Option<Owned>>,
    pub port: Port,
    runs: std::sync::atomic::AtomicU32,
}

impl Bed {
    /// The front of this bed's operator, which was made by [`Bed::with_jobs_api`] and runs. The API server knows it.
    pub fn front(&self) -> &Front {
        let front = self.new_front();
        self.wait_known();
        front
    }

    /// The front, which is started if nobody has done so; nothing is waited for.
    pub fn new_front(&self) -> &Front {
        self.front.get_or_init(|| {
            let front = Front { process: Mutex::default(), port: Port::reserve().unwrap(), runs: 0.into() };
            front.start(self);
            self.make_known(front.port.number);
            front
        })
    }

    /// The port at which fronts reach the operator.
    pub fn leader_port(&self) -> u16 {
        self.leader.as_ref().expect("the operator runs with --jobs-api-listen").number
    }

    /// As a site does it, but for the Service: there is no network of pods, so that it stands for a port of this machine.
    fn make_known(&self, port: u16) {
        let folder = checkout().join("deploy/jobs-api");
        self.kube.kubectl_ok(&["apply", "-k", folder.to_str().unwrap()]).unwrap();
        let users = checkout().join("deploy/crd/users.yaml");
        self.kube.kubectl_ok(&["apply", "-f", users.to_str().unwrap()]).unwrap();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "htc-operator-jobs-api", "namespace": "htc-operator" },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        self.kube.apply_stdin(&service.to_string()).unwrap();
        let patch = json!({ "spec": { "service": { "port": port } } }).to_string();
        self.kube.kubectl_ok(&["patch", "apiservice", API_SERVICE, "--type=merge", "-p", &patch]).unwrap();
    }

    /// Until the API server has found the front, and tells clients what it serves.
    pub fn wait_known(&self) {
        let mut last = String::new();
        let known = wait_for("the jobs API in discovery", PATIENCE, || {
            let mut kubectl = self.kube.kubectl(&["get", "htcprocs", "--all-namespaces", "--request-timeout=10s"]);
            let done = tool::run("asking for jobs", &mut kubectl, "", KUBECTL).unwrap();
            last.clone_from(&done.stderr);
            done.status.success().then_some(())
        });
        if let Err(error) = known {
            let condition = self.kube.kubectl_ok(&["get", "apiservice", API_SERVICE, "-o", "yaml"]).unwrap();
            panic!(
                "{error}\n{last}\n{condition}\n{}\n{}",
                self.front.get().map(Front::log).unwrap_or_default(),
                self.log()
            );
        }
    }
}

impl Front {
    /// Starts it, on its port.
    pub fn start(&self, bed: &Bed) {
        let run = self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = bed.scratch().path().join(format!("front-{run}.log"));
        let leader = bed.leader_port();
        let spec = Spec::new(bed.scratch().share(&program()).unwrap(), log)
            .args(["jobs-api", "--log", "info,htc_operator=debug"])
            .arg(format!("--front-listen=127.0.0.1:{}", self.port.number))
            .arg(format!("--leader-url=https://127.0.0.1:{leader}"));
        *self.process.lock().unwrap() = Some(Owned::spawn(&bed.as_operator(spec)).unwrap());
    }

    /// Ends it.
    pub fn stop(&self) {
        let process = self.process.lock().unwrap().take().expect("the front runs");
        process.terminate().unwrap();
        assert!(process.wait(PATIENCE).unwrap().success(), "{}", process.log_text());
    }

    pub fn log(&self) -> String {
        self.process.lock().unwrap().as_ref().map(Owned::log_text).unwrap_or_default()
    }
}

/// The condition Available of the API.
pub fn available(bed: &Bed) -> Value {
    let service: Value =
        serde_json::from_str(&bed.kube.kubectl_ok(&["get", "apiservice", API_SERVICE, "-o", "json"]).unwrap()).unwrap();
    service["status"]["conditions"][0].clone()
}
