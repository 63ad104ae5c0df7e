//! Jobs and Pods of `HTCJob`s, as they are watched. Of each only what is read is kept, and it is all lost with the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod as KubernetesPod;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::Notify;

use super::seen::{self, SeenPod};
use super::{HTCJOB, HTCJOB_UID, Site};
use crate::api::{ObjectName, Observed, Wake};
use crate::kubernetes::watched;
use crate::machine::Uid;
use crate::machine::ids::Index;
use crate::machine::pods::{BatchJob, JobUid, PodsSeen};

#[cfg(test)]
mod tests;

/// Changes within this time wake an `HTCJob` once.
const TOGETHER: Duration = Duration::from_millis(200);
/// A watch that is broken for so long shows nothing any more.
const BLIND: Duration = Duration::from_secs(60);

/// What is seen, by those who ask and those who watch.
#[derive(Debug)]
pub struct Watched {
    /// What the site says about Pods.
    pub site: Site,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<ObjectName, SeenJob>,
    pods: HashMap<PodsOf, HashMap<String, SeenPod>>,
    /// Of those that are being listed.
    listed: HashMap<PodsOf, HashMap<String, SeenPod>>,
    jobs_listed: HashMap<ObjectName, SeenJob>,
    jobs_health: Health,
    pods_health: Health,
    /// `HTCJob`s that are to be woken.
    woken: HashSet<ObjectRef<Observed>>,
    /// All of which something was seen, for when a watch breaks.
    owners: HashMap<OwnerOf, ObjectRef<Observed>>,
}

/// Namespace, and Job there: somebody elsewhere may write any uid into a Pod.
type PodsOf = (String, JobUid);
/// Namespace, and `HTCJob` there.
type OwnerOf = (String, Uid);

/// A Job, and the uid of the `HTCJob` that it says controls it.
#[derive(Clone, Debug)]
struct SeenJob {
    owner: Uid,
    /// `metadata.resourceVersion`, which the API server counts up.
    version: u64,
    job: BatchJob,
}

/// How a watch is doing.
#[derive(Debug, Default)]
struct Health {
    listed: bool,
    failing: Option<(Instant, String)>,
}

impl Health {
    /// The watch has told something. That a list is begun says nothing yet: so does one that fails again and again.
    fn heard<K>(&mut self, event: &watcher::Event<K>) {
        if !matches!(event, watcher::Event::Init) {
            self.failing = None;
        }
    }

    /// The watch broke; whether it had not been broken before.
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
            // Nobody has to be told of that.
            Some(_) | None => Some(String::new()),
        }
    }
}

impl Watched {
    /// Nothing is seen yet.
    #[must_use]
    pub fn new(site: Site) -> Self {
        Self { site, state: Mutex::default(), news: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be said of Jobs and Pods; empty while they are listed for the first time.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        if !self.site.enabled {
            return Some(DISABLED.to_owned());
        }
        let state = self.state();
        state.jobs_health.trouble("Jobs").or_else(|| state.pods_health.trouble("Pods"))
    }

    /// The Job of this name, by its completion indexes, if one is seen that this `HTCJob` controls.
    #[must_use]
    pub fn job(&self, name: &ObjectName, uid: &Uid) -> Option<BatchJob> {
        self.state().jobs.get(name).filter(|seen| seen.owner == *uid).map(|seen| seen.job.clone())
    }

    /// The newest Pod of each index of this Job; `indexes`: those of the `HTCJob`, in the order of the completion indexes.
    #[must_use]
    pub fn pods(&self, namespace: &str, job: &JobUid, indexes: &[Index]) -> PodsSeen {
        let state = self.state();
        if state.pods_health.trouble("Pods").is_some() {
            return PodsSeen::Unknown;
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
        PodsSeen::Known(newest.into_iter().filter_map(of).collect())
    }

    /// The API server has answered with this Job, sooner than the watch.
    pub fn saw(&self, job: &Job) {
        if let Some((name, seen)) = seen_job(job) {
            self.state().see(name, seen);
        }
    }

    /// What is seen of it is no longer so: it is asked for the next time.
    pub fn doubt(&self, name: &ObjectName) {
        self.state().jobs.remove(name);
    }

    /// Watches until it is dropped; `HTCJob`s are woken when something of theirs changes.
    pub async fn run(&self, client: &Client, namespace: Option<&str>, wake: Wake) {
        if !self.site.enabled {
            return std::future::pending().await;
        }
        let jobs = self.watch::<Job>(client, namespace, Self::job_event, |state| &mut state.jobs_health);
        let pods = self.watch::<KubernetesPod>(client, namespace, Self::pod_event, |state| &mut state.pods_health);
        tokio::join!(jobs, pods, self.tell(wake));
    }

    async fn watch<K>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        seen: fn(&Self, watcher::Event<K>),
        health: fn(&mut State) -> &mut Health,
    ) where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
    {
        let ours = watcher::Config::default().labels(HTCJOB_UID);
        let mut events = pin!(watcher(watched::<K>(client, namespace), ours).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    let listed = matches!(event, watcher::Event::InitDone);
                    health(&mut self.state()).heard(&event);
                    seen(self, event);
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
                        tracing::warn!(%error, kind = %K::kind(&()), "a watch of the second backend broke; it is begun again");
                    }
                    state.wake_all();
                    drop(state);
                    self.news.notify_one();
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
                    state.wake(&job, &seen.owner);
                    state.jobs_listed.insert(name, seen);
                }
            }
            watcher::Event::InitDone => {
                let mut listed = std::mem::take(&mut state.jobs_listed);
                for (name, seen) in &mut listed {
                    if let Some(newer) = state.jobs.get(name).filter(|known| known.is_newer_than(seen)) {
                        *seen = newer.clone();
                    }
                }
                let gone = state.jobs.iter().filter(|(name, _)| !listed.contains_key(*name));
                let gone: Vec<OwnerOf> =
                    gone.map(|(name, seen)| (name.namespace.clone(), seen.owner.clone())).collect();
                state.jobs = listed;
                for owner in &gone {
                    state.wake_known(owner);
                }
            }
            watcher::Event::Apply(job) => match seen_job(&job) {
                Some((name, seen)) => {
                    state.wake(&job, &seen.owner);
                    state.see(name, seen);
                }
                // Somebody has taken it away from its HTCJob.
                None => state.forget_job(&job),
            },
            watcher::Event::Delete(job) => {
                if let Some((name, gone)) = seen_job(&job) {
                    state.wake(&job, &gone.owner);
                    if state.jobs.get(&name).is_some_and(|seen| seen.job.uid == gone.job.uid) {
                        state.jobs.remove(&name);
                    }
                    state.owners.remove(&(name.namespace, gone.owner));
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
                if let Some((owner, of, uid, seen)) = seen_pod(&pod) {
                    state.wake(&pod, &owner);
                    state.listed.entry(of).or_default().insert(uid, seen);
                }
            }
            watcher::Event::InitDone => {
                state.pods = std::mem::take(&mut state.listed);
                state.wake_all();
            }
            watcher::Event::Apply(pod) => match seen_pod(&pod) {
                Some((owner, of, uid, seen)) => {
                    state.wake(&pod, &owner);
                    state.pods.entry(of).or_default().insert(uid, seen);
                }
                // The Job controller has let it go.
                None => state.forget_pod(&pod),
            },
            watcher::Event::Delete(pod) => {
                if let Some((owner, of, uid, _)) = seen_pod(&pod) {
                    state.wake(&pod, &owner);
                    let left = state.pods.get_mut(&of).map(|pods| {
                        pods.remove(&uid);
                        pods.len()
                    });
                    if left == Some(0) {
                        state.pods.remove(&of);
                        let its = |(name, seen): (&ObjectName, &SeenJob)| name.namespace == of.0 && seen.owner == owner;
                        if !state.jobs.iter().any(its) {
                            state.owners.remove(&(of.0, owner));
                        }
                    }
                }
            }
        }
        drop(state);
        self.news.notify_one();
    }

    /// Wakes what is to be woken, a moment later: what changes together is looked at once.
    async fn tell(&self, wake: Wake) {
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

/// What to do about a backend that is switched off.
pub(crate) const DISABLED: &str = "this operator does not run jobs as Pods: ask its administrator to switch that on (--kubernetes-backend, deploy/components/kubernetes-backend), or leave spec.backend out";

impl SeenJob {
    /// The same Job, as it was later.
    fn is_newer_than(&self, other: &Self) -> bool {
        self.job.uid == other.job.uid && self.version > other.version
    }
}

impl State {
    /// What the API server answers to a change may come before what the watch says of the time before it.
    fn see(&mut self, name: ObjectName, seen: SeenJob) {
        if self.jobs.get(&name).is_none_or(|known| !known.is_newer_than(&seen)) {
            self.jobs.insert(name, seen);
        }
    }

    /// The `HTCJob` that this is of.
    fn wake(&mut self, object: &impl kube::ResourceExt, owner: &Uid) {
        let Some(name) = object.annotations().get(HTCJOB) else { return };
        let namespace = object.namespace().unwrap_or_default();
        let reference = ObjectRef::new(name).within(&namespace);
        self.owners.insert((namespace, owner.clone()), reference.clone());
        self.woken.insert(reference);
    }

    fn forget_job(&mut self, job: &Job) {
        let name = ObjectName { namespace: job.namespace().unwrap_or_default(), name: job.name_any() };
        if let Some(seen) = self.jobs.remove(&name) {
            self.wake_known(&(name.namespace, seen.owner));
        }
    }

    fn forget_pod(&mut self, pod: &KubernetesPod) {
        let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) else { return };
        for (_, pods) in self.pods.iter_mut().filter(|((its, _), _)| *its == namespace) {
            pods.remove(&uid);
        }
        self.pods.retain(|_, pods| !pods.is_empty());
        if let Some(owner) = pod.labels().get(HTCJOB_UID) {
            self.wake(pod, &Uid::from(owner.as_str()));
        }
    }

    fn wake_known(&mut self, owner: &OwnerOf) {
        if let Some(reference) = self.owners.remove(owner) {
            self.woken.insert(reference);
        }
    }

    fn wake_all(&mut self) {
        self.woken.extend(self.owners.values().cloned());
    }
}

/// A Job by its name, if an `HTCJob` controls it.
fn seen_job(job: &Job) -> Option<(ObjectName, SeenJob)> {
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true) && owner.kind == "HTCJob")?;
    let name = ObjectName { namespace: job.namespace()?, name: job.name_any() };
    let version = job.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default();
    Some((name, SeenJob { owner: Uid::from(owner.uid.as_str()), version, job: seen::job(job)? }))
}

/// A Pod of a Job: uid of the `HTCJob` by its label, its Job, and its own uid.
fn seen_pod(pod: &KubernetesPod) -> Option<(Uid, PodsOf, String, SeenPod)> {
    let owner = Uid::from(pod.labels().get(HTCJOB_UID)?.as_str());
    let seen = seen::pod(pod)?;
    Some((owner, (pod.namespace()?, seen.job.clone()), pod.uid()?, seen))
}
