//! Jobs and Pods of `HTCJob`s, as they are watched. Of each only what is read is kept, and it is all lost with the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod as KubernetesPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::Notify;

use super::seen::{self, SeenPod};
use super::{HTCJOB, HTCJOB_UID, Site, is_htcjob};
use crate::api::{Guarded, ObjectName, Observed, Wake, decoded, is_name};
use crate::kubernetes::watched;
use crate::machine::Uid;
use crate::machine::ids::Index;
use crate::machine::pods::{BatchJob, PodsSeen};
use crate::machine::runs::JobUid;

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
}

/// Namespace, and Job there: somebody elsewhere may write any uid into a Pod.
type PodsOf = (String, JobUid);

/// A Job, and the uid of the `HTCJob` that it says controls it.
#[derive(Clone, Debug)]
struct SeenJob {
    owner: Uid,
    /// The same by its name, for when it is to be woken.
    htcjob: Option<ObjectRef<Observed>>,
    /// `metadata.resourceVersion`, which the API server counts up.
    version: u64,
    /// `metadata.generation`: it grows with each change of the spec.
    generation: Option<i64>,
    /// `status.ready`
    ready: Option<i32>,
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
        let jobs = self
            .watch::<Job>(client, namespace, Self::job_event, State::unreadable_job, |state| &mut state.jobs_health);
        let pods = self.watch::<KubernetesPod>(client, namespace, Self::pod_event, State::unreadable_pod, |state| {
            &mut state.pods_health
        });
        tokio::join!(jobs, pods, self.tell(wake));
    }

    async fn watch<K>(
        &self,
        client: &Client,
        namespace: Option<&str>,
        seen: fn(&Self, watcher::Event<K>),
        unreadable: fn(&mut State, ObjectMeta),
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
        let mut events = pin!(watcher(watched::<Guarded<K>>(client, namespace), ours).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    let listed = matches!(event, watcher::Event::InitDone);
                    health(&mut self.state()).heard(&event);
                    self.hear(event, seen, unreadable);
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

    fn hear<K>(
        &self,
        event: watcher::Event<Guarded<K>>,
        seen: fn(&Self, watcher::Event<K>),
        unreadable: fn(&mut State, ObjectMeta),
    ) {
        match event {
            // It is not what it was: whoever it matters to asks for it.
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
                let gone: Vec<ObjectRef<Observed>> = gone.filter_map(|(_, seen)| seen.htcjob).collect();
                state.woken.extend(gone);
            }
            watcher::Event::Apply(job) => match seen_job(&job) {
                Some((name, seen)) => {
                    state.woken.extend(seen.htcjob.clone());
                    state.see(name, seen);
                }
                // Somebody has taken it away from its HTCJob.
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
                // The Job controller has let it go.
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
    /// Takes in what was known of it: it is as it was later, and by two that follow each other it is seen whether the Job controller has
    /// written a status since the spec was changed.
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

    /// The same Job, as it was later.
    fn is_newer_than(&self, other: &Self) -> bool {
        self.job.uid == other.job.uid && self.version > other.version
    }
}

impl State {
    /// What the API server answers to a change may come before what the watch says of the time before it.
    fn see(&mut self, name: ObjectName, mut seen: SeenJob) {
        if let Some(known) = self.jobs.get(&name) {
            seen.follows(known);
        }
        self.jobs.insert(name, seen);
    }

    /// It cannot be read, or is nobody's any more.
    fn unreadable_job(&mut self, metadata: ObjectMeta) {
        let (Some(namespace), Some(name)) = (metadata.namespace, metadata.name) else { return };
        let gone = self.jobs.remove(&ObjectName { namespace, name });
        self.woken.extend(gone.and_then(|gone| gone.htcjob));
    }

    /// The same of a Pod.
    fn unreadable_pod(&mut self, metadata: ObjectMeta) {
        let (Some(namespace), Some(uid)) = (&metadata.namespace, &metadata.uid) else { return };
        for (_, pods) in self.pods.iter_mut().filter(|((its, _), _)| its == namespace) {
            pods.remove(uid);
        }
        self.pods.retain(|_, pods| !pods.is_empty());
        self.woken.extend(htcjob(&KubernetesPod { metadata, ..KubernetesPod::default() }));
    }

    fn wake_all(&mut self) {
        let State { jobs, woken, .. } = self;
        woken.extend(jobs.values().filter_map(|seen| seen.htcjob.clone()));
    }
}

/// The `HTCJob` that this is of, by its annotation: whoever made the object may have written anything there.
fn htcjob(object: &impl kube::ResourceExt) -> Option<ObjectRef<Observed>> {
    let name = object.annotations().get(HTCJOB).filter(|name| is_name(name))?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

/// A Job by its name, if an `HTCJob` controls it.
fn seen_job(job: &Job) -> Option<(ObjectName, SeenJob)> {
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true) && is_htcjob(owner))?;
    let name = ObjectName { namespace: job.namespace()?, name: job.name_any() };
    let version = job.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default();
    let ready = job.status.as_ref().and_then(|status| status.ready);
    let (owner, generation) = (Uid::from(owner.uid.as_str()), job.metadata.generation);
    Some((name, SeenJob { owner, htcjob: htcjob(job), version, generation, ready, job: seen::job(job)? }))
}

/// A Pod of a Job: its Job, and its own uid.
fn seen_pod(pod: &KubernetesPod) -> Option<(PodsOf, String, SeenPod)> {
    let seen = seen::pod(pod)?;
    Some(((pod.namespace()?, seen.job.clone()), pod.uid()?, seen))
}
