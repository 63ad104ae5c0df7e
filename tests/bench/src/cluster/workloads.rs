//! Workloads of Kueue: when they are admitted, and the same made by a client that does nothing else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use super::jobs::Waiting;
use super::{Cluster, PARALLEL};
use crate::error::{Asking as _, Result};

impl Cluster {
    fn workloads(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload");
        Api::namespaced_with(self.client.clone(), namespace, &ApiResource::from_gvk(&kind))
    }

    /// From now on waits until so many Workloads of a namespace are admitted.
    pub(crate) fn until_admitted(&self, namespace: &str, wanted: usize, limit: Duration) -> Waiting<'_> {
        let api = self.workloads(namespace);
        let task = self.runtime.spawn(async move {
            let workloads = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
            let all = async {
                futures::pin_mut!(workloads);
                let mut admitted = BTreeSet::new();
                while let Some(workload) = workloads.next().await {
                    let Ok(workload) = workload else { continue };
                    let conditions = workload.data["status"]["conditions"].as_array();
                    let is = |told: &serde_json::Value| told["type"] == "Admitted" && told["status"] == "True";
                    if conditions.is_some_and(|conditions| conditions.iter().any(is)) {
                        admitted.insert(workload.name_any());
                    }
                    if admitted.len() == wanted {
                        return Some(Instant::now());
                    }
                }
                None
            };
            tokio::time::timeout(limit, all).await.ok().flatten()
        });
        Waiting::new(self, task, format!("{wanted} Workloads in {namespace} to be admitted"), limit)
    }

    /// Creates Workloads of one job each, many at the same time.
    pub(crate) fn create_workloads(&self, namespace: &str, queue: &str, count: u32) -> Result<()> {
        let (api, parameters) = (self.workloads(namespace), PostParams::default());
        let requests = json!({ "requests": { "htc.cern.ch/jobs": "1" } });
        let container = json!({ "name": "jobs", "image": "none", "resources": requests });
        let pod = json!({ "spec": { "restartPolicy": "Never", "containers": [container] } });
        let created = futures::stream::iter(0..count).map(|number| {
            let workload = serde_json::from_value::<DynamicObject>(json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": { "name": format!("bare{number}") },
                "spec": { "queueName": queue, "podSets": [{ "name": "jobs", "count": 1, "template": pod }] },
            }));
            let (api, parameters) = (&api, &parameters);
            async move {
                let workload = workload.asking("make a Workload")?;
                api.create(parameters, &workload).await.map(drop).asking("create a Workload")
            }
        });
        self.runtime.block_on(created.buffer_unordered(PARALLEL).try_collect::<Vec<()>>()).map(drop)
    }
}
