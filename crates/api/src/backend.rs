//! Backend that runs the jobs of an HTCJob, and the fields for Pods.

use std::collections::BTreeMap;

use kube::{KubeSchema, ResourceExt as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};

use super::{BACKEND_ANNOTATION, ObservedHTCJob};

/// What runs the jobs. Default: HTCondor.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    IntoStaticStr,
)]
pub enum Backend {
    /// An HTCondor pool.
    #[default]
    HTCondor,
    /// The cluster's own nodes: the jobs are Pods of a Job.
    Kubernetes,
}

impl Backend {
    /// Returns the backend of an object. If its spec cannot be read, the annotation written with the finalizer decides.
    #[must_use]
    pub fn of(object: &ObservedHTCJob) -> Self {
        match &object.0 {
            Ok(htcjob) => htcjob.spec.backend(),
            Err(_) => object
                .annotations()
                .get(BACKEND_ANNOTATION)
                .and_then(|backend| backend.parse().ok())
                .unwrap_or_default(),
        }
    }

    /// Returns the value of the annotation; `None` for the default backend.
    #[must_use]
    pub fn annotation(self) -> Option<String> {
        (self != Self::default()).then(|| self.to_string())
    }
}

/// What only Pods have.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// Secrets of the namespace with which the nodes pull the image, as in a Pod. spec.imagePullSecrets means the same, and HTCondor has it, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub image_pull_secrets: Vec<PullSecret>,
    /// PersistentVolumeClaims of the namespace that each Pod mounts. spec.volumes means the same, and HTCondor has it, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["mountPath".into()]))]
    pub volumes: Vec<ClaimVolume>,
    /// ServiceAccount of the namespace that the Pods run as, with its token. The site must allow it.
    /// Default: the namespace's ServiceAccount `default`, without a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the Pods tolerate, as in a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// Labels of the Pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of the Pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub pod_annotations: BTreeMap<String, String>,
}

/// A Secret to pull an image with.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PullSecret {
    /// Name of a Secret of type `kubernetes.io/dockerconfigjson` in the HTCJob's own namespace.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// A claim that each Pod mounts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimVolume {
    /// Name of a PersistentVolumeClaim in the HTCJob's own namespace.
    #[schemars(length(max = 253))]
    pub claim: String,
    /// Absolute path in the container at which it is mounted.
    #[schemars(length(max = 512))]
    pub mount_path: String,
    /// Whether the jobs can only read it. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A taint that the Pods tolerate.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint. Empty, with operator Exists: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Exists, or Equal, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub operator: Option<String>,
    /// Value of the taint, with operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// NoSchedule, PreferNoSchedule or NoExecute. Default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub effect: Option<String>,
    /// With effect NoExecute: for how long a Pod stays on a node that gets the taint. Default: without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// Returns the schema of a map from annotation names to annotation values.
pub(super) fn annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 1024 },
    })
}

/// Returns the schema of a map from label names to label values.
pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}
