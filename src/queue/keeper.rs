//! Watches `HTCQueue`s, gives room as soon as there is some, and says how each queue is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::admit::Terms;
use super::kueue::KueueKeeper;
use super::line::Named;
use super::plan::Outcome;
use super::shown::{NO_NAMESPACE, condition, status};
use super::state::{Queueing, Queues};
use crate::api::text::harmless;
use crate::api::{ACTIVE, Condition, Guarded, HTCQueue, HTCQueueStatus, Observed, Wake};
use crate::fence::Fence;
use crate::kubernetes::{self, ApiError, MANAGER, limited, unless_changed};
use crate::ledger::{Grant, Ledger, LedgerError};

/// What has changed within this time is decided about together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Until something is tried again that did not come about.
const AGAIN: Duration = Duration::from_secs(1);
/// The status of a queue is written once in this time at most.
const SELDOM: Duration = Duration::from_secs(5);
/// Most bytes that are repeated of why an HTCQueue cannot be read.
const WORDS: usize = 300;
/// Most grants in one transaction.
const AT_ONCE: usize = 500;

/// An `HTCQueue` as it is watched: one that cannot be decoded does not end the watch.
type ObservedQueue = Guarded<HTCQueue>;

/// Keeps the queues.
pub struct QueueKeeper {
    queues: Arc<Queues>,
    client: Client,
    ledger: Ledger,
    fence: Fence,
    wake: Wake,
    /// The one that is watched, if it is one.
    namespace: Option<String>,
}

/// What was last written of each queue, by its uid, and when.
type Written = HashMap<String, (Instant, HTCQueueStatus)>;

/// What became of all queues.
type Outcomes = Arc<[Outcome]>;

/// What the keeper remembers between two passes.
#[derive(Default)]
struct Memory {
    /// What is not durable yet.
    granting: Vec<Grant>,
    /// Who is to be woken.
    waking: VecDeque<ObjectRef<Observed>>,
    /// The same, to be woken once.
    woken: HashSet<ObjectRef<Observed>>,
}

impl Memory {
    fn wakes(&mut self, objects: Vec<ObjectRef<Observed>>) {
        for object in objects {
            if self.woken.insert(object.clone()) {
                self.waking.push_back(object);
            }
        }
    }
}

impl QueueKeeper {
    /// Gives room in the name of this operator while its fence is open.
    #[must_use]
    pub const fn new(
        queues: Arc<Queues>,
        client: Client,
        ledger: Ledger,
        fence: Fence,
        wake: Wake,
        namespace: Option<String>,
    ) -> Self {
        Self { queues, client, ledger, fence, wake, namespace }
    }

    /// Runs until it is dropped. Without queues there is nothing to do.
    pub async fn run(self) {
        let (latest, outcomes) = watch::channel(Outcomes::from([]));
        match self.queues.mode {
            Queueing::None => return std::future::pending().await,
            Queueing::Kueue => {
                let (queues, client) = (Arc::clone(&self.queues), self.client.clone());
                let kueue = KueueKeeper::new(queues, client, self.fence.clone(), self.namespace.clone());
                tokio::join!(kueue.run(), self.follow(&latest));
            }
            Queueing::Embedded => {}
        }
        tokio::join!(self.watch_queues(), self.watch_namespaces(), self.follow(&latest), self.publish(outcomes));
    }

    async fn watch_queues(&self) {
        let api: Api<ObservedQueue> = Api::all(self.client.clone());
        let mut told = String::new();
        let mut listing = Vec::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that is begun has not come.
                    if !matches!(event, watcher::Event::Init) {
                        told.clear();
                    }
                    self.seen(event, &mut listing);
                }
                Err(error) => self.cannot_list("HTCQueues", &error, &mut told, |queues, why| {
                    // That proves nothing about queues: their kind may be installed, and they created, in the next moment.
                    let no_kind = matches!(&error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404);
                    queues.with(|state| {
                        if no_kind {
                            state.world.listed = Some(Err(NO_KIND.to_owned()));
                        } else if !matches!(state.world.listed, Some(Ok(()))) {
                            state.world.listed = Some(Err(cannot("list HTCQueues", &why)));
                        }
                    });
                }),
            }
        }
    }

    fn seen(&self, event: watcher::Event<ObservedQueue>, listing: &mut Vec<(String, Result<Named, String>)>) {
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => {
                listing.push((object.name_any(), named(&object)));
                return;
            }
            watcher::Event::InitDone => self.queues.with(|state| state.world.list(listing.drain(..))),
            watcher::Event::Apply(object) => {
                let (name, queue) = (object.name_any(), named(&object));
                if !self.queues.with(|state| state.world.see(name, queue)) {
                    return;
                }
            }
            watcher::Event::Delete(object) => self.queues.with(|state| state.world.gone(&object.name_any())),
        }
        self.queues.news.notify_one();
    }

    async fn watch_namespaces(&self) {
        let api: Api<Guarded<PartialObjectMeta<Namespace>>> = Api::all(self.client.clone());
        let mut told = String::new();
        let mut listing = HashMap::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
        let labels = |object: &Guarded<PartialObjectMeta<Namespace>>| (object.name_any(), object.labels().clone());
        while let Some(event) = events.next().await {
            // A list that is begun has not come.
            if !matches!(event, Ok(watcher::Event::Init)) {
                let trouble = event.as_ref().err().map(|error| (Instant::now(), error.to_string()));
                self.queues.with(|state| state.world.namespaces_trouble = trouble);
            }
            match event {
                Ok(watcher::Event::Init) => listing.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    drop(listing.insert(object.name_any(), object.labels().clone()));
                }
                Ok(watcher::Event::InitDone) => {
                    told.clear();
                    self.queues.with(|state| {
                        state.world.namespaces = listing.drain().collect();
                        state.world.namespaces_listed = Some(Ok(()));
                    });
                    self.queues.news.notify_one();
                }
                Ok(watcher::Event::Apply(object)) => {
                    let (name, labels) = labels(&object);
                    let before = self.queues.with(|state| state.world.namespaces.insert(name, labels.clone()));
                    if before != Some(labels) {
                        self.queues.news.notify_one();
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    self.queues.with(|state| state.world.namespaces.remove(&object.name_any()));
                }
                Err(error) => self.cannot_list("namespaces", &error, &mut told, |queues, why| {
                    queues.with(|state| {
                        if !matches!(state.world.namespaces_listed, Some(Ok(()))) {
                            state.world.namespaces_listed = Some(Err(cannot("list namespaces", &why)));
                        }
                    });
                }),
            }
        }
    }

    /// What was known stays known.
    fn cannot_list(&self, what: &str, error: &watcher::Error, told: &mut String, note: impl FnOnce(&Queues, String)) {
        let words = error.to_string();
        if words == *told {
            return;
        }
        tracing::warn!(%error, "{what} cannot be watched: queues stay as they were seen last (is the CRD of HTCQueues installed?)");
        note(&self.queues, words.clone());
        *told = words;
        self.queues.news.notify_one();
    }

    /// Decides whenever there is news.
    async fn follow(&self, latest: &watch::Sender<Outcomes>) {
        let mut memory = Memory::default();
        loop {
            let news = self.queues.news.notified();
            let again = if self.fence.check().is_err() { Some(AGAIN) } else { self.pass(&mut memory, latest).await };
            match again {
                None => news.await,
                Some(pause) => drop(tokio::time::timeout(pause, news).await),
            }
            tokio::time::sleep(TOGETHER).await;
        }
    }

    /// When the next one is due, if nothing happens before.
    async fn pass(&self, memory: &mut Memory, latest: &watch::Sender<Outcomes>) -> Option<Duration> {
        let began = Instant::now();
        let plan = self.queues.plan();
        self.queues.metrics.queues_decided(began.elapsed());
        let mut again = plan.again;
        let sooner = |again: &mut Option<Duration>, pause: Duration| {
            *again = Some(again.map_or(pause, |again| again.min(pause)));
        };
        memory.granting.extend(plan.grants);
        if let Err(error) = self.make_durable(memory).await {
            tracing::warn!(%error, "no room is given in queues; it is tried again");
            sooner(&mut again, AGAIN);
        }
        memory.wakes(plan.wake);
        while let Some(object) = memory.waking.pop_front() {
            if self.wake.try_send(object.clone()).is_err() {
                memory.waking.push_front(object);
                sooner(&mut again, AGAIN);
                break;
            }
            memory.woken.remove(&object);
        }
        self.queues.metrics.queues(plan.measured);
        if plan.begun {
            latest.send_replace(plan.queues.into());
        }
        again
    }

    /// Says how the queues are. Nobody waits for that.
    async fn publish(&self, mut outcomes: watch::Receiver<Outcomes>) {
        let mut written = Written::new();
        loop {
            let latest = outcomes.borrow_and_update().clone();
            let there: HashSet<&str> = latest.iter().map(|outcome| outcome.queue.uid.as_str()).collect();
            written.retain(|uid, _| there.contains(uid.as_str()));
            let mut again: Option<Duration> = None;
            for outcome in latest.iter() {
                let pause = if self.fence.check().is_err() {
                    Some(SELDOM)
                } else {
                    self.show(outcome, &mut written).await.unwrap_or_else(|error| {
                        if !error.is_fence_closed() {
                            tracing::warn!(%error, "the status of an HTCQueue was not written; it is tried again");
                        }
                        Some(SELDOM)
                    })
                };
                again = again.into_iter().chain(pause).min();
            }
            match again {
                None => drop(outcomes.changed().await),
                Some(pause) => tokio::time::sleep(pause).await,
            }
        }
    }

    /// What was granted counts already; it is tried until it is durable.
    async fn make_durable(&self, memory: &mut Memory) -> Result<(), LedgerError> {
        while !memory.granting.is_empty() {
            let part: Vec<Grant> = memory.granting.iter().take(AT_ONCE).cloned().collect();
            let granted = self.ledger.grant(part.clone()).await?;
            memory.granting.drain(..part.len());
            let refused: Vec<Grant> = part.into_iter().filter(|grant| !granted.contains(grant)).collect();
            let woken = self.queues.granted(&granted, &refused);
            memory.wakes(woken);
        }
        Ok(())
    }

    /// Writes the status of a queue if it has changed; or says when it may.
    async fn show(&self, outcome: &Outcome, written: &mut Written) -> Result<Option<Duration>, ApiError> {
        let (reason, active, message) = condition(outcome);
        let mut new = status(outcome);
        let before = written.get(&outcome.queue.uid);
        // Before the first write it is what an operator before this one has told.
        let told = before.and_then(|(_, before)| before.conditions.first()).or(outcome.queue.told.as_ref());
        let now = Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default());
        let since = told.filter(|told| told.status == active).map_or(now, |told| told.last_transition_time.clone());
        let is_news = told.is_none_or(|told| told.reason != reason);
        new.conditions = vec![Condition {
            type_: ACTIVE.to_owned(),
            status: active,
            reason: reason.to_owned(),
            message: message.clone(),
            last_transition_time: since,
            observed_generation: outcome.queue.generation,
        }];
        if let Some((at, before)) = before {
            if *before == new {
                return Ok(None);
            }
            let left = SELDOM.saturating_sub(at.elapsed());
            if !left.is_zero() {
                return Ok(Some(left));
            }
        }
        let api: Api<HTCQueue> = Api::all(self.client.clone());
        let patch = Patch::Apply(json!({
            "apiVersion": HTCQueue::api_version(&()),
            "kind": HTCQueue::kind(&()),
            // With the uid, another one of the same name is not touched.
            "metadata": { "name": outcome.name, "uid": outcome.queue.uid },
            "status": new,
        }));
        let parameters = PatchParams::apply(MANAGER).force();
        let request = api.patch_status(&outcome.name, &parameters, &patch);
        let is_there = unless_changed(limited("write the status of HTCQueue", &outcome.name, request).await)?;
        written.insert(outcome.queue.uid.clone(), (Instant::now(), new));
        if is_there && is_news {
            let about = ObjectReference {
                api_version: Some(HTCQueue::api_version(&()).into()),
                kind: Some(HTCQueue::kind(&()).into()),
                name: Some(outcome.name.clone()),
                uid: Some(outcome.queue.uid.clone()),
                ..ObjectReference::default()
            };
            kubernetes::tell_event(&self.client, about, reason, &message, reason == NO_NAMESPACE).await;
        }
        Ok(None)
    }
}

/// What users are told where the API server does not know HTCQueues.
const NO_KIND: &str = "this operator gives room in HTCQueues (--queueing=embedded), and the API server does not serve HTCQueues: ask its administrator to apply deploy/crd, or to start the operator with --queueing=none";

fn cannot(what: &str, why: &str) -> String {
    format!(
        "the operator cannot {what}, so that it does not know whether a queue applies: {why}; ask its administrator"
    )
}

/// What is known of a queue; else why it cannot be read.
fn named(object: &ObservedQueue) -> Result<Named, String> {
    match &object.0 {
        Ok(queue) => {
            let terms = Terms::of(&queue.spec);
            let (uid, generation) = (object.uid().unwrap_or_default(), object.meta().generation);
            let conditions = queue.status.iter().flat_map(|status| &status.conditions);
            let told = conditions.into_iter().find(|condition| condition.type_ == ACTIVE).cloned();
            Ok(Named { uid, generation, spec: queue.spec.clone(), terms, told })
        }
        Err(error) => {
            let htcqueue = object.name_any();
            tracing::warn!(error = %error.error, htcqueue, "an HTCQueue cannot be read: HTCJobs that may be in it wait");
            Err(harmless(&error.error, WORDS))
        }
    }
}
