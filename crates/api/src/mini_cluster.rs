//! `spec.miniCluster` of an HTCJob: workers of its own in a managed pool.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::backend::{annotations, labels};
use super::{PodResources, Toleration};

/// Workers of a managed HTCPool that run the jobs of this HTCJob only.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("!has(self.maxSize) || (has(self.size) ? self.size : 1) <= self.maxSize")
    .message("size is larger than maxSize").field_path(".size"))]
#[serde(rename_all = "camelCase")]
pub struct MiniCluster {
    /// Fewest workers, from when HTCondor has the jobs until all of them have ended. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 10000").message("size is a number of workers from 0 to 10000"))]
    pub size: Option<i32>,
    /// Maximum number of workers: there are as many as the jobs that run or wait need. Default: size, but at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 10000").message("maxSize is a number of workers from 1 to 10000"))]
    pub max_size: Option<i32>,
    /// Image that the workers are containers of. The HTCPool must allow it. Default: that of spec.script or spec.container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/:@]*$')")
        .message("image is the name of an image such as python:3.12"))]
    pub image: Option<String>,
    /// What the jobs have on one worker. Default: what they have on the workers of the HTCPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<PodResources>,
    /// Node selection and priority of the worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<WorkerTemplate>,
}

/// What a worker's pod may have of its own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTemplate {
    /// Labels that a node must have, in addition to those that the HTCPool names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate, in addition to those that the HTCPool names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of the pods. The HTCPool must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Labels of the pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of the pods. The site must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub pod_annotations: BTreeMap<String, String>,
}

/// Workers of an HTCJob's own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterStatus {
    /// Pods of workers that are there and are not being drained.
    pub workers: i32,
    /// Workers that HTCondor's collector knows.
    pub ready: i32,
    /// Workers that run jobs.
    pub busy: i32,
    /// Why there are not as many as there should be, if something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

impl MiniCluster {
    /// Returns the minimum and maximum numbers of workers.
    #[must_use]
    pub fn bounds(&self) -> (u32, u32) {
        let number = |number: i32| u32::try_from(number).unwrap_or_default();
        let size = self.size.map_or(1, number);
        (size, self.max_size.map_or(size.max(1), number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_sizes_default_from_the_given_ones() {
        let bounds = |size, max_size| MiniCluster { size, max_size, ..MiniCluster::default() }.bounds();
        assert_eq!(bounds(None, None), (1, 1));
        assert_eq!(bounds(Some(0), None), (0, 1));
        assert_eq!(bounds(Some(3), None), (3, 3));
        assert_eq!(bounds(None, Some(4)), (1, 4));
    }
}
