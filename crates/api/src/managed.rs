//! `spec.managed` of an HTCPool: a pool that the operator runs.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend::{annotations, labels};
use super::{Quantity, Toleration, quantity};

/// A pool that the operator runs: a central manager, a schedd and workers, as pods in the namespace of the HTCPool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.signingKey) || has(self.signingKey)")
        .message("signingKey cannot be removed: keys that were given up stay so"),
    validation = Rule::new("has(oldSelf.signingKey) || !has(self.signingKey) || self.signingKey.generation <= 2")
        .message("raise generation by one at a time: the first key is that of generation 1")
)]
#[serde(rename_all = "camelCase")]
pub struct ManagedPool {
    /// Image with HTCondor, built from the target `htcondor` of the operator's Dockerfile.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/:@]*$')")
        .message("image is the name of an image such as registry.example.org/htcondor:1.0"))]
    pub image: String,
    /// Secrets with credentials for the registries of the images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253), pattern(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")))]
    pub image_pull_secrets: Vec<String>,
    /// The pod with HTCondor's collector and negotiator.
    #[serde(default)]
    pub central_manager: CentralManager,
    /// The pod with the queue.
    pub schedd: ScheddPod,
    /// The pods that run jobs.
    pub workers: Workers,
    /// User that the pods run as.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("podUser cannot be changed, because the files of the queue belong to this user: create a new HTCPool"))]
    pub pod_user: PodUser,
    /// The key that the pool's tokens are signed with. Default: the first one. Once it is there, this cannot be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<SigningKeySpec>,
}

/// User that the pods of a pool run as.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodUser {
    /// User and group 65534, which nearly all images have an account of.
    #[default]
    Nobody,
    /// The user and the group that the cluster gives, as OpenShift does. The pods name none.
    Cluster,
}

/// The key that the pool's tokens are signed with.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(
    validation = Rule::new("!has(self.oldestAccepted) || self.oldestAccepted <= self.generation")
        .message("oldestAccepted is larger than generation: raise generation, too"),
    validation = Rule::new("!has(oldSelf.oldestAccepted) || (has(self.oldestAccepted) && self.oldestAccepted >= oldSelf.oldestAccepted)")
        .message("oldestAccepted cannot be lowered: a key that was given up stays so")
)]
#[serde(rename_all = "camelCase")]
pub struct SigningKeySpec {
    /// Which key it is. Raised by one, a new key is made; the old one is accepted until no token of it is left. Workers are replaced, and
    /// finish their jobs. The condition SigningKeyRotated says how far that is.
    #[x_kube(
        validation = Rule::new("self >= 1 && self <= 1000").message("generation is a number from 1 to 1000"),
        validation = Rule::new("self >= oldSelf && self <= oldSelf + 1").message("raise generation by one at a time")
    )]
    pub generation: i32,
    /// Tokens of keys of lower generations are refused at once: for a key that was stolen. Central manager and schedd are restarted, and
    /// workers with tokens of these keys are deleted; their jobs start again. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1000").message("oldestAccepted is a number from 1 to 1000"))]
    pub oldest_accepted: Option<i32>,
}

/// What a pod of HTCondor's daemons asks for.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodResources {
    /// Cores: 4, 500m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::CORES)
        .message("cpus is a number of cores such as 4 or 500m"))]
    pub cpus: Option<Quantity>,
    /// Memory: 2Gi, 500M.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("memory is a Kubernetes quantity such as 2Gi or 500M; a number alone is bytes"))]
    pub memory: Option<Quantity>,
    /// Ephemeral storage: 10Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("disk is a Kubernetes quantity such as 10Gi or 500M; a number alone is bytes"))]
    pub disk: Option<Quantity>,
}

/// The central manager.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CentralManager {
    /// What its pod asks for. Default: 100m and 256Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<PodResources>,
    /// A volume for users' priorities. Without it they begin anew with each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("the volume of the central manager cannot be changed: create a new HTCPool"))]
    pub storage: Option<Storage>,
    /// Labels that the node must have. Default: kubernetes.io/os: linux.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that its pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
}

/// A volume.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Its size: 1Gi.
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("size is a Kubernetes quantity such as 10Gi or 500M; a number alone is bytes"))]
    pub size: Quantity,
    /// Its StorageClass. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

impl Default for Storage {
    fn default() -> Self {
        Self { size: Quantity::Text("1Gi".to_owned()), storage_class_name: None }
    }
}

/// The schedd.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ScheddPod {
    /// What its pod asks for. Default: 200m and 512Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<PodResources>,
    /// The volume of the queue, which has the input and the output of all jobs, too.
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("the volume of the queue cannot be changed: create a new HTCPool"))]
    pub storage: QueueStorage,
    /// Labels that the node must have. Default: kubernetes.io/os: linux.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that its pod tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
}

/// The volume of the queue.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QueueStorage {
    /// Its size: 10Gi.
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("size is a Kubernetes quantity such as 10Gi or 500M; a number alone is bytes"))]
    pub size: Quantity,
    /// Its StorageClass. Default: that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// What becomes of the volume's claim when the HTCPool is deleted. Default: Retain.
    #[serde(default)]
    pub reclaim: Reclaim,
}

impl Default for QueueStorage {
    fn default() -> Self {
        Self { size: Quantity::Text("10Gi".to_owned()), storage_class_name: None, reclaim: Reclaim::Retain }
    }
}

/// What becomes of the claim of a pool that is deleted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Reclaim {
    /// It stays.
    #[default]
    Retain,
    /// It is deleted.
    Delete,
}

/// The workers: each is a pod, and is the container of the jobs that it runs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(
    validation = Rule::new("!has(self.replicas) || !has(self.autoscaling)")
        .message("replicas and autoscaling exclude each other: write one of them"),
    validation = Rule::new("!has(self.allowedImages) || has(self.autoscaling) || has(self.miniClusters)")
        .message("allowedImages needs autoscaling or miniClusters: workers of these images come when jobs wait for them"),
    validation = Rule::new("!has(self.allowedClaims) || has(self.autoscaling) || has(self.miniClusters)")
        .message("allowedClaims needs autoscaling or miniClusters: workers with these claims come when jobs wait for them"),
    validation = Rule::new("has(self.image) == has(oldSelf.image)")
        .message("the image of the workers cannot be changed: create a new HTCPool")
)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// The image that jobs run in; only HTCJobs with this image, and with those of allowedImages, run in the pool. It needs /bin/sh, the
    /// usual tools beside it (find, tar, base64) and an account with the number that the pods run as (65534). Default: the image with HTCondor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(
        validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/:@]*$')")
            .message("image is the name of an image such as python:3.12"),
        validation = Rule::new("self == oldSelf")
            .message("the image of the workers cannot be changed: create a new HTCPool")
    )]
    pub image: Option<String>,
    /// Further images that HTCJobs may name: each gets workers of its own while its jobs wait or run. With `*` at its end an entry stands for
    /// all images whose names begin so; `*` stands for all. autoscaling.max counts for all images together, and autoscaling.min for
    /// `image`. Without autoscaling they are for HTCJobs with spec.miniCluster only. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        inner(length(min = 1, max = 512), pattern(r"^([*]|[a-zA-Z0-9][-a-zA-Z0-9._/:@]*[*]?)$"))
    )]
    pub allowed_images: Vec<String>,
    /// PersistentVolumeClaims of this namespace that its HTCJobs may name in spec.volumes: HTCJobs with the same volumes share workers that
    /// have mounted them. With `*` at its end an entry stands for all claims whose names begin so. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 253), pattern(r"^([*]|[a-z0-9][-a-z0-9.]*[*]?)$")))]
    pub allowed_claims: Vec<String>,
    /// Number of workers, as `kubectl scale` sets it. Default: 0. When the number is lowered, workers are
    /// drained: they start no more jobs, and are deleted once their jobs have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("replicas is a number of workers from 0 to 10000"))]
    pub replicas: Option<i32>,
    /// What jobs have on one worker. Default: 1 core, 1Gi of memory and 1Gi of disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<PodResources>,
    /// Whose jobs one worker runs. Default: Namespace.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("the isolation of the workers cannot be changed: create a new HTCPool"))]
    pub isolation: Isolation,
    /// As many workers as the jobs that wait need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Lets HTCJobs have workers of their own (spec.miniCluster). Default: they may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mini_clusters: Option<MiniClusters>,
    /// Labels that the node must have. Default: kubernetes.io/os: linux.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// Labels of the pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of the pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whose jobs one worker runs that is no HTCJob's own.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The jobs of one namespace, for the life of the worker. A payload reaches no job of another namespace. The workers are divided among
    /// the namespaces whose jobs wait or run.
    #[default]
    Namespace,
    /// The jobs of all namespaces that may use the pool. A payload may take over its worker, and reach the jobs that run there afterwards.
    None,
}

/// What HTCJobs may have that have workers of their own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusters {
    /// Maximum number of workers of all these HTCJobs together. They do not count for replicas and autoscaling.
    #[x_kube(validation = Rule::new("self >= 1 && self <= 10000").message("max is a number of workers from 1 to 10000"))]
    pub max: i32,
    /// PriorityClasses that they may name. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253), pattern(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")))]
    pub priority_class_names: Vec<String>,
}

/// How the number of workers follows the jobs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(validation = Rule::new("!has(self.min) || self.min <= self.max").message("min is larger than max"))]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// Fewest workers. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("min is a number of workers from 0 to 10000"))]
    pub min: Option<i32>,
    /// Maximum number of workers. Draining workers do not count.
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("max is a number of workers from 0 to 10000"))]
    pub max: i32,
    /// Seconds without a job after which a worker is removed. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 604800")
        .message("scaleDownAfterSeconds is a number of seconds from 0 to 604800"))]
    pub scale_down_after_seconds: Option<i32>,
}

impl Workers {
    /// Whether an HTCJob may name this image (without a scheme) in addition to `image`.
    #[must_use]
    pub fn allows(&self, image: &str) -> bool {
        is_among(image, &self.allowed_images)
    }

    /// Whether an HTCJob of the pool's namespace may name this claim.
    #[must_use]
    pub fn allows_claim(&self, claim: &str) -> bool {
        is_among(claim, &self.allowed_claims)
    }
}

/// Whether a name is in the list, or begins as an entry with `*` at its end.
fn is_among(name: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == allowed,
    })
}
