//! Reconciles `HTCPool`s: keeps a pool running for each, and publishes its condition `Ready`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use htc_api::{
    Condition, ConditionStatus, FINALIZER, Guarded, HTCPool, OLD_FINALIZER, OPERATOR_ANNOTATION, ObjectName,
    ObservedHTCJob, POOL_FINALIZER, READY_CONDITION, Workers, is_for_operator,
};
use htc_ledger::LedgerError;
use htc_machine::Uid;
use htc_submit::pod_metadata;
use htc_support::failpoint::{Point, around};
use htc_support::fence::Fence;
use htc_support::kubernetes;
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, scoped_api, unless_changed, with_timeout};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource as _, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use super::managed::names::{BadName, PoolNames};
use super::{PoolEndpoint, PoolFactory, PoolListing, Pools};
use crate::htcpool::factory::{PROBE_FACTOR, probe};
use crate::htcpool::managed::apply_backoff::ReasonAndMessage;
use crate::htcpool::managed::reconciler::{LOOK_AGAIN, ManagedPoolReconciler, ReconcilerContext};
use crate::htcpool::readiness::{
    ANOTHER_POOL, ASKING, EXPLAINED_REASONS, IN_USE, ObservedSchedd, PoolFacts, ReadyCondition, ready_condition,
};
use crate::htcpool::schedule::ReconcileSchedule;

/// An `HTCPool` from the watch. One that cannot be decoded does not end the watch.
type ObservedPool = Guarded<HTCPool>;

/// Interval between reconciles of a pool that waits for something without an event.
const AWAITED: Duration = Duration::from_secs(2);

/// Interval before the next reconcile after an error.
const FAILED: Duration = Duration::from_secs(15);

/// The controller of all `HTCPool`s.
pub struct PoolController {
    base: PoolFactory,
    pools: Arc<Pools>,
    fence: Fence,
    seen: Mutex<HashMap<ObjectName, Arc<Mutex<ObservedSchedd>>>>,
    /// Reconcilers of the managed pools.
    caretakers: Mutex<HashMap<ObjectName, Arc<ManagedPoolReconciler>>>,
    default: Mutex<ObservedSchedd>,
    news: Arc<Notify>,
}

/// Error of a reconcile of an `HTCPool`.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Result of starting a pool.
enum Ensured {
    Running,
    /// The former pool of this name still has batches under way.
    Draining,
    /// The pool does not run, for this reason.
    Refused(ReasonAndMessage),
}

/// Endpoint of a pool, or why it is not known.
type PoolLocation = Result<PoolEndpoint, ReasonAndMessage>;

impl PoolController {
    /// Creates a controller for all namespaces, or for the one that is watched.
    #[must_use]
    pub fn new(base: PoolFactory, pools: Arc<Pools>, fence: Fence) -> Self {
        let (seen, default, news) = (Mutex::default(), Mutex::default(), Arc::default());
        Self { base, pools, fence, seen, caretakers: Mutex::default(), default, news }
    }

    pub async fn run(self) {
        let (store, writer) = reflector::store();
        let watch = self.watch(writer);
        let (interval, soon, _) = self.base.intervals;
        let times = (soon, interval.saturating_mul(PROBE_FACTOR));
        let first = Notify::new();
        // The identity of the default schedd is only compared with the schedds of HTCPools.
        let default = async {
            first.notified().await;
            if !self.pools.has_default() {
                return;
            }
            probe(&self.pools.default().schedd, &self.default, &self.news, times).await;
        };
        tokio::join!(watch, default, self.follow(&store, &first));
    }

    async fn watch(&self, writer: reflector::store::Writer<ObservedPool>) {
        let api: Api<ObservedPool> = scoped_api(&self.base.client, self.base.namespace.as_deref());
        let mut told = String::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff().reflect(writer));
        while let Some(event) = events.next().await {
            match event {
                // A list has begun; its objects follow.
                Ok(watcher::Event::Init) => {}
                Ok(event) => {
                    told.clear();
                    if matches!(event, watcher::Event::InitDone) && self.pools.record_listing(PoolListing::Complete) {
                        self.wake(None).await;
                    }
                    if !matches!(event, watcher::Event::InitApply(_)) {
                        self.news.notify_one();
                    }
                }
                Err(error) => {
                    let words = error.to_string();
                    if words != told {
                        tracing::warn!(%error, "watch of HTCPools failed; check that the CRD is installed");
                        told.clone_from(&words);
                    }
                    if self.pools.record_listing(PoolListing::Failed(words)) {
                        self.wake(None).await;
                    }
                }
            }
        }
    }

    /// Reconciles each `HTCPool` when something has changed. A slow reconcile does not delay the others.
    ///
    /// `first` is notified once there is an `HTCPool`.
    async fn follow(&self, store: &Store<ObservedPool>, first: &Notify) {
        let (mut looks, mut due) = (FuturesUnordered::new(), ReconcileSchedule::default());
        loop {
            let news = self.news.notified();
            let mut objects: Vec<Arc<ObservedPool>> = store.state();
            objects.sort_by_cached_key(|object| {
                (object.creation_timestamp().map(|time| time.0), ObjectName::of(&**object))
            });
            if !objects.is_empty() {
                first.notify_one();
            }
            self.end_deleted(&objects).await;
            let names: Vec<ObjectName> = objects.iter().map(|object| ObjectName::of(&**object)).collect();
            for place in due.take_due(&names, Instant::now()) {
                let (name, object, before) =
                    (names[place].clone(), Arc::clone(&objects[place]), objects[..place].to_vec());
                looks.push(async move { (name, self.reconcile(&object, &before).await) });
            }
            tokio::select! {
                Some((name, requeue_after)) = looks.next() => due.finish(&name, requeue_after, Instant::now()),
                () = news => due.invalidate_all(),
                () = until(due.next()) => {}
            }
        }
    }

    /// Returns whether this operator handles the `HTCPool`.
    ///
    /// It does not if another operator's finalizer is set: that operator knows which `HTCJob`s use the pool.
    fn is_ours(&self, object: &ObservedPool) -> bool {
        is_for_operator(&self.base.name, object)
    }

    async fn end_deleted(&self, objects: &[Arc<ObservedPool>]) {
        let there: Vec<ObjectName> =
            objects.iter().filter(|object| self.is_ours(object)).map(|object| ObjectName::of(&**object)).collect();
        for name in self.pools.names().into_iter().filter(|name| !there.contains(name)) {
            self.end(&name);
            self.wake(Some(&name)).await;
            tracing::warn!(htcpool = %name, "HTCPool gone without its finalizer, its HTCJobs wait for it");
        }
    }

    fn end(&self, name: &ObjectName) {
        // The reconciler holds a reference to the pool, too.
        if let Some(caretaker) = self.caretakers.lock().remove(name) {
            caretaker.stop();
        }
        self.pools.end(name);
        self.seen.lock().remove(name);
    }

    fn seen(&self, name: &ObjectName) -> Arc<Mutex<ObservedSchedd>> {
        let mut seen = self.seen.lock();
        Arc::clone(seen.entry(name.clone()).or_default())
    }

    /// Reconciles one `HTCPool`. Returns the interval until the next reconcile, unless a change comes first.
    ///
    /// `before`: the `HTCPool`s that were created earlier.
    #[tracing::instrument(level = "error", skip_all, fields(htcpool = %ObjectName::of(object)))]
    async fn reconcile(&self, object: &ObservedPool, before: &[Arc<ObservedPool>]) -> Option<Duration> {
        let pool = match &object.0 {
            Ok(pool) => pool,
            Err(error) => {
                tracing::warn!(error = %error.error, "HTCPool unreadable");
                return None;
            }
        };
        if !self.is_ours(object) {
            return None;
        }
        if self.fence.check().is_err() {
            return Some(AWAITED);
        }
        match self.reconcile_pool(pool, before).await {
            Ok(requeue_after) => requeue_after,
            Err(KeepError::Api(error)) if error.is_fence_closed() => Some(AWAITED),
            Err(error) => {
                tracing::warn!(%error, "HTCPool not reconciled, retrying");
                Some(FAILED)
            }
        }
    }

    async fn reconcile_pool(
        &self,
        object: &HTCPool,
        before: &[Arc<ObservedPool>],
    ) -> Result<Option<Duration>, KeepError> {
        let name = ObjectName::of(object);
        let guarded = object.finalizers().iter().any(|finalizer| finalizer == POOL_FINALIZER);
        let leaving = if object.meta().deletion_timestamp.is_some() {
            if !guarded {
                self.end(&name);
                return Ok(None);
            }
            match self.count_in(&name).await? {
                None => return Ok(Some(AWAITED)),
                Some(0) => return self.release_finalizer(object, &name).await,
                Some(using) => Some(using),
            }
        } else {
            if !guarded {
                let set = self.set_finalizer(object, &name, true).await?;
                return Ok((!set).then_some(AWAITED));
            }
            None
        };
        let refused = match self.ensure(object, &name).await? {
            Ensured::Running => None,
            Ensured::Draining => return Ok(Some(AWAITED)),
            Ensured::Refused(why) => Some(why),
        };
        let awaited = leaving.is_some() || refused.is_some();
        let mine = self.seen(&name).lock().clone();
        let older = before.iter().filter(|other| self.is_ours(other)).map(|other| ObjectName::of(&**other));
        let before = self.those_before(older, &mine);
        let open = self.pools.trouble_of(&name).is_none();
        let told = object.ready_condition();
        let facts = PoolFacts { deleting: leaving, refused, seen: &mine, older: &before, current: told, open };
        let Some(ready) = ready_condition(&facts) else {
            self.update_pool(&name, object, self.pools.trouble_of(&name)).await;
            return Ok(None);
        };
        self.update_pool(&name, object, ready.trouble.clone()).await;
        self.publish(object, &name, &ready).await?;
        let managed = object.spec.managed.is_some().then_some(LOOK_AGAIN);
        Ok(if awaited { Some(AWAITED) } else { managed })
    }

    /// Returns what was observed of the older pools that may have the same schedd.
    ///
    /// Leaves out pools with another schedd name that were not queried yet.
    fn those_before(
        &self,
        older: impl Iterator<Item = ObjectName>,
        mine: &ObservedSchedd,
    ) -> Vec<(Option<ObjectName>, ObservedSchedd)> {
        let default = self.default.lock().clone();
        let default = self.pools.has_default().then(|| (None, self.pools.default().schedd.name.to_string(), default));
        let older = older.filter_map(|name| {
            let seen = self.seen(&name).lock().clone();
            Some((Some(name.clone()), self.pools.reach(&name)?.schedd, seen))
        });
        let is_called = |name: &str| mine.schedd.as_ref().is_some_and(|schedd| schedd.name.eq_ignore_ascii_case(name));
        let may_be_it =
            |(_, called, seen): &(_, String, ObservedSchedd)| *seen != ObservedSchedd::default() || is_called(called);
        let all = default.into_iter().chain(older).filter(may_be_it);
        all.map(|(name, _, seen)| (name, seen)).collect()
    }

    /// Starts the pool if it does not run. Refuses it if its `HTCJob`s are recorded at another collector or schedd.
    async fn ensure(&self, object: &HTCPool, name: &ObjectName) -> Result<Ensured, KeepError> {
        let uid = object.uid().unwrap_or_default();
        let at_work = match self.pools.uid(name) {
            Some(same) => {
                if same != uid {
                    self.end(name);
                }
                same == uid
            }
            None => false,
        };
        if self.pools.is_ending(name) {
            return Ok(Ensured::Draining);
        }
        let reach = match self.find(object, name).await? {
            Ok(reach) => reach,
            // A running pool keeps running if its Kubernetes objects cannot be updated.
            Err((reason, message)) if at_work => {
                tracing::warn!(reason, message, "pool's objects not updated");
                return Ok(Ensured::Running);
            }
            Err(why) => return Ok(Ensured::Refused(why)),
        };
        if at_work {
            if self.pools.reach(name).as_ref() == Some(&reach) {
                return Ok(Ensured::Running);
            }
            tracing::info!(collector = %reach.collector, "pool's collector address changed");
            self.end(name);
            return Ok(Ensured::Draining);
        }
        let place = match &object.spec.external {
            Some(_) => format!("collector {}, schedd {}", reach.collector, reach.schedd),
            // The address of its collector changes whenever its Service is created again.
            None => format!("managed, schedd {}", reach.schedd),
        };
        let before = self.base.shared.ledger.settle_pool(name.clone(), place.clone()).await?;
        if before != place {
            let message = format!(
                "HTCJobs are in the pool that this HTCPool was before, with {before}: delete this HTCPool, and create it with these again"
            );
            return Ok(Ensured::Refused((ANOTHER_POOL, message)));
        }
        let seen = (self.seen(name), Arc::clone(&self.news));
        let mut named = self.base.make(name, &uid, &object.spec, reach, seen).await?;
        if was_ready(object) {
            named.trouble = None;
        }
        tracing::info!(schedd = %named.pool.schedd.name, "pool ready");
        let pool = Arc::clone(&named.pool);
        self.pools.put(name, named);
        if let Some(caretaker) = self.caretakers.lock().get(name) {
            caretaker.start(&pool);
        }
        self.wake(Some(name)).await;
        Ok(Ensured::Running)
    }

    /// Returns the endpoint of the pool. Creates or updates the Kubernetes objects of a managed pool first.
    async fn find(&self, object: &HTCPool, name: &ObjectName) -> Result<PoolLocation, KeepError> {
        let spec = match (&object.spec.external, &object.spec.managed) {
            (Some(external), _) => return Ok(Ok(PoolEndpoint::of_external(&name.namespace, external))),
            (None, Some(spec)) => spec,
            (None, None) => {
                return Ok(Err(("InvalidSpec", "it has neither spec.external nor spec.managed".to_owned())));
            }
        };
        let Workers { pod_labels, pod_annotations, .. } = &spec.workers;
        if let Err((field, problem)) = pod_metadata::check(pod_labels, pod_annotations, &self.base.pods.metadata) {
            return Ok(Err(("InvalidSpec", format!("spec.managed.workers.{field}: {problem}"))));
        }
        let caretaker = match self.caretaker(object, name) {
            Ok(caretaker) => caretaker,
            Err(error) => return Ok(Err(("InvalidName", error.to_string()))),
        };
        let applied = match caretaker.reconcile_objects(object, spec).await? {
            Ok(applied) => applied,
            Err(why) => return Ok(Err(why)),
        };
        if !caretaker.publish_key(object, &applied).await? {
            return Ok(Err(("NotMade", "the HTCPool has changed meanwhile".to_owned())));
        }
        Ok(Ok(PoolEndpoint::of_managed(caretaker.names(), applied.collector, spec.workers.isolation)))
    }

    fn caretaker(&self, object: &HTCPool, name: &ObjectName) -> Result<Arc<ManagedPoolReconciler>, BadName> {
        let uid = object.uid().unwrap_or_default();
        let mut caretakers = self.caretakers.lock();
        if let Some(caretaker) = caretakers.get(name).filter(|caretaker| caretaker.is_of(&uid)) {
            return Ok(Arc::clone(caretaker));
        }
        let (calm, soon, _) = self.base.intervals;
        let charge = ReconcilerContext {
            client: self.base.client.clone(),
            fence: self.fence.clone(),
            pools: Arc::clone(&self.pools),
            objects: self.base.objects.clone(),
            listed: self.base.listed.clone(),
            wake: self.base.shared.wake.clone(),
            operator: self.base.name.parse().unwrap_or_else(|_| name.clone()),
            intervals: (calm, soon),
            cpu_limits: self.base.pods.cpu_limits,
        };
        let caretaker = Arc::new(ManagedPoolReconciler::new(charge, object, name)?);
        caretakers.insert(name.clone(), Arc::clone(&caretaker));
        Ok(caretaker)
    }

    /// Releases the finalizer of an `HTCPool` without `HTCJob`s.
    async fn release_finalizer(&self, object: &HTCPool, name: &ObjectName) -> Result<Option<Duration>, KeepError> {
        self.end(name);
        // A reconcile of an HTCJob that still holds the pool may record this HTCJob in it.
        if self.pools.is_ending(name) {
            return Ok(Some(AWAITED / 10));
        }
        if self.count_in(name).await? == Some(0) && self.set_finalizer(object, name, false).await? {
            tracing::info!("last HTCJob gone, finalizer removed");
        }
        Ok(Some(AWAITED))
    }

    /// Updates who may use the pool, and why nothing is submitted to it. Wakes its `HTCJob`s if this has changed.
    async fn update_pool(&self, name: &ObjectName, object: &HTCPool, trouble: Option<String>) {
        if self.pools.set(name, &object.spec, trouble) {
            self.wake(Some(name)).await;
        }
    }

    /// Wakes the `HTCJob`s of this pool; with `None`, those of all `HTCPool`s.
    async fn wake(&self, name: Option<&ObjectName>) {
        for object in self.base.objects.state() {
            let its = self.name_for(&object);
            if its.is_some() && (name.is_none() || its.as_ref() == name) {
                let _ = self.base.shared.wake.send(ObjectRef::from_obj(&*object)).await;
            }
        }
    }

    fn name_for(&self, object: &ObservedHTCJob) -> Option<ObjectName> {
        let uid = Uid::from(object.uid().unwrap_or_default().as_str());
        self.pools.name_for(&uid, &object.namespace().unwrap_or_default(), object)
    }

    /// Counts the `HTCJob`s in the pool: the larger of the ledger's count and the number with a finalizer.
    ///
    /// A finalizer may outlive the row in the ledger. Returns `None` until the `HTCJob`s are listed.
    async fn count_in(&self, name: &ObjectName) -> Result<Option<usize>, LedgerError> {
        let recorded = self.base.shared.ledger.count_in(name.clone()).await? as usize;
        let listed = *self.base.listed.borrow();
        let is_guarded =
            |object: &ObservedHTCJob| object.finalizers().iter().any(|own| own == FINALIZER || own == OLD_FINALIZER);
        let members = self.pools.members(name);
        let members = members.iter().filter_map(|(_, object, _)| self.base.objects.get(object));
        let guarded = members.filter(|object| is_guarded(object)).count();
        Ok(listed.then_some(recorded.max(guarded)))
    }

    /// Attaches or removes the finalizer. Returns whether it was written.
    ///
    /// The patch has uid and resourceVersion: the API server refuses it if the object has changed since.
    async fn set_finalizer(&self, object: &HTCPool, name: &ObjectName, wanted: bool) -> Result<bool, ApiError> {
        let mut finalizers: Vec<&str> =
            object.finalizers().iter().map(String::as_str).filter(|other| *other != POOL_FINALIZER).collect();
        if wanted {
            finalizers.push(POOL_FINALIZER);
        }
        let mut metadata =
            json!({ "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers });
        if wanted {
            metadata["annotations"] = json!({ OPERATOR_ANNOTATION: self.base.name });
        }
        let api: Api<HTCPool> = Api::namespaced(self.base.client.clone(), &name.namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let (what, before, after) = if wanted {
            ("attach the finalizer of HTCPool", Point::BeforePoolFinalizerAttached, Point::AfterPoolFinalizerAttached)
        } else {
            ("release the finalizer of HTCPool", Point::BeforePoolFinalizerReleased, Point::AfterPoolFinalizerReleased)
        };
        let parameters = PatchParams::default();
        let patched = with_timeout(what, name, api.patch(&name.name, &parameters, &patch));
        unless_changed(around(before, patched, after).await)
    }

    /// Writes the condition `Ready` if it has changed. Creates an Event only if status or reason have changed.
    async fn publish(&self, object: &HTCPool, name: &ObjectName, ready: &ReadyCondition) -> Result<(), ApiError> {
        let (status, reason, message) = (ready.status, ready.reason.as_str(), &ready.message);
        let old = object.ready_condition();
        let told = old.is_some_and(|old| old.status == status && old.reason == reason);
        let message: String = message.chars().take(4000).collect();
        let in_these_words = old.is_some_and(|old| old.message == message) || !EXPLAINED_REASONS.contains(&reason);
        let schedd = schedd_of(object, name);
        let same_schedd = object.status.as_ref().is_some_and(|status| status.schedd == schedd);
        let seen = object.status.as_ref().and_then(|status| status.observed_generation);
        if told && in_these_words && same_schedd && seen == object.meta().generation {
            return Ok(());
        }
        let now = Time(jiff::Timestamp::now());
        let since = old.filter(|old| old.status == status).map_or(now, |old| old.last_transition_time.clone());
        let condition = Condition {
            type_: READY_CONDITION.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.clone(),
            last_transition_time: since,
            observed_generation: object.meta().generation,
        };
        tracing::info!(reason, %status, message, "condition Ready changed");
        let api: Api<HTCPool> = Api::namespaced(self.base.client.clone(), &name.namespace);
        let mut written = json!({ "observedGeneration": object.meta().generation, "conditions": [condition] });
        if let Some(schedd) = schedd {
            written["schedd"] = schedd.into();
        }
        let patch = Patch::Apply(json!({
            "apiVersion": HTCPool::api_version(&()),
            "kind": HTCPool::kind(&()),
            "metadata": { "name": name.name, "uid": object.uid() },
            "status": written,
        }));
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let request = api.patch_status(&name.name, &parameters, &patch);
        if unless_changed(with_timeout("write the status of HTCPool", name, request).await)? && !told {
            let expected = status == ConditionStatus::True || [ASKING, IN_USE].contains(&reason);
            let about = object.object_ref(&());
            kubernetes::create_event(&self.base.client, about, reason, &message, !expected).await;
        }
        Ok(())
    }
}

/// Waits until then; forever if there is no time.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn was_ready(object: &HTCPool) -> bool {
    object.ready_condition().is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// Returns the name of the pool's schedd; `None` if the `HTCPool` can have none.
fn schedd_of(object: &HTCPool, name: &ObjectName) -> Option<String> {
    let external = object.spec.external.as_ref().map(|external| external.schedd.clone());
    let managed = || Some(PoolNames::new(name, &object.uid().unwrap_or_default()).ok()?.schedd());
    external.or_else(managed)
}
