//! Watches `HTCQueue`s, grants quota as soon as some is free, and publishes each queue's status.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use htc_api::{ACTIVE_CONDITION, Condition, Guarded, HTCQueue, HTCQueueStatus, ObservedHTCJob};
use htc_ledger::{Grant, Ledger, LedgerError};
use htc_machine::text::sanitize;
use htc_support::fence::Fence;
use htc_support::kubernetes;
use htc_support::kubernetes::Wake;
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, unless_changed, with_timeout};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::kueue::WorkloadController;
use super::plan::QueueOutcome;
use super::state::{Queueing, Queues};
use crate::htcqueue::assignment::{DecodedQueue, ListingError, QueueInfo};
use crate::htcqueue::policy::terms_of;
use crate::htcqueue::status::{NO_NAMESPACE, condition, status};

/// Pause in which further changes are collected, to be decided about together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Pause before a failed attempt is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Shortest interval between two writes of a queue's status.
const SELDOM: Duration = Duration::from_secs(5);
/// Maximum length in bytes of a decoding error that is repeated to users.
const WORDS: usize = 300;
/// Maximum number of grants in one transaction.
const AT_ONCE: usize = 500;

/// An `HTCQueue` as it is watched: an object that cannot be decoded does not end the watch.
type ObservedQueue = Guarded<HTCQueue>;

/// Controller of all queues.
pub struct QueueController {
    queues: Arc<Queues>,
    client: Client,
    ledger: Ledger,
    fence: Fence,
    wake: Wake,
    /// The only namespace that the operator watches; `None` for all.
    namespace: Option<String>,
}

/// Status last written of each queue, with the time, by the queue's uid.
type WrittenStatuses = HashMap<String, (Instant, HTCQueueStatus)>;

/// Outcome of the last pass for each queue.
type Outcomes = Arc<[QueueOutcome]>;

/// State that is kept between two passes.
#[derive(Default)]
struct PassMemory {
    /// Grants that are not durable yet.
    granting: Vec<Grant>,
    /// `HTCJob`s to be reconciled, in order.
    waking: VecDeque<ObjectRef<ObservedHTCJob>>,
    /// The same as a set, so that each is reconciled once.
    woken: HashSet<ObjectRef<ObservedHTCJob>>,
}

impl PassMemory {
    fn wakes(&mut self, objects: Vec<ObjectRef<ObservedHTCJob>>) {
        for object in objects {
            if self.woken.insert(object.clone()) {
                self.waking.push_back(object);
            }
        }
    }
}

impl QueueController {
    /// Returns a controller that grants quota on behalf of this operator while its fence is open.
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

    /// Runs until it is dropped. Does nothing if there are no queues.
    pub async fn run(self) {
        let (latest, outcomes) = watch::channel(Outcomes::from([]));
        match self.queues.mode {
            Queueing::None => return std::future::pending().await,
            Queueing::Kueue => {
                let (queues, client) = (Arc::clone(&self.queues), self.client.clone());
                let kueue = WorkloadController::new(queues, client, self.fence.clone(), self.namespace.clone());
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
                    // The start of a list proves nothing yet: it may still fail.
                    if !matches!(event, watcher::Event::Init) {
                        told.clear();
                    }
                    self.seen(event, &mut listing);
                }
                Err(error) => self.cannot_list("HTCQueues", &error, &mut told, |queues, why| {
                    // A 404 proves nothing about queues: their kind may be installed, and queues created, in the next
                    // moment.
                    let no_kind = matches!(&error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404);
                    queues.with(|state| {
                        if no_kind {
                            state.snapshot.listed = Some(Err(ListingError::NoHTCQueues));
                        } else if !matches!(state.snapshot.listed, Some(Ok(()))) {
                            state.snapshot.listed = Some(Err(ListingError::Unlisted { kind: "HTCQueues", why }));
                        }
                    });
                }),
            }
        }
    }

    fn seen(&self, event: watcher::Event<ObservedQueue>, listing: &mut Vec<(String, DecodedQueue)>) {
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => {
                listing.push((object.name_any(), decoded(&object)));
                return;
            }
            watcher::Event::InitDone => self.queues.with(|state| state.snapshot.replace_queues(listing.drain(..))),
            watcher::Event::Apply(object) => {
                let (name, queue) = (object.name_any(), decoded(&object));
                if !self.queues.with(|state| state.snapshot.update_queue(name, queue)) {
                    return;
                }
            }
            watcher::Event::Delete(object) => self.queues.with(|state| state.snapshot.remove_queue(&object.name_any())),
        }
        self.queues.usage_changed.notify_one();
    }

    async fn watch_namespaces(&self) {
        let api: Api<Guarded<PartialObjectMeta<Namespace>>> = Api::all(self.client.clone());
        let mut told = String::new();
        let mut listing = HashMap::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
        let labels = |object: &Guarded<PartialObjectMeta<Namespace>>| (object.name_any(), object.labels().clone());
        while let Some(event) = events.next().await {
            // The start of a list proves nothing yet: it may still fail.
            if !matches!(event, Ok(watcher::Event::Init)) {
                let trouble = event.as_ref().err().map(|error| (Instant::now(), error.to_string()));
                self.queues.with(|state| state.snapshot.namespaces_trouble = trouble);
            }
            match event {
                Ok(watcher::Event::Init) => listing.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    drop(listing.insert(object.name_any(), object.labels().clone()));
                }
                Ok(watcher::Event::InitDone) => {
                    told.clear();
                    self.queues.with(|state| {
                        state.snapshot.namespaces = listing.drain().collect();
                        state.snapshot.namespaces_listed = Some(Ok(()));
                    });
                    self.queues.usage_changed.notify_one();
                }
                Ok(watcher::Event::Apply(object)) => {
                    let (name, labels) = labels(&object);
                    let before = self.queues.with(|state| state.snapshot.namespaces.insert(name, labels.clone()));
                    if before != Some(labels) {
                        self.queues.usage_changed.notify_one();
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    self.queues.with(|state| state.snapshot.namespaces.remove(&object.name_any()));
                }
                Err(error) => self.cannot_list("namespaces", &error, &mut told, |queues, why| {
                    queues.with(|state| {
                        if !matches!(state.snapshot.namespaces_listed, Some(Ok(()))) {
                            state.snapshot.namespaces_listed =
                                Some(Err(ListingError::Unlisted { kind: "namespaces", why }));
                        }
                    });
                }),
            }
        }
    }

    /// Logs that a watch failed, once for each new error. The last known state is kept.
    fn cannot_list(&self, what: &str, error: &watcher::Error, told: &mut String, note: impl FnOnce(&Queues, String)) {
        let words = error.to_string();
        if words == *told {
            return;
        }
        tracing::warn!(%error, what, "watch failed, queues keep their last state; check that the CRD is installed");
        note(&self.queues, words.clone());
        *told = words;
        self.queues.usage_changed.notify_one();
    }

    /// Plans whenever something changed.
    async fn follow(&self, latest: &watch::Sender<Outcomes>) {
        let mut memory = PassMemory::default();
        loop {
            let news = self.queues.usage_changed.notified();
            let requeue_after =
                if self.fence.check().is_err() { Some(AGAIN) } else { self.pass(&mut memory, latest).await };
            match requeue_after {
                None => news.await,
                Some(pause) => drop(tokio::time::timeout(pause, news).await),
            }
            tokio::time::sleep(TOGETHER).await;
        }
    }

    /// Runs one pass. Returns the time until the next one, unless a change comes before.
    async fn pass(&self, memory: &mut PassMemory, latest: &watch::Sender<Outcomes>) -> Option<Duration> {
        let began = Instant::now();
        let plan = self.queues.plan();
        self.queues.metrics.queues_decided(began.elapsed());
        let mut requeue_after = plan.requeue_after;
        let sooner = |requeue_after: &mut Option<Duration>, pause: Duration| {
            *requeue_after = Some(requeue_after.map_or(pause, |requeue_after| requeue_after.min(pause)));
        };
        memory.granting.extend(plan.grants);
        if let Err(error) = self.make_durable(memory).await {
            tracing::warn!(%error, "quota not granted, retrying");
            sooner(&mut requeue_after, AGAIN);
        }
        memory.wakes(plan.wake);
        while let Some(object) = memory.waking.pop_front() {
            if self.wake.try_send(object.clone()).is_err() {
                memory.waking.push_front(object);
                sooner(&mut requeue_after, AGAIN);
                break;
            }
            memory.woken.remove(&object);
        }
        self.queues.metrics.queues(plan.measured);
        if plan.begun {
            latest.send_replace(plan.queues.into());
        }
        requeue_after
    }

    /// Publishes the status of the queues. No decision waits for it.
    async fn publish(&self, mut outcomes: watch::Receiver<Outcomes>) {
        let mut written = WrittenStatuses::new();
        loop {
            let latest = outcomes.borrow_and_update().clone();
            let there: HashSet<&str> = latest.iter().map(|outcome| outcome.queue.uid.as_str()).collect();
            written.retain(|uid, _| there.contains(uid.as_str()));
            let mut requeue_after: Option<Duration> = None;
            for outcome in latest.iter() {
                let pause = if self.fence.check().is_err() {
                    Some(SELDOM)
                } else {
                    self.show(outcome, &mut written).await.unwrap_or_else(|error| {
                        if !error.is_fence_closed() {
                            tracing::warn!(%error, "status of an HTCQueue not written, retrying");
                        }
                        Some(SELDOM)
                    })
                };
                requeue_after = requeue_after.into_iter().chain(pause).min();
            }
            match requeue_after {
                None => drop(outcomes.changed().await),
                Some(pause) => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Writes grants to the ledger. They count already, so the write is repeated until it succeeds.
    async fn make_durable(&self, memory: &mut PassMemory) -> Result<(), LedgerError> {
        while !memory.granting.is_empty() {
            let part: Vec<Grant> = memory.granting.iter().take(AT_ONCE).cloned().collect();
            let granted = self.ledger.grant(part.clone()).await?;
            memory.granting.drain(..part.len());
            let refused: Vec<Grant> = part.into_iter().filter(|grant| !granted.contains(grant)).collect();
            let woken = self.queues.confirm_grants(&granted, &refused);
            memory.wakes(woken);
        }
        Ok(())
    }

    /// Writes the status of a queue if it has changed. Returns the time to wait if it was written too recently.
    async fn show(&self, outcome: &QueueOutcome, written: &mut WrittenStatuses) -> Result<Option<Duration>, ApiError> {
        let (reason, active, message) = condition(outcome);
        let mut new = status(outcome);
        let before = written.get(&outcome.queue.uid);
        // Before the first write, the condition is what the previous operator wrote.
        let told = before.and_then(|(_, before)| before.conditions.first()).or(outcome.queue.active_condition.as_ref());
        let now = Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default());
        let since = told.filter(|told| told.status == active).map_or(now, |told| told.last_transition_time.clone());
        let is_news = told.is_none_or(|told| told.reason != reason);
        new.conditions = vec![Condition {
            type_: ACTIVE_CONDITION.to_owned(),
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
            // The uid keeps another queue of the same name from being written.
            "metadata": { "name": outcome.name, "uid": outcome.queue.uid },
            "status": new,
        }));
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let request = api.patch_status(&outcome.name, &parameters, &patch);
        let is_there = unless_changed(with_timeout("write the status of HTCQueue", &outcome.name, request).await)?;
        written.insert(outcome.queue.uid.clone(), (Instant::now(), new));
        if is_there && is_news {
            let about = ObjectReference {
                api_version: Some(HTCQueue::api_version(&()).into()),
                kind: Some(HTCQueue::kind(&()).into()),
                name: Some(outcome.name.clone()),
                uid: Some(outcome.queue.uid.clone()),
                ..ObjectReference::default()
            };
            kubernetes::create_event(&self.client, about, reason, &message, reason == NO_NAMESPACE).await;
        }
        Ok(None)
    }
}

fn decoded(object: &ObservedQueue) -> DecodedQueue {
    match &object.0 {
        Ok(queue) => {
            let terms = terms_of(&queue.spec);
            let (uid, generation) = (object.uid().unwrap_or_default(), object.meta().generation);
            let conditions = queue.status.iter().flat_map(|status| &status.conditions);
            let told = conditions.into_iter().find(|condition| condition.type_ == ACTIVE_CONDITION).cloned();
            let info = QueueInfo { uid, generation, spec: queue.spec.clone(), policy: terms, active_condition: told };
            DecodedQueue::Readable(Box::new(info))
        }
        Err(error) => {
            let htcqueue = object.name_any();
            tracing::warn!(error = %error.error, htcqueue, "HTCQueue unreadable, its HTCJobs wait");
            DecodedQueue::Unreadable(sanitize(&error.error, WORDS))
        }
    }
}
