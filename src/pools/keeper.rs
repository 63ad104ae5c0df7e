//! Keeps a pool at work for each `HTCPool`, and says how it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource as _, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;

use super::due::Due;
use super::making::{SELDOM, probe};
use super::managed::caretaker::{Caretaker, Charge, LOOK_AGAIN};
use super::managed::names::{BadName, Names};
use super::managed::tries::NotMade;
use super::seen::{Facts, OWN_WORDS, Ready, Seen, ready};
use super::states::{ANOTHER_POOL, ASKING, IN_USE};
use super::{Base, Pools, Reach};
use crate::api::{
    Condition, ConditionStatus, FINALIZER, Guarded, HTCPool, OLD_FINALIZER, OPERATOR, ObjectName, Observed,
    POOL_FINALIZER, READY, is_for,
};
use crate::failpoint::{Point, around};
use crate::fence::Fence;
use crate::kubernetes::{self, ApiError, MANAGER, limited, unless_changed, watched};
use crate::ledger::LedgerError;
use crate::machine::Uid;

/// An `HTCPool` as it is watched: one that cannot be decoded does not end the watch.
type ObservedPool = Guarded<HTCPool>;

/// Until a pool is looked at again of which something is awaited that nobody tells.
const AWAITED: Duration = Duration::from_secs(2);

/// The same after a failure.
const FAILED: Duration = Duration::from_secs(15);

/// Keeps the pools of all `HTCPool`s.
pub struct PoolKeeper {
    base: Base,
    pools: Arc<Pools>,
    fence: Fence,
    seen: Mutex<HashMap<ObjectName, Arc<Mutex<Seen>>>>,
    /// Those that see to managed pools.
    caretakers: Mutex<HashMap<ObjectName, Arc<Caretaker>>>,
    default: Mutex<Seen>,
    news: Arc<Notify>,
}

/// Why an `HTCPool` was not seen to.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Whether a pool is at work.
enum Work {
    Goes,
    /// One that it was before comes to its end.
    NotYet,
    /// Why it is not.
    Refused(NotMade),
}

/// Where a pool is, or why that is not known.
type Found = Result<Reach, NotMade>;

impl PoolKeeper {
    /// Keeps those of all namespaces, or of the one that is watched.
    #[must_use]
    pub fn new(base: Base, pools: Arc<Pools>, fence: Fence) -> Self {
        let (seen, default, news) = (Mutex::default(), Mutex::default(), Arc::default());
        Self { base, pools, fence, seen, caretakers: Mutex::default(), default, news }
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        let (store, writer) = reflector::store();
        let watch = self.watch(writer);
        let (interval, soon, _) = self.base.intervals;
        let times = (soon, interval.saturating_mul(SELDOM));
        let first = Notify::new();
        // Without HTCPools nobody needs to know which schedd that is.
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
        let api: Api<ObservedPool> = watched(&self.base.client, self.base.namespace.as_deref());
        let mut told = String::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff().reflect(writer));
        while let Some(event) = events.next().await {
            match event {
                // A list is begun; it has not come.
                Ok(watcher::Event::Init) => {}
                Ok(event) => {
                    told.clear();
                    if matches!(event, watcher::Event::InitDone) && self.pools.are_listed(Ok(())) {
                        self.wake(None).await;
                    }
                    if !matches!(event, watcher::Event::InitApply(_)) {
                        self.news.notify_one();
                    }
                }
                Err(error) => {
                    let words = error.to_string();
                    if words != told {
                        tracing::warn!(%error, "HTCPools cannot be watched (is their CRD installed?); HTCJobs that name none are not affected");
                        told.clone_from(&words);
                    }
                    if self.pools.are_listed(Err(words)) {
                        self.wake(None).await;
                    }
                }
            }
        }
    }

    /// Looks at each of them whenever there is news; a look that lasts holds up no other one. `first`: told that there are some.
    async fn follow(&self, store: &Store<ObservedPool>, first: &Notify) {
        let (mut looks, mut due) = (FuturesUnordered::new(), Due::default());
        loop {
            let news = self.news.notified();
            let mut objects: Vec<Arc<ObservedPool>> = store.state();
            objects.sort_by_cached_key(|object| {
                (object.creation_timestamp().map(|time| time.0), ObjectName::of(&**object))
            });
            if !objects.is_empty() {
                first.notify_one();
            }
            self.end_those_not_in(&objects).await;
            let names: Vec<ObjectName> = objects.iter().map(|object| ObjectName::of(&**object)).collect();
            for place in due.take(&names, Instant::now()) {
                let (name, object, before) =
                    (names[place].clone(), Arc::clone(&objects[place]), objects[..place].to_vec());
                looks.push(async move { (name, self.look_at(&object, &before).await) });
            }
            tokio::select! {
                Some((name, again)) = looks.next() => due.looked_at(&name, again, Instant::now()),
                () = news => due.have_news(),
                () = until(due.next()) => {}
            }
        }
    }

    /// Not, if another operator has its finalizer: that one knows which `HTCJob`s are in it.
    fn is_ours(&self, object: &ObservedPool) -> bool {
        is_for(&self.base.name, object)
    }

    async fn end_those_not_in(&self, objects: &[Arc<ObservedPool>]) {
        let there: Vec<ObjectName> =
            objects.iter().filter(|object| self.is_ours(object)).map(|object| ObjectName::of(&**object)).collect();
        for name in self.pools.names().into_iter().filter(|name| !there.contains(name)) {
            self.end(&name);
            self.wake(Some(&name)).await;
            tracing::warn!(
                "HTCPool {name} is gone, and its finalizer with it: its HTCJobs wait until it is there again"
            );
        }
    }

    fn end(&self, name: &ObjectName) {
        // It has the pool, too.
        if let Some(caretaker) = self.caretakers.lock().unwrap_or_else(PoisonError::into_inner).remove(name) {
            caretaker.stop();
        }
        self.pools.end(name);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn seen(&self, name: &ObjectName) -> Arc<Mutex<Seen>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(seen.entry(name.clone()).or_default())
    }

    /// Sees to one of them; when it is to be looked at again, if nothing happens before. `before`: those that were made earlier.
    #[tracing::instrument(level = "error", skip_all, fields(htcpool = %ObjectName::of(object)))]
    async fn look_at(&self, object: &ObservedPool, before: &[Arc<ObservedPool>]) -> Option<Duration> {
        let pool = match &object.0 {
            Ok(pool) => pool,
            Err(error) => {
                tracing::warn!(error = %error.error, "an HTCPool cannot be read: HTCJobs do not find it");
                return None;
            }
        };
        if !self.is_ours(object) {
            return None;
        }
        if self.fence.check().is_err() {
            return Some(AWAITED);
        }
        match self.keep(pool, before).await {
            Ok(again) => again,
            Err(KeepError::Api(error)) if error.is_fence_closed() => Some(AWAITED),
            Err(error) => {
                tracing::warn!(%error, "an HTCPool was not seen to; it is tried again");
                Some(FAILED)
            }
        }
    }

    async fn keep(&self, object: &HTCPool, before: &[Arc<ObservedPool>]) -> Result<Option<Duration>, KeepError> {
        let name = ObjectName::of(object);
        let guarded = object.finalizers().iter().any(|finalizer| finalizer == POOL_FINALIZER);
        let leaving = if object.meta().deletion_timestamp.is_some() {
            if !guarded {
                self.end(&name);
                return Ok(None);
            }
            match self.count_in(&name).await? {
                None => return Ok(Some(AWAITED)),
                Some(0) => return self.let_go(object, &name).await,
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
            Work::Goes => None,
            Work::NotYet => return Ok(Some(AWAITED)),
            Work::Refused(why) => Some(why),
        };
        let awaited = leaving.is_some() || refused.is_some();
        let mine = self.seen(&name).lock().unwrap_or_else(PoisonError::into_inner).clone();
        let older = before.iter().filter(|other| self.is_ours(other)).map(|other| ObjectName::of(&**other));
        let before = self.those_before(older, &mine);
        let open = self.pools.trouble_of(&name).is_none();
        let told = object.ready();
        let facts = Facts { leaving, refused, seen: &mine, before: &before, told, open };
        let Some(ready) = ready(&facts) else {
            self.tell(&name, object, self.pools.trouble_of(&name)).await;
            return Ok(None);
        };
        self.tell(&name, object, ready.trouble.clone()).await;
        self.publish(object, &name, &ready).await?;
        let managed = object.spec.managed.is_some().then_some(LOOK_AGAIN);
        Ok(if awaited { Some(AWAITED) } else { managed })
    }

    /// What is known of the pools that may have the same schedd: not of those that are called otherwise and have not been asked.
    fn those_before(&self, older: impl Iterator<Item = ObjectName>, mine: &Seen) -> Vec<(Option<ObjectName>, Seen)> {
        let default = self.default.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let default = self.pools.has_default().then(|| (None, self.pools.default().schedd.name.to_string(), default));
        let older = older.filter_map(|name| {
            let seen = self.seen(&name).lock().unwrap_or_else(PoisonError::into_inner).clone();
            Some((Some(name.clone()), self.pools.reach(&name)?.schedd, seen))
        });
        let is_called = |name: &str| mine.schedd.as_ref().is_some_and(|schedd| schedd.name.eq_ignore_ascii_case(name));
        let may_be_it = |(_, called, seen): &(_, String, Seen)| *seen != Seen::default() || is_called(called);
        let all = default.into_iter().chain(older).filter(may_be_it);
        all.map(|(name, _, seen)| (name, seen)).collect()
    }

    /// Sees to it that the pool is at work; not if it is another one than that which the `HTCJob`s are in.
    async fn ensure(&self, object: &HTCPool, name: &ObjectName) -> Result<Work, KeepError> {
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
            return Ok(Work::NotYet);
        }
        let reach = match self.find(object, name).await? {
            Ok(reach) => reach,
            // What has been made works without what cannot be changed.
            Err((reason, message)) if at_work => {
                tracing::warn!(reason, "the objects of the pool are not as they should be: {message}");
                return Ok(Work::Goes);
            }
            Err(why) => return Ok(Work::Refused(why)),
        };
        if at_work {
            if self.pools.reach(name).as_ref() == Some(&reach) {
                return Ok(Work::Goes);
            }
            tracing::info!("the collector of the pool has another address: {}", reach.collector);
            self.end(name);
            return Ok(Work::NotYet);
        }
        let place = match &object.spec.external {
            Some(_) => format!("collector {}, schedd {}", reach.collector, reach.schedd),
            // Its collector has another address each time that its Service is made.
            None => format!("managed, schedd {}", reach.schedd),
        };
        let before = self.base.shared.ledger.settle_pool(name.clone(), place.clone()).await?;
        if before != place {
            let message = format!(
                "HTCJobs are in the pool that this HTCPool was before, with {before}: delete this HTCPool, and create it with these again"
            );
            return Ok(Work::Refused((ANOTHER_POOL, message)));
        }
        let seen = (self.seen(name), Arc::clone(&self.news));
        let mut named = self.base.make(name, &uid, &object.spec, reach, seen).await?;
        if was_ready(object) {
            named.trouble = None;
        }
        tracing::info!("the pool is at work: schedd {}", named.pool.schedd.name);
        let pool = Arc::clone(&named.pool);
        self.pools.put(name, named);
        if let Some(caretaker) = self.caretakers.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            caretaker.start(&pool);
        }
        self.wake(Some(name)).await;
        Ok(Work::Goes)
    }

    /// Where the pool is; a managed one is made so.
    async fn find(&self, object: &HTCPool, name: &ObjectName) -> Result<Found, KeepError> {
        let spec = match (&object.spec.external, &object.spec.managed) {
            (Some(external), _) => return Ok(Ok(Reach::of_external(&name.namespace, external))),
            (None, Some(spec)) => spec,
            (None, None) => {
                return Ok(Err(("InvalidSpec", "it has neither spec.external nor spec.managed".to_owned())));
            }
        };
        let caretaker = match self.caretaker(object, name) {
            Ok(caretaker) => caretaker,
            Err(error) => return Ok(Err(("InvalidName", error.to_string()))),
        };
        let applied = match caretaker.see_to(object, spec).await? {
            Ok(applied) => applied,
            Err(why) => return Ok(Err(why)),
        };
        if !caretaker.publish_key(object, &applied).await? {
            return Ok(Err(("NotMade", "the HTCPool has changed meanwhile".to_owned())));
        }
        Ok(Ok(Reach::of_managed(caretaker.names(), applied.collector, spec.workers.isolation)))
    }

    fn caretaker(&self, object: &HTCPool, name: &ObjectName) -> Result<Arc<Caretaker>, BadName> {
        let uid = object.uid().unwrap_or_default();
        let mut caretakers = self.caretakers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(caretaker) = caretakers.get(name).filter(|caretaker| caretaker.is_of(&uid)) {
            return Ok(Arc::clone(caretaker));
        }
        let (calm, soon, _) = self.base.intervals;
        let charge = Charge {
            client: self.base.client.clone(),
            fence: self.fence.clone(),
            pools: Arc::clone(&self.pools),
            objects: self.base.objects.clone(),
            listed: self.base.listed.clone(),
            wake: self.base.shared.wake.clone(),
            operator: self.base.name.parse().unwrap_or_else(|_| name.clone()),
            intervals: (calm, soon),
        };
        let caretaker = Arc::new(Caretaker::new(charge, object, name)?);
        caretakers.insert(name.clone(), Arc::clone(&caretaker));
        Ok(caretaker)
    }

    /// Nobody needs it any more.
    async fn let_go(&self, object: &HTCPool, name: &ObjectName) -> Result<Option<Duration>, KeepError> {
        self.end(name);
        // Who has found the pool before may still record an HTCJob.
        if self.pools.is_ending(name) {
            return Ok(Some(AWAITED / 10));
        }
        if self.count_in(name).await? == Some(0) && self.set_finalizer(object, name, false).await? {
            tracing::info!("no HTCJob uses the pool any more: it is let go");
        }
        Ok(Some(AWAITED))
    }

    /// Who may use the pool now, and why nothing is submitted to it; its `HTCJob`s look again if that is new.
    async fn tell(&self, name: &ObjectName, object: &HTCPool, trouble: Option<String>) {
        if self.pools.set(name, &object.spec, trouble) {
            self.wake(Some(name)).await;
        }
    }

    /// The objects that are in this pool, or in any that has a name.
    async fn wake(&self, name: Option<&ObjectName>) {
        for object in self.base.objects.state() {
            let its = self.name_for(&object);
            if its.is_some() && (name.is_none() || its.as_ref() == name) {
                let _ = self.base.shared.wake.send(ObjectRef::from_obj(&*object)).await;
            }
        }
    }

    fn name_for(&self, object: &Observed) -> Option<ObjectName> {
        let uid = Uid::from(object.uid().unwrap_or_default().as_str());
        self.pools.name_for(&uid, &object.namespace().unwrap_or_default(), object)
    }

    /// How many `HTCJob`s are in it: by the ledger, or by a finalizer of theirs, which outlives its row now and then. None while
    /// the `HTCJob`s are not known.
    async fn count_in(&self, name: &ObjectName) -> Result<Option<usize>, LedgerError> {
        let recorded = self.base.shared.ledger.count_in(name.clone()).await? as usize;
        let listed = *self.base.listed.borrow();
        let is_guarded =
            |object: &Observed| object.finalizers().iter().any(|own| own == FINALIZER || own == OLD_FINALIZER);
        let members = self.pools.members(name);
        let members = members.iter().filter_map(|(_, object, _)| self.base.objects.get(object));
        let guarded = members.filter(|object| is_guarded(object)).count();
        Ok(listed.then_some(recorded.max(guarded)))
    }

    /// Whether it was done. With uid and resourceVersion: the API server refuses it when anything has changed since.
    async fn set_finalizer(&self, object: &HTCPool, name: &ObjectName, wanted: bool) -> Result<bool, ApiError> {
        let mut finalizers: Vec<&str> =
            object.finalizers().iter().map(String::as_str).filter(|other| *other != POOL_FINALIZER).collect();
        if wanted {
            finalizers.push(POOL_FINALIZER);
        }
        let mut metadata =
            json!({ "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers });
        if wanted {
            metadata["annotations"] = json!({ OPERATOR: self.base.name });
        }
        let api: Api<HTCPool> = Api::namespaced(self.base.client.clone(), &name.namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let (what, before, after) = if wanted {
            ("attach the finalizer of HTCPool", Point::BeforePoolFinalizerAttached, Point::AfterPoolFinalizerAttached)
        } else {
            ("release the finalizer of HTCPool", Point::BeforePoolFinalizerReleased, Point::AfterPoolFinalizerReleased)
        };
        let parameters = PatchParams::default();
        let patched = limited(what, name, api.patch(&name.name, &parameters, &patch));
        unless_changed(around(before, patched, after).await)
    }

    /// Writes the condition, unless it says so already. Other words for the same reason are no Event.
    async fn publish(&self, object: &HTCPool, name: &ObjectName, ready: &Ready) -> Result<(), ApiError> {
        let (status, reason, message) = (ready.status, ready.reason.as_str(), &ready.message);
        let old = object.ready();
        let told = old.is_some_and(|old| old.status == status && old.reason == reason);
        let message: String = message.chars().take(4000).collect();
        let in_these_words = old.is_some_and(|old| old.message == message) || !OWN_WORDS.contains(&reason);
        let schedd = schedd_of(object, name);
        let same_schedd = object.status.as_ref().is_some_and(|status| status.schedd == schedd);
        let seen = object.status.as_ref().and_then(|status| status.observed_generation);
        if told && in_these_words && same_schedd && seen == object.meta().generation {
            return Ok(());
        }
        let now = Time(jiff::Timestamp::now());
        let since = old.filter(|old| old.status == status).map_or(now, |old| old.last_transition_time.clone());
        let condition = Condition {
            type_: READY.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.clone(),
            last_transition_time: since,
            observed_generation: object.meta().generation,
        };
        tracing::info!(reason, "Ready is {status}: {message}");
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
        let parameters = PatchParams::apply(MANAGER).force();
        let request = api.patch_status(&name.name, &parameters, &patch);
        if unless_changed(limited("write the status of HTCPool", name, request).await)? && !told {
            let expected = status == ConditionStatus::True || [ASKING, IN_USE].contains(&reason);
            let about = object.object_ref(&());
            kubernetes::tell_event(&self.base.client, about, reason, &message, !expected).await;
        }
        Ok(())
    }
}

/// Waits until then; without a time for ever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn was_ready(object: &HTCPool) -> bool {
    object.ready().is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// Name of its schedd, if it can have one.
fn schedd_of(object: &HTCPool, name: &ObjectName) -> Option<String> {
    let external = object.spec.external.as_ref().map(|external| external.schedd.clone());
    let managed = || Some(Names::new(name, &object.uid().unwrap_or_default()).ok()?.schedd());
    external.or_else(managed)
}
