//! The front of the jobs API, and the API server that knows it.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};
use testbed::{Account, KubeOptions, Owned, PoolOptions, Port, SERVICE_ACCOUNTS, Spec, Version, wait_for};

use super::{Bed, PATIENCE, http, kubeconfig_with, program, rights};

/// The API server's name for the API.
pub const API_SERVICE: &str = "v1alpha1.procs.htc.cern.ch";

/// The account of the fronts.
const FRONT: &str = "system:serviceaccount:htc-operator:htc-operator-jobs-api";

/// A front that the API server hands requests on to.
pub struct Front {
    process: Mutex<Option<Owned>>,
    pub port: Port,
    /// Where kubelet would ask.
    health: Port,
    kubeconfig: PathBuf,
    runs: std::sync::atomic::AtomicU32,
}

impl Bed {
    /// Servers without the operator, which will serve the jobs API.
    pub fn with_jobs_api(version: Version, arguments: &[&str]) -> Self {
        Self::new(version, &PoolOptions::default(), arguments).serving_jobs()
    }

    /// The same, with an API server for this test alone, beside which [`Bed::controllers`] may run.
    pub fn with_jobs_api_alone(version: Version, kube: &KubeOptions, arguments: &[&str]) -> Self {
        Self::with_kube(version, kube, &PoolOptions::default(), arguments).serving_jobs()
    }

    /// The operator will serve the jobs API, too.
    #[must_use]
    pub fn serving_jobs(mut self) -> Self {
        let port = Port::reserve().unwrap();
        self.arguments.push(format!("--jobs-api-listen=127.0.0.1:{}", port.number));
        self.leader = Some(port);
        rights::grant(&self.reader, &rights::of_component(rights::JOBS_API));
        self
    }

    /// The front of this bed's operator, which was made by [`Bed::with_jobs_api`] and runs. The API server knows it.
    pub fn front(&self) -> &Front {
        let front = self.new_front();
        self.wait_known();
        front
    }

    /// The front, which is started if nobody has done so; nothing is waited for.
    pub fn new_front(&self) -> &Front {
        self.front.get_or_init(|| {
            let front = Front::new(self.kube.kubeconfig_for(FRONT, Some(SERVICE_ACCOUNTS)).unwrap());
            front.start(self);
            self.make_known(front.port.number);
            front
        })
    }

    /// The front, which shows the API server this token and nothing else. Nobody makes it known to the API server.
    pub fn front_as(&self, token: &str) -> &Front {
        self.front.get_or_init(|| {
            let kubeconfig = self.scratch.path().join("kubeconfig-front");
            Account::unprivileged().write(&kubeconfig, kubeconfig_with(&self.kube, token), 0o600).unwrap();
            let front = Front::new(kubeconfig);
            front.start(self);
            front
        })
    }

    /// The port at which fronts reach the operator.
    pub fn leader_port(&self) -> u16 {
        self.leader.as_ref().expect("the operator runs with --jobs-api-listen").number
    }

    /// As a site does it, but for the Service: there is no network of pods, so that it stands for a port of this machine.
    fn make_known(&self, port: u16) {
        for file in ["jobs-api/reader.yaml", "jobs-api/users.yaml", "crd/users.yaml", "jobs-api/apiservice.yaml"] {
            for mut object in self.deploy(file) {
                if object["kind"] == "APIService" {
                    object["spec"]["service"]["port"] = port.into();
                }
                self.apply(&object);
            }
        }
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "htc-operator-jobs-api", "namespace": "htc-operator" },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        }));
    }

    /// Until the API server has found the front, and tells clients what it serves.
    pub fn wait_known(&self) {
        let known = wait_for("the jobs API in discovery", PATIENCE, || {
            self.kube.has_kind("procs.htc.cern.ch", "v1alpha1", "htcprocs")
        });
        if let Err(error) = known {
            panic!(
                "{error}\n{:#}\n{}\n{}",
                available(self),
                self.front.get().map(Front::log).unwrap_or_default(),
                self.log()
            );
        }
    }
}

impl Front {
    fn new(kubeconfig: PathBuf) -> Self {
        let [port, health] = [(); 2].map(|()| Port::reserve().unwrap());
        Self { process: Mutex::default(), port, health, kubeconfig, runs: 0.into() }
    }

    /// Whether kubelet would find it ready; what it says.
    pub fn readiness(&self) -> std::io::Result<(bool, String)> {
        let answer = http::get(([127, 0, 0, 1], self.health.number).into(), "/readyz")?;
        Ok((answer.status == 200, answer.body))
    }

    /// Starts it, on its port.
    pub fn start(&self, bed: &Bed) {
        let run = self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = bed.scratch().path().join(format!("front-{run}.log"));
        let leader = bed.leader_port();
        let spec = Spec::new(bed.scratch().share(&program()).unwrap(), log)
            .args(["jobs-api", "--log-level", "info,htc=debug"])
            .arg(format!("--front-listen=127.0.0.1:{}", self.port.number))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{}", self.health.number))
            .arg(format!("--leader-url=https://127.0.0.1:{leader}"));
        let spec = bed.as_operator(spec).env("KUBECONFIG", &self.kubeconfig);
        *self.process.lock().unwrap() = Some(Owned::spawn(&spec).unwrap());
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
    let service = bed.object("/apis/apiregistration.k8s.io/v1/apiservices", API_SERVICE).expect("the API is known");
    service["status"]["conditions"][0].clone()
}
