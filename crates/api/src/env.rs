//! Sources of variables.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where the value of a variable comes from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].exists_one(given, given)")
        .message("valueFrom has one source: write one of secretKeyRef, configMapKeyRef and fieldRef")
)]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// Key of a Secret in the same namespace. It needs the label `htc.cern.ch/use: files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// Key of a ConfigMap in the same namespace. It needs the label `htc.cern.ch/use: files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    /// Field of the HTCJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldRef>,
}

/// Key of a Secret or a ConfigMap.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRef {
    /// Name of the object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("name is the name of an object in the HTCJob's own namespace: lower-case letters, digits, - and ."))]
    pub name: String,
    /// Key in its data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')")
        .message("key is a key of the object: letters, digits, -, _ and ."))]
    pub key: String,
}

/// Field of the HTCJob.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FieldRef {
    /// `metadata.name`, `metadata.namespace`, `metadata.uid`, `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
    #[schemars(length(max = 400))]
    #[x_kube(validation = Rule::new(r"self.matches('^metadata[.](name|namespace|uid|(labels|annotations)\\[\'[-._/a-zA-Z0-9]+\'\\])$')")
        .message("fieldPath is metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'] or metadata.annotations['KEY']"))]
    pub field_path: String,
}
