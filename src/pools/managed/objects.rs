//! The objects of a managed pool, as its `HTCPool` says what they are to be.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::config::{CONFIG, LOCAL, RELEASE, RESERVE_MIB, SECRET, SPOOL, condor_config};
use super::names::{Names, PORT, Role};
use crate::api::{GROUP, ManagedPool, ObjectName, PodResources, Quantity, QuantityError, Reclaim};
use crate::key::hex;

/// Label of everything that belongs to a managed pool: the name of its `HTCPool`.
pub const POOL_LABEL: &str = "htc.cern.ch/htcpool";
/// Label of pods: what they are for.
pub const ROLE_LABEL: &str = "htc.cern.ch/role";
/// Annotation of pods: changes with what they are made from.
pub const TEMPLATE: &str = "htc.cern.ch/template";
/// Name of the container with the daemons.
const CONTAINER: &str = "condor";
/// Debian's `nobody`: HTCondor does not start as a user that is not in passwd, and this one is there in nearly all images.
const ACCOUNT: u32 = 65534;
/// MiB of a worker's disk that its jobs do not get: HTCondor and its logs have them.
const DISK_RESERVE_MIB: u64 = 512;
const MIB: u64 = 1 << 20;

/// HTCondor takes key and token only from files of its own account that nobody else may read. A Secret's files are root's.
const PREPARE: &str = r"set -eu
umask 077
cd /htcpool/local
mkdir -p log execute run lock cred spool passwords.d tokens.d
rm -f tokens.d/token passwords.d/htcpool
cp /htcpool/secret/token tokens.d/token
if [ -e /htcpool/secret/htcpool ]; then cp /htcpool/secret/htcpool passwords.d/htcpool; fi
chmod 755 log execute run lock spool
umask 022
if [ -d /htcpool/spool ]; then mkdir -p /htcpool/spool/spool; fi
if [ -d /htcpool/tree ]; then cp -R -P -p /htcondor/. /htcpool/tree/; fi
";

/// What the objects of a managed pool are made from.
#[derive(Clone, Copy, Debug)]
pub struct Design<'a> {
    /// How everything is called.
    pub names: &'a Names,
    /// What its `HTCPool` says.
    pub spec: &'a ManagedPool,
    /// This operator, which the pods are to let in.
    pub operator: &'a ObjectName,
}

/// What jobs have on one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSize {
    /// Cores.
    pub cpus: u64,
    /// MiB
    pub memory: u64,
    /// MiB
    pub disk: u64,
}

impl WorkerSize {
    /// # Errors
    /// A quantity that is none; the API server lets none in.
    pub fn of(spec: &ManagedPool) -> Result<Self, QuantityError> {
        let resources = spec.workers.resources.clone().unwrap_or_default();
        let or = |quantity: Option<Quantity>, unit: u64, default: u64| {
            quantity.map_or(Ok(default), |quantity| quantity.in_units_of(unit))
        };
        Ok(Self {
            cpus: or(resources.cpus, 1, 1)?,
            memory: or(resources.memory, MIB, 1024)?,
            disk: or(resources.disk, MIB, 1024)?,
        })
    }
}

/// The image that the workers are containers of.
#[must_use]
pub fn worker_image(spec: &ManagedPool) -> &str {
    spec.workers.image.as_deref().unwrap_or(&spec.image)
}

/// Which pods are workers of this pool.
#[must_use]
pub fn worker_selector(names: &Names) -> String {
    format!("{POOL_LABEL}={},{ROLE_LABEL}={}", names.pool.name, Role::Worker)
}

impl Design<'_> {
    /// All objects but Secrets and workers, in the order in which they are to be made.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        vec![
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

    /// A Secret with these entries, in base64 already.
    #[must_use]
    pub fn secret(&self, name: &str, annotations: &Value, data: &Value) -> Value {
        let mut object = self.object("v1", "Secret", name);
        object["metadata"]["annotations"] = annotations.clone();
        object["type"] = "Opaque".into();
        object["data"] = data.clone();
        object
    }

    /// A worker's pod.
    ///
    /// # Errors
    /// A quantity that is none.
    pub fn worker(&self, number: u32) -> Result<Value, QuantityError> {
        let size = WorkerSize::of(self.spec)?;
        let (memory, disk) = (size.memory + RESERVE_MIB, size.disk + DISK_RESERVE_MIB);
        let amounts = json!({
            "cpu": size.cpus.to_string(), "memory": format!("{memory}Mi"), "ephemeral-storage": format!("{disk}Mi"),
        });
        let limit = |name: &str, resource: &str, divisor: &str| {
            let source = json!({ "containerName": CONTAINER, "resource": resource, "divisor": divisor });
            json!({ "name": name, "valueFrom": { "resourceFieldRef": source } })
        };
        let environment = [
            field("POD_UID", "metadata.uid"),
            json!({ "name": "WORKER_IMAGE", "value": worker_image(self.spec) }),
            limit("WORKER_CPUS", "limits.cpu", "1"),
            limit("WORKER_MEMORY_MIB", "limits.memory", "1Mi"),
            json!({ "name": "WORKER_DISK_KIB", "value": (size.disk * 1024).to_string() }),
        ];
        let mut pod = self.pod(Role::Worker, &json!({ "limits": amounts, "requests": amounts }), &environment);
        // It ends when it has been drained, and is not to begin again.
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["terminationGracePeriodSeconds"] = 120.into();
        let mut object = self.object("v1", "Pod", &self.names.worker(number));
        let template = digest(&pod.to_string());
        merge(&mut object["metadata"]["labels"], &pod["metadata"]["labels"]);
        object["metadata"]["annotations"] = json!({
            TEMPLATE: template, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        });
        object["spec"] = pod["spec"].take();
        Ok(object)
    }

    /// What [`TEMPLATE`] says of a worker that is made now.
    ///
    /// # Errors
    /// A quantity that is none.
    pub fn worker_template(&self) -> Result<String, QuantityError> {
        Ok(self.worker(0)?["metadata"]["annotations"][TEMPLATE].as_str().unwrap_or_default().to_owned())
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
        object
    }

    /// The collector's has an address that outlives its pods. That of the schedd only names its pod.
    fn service(&self, role: Role) -> Value {
        let mut object = self.object("v1", "Service", &self.names.of(role));
        object["spec"] = json!({
            "selector": self.selector(role),
            "ports": [{ "name": CONTAINER, "port": PORT, "protocol": "TCP", "targetPort": CONTAINER }],
            // Daemons look for one another before they are ready.
            "publishNotReadyAddresses": true,
        });
        if role == Role::Schedd {
            object["spec"]["clusterIP"] = "None".into();
        }
        object
    }

    /// Pods of the pool among themselves, and the operator.
    fn network_policy(&self) -> Value {
        let mut object = self.object("networking.k8s.io/v1", "NetworkPolicy", &self.names.object("pool"));
        let pool = json!({ "matchLabels": { POOL_LABEL: self.names.pool.name } });
        object["spec"] = json!({
            "podSelector": pool,
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [
                    { "podSelector": pool },
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
        let mut template = self.pod(role, &resources, &[]);
        let spool = if self.spec.central_manager.storage.is_some() {
            json!({ "name": "spool", "persistentVolumeClaim": { "claimName": self.names.of(role) } })
        } else {
            json!({ "name": "spool", "emptyDir": {} })
        };
        push(&mut template["spec"]["volumes"], spool);
        object["spec"] = json!({
            "replicas": 1,
            // Two collectors would each know half of the pool.
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

    /// There is never more than one pod of an ordinal: two schedds with one queue would destroy it.
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
            "template": self.pod(role, &resources, &[]),
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": deleted, "whenScaled": "Retain" },
            "volumeClaimTemplates": [{
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": "spool" },
                "spec": claim(&storage.size, storage.storage_class_name.as_deref()),
            }],
        });
        object
    }

    /// The template of a role's pods, of the level `restricted`.
    fn pod(&self, role: Role, resources: &Value, environment: &[Value]) -> Value {
        let mut labels = self.labels();
        merge(&mut labels, &self.selector(role));
        let config = condor_config(self.names, role);
        let is_worker = role == Role::Worker;
        let image = if is_worker { worker_image(self.spec) } else { &self.spec.image };
        let mut env = vec![
            json!({ "name": "CONDOR_CONFIG", "value": format!("{CONFIG}/condor_config") }),
            field("POD_NAME", "metadata.name"),
            field("POD_IP", "status.podIP"),
        ];
        env.extend_from_slice(environment);
        let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
        let own = if is_worker { ("tree", "/htcpool/tree") } else { ("spool", SPOOL) };
        let readable = |name: &str, path: &str| json!({ "name": name, "mountPath": path, "readOnly": true });
        let secured = json!({
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": !is_worker,
        });
        let mut prepared = secured.clone();
        prepared["readOnlyRootFilesystem"] = true.into();
        let mut container = json!({
            "name": CONTAINER, "image": image,
            "command": [format!("{RELEASE}/usr/sbin/condor_master"), "-f"],
            "env": env,
            "resources": resources,
            "securityContext": secured,
            "volumeMounts": [
                readable("config", CONFIG), mount("local", LOCAL), mount("tmp", "/tmp"),
                if is_worker { readable("tree", RELEASE) } else { mount("spool", SPOOL) },
            ],
            "ports": [{ "name": CONTAINER, "containerPort": PORT, "protocol": "TCP" }],
        });
        if !is_worker {
            // The port is the master's: a schedd that is busy is not to be killed for it.
            let probe = json!({ "tcpSocket": { "port": CONTAINER }, "periodSeconds": 10, "failureThreshold": 3 });
            container["readinessProbe"] = probe;
        }
        let mut volumes = vec![
            json!({
                "name": "config",
                "configMap": {
                    "name": self.names.object("config"),
                    "items": [{ "key": <&str>::from(role), "path": "condor_config" }],
                },
            }),
            json!({ "name": "secret", "secret": { "secretName": self.names.token(role), "defaultMode": 0o440 } }),
            json!({ "name": "local", "emptyDir": {} }),
            json!({ "name": "tmp", "emptyDir": {} }),
        ];
        if is_worker {
            volumes.push(json!({ "name": "tree", "emptyDir": {} }));
        }
        let mut template = json!({
            "metadata": { "labels": labels, "annotations": { TEMPLATE: digest(&config) } },
            "spec": {
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 60,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": ACCOUNT, "runAsGroup": ACCOUNT, "fsGroup": ACCOUNT,
                    "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" },
                },
                "initContainers": [{
                    "name": "prepare", "image": self.spec.image, "command": ["/bin/sh", "-c", PREPARE],
                    "securityContext": prepared,
                    "resources": { "requests": { "cpu": "10m", "memory": "64Mi" }, "limits": { "memory": "256Mi" } },
                    "volumeMounts": [readable("secret", SECRET), mount("local", LOCAL), mount(own.0, own.1)],
                }],
                "containers": [container],
                "volumes": volumes,
            },
        });
        if !self.spec.image_pull_secrets.is_empty() {
            let secrets = self.spec.image_pull_secrets.iter().map(|name| json!({ "name": name }));
            template["spec"]["imagePullSecrets"] = secrets.collect();
        }
        template
    }
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

/// What a pod of daemons asks for; it may have more of the processor.
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
    use super::*;

    fn with(spec: &ManagedPool, look: impl FnOnce(&Design<'_>)) {
        let pool = ObjectName { namespace: "physics".to_owned(), name: "lhc".to_owned() };
        let names = Names::new(&pool, "0123456789").unwrap();
        let operator = ObjectName { namespace: "htc".to_owned(), name: "op".to_owned() };
        look(&Design { names: &names, spec, operator: &operator });
    }

    fn spec() -> ManagedPool {
        ManagedPool { image: "htcondor:1".to_owned(), ..ManagedPool::default() }
    }

    #[test]
    fn all_is_the_pools_own() {
        with(&spec(), |design| {
            let mut objects = design.objects();
            objects.push(design.worker(3).unwrap());
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
    fn only_those_who_check_tokens_see_the_key_and_no_job_sees_a_secret() {
        with(&spec(), |design| {
            let worker = design.worker(0).unwrap();
            let mounts = |container: &Value| -> Vec<String> {
                let mounts = container["volumeMounts"].as_array().unwrap();
                mounts.iter().map(|mount| mount["name"].as_str().unwrap().to_owned()).collect()
            };
            assert!(!mounts(&worker["spec"]["containers"][0]).contains(&"secret".to_owned()));
            let text = worker.to_string();
            assert!(text.contains("lhc-worker-token") && !text.contains("lhc-signing-key"), "{text}");
        });
    }

    #[test]
    fn a_worker_is_larger_than_what_its_jobs_have() {
        let mut spec = spec();
        spec.workers.resources = Some(PodResources {
            cpus: Some(Quantity::Text("1500m".to_owned())),
            memory: Some(Quantity::Text("2Gi".to_owned())),
            disk: None,
        });
        with(&spec, |design| {
            let limits = &design.worker(0).unwrap()["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits, &json!({ "cpu": "2", "memory": "2176Mi", "ephemeral-storage": "1536Mi" }));
        });
    }

    #[test]
    fn another_template_is_another_worker() {
        let (mut spec, mut before, mut same) = (spec(), String::new(), String::new());
        with(&spec, |design| {
            before = design.worker_template().unwrap();
            same = design.worker(7).unwrap()["metadata"]["annotations"][TEMPLATE].as_str().unwrap().to_owned();
        });
        assert_eq!(before, same);
        spec.workers.resources = Some(PodResources { cpus: Some(Quantity::Number(2)), memory: None, disk: None });
        with(&spec, |design| assert_ne!(design.worker_template().unwrap(), before));
    }

    #[test]
    fn the_claim_of_the_queue_goes_only_if_it_is_said() {
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
