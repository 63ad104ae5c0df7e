//! Sees to one managed pool: to its objects, and to its workers for as long as it is at work.

mod discard;
mod due;
mod pace;
mod rotation;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use super::apply::{Applied, Applier};
use super::config::POD_UID;
use super::demand::{image, may_ask, shared, waits};
use super::error::ApplyError;
use super::groups::{Group, scale_pool};
use super::names::{BadName, Names};
use super::objects::{DRAIN, Design, InUse, TEMPLATE, WorkerKind};
use super::rotation::Known;
use super::said::{SHADOWS_CONFINED, counts, images_said, own_said, payloads_said, shadows_said, workers_said};
use super::scale::{Drain, Evidence, Plan};
use super::seen::{Memory, Wanted, is_marked};
use super::shadow::Shadows;
use super::tries::{NotMade, Tries};
use super::wanted::{Asker, Demand};
use super::work::Work;
use crate::api::{
    Backend, FINALIZER, Guarded, HTCJob, HTCPool, ManagedPool, ObjectName, Observed, Reason, Wake, decoded, is_for,
};
use crate::condor::startds::Drained;
use crate::credentials::Tenant;
use crate::credentials::signing::SigningKey;
use crate::failpoint::{Point, around};
use crate::fence::Fence;
use crate::kubernetes::{ApiError, limited, tell_event, unless_changed};
use crate::machine::Uid;
use crate::pools::{Pool, Pools};
use due::Due;
use pace::Pace;

/// Until objects that are as they should be are looked at again.
pub(in crate::pools) const LOOK_AGAIN: Duration = Duration::from_mins(5);
/// The same after something has gone wrong with them.
const RETRY: Duration = Duration::from_secs(5);

/// What a caretaker is told once.
#[derive(Clone)]
pub(in crate::pools) struct Charge {
    pub(in crate::pools) client: Client,
    pub(in crate::pools) fence: Fence,
    pub(in crate::pools) pools: Arc<Pools>,
    /// All `HTCJob`s.
    pub(in crate::pools) objects: Store<Observed>,
    /// Whether all of them were listed once.
    pub(in crate::pools) listed: Receiver<bool>,
    /// How they are woken.
    pub(in crate::pools) wake: Wake,
    /// Namespace and name of this operator.
    pub(in crate::pools) operator: ObjectName,
    /// How often HTCondor is asked while nothing changes, and while something does.
    pub(in crate::pools) intervals: (Duration, Duration),
}

/// Sees to one managed pool. It ends when this is dropped.
pub(in crate::pools) struct Caretaker {
    charge: Charge,
    names: Names,
    applier: Applier,
    object: Mutex<Arc<HTCPool>>,
    applied: Mutex<Option<(i64, Instant, Applied)>>,
    tries: Mutex<Tries>,
    news: Notify,
    work: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Caretaker {
    pub(in crate::pools) fn new(charge: Charge, object: &HTCPool, name: &ObjectName) -> Result<Self, BadName> {
        let names = Names::new(name, &object.uid().unwrap_or_default())?;
        let applier = Applier::new(charge.client.clone());
        let (news, work, object) = (Notify::new(), Mutex::default(), Mutex::new(Arc::new(object.clone())));
        Ok(Self { charge, names, applier, object, applied: Mutex::default(), tries: Mutex::default(), news, work })
    }

    /// It is the same `HTCPool`.
    pub(in crate::pools) fn is_of(&self, uid: &str) -> bool {
        self.names.uid == uid
    }

    pub(in crate::pools) const fn names(&self) -> &Names {
        &self.names
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that all objects but the workers are there, and are as the `HTCPool` says now.
    /// Else why not; or an error if this operator may not write.
    pub(in crate::pools) async fn see_to(
        &self,
        object: &HTCPool,
        spec: &ManagedPool,
    ) -> Result<Result<Applied, NotMade>, ApiError> {
        let generation = object.meta().generation.unwrap_or_default();
        let known = std::mem::replace(
            &mut *self.object.lock().unwrap_or_else(PoisonError::into_inner),
            Arc::new(object.clone()),
        );
        // What is in its status is what this has written.
        if known.meta().generation != object.meta().generation {
            self.news.notify_one();
        }
        let before = self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((of, at, applied)) = before
            && of == generation
            && at.elapsed() < LOOK_AGAIN
        {
            return Ok(Ok(applied));
        }
        if let Some(why) = self.tries().waits(generation, Instant::now()) {
            return Ok(Err(why));
        }
        let known = Known::of(object.status.as_ref());
        let design = self.design(spec, InUse::FIRST);
        let applied = match self.applier.apply(&design, known.as_ref(), None, now()).await {
            Ok(applied) => applied,
            // No try of this operator's.
            Err(ApplyError::Api(error)) if error.is_fence_closed() => return Err(error),
            Err(error) => return Ok(Err(self.tries().failed(generation, &error, Instant::now()))),
        };
        self.tries().went_well();
        let before = self.applied.lock().unwrap_or_else(PoisonError::into_inner).replace((
            generation,
            Instant::now(),
            applied.clone(),
        ));
        // Workers are looked at by what is applied.
        if before.is_none_or(|(of, ..)| of != generation) {
            self.news.notify_one();
        }
        Ok(Ok(applied))
    }

    /// From now on the workers are seen to.
    pub(in crate::pools) fn start(self: &Arc<Self>, pool: &Arc<Pool>) {
        // Neither is kept by its work: the pool ends when nobody else has it.
        let (own, pool) = (Arc::downgrade(self), Arc::downgrade(pool));
        let work = async move {
            let Some(caretaker) = own.upgrade() else { return };
            let (names, charge) = (caretaker.names.clone(), caretaker.charge.clone());
            drop(caretaker);
            let (store, writer) = reflector::store();
            let pods: Api<Guarded<KubePod>> = Api::namespaced(charge.client.clone(), &names.pool.namespace);
            let selector = super::objects::worker_selector(&names);
            let watched = watcher(pods, watcher::Config::default().labels(&selector));
            let watched = watched.default_backoff().try_filter_map(|event| async { Ok(decoded(event)) });
            let mut watched = Box::pin(watched.reflect(writer));
            let (mut memory, mut pace, mut listed) = (Memory::default(), Pace::default(), false);
            let changed = charge.pools.listen(&names.pool);
            let mut due = Due::new(charge.intervals.1, Instant::now());
            loop {
                let Some(caretaker) = own.upgrade() else { return };
                tokio::select! {
                    event = watched.next() => match event {
                        Some(Ok(event)) => {
                            listed |= matches!(event, watcher::Event::InitDone);
                            memory.made.watched(&event, &names);
                            if matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) { continue; }
                            due.pods_changed(Instant::now());
                            continue;
                        }
                        Some(Err(error)) => tracing::warn!(%error, "the workers' pods cannot be watched"),
                        None => return,
                    },
                    () = caretaker.news.notified() => {}
                    () = changed.notified() => {
                        due.jobs_changed(Instant::now());
                        continue;
                    }
                    () = sleep_until(due.next().into()) => {}
                }
                let Some(pool) = pool.upgrade() else { return };
                let began = Instant::now();
                let pause = if listed { caretaker.look(&pool, &store, &mut memory, &mut pace).await } else { RETRY };
                due.looked(began, Instant::now(), pause);
            }
        };
        let task = tokio::spawn(work);
        let before = self.work.lock().unwrap_or_else(PoisonError::into_inner).replace(task);
        if let Some(before) = before {
            before.abort();
        }
    }

    pub(in crate::pools) fn stop(&self) {
        if let Some(work) = self.work.lock().unwrap_or_else(PoisonError::into_inner).take() {
            work.abort();
        }
    }

    /// Looks at the workers, and does what is to be done; when to look again.
    async fn look(&self, pool: &Pool, pods: &Store<KubePod>, memory: &mut Memory, pace: &mut Pace) -> Duration {
        tracing::debug!(htcpool = %self.names.pool, "looks at the workers");
        let (calm, soon) = self.charge.intervals;
        let object = Arc::clone(&self.object.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(spec) = &object.spec.managed else { return calm };
        let Some(applied) = self.applied() else { return soon };
        let design = self.design(spec, applied.accept.in_use());
        // Without them nothing is asked for, and all would go.
        if !*self.charge.listed.borrow() {
            return soon;
        }
        let (mine, pods) = (self.mine(), pods.state());
        let asking =
            mine.iter().filter(|(other, work)| may_ask(&object.spec, &self.names.pool.namespace, other, work.as_ref()));
        let askers: Vec<Asker<'_>> = asking.map(|(object, work)| asker(object, *work)).collect();
        let demand = Demand::of(spec, &askers);
        memory.notice(&pods, now());
        memory.keep(&demand.asked(&design));
        let there = memory.there(&pods, &self.names);
        let Ok(wanted) = demand.wanted(&design, &there, now()) else { return calm };
        let most = demand.most();
        let mut groups = memory.evidence(&pods, &self.names, &wanted, now());
        let mut plans = scale_pool(&groups, most);
        let (restless, drains) = (Memory::is_restless(&groups), plans.values().any(|plan| !plan.drain.is_empty()));
        let awaited = if drains { soon } else { pace.pause(soon, calm) };
        let asked = memory.age(now()).is_none_or(|age| age >= if restless || drains { awaited } else { calm });
        if asked {
            let asked = now();
            memory.take_in(pool.schedd.startds(POD_UID).await, asked);
            memory.recall(&pods, &self.names);
            memory.compare(&pods, &self.names, now());
            groups = memory.evidence(&pods, &self.names, &wanted, now());
            plans = scale_pool(&groups, most);
        } else {
            // Whether the schedd has a job there is asked only after a new answer of the collector.
            for plan in plans.values_mut() {
                plan.discard.clear();
            }
        }
        pace.note(&groups, asked, soon);
        if self.charge.fence.check().is_ok() {
            if let Err(error) = self.give_tokens(&design, &pods, memory).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "a worker waits for its token; it is tried again");
            }
            if let Err(error) = self.carry_out(&plans, &wanted, pool, &design, &pods, memory).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "the workers of the pool are not as they should be; it is tried again");
            }
            self.tell_lacks(spec, &mine, memory).await;
            groups = memory.evidence(&pods, &self.names, &wanted, now());
            let payloads = payloads_said(&memory.payloads(&pods, &self.names));
            let key = self.rotate(&object, (&design, applied), pool, &pods, memory).await;
            let mut said = vec![workers_said(&groups, &plans, memory), images_said(memory), payloads, key];
            said.extend(Self::shadows(&object, pool).map(shadows_said));
            if let Err(error) = self.publish(&object, (&counts(&groups), &said)).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "the status of the workers is not written");
            }
            self.tell_owners(spec, &mine, &groups, memory).await;
        }
        let again = plans.values().filter_map(|plan| plan.again).chain(memory.pause_ends(now())).min();
        let again = again.map_or(calm, |again| Duration::from_secs(u64::try_from(again - now()).unwrap_or(0)));
        let usual = if Memory::is_restless(&groups) { pace.pause(soon, calm) } else { calm };
        let usual = if self.rotates() { usual.min(rotation::PAUSE) } else { usual };
        usual.min(again).max(Duration::from_millis(200))
    }

    /// Whether the schedd's shadows are confined: as it has said, or as it was said before this operator was started.
    fn shadows(object: &HTCPool, pool: &Pool) -> Option<Shadows> {
        let conditions = object.status.iter().flat_map(|status| &status.conditions);
        let told = conditions.into_iter().find(|condition| condition.type_ == SHADOWS_CONFINED);
        let said = pool.schedd.shadows().and_then(|word| word.parse().ok());
        said.or_else(|| told?.reason.parse().ok())
    }

    /// The `HTCJob`s in this pool, and what they have to do; none where that is not known.
    fn mine(&self) -> Vec<(Arc<Observed>, Option<Work>)> {
        let mine = self.charge.pools.members(&self.names.pool).into_iter().filter_map(|(uid, reference, work)| {
            let object = self.charge.objects.get(&reference)?;
            // Those of another backend are in no pool, whatever they name: nobody looks at what they have to do.
            let is_it = object.uid().as_deref() == Some(uid.as_str()) && Backend::of(&object) == Backend::HTCondor;
            let work = work.or_else(|| (!self.may_have_work(&object)).then(Work::default));
            is_it.then_some((object, work))
        });
        mine.collect()
    }

    /// Whether this operator may have submitted jobs of one that it has not looked at yet: before it does, it attaches its finalizer.
    fn may_have_work(&self, object: &Observed) -> bool {
        object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
            && is_for(&self.charge.operator.to_string(), object)
    }

    /// `HTCJob`s whose jobs wait for workers that their image cannot be, say so: once.
    async fn tell_lacks(&self, spec: &ManagedPool, mine: &[(Arc<Observed>, Option<Work>)], memory: &mut Memory) {
        if !memory.has_lacks() {
            return;
        }
        for (object, work) in mine {
            let (Ok(job), Some(uid), Some(work)) = (&object.0, object.uid(), work) else { continue };
            let named = image(job.spec.image()).to_owned();
            let Some(lack) = memory.lack(&group(spec, job, &uid)).map(str::to_owned) else { continue };
            if waits(job, work) && memory.is_news(uid) {
                let message =
                    format!("no worker of HTCPool {} can be made of the image {named}: {lack}", self.names.pool);
                let reason: &str = Reason::NoWorkerFits.into();
                tell_event(&self.charge.client, job.object_ref(&()), reason, &message, true).await;
            }
        }
    }

    /// `HTCJob`s that have workers of their own say how many there are.
    async fn tell_owners(
        &self,
        spec: &ManagedPool,
        mine: &[(Arc<Observed>, Option<Work>)],
        groups: &BTreeMap<Group, Evidence>,
        memory: &Memory,
    ) {
        for (object, _) in mine {
            let (Ok(job), Some(uid)) = (&object.0, object.uid()) else { continue };
            if job.spec.mini_cluster.is_none() {
                continue;
            }
            let its = group(spec, job, &uid);
            let status = own_said(groups.get(&its), memory.trouble(&its));
            if self.charge.pools.set_own_workers(&Uid::from(uid.as_str()), status) {
                let _ = self.charge.wake.send(ObjectRef::from_obj(&**object)).await;
            }
        }
    }

    /// Each step does nothing if it has been done before: an operator that dies between two of them has lost nothing.
    async fn carry_out(
        &self,
        plans: &BTreeMap<Group, Plan>,
        wanted: &BTreeMap<Group, Wanted>,
        pool: &Pool,
        design: &Design<'_>,
        pods: &[Arc<KubePod>],
        memory: &mut Memory,
    ) -> Result<(), ApplyError> {
        let pod = |number: u32| pods.iter().find(|pod| self.names.worker_number(&pod.name_any()) == Some(number));
        // Lists, not iterators: those would be held over what is waited for.
        let removed: Vec<u32> = plans.values().flat_map(|plan| plan.remove.clone()).collect();
        let withdrawn: Vec<u32> = plans.values().flat_map(|plan| plan.withdraw.clone()).collect();
        let drained: Vec<(u32, Drain)> = plans.values().flat_map(|plan| plan.drain.clone()).collect();
        for number in removed {
            if let Some(pod) = pod(number) {
                self.delete(pod, false).await?;
            }
        }
        for number in withdrawn {
            if let Some(pod) = pod(number) {
                self.delete(pod, true).await?;
            }
        }
        let mut failed = self.discard(plans, pool, pods).await.err().map(ApplyError::from);
        for (number, how) in drained {
            let Some(pod) = pod(number) else { continue };
            match self.mark(pod).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    failed = Some(error.into());
                    continue;
                }
            }
            let slot = format!("slot1@{}", self.names.startd(&pod.name_any()));
            let Ok(drained) = pool.schedd.drain(&self.charge.fence, &slot, how == Drain::IfIdle).await else { break };
            match drained {
                Drained::Accepted => {
                    tracing::info!("worker {} takes no more jobs, and ends after those that it has", pod.name_any());
                    memory.drains(pod.uid().unwrap_or_default());
                }
                Drained::Busy => tracing::debug!("worker {} has got a job meanwhile: it stays", pod.name_any()),
                Drained::Unknown(why) => tracing::warn!("worker {} is not drained: {why}", pod.name_any()),
            }
        }
        for (group, plan) in plans {
            let Some(kind) = wanted.get(group).and_then(|wanted| wanted.kind.as_ref()) else { continue };
            // One that is refused holds up no other.
            if let Err(error) = self.make(group, kind, &plan.make, design, memory).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Workers whose pods were made, and whose Secrets were not, because the operator ended in between.
    async fn give_tokens(
        &self,
        design: &Design<'_>,
        pods: &[Arc<KubePod>],
        memory: &mut Memory,
    ) -> Result<(), ApplyError> {
        let lacking = memory.without_token(pods, &self.names);
        if lacking.is_empty() {
            return Ok(());
        }
        let keys = self.signing_keys().await?;
        for (number, uid, tenant) in lacking {
            self.give_token(design, (number, uid), &tenant, &keys, memory).await?;
        }
        Ok(())
    }

    /// A Secret that belongs to somebody else and has the name of a worker's holds up no other worker.
    async fn give_token(
        &self,
        design: &Design<'_>,
        (number, uid): (u32, String),
        tenant: &Tenant,
        keys: &[SigningKey],
        memory: &mut Memory,
    ) -> Result<(), ApplyError> {
        match self.applier.worker_token(design, (number, &uid), tenant, (keys, now())).await {
            Ok(()) => memory.has_token(uid),
            Err(error @ ApplyError::NotOurs { .. }) => memory.has_no_token(uid, &error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn make(
        &self,
        group: &Group,
        kind: &WorkerKind,
        numbers: &[u32],
        design: &Design<'_>,
        memory: &mut Memory,
    ) -> Result<(), ApplyError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let (keys, tenant) = (self.signing_keys().await?, kind.tenant());
        for number in numbers {
            let object = design.worker(*number, kind);
            let template = object["metadata"]["annotations"][TEMPLATE].as_str().unwrap_or_default();
            memory.made.asks(*number, group, template);
            let made = self.applier.create(&object);
            match around(Point::BeforeWorkerMade, made, Point::AfterWorkerMade).await {
                Ok(object) => {
                    tracing::info!(image = kind.image, "worker {} is made", self.names.worker(*number));
                    let uid = object.uid().unwrap_or_default();
                    memory.made.is_there(*number, object.uid());
                    self.give_token(design, (*number, uid), &tenant, &keys, memory).await?;
                }
                // It is there already, and the watch has not told it yet.
                Err(ApplyError::Changed { .. }) => memory.made.is_there(*number, None),
                Err(error) => {
                    let refused = error.is_refusal();
                    if refused || error.is_fence_closed() {
                        memory.made.refused(*number);
                    }
                    if refused {
                        memory.refused(group, &error.to_string(), now());
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Before it is drained: HTCondor's word that it takes no more jobs is believed by an operator that was started again only if it
    /// was an operator who asked for that.
    async fn mark(&self, pod: &KubePod) -> Result<bool, ApiError> {
        if is_marked(pod) {
            return Ok(true);
        }
        let api: Api<Guarded<KubePod>> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let name = pod.name_any();
        let patch = Patch::Merge(json!({ "metadata": { "uid": pod.uid(), "annotations": { DRAIN: "true" } } }));
        let parameters = PatchParams::default();
        let marked = limited("mark the pod", &name, api.patch_metadata(&name, &parameters, &patch));
        unless_changed(around(Point::BeforeWorkerMarked, marked, Point::AfterWorkerMarked).await)
    }

    /// `unchanged`: only if nothing has happened to it since it was seen.
    async fn delete(&self, pod: &KubePod, unchanged: bool) -> Result<(), ApiError> {
        let api: Api<Guarded<KubePod>> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let parameters = just_this(pod, unchanged);
        let name = pod.name_any();
        let deleted = limited("delete the pod", &name, api.delete(&name, &parameters));
        unless_changed(around(Point::BeforeWorkerDeleted, deleted, Point::AfterWorkerDeleted).await).map(drop)
    }
}

/// Deletes no other pod of the same name; and, if it is to be `unchanged`, not one whose containers have begun since it was seen.
fn just_this(pod: &KubePod, unchanged: bool) -> DeleteParams {
    let resource_version = if unchanged { pod.resource_version() } else { None };
    let preconditions = Some(Preconditions { uid: pod.uid(), resource_version });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

fn asker(object: &Observed, work: Option<Work>) -> Asker<'_> {
    Asker { uid: object.uid().unwrap_or_default(), name: ObjectName::of(object), job: object.0.as_ref().ok(), work }
}

/// Whose workers run its jobs.
fn group(pool: &ManagedPool, job: &HTCJob, uid: &str) -> Group {
    if job.spec.mini_cluster.is_some() {
        Group::HTCJob(uid.to_owned())
    } else {
        Group::Shared(shared(pool, job.spec.image(), &job.namespace().unwrap_or_default()))
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_deleted_by_what_it_was() {
        let pod = json!({ "metadata": { "name": "p", "uid": "u", "resourceVersion": "7" } });
        let pod: KubePod = serde_json::from_value(pod).unwrap();
        let of = |unchanged| just_this(&pod, unchanged).preconditions.unwrap();
        assert_eq!((of(false).uid.as_deref(), of(false).resource_version), (Some("u"), None));
        assert_eq!((of(true).uid.as_deref(), of(true).resource_version.as_deref()), (Some("u"), Some("7")));
    }
}
