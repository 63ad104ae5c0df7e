//! The pods of a managed pool, of the level `restricted`.

use serde_json::{Value, json};

use super::{
    CONTAINER, Design, IMAGE, MINI_CLUSTER, MINI_CLUSTER_OF, NAMESPACE, SIGNING_KEY, TEMPLATE, digest, merge, push,
};
use crate::api::{ManagedPool, MiniCluster, ObjectName, Quantity, QuantityError, WorkerTemplate};
use crate::condor::description::SHARED;
use crate::credentials::Tenant;
use crate::credentials::signing::OF_NAMESPACE;
use crate::pools::managed::config::{RESERVE_MIB, condor_config};
use crate::pools::managed::groups::Shared;
use crate::pools::managed::names::{PORT, Role};
use crate::pools::managed::paths::{CONFIG, LOCAL, NODE, RELEASE, SECRET, SPOOL};
use crate::pools::managed::{payload, shadow};

/// Debian's `nobody`: HTCondor does not start as a user that is not in passwd, and this one is there in nearly all images.
const ACCOUNT: u32 = 65534;
/// MiB of a worker's disk that its jobs do not get: HTCondor and its logs have them.
const DISK_RESERVE_MIB: u64 = 512;
/// Name of the container that sees whether an image has what a worker needs.
pub const CHECK_CONTAINER: &str = "check";
const MIB: u64 = 1 << 20;
/// Annotation of pods: which container `kubectl exec` and `kubectl logs` are about.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// HTCondor takes key and token only from files of its own account that nobody else may read. A Secret's files are root's.
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

/// What runs in the pods of central manager and schedd: the tokens of a Secret that was written anew come to HTCondor, which reads them
/// whenever it authenticates itself. Workers are replaced instead. Keys do not come: a daemon goes on to name the keys that it had
/// (`m_cached_policy_ad` of HTCondor's `condor_secman.cpp`, which 23.9 keeps even when it is told to configure itself anew), and a client that
/// has tokens of others does not try them. So the pods are made anew for other keys.
const RENEW: &str = r#"umask 077
while sleep 30; do
    if [ "$(cat /htcpool/secret/token)" != "$(cat /htcpool/local/tokens.d/token)" ]; then
        cp /htcpool/secret/token /htcpool/local/token && mv /htcpool/local/token /htcpool/local/tokens.d/token
    fi
done &
umask 022
exec "$0" -f
"#;

/// In the image that jobs run in, with what its shell has itself. What it says is shown to users.
const CHECK: &str = r#"missing=
for tool in find tar base64; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
account=
while IFS=: read -r _ _ uid _ || [ -n "$uid" ]; do
    if [ "$uid" = 65534 ]; then account=1; fi
done </etc/passwd
if [ -z "$account" ]; then missing="$missing nobody(65534)-in-/etc/passwd"; fi
if [ -n "$missing" ]; then
    echo "the image lacks$missing" >&2
    exit 1
fi
"#;

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

/// What a worker is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerKind {
    /// What it is a container of.
    pub image: String,
    /// What jobs have there.
    pub size: WorkerSize,
    /// The namespace whose jobs alone it runs, if it is one that HTCJobs share and not for all namespaces.
    pub namespace: Option<String>,
    /// The HTCJob whose jobs alone it runs, if it is not for several.
    pub own: Option<OwnWorker>,
}

/// What a worker of one HTCJob is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnWorker {
    /// `metadata.uid`
    pub uid: String,
    /// Its namespace and name.
    pub name: ObjectName,
    /// What else its pod has.
    pub template: WorkerTemplate,
}

impl WorkerKind {
    /// A worker that jobs of its image share.
    ///
    /// # Errors
    /// A quantity that is none.
    pub fn shared(spec: &ManagedPool, shared: &Shared) -> Result<Self, QuantityError> {
        let Shared { image, namespace } = shared.clone();
        Ok(Self { image, size: WorkerSize::of(spec, None)?, namespace, own: None })
    }

    /// Whose jobs it runs.
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
    /// Of the pool's workers, or of those that an HTCJob has of its own.
    ///
    /// # Errors
    /// A quantity that is none; the API server lets none in.
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
    /// A worker's pod.
    #[must_use]
    pub fn worker(&self, number: u32, kind: &WorkerKind) -> Value {
        let WorkerKind { image, size, namespace, own } = kind;
        let tenant = kind.tenant();
        // An HTCJob's own worker knows its jobs by its uid.
        let owner = match &tenant {
            Tenant::Namespace(namespace) => format!("{OF_NAMESPACE}{namespace}"),
            Tenant::Everybody | Tenant::HTCJob(_) => SHARED.to_owned(),
        };
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
            json!({ "name": "WORKER_IMAGE", "value": image }),
            json!({ "name": "WORKER_IDENTITY", "value": tenant.identity(&self.names.domain()) }),
            json!({ "name": "WORKER_OWNER", "value": owner }),
            json!({ "name": "WORKER_MINI_CLUSTER", "value": own.as_ref().map_or(SHARED, |own| &own.uid) }),
            limit("WORKER_CPUS", "limits.cpu", "1"),
            limit("WORKER_MEMORY_MIB", "limits.memory", "1Mi"),
            json!({ "name": "WORKER_DISK_KIB", "value": (size.disk * 1024).to_string() }),
        ];
        let resources = json!({ "limits": amounts, "requests": amounts });
        let secret = self.names.worker_token(number, &tenant);
        let mut pod = self.pod(Role::Worker, image, &resources, &environment, &secret);
        // It ends when it has been drained, and is not to begin again.
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["terminationGracePeriodSeconds"] = 120.into();
        push(&mut pod["spec"]["initContainers"], check(image));
        if let Some(own) = own {
            own.apply_to(&mut pod["spec"]);
        }
        let mut object = self.object("v1", "Pod", &self.names.worker(number));
        // The name of the Secret has the number.
        let mut made_from = pod.to_string().replace(&secret, &tenant.to_string());
        if self.keys.newest > 1 {
            made_from.push_str(&self.keys.newest.to_string());
        }
        let template = digest(&made_from);
        merge(&mut object["metadata"]["labels"], &pod["metadata"]["labels"]);
        object["metadata"]["annotations"] = json!({
            TEMPLATE: template, IMAGE: image, DEFAULT_CONTAINER: CONTAINER, SIGNING_KEY: self.keys.newest.to_string(),
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        });
        if let Some(own) = own {
            object["metadata"]["labels"][MINI_CLUSTER] = own.uid.clone().into();
            object["metadata"]["annotations"][MINI_CLUSTER_OF] = own.name.to_string().into();
        }
        if let Some(namespace) = namespace {
            object["metadata"]["labels"][NAMESPACE] = namespace.clone().into();
        }
        object["spec"] = pod["spec"].take();
        object
    }

    /// What [`TEMPLATE`] says of a worker that is made now.
    #[must_use]
    pub fn worker_template(&self, kind: &WorkerKind) -> String {
        self.worker(0, kind)["metadata"]["annotations"][TEMPLATE].as_str().unwrap_or_default().to_owned()
    }

    /// The template of a role's pods, of the level `restricted`.
    /// `secret`: the name of that with its token.
    pub(super) fn pod(&self, role: Role, image: &str, resources: &Value, environment: &[Value], secret: &str) -> Value {
        let mut labels = self.labels();
        merge(&mut labels, &self.selector(role));
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
            // The port is the master's: a schedd that is busy is not to be killed for it.
            let probe = json!({ "tcpSocket": { "port": CONTAINER }, "periodSeconds": 10, "failureThreshold": 3 });
            container["readinessProbe"] = probe;
        }
        // Those who check tokens have the keys. With others they are restarted, which ends the sessions of whom they have let in.
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
        let mut template = json!({
            "metadata": { "labels": labels, "annotations": { TEMPLATE: digest(&template), DEFAULT_CONTAINER: CONTAINER } },
            "spec": {
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 60,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": ACCOUNT, "runAsGroup": ACCOUNT, "fsGroup": ACCOUNT,
                    "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" },
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
        if !self.spec.image_pull_secrets.is_empty() {
            let secrets = self.spec.image_pull_secrets.iter().map(|name| json!({ "name": name }));
            template["spec"]["imagePullSecrets"] = secrets.collect();
        }
        template
    }
}

impl OwnWorker {
    /// What the HTCJob says of the pod. The API server says whether it may be so.
    fn apply_to(&self, spec: &mut Value) {
        let WorkerTemplate { node_selector, tolerations, priority_class_name } = &self.template;
        if !node_selector.is_empty() {
            spec["nodeSelector"] = json!(node_selector);
        }
        if !tolerations.is_empty() {
            spec["tolerations"] = json!(tolerations);
        }
        if let Some(class) = priority_class_name {
            spec["priorityClassName"] = class.clone().into();
        }
    }
}

/// Ends at once, and well if a worker can be made of the image. One without a shell says so itself.
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
