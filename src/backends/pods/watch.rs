//! Watch cache of the Jobs and Pods of `HTCJob`s. Keeps only what is read. All of it may be lost with the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use htc_api::{Guarded, ObjectName, ObservedHTCJob, is_name};
use htc_machine::Uid;
use htc_machine::ids::Index;
use htc_machine::pods::{BatchJob, PodsObservation};
use htc_machine::runs::JobUid;
use htc_submit::pod_spec::PodSettings;
use htc_support::kubernetes::scoped_api;
use htc_support::kubernetes::{Wake, decoded};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod as KubernetesPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{HTCJOB, HTCJOB_UID, is_htcjob};
use crate::backends::pods::summaries as seen;
use crate::backends::pods::summaries::SeenPod;

#[cfg(test)]
mod tests;

/// Changes within this time wake an `HTCJob` once.
const TOGETHER: Duration = Duration::from_millis(200);
/// Age of a watch failure after which the cache counts as unknown.
const BLIND: Duration = Duration::from_secs(60);

/// Cache that the watches fill and reconciles read.
#[derive(Debug)]
pub struct JobCache {
    /// Settings of the site for Pods.
    pub site: PodSettings,
    state: Mutex<CacheState>,
    news: Notify,
}

#[derive(Debug, Default)]
struct CacheState {
    jobs: HashMap<ObjectName, SeenJob>,
    pods: HashMap<JobKey, HashMap<String, SeenPod>>,
    /// Pods of a list in progress.
    listed: HashMap<JobKey, HashMap<String, SeenPod>>,
    jobs_listed: HashMap<ObjectName, SeenJob>,
    jobs_health: WatchHealth,
    pods_health: WatchHealth,
    /// `HTCJob`s to wake.
    woken: HashSet<ObjectRef<ObservedHTCJob>>,
}

/// Namespace and uid of a Job. The namespace matters because users of another one may write any uid into a Pod.
type JobKey = (String, JobUid);

/// A Job, and the uid of the `HTCJob` that its owner references name as controller.
#[derive(Clone, Debug)]
struct SeenJob {
    owner: Uid,
    /// Name of the `HTCJob`, used to wake it.
    htcjob: Option<ObjectRef<ObservedHTCJob>>,
    /// `metadata.resourceVersion`, which the API server increments.
    version: u64,
    /// `metadata.generation`: increases with each change of the spec.
    generation: Option<i64>,
    /// `status.ready`
    ready: Option<i32>,
    job: BatchJob,
}

/// Health of one watch.
#[derive(Debug, Default)]
struct WatchHealth {
    listed: bool,
    failing: Option<(Instant, String)>,
}

impl WatchHealth {
    /// Handles an event of the watch. The start of a list proves nothing: a list that fails repeatedly starts each
    /// time.
    fn heard<K>(&mut self, event: &watcher::Event<K>) {
        if !matches!(event, watcher::Event::Init) {
            self.failing = None;
        }
    }

    /// Records that the watch broke. Returns whether it was healthy before.
    fn broke(&mut self, why: String) -> bool {
        let news = self.failing.is_none();
        self.failing.get_or_insert_with(|| (Instant::now(), why));
        news
    }

    fn trouble(&self, what: &str) -> Option<String> {
        match &self.failing {
            Some((since, why)) if !self.listed || since.elapsed() >= BLIND => Some(format!(
                "the operator cannot watch {what}: {why}; ask its administrator (deploy/components/kubernetes-backend has the rights that it needs)"
            )),
            Some(_) | None if self.listed => None,
            // The first list is in progress, which is no failure: the message is empty.
            Some(_) | None => Some(String::new()),
        }
    }
}

impl JobCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(site: PodSettings) -> Self {
        Self { site, state: Mutex::default(), news: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock()
    }

    /// Returns why Jobs and Pods are unknown; the message is empty during the first list.
    #[must_use]
    pub fn watch_failure(&self) -> Option<String> {
        if !self.site.enabled {
            return Some(DISABLED.to_owned());
        }
        let state = self.state();
        state.jobs_health.trouble("Jobs").or_else(|| state.pods_health.trouble("Pods"))
    }

    /// Returns the Job of this name, with completion indexes, if the cache has it and this `HTCJob` controls it.
    #[must_use]
    pub fn job(&self, name: &ObjectName, uid: &Uid) -> Option<BatchJob> {
        self.state().jobs.get(name).filter(|seen| seen.owner == *uid).map(|seen| seen.job.clone())
    }

    /// Returns the newest Pod of each index of this Job. `indexes`: the indexes of the `HTCJob`, in the order of the
    /// completion indexes.
    #[must_use]
    pub fn pods(&self, namespace: &str, job: &JobUid, indexes: &[Index]) -> PodsObservation {
        let state = self.state();
        if state.pods_health.trouble("Pods").is_some() {
            return PodsObservation::Unknown;
        }
        let mut newest: BTreeMap<u32, &SeenPod> = BTreeMap::new();
        let of_job = (namespace.to_owned(), job.clone());
        for pod in state.pods.get(&of_job).into_iter().flat_map(HashMap::values) {
            let known = newest.entry(pod.completion).or_insert(pod);
            if pod.order > known.order {
                *known = pod;
            }
        }
        let of = |(completion, seen): (u32, &SeenPod)| Some((*indexes.get(completion as usize)?, seen.pod.clone()));
        PodsObservation::Known(newest.into_iter().filter_map(of).collect())
    }

    /// Stores a Job from an answer of the API server, which arrives before the watch shows it.
    pub fn store_answer(&self, job: &Job) {
        if let Some((name, seen)) = seen_job(job) {
            self.state().see(name, seen);
        }
    }

    /// Removes an outdated Job, so that it is queried the next time.
    pub fn forget_job(&self, name: &ObjectName) {
        self.state().jobs.remove(name);
    }

    /// Runs the watches until dropped, and wakes `HTCJob`s whose Jobs or Pods change.
    pub async fn run(&self, client: &Client, namespace: Option<&str>, wake: Wake) {
        if !self.site.enabled {
            return std::future::pending().await;
        }
        let jobs = self.watch::<Job>(client, namespace, Self::job_event, CacheState::unreadable_job, |state| {
            &mut state.jobs_health
        });
        let pods =
            self.watch::<KubernetesPod>(client, namespace, Self::pod_event, CacheState::unreadable_pod, |state| {
                &mut state.pods_health
            });
        tokio::join!(jobs, pods, self.wake_changed(wake));
    }

    async fn watch<K>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        seen: fn(&Self, watcher::Event<K>),
        unreadable: fn(&mut CacheState, ObjectMeta),
        health: fn(&mut CacheState) -> &mut WatchHealth,
    ) where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
    {
        let ours = watcher::Config::default().labels(HTCJOB_UID);
        let mut events = pin!(watcher(scoped_api::<Guarded<K>>(client, namespace), ours).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    let listed = matches!(event, watcher::Event::InitDone);
                    health(&mut self.state()).heard(&event);
                    self.apply_event(event, seen, unreadable);
                    let mut state = self.state();
                    let health = health(&mut state);
                    if listed && !std::mem::replace(&mut health.listed, true) {
                        state.wake_all();
                        drop(state);
                        self.news.notify_one();
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let mut state = self.state();
                    if health(&mut state).broke(error.to_string()) {
                        tracing::warn!(%error, kind = %K::kind(&()), "watch failed, restarting");
                    }
                    state.wake_all();
                    drop(state);
                    self.news.notify_one();
                }
            }
        }
    }

    fn apply_event<K>(
        &self,
        event: watcher::Event<Guarded<K>>,
        seen: fn(&Self, watcher::Event<K>),
        unreadable: fn(&mut CacheState, ObjectMeta),
    ) {
        match event {
            // It cannot be decoded and may have changed. Its entry is dropped; a reconcile that needs it queries it.
            watcher::Event::Apply(Guarded(Err(invalid))) | watcher::Event::Delete(Guarded(Err(invalid))) => {
                unreadable(&mut self.state(), invalid.metadata);
                self.news.notify_one();
            }
            event => {
                if let Some(event) = decoded(event) {
                    seen(self, event);
                }
            }
        }
    }

    fn job_event(&self, event: watcher::Event<Job>) {
        let mut state = self.state();
        match event {
            watcher::Event::Init => state.jobs_listed.clear(),
            watcher::Event::InitApply(job) => {
                if let Some((name, seen)) = seen_job(&job) {
                    state.woken.extend(seen.htcjob.clone());
                    state.jobs_listed.insert(name, seen);
                }
            }
            watcher::Event::InitDone => {
                let mut listed = std::mem::take(&mut state.jobs_listed);
                for (name, seen) in &mut listed {
                    if let Some(known) = state.jobs.get(name) {
                        seen.follows(known);
                    }
                }
                let before = std::mem::replace(&mut state.jobs, listed);
                let gone = before.into_iter().filter(|(name, _)| !state.jobs.contains_key(name));
                let gone: Vec<ObjectRef<ObservedHTCJob>> = gone.filter_map(|(_, seen)| seen.htcjob).collect();
                state.woken.extend(gone);
            }
            watcher::Event::Apply(job) => match seen_job(&job) {
                Some((name, seen)) => {
                    state.woken.extend(seen.htcjob.clone());
                    state.see(name, seen);
                }
                // Its owner, the HTCJob, was removed by hand.
                None => state.unreadable_job(job.metadata),
            },
            watcher::Event::Delete(job) => {
                if let Some((name, gone)) = seen_job(&job) {
                    state.woken.extend(gone.htcjob);
                    if state.jobs.get(&name).is_some_and(|seen| seen.job.uid == gone.job.uid) {
                        state.jobs.remove(&name);
                    }
                }
            }
        }
        drop(state);
        self.news.notify_one();
    }

    fn pod_event(&self, event: watcher::Event<KubernetesPod>) {
        let mut state = self.state();
        match event {
            watcher::Event::Init => state.listed.clear(),
            watcher::Event::InitApply(pod) => {
                if let Some((of, uid, seen)) = seen_pod(&pod) {
                    state.woken.extend(htcjob(&pod));
                    state.listed.entry(of).or_default().insert(uid, seen);
                }
            }
            watcher::Event::InitDone => {
                state.pods = std::mem::take(&mut state.listed);
                state.wake_all();
            }
            watcher::Event::Apply(pod) => match seen_pod(&pod) {
                Some((of, uid, seen)) => {
                    state.woken.extend(htcjob(&pod));
                    state.pods.entry(of).or_default().insert(uid, seen);
                }
                // The Job controller has released the Pod.
                None => state.unreadable_pod(pod.metadata),
            },
            watcher::Event::Delete(pod) => {
                if let Some((of, uid, _)) = seen_pod(&pod) {
                    state.woken.extend(htcjob(&pod));
                    let left = state.pods.get_mut(&of).map(|pods| {
                        pods.remove(&uid);
                        pods.len()
                    });
                    if left == Some(0) {
                        state.pods.remove(&of);
                    }
                }
            }
        }
        drop(state);
        self.news.notify_one();
    }

    /// Wakes the `HTCJob`s after a short delay, so that changes at the same time cause one reconcile.
    async fn wake_changed(&self, wake: Wake) {
        loop {
            self.news.notified().await;
            tokio::time::sleep(TOGETHER).await;
            let woken = std::mem::take(&mut self.state().woken);
            for object in woken {
                let _ = wake.send(object).await;
            }
        }
    }
}

/// Message for users if the backend is disabled.
pub(crate) const DISABLED: &str = "this operator does not run jobs as Pods: ask its administrator to switch that on (--kubernetes-backend, deploy/components/kubernetes-backend), or leave spec.backend out";

impl SeenJob {
    /// Merges the Job that was known before, and keeps the later one. Comparing the two shows whether the Job
    /// controller has written a status since the last change of the spec.
    fn follows(&mut self, known: &Self) {
        if known.job.uid != self.job.uid {
            return;
        }
        if known.is_newer_than(self) {
            *self = known.clone();
            return;
        }
        let status = |seen: &Self| (seen.ready, BatchJob { deleting: false, settled: false, ..seen.job.clone() });
        self.job.settled = known.generation == self.generation && (known.job.settled || status(known) != status(self));
    }

    /// Whether it is a later state of the same Job.
    fn is_newer_than(&self, other: &Self) -> bool {
        self.job.uid == other.job.uid && self.version > other.version
    }
}

impl CacheState {
    /// Stores a Job. The answer to a change may arrive before the watch shows an earlier state.
    fn see(&mut self, name: ObjectName, mut seen: SeenJob) {
        if let Some(known) = self.jobs.get(&name) {
            seen.follows(known);
        }
        self.jobs.insert(name, seen);
    }

    /// Removes a Job that cannot be decoded or has lost its owner, and wakes its HTCJob.
    fn unreadable_job(&mut self, metadata: ObjectMeta) {
        let (Some(namespace), Some(name)) = (metadata.namespace, metadata.name) else { return };
        let gone = self.jobs.remove(&ObjectName { namespace, name });
        self.woken.extend(gone.and_then(|gone| gone.htcjob));
    }

    /// Removes a Pod that cannot be decoded or has lost its owner, and wakes its HTCJob.
    fn unreadable_pod(&mut self, metadata: ObjectMeta) {
        let (Some(namespace), Some(uid)) = (&metadata.namespace, &metadata.uid) else { return };
        for (_, pods) in self.pods.iter_mut().filter(|((its, _), _)| its == namespace) {
            pods.remove(uid);
        }
        self.pods.retain(|_, pods| !pods.is_empty());
        self.woken.extend(htcjob(&KubernetesPod { metadata, ..KubernetesPod::default() }));
    }

    fn wake_all(&mut self) {
        let CacheState { jobs, woken, .. } = self;
        woken.extend(jobs.values().filter_map(|seen| seen.htcjob.clone()));
    }
}

/// Returns the `HTCJob` that the annotation names. It is only a hint: anybody who creates the object may write any name
/// there.
fn htcjob(object: &impl kube::ResourceExt) -> Option<ObjectRef<ObservedHTCJob>> {
    let name = object.annotations().get(HTCJOB).filter(|name| is_name(name))?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

/// Returns a Job with its name, if an `HTCJob` controls it.
fn seen_job(job: &Job) -> Option<(ObjectName, SeenJob)> {
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true) && is_htcjob(owner))?;
    let name = ObjectName { namespace: job.namespace()?, name: job.name_any() };
    let version = job.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default();
    let ready = job.status.as_ref().and_then(|status| status.ready);
    let (owner, generation) = (Uid::from(owner.uid.as_str()), job.metadata.generation);
    Some((name, SeenJob { owner, htcjob: htcjob(job), version, generation, ready, job: seen::job(job)? }))
}

/// Returns a Pod with its Job and its uid.
fn seen_pod(pod: &KubernetesPod) -> Option<(JobKey, String, SeenPod)> {
    let seen = seen::pod(pod)?;
    Some(((pod.namespace()?, seen.job.clone()), pod.uid()?, seen))
}
