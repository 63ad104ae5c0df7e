//! Watches Workloads, and writes the next step of each.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use htc_api::{FINALIZER, Guarded, ObservedHTCJob, Reason};
use htc_machine::Uid;
use htc_machine::facts::QueueWait;
use htc_support::failpoint::{Point, around};
use htc_support::fair_limiter::{FairLimiter, Shares};
use htc_support::fence::Fence;
use htc_support::kubernetes::{ApiError, FIELD_MANAGER, with_timeout};
use htc_support::retry::Backoff;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Resource as _, ResourceExt as _};

use super::plan::{PendingWrite, WriteTarget, missing};
use super::{GROUP, MANAGED, PAUSES, VERSION, name, uid_of};
use crate::htcqueue::assignment::ListingError;
use crate::htcqueue::kueue::step::{DesiredWorkload, WorkloadStep, let_go, patch, workload};
use crate::htcqueue::kueue::workload::KueueWorkload;
use crate::htcqueue::state::Queues;

/// Pause in which further changes are collected, to be written about together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Maximum number of reads and writes at a time.
const SHARES: Shares = Shares { all: 16, each: 8, slow: 4, each_slow: 2 };

/// Controller of the Workloads.
pub(in crate::htcqueue) struct WorkloadController {
    queues: Arc<Queues>,
    client: Client,
    fence: Fence,
    namespace: Option<String>,
    turns: FairLimiter,
}

/// A Workload as it is watched: others may have changed it to something that cannot be decoded.
type WatchedWorkload = Guarded<DynamicObject>;

/// Outcome of a write.
enum WriteOutcome {
    /// The Workload as it is now; `None` if it is gone.
    Now(Option<Box<WatchedWorkload>>),
    /// The write failed, or has to wait.
    Failed(QueueWait),
    /// The write was not sent: the fence of this operator is closed.
    NotSent,
}

impl WriteOutcome {
    fn not(error: &ApiError) -> Self {
        if error.is_fence_closed() { Self::NotSent } else { Self::Failed(failed(error)) }
    }
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind))
}

impl WorkloadController {
    pub(in crate::htcqueue) fn new(
        queues: Arc<Queues>,
        client: Client,
        fence: Fence,
        namespace: Option<String>,
    ) -> Self {
        let what = "a write about a Workload took long: check the webhooks and policies for Workloads";
        Self { queues, client, fence, namespace, turns: FairLimiter::new(what, SHARES) }
    }

    /// Runs until it is dropped.
    pub(in crate::htcqueue) async fn run(&self) {
        tokio::join!(self.watch(), self.write_all());
    }

    fn workloads(&self, namespace: &str) -> Api<WatchedWorkload> {
        Api::namespaced_with(self.client.clone(), namespace, &resource("Workload"))
    }

    async fn watch(&self) {
        let kind = resource("Workload");
        let api: Api<WatchedWorkload> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        let which = watcher::Config::default().labels(&format!("{MANAGED}={FIELD_MANAGER}"));
        let mut told = String::new();
        let mut listing: Vec<(Uid, KueueWorkload)> = Vec::new();
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
                    listing.extend(parse_workload(&object));
                    false
                }
                Ok(watcher::Event::InitDone) => {
                    told.clear();
                    self.queues.with(|state| state.kueue.replace_workloads(listing.drain(..), &before));
                    true
                }
                Ok(watcher::Event::Apply(object)) => match parse_workload(&object) {
                    Some((owner, seen)) => self.queues.with(|state| state.kueue.update_workload(owner, seen)),
                    // A Workload that became unreadable grants nothing: its last readable version no longer counts.
                    None => self.gone(&object),
                },
                Ok(watcher::Event::Delete(object)) => self.gone(&object),
                Err(error) => {
                    let words = error.to_string();
                    if words == told {
                        continue;
                    }
                    tracing::warn!(%error, "watch of Workloads failed, their last state is used");
                    told.clone_from(&words);
                    self.queues.with(|state| {
                        let known = state.kueue.listed == Some(Ok(()));
                        if !known {
                            state.kueue.listed = Some(Err(ListingError::Workloads(words)));
                        }
                        !known
                    })
                }
            };
            if changed {
                self.queues.usage_changed.notify_one();
                self.queues.workloads_changed.notify_one();
            }
        }
    }

    fn gone(&self, object: &WatchedWorkload) -> bool {
        let Some(uid) = uid_of(&object.name_any()) else { return false };
        let owner = (object.namespace().unwrap_or_default().into(), uid);
        let version = object.resource_version().and_then(|version| version.parse().ok());
        self.queues.with(|state| state.kueue.remove_workload(&owner, version.unwrap_or(u64::MAX)))
    }

    async fn write_all(&self) {
        let mut under_way = FuturesUnordered::new();
        loop {
            let news = self.queues.workloads_changed.notified();
            let again = if self.fence.check().is_ok() {
                let writes = self.queues.kueue_writes();
                under_way.extend(writes.now.into_iter().map(|write| self.write(write)));
                writes.retry_at
            } else {
                Some(Instant::now() + PAUSES.0)
            };
            let pause = again.map_or(PAUSES.1, |again| again.saturating_duration_since(Instant::now()));
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

    /// Writes to a Workload, and finds out its state after that.
    async fn write(&self, write: PendingWrite) {
        let PendingWrite { uid, what } = write;
        let namespace = match &what {
            WriteTarget::Step(_, wanted, _) => wanted.namespace.clone(),
            WriteTarget::Orphan(seen) => seen.namespace.clone(),
        };
        let api = self.workloads(&namespace);
        let turn = self.turns.acquire(&namespace).await;
        let written = match &what {
            WriteTarget::Step(WorkloadStep::Create, wanted, _) => self.create(&api, wanted).await,
            WriteTarget::Step(step, wanted, Some(seen)) => self.change(&api, step, wanted, seen).await,
            WriteTarget::Step(_, _, None) => self.look(&api, &uid).await,
            WriteTarget::Orphan(seen) => self.let_go(&api, &uid, seen).await,
        };
        if let Some(turn) = turn {
            turn.finish();
        }
        let (now, trouble) = match written {
            WriteOutcome::Now(now) => (now, None),
            // The write is planned again when the fence is open.
            WriteOutcome::NotSent => (self.look_until_known(&namespace, &uid).await, None),
            WriteOutcome::Failed(wait) => {
                tracing::warn!(htcjob = %uid, namespace, why = %wait.message, "Workload not written");
                // The write may have been carried out all the same: nothing else is written before that is known.
                (self.look_until_known(&namespace, &uid).await, Some(wait))
            }
        };
        let seen = now.as_deref().and_then(parse_workload).map(|(_, seen)| seen);
        self.queues.finish_write((&namespace, &uid), seen, trouble);
    }

    /// Reads the Workload.
    async fn look(&self, api: &Api<WatchedWorkload>, uid: &Uid) -> WriteOutcome {
        match get(api, uid).await {
            Ok(now) => WriteOutcome::Now(now),
            Err(error) => WriteOutcome::not(&error),
        }
    }

    /// Reads the Workload until that succeeds. Each attempt takes its own permit; none is held in between.
    async fn look_until_known(&self, namespace: &str, uid: &Uid) -> Option<Box<WatchedWorkload>> {
        let api = self.workloads(namespace);
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            // A successful read does not prove that writes work. So the permit is dropped without an outcome.
            let turn = self.turns.acquire(namespace).await;
            let now = get(&api, uid).await;
            drop(turn);
            match now {
                Ok(now) => return now,
                Err(error) => {
                    tracing::warn!(%error, "Workload not read, retrying");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn create(&self, api: &Api<WatchedWorkload>, wanted: &DesiredWorkload) -> WriteOutcome {
        if let Some(message) = missing(wanted.unknown, &wanted.resources) {
            return WriteOutcome::Failed(QueueWait { reason: Reason::Misconfigured, message, position: None });
        }
        let priority = match &wanted.priority_class {
            None => None,
            Some(class) => match self.priority(class).await {
                Ok(priority) => Some(priority),
                Err(wait) => return WriteOutcome::Failed(wait),
            },
        };
        let object: DynamicObject = match serde_json::from_value(workload(wanted, priority)) {
            Ok(object) => object,
            Err(error) => return WriteOutcome::Failed(wait("make a Workload", &error.to_string(), None)),
        };
        let name = name(&wanted.uid);
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let makes: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &wanted.namespace, &resource("Workload"));
        let made = with_timeout("make Workload", &name, makes.create(&parameters, &object));
        match around(Point::BeforeWorkloadMade, made, Point::AfterWorkloadMade).await {
            Ok(now) => now_is(Guarded(Ok(now))),
            Err(error) if error.code() == Some(409) => self.known_before(api, &wanted.uid, &name).await,
            Err(error) => WriteOutcome::not(&error),
        }
    }

    /// Handles a Workload that exists under this name and that the watch does not return: it lacks the label, or is
    /// somebody else's.
    async fn known_before(&self, api: &Api<WatchedWorkload>, uid: &Uid, name: &str) -> WriteOutcome {
        let now = match get(api, uid).await {
            Ok(now) => now,
            Err(error) => return WriteOutcome::not(&error),
        };
        match now {
            None => WriteOutcome::Now(None),
            Some(now) if parse_workload(&now).is_none() => WriteOutcome::Failed(QueueWait {
                reason: Reason::Misconfigured,
                message: format!("Workload {name} is not of this HTCJob: delete it"),
                position: None,
            }),
            Some(now) if now.labels().get(MANAGED).is_some_and(|manager| manager == FIELD_MANAGER) => {
                WriteOutcome::Now(Some(now))
            }
            Some(_) => {
                let labels = serde_json::json!({ "metadata": { "labels": { MANAGED: FIELD_MANAGER } } });
                let patch = Patch::Merge(&labels);
                let parameters = PatchParams::default();
                let labelled = with_timeout("label Workload", &name, api.patch(name, &parameters, &patch));
                match around(Point::BeforeWorkloadChanged, labelled, Point::AfterWorkloadChanged).await {
                    Ok(now) => now_is(now),
                    Err(error) => WriteOutcome::not(&error),
                }
            }
        }
    }

    async fn priority(&self, class: &str) -> Result<i64, QueueWait> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource("WorkloadPriorityClass"));
        let misconfigured = |message: String| QueueWait { reason: Reason::Misconfigured, message, position: None };
        match with_timeout("get WorkloadPriorityClass", &class, api.get_opt(class)).await {
            Ok(Some(found)) => found.data["value"]
                .as_i64()
                .ok_or_else(|| misconfigured(format!("WorkloadPriorityClass {class} has no value"))),
            Ok(None) => Err(misconfigured(format!(
                "there is no WorkloadPriorityClass {class}: change the label {} of the HTCJob, or remove it",
                htc_api::PRIORITY_CLASS_LABEL
            ))),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn change(
        &self,
        api: &Api<WatchedWorkload>,
        step: &WorkloadStep,
        wanted: &DesiredWorkload,
        seen: &KueueWorkload,
    ) -> WriteOutcome {
        if *step == WorkloadStep::Delete {
            return self.delete(api, &wanted.uid, seen).await;
        }
        let now = Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default());
        let Some((of_status, body)) = patch(step, wanted, seen, &now) else {
            return self.look(api, &wanted.uid).await;
        };
        self.patch(api, seen, of_status, &body).await
    }

    async fn delete(&self, api: &Api<WatchedWorkload>, uid: &Uid, seen: &KueueWorkload) -> WriteOutcome {
        let preconditions =
            Preconditions { uid: Some(seen.uid.clone()), resource_version: Some(seen.version.to_string()) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = with_timeout("delete Workload", &seen.name, api.delete(&seen.name, &parameters));
        match around(Point::BeforeWorkloadChanged, deleted, Point::AfterWorkloadChanged).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => WriteOutcome::not(&error),
            Ok(_) | Err(_) => self.look(api, uid).await,
        }
    }

    async fn patch(
        &self,
        api: &Api<WatchedWorkload>,
        seen: &KueueWorkload,
        of_status: bool,
        body: &serde_json::Value,
    ) -> WriteOutcome {
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(body);
        let patched = async {
            if of_status {
                with_timeout(
                    "write the status of Workload",
                    &seen.name,
                    api.patch_status(&seen.name, &parameters, &patch),
                )
                .await
            } else {
                with_timeout("change Workload", &seen.name, api.patch(&seen.name, &parameters, &patch)).await
            }
        };
        match around(Point::BeforeWorkloadChanged, patched, Point::AfterWorkloadChanged).await {
            // Without its last finalizer it may be gone.
            Ok(now) if now.meta().deletion_timestamp.is_some() && now.finalizers().is_empty() => {
                WriteOutcome::Now(None)
            }
            Ok(now) => now_is(now),
            Err(error) if error.code() == Some(404) => WriteOutcome::Now(None),
            Err(error) if error.code() == Some(409) => {
                tracing::debug!(%error, "Workload changed meanwhile");
                match with_timeout("get Workload", &seen.name, api.get_opt(&seen.name)).await {
                    Ok(now) => WriteOutcome::Now(now.map(Box::new)),
                    Err(error) => WriteOutcome::not(&error),
                }
            }
            Err(error) => WriteOutcome::not(&error),
        }
    }

    /// Removes the finalizer if the `HTCJob` is gone, or was released. A Workload without an owner is deleted first.
    async fn let_go(&self, api: &Api<WatchedWorkload>, own: &Uid, seen: &KueueWorkload) -> WriteOutcome {
        let Some((owner, uid)) = &seen.owner else { return WriteOutcome::Now(None) };
        let htcjobs: Api<ObservedHTCJob> = Api::namespaced(self.client.clone(), &seen.namespace);
        let which = ListParams::default().fields(&format!("metadata.name={owner}"));
        let listed = match with_timeout("list HTCJobs named", owner, htcjobs.list(&which)).await {
            Ok(listed) => listed,
            Err(error) => return WriteOutcome::not(&error),
        };
        if listed.items.iter().any(|object| is_there(object, uid)) {
            // It is another operator's new `HTCJob`; or this operator's, which is about to be reconciled.
            self.queues.with(|state| state.kueue.others.insert(own.clone()));
            return self.look(api, own).await;
        }
        if seen.orphaned && !seen.deleting {
            return self.delete(api, own, seen).await;
        }
        self.patch(api, seen, false, &let_go(seen)).await
    }
}

/// Returns the Workload of an `HTCJob`, if there is one.
async fn get(api: &Api<WatchedWorkload>, uid: &Uid) -> Result<Option<Box<WatchedWorkload>>, ApiError> {
    let name = name(uid);
    Ok(with_timeout("get Workload", &name, api.get_opt(&name)).await?.map(Box::new))
}

/// Returns whether this is the `HTCJob` with this uid, and it was not released.
pub(super) fn is_there(object: &ObservedHTCJob, uid: &Uid) -> bool {
    let held = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    object.uid().as_deref() == Some(uid.as_str()) && (object.meta().deletion_timestamp.is_none() || held)
}

/// Returns the uid of the `HTCJob`, and its Workload; `None` if it cannot be read.
pub(super) fn parse_workload(object: &WatchedWorkload) -> Option<(Uid, KueueWorkload)> {
    let object = object.0.as_ref().ok()?;
    Some((uid_of(&object.name_any())?, KueueWorkload::of(object)?))
}

fn now_is(now: WatchedWorkload) -> WriteOutcome {
    WriteOutcome::Now(Some(Box::new(now)))
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
    let message = htc_machine::text::sanitize(&format!("{what}{why}{next}"), 1000);
    QueueWait { reason, message, position: None }
}
