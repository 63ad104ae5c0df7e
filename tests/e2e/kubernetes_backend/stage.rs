//! A control plane with the controllers that Jobs need, and a hand that plays kubelet.

use bed::{Bed, Namespace, PATIENCE, htcjob};
use serde_json::{Value, json};
use testbed::{Controllers, Version, wait_for};

/// What a Job needs of kube-controller-manager.
pub const CONTROLLERS: &[&str] = &[
    "job-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "namespace-controller",
    "resourcequota-controller",
    // Without kubelet it alone ends a Pod that is deleted.
    "pod-garbage-collector-controller",
];

pub struct Stage {
    // Fields drop in this order.
    _controllers: Option<Controllers>,
    pub bed: Bed,
}

impl Stage {
    /// With the operator running.
    pub fn start(version: Version) -> Self {
        let stage = Self::new(version);
        stage.bed.start_operator();
        stage
    }

    pub fn new(version: Version) -> Self {
        Self::with(version, &["--kubernetes-backend"])
    }

    pub fn with(version: Version, arguments: &[&str]) -> Self {
        Self { _controllers: None, bed: Bed::with_controllers(version, CONTROLLERS, arguments).serving_jobs() }
    }

    /// On an API server of its own.
    pub fn of(bed: Bed) -> Self {
        Self { _controllers: Some(bed.controllers(CONTROLLERS)), bed }
    }

    /// A namespace in which Pods can be made.
    pub fn namespace(&self) -> Namespace<'_> {
        self.with_account(self.bed.namespace())
    }

    /// The same without a Role that lets the operator make them.
    pub fn closed_namespace(&self) -> Namespace<'_> {
        self.with_account(self.bed.closed_namespace())
    }

    fn with_account<'a>(&'a self, here: Namespace<'a>) -> Namespace<'a> {
        let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", here.name);
        wait_for("the ServiceAccount default", PATIENCE, || self.bed.object(&accounts, "default").is_some()).unwrap();
        here
    }

    /// Deletes it, and waits until it is gone.
    pub fn delete_namespace(&self, here: &Namespace<'_>) {
        self.bed.delete("/api/v1/namespaces", &here.name);
        wait_for("the namespace to be gone", PATIENCE, || match self.bed.object("/api/v1/namespaces", &here.name) {
            None => Ok(()),
            Some(left) => Err(left["status"].to_string()),
        })
        .unwrap_or_else(|error| {
            panic!("{error}\n{:#?}\n{:#?}\n{:#?}\n{}", here.all(), here.jobs(), here.pods(), self.bed.log())
        });
    }
}

/// One with so many jobs.
pub fn pods(name: &str, queue: u32) -> Value {
    let mut object = htcjob(name, "echo $1");
    object["spec"]["backend"] = "Kubernetes".into();
    object["spec"]["queue"] = queue.into();
    object
}

/// What belongs to one `HTCJob`.
pub trait Owned {
    fn job_name(&self, name: &str) -> String;
    fn jobs(&self) -> Vec<Value>;
    fn job(&self, name: &str) -> Value;
    fn pods(&self) -> Vec<Value>;
    fn wait_pods(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value>;
    fn wait_index(&self, index: u32) -> Value;
    fn play(&self, index: u32, status: Value);
    fn run(&self, index: u32);
    fn end(&self, index: u32, code: i32);
    fn wait_all_gone(&self);
}

impl Owned for Namespace<'_> {
    fn job_name(&self, name: &str) -> String {
        format!("{name}-{}", &self.uid(name)[..8])
    }

    fn jobs(&self) -> Vec<Value> {
        self.bed.objects(&format!("/apis/batch/v1/namespaces/{}/jobs", self.name))
    }

    fn job(&self, name: &str) -> Value {
        let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", self.name);
        self.bed.object(&jobs, &self.job_name(name)).unwrap_or_else(|| panic!("there is no Job of {name}"))
    }

    fn pods(&self) -> Vec<Value> {
        self.bed.objects(&format!("/api/v1/namespaces/{}/pods", self.name))
    }

    /// Pods that have not ended, once they are as `wanted`.
    fn wait_pods(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        wait_for(&format!("Pods: {what}"), PATIENCE, || {
            let live: Vec<Value> = self.pods().into_iter().filter(is_live).collect();
            if wanted(&live) { Ok(live) } else { Err(format!("{:?}", live.iter().map(index_of).collect::<Vec<_>>())) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{:#?}\nthe operator's log:\n{}", self.jobs(), self.bed.log()))
    }

    fn wait_index(&self, index: u32) -> Value {
        let found =
            self.wait_pods(&format!("one of index {index}"), |pods| pods.iter().any(|pod| index_of(pod) == index));
        found.into_iter().find(|pod| index_of(pod) == index).unwrap()
    }

    /// As a kubelet would say it of the Pod of this completion index.
    fn play(&self, index: u32, status: Value) {
        let pod = self.wait_index(index);
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.patch_status("pod", name, &json!({ "status": status }));
    }

    fn run(&self, index: u32) {
        self.play(
            index,
            json!({ "phase": "Running", "containerStatuses": [container(&json!({
            "running": { "startedAt": "2026-01-01T00:00:00Z" } }))] }),
        );
    }

    fn end(&self, index: u32, code: i32) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.play(
            index,
            json!({ "phase": phase, "containerStatuses": [container(&json!({ "terminated": {
            "exitCode": code, "message": format!("last words of {index}\n"),
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:07Z" } }))] }),
        );
    }

    /// No Job, no Pod and no ConfigMap of ours is left.
    fn wait_all_gone(&self) {
        let ours = |object: &Value| object["metadata"]["labels"]["htc.cern.ch/htcjob-uid"].is_string();
        wait_for("nothing to be left", PATIENCE, || {
            let maps = self.bed.objects(&format!("/api/v1/namespaces/{}/configmaps", self.name));
            let all = self.jobs().into_iter().chain(self.pods()).chain(maps).filter(ours);
            let left: Vec<String> = all.map(|object| object["metadata"]["name"].to_string()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .unwrap();
    }
}

pub fn container(state: &Value) -> Value {
    json!({ "name": "job", "image": "centos", "imageID": "", "ready": false, "restartCount": 0, "state": state })
}

fn is_live(pod: &Value) -> bool {
    let ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    !ended && pod["metadata"]["deletionTimestamp"].is_null()
}

/// The completion index.
pub fn index_of(pod: &Value) -> u32 {
    let index = &pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"];
    index.as_str().unwrap_or_default().parse().unwrap_or(u32::MAX)
}

/// An API server that never has two Jobs of one `HTCJob`: those that the test has seen, by uid.
pub fn assert_one_job(here: &Namespace<'_>, name: &str) -> String {
    let uid = here.uid(name);
    let of = |job: &Value| job["metadata"]["ownerReferences"][0]["uid"] == *uid;
    let jobs: Vec<Value> = here.jobs().into_iter().filter(of).collect();
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    jobs[0]["metadata"]["uid"].as_str().unwrap().to_owned()
}
