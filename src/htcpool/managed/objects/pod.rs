//! Builds the pods of a managed pool. They meet the Pod Security Standard `restricted`.

use std::collections::BTreeMap;

use htc_api::{ManagedPool, MiniCluster, ObjectName, PodUser, Quantity, QuantityError, Volume, WorkerTemplate};
use htc_machine::worker_groups::SharedGroup;
use htc_submit::description::NO_OWNER;
use htc_submit::pod_metadata::{DEFAULT_ANNOTATIONS, DEFAULT_LABELS, DEFAULT_NODE_SELECTOR, with_defaults};
use htc_submit::pod_spec::{CpuLimits, SHARED_MEMORY};
use htc_submit::volumes;
use serde_json::{Value, json};

use super::{
    CONTAINER, Design, IMAGE_ANNOTATION, MINI_CLUSTER_LABEL, MINI_CLUSTER_OF_ANNOTATION, NAMESPACE_LABEL,
    SIGNING_KEY_ANNOTATION, TEMPLATE_ANNOTATION, VOLUMES_ANNOTATION, digest, merge, push,
};
use crate::backends::condor::credentials::Tenant;
use crate::backends::condor::credentials::signing::NAMESPACE_USER_PREFIX;
use crate::htcpool::managed::config::{RESERVE_MIB, condor_config};
use crate::htcpool::managed::names::{PORT, Role};
use crate::htcpool::managed::paths::{CONFIG, LOCAL, NODE, RELEASE, SECRET, SPOOL};
use crate::htcpool::managed::{payload, shadow};

/// User and group of pods unless the cluster chooses them. HTCondor does not start as a user that is not in
/// `/etc/passwd`, and nearly all images have this one.
const ACCOUNT: u32 = 65534;
/// MiB of a worker's disk for HTCondor and its logs. Its jobs do not get them.
const DISK_RESERVE_MIB: u64 = 512;
/// Name of the init container that checks whether an image has what a worker needs.
pub const CHECK_CONTAINER: &str = "check";
const MIB: u64 = 1 << 20;
/// Annotation of pods: the default container of `kubectl exec` and `kubectl logs`.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Script of the init container: copies the files of the Secret.
///
/// HTCondor accepts keys and tokens only from files of its own account that no other account may read. A Secret's files
/// belong to root.
const PREPARE: &str = r#"set -eu
umask 077
cd /htcpool/local
mkdir -p log execute run lock cred spool passwords.d tokens.d
rm -f tokens.d/token passwords.d/htcpool*
# Kubelet may have an older version of the Secret for a while. Its files are of one version: who has the newest key, the last one here, has
# tokens of it. An older one that is not there beside it has been withdrawn.
newest=
for key in ${SIGNING_KEYS:-}; do newest=$key; done
if [ -n "$newest" ]; then
    until [ -e "/htcpool/secret/$newest" ]; do sleep 1; done
fi
for key in ${SIGNING_KEYS:-}; do
    if [ -e "/htcpool/secret/$key" ]; then cp "/htcpool/secret/$key" "passwords.d/$key"; fi
done
cp /htcpool/secret/token tokens.d/token
chmod 755 log execute run lock spool
umask 022
if [ -d /htcpool/spool ]; then mkdir -p /htcpool/spool/spool; fi
# The folder itself is root's: nobody else may set its times.
if [ -d /htcpool/tree ]; then cp -R -P -p /htcondor/* /htcpool/tree/; fi
"#;

/// Command of central manager and schedd: copies a renewed token from the Secret, and runs HTCondor.
///
/// HTCondor reads its tokens whenever it authenticates itself. Workers are replaced instead. Keys are not copied: a
/// daemon keeps naming the keys that it started with (`m_cached_policy_ad` of HTCondor's `condor_secman.cpp`, which
/// 23.9 keeps even after a reconfig), and a client that has tokens of other keys does not try them. So other keys need
/// new pods.
const RENEW: &str = r#"umask 077
while sleep 30; do
    if [ "$(cat /htcpool/secret/token)" != "$(cat /htcpool/local/tokens.d/token)" ]; then
        cp /htcpool/secret/token /htcpool/local/token && mv /htcpool/local/token /htcpool/local/tokens.d/token
    fi
done &
umask 022
exec "$0" -f
"#;

/// Script that checks the image of jobs, with builtins of its shell only. Users see its output.
const CHECK: &str = r#"missing=
for tool in find tar base64; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
while read -r key real _; do
    if [ "$key" = Uid: ]; then own=$real; fi
done </proc/self/status
account=
while IFS=: read -r _ _ uid _ || [ -n "$uid" ]; do
    if [ "$uid" = "$own" ]; then account=1; fi
done </etc/passwd
if [ -z "$account" ]; then missing="$missing an-account-with-the-number-$own-in-/etc/passwd"; fi
if [ -n "$missing" ]; then
    echo "the image lacks$missing" >&2
    exit 1
fi
"#;

/// Resources of one worker that its jobs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSize {
    /// CPU cores.
    pub cpus: u64,
    /// Memory in MiB.
    pub memory: u64,
    /// Disk in MiB.
    pub disk: u64,
}

/// Input for the pod of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerKind {
    /// Image of its container.
    pub image: String,
    /// Resources for its jobs.
    pub size: WorkerSize,
    /// The only namespace whose jobs it runs; `None` for all namespaces, or for a worker of one HTCJob.
    pub namespace: Option<String>,
    /// Claims of the pool's namespace that it mounts. It runs only jobs with these volumes.
    pub volumes: Vec<Volume>,
    /// The only HTCJob whose jobs it runs; `None` for a shared worker.
    pub own: Option<OwnWorker>,
}

/// The HTCJob that a worker belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnWorker {
    /// `metadata.uid` of the HTCJob.
    pub uid: String,
    /// Namespace and name of the HTCJob.
    pub name: ObjectName,
    /// Further settings of the pod.
    pub template: WorkerTemplate,
}

impl WorkerKind {
    /// Returns the kind of a worker that HTCJobs with its image share.
    ///
    /// # Errors
    /// A quantity that cannot be parsed.
    pub fn shared(spec: &ManagedPool, shared: &SharedGroup) -> Result<Self, QuantityError> {
        let SharedGroup { image, namespace, volumes } = shared.clone();
        Ok(Self { image, size: WorkerSize::of(spec, None)?, namespace, volumes: volumes::of_key(&volumes), own: None })
    }

    /// Returns the tenant whose jobs it runs.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        match (&self.own, &self.namespace) {
            (Some(own), _) => Tenant::HTCJob(own.uid.clone()),
            (None, Some(namespace)) => Tenant::Namespace(namespace.clone()),
            (None, None) => Tenant::Everybody,
        }
    }
}

impl WorkerSize {
    /// Returns the size of the pool's workers, or of those that belong to an HTCJob.
    ///
    /// # Errors
    /// A quantity that cannot be parsed. The API server admits none.
    pub fn of(spec: &ManagedPool, own: Option<&MiniCluster>) -> Result<Self, QuantityError> {
        let mut resources = spec.workers.resources.clone().unwrap_or_default();
        if let Some(own) = own.and_then(|own| own.resources.clone()) {
            resources.cpus = own.cpus.or(resources.cpus);
            resources.memory = own.memory.or(resources.memory);
            resources.disk = own.disk.or(resources.disk);
        }
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

impl Design<'_> {
    /// Returns the pod of a worker.
    #[must_use]
    pub fn worker(&self, number: u32, kind: &WorkerKind) -> Value {
        let WorkerKind { image, size, namespace, volumes, own } = kind;
        let key = volumes::key(volumes);
        let tenant = kind.tenant();
        // A worker of one HTCJob accepts jobs by the HTCJob's uid, not by their owner.
        let owner = match &tenant {
            Tenant::Namespace(namespace) => format!("{NAMESPACE_USER_PREFIX}{namespace}"),
            Tenant::Everybody | Tenant::HTCJob(_) => NO_OWNER.to_owned(),
        };
        let (memory, disk) = (size.memory + RESERVE_MIB, size.disk + DISK_RESERVE_MIB);
        let requests = json!({
            "cpu": size.cpus.to_string(), "memory": format!("{memory}Mi"), "ephemeral-storage": format!("{disk}Mi"),
        });
        let mut limits = requests.clone();
        if self.cpu_limits == Some(CpuLimits::None)
            && let Some(limits) = limits.as_object_mut()
        {
            limits.remove("cpu");
        }
        let amount = |name: &str, resource: &str, divisor: &str| {
            let source = json!({ "containerName": CONTAINER, "resource": resource, "divisor": divisor });
            json!({ "name": name, "valueFrom": { "resourceFieldRef": source } })
        };
        let environment = [
            field("POD_UID", "metadata.uid"),
            json!({ "name": "WORKER_IMAGE", "value": image }),
            json!({ "name": "WORKER_IDENTITY", "value": tenant.identity(&self.names.domain()) }),
            json!({ "name": "WORKER_OWNER", "value": owner }),
            json!({ "name": "WORKER_VOLUMES", "value": if key.is_empty() { NO_OWNER } else { &key } }),
            json!({ "name": "WORKER_MINI_CLUSTER", "value": own.as_ref().map_or(NO_OWNER, |own| &own.uid) }),
            amount("WORKER_CPUS", "requests.cpu", "1"),
            amount("WORKER_MEMORY_MIB", "limits.memory", "1Mi"),
            json!({ "name": "WORKER_DISK_KIB", "value": (size.disk * 1024).to_string() }),
        ];
        let resources = json!({ "limits": limits, "requests": requests });
        let secret = self.names.worker_token(number, &tenant);
        let mut pod = self.pod(Role::Worker, image, &resources, &environment, &secret);
        // Otherwise all jobs of the worker have 64 MB together.
        let shared_memory = json!({ "medium": "Memory", "sizeLimit": format!("{}Mi", size.memory) });
        push(&mut pod["spec"]["volumes"], json!({ "name": "shm", "emptyDir": shared_memory }));
        push(&mut pod["spec"]["containers"][0]["volumeMounts"], json!({ "name": "shm", "mountPath": SHARED_MEMORY }));
        // The pod ends after a drain, and must not start again.
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["terminationGracePeriodSeconds"] = 120.into();
        push(&mut pod["spec"]["initContainers"], check(image));
        mount_volumes(&mut pod["spec"], volumes);
        if let Some(own) = own {
            own.apply_to(&mut pod);
        }
        let mut object = self.object("v1", "Pod", &self.names.worker(number));
        // The name of the Secret contains the worker's number, which must not change the template.
        let mut made_from = pod.to_string().replace(&secret, &tenant.to_string());
        if self.keys.newest > 1 {
            made_from.push_str(&self.keys.newest.to_string());
        }
        let template = digest(&made_from);
        merge(&mut object["metadata"]["labels"], &pod["metadata"]["labels"]);
        object["metadata"]["annotations"] = pod["metadata"]["annotations"].take();
        let own_annotations = json!({
            TEMPLATE_ANNOTATION: template, IMAGE_ANNOTATION: image, SIGNING_KEY_ANNOTATION: self.keys.newest.to_string(),
        });
        merge(&mut object["metadata"]["annotations"], &own_annotations);
        if let Some(own) = own {
            object["metadata"]["labels"][MINI_CLUSTER_LABEL] = own.uid.clone().into();
            object["metadata"]["annotations"][MINI_CLUSTER_OF_ANNOTATION] = own.name.to_string().into();
        }
        if !key.is_empty() {
            object["metadata"]["annotations"][VOLUMES_ANNOTATION] = key.into();
        }
        if let Some(namespace) = namespace {
            object["metadata"]["labels"][NAMESPACE_LABEL] = namespace.clone().into();
        }
        object["spec"] = pod["spec"].take();
        object
    }

    /// Returns [`TEMPLATE_ANNOTATION`] of a worker that is created now.
    #[must_use]
    pub fn worker_template(&self, kind: &WorkerKind) -> String {
        self.worker(0, kind)["metadata"]["annotations"][TEMPLATE_ANNOTATION].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the pod template of a role. `secret`: name of the Secret with its token.
    pub(super) fn pod(&self, role: Role, image: &str, resources: &Value, environment: &[Value], secret: &str) -> Value {
        let (labels, mut annotations) = self.pod_metadata(role);
        let config = condor_config(self.names, role);
        let (is_worker, is_schedd) = (role == Role::Worker, role == Role::Schedd);
        let mut files = vec![json!({ "key": <&str>::from(role), "path": "condor_config" })];
        let (mut prepare, mut template) = (PREPARE.to_owned(), config);
        if is_schedd {
            files.push(json!({ "key": shadow::NAME, "path": shadow::NAME, "mode": 0o555 }));
            prepare.push_str(&shadow::prepare());
            template.push_str(shadow::SCRIPT);
        }
        if is_worker {
            prepare.push_str(&payload::prepare());
        }
        let mut env = vec![
            json!({ "name": "CONDOR_CONFIG", "value": format!("{CONFIG}/condor_config") }),
            field("POD_NAME", "metadata.name"),
            field("POD_IP", "status.podIP"),
        ];
        env.extend_from_slice(environment);
        let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
        let own = if is_worker { ("tree", payload::TREE) } else { ("spool", SPOOL) };
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
            push(&mut container["volumeMounts"], readable("secret", SECRET));
            container["command"] = json!(["/bin/sh", "-c", RENEW, format!("{RELEASE}/usr/sbin/condor_master")]);
            // The port is the master's. There is no liveness probe, as a busy schedd must not be killed.
            let probe = json!({ "tcpSocket": { "port": CONTAINER }, "periodSeconds": 10, "failureThreshold": 3 });
            container["readinessProbe"] = probe;
        }
        // Daemons that verify tokens have the keys. Other keys restart them, which ends the sessions of admitted
        // clients.
        let accepted =
            if is_worker { json!([]) } else { json!([{ "name": "SIGNING_KEYS", "value": self.keys.names() }]) };
        let mut volumes = vec![
            json!({
                "name": "config",
                "configMap": { "name": self.names.object("config"), "items": files },
            }),
            json!({ "name": "secret", "secret": { "secretName": secret, "defaultMode": 0o440 } }),
            json!({ "name": "local", "emptyDir": {} }),
            json!({ "name": "tmp", "emptyDir": {} }),
        ];
        if is_worker {
            volumes.push(json!({ "name": "tree", "emptyDir": {} }));
        }
        let mut folders = vec![readable("secret", SECRET), mount("local", LOCAL), mount(own.0, own.1)];
        if is_schedd {
            volumes.push(json!({ "name": "node", "emptyDir": {} }));
            folders.push(mount("node", NODE));
            push(&mut container["volumeMounts"], readable("node", NODE));
        }
        merge(&mut annotations, &json!({ TEMPLATE_ANNOTATION: digest(&template), DEFAULT_CONTAINER: CONTAINER }));
        let mut template = json!({
            "metadata": { "labels": labels, "annotations": annotations },
            "spec": {
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 60,
                "securityContext": {
                    "runAsNonRoot": true, "fsGroupChangePolicy": "OnRootMismatch",
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "initContainers": [{
                    "name": "prepare", "image": self.spec.image, "command": ["/bin/sh", "-c", prepare],
                    "env": accepted,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": prepared,
                    "resources": { "requests": { "cpu": "10m", "memory": "64Mi" }, "limits": { "memory": "256Mi" } },
                    "volumeMounts": folders,
                }],
                "containers": [container],
                "volumes": volumes,
            },
        });
        self.place(role, &mut template["spec"]);
        if !self.spec.image_pull_secrets.is_empty() {
            let secrets = self.spec.image_pull_secrets.iter().map(|name| json!({ "name": name }));
            template["spec"]["imagePullSecrets"] = secrets.collect();
        }
        template
    }

    /// Returns labels and annotations of the pods of a role.
    fn pod_metadata(&self, role: Role) -> (Value, Value) {
        let (mut labels, mut annotations) =
            (json!(BTreeMap::from(DEFAULT_LABELS)), json!(BTreeMap::from(DEFAULT_ANNOTATIONS)));
        if role == Role::Worker {
            merge(&mut labels, &json!(self.spec.workers.pod_labels));
            merge(&mut annotations, &json!(self.spec.workers.pod_annotations));
        }
        merge(&mut labels, &self.labels());
        merge(&mut labels, &self.selector(role));
        (labels, annotations)
    }

    /// Sets the nodes and the user of the pods of a role.
    fn place(&self, role: Role, pod: &mut Value) {
        let ManagedPool { central_manager, schedd, workers, .. } = self.spec;
        let (node_selector, tolerations) = match role {
            Role::CentralManager => (&central_manager.node_selector, &central_manager.tolerations),
            Role::Schedd => (&schedd.node_selector, &schedd.tolerations),
            Role::Worker => (&workers.node_selector, &workers.tolerations),
        };
        pod["nodeSelector"] = json!(with_defaults(&DEFAULT_NODE_SELECTOR, node_selector));
        if !tolerations.is_empty() {
            pod["tolerations"] = json!(tolerations);
        }
        if self.spec.pod_user == PodUser::Nobody {
            let account = json!({ "runAsUser": ACCOUNT, "runAsGroup": ACCOUNT, "fsGroup": ACCOUNT });
            merge(&mut pod["securityContext"], &account);
        }
    }
}

impl OwnWorker {
    /// Adds the HTCJob's settings to the pod. The API server decides whether they are allowed. The pool's node selector
    /// stays.
    fn apply_to(&self, pod: &mut Value) {
        let WorkerTemplate { node_selector, tolerations, priority_class_name, pod_labels, pod_annotations } =
            &self.template;
        merge(&mut pod["metadata"]["labels"], &json!(pod_labels));
        merge(&mut pod["metadata"]["annotations"], &json!(pod_annotations));
        let spec = &mut pod["spec"];
        for (label, value) in node_selector {
            if spec["nodeSelector"][label].is_null() {
                spec["nodeSelector"][label] = json!(value);
            }
        }
        if !tolerations.is_empty() {
            let pools = spec["tolerations"].as_array().cloned().unwrap_or_default();
            spec["tolerations"] = pools.into_iter().chain(tolerations.iter().map(|one| json!(one))).collect();
        }
        if let Some(class) = priority_class_name {
            spec["priorityClassName"] = class.clone().into();
        }
    }
}

/// Mounts the volumes into the container of a worker's pod.
fn mount_volumes(pod: &mut Value, volumes: &[Volume]) {
    for (number, Volume { claim, path, read_only }) in volumes.iter().enumerate() {
        let name = format!("claim-{number}");
        let source = json!({ "claimName": claim, "readOnly": read_only });
        push(&mut pod["volumes"], json!({ "name": name, "persistentVolumeClaim": source }));
        let mount = json!({ "name": name, "mountPath": path, "readOnly": read_only });
        push(&mut pod["containers"][0]["volumeMounts"], mount);
    }
}

/// Returns the init container that checks the image. It exits with 0 if the image can be used for a worker.
///
/// An image without a shell fails with an error of its own.
fn check(image: &str) -> Value {
    json!({
        "name": CHECK_CONTAINER, "image": image, "command": ["/bin/sh", "-c", CHECK],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
        },
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
    })
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}
