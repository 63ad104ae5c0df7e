//! The API server: objects made and deleted, the watch, and the requests that it counts.

mod bare;
mod jobs;
mod pages;
mod workloads;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

pub(crate) use pages::{Changes, Pages};

use crate::error::{Asking as _, Result};
use crate::watch::Seen;

/// Objects that are created at the same time.
const PARALLEL: usize = 16;

/// One client, for all that a measurement asks of the API server, and one watch.
pub(crate) struct Cluster {
    runtime: Runtime,
    client: Client,
    resource: ApiResource,
    pub(crate) seen: Seen,
}

/// Requests that the API server has answered, by resource and verb.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(BTreeMap<(String, String), u64>);

impl Cluster {
    pub(crate) fn new(kubeconfig: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.asking("start the Kubernetes client")?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).asking("read the kubeconfig")?;
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            Client::try_from(config.asking("read the kubeconfig")?).asking("make a Kubernetes client")
        })?;
        let kind = GroupVersionKind::gvk("htc.cern.ch", "v1alpha1", "HTCJob");
        let resource = ApiResource::from_gvk_with_plural(&kind, "htcjobs");
        let seen = Seen::default();
        runtime.spawn(seen.clone().follow(Api::all_with(client.clone(), &resource)));
        Ok(Self { runtime, client, resource, seen })
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resource)
    }

    /// Creates HTCJobs, many at the same time.
    pub(crate) fn create(&self, namespace: &str, jobs: impl IntoIterator<Item = Value>) -> Result<()> {
        let api = self.api(namespace);
        let objects: std::result::Result<Vec<DynamicObject>, _> =
            jobs.into_iter().map(serde_json::from_value).collect();
        let objects = objects.asking("make HTCJobs")?;
        let parameters = PostParams::default();
        let created = futures::stream::iter(objects).map(|object| {
            let (api, parameters) = (&api, &parameters);
            async move { api.create(parameters, &object).await.map(drop) }
        });
        self.runtime
            .block_on(created.buffer_unordered(PARALLEL).try_collect::<Vec<()>>())
            .map(drop)
            .asking("create HTCJobs")
    }

    /// Deletes all HTCJobs of a namespace, many at the same time: the API server itself deletes a collection one by one.
    pub(crate) fn delete_all(&self, namespace: &str) -> Result<()> {
        let api = self.api(namespace);
        let parameters = DeleteParams::default();
        let deleted = futures::stream::iter(self.seen.all(namespace).into_keys()).map(|name| {
            let (api, parameters) = (&api, &parameters);
            async move { api.delete(&name, parameters).await.map(drop) }
        });
        self.runtime
            .block_on(deleted.buffer_unordered(PARALLEL).try_collect::<Vec<()>>())
            .map(drop)
            .asking("delete HTCJobs")
    }

    pub(crate) fn requests(&self) -> Result<Requests> {
        let request = kube::core::Request::new("/metrics").list(&ListParams::default()).asking("ask for metrics")?;
        let text = self.runtime.block_on(self.client.request_text(request)).asking("ask for metrics")?;
        Ok(Requests::parse(&text))
    }
}

impl Requests {
    fn parse(metrics: &str) -> Self {
        let mut requests = Self::default();
        let label = |line: &str, name: &str| -> Option<String> {
            let rest = line.split_once(&format!("{name}=\""))?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or_default();
            if let (Some(resource), Some(verb)) = (label(line, ",resource"), label(line, ",verb")) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
                let count = count as u64;
                *requests.0.entry((resource, verb)).or_default() += count;
            }
        }
        requests
    }

    /// What came after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let rest = self.0.iter().map(|(key, count)| (key.clone(), count - before.0.get(key).copied().unwrap_or(0)));
        Self(rest.filter(|(_, count)| *count > 0).collect())
    }

    /// Writes of HTCJobs, HTCPools and Workloads, their statuses and Events.
    pub(crate) fn writes(&self) -> u64 {
        self.0.iter().filter(|(key, _)| is_write(key)).map(|(_, count)| count).sum()
    }

    /// Requests of one kind.
    pub(crate) fn of(&self, resource: &str, verb: &str) -> u64 {
        self.0.get(&(resource.to_owned(), verb.to_owned())).copied().unwrap_or_default()
    }

    /// As in `1000 POST events, 2000 APPLY htcjobs`: those that [`Self::writes`] counts.
    pub(crate) fn words(&self) -> String {
        let writes = self.0.iter().filter(|(key, _)| is_write(key));
        let words: Vec<String> = writes.map(|((resource, verb), count)| format!("{count} {verb} {resource}")).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    }

    /// Reads of HTCJobs: lists, and watches that have ended.
    pub(crate) fn reads(&self) -> u64 {
        let reads = |(resource, verb): &(String, String)| {
            resource == "htcjobs" && ["GET", "LIST", "WATCH"].contains(&verb.as_str())
        };
        self.0.iter().filter(|(key, _)| reads(key)).map(|(_, count)| count).sum()
    }

    /// Renewals of Leases, the API server's own among them.
    pub(crate) fn renewals(&self) -> u64 {
        let renews =
            |(resource, verb): &(String, String)| resource == "leases" && ["PUT", "PATCH"].contains(&verb.as_str());
        self.0.iter().filter(|(key, _)| renews(key)).map(|(_, count)| count).sum()
    }
}

fn is_write((resource, verb): &(String, String)) -> bool {
    ["htcjobs", "htcpools", "workloads", "events"].contains(&resource.as_str())
        && !["GET", "LIST", "WATCH"].contains(&verb.as_str())
}

/// An HTCJob to be created.
pub(crate) fn htcjob(name: &str, queue: u32, source: &str) -> Value {
    json!({
        "apiVersion": "htc.cern.ch/v1alpha1",
        "kind": "HTCJob",
        "metadata": { "name": name },
        "spec": { "queue": queue, "script": { "image": "centos", "command": "bash", "source": source } },
    })
}

/// How long an answer that should come at once may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind() {
        let line = |verb: &str, resource: &str, count: u64| {
            format!(
                "apiserver_request_total{{code=\"200\",resource=\"{resource}\",scope=\"x\",verb=\"{verb}\"}} {count}\n"
            )
        };
        let before = Requests::parse(&line("APPLY", "htcjobs", 3));
        let text = line("APPLY", "htcjobs", 5) + &line("LIST", "htcjobs", 1) + &line("PUT", "leases", 4);
        let between = Requests::parse(&text).since(&before);
        assert_eq!((between.writes(), between.reads(), between.renewals()), (2, 1, 4));
    }
}
