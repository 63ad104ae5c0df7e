//! A site whose operator works with Kueue.

use bed::site::Site;
use bed::{Bed, Namespace, PATIENCE};
use serde_json::{Value, json};
use testbed::{Controllers, KubeOptions, Kueue, Version, wait_for};

use crate::kubernetes_backend::stage as of_pods;
use crate::queue::site::labelled;

/// What cleans up behind owners that are gone.
const CONTROLLERS: &[&str] = &["garbage-collector-controller", "namespace-controller"];

pub struct Stage {
    // Fields drop in this order.
    _controllers: Controllers,
    pub kueue: Kueue,
    pub site: Site,
}

impl Stage {
    /// With the operator running.
    pub fn start(version: Version) -> Self {
        let stage = Self::new(version, &KubeOptions::default());
        stage.site.bed.start_operator();
        stage
    }

    pub fn new(version: Version, kube: &KubeOptions) -> Self {
        Self::with(version, kube, CONTROLLERS, &[], &json!({}))
    }

    /// With the operator running, and all that the Kubernetes backend needs. The ClusterQueue `pool` has room for so many jobs in
    /// HTCondor, and for so many cores of the cluster; `more` of its spec.
    pub fn with_pods(version: Version, jobs: u32, cpus: u32, more: &Value) -> Self {
        Self::configured_with_pods(version, (jobs, cpus), more, &json!({}))
    }

    /// The same beside a Kueue that has this in its configuration.
    pub fn configured_with_pods(version: Version, (jobs, cpus): (u32, u32), more: &Value, kueue: &Value) -> Self {
        let backend = &["--kubernetes-backend"];
        let stage = Self::with(version, &KubeOptions::default(), of_pods::CONTROLLERS, backend, kueue);
        stage.apply(&json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": "nodes" },
        }));
        let group = |resource: &str, flavor: &str, quota: u32| {
            let resources = json!([{ "name": resource, "nominalQuota": quota }]);
            json!({ "coveredResources": [resource], "flavors": [{ "name": flavor, "resources": resources }] })
        };
        let groups = json!([group("cpu", "nodes", cpus), group("htc.cern.ch/jobs", "pool", jobs)]);
        let mut spec = json!({ "resourceGroups": groups });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        stage.cluster_queue("pool", 0, &spec);
        stage.site.bed.start_operator();
        stage
    }

    fn with(version: Version, kube: &KubeOptions, controllers: &[&str], more: &[&str], kueue: &Value) -> Self {
        let arguments = [&["--queueing=kueue", "--kueue-resource=jobs"], more].concat();
        let site = Site::alone(version, kube, &arguments);
        let kueue = Kueue::start_with(&site.bed.kube, kueue).unwrap();
        let stage = Self { _controllers: site.bed.controllers(controllers), kueue, site };
        basics(&stage.site.bed);
        stage
    }

    pub fn apply(&self, object: &Value) {
        self.site.bed.apply(object);
    }

    /// A ClusterQueue with so many jobs; `more` of its spec.
    pub fn cluster_queue(&self, name: &str, jobs: u32, more: &Value) {
        cluster_queue(&self.site.bed, name, jobs, more);
    }

    /// A namespace with the LocalQueue `batch` of a ClusterQueue.
    pub fn namespace(&self, cluster_queue: &str) -> Namespace<'_> {
        let here = self.site.bed.namespace();
        local_queue(&here, "batch", cluster_queue);
        here
    }

    /// Waits until Kueue counts so many jobs, or of what the ClusterQueue names first, in it.
    pub fn wait_used(&self, cluster_queue: &str, jobs: u32) {
        wait_used(&self.site.bed, cluster_queue, jobs);
    }

    /// An `HTCJob` that notes that it ran, and runs until it is told to finish.
    pub fn lasting(&self, name: &str, jobs: u32) -> Value {
        labelled(self.site.lasting(name, jobs), "batch")
    }

    /// The same with a priority.
    pub fn of_class(&self, name: &str, jobs: u32, class: &str) -> Value {
        let mut object = self.lasting(name, jobs);
        object["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = class.into();
        object
    }

    /// Jobs in HTCondor that have not ended and are not held.
    pub fn open(&self) -> usize {
        self.site.bed.queue("member(JobStatus, {1, 2, 6}) || HoldReasonCode == 16", &["ProcId"]).len()
    }

    pub fn workload(&self, here: &Namespace<'_>, name: &str) -> Option<Value> {
        let mut workload = self.site.bed.object(&all_of(here), &format!("htcjob-{}", here.uid(name)))?;
        workload["metadata"]["managedFields"] = Value::Null;
        Some(workload)
    }

    /// Waits until the Workload of an `HTCJob` is as `wanted` says; the Workload.
    pub fn wait_workload(
        &self,
        here: &Namespace<'_>,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_for(&format!("the Workload of {name}: {what}"), PATIENCE, || match self.workload(here, name) {
            Some(workload) if wanted(&workload) => Ok(workload),
            other => Err(format!("{other:#?}")),
        })
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.site.bed.log(), self.kueue.log()))
    }

    /// Waits until the Workload has ended, and has no finalizer any more.
    pub fn wait_let_go(&self, here: &Namespace<'_>, name: &str) {
        self.wait_workload(here, name, "finished, without finalizer", |workload| {
            is(workload, "Finished") && workload["metadata"]["finalizers"].is_null()
        });
    }

    /// Waits until a condition of the Workload is so.
    pub fn wait_says(&self, here: &Namespace<'_>, name: &str, kind: &str, status: &str, reason: &str) -> Value {
        self.wait_workload(here, name, &format!("{kind} {status} {reason}"), |workload| {
            workload_condition(workload, kind)
                .is_some_and(|condition| condition["status"] == status && condition["reason"] == reason)
        })
    }
}

/// What every ClusterQueue here needs, and two classes.
pub fn basics(bed: &Bed) {
    let apply = |object: &Value| bed.apply(object);
    apply(&json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": "pool" } }));
    for (name, value) in [("low", 1), ("high", 100)] {
        apply(&json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": { "name": name },
            "value": value,
        }));
    }
}

/// A ClusterQueue with so many jobs; `more` of its spec.
pub fn cluster_queue(bed: &Bed, name: &str, jobs: u32, more: &Value) {
    let resources = json!([{ "name": "htc.cern.ch/jobs", "nominalQuota": jobs }]);
    let mut spec = json!({
        "namespaceSelector": {},
        "resourceGroups": [{
            "coveredResources": ["htc.cern.ch/jobs"], "flavors": [{ "name": "pool", "resources": resources }],
        }],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": { "name": name }, "spec": spec,
    });
    bed.apply(&object);
}

pub fn local_queue(here: &Namespace<'_>, name: &str, cluster_queue: &str) {
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
        "metadata": { "name": name, "namespace": here.name }, "spec": { "clusterQueue": cluster_queue },
    });
    here.bed.apply(&object);
}

/// Waits until Kueue counts so many jobs, or of what the ClusterQueue names first, in it.
pub fn wait_used(bed: &Bed, cluster_queue: &str, jobs: u32) {
    wait_for(&format!("{jobs} jobs in ClusterQueue {cluster_queue}"), PATIENCE, || {
        let queue = bed.object("/apis/kueue.x-k8s.io/v1beta2/clusterqueues", cluster_queue).unwrap();
        let used = &queue["status"]["flavorsReservation"][0]["resources"][0]["total"];
        if used.as_str() == Some(&jobs.to_string()) { Ok(()) } else { Err(format!("{used} are")) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", bed.log()));
}

fn all_of(here: &Namespace<'_>) -> String {
    format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads", here.name)
}

pub fn workloads(here: &Namespace<'_>) -> Vec<Value> {
    here.bed.objects(&all_of(here))
}

pub fn wait_no_workloads(here: &Namespace<'_>) {
    wait_for("all Workloads to be gone", PATIENCE, || {
        let left = workloads(here);
        if left.is_empty() { Ok(()) } else { Err(format!("{:#?}", left[0]["metadata"])) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.log()));
}

pub fn patch_workload(here: &Namespace<'_>, name: &str, patch: &Value) {
    let workload = format!("htcjob-{}", here.uid(name));
    here.bed.merge(&all_of(here), &workload, patch);
}

pub fn workload_condition<'a>(workload: &'a Value, kind: &str) -> Option<&'a Value> {
    workload["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub fn is(workload: &Value, kind: &str) -> bool {
    workload_condition(workload, kind).is_some_and(|condition| condition["status"] == "True")
}
