//! Watches Workloads, and writes what is to be written of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};

use super::next::{Step, Wanted, let_go, patch, workload};
use super::plan::{What, Write, missing};
use super::seen::Seen;
use super::{GROUP, MANAGED, Trouble, VERSION, name, uid_of};
use crate::api::{FINALIZER, Guarded, Observed, Reason};
use crate::failpoint::{Point, around};
use crate::fence::Fence;
use crate::kubernetes::{ApiError, MANAGER, limited};
use crate::machine::Uid;
use crate::machine::facts::QueueWait;
use crate::queue::state::Queues;
use crate::turns::{Shares, Turns};

/// What has changed within this time is written about together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Until something is tried again that did not come about, at first and at most.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(30);
/// Writes and looks at a time.
const SHARES: Shares = Shares { all: 16, each: 8, slow: 4, each_slow: 2 };

/// Keeps the Workloads.
pub(in crate::queue) struct KueueKeeper {
    queues: Arc<Queues>,
    client: Client,
    fence: Fence,
    namespace: Option<String>,
    turns: Turns,
}

/// A Workload as whoever may change it has left it.
type Workload = Guarded<DynamicObject>;

/// What came of a write.
enum Written {
    /// The Workload is this now.
    Now(Option<Box<Workload>>),
    /// It failed, or is for later.
    Failed(QueueWait),
    /// It was not sent, as this operator may not write now.
    NotSent,
}

impl Written {
    fn not(error: &ApiError) -> Self {
        if error.is_fence_closed() { Self::NotSent } else { Self::Failed(failed(error)) }
    }
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind))
}

impl KueueKeeper {
    pub(in crate::queue) fn new(queues: Arc<Queues>, client: Client, fence: Fence, namespace: Option<String>) -> Self {
        let what = "a write about a Workload took long: check the webhooks and policies for Workloads";
        Self { queues, client, fence, namespace, turns: Turns::new(what, SHARES) }
    }

    /// Runs until it is dropped.
    pub(in crate::queue) async fn run(&self) {
        tokio::join!(self.watch(), self.write_all());
    }

    fn workloads(&self, namespace: &str) -> Api<Workload> {
        Api::namespaced_with(self.client.clone(), namespace, &resource("Workload"))
    }

    async fn watch(&self) {
        let kind = resource("Workload");
        let api: Api<Workload> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        let which = watcher::Config::default().labels(&format!("{MANAGED}={MANAGER}"));
        let mut told = String::new();
        let mut listing: Vec<(Uid, Seen)> = Vec::new();
        let mut before = HashSet::new();
        let mut events = Box::pin(watcher(api, which).default_backoff());
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    listing.clear();
                    before = self.queues.with(|state| state.kueue.workloads.keys().cloned().collect());
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    listing.extend(of(&object));
                    false
                }
                Ok(watcher::Event::InitDone) => {
                    told.clear();
                    self.queues.with(|state| state.kueue.list(listing.drain(..), &before));
                    true
                }
                Ok(watcher::Event::Apply(object)) => match of(&object) {
                    Some((owner, seen)) => self.queues.with(|state| state.kueue.see(owner, seen)),
                    // Nothing is granted by what it was before it became unreadable.
                    None => self.gone(&object),
                },
                Ok(watcher::Event::Delete(object)) => self.gone(&object),
                Err(error) => {
                    let words = error.to_string();
                    if words == told {
                        continue;
                    }
                    tracing::warn!(%error, "Workloads of Kueue cannot be watched: they stay as they were seen last");
                    told.clone_from(&words);
                    self.queues.with(|state| {
                        let known = state.kueue.listed == Some(Ok(()));
                        if !known {
                            state.kueue.listed = Some(Err(words));
                        }
                        !known
                    })
                }
            };
            if changed {
                self.queues.news.notify_one();
                self.queues.writes.notify_one();
            }
        }
    }

    fn gone(&self, object: &Workload) -> bool {
        let Some(uid) = uid_of(&object.name_any()) else { return false };
        let owner = (object.namespace().unwrap_or_default().into(), uid);
        let version = object.resource_version().and_then(|version| version.parse().ok());
        self.queues.with(|state| state.kueue.gone(&owner, version.unwrap_or(u64::MAX)))
    }

    async fn write_all(&self) {
        let mut under_way = FuturesUnordered::new();
        loop {
            let news = self.queues.writes.notified();
            let again = if self.fence.check().is_ok() {
                let writes = self.queues.kueue_writes();
                under_way.extend(writes.now.into_iter().map(|write| self.write(write)));
                writes.again
            } else {
                Some(Instant::now() + AGAIN)
            };
            let pause = again.map_or(SELDOM, |again| again.saturating_duration_since(Instant::now()));
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep(pause) => continue,
                Some(()) = under_way.next() => {}
            }
            let together = tokio::time::sleep(TOGETHER);
            tokio::pin!(together);
            loop {
                tokio::select! {
                    () = &mut together => break,
                    Some(()) = under_way.next() => {}
                }
            }
        }
    }

    /// Writes, and finds out how the Workload is then.
    async fn write(&self, write: Write) {
        let Write { uid, what } = write;
        let namespace = match &what {
            What::Step(_, wanted, _) => wanted.namespace.clone(),
            What::Orphan(seen) => seen.namespace.clone(),
        };
        let api = self.workloads(&namespace);
        let turn = self.turns.next(&namespace).await;
        let written = match &what {
            What::Step(Step::Create, wanted, _) => self.create(&api, wanted).await,
            What::Step(step, wanted, Some(seen)) => self.change(&api, step, wanted, seen).await,
            What::Step(_, _, None) => self.look(&api, &uid).await,
            What::Orphan(seen) => self.let_go(&api, &uid, seen).await,
        };
        if let Some(turn) = turn {
            turn.ended();
        }
        let (now, trouble) = match written {
            Written::Now(now) => (now, None),
            // It comes again when the fence is open.
            Written::NotSent => (self.look_until_known(&namespace, &uid).await, None),
            Written::Failed(wait) => {
                tracing::warn!(htcjob = %uid, namespace, "{}", wait.message);
                let failures =
                    self.queues.with(|state| state.kueue.troubles.get(&uid).map_or(0, |known| known.failures)) + 1;
                // As the write may have been carried out all the same, nothing else is done before that is known.
                let now = self.look_until_known(&namespace, &uid).await;
                (now, Some(Trouble { wait, failures, until: Instant::now() + pause(failures) }))
            }
        };
        let seen = now.as_deref().and_then(of).map(|(_, seen)| seen);
        self.queues.written((&namespace, &uid), seen, trouble);
    }

    /// As it is now.
    async fn look(&self, api: &Api<Workload>, uid: &Uid) -> Written {
        match get(api, uid).await {
            Ok(now) => Written::Now(now),
            Err(error) => Written::not(&error),
        }
    }

    /// The same, tried until it is known. Each try is a turn: none is held in between.
    async fn look_until_known(&self, namespace: &str, uid: &Uid) -> Option<Box<Workload>> {
        let api = self.workloads(namespace);
        let mut failures = 0;
        loop {
            // That it can be looked at does not say that it can be written: the turn is only given back.
            let turn = self.turns.next(namespace).await;
            let now = get(&api, uid).await;
            drop(turn);
            match now {
                Ok(now) => return now,
                Err(error) => {
                    tracing::warn!(%error, "a Workload cannot be looked at; it is tried again");
                    tokio::time::sleep(pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn create(&self, api: &Api<Workload>, wanted: &Wanted) -> Written {
        if let Some(message) = missing(wanted.unknown, &wanted.resources) {
            return Written::Failed(QueueWait { reason: Reason::Misconfigured, message, place: None });
        }
        let priority = match &wanted.class {
            None => None,
            Some(class) => match self.priority(class).await {
                Ok(priority) => Some(priority),
                Err(wait) => return Written::Failed(wait),
            },
        };
        let object: DynamicObject = match serde_json::from_value(workload(wanted, priority)) {
            Ok(object) => object,
            Err(error) => return Written::Failed(wait("make a Workload", &error.to_string(), None)),
        };
        let name = name(&wanted.uid);
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let makes: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &wanted.namespace, &resource("Workload"));
        let made = limited("make Workload", &name, makes.create(&parameters, &object));
        match around(Point::BeforeWorkloadMade, made, Point::AfterWorkloadMade).await {
            Ok(now) => now_is(Guarded(Ok(now))),
            Err(error) if error.code() == Some(409) => self.known_before(api, &wanted.uid, &name).await,
            Err(error) => Written::not(&error),
        }
    }

    /// There is one of this name, which the watch does not show.
    async fn known_before(&self, api: &Api<Workload>, uid: &Uid, name: &str) -> Written {
        let now = match get(api, uid).await {
            Ok(now) => now,
            Err(error) => return Written::not(&error),
        };
        match now {
            None => Written::Now(None),
            Some(now) if of(&now).is_none() => Written::Failed(QueueWait {
                reason: Reason::Misconfigured,
                message: format!("Workload {name} is not of this HTCJob: delete it"),
                place: None,
            }),
            Some(now) if now.labels().get(MANAGED).is_some_and(|manager| manager == MANAGER) => Written::Now(Some(now)),
            Some(_) => {
                let labels = serde_json::json!({ "metadata": { "labels": { MANAGED: MANAGER } } });
                let patch = Patch::Merge(&labels);
                let parameters = PatchParams::default();
                let labelled = limited("label Workload", &name, api.patch(name, &parameters, &patch));
                match around(Point::BeforeWorkloadChanged, labelled, Point::AfterWorkloadChanged).await {
                    Ok(now) => now_is(now),
                    Err(error) => Written::not(&error),
                }
            }
        }
    }

    async fn priority(&self, class: &str) -> Result<i64, QueueWait> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("WorkloadPriorityClass"));
        let misconfigured = |message: String| QueueWait { reason: Reason::Misconfigured, message, place: None };
        match limited("get WorkloadPriorityClass", &class, api.get_opt(class)).await {
            Ok(Some(found)) => found.data["value"]
                .as_i64()
                .ok_or_else(|| misconfigured(format!("WorkloadPriorityClass {class} has no value"))),
            Ok(None) => Err(misconfigured(format!(
                "there is no WorkloadPriorityClass {class}: change the label {} of the HTCJob, or remove it",
                crate::api::PRIORITY_CLASS
            ))),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn change(&self, api: &Api<Workload>, step: &Step, wanted: &Wanted, seen: &Seen) -> Written {
        if *step == Step::Delete {
            return self.delete(api, &wanted.uid, seen).await;
        }
        let now = Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default());
        let Some((of_status, body)) = patch(step, wanted, seen, &now) else {
            return self.look(api, &wanted.uid).await;
        };
        self.patch(api, seen, of_status, &body).await
    }

    async fn delete(&self, api: &Api<Workload>, uid: &Uid, seen: &Seen) -> Written {
        let preconditions =
            Preconditions { uid: Some(seen.uid.clone()), resource_version: Some(seen.version.to_string()) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = limited("delete Workload", &seen.name, api.delete(&seen.name, &parameters));
        match around(Point::BeforeWorkloadChanged, deleted, Point::AfterWorkloadChanged).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Written::not(&error),
            Ok(_) | Err(_) => self.look(api, uid).await,
        }
    }

    async fn patch(&self, api: &Api<Workload>, seen: &Seen, of_status: bool, body: &serde_json::Value) -> Written {
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(body);
        let patched = async {
            if of_status {
                limited("write the status of Workload", &seen.name, api.patch_status(&seen.name, &parameters, &patch))
                    .await
            } else {
                limited("change Workload", &seen.name, api.patch(&seen.name, &parameters, &patch)).await
            }
        };
        match around(Point::BeforeWorkloadChanged, patched, Point::AfterWorkloadChanged).await {
            // Without its last finalizer it may be gone.
            Ok(now) if now.meta().deletion_timestamp.is_some() && now.finalizers().is_empty() => Written::Now(None),
            Ok(now) => now_is(now),
            Err(error) if error.code() == Some(404) => Written::Now(None),
            Err(error) if error.code() == Some(409) => {
                tracing::debug!(%error, "the Workload has changed meanwhile");
                match limited("get Workload", &seen.name, api.get_opt(&seen.name)).await {
                    Ok(now) => Written::Now(now.map(Box::new)),
                    Err(error) => Written::not(&error),
                }
            }
            Err(error) => Written::not(&error),
        }
    }

    /// Takes the finalizer off if the `HTCJob` is gone, or was let go. One that nobody owns is deleted before.
    async fn let_go(&self, api: &Api<Workload>, own: &Uid, seen: &Seen) -> Written {
        let Some((owner, uid)) = &seen.owner else { return Written::Now(None) };
        let htcjobs: Api<Observed> = Api::namespaced(self.client.clone(), &seen.namespace);
        let which = ListParams::default().fields(&format!("metadata.name={owner}"));
        let listed = match limited("list HTCJobs named", owner, htcjobs.list(&which)).await {
            Ok(listed) => listed,
            Err(error) => return Written::not(&error),
        };
        if listed.items.iter().any(|object| is_there(object, uid)) {
            // Another operator's that has just come; or this one's, which is about to be looked at.
            self.queues.with(|state| state.kueue.others.insert(own.clone()));
            return self.look(api, own).await;
        }
        if seen.orphaned && !seen.deleting {
            return self.delete(api, own, seen).await;
        }
        self.patch(api, seen, false, &let_go(seen)).await
    }
}

/// The Workload of an `HTCJob`, if there is one.
async fn get(api: &Api<Workload>, uid: &Uid) -> Result<Option<Box<Workload>>, ApiError> {
    let name = name(uid);
    Ok(limited("get Workload", &name, api.get_opt(&name)).await?.map(Box::new))
}

/// This is the `HTCJob` with this uid, and it was not let go.
pub(super) fn is_there(object: &Observed, uid: &Uid) -> bool {
    let held = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    object.uid().as_deref() == Some(uid.as_str()) && (object.meta().deletion_timestamp.is_none() || held)
}

/// How long nothing is tried after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    (AGAIN * (1 << failures.min(5))).min(SELDOM)
}

/// The uid of the `HTCJob`, and its Workload; none if it cannot be read.
pub(super) fn of(object: &Workload) -> Option<(Uid, Seen)> {
    let object = object.0.as_ref().ok()?;
    Some((uid_of(&object.name_any())?, Seen::of(object)?))
}

fn now_is(now: Workload) -> Written {
    Written::Now(Some(Box::new(now)))
}

fn failed(error: &ApiError) -> QueueWait {
    wait("", &error.to_string(), error.code())
}

pub(super) fn wait(what: &str, why: &str, code: Option<u16>) -> QueueWait {
    let (reason, next) = match code {
        Some(403) => (Reason::Misconfigured, "; the operator needs the rights of deploy/components/kueue"),
        Some(404) => (Reason::Misconfigured, "; is Kueue installed?"),
        Some(400 | 422) => (Reason::Misconfigured, ""),
        _ => (Reason::PendingEvaluation, "; it is tried again: does Kueue run?"),
    };
    let what = if what.is_empty() { String::new() } else { format!("cannot {what}: ") };
    let message = crate::api::text::harmless(&format!("{what}{why}{next}"), 1000);
    QueueWait { reason, message, place: None }
}
