//! Spec and status of the HTCJob.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::env::EnvVarSource;
use super::files::{FileSource, InputStatus};
use super::{
    Backend, Condition, ContainerSpec, KubernetesSpec, MiniCluster, MiniClusterStatus, NodeFaultsStatus, Phase,
    PullSecret, Quantity, Volume, quantity,
};

// The API server evaluates each rule on every write, including writes of the status and the finalizers. Each
// `self.field` adds cost. Therefore a rule is written on the field itself. It is written on the enclosing object only
// if it needs several fields, or if its message must not repeat a large value.
// A rule that cannot be evaluated forbids every update. Therefore a rule on an object checks `has` first, even for
// required fields. An object that lacks such a field, stored under other rules, can then still be deleted.
/// What to run on the HTCondor pool, and how many times.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "htc.cern.ch",
    version = "v1alpha1",
    kind = "HTCJob",
    plural = "htcjobs",
    shortname = "htcj",
    category = "all",
    namespaced,
    status = "HTCJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "An HTCJob runs a script or a program in a container on an HTCondor pool, once or many times. Deleting it removes its jobs from HTCondor.",
    selectable = ".status.phase",
    selectable = ".status.state",
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.state",
        description = "what needs attention, for example InvalidSpec, Held or Failed; otherwise the phase"
    ),
    printcolumn(
        name = "Jobs",
        type_ = "integer",
        json_path = ".status.total",
        description = "number of jobs requested"
    ),
    printcolumn(
        name = "Active",
        type_ = "integer",
        json_path = ".status.active",
        description = "jobs in HTCondor that have not ended"
    ),
    printcolumn(
        name = "Succeeded",
        type_ = "integer",
        json_path = ".status.succeeded",
        description = "jobs that exited with 0"
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.failed",
        description = "jobs that ended in any other way"
    ),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".status.clusterid",
        description = "HTCondor's cluster id"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "Pending, Submitted, Running, Completed or Terminating",
        priority = 1
    ),
    printcolumn(
        name = "Schedd",
        type_ = "string",
        json_path = ".status.schedd",
        description = "name of the schedd that has the jobs",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        description = "explanation of the status",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("has(self.script) != has(self.container)")
        .message("a job has one thing to run: write either spec.script or spec.container").field_path(".script"),
    validation = Rule::new("!has(self.queue) || !has(self.items) || self.queue == size(self.items)")
        .message("spec.queue is not the number of items: leave spec.queue out").field_path(".queue"),
    validation = Rule::new("!has(self.items) || !has(self.itemsFrom)")
        .message("spec.items and spec.itemsFrom exclude each other: write one of them").field_path(".itemsFrom"),
    validation = Rule::new("!has(self.queue) || !has(self.script) || !has(self.script.queue) || self.queue == self.script.queue")
        .message("spec.queue and spec.script.queue differ: write the number of jobs once, as spec.queue").field_path(".queue"),
    validation = Rule::new("!has(self.kubernetes) || (has(self.backend) && self.backend == 'Kubernetes')")
        .message("spec.kubernetes is for Pods only: write spec.backend: Kubernetes, or leave it out").field_path(".kubernetes"),
    validation = Rule::new("!has(self.volumes) || !has(self.kubernetes) || !has(self.kubernetes.volumes)")
        .message("spec.volumes and spec.kubernetes.volumes exclude each other: write spec.volumes").field_path(".volumes"),
    validation = Rule::new("!has(self.imagePullSecrets) || !has(self.kubernetes) || !has(self.kubernetes.imagePullSecrets)")
        .message("spec.imagePullSecrets and spec.kubernetes.imagePullSecrets exclude each other: write spec.imagePullSecrets").field_path(".imagePullSecrets"),
    validation = Rule::new("!has(self.miniCluster) || (has(self.pool) && (!has(self.backend) || self.backend == 'HTCondor'))")
        .message("spec.miniCluster is for managed pools only: name an HTCPool with spec.managed as spec.pool, and no backend but HTCondor").field_path(".miniCluster")
)]
#[serde(rename_all = "camelCase")]
pub struct HTCJobSpec {
    /// Ignored. Kept so that objects written for the first htc-operator still apply; the name is metadata.name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Image, command and script that each job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,

    /// Image and command that each job runs, in place of a script. Without a command it is the image's own entrypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,

    /// Number of jobs, 1 to 100000. Default: the number of items, or 1 without items.
    /// Each job gets its index, from 0, as the script's argument and in HTCPROCID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100000")
        .message("queue must be a number of jobs from 1 to 100000; leave it out for one job"))]
    pub queue: Option<i64>,

    /// Which of the indexes to run, for example `3,17,200-210`. Default: all of them.
    /// The other jobs of the queue are not part of this HTCJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*$')")
        .message("indexes is a list of indexes and ranges, without blanks, such as 3,17,200-210"))]
    pub indexes: Option<String>,

    /// One line of text for each job, for example the name of an input file. The number of items is the number of jobs.
    /// Each job gets its item as the script's second argument and in HTC_ITEM.
    /// Items are arguments of HTCondor's jobs, which every user of the pool can read. Do not store passwords here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), inner(length(max = 1024), pattern(r"^[^\x00-\x1f\x7f]*$")))]
    pub items: Vec<String>,

    /// Takes the items from a ConfigMap: one item in each line. They are read once, before the first job is submitted, and kept.
    /// The operator needs permission to get the ConfigMap; docs/using.md has the Role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_from: Option<ItemsFrom>,

    /// Maximum number of jobs in HTCondor at a time. Default: all of them. The others are submitted as these end.
    /// Can be changed at any time. With 0 nothing more is submitted. Jobs that HTCondor already has are not removed.
    /// With backend Kubernetes: most Pods that run at a time. If you lower it, the operator deletes Pods, and runs them again later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 100000")
        .message("parallelism is a number of jobs from 0 to 100000; leave it out for no limit"))]
    pub parallelism: Option<i64>,

    /// If more jobs than this fail, the others are removed and the HTCJob is Failed with reason MaxFailedIndexesExceeded.
    /// Default: no limit. A job that maxRetries runs again has not failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 100000")
        .message("maxFailedIndexes is a number of jobs from 0 to 100000; leave it out for no limit"))]
    pub max_failed_indexes: Option<i64>,

    /// Additional HTCondor submit commands, one `key = value` per line, for example `+JobFlavour = "espresso"`.
    /// docs/htcopts.md lists the allowed commands. `$` macros and line continuations are not allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub htcopts: Option<String>,

    /// Resources that each job needs. The pool's defaults apply to those that are not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Environment variables for the script, in addition to HTCPROCID, HTC_ITEM and JOB_NAME. Values are not expanded.
    /// They are stored in a file of the job, not in its ClassAd, which every user of the pool can read.
    /// Everybody who may read the HTCJob can read them: passwords belong into Secrets (`valueFrom.secretKeyRef`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<EnvVar>,

    /// Files that each job finds below its working directory. They are read once, before the first job is submitted, and kept.
    /// All attempts of all jobs get the same bytes, and status.inputs has their checksums.
    /// Files that the script does not change do not come back as output. docs/using.md says what they may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".into()]))]
    pub files: Vec<FileSource>,

    /// Secrets of the namespace with logins of registries, with which the image is pulled.
    /// In HTCondor each job fetches the login of its image's registry from the operator, for the pull only.
    /// Such a Secret needs the label `htc.cern.ch/use: images`. Workers of managed pools pull with the pool's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub image_pull_secrets: Vec<PullSecret>,

    /// Volumes that each job sees, by the names of their PersistentVolumeClaims.
    /// Pods, and workers of pools that the operator runs in this namespace, mount the claim.
    /// In other HTCondor pools jobs see the folder of the nodes that the site has named for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".into()]))]
    pub volumes: Vec<Volume>,

    /// Which of the files and folders that the script leaves come back: paths and patterns such as `plots/*.pdf`. Default: all.
    /// A folder comes back with all that is in it.
    /// `*`, `?` and `[a-z]` stand for parts of one name, and `**` for any number of folders.
    /// `out` and `err` always come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256), pattern(r"^[^\x00-\x1f\x7f\\]*$")))]
    #[x_kube(validation = Rule::new("!self.exists(path, path.matches('(^|/)[.]{0,2}/|(^|/)[.]{1,2}$'))")
        .message("outputs are paths below the script's working directory, such as results or plots/*.pdf: without .., and not beginning with /"))]
    pub outputs: Vec<String>,

    /// ClassAd expression that a machine must satisfy, for example `TARGET.HasAvx2 && TARGET.OpSysMajorVer >= 9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    #[x_kube(validation = Rule::new("self.trim() != ''")
        .message("requirements is empty: leave it out, or write an expression such as `TARGET.HasAvx2`"))]
    pub requirements: Option<String>,

    /// How often a job runs again that ended with a non-zero exit code or by a signal. A Job calls this backoffLimitPerIndex. Default: 0.
    /// HTCondor runs it again; with backend Kubernetes it gets another Pod.
    /// The job counts as failed only if its last run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1000")
        .message("maxRetries is how often a failed job runs again: write a number from 0 to 1000"))]
    pub max_retries: Option<i64>,

    /// Secret in the same namespace. Jobs are submitted and managed with its credentials. Default: the operator's own.
    /// Its keys: `token` (an HTCondor IDTOKEN), `user` and `keytab`, or `username` and `password` (Kerberos).
    /// The operator needs permission to get it; docs/credentials.md has the Role. Keep it until the HTCJob is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("credentialsSecretName is the name of a Secret in the HTCJob's own namespace: lower-case letters, digits, - and ."))]
    pub credentials_secret_name: Option<String>,

    /// HTCPool to run on: its name, or `namespace/name` if it is in another namespace. Default: the pool of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("pool is the name of an HTCPool, or namespace/name: lower-case letters, digits, - and ."))]
    pub pool: Option<String>,

    /// Workers of its own: pods of a managed HTCPool that run the jobs of this HTCJob only.
    /// They are made when HTCondor has the jobs, follow them in number, and go when all jobs have ended.
    /// The HTCPool must allow it (spec.managed.workers.miniClusters).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mini_cluster: Option<MiniCluster>,

    /// What runs the jobs: an HTCondor pool (HTCondor), or Pods on the cluster's own nodes (Kubernetes).
    /// docs/kubernetes-backend.md says what the other fields mean for Pods, and which are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,

    /// What only Pods have: volumes, Secrets to pull the image with, and on which nodes they run. With backend Kubernetes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSpec>,

    /// Time limit in seconds for the whole HTCJob, counted from status.startTime or from the last resumption.
    /// Jobs that have not ended by then are removed, and the HTCJob is Failed with reason DeadlineExceeded.
    /// Time that jobs wait in HTCondor counts. The clock stops while the HTCJob is suspended, and restarts from zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1")
        .message("activeDeadlineSeconds must be at least 1 second; leave it out for no limit"))]
    pub active_deadline_seconds: Option<i64>,

    /// Deletes the HTCJob this many seconds after status.completionTime. Its output is kept as long as the site keeps output.
    /// The HTCJob is not deleted while HTCondor still has output of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0")
        .message("ttlSecondsAfterFinished must not be negative; leave it out to keep the HTCJob"))]
    pub ttl_seconds_after_finished: Option<i64>,

    /// While true, no job is submitted and jobs in HTCondor are held; Pods are deleted, and start anew. Set it to false to resume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// Where items are read from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ItemsFrom {
    /// Key of a ConfigMap in the same namespace.
    pub config_map_key_ref: ConfigMapKeyRef,
}

/// Key of a ConfigMap.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("name is the name of a ConfigMap in the HTCJob's own namespace: lower-case letters, digits, - and ."))]
    pub name: String,
    /// Key in its `data`. The value has one item in each line; an empty line is an empty item.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')")
        .message("key is a key of the ConfigMap: letters, digits, -, _ and ."))]
    pub key: String,
}

/// Resources that each job needs, as Kubernetes quantities.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Cores, `request_cpus`: 4, or 500m, which HTCondor counts as 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::CORES)
        .message("cpus is a number of cores such as 4 or 500m"))]
    pub cpus: Option<Quantity>,
    /// Memory, `request_memory`: 2Gi, 500M; rounded up to MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("memory is a Kubernetes quantity such as 2Gi or 500M; a number alone is bytes"))]
    pub memory: Option<Quantity>,
    /// Disk for the job's folder on the node, `request_disk`: 10Gi; rounded up to KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("disk is a Kubernetes quantity such as 10Gi or 500M; a number alone is bytes"))]
    pub disk: Option<Quantity>,
    /// GPUs, `request_gpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1000")
        .message("gpus is a number of GPUs, from 0 to 1000"))]
    pub gpus: Option<i64>,
}

/// One variable for the script.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("!has(self.name) || self.name.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("name is the name of an environment variable: use letters, digits and _, and do not start with a digit").field_path(".name"),
    validation = Rule::new("!has(self.name) || !(self.name in ['HTCPROCID', 'HTC_ITEM', 'JOB_NAME'])")
        .message("HTCPROCID, HTC_ITEM and JOB_NAME are set by htc-operator").field_path(".name"),
    validation = Rule::new("!has(self.valueFrom) || !has(self.value) || self.value == ''")
        .message("value and valueFrom exclude each other: write one of them").field_path(".valueFrom")
)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable: letters, digits and `_`, not starting with a digit.
    #[schemars(length(max = 128))]
    pub name: String,
    /// Value of the variable. It is not expanded and may have several lines.
    #[serde(default)]
    #[schemars(length(max = 8192))]
    pub value: String,
    /// Where the value comes from, instead of `value`. It is read once, before the first job is submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// What each job runs: `COMMAND script INDEX` in a container of the image.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("!has(self.source) || bytes(self.source).size() <= 262144")
        .message("source is larger than 256 KiB: put large files where the nodes can read them (/cvmfs, /eos) and let the script fetch them").field_path(".source")
)]
pub struct Script {
    /// Container image: a name `[registry/]name[:tag][@digest]`, or an absolute path on the nodes.
    /// A path is an unpacked image folder or a file in Apptainer's format, for example `/eos/project/images/root.sif`.
    /// The site may map names to folders or mirrors. Apptainer on the node pulls all other names from their registry.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.trim() != ''")
        .message("image is empty: write the container image, for example `centos` or `/cvmfs/unpacked.cern.ch/registry.hub.docker.com/library/python:3.12`"))]
    pub image: String,
    /// Program in the image that runs the script, with options if needed: `bash`, `Rscript`, `bash -e`.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.trim() != ''")
        .message("command is empty: write the program that runs the script, for example `bash`"))]
    pub command: String,
    /// Contents of the script, at most 256 KiB. From about 200 KiB `kubectl apply` needs `--server-side`.
    /// Its first argument is the job's index, from 0.
    // The limit is no larger than that of the rule. `kubectl apply` copies the object into an annotation. If that is
    // too long, the API server evaluates no rules and reports only this limit.
    #[schemars(length(max = 262_144))]
    #[x_kube(validation = Rule::new("self.trim() != ''")
        .message("source is empty: write the script that the command is to run"))]
    pub source: String,
    /// Same as spec.queue. Kept for objects written for the first htc-operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 100000")
        .message("queue must be a number of jobs from 1 to 100000; leave it out for one job"))]
    pub queue: Option<i64>,
}

impl HTCJobSpec {
    /// Returns the backend that runs the jobs.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend.unwrap_or_default()
    }

    /// Returns whether the jobs have files or variables from Secrets.
    #[must_use]
    pub fn uses_secrets(&self) -> bool {
        let of_secret =
            |variable: &EnvVar| variable.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some());
        self.files.iter().any(|file| file.secret.is_some()) || self.env.iter().any(of_secret)
    }

    /// Returns the image in which the jobs run. With spec.miniCluster it is that of its own workers, if they have one.
    #[must_use]
    pub fn image(&self) -> &str {
        self.mini_cluster.as_ref().and_then(|own| own.image.as_deref()).unwrap_or_else(|| self.named_image())
    }

    /// Returns the image that the spec names beside what to run in it; empty if there is none.
    #[must_use]
    pub fn named_image(&self) -> &str {
        let container = || self.container.as_ref().map(|container| container.image.as_str());
        self.script.as_ref().map(|script| script.image.as_str()).or_else(container).unwrap_or_default()
    }

    /// Returns the script, if the jobs run one.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.script.as_ref().map(|script| script.source.as_str())
    }

    /// Returns whether the jobs run the image's own entrypoint.
    #[must_use]
    pub fn runs_entrypoint(&self) -> bool {
        self.container.as_ref().is_some_and(|container| container.command.is_empty())
    }

    /// Returns the number of requested jobs. If the spec does not give it, it is the number of items, or 1. `None` if
    /// it depends on a ConfigMap.
    #[must_use]
    pub fn job_count(&self) -> Option<i64> {
        let items = (!self.items.is_empty()).then(|| i64::try_from(self.items.len()).unwrap_or(i64::MAX));
        let said = self.queue.or_else(|| self.script.as_ref()?.queue).or(items);
        if self.items_from.is_some() { said } else { said.or(Some(1)) }
    }
}

/// Observed state of the HTCJob.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.phase) || has(self.phase) || oldSelf.phase == 'Pending'")
        .message("the phase of an HTCJob cannot go back").field_path(".phase"),
    validation = Rule::new("!has(oldSelf.clusterid) || (has(self.clusterid) && self.clusterid == oldSelf.clusterid) || oldSelf.clusterid == '' || (has(self.attempt) && (!has(oldSelf.attempt) || self.attempt > oldSelf.attempt))")
        .message("clusterid changes only with a new attempt").field_path(".clusterid")
)]
#[serde(rename_all = "camelCase")]
pub struct HTCJobStatus {
    /// Pending, Submitted, Running, Completed or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf || oldSelf == 'Pending' || self == 'Terminating' || (self == 'Completed' && oldSelf != 'Terminating') || (self == 'Running' && oldSelf == 'Submitted')")
        .message("the phase of an HTCJob cannot go back"))]
    pub phase: Option<Phase>,
    /// What needs attention, in one word: the reason of a condition, Held, Suspended or Failed; otherwise the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub state: Option<String>,
    /// The first words of the condition that state comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
    /// Generation of the spec that the operator last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the schedd that has the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub schedd: Option<String>,
    /// Number of times that jobs of this HTCJob were submitted to HTCondor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
    /// HTCondor cluster id. If the jobs are in several clusters, the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub clusterid: Option<String>,
    /// Name of the Job whose Pods run the jobs, with backend Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub job_name: Option<String>,
    /// HTCondor ids of the first 100 jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 32)))]
    pub jobid: Vec<String>,
    /// HTCondor ids of all jobs as ranges, for example `884426.0-999`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub jobs: Option<String>,
    /// Number that the first htc-operator assigned to the HTCJob. Only read during the upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniqid: Option<i64>,
    /// HTCondor ids as the first htc-operator wrote them. Only read during the upgrade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100_000), inner(length(max = 32)))]
    pub jobids: Vec<String>,
    /// Number of jobs requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Jobs in HTCondor that have not ended.
    #[serde(default)]
    pub active: i64,
    /// Jobs that exited with 0.
    #[serde(default)]
    pub succeeded: i64,
    /// Jobs that ended in any other way.
    #[serde(default)]
    pub failed: i64,
    /// Indexes of the jobs that exited with 0, as ranges, for example `0-4,7`. If the list is too long, it ends with `,…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub completed_indexes: Option<String>,
    /// Indexes of the jobs that ended in any other way, as ranges. If the list is too long, it ends with `,…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub failed_indexes: Option<String>,
    /// Active jobs that wait for a machine.
    #[serde(default)]
    pub idle: i64,
    /// Active jobs that are running.
    #[serde(default)]
    pub running: i64,
    /// Active jobs that are on hold.
    #[serde(default)]
    pub held: i64,
    /// Runs that ended by faults of their nodes. HTCondor runs these jobs again, on other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_faults: Option<NodeFaultsStatus>,
    /// Files of spec.files, as all jobs get them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".into()]))]
    pub inputs: Vec<InputStatus>,
    /// Digest of the image that all jobs get, if the registry was asked for it before the first submission or spec names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub image_digest: Option<String>,
    /// Reason why the digest is not known. The jobs pull the tag, each what it means at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image_digest_problem: Option<String>,
    /// Workers of its own, with spec.miniCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mini_cluster: Option<MiniClusterStatus>,
    /// Time at which HTCondor accepted the first job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which every job had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Current conditions, for example Submitted, Complete and Failed. Tracked, Held, NodeFaults, Stuck, Suspended and QuotaReserved are absent until there is something to report.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}
