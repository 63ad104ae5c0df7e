//! Reconciles one managed pool: its Kubernetes objects, and its workers while the pool runs.

mod discard;
mod pace;
mod rotation;
mod schedule;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use htc_api::{
    Backend, FINALIZER, Guarded, HTCJob, HTCPool, ManagedPool, ObjectName, ObservedHTCJob, Reason, is_for_operator,
};
use htc_machine::Uid;
use htc_machine::demand::JobDemand;
use htc_machine::scaling::{Drain, ScalePlan, WorkerEvidence};
use htc_machine::worker_groups::{WorkerGroup, scale_pool};
use htc_submit::pod_spec::CpuLimits;
use htc_support::failpoint::{Point, around};
use htc_support::fence::Fence;
use htc_support::kubernetes::{ApiError, create_event, unless_changed, with_timeout};
use htc_support::kubernetes::{Wake, decoded};
use htcondor::startds::DrainResult;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use super::apply::{Applied, Applier};
use super::config::POD_UID;
use super::demand::{has_waiting_jobs, image, may_request_workers, shared_group};
use super::error::ApplyError;
use super::names::{BadName, PoolNames};
use super::objects::{DRAIN_ANNOTATION, Design, KeyGenerations, TEMPLATE_ANNOTATION, WorkerKind};
use super::rotation::PublishedKey;
use super::shadow::ShadowConfinement;
use crate::backends::condor::credentials::Tenant;
use crate::backends::condor::credentials::signing::SigningKey;
use crate::htcpool::managed::apply_backoff::{ApplyBackoff, ReasonAndMessage};
use crate::htcpool::managed::conditions::{
    SHADOWS_CONFINED, counts, images_condition, mini_cluster_status, payloads_condition, shadows_said,
    workers_condition,
};
use crate::htcpool::managed::desired::{PoolDemand, WorkerRequester};
use crate::htcpool::managed::observations::{DesiredGroup, WorkerObservations, is_marked};
use crate::htcpool::{Pool, Pools};
use pace::CollectorBackoff;
use schedule::WorkerSchedule;

/// Interval between checks of objects that are as desired.
pub(in crate::htcpool) const LOOK_AGAIN: Duration = Duration::from_mins(5);
/// Interval before the next attempt after an error.
const RETRY: Duration = Duration::from_secs(5);

/// Parts of the operator that the reconcilers of managed pools share.
#[derive(Clone)]
pub(in crate::htcpool) struct ReconcilerContext {
    pub(in crate::htcpool) client: Client,
    pub(in crate::htcpool) fence: Fence,
    pub(in crate::htcpool) pools: Arc<Pools>,
    pub(in crate::htcpool) objects: Store<ObservedHTCJob>,
    /// Whether all `HTCJob`s were listed once.
    pub(in crate::htcpool) listed: Receiver<bool>,
    /// Wakes `HTCJob`s.
    pub(in crate::htcpool) wake: Wake,
    /// Namespace and name of this operator.
    pub(in crate::htcpool) operator: ObjectName,
    /// Interval between queries of HTCondor while nothing changes, and while a change is expected.
    pub(in crate::htcpool) intervals: (Duration, Duration),
    /// CPU limits of workers; None for the default.
    pub(in crate::htcpool) cpu_limits: Option<CpuLimits>,
}

/// The reconciler of one managed pool. Dropping it stops its task.
pub(in crate::htcpool) struct ManagedPoolReconciler {
    charge: ReconcilerContext,
    names: PoolNames,
    applier: Applier,
    object: Mutex<Arc<HTCPool>>,
    applied: Mutex<Option<(i64, Instant, Applied)>>,
    tries: Mutex<ApplyBackoff>,
    news: Notify,
    work: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for ManagedPoolReconciler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ManagedPoolReconciler {
    pub(in crate::htcpool) fn new(
        charge: ReconcilerContext,
        object: &HTCPool,
        name: &ObjectName,
    ) -> Result<Self, BadName> {
        let names = PoolNames::new(name, &object.uid().unwrap_or_default())?;
        let applier = Applier::new(charge.client.clone());
        let (news, work, object) = (Notify::new(), Mutex::default(), Mutex::new(Arc::new(object.clone())));
        Ok(Self { charge, names, applier, object, applied: Mutex::default(), tries: Mutex::default(), news, work })
    }

    /// Returns whether the reconciler is for the `HTCPool` with this uid.
    pub(in crate::htcpool) fn is_of(&self, uid: &str) -> bool {
        self.names.uid == uid
    }

    pub(in crate::htcpool) const fn names(&self) -> &PoolNames {
        &self.names
    }

    fn tries(&self) -> MutexGuard<'_, ApplyBackoff> {
        self.tries.lock()
    }

    /// Creates or updates all objects but the workers.
    ///
    /// Returns what was applied, or why that has failed. It is an error if this operator may not write.
    pub(in crate::htcpool) async fn reconcile_objects(
        &self,
        object: &HTCPool,
        spec: &ManagedPool,
    ) -> Result<Result<Applied, ReasonAndMessage>, ApiError> {
        let generation = object.meta().generation.unwrap_or_default();
        let known = std::mem::replace(&mut *self.object.lock(), Arc::new(object.clone()));
        // Changes of the status are this reconciler's own, and wake nothing.
        if known.meta().generation != object.meta().generation {
            self.news.notify_one();
        }
        let before = self.applied.lock().clone();
        if let Some((of, at, applied)) = before
            && of == generation
            && at.elapsed() < LOOK_AGAIN
        {
            return Ok(Ok(applied));
        }
        if let Some(why) = self.tries().active_backoff(generation, Instant::now()) {
            return Ok(Err(why));
        }
        let known = PublishedKey::of(object.status.as_ref());
        let design = self.design(spec, KeyGenerations::FIRST);
        let applied = match self.applier.apply(&design, known.as_ref(), None, now()).await {
            Ok(applied) => applied,
            // A closed fence is no failed attempt: this operator may not write now.
            Err(ApplyError::Api(error)) if error.is_fence_closed() => return Err(error),
            Err(error) => return Ok(Err(self.tries().failed(generation, &error, Instant::now()))),
        };
        self.tries().reset();
        let before = self.applied.lock().replace((generation, Instant::now(), applied.clone()));
        // The workers depend on what is applied.
        if before.is_none_or(|(of, ..)| of != generation) {
            self.news.notify_one();
        }
        Ok(Ok(applied))
    }

    /// Starts the task that reconciles the workers.
    pub(in crate::htcpool) fn start(self: &Arc<Self>, pool: &Arc<Pool>) {
        // The task keeps neither alive: the pool ends when its last other reference is dropped.
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
            let (mut memory, mut pace, mut listed) =
                (WorkerObservations::default(), CollectorBackoff::default(), false);
            let changed = charge.pools.listen(&names.pool);
            let mut due = WorkerSchedule::new(charge.intervals.1, Instant::now());
            loop {
                let Some(caretaker) = own.upgrade() else { return };
                tokio::select! {
                    event = watched.next() => match event {
                        Some(Ok(event)) => {
                            listed |= matches!(event, watcher::Event::InitDone);
                            memory.made.observe(&event, &names);
                            if matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) { continue; }
                            due.pods_changed(Instant::now());
                            continue;
                        }
                        Some(Err(error)) => tracing::warn!(%error, "watch of worker pods failed"),
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
                let pause = if listed {
                    caretaker.reconcile_workers(&pool, &store, &mut memory, &mut pace).await
                } else {
                    RETRY
                };
                due.finish(began, Instant::now(), pause);
            }
        };
        let task = tokio::spawn(work);
        let before = self.work.lock().replace(task);
        if let Some(before) = before {
            before.abort();
        }
    }

    pub(in crate::htcpool) fn stop(&self) {
        if let Some(work) = self.work.lock().take() {
            work.abort();
        }
    }

    /// Reconciles the workers. Returns the interval until the next reconcile.
    async fn reconcile_workers(
        &self,
        pool: &Pool,
        pods: &Store<KubePod>,
        memory: &mut WorkerObservations,
        pace: &mut CollectorBackoff,
    ) -> Duration {
        tracing::debug!(htcpool = %self.names.pool, "reconciling workers");
        let (calm, soon) = self.charge.intervals;
        let object = Arc::clone(&self.object.lock());
        let Some(spec) = &object.spec.managed else { return calm };
        let Some(applied) = self.applied() else { return soon };
        let design = self.design(spec, applied.accept.in_use());
        // Until the HTCJobs are listed no demand is known, and all workers would be removed.
        if !*self.charge.listed.borrow() {
            return soon;
        }
        let (mine, pods) = (self.htcjobs_in_pool(), pods.state());
        let asking = mine.iter().filter(|(other, work)| {
            may_request_workers(&object.spec, &self.names.pool.namespace, other, work.as_ref())
        });
        let askers: Vec<WorkerRequester<'_>> = asking.map(|(object, work)| asker(object, *work)).collect();
        let demand = PoolDemand::of(spec, &askers);
        memory.count_early_exits(&pods, now());
        memory.keep(&demand.requested_groups(&design));
        let there = memory.existing_workers(&pods, &self.names);
        let Ok(wanted) = demand.desired_groups(&design, &there, now()) else { return calm };
        let most = demand.most();
        let mut groups = memory.evidence(&pods, &self.names, &wanted, now());
        let mut plans = scale_pool(&groups, most);
        let (restless, drains) =
            (WorkerObservations::expects_change(&groups), plans.values().any(|plan| !plan.drain.is_empty()));
        let awaited = if drains { soon } else { pace.pause(soon, calm) };
        let asked = memory.age(now()).is_none_or(|age| age >= if restless || drains { awaited } else { calm });
        if asked {
            let asked = now();
            memory.record_answer(pool.schedd.startds(POD_UID).await, asked);
            memory.restore_drains(&pods, &self.names);
            memory.update_absences(&pods, &self.names, now());
            groups = memory.evidence(&pods, &self.names, &wanted, now());
            plans = scale_pool(&groups, most);
        } else {
            // Whether the schedd has a job on a worker is queried only after a new answer of the collector.
            for plan in plans.values_mut() {
                plan.delete_unknown.clear();
            }
        }
        pace.note(&groups, asked, soon);
        if self.charge.fence.check().is_ok() {
            if let Err(error) = self.give_tokens(&design, &pods, memory).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "worker's token not written, retrying");
            }
            if let Err(error) = self.apply_plans(&plans, &wanted, pool, &design, &pods, memory).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "workers not reconciled, retrying");
            }
            self.report_missing_images(spec, &mine, memory).await;
            groups = memory.evidence(&pods, &self.names, &wanted, now());
            let payloads = payloads_condition(&memory.payloads(&pods, &self.names));
            let key = self.rotate(&object, (&design, applied), pool, &pods, memory).await;
            let mut said = vec![workers_condition(&groups, &plans, memory), images_condition(memory), payloads, key];
            said.extend(Self::shadows(&object, pool).map(shadows_said));
            if let Err(error) = self.publish(&object, (&counts(&groups), &said)).await
                && !error.is_fence_closed()
            {
                tracing::warn!(%error, "status of the workers not written");
            }
            self.tell_owners(spec, &mine, &groups, memory).await;
        }
        let again = plans.values().filter_map(|plan| plan.requeue_at).chain(memory.pause_ends(now())).min();
        let again = again.map_or(calm, |again| Duration::from_secs(u64::try_from(again - now()).unwrap_or(0)));
        let usual = if WorkerObservations::expects_change(&groups) { pace.pause(soon, calm) } else { calm };
        let usual = if self.is_rotating() { usual.min(rotation::PAUSE) } else { usual };
        usual.min(again).max(Duration::from_millis(200))
    }

    /// Returns whether the schedd's shadows are confined.
    ///
    /// Until the schedd has answered, this comes from the condition of an earlier operator.
    fn shadows(object: &HTCPool, pool: &Pool) -> Option<ShadowConfinement> {
        let conditions = object.status.iter().flat_map(|status| &status.conditions);
        let told = conditions.into_iter().find(|condition| condition.type_ == SHADOWS_CONFINED);
        let said = pool.schedd.shadows().and_then(|word| word.parse().ok());
        said.or_else(|| told?.reason.parse().ok())
    }

    /// Returns the `HTCJob`s in this pool with their demand; `None` if it is not known.
    fn htcjobs_in_pool(&self) -> Vec<(Arc<ObservedHTCJob>, Option<JobDemand>)> {
        let mine = self.charge.pools.members(&self.names.pool).into_iter().filter_map(|(uid, reference, work)| {
            let object = self.charge.objects.get(&reference)?;
            // HTCJobs of another backend are in no pool, even if their spec names one. Their demand is never recorded.
            let is_it = object.uid().as_deref() == Some(uid.as_str()) && Backend::of(&object) == Backend::HTCondor;
            let work = work.or_else(|| (!self.may_have_work(&object)).then(JobDemand::default));
            is_it.then_some((object, work))
        });
        mine.collect()
    }

    /// Returns whether this operator may have submitted jobs of an `HTCJob` without recorded demand.
    ///
    /// The operator attaches its finalizer before it submits.
    fn may_have_work(&self, object: &ObservedHTCJob) -> bool {
        object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
            && is_for_operator(&self.charge.operator.to_string(), object)
    }

    /// Creates one Event for each `HTCJob` whose jobs wait for workers, but whose image cannot be used for them.
    async fn report_missing_images(
        &self,
        spec: &ManagedPool,
        mine: &[(Arc<ObservedHTCJob>, Option<JobDemand>)],
        memory: &mut WorkerObservations,
    ) {
        if !memory.has_image_problems() {
            return;
        }
        for (object, work) in mine {
            let (Ok(job), Some(uid), Some(work)) = (&object.0, object.uid(), work) else { continue };
            let named = image(job.spec.image()).to_owned();
            let Some(lack) = memory.image_problem(&group(spec, job, &uid)).map(str::to_owned) else { continue };
            if has_waiting_jobs(job, work) && memory.is_first_notice(uid) {
                let message =
                    format!("no worker of HTCPool {} can be made of the image {named}: {lack}", self.names.pool);
                let reason: &str = Reason::NoWorkerFits.into();
                create_event(&self.charge.client, job.object_ref(&()), reason, &message, true).await;
            }
        }
    }

    /// Updates the status of the workers that belong to one `HTCJob`, and wakes that `HTCJob`.
    async fn tell_owners(
        &self,
        spec: &ManagedPool,
        mine: &[(Arc<ObservedHTCJob>, Option<JobDemand>)],
        groups: &BTreeMap<WorkerGroup, WorkerEvidence>,
        memory: &WorkerObservations,
    ) {
        for (object, _) in mine {
            let (Ok(job), Some(uid)) = (&object.0, object.uid()) else { continue };
            if job.spec.mini_cluster.is_none() {
                continue;
            }
            let its = group(spec, job, &uid);
            let status = mini_cluster_status(groups.get(&its), memory.group_problem(&its));
            if self.charge.pools.set_own_workers(&Uid::from(uid.as_str()), status) {
                let _ = self.charge.wake.send(ObjectRef::from_obj(&**object)).await;
            }
        }
    }

    /// Carries out the plans: deletes, drains and creates workers.
    ///
    /// Each step is idempotent: nothing is lost if the operator dies between two steps.
    async fn apply_plans(
        &self,
        plans: &BTreeMap<WorkerGroup, ScalePlan>,
        wanted: &BTreeMap<WorkerGroup, DesiredGroup>,
        pool: &Pool,
        design: &Design<'_>,
        pods: &[Arc<KubePod>],
        memory: &mut WorkerObservations,
    ) -> Result<(), ApplyError> {
        let pod = |number: u32| pods.iter().find(|pod| self.names.worker_number(&pod.name_any()) == Some(number));
        // Lists, because iterators would be held across the awaits.
        let removed: Vec<u32> = plans.values().flat_map(|plan| plan.delete_ended.clone()).collect();
        let withdrawn: Vec<u32> = plans.values().flat_map(|plan| plan.delete_unstarted.clone()).collect();
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
                DrainResult::Accepted => {
                    tracing::info!(worker = pod.name_any(), "worker draining");
                    memory.record_drain(pod.uid().unwrap_or_default());
                }
                DrainResult::Busy => tracing::debug!(worker = pod.name_any(), "worker has a job, not drained"),
                DrainResult::Unknown(why) => tracing::warn!(worker = pod.name_any(), %why, "worker not drained"),
            }
        }
        for (group, plan) in plans {
            let Some(kind) = wanted.get(group).and_then(|wanted| wanted.kind.as_ref()) else { continue };
            // A refused group does not hold up the others.
            if let Err(error) = self.make(group, kind, &plan.create, design, memory).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Creates the missing Secrets of workers whose pods exist: an operator may have ended between the two.
    async fn give_tokens(
        &self,
        design: &Design<'_>,
        pods: &[Arc<KubePod>],
        memory: &mut WorkerObservations,
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

    /// Creates the Secret of a worker. If another owner's Secret has its name, the other workers still get theirs.
    async fn give_token(
        &self,
        design: &Design<'_>,
        (number, uid): (u32, String),
        tenant: &Tenant,
        keys: &[SigningKey],
        memory: &mut WorkerObservations,
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
        group: &WorkerGroup,
        kind: &WorkerKind,
        numbers: &[u32],
        design: &Design<'_>,
        memory: &mut WorkerObservations,
    ) -> Result<(), ApplyError> {
        memory.forget_refusal(group);
        if numbers.is_empty() {
            return Ok(());
        }
        let (keys, tenant) = (self.signing_keys().await?, kind.tenant());
        for number in numbers {
            let object = design.worker(*number, kind);
            let template = object["metadata"]["annotations"][TEMPLATE_ANNOTATION].as_str().unwrap_or_default();
            memory.made.expect_creation(*number, group, template);
            let made = self.applier.create(&object);
            match around(Point::BeforeWorkerMade, made, Point::AfterWorkerMade).await {
                Ok(object) => {
                    tracing::info!(image = kind.image, worker = self.names.worker(*number), "worker created");
                    let uid = object.uid().unwrap_or_default();
                    memory.made.creation_observed(*number, object.uid());
                    self.give_token(design, (*number, uid), &tenant, &keys, memory).await?;
                }
                // The pod exists already, and the watch has not reported it yet.
                Err(ApplyError::Changed { .. }) => memory.made.creation_observed(*number, None),
                Err(error) => {
                    let refused = error.is_refusal();
                    if refused || error.is_fence_closed() {
                        memory.made.creation_failed(*number);
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

    /// Annotates the pod of a worker before the worker is drained. Returns whether it was annotated.
    ///
    /// HTCondor may report a drain that nobody here has requested. After a restart the operator trusts such a report
    /// only for pods with this annotation.
    async fn mark(&self, pod: &KubePod) -> Result<bool, ApiError> {
        if is_marked(pod) {
            return Ok(true);
        }
        let api: Api<Guarded<KubePod>> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let name = pod.name_any();
        let patch =
            Patch::Merge(json!({ "metadata": { "uid": pod.uid(), "annotations": { DRAIN_ANNOTATION: "true" } } }));
        let parameters = PatchParams::default();
        let marked = with_timeout("mark the pod", &name, api.patch_metadata(&name, &parameters, &patch));
        unless_changed(around(Point::BeforeWorkerMarked, marked, Point::AfterWorkerMarked).await)
    }

    /// Deletes the pod of a worker. `unchanged`: only if the pod has not changed since it was observed.
    async fn delete(&self, pod: &KubePod, unchanged: bool) -> Result<(), ApiError> {
        let api: Api<Guarded<KubePod>> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let parameters = just_this(pod, unchanged);
        let name = pod.name_any();
        let deleted = with_timeout("delete the pod", &name, api.delete(&name, &parameters));
        unless_changed(around(Point::BeforeWorkerDeleted, deleted, Point::AfterWorkerDeleted).await).map(drop)
    }
}

/// Returns parameters that delete this pod only, and no later one of the same name.
///
/// With `unchanged` the pod is not deleted either if its containers have started since it was observed.
fn just_this(pod: &KubePod, unchanged: bool) -> DeleteParams {
    let resource_version = if unchanged { pod.resource_version() } else { None };
    let preconditions = Some(Preconditions { uid: pod.uid(), resource_version });
    DeleteParams { preconditions, ..DeleteParams::default() }
}

fn asker(object: &ObservedHTCJob, work: Option<JobDemand>) -> WorkerRequester<'_> {
    WorkerRequester {
        uid: object.uid().unwrap_or_default(),
        name: ObjectName::of(object),
        job: object.0.as_ref().ok(),
        work,
    }
}

/// Returns the group of workers that runs the jobs of this `HTCJob`.
fn group(pool: &ManagedPool, job: &HTCJob, uid: &str) -> WorkerGroup {
    if job.spec.mini_cluster.is_some() {
        WorkerGroup::HTCJob(uid.to_owned())
    } else {
        WorkerGroup::Shared(shared_group(pool, &job.spec, &job.namespace().unwrap_or_default()))
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_deletion_has_uid_and_version_preconditions() {
        let pod = json!({ "metadata": { "name": "p", "uid": "u", "resourceVersion": "7" } });
        let pod: KubePod = serde_json::from_value(pod).unwrap();
        let of = |unchanged| just_this(&pod, unchanged).preconditions.unwrap();
        assert_eq!((of(false).uid.as_deref(), of(false).resource_version), (Some("u"), None));
        assert_eq!((of(true).uid.as_deref(), of(true).resource_version.as_deref()), (Some("u"), Some("7")));
    }
}
