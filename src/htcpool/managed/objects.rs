//! Builds the objects of a managed pool from the spec of its `HTCPool`.

mod pod;

use std::collections::BTreeMap;

use htc_api::{GROUP, ManagedPool, ObjectName, PodResources, Quantity, Reclaim};
use htc_submit::job_token::hex;
use htc_submit::pod_metadata::{DEFAULT_NODE_SELECTOR, with_defaults};
use htc_submit::pod_spec::CpuLimits;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::config::condor_config;
use super::names::{PORT, PoolNames, Role};
use super::shadow;
use crate::backends::condor::credentials::signing::key_name;

pub use pod::{CHECK_CONTAINER, OwnWorker, WorkerKind, WorkerSize};

/// Label of all objects of a managed pool: the name of its `HTCPool`.
pub const POOL_LABEL: &str = "htc.cern.ch/htcpool";
/// Label of pods: their role.
pub const ROLE_LABEL: &str = "htc.cern.ch/role";
/// Annotation of pods: digest of what they are created from.
pub const TEMPLATE_ANNOTATION: &str = "htc.cern.ch/template";
/// Annotation of workers: the operator has requested a drain from HTCondor, or was about to.
pub const DRAIN_ANNOTATION: &str = "htc.cern.ch/drain";
/// Annotation of workers: the image of their container, as HTCJobs name it.
pub const IMAGE_ANNOTATION: &str = "htc.cern.ch/image";
/// Label of workers that belong to one HTCJob: its uid.
pub const MINI_CLUSTER_LABEL: &str = "htc.cern.ch/mini-cluster";
/// Label of workers that belong to one namespace: its name.
pub const NAMESPACE_LABEL: &str = "htc.cern.ch/worker-of";
/// Annotation of workers that belong to one HTCJob: its namespace and name.
pub const MINI_CLUSTER_OF_ANNOTATION: &str = "htc.cern.ch/mini-cluster-of";
/// Annotation of workers with volumes: the text by which these are known ([`htc_submit::volumes::key`]).
pub const VOLUMES_ANNOTATION: &str = "htc.cern.ch/volumes";
/// Annotation of workers: generation of the newest signing key when the pod was created. Its token is signed with this
/// key or a newer one.
pub const SIGNING_KEY_ANNOTATION: &str = "htc.cern.ch/signing-key-generation";
/// Name of the container with the daemons.
const CONTAINER: &str = "condor";

/// Input for the objects of a managed pool.
#[derive(Clone, Copy, Debug)]
pub struct Design<'a> {
    /// Names of the objects.
    pub names: &'a PoolNames,
    /// The spec of the `HTCPool`.
    pub spec: &'a ManagedPool,
    /// Namespace and name of this operator, whose connections the pods accept.
    pub operator: &'a ObjectName,
    /// The signing keys in use.
    pub keys: KeyGenerations,
    /// CPU limits of workers; None for the default.
    pub cpu_limits: Option<CpuLimits>,
}

/// Generations of the signing keys in use. They count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyGenerations {
    /// The newest key. Workers with an older one are replaced.
    pub newest: u32,
    /// The oldest key that the daemons accept.
    pub oldest: u32,
}

impl KeyGenerations {
    /// Generations of a pool whose key was never replaced.
    pub const FIRST: Self = Self { newest: 1, oldest: 1 };

    /// Returns the names of the keys that the daemons accept, separated by blanks.
    #[must_use]
    pub fn names(self) -> String {
        (self.oldest..=self.newest).map(key_name).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the image of the workers.
#[must_use]
pub fn worker_image(spec: &ManagedPool) -> &str {
    spec.workers.image.as_deref().unwrap_or(&spec.image)
}

/// Returns the labels that nodes of the pool's workers must have.
#[must_use]
pub fn worker_node_selector(spec: &ManagedPool) -> BTreeMap<String, String> {
    with_defaults(&DEFAULT_NODE_SELECTOR, &spec.workers.node_selector)
}

/// Returns the label selector of the pool's workers.
#[must_use]
pub fn worker_selector(names: &PoolNames) -> String {
    format!("{POOL_LABEL}={},{ROLE_LABEL}={}", names.pool.name, Role::Worker)
}

/// Returns the label selector of the workers that do not belong to one HTCJob.
#[must_use]
pub fn shared_selector(names: &PoolNames) -> String {
    format!("{},!{MINI_CLUSTER_LABEL}", worker_selector(names))
}

impl Design<'_> {
    /// Returns all objects but Secrets and workers, in the order in which they are to be created.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        vec![
            self.network_policy_of_workers(),
            self.network_policy(),
            self.config_map(),
            self.service(Role::CentralManager),
            self.service(Role::Schedd),
            self.central_manager(),
            self.schedd(),
        ]
        .into_iter()
        .chain(self.central_manager_claim())
        .collect()
    }

    /// Returns a Secret with these entries, whose values are in base64 already.
    #[must_use]
    pub fn secret(&self, name: &str, annotations: &Value, data: &Value) -> Value {
        let mut object = self.object("v1", "Secret", name);
        object["metadata"]["annotations"] = annotations.clone();
        object["type"] = "Opaque".into();
        object["data"] = data.clone();
        object
    }

    /// Returns the Secret with the token of a worker. It is owned by the worker's pod.
    #[must_use]
    pub fn worker_secret(&self, name: &str, (pod, uid): (&str, &str), data: &Value) -> Value {
        let mut object = self.secret(name, &json!({}), data);
        merge(&mut object["metadata"]["labels"], &self.selector(Role::Worker));
        object["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true, "blockOwnerDeletion": false }]);
        object
    }

    fn object(&self, api_version: &str, kind: &str, name: &str) -> Value {
        json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {
                "name": name, "namespace": self.names.pool.namespace, "labels": self.labels(),
                "ownerReferences": [{
                    "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "HTCPool", "name": self.names.pool.name,
                    "uid": self.names.uid, "controller": true, "blockOwnerDeletion": false,
                }],
            },
        })
    }

    fn labels(&self) -> Value {
        json!({
            POOL_LABEL: self.names.pool.name, "app.kubernetes.io/name": "htcondor",
            "app.kubernetes.io/instance": self.names.pool.name, "app.kubernetes.io/managed-by": "htc-operator",
        })
    }

    fn selector(&self, role: Role) -> Value {
        json!({ POOL_LABEL: self.names.pool.name, ROLE_LABEL: <&str>::from(role) })
    }

    fn config_map(&self) -> Value {
        let mut object = self.object("v1", "ConfigMap", &self.names.object("config"));
        for role in [Role::CentralManager, Role::Schedd, Role::Worker] {
            object["data"][<&str>::from(role)] = condor_config(self.names, role).into();
        }
        object["data"][shadow::NAME] = shadow::SCRIPT.into();
        object
    }

    /// Returns the Service of a role. The collector's has an address that outlives its pods; the schedd's only gives
    /// its pod a DNS name.
    fn service(&self, role: Role) -> Value {
        let mut object = self.object("v1", "Service", &self.names.of(role));
        object["spec"] = json!({
            "selector": self.selector(role),
            "ports": [{ "name": CONTAINER, "port": PORT, "protocol": "TCP", "targetPort": CONTAINER }],
            // Daemons look each other up before they are ready.
            "publishNotReadyAddresses": true,
        });
        if role == Role::Schedd {
            object["spec"]["clusterIP"] = "None".into();
        }
        object
    }

    /// Returns the NetworkPolicy of central manager and schedd: all pods of the pool and the operator may connect.
    fn network_policy(&self) -> Value {
        let all = json!({ "matchLabels": { POOL_LABEL: self.names.pool.name } });
        self.lets_in("pool", &self.all_but_workers(), &all)
    }

    /// Returns the NetworkPolicy of workers: other workers may not connect. HTCondor has no traffic between workers.
    fn network_policy_of_workers(&self) -> Value {
        let workers = json!({ "matchLabels": self.selector(Role::Worker) });
        self.lets_in(Role::Worker.into(), &workers, &self.all_but_workers())
    }

    fn all_but_workers(&self) -> Value {
        let other = json!({ "key": ROLE_LABEL, "operator": "NotIn", "values": [<&str>::from(Role::Worker)] });
        json!({ "matchLabels": { POOL_LABEL: self.names.pool.name }, "matchExpressions": [other] })
    }

    /// Returns a NetworkPolicy: the operator, and the pods of the pool that `from` selects, may connect to `pods`.
    fn lets_in(&self, name: &str, pods: &Value, from: &Value) -> Value {
        let mut object = self.object("networking.k8s.io/v1", "NetworkPolicy", &self.names.object(name));
        object["spec"] = json!({
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [
                    { "podSelector": from },
                    {
                        "namespaceSelector":
                            { "matchLabels": { "kubernetes.io/metadata.name": self.operator.namespace } },
                        "podSelector": { "matchLabels": { "app.kubernetes.io/name": "htc-operator" } },
                    },
                ],
                "ports": [{ "port": PORT, "protocol": "TCP" }],
            }],
        });
        object
    }

    fn central_manager(&self) -> Value {
        let role = Role::CentralManager;
        let mut object = self.object("apps/v1", "Deployment", &self.names.of(role));
        let resources = resources(self.spec.central_manager.resources.as_ref(), ("100m", "256Mi"));
        let mut template = self.pod(role, &self.spec.image, &resources, &[], &self.names.token(role));
        let spool = if self.spec.central_manager.storage.is_some() {
            json!({ "name": "spool", "persistentVolumeClaim": { "claimName": self.names.of(role) } })
        } else {
            json!({ "name": "spool", "emptyDir": {} })
        };
        push(&mut template["spec"]["volumes"], spool);
        object["spec"] = json!({
            "replicas": 1,
            // With two collectors each would know half of the pool.
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": self.selector(role) },
            "template": template,
        });
        object
    }

    fn central_manager_claim(&self) -> Option<Value> {
        let storage = self.spec.central_manager.storage.as_ref()?;
        let name = self.names.of(Role::CentralManager);
        let mut object = self.object("v1", "PersistentVolumeClaim", &name);
        object["spec"] = claim(&storage.size, storage.storage_class_name.as_deref());
        Some(object)
    }

    /// A StatefulSet, because it never has two pods of one ordinal: two schedds with one queue would destroy it.
    fn schedd(&self) -> Value {
        let role = Role::Schedd;
        let mut object = self.object("apps/v1", "StatefulSet", &self.names.of(role));
        let resources = resources(self.spec.schedd.resources.as_ref(), ("200m", "512Mi"));
        let storage = &self.spec.schedd.storage;
        let deleted: &str = match storage.reclaim {
            Reclaim::Retain => "Retain",
            Reclaim::Delete => "Delete",
        };
        object["spec"] = json!({
            "replicas": 1,
            "serviceName": self.names.of(role),
            "selector": { "matchLabels": self.selector(role) },
            "template": self.pod(role, &self.spec.image, &resources, &[], &self.names.token(role)),
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": deleted, "whenScaled": "Retain" },
            "volumeClaimTemplates": [{
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": "spool" },
                "spec": claim(&storage.size, storage.storage_class_name.as_deref()),
            }],
        });
        object
    }
}

/// Returns requests and limits of a daemon's pod. It may use more CPU than it requests.
fn resources(given: Option<&PodResources>, (cpus, memory): (&str, &str)) -> Value {
    let given = given.cloned().unwrap_or_default();
    let text = |quantity: Option<Quantity>, default: &str| {
        quantity.map_or_else(|| default.to_owned(), |quantity| quantity.to_string())
    };
    let memory = text(given.memory, memory);
    let mut resources =
        json!({ "requests": { "cpu": text(given.cpus, cpus), "memory": memory }, "limits": { "memory": memory } });
    if let Some(disk) = given.disk {
        resources["requests"]["ephemeral-storage"] = disk.to_string().into();
    }
    resources
}

fn claim(size: &Quantity, class: Option<&str>) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size.to_string() } },
    });
    if let Some(class) = class {
        spec["storageClassName"] = class.into();
    }
    spec
}

fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

fn push(list: &mut Value, value: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..8])
}

#[cfg(test)]
mod tests {
    use htc_machine::worker_groups::SharedGroup;

    use super::*;

    fn kind(design: &Design<'_>, image: &str) -> WorkerKind {
        kind_with_volumes(design, image, "")
    }

    fn kind_with_volumes(design: &Design<'_>, image: &str, volumes: &str) -> WorkerKind {
        let group = SharedGroup { image: image.to_owned(), namespace: None, volumes: volumes.to_owned() };
        WorkerKind::shared(design.spec, &group).unwrap()
    }

    fn with(spec: &ManagedPool, look: impl FnOnce(&Design<'_>)) {
        let pool = ObjectName { namespace: "physics".to_owned(), name: "lhc".to_owned() };
        let names = PoolNames::new(&pool, "0123456789").unwrap();
        let operator = ObjectName { namespace: "htc".to_owned(), name: "op".to_owned() };
        look(&Design { names: &names, spec, operator: &operator, keys: KeyGenerations::FIRST, cpu_limits: None });
    }

    fn spec() -> ManagedPool {
        ManagedPool { image: "htcondor:1".to_owned(), ..ManagedPool::default() }
    }

    #[test]
    fn every_object_is_owned_by_the_pool() {
        with(&spec(), |design| {
            let mut objects = design.objects();
            objects.push(design.worker(3, &kind(design, "i")));
            objects.push(design.secret("s", &json!({}), &json!({})));
            for object in objects {
                let owner = &object["metadata"]["ownerReferences"][0];
                assert_eq!((&owner["uid"], &owner["controller"]), (&"0123456789".into(), &true.into()), "{object:#}");
                assert_eq!(object["metadata"]["namespace"], "physics");
                assert_eq!(object["metadata"]["labels"][POOL_LABEL], "lhc");
                assert!(object["metadata"]["name"].as_str().unwrap().len() <= 63);
            }
        });
    }

    #[test]
    fn worker_has_no_signing_key_and_its_jobs_no_secret() {
        with(&spec(), |design| {
            let worker = design.worker(0, &kind(design, "i"));
            let mounts = |container: &Value| -> Vec<String> {
                let mounts = container["volumeMounts"].as_array().unwrap();
                mounts.iter().map(|mount| mount["name"].as_str().unwrap().to_owned()).collect()
            };
            assert!(!mounts(&worker["spec"]["containers"][0]).contains(&"secret".to_owned()));
            let text = worker.to_string();
            assert!(text.contains("lhc-worker-shared-0") && !text.contains("lhc-signing-key"), "{text}");
        });
    }

    #[test]
    fn worker_has_shared_memory_as_large_as_its_memory() {
        with(&spec(), |design| {
            let pod = design.worker(0, &kind(design, "i"))["spec"].clone();
            let volume = json!({ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "1024Mi" } });
            assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod:#}");
            let mount = json!({ "name": "shm", "mountPath": "/dev/shm" });
            assert!(pod["containers"][0]["volumeMounts"].as_array().unwrap().contains(&mount), "{pod:#}");
        });
    }

    /// Evaluates a label selector as Kubernetes does.
    fn selects(selector: &Value, labels: &Value) -> bool {
        let has = |(key, value): (&String, &Value)| labels[key] == *value;
        let not_in = |other: &Value| {
            assert_eq!(other["operator"], "NotIn");
            !other["values"].as_array().unwrap().contains(&labels[other["key"].as_str().unwrap()])
        };
        let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        selector["matchLabels"].as_object().unwrap().iter().all(has) && expressions.into_iter().all(not_in)
    }

    #[test]
    fn network_policy_separates_workers_from_each_other() {
        with(&spec(), |design| {
            let policies: Vec<Value> =
                design.objects().into_iter().filter(|object| object["kind"] == "NetworkPolicy").collect();
            let worker = design.worker(0, &kind(design, "i"))["metadata"]["labels"].clone();
            let daemons = design.objects().into_iter().filter(|object| object["spec"]["template"].is_object());
            let mut pods: Vec<Value> =
                daemons.map(|object| object["spec"]["template"]["metadata"]["labels"].clone()).collect();
            assert_eq!(pods.len(), 2);
            pods.push(worker.clone());
            let other = json!({ POOL_LABEL: "other", ROLE_LABEL: "schedd" });
            for to in &pods {
                let of = policies.iter().filter(|policy| selects(&policy["spec"]["podSelector"], to));
                let of: Vec<&Value> = of.collect();
                // The rules of several policies would add up.
                let [policy] = of.as_slice() else { panic!("{to}: {of:?}") };
                let from = policy["spec"]["ingress"][0]["from"].as_array().unwrap();
                assert_eq!(from[1]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], "htc-operator");
                let lets_in = |labels: &Value| selects(&from[0]["podSelector"], labels);
                for from in &pods {
                    assert_eq!(lets_in(from), *from != worker || *to != worker, "{from} to {to}");
                }
                assert!(!lets_in(&other), "{to}");
                assert!(!selects(&policy["spec"]["podSelector"], &other), "{to}");
            }
        });
    }

    #[test]
    fn worker_limits_exceed_the_resources_of_its_jobs() {
        let mut spec = spec();
        spec.workers.resources = Some(PodResources {
            cpus: Some(Quantity::Text("1500m".to_owned())),
            memory: Some(Quantity::Text("2Gi".to_owned())),
            disk: None,
        });
        with(&spec, |design| {
            let limits = &design.worker(0, &kind(design, "i"))["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits, &json!({ "cpu": "2", "memory": "2176Mi", "ephemeral-storage": "1536Mi" }));
        });
    }

    #[test]
    fn workers_use_the_newest_key_and_daemons_all_accepted_keys() {
        with(&spec(), |design| {
            let of = |newest, oldest| {
                let design = Design { keys: KeyGenerations { newest, oldest }, ..*design };
                let templates: Vec<Value> =
                    design.objects().into_iter().map(|object| object["spec"]["template"].clone()).collect();
                (design.worker_template(&kind(&design, "i")), templates)
            };
            let (first, both, alone) = (of(1, 1), of(2, 1), of(2, 2));
            assert_ne!(first.0, both.0, "workers are replaced");
            assert_eq!(both.0, alone.0, "once");
            let accepted = |(_, templates): &(String, Vec<Value>)| -> Vec<String> {
                let values = templates.iter().map(|pod| &pod["spec"]["initContainers"][0]["env"][0]["value"]);
                values.filter_map(Value::as_str).map(str::to_owned).collect()
            };
            assert_eq!(accepted(&first), ["htcpool"; 2]);
            assert_eq!(accepted(&both), ["htcpool htcpool-2"; 2]);
            assert_eq!(accepted(&alone), ["htcpool-2"; 2]);
            let design = Design { keys: KeyGenerations { newest: 2, oldest: 1 }, ..*design };
            assert_eq!(design.worker(0, &kind(&design, "i"))["metadata"]["annotations"][SIGNING_KEY_ANNOTATION], "2");
        });
    }

    #[test]
    fn template_hash_changes_with_the_worker_spec() {
        let (mut spec, mut before, mut same) = (spec(), String::new(), String::new());
        with(&spec, |design| {
            before = design.worker_template(&kind(design, "i"));
            same = design.worker(7, &kind(design, "i"))["metadata"]["annotations"][TEMPLATE_ANNOTATION]
                .as_str()
                .unwrap()
                .to_owned();
        });
        assert_eq!(before, same);
        spec.workers.resources = Some(PodResources { cpus: Some(Quantity::Number(2)), memory: None, disk: None });
        with(&spec, |design| assert_ne!(design.worker_template(&kind(design, "i")), before));
    }

    #[test]
    fn worker_runs_its_image_after_an_image_check() {
        with(&spec(), |design| {
            let worker = design.worker(0, &kind(design, "python:3.13"));
            let of = |list: &str, place: usize| worker["spec"][list][place]["image"].clone();
            assert_eq!(of("containers", 0), "python:3.13");
            assert_eq!((of("initContainers", 0), of("initContainers", 1)), ("htcondor:1".into(), "python:3.13".into()));
            assert_eq!(worker["spec"]["initContainers"][1]["name"], CHECK_CONTAINER);
            let env = worker["spec"]["containers"][0]["env"].as_array().unwrap();
            assert!(env.contains(&json!({ "name": "WORKER_IMAGE", "value": "python:3.13" })), "{env:?}");
            assert_ne!(
                design.worker_template(&kind(design, "python:3.13")),
                design.worker_template(&kind(design, "i"))
            );
        });
    }

    #[test]
    fn worker_mounts_the_volumes_of_its_group() {
        with(&spec(), |design| {
            let key = "data:/in:ro,results:/out";
            let worker = design.worker(0, &kind_with_volumes(design, "i", key));
            let claim = |name: &str, read_only: bool| json!({ "claimName": name, "readOnly": read_only });
            let volumes = worker["spec"]["volumes"].as_array().unwrap();
            let claims = volumes.iter().map(|volume| &volume["persistentVolumeClaim"]).filter(|claim| !claim.is_null());
            assert_eq!(claims.collect::<Vec<_>>(), [&claim("data", true), &claim("results", false)]);
            let container = &worker["spec"]["containers"][0];
            let mounts = container["volumeMounts"].as_array().unwrap();
            assert!(mounts.contains(&json!({ "name": "claim-0", "mountPath": "/in", "readOnly": true })), "{mounts:?}");
            assert!(mounts.contains(&json!({ "name": "claim-1", "mountPath": "/out", "readOnly": false })));
            assert_eq!(worker["metadata"]["annotations"][VOLUMES_ANNOTATION], key);
            let env = |worker: &Value, value: &str| {
                let env = worker["spec"]["containers"][0]["env"].as_array().unwrap().clone();
                env.contains(&json!({ "name": "WORKER_VOLUMES", "value": value }))
            };
            let without = design.worker(0, &kind(design, "i"));
            assert!(env(&worker, key) && env(&without, "-"));
            assert!(without["metadata"]["annotations"][VOLUMES_ANNOTATION].is_null());
            assert_ne!(
                design.worker_template(&kind(design, "i")),
                design.worker_template(&kind_with_volumes(design, "i", key))
            );
        });
    }

    #[test]
    fn mini_cluster_worker_is_labelled_and_follows_its_template() {
        let mut spec = spec();
        spec.workers.resources = Some(PodResources { cpus: Some(Quantity::Number(2)), memory: None, disk: None });
        let own: htc_api::MiniCluster = serde_json::from_value(json!({
            "resources": { "memory": "2Gi" },
            "template": {
                "nodeSelector": { "gpu": "none" }, "priorityClassName": "low",
                "tolerations": [{ "key": "k", "operator": "Exists", "tolerationSeconds": 5 }],
            },
        }))
        .unwrap();
        with(&spec, |design| {
            let name = ObjectName { namespace: "a".to_owned(), name: "j".to_owned() };
            let template = own.template.clone().unwrap();
            let size = WorkerSize::of(design.spec, Some(&own)).unwrap();
            let own = Some(OwnWorker { uid: "u-1".to_owned(), name, template });
            let its = WorkerKind { image: "i".to_owned(), size, namespace: None, volumes: Vec::new(), own };
            let worker = design.worker(3, &its);
            assert_eq!(worker["metadata"]["labels"][MINI_CLUSTER_LABEL], "u-1");
            assert_eq!(worker["metadata"]["annotations"][MINI_CLUSTER_OF_ANNOTATION], "a/j");
            let pod = &worker["spec"];
            assert_eq!(pod["nodeSelector"], json!({ "gpu": "none", "kubernetes.io/os": "linux" }));
            assert_eq!(pod["tolerations"], json!([{ "key": "k", "operator": "Exists", "tolerationSeconds": 5 }]));
            assert_eq!(pod["priorityClassName"], "low");
            let container = &pod["containers"][0];
            let limits = &container["resources"]["limits"];
            assert_eq!((&limits["cpu"], &limits["memory"]), (&json!("2"), &json!("2176Mi")));
            let whose = |worker: &Value| {
                let env = worker["spec"]["containers"][0]["env"].as_array().unwrap().clone();
                env.into_iter().find(|one| one["name"] == "WORKER_MINI_CLUSTER").unwrap()["value"].clone()
            };
            let shared = design.worker(0, &kind(design, "i"));
            assert_eq!((whose(&worker), whose(&shared)), (json!("u-1"), json!("-")));
            assert!(shared["metadata"]["labels"][MINI_CLUSTER_LABEL].is_null());
            assert_eq!(shared["spec"]["nodeSelector"], json!({ "kubernetes.io/os": "linux" }));
        });
    }

    #[test]
    fn central_manager_has_a_volume_only_if_requested() {
        let mut spec = spec();
        let spool = |spec: &ManagedPool| {
            let (mut claims, mut volume) = (Vec::new(), Value::Null);
            with(spec, |design| {
                claims = design.objects();
                let daemon = claims.iter().find(|object| object["kind"] == "Deployment").unwrap();
                let volumes = daemon["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
                volume = volumes.iter().find(|volume| volume["name"] == "spool").unwrap().clone();
                claims.retain(|object| object["kind"] == "PersistentVolumeClaim");
            });
            (claims, volume)
        };
        assert_eq!(spool(&spec), (Vec::new(), json!({ "name": "spool", "emptyDir": {} })));
        let storage = json!({ "size": "2Gi", "storageClassName": "fast" });
        spec.central_manager.storage = Some(serde_json::from_value(storage).unwrap());
        let (claims, volume) = spool(&spec);
        let [claim] = claims.as_slice() else { panic!("{claims:?}") };
        assert_eq!(volume["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"]);
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "0123456789");
        let wanted = json!({
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } }, "storageClassName": "fast",
        });
        assert_eq!(claim["spec"], wanted);
    }

    #[test]
    fn pods_have_nodes_user_and_metadata_of_spec() {
        let mut spec = spec();
        spec.workers.node_selector = BTreeMap::from([("kubernetes.io/arch".to_owned(), "amd64".to_owned())]);
        spec.workers.pod_labels = BTreeMap::from([("example.org/team".to_owned(), "cms".to_owned())]);
        spec.schedd.tolerations = vec![serde_json::from_value(json!({ "key": "k", "operator": "Exists" })).unwrap()];
        spec.pod_user = htc_api::PodUser::Cluster;
        with(&spec, |design| {
            let worker = design.worker(0, &kind(design, "i"));
            let selector = json!({ "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux" });
            assert_eq!(worker["spec"]["nodeSelector"], selector);
            assert_eq!(worker["metadata"]["labels"]["example.org/team"], "cms");
            let schedd = design.schedd()["spec"]["template"].clone();
            assert_eq!(schedd["spec"]["nodeSelector"], json!({ "kubernetes.io/os": "linux" }));
            assert_eq!(schedd["spec"]["tolerations"][0]["key"], "k");
            for pod in [&worker, &schedd] {
                assert_eq!(pod["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
                assert_eq!(pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"], "true");
                let secured = &pod["spec"]["securityContext"];
                assert!(secured["runAsUser"].is_null() && secured["fsGroup"].is_null(), "{secured}");
                assert_eq!(secured["runAsNonRoot"], true);
            }
            let limits = |cpu_limits| {
                let worker = Design { cpu_limits, ..*design }.worker(0, &kind(design, "i"));
                worker["spec"]["containers"][0]["resources"]["limits"]["cpu"].clone()
            };
            assert_eq!((limits(None), limits(Some(CpuLimits::Requests))), (json!("1"), json!("1")));
            assert!(limits(Some(CpuLimits::None)).is_null());
        });
    }

    #[test]
    fn queue_volume_claim_is_deleted_only_if_requested() {
        let mut spec = spec();
        let deleted = |spec: &ManagedPool| {
            let mut deleted = Value::Null;
            with(spec, |design| {
                let objects = design.objects();
                let set = objects.iter().find(|object| object["kind"] == "StatefulSet").unwrap();
                deleted = set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"].clone();
            });
            deleted
        };
        assert_eq!(deleted(&spec), "Retain");
        spec.schedd.storage.reclaim = Reclaim::Delete;
        assert_eq!(deleted(&spec), "Delete");
    }
}
