//! Jobs and their Pods: when they are there, and the same made by a client that does nothing else.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::task::JoinHandle;

use super::{Cluster, PARALLEL};
use crate::error::{Asking as _, Error, Result};

/// A wait that has begun.
pub(crate) struct Waiting<'a> {
    cluster: &'a Cluster,
    task: JoinHandle<Option<Instant>>,
    what: String,
    limit: Duration,
}

impl<'a> Waiting<'a> {
    pub(super) const fn new(
        cluster: &'a Cluster,
        task: JoinHandle<Option<Instant>>,
        what: String,
        limit: Duration,
    ) -> Self {
        Self { cluster, task, what, limit }
    }

    /// When it came about.
    pub(crate) fn wait(self) -> Result<Instant> {
        let Self { cluster, task, what, limit } = self;
        let at = cluster.runtime.block_on(task).asking("watch what is waited for")?;
        at.ok_or(Error::Waited { what, limit, seen: "fewer".to_owned() })
    }
}

impl Cluster {
    /// From now on waits until so many Jobs of a namespace have a Pod each, as their statuses say.
    pub(crate) fn until_jobs_have_pods(&self, namespace: &str, wanted: usize, limit: Duration) -> Waiting<'_> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let task = self.runtime.spawn(async move {
            let jobs = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
            let all = async {
                futures::pin_mut!(jobs);
                let mut with_pods = std::collections::BTreeSet::new();
                while let Some(job) = jobs.next().await {
                    let Ok(job) = job else { continue };
                    if job.status.as_ref().and_then(|status| status.active).unwrap_or_default() > 0 {
                        with_pods.insert(job.name_any());
                    }
                    if with_pods.len() == wanted {
                        return Some(Instant::now());
                    }
                }
                None
            };
            tokio::time::timeout(limit, all).await.ok().flatten()
        });
        Waiting::new(self, task, format!("{wanted} Jobs in {namespace} to have a Pod each"), limit)
    }

    /// What the operator has made for one of its HTCJobs in this namespace: to be made again by somebody else.
    pub(crate) fn mould(&self, namespace: &str) -> Result<(ConfigMap, Job)> {
        self.runtime.block_on(async {
            let jobs: Api<Job> = Api::namespaced(self.client.clone(), namespace);
            let first = ListParams::default().limit(1);
            let job = jobs.list(&first).await.asking("list Jobs")?.items.pop();
            let none = || Error::Unexpected(format!("there is no Job in the namespace {namespace}"));
            let mut job = job.ok_or_else(none)?;
            let scripts: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            let mut script = scripts.get(&job.name_any()).await.asking("get the ConfigMap of a Job")?;
            job.status = None;
            if let Some(spec) = &mut job.spec {
                spec.suspend = None;
                spec.selector = None;
                // The API server's own, of the first Job.
                if let Some(labels) = spec.template.metadata.as_mut().and_then(|metadata| metadata.labels.as_mut()) {
                    labels.retain(|label, _| !label.ends_with("controller-uid") && !label.ends_with("job-name"));
                }
            }
            for metadata in [&mut job.metadata, &mut script.metadata] {
                *metadata = ObjectMeta {
                    labels: metadata.labels.take(),
                    annotations: metadata.annotations.take(),
                    ..ObjectMeta::default()
                };
            }
            Ok((script, job))
        })
    }

    /// Creates ConfigMaps and Jobs, many at the same time; each Job after its ConfigMap.
    pub(crate) fn create_jobs(&self, namespace: &str, count: u32, script: &ConfigMap, job: &Job) -> Result<()> {
        let scripts: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PostParams::default();
        let created = futures::stream::iter(0..count).map(|number| {
            let (scripts, jobs, parameters) = (&scripts, &jobs, &parameters);
            let name = Some(format!("bare{number}"));
            let (mut script, mut job) = (script.clone(), job.clone());
            script.metadata.name.clone_from(&name);
            job.metadata.name.clone_from(&name);
            let volumes = job.spec.iter_mut().filter_map(|spec| spec.template.spec.as_mut());
            for volume in volumes.flat_map(|spec| spec.volumes.iter_mut().flatten()) {
                if let Some(source) = &mut volume.config_map {
                    source.name = name.clone().unwrap_or_default();
                }
            }
            async move {
                scripts.create(parameters, &script).await?;
                jobs.create(parameters, &job).await.map(drop)
            }
        });
        let created = self.runtime.block_on(created.buffer_unordered(PARALLEL).try_collect::<Vec<()>>());
        created.map(drop).asking("create Jobs")
    }

    /// Asks for all Jobs of a namespace to be deleted, and their Pods with them.
    pub(crate) fn delete_jobs(&self, namespace: &str) -> Result<()> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let (with_pods, all) = (DeleteParams::background(), ListParams::default());
        self.runtime.block_on(jobs.delete_collection(&with_pods, &all)).map(drop).asking("delete Jobs")
    }
}
