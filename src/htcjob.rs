//! The controller of `HTCJob`s. Each reconcile gathers the facts, decides, commits the decision to the ledger, updates
//! the quota usage, carries out or hands over the request, and publishes the status.

mod condor;
mod config_maps;
mod crd_served;
mod error;
mod events;
mod finalizer;
mod image_digest;
mod initial_list;
mod inputs;
mod items;
mod memory;
mod namespace_jobs;
mod pass;
mod pods;
mod publish;
mod reconcile;
pub mod secret;
mod spec;
mod status;
mod unguarded;
mod write_limiter;

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use htc_api::{
    ABANDON_ANNOTATION, APP_LABEL, BACKEND_ANNOTATION, CLAIM_ANNOTATION, FILES_OF_ANNOTATION, OPERATOR_ANNOTATION,
    ObjectName, ObservedHTCJob, POOL_ANNOTATION, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL, SUBMIT_AGAIN_ANNOTATION,
};
use htc_ledger::Ledger;
use htc_machine::{Settings, Uid};
use htc_submit::variables::{self, Field};
use htc_support::clock::Clock;
use htc_support::fence::Fence;
use htc_support::forget::Forget;
use htc_support::health::Health;
use htc_support::kubernetes::scoped_api;
use htc_support::metrics::Metrics;
use kube::api::Api;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{Controller, WatchStreamExt as _, controller, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use tokio::sync::{broadcast, mpsc, watch};

use crate::backends::Backends;
use crate::backends::condor::workers::Planner;
use crate::backends::condor::workers::Registry;
use crate::backends::kept_logs::KeptLogs;
use crate::htcpool::Pools;
use crate::htcqueue::Queues;
pub(crate) use condor::is_unadopted;
use crd_served::CrdServed;
pub use error::{ActError, GatherError, ReconcileError, WriteError};
pub use events::EventPublisher;
pub(crate) use finalizer::claimed;
pub use image_digest::ImageDigests;
use initial_list::InitialList;
pub use memory::ObjectMemory;
pub use namespace_jobs::NamespaceJobs;
pub use write_limiter::{Throttled, WriteLimiter};

/// Dependencies shared by all reconciles.
pub struct Context {
    pub client: Client,
    pub ledger: Ledger,
    /// HTCondor pools that jobs are submitted to.
    pub pools: Arc<Pools>,
    /// Requests in flight in all pools.
    pub requests: Arc<Registry>,
    /// Turns specs into submission plans.
    pub planner: Planner,
    /// Registries that are asked for the digests of images.
    pub image_digests: ImageDigests,
    /// Time limits and size limits.
    pub settings: Settings,
    /// Namespace and name of this operator.
    pub operator: String,
    /// Guard that allows writes only while this operator holds the Lease.
    pub fence: Fence,
    pub clock: Clock,
    /// Publisher of Events; notified whenever the ledger has new transitions.
    pub publisher: EventPublisher,
    /// Per-object state that is lost with the process.
    pub memory: ObjectMemory,
    /// Limits concurrent writes to the API server.
    pub write_limiter: WriteLimiter,
    /// Limits the number of jobs in each namespace.
    pub namespace_jobs: NamespaceJobs,
    /// Quotas, and the HTCJobs that wait for them.
    pub queues: Arc<Queues>,
    /// Backends other than HTCondor.
    pub backends: Arc<Backends>,
    /// Fetches and stores the logs of ended jobs.
    pub kept_logs: KeptLogs,
    pub metrics: Metrics,
    /// Health status; updated with what the watch of HTCJobs reports.
    pub health: Health,
    /// Watch cache of all `HTCJob`s.
    pub objects: reflector::Store<ObservedHTCJob>,
    /// Whether the initial list of `HTCJob`s is complete.
    pub listed: watch::Sender<bool>,
    /// Broadcasts the name of each `HTCJob` that is created, changed or deleted. `None` means that any of them may have
    /// changed.
    pub changed: broadcast::Sender<Option<ObjectName>>,
}

impl Context {
    /// Returns all stores of what is known of single `HTCJob`s.
    fn stores(&self) -> [&dyn Forget; 6] {
        [&self.memory, &*self.pools, &self.namespace_jobs, &*self.queues, &*self.backends, &self.kept_logs]
    }

    /// Forgets an `HTCJob` that is gone, or will be in a moment.
    fn forget(&self, uid: &Uid) {
        self.stores().iter().for_each(|store| store.forget(uid));
    }
}

/// Runs until `stop` resolves and the reconciles in progress have finished.
pub async fn run(
    context: Arc<Context>,
    namespace: Option<&str>,
    concurrency: u16,
    writer: reflector::store::Writer<ObservedHTCJob>,
    wakes: mpsc::Receiver<ObjectRef<ObservedHTCJob>>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (client, reader) = (context.client.clone(), context.objects.clone());
    let api: Api<ObservedHTCJob> = scoped_api(&client, namespace);
    let served = Arc::new(CrdServed::new(context.health.clone()));
    let asked = Arc::clone(&served);
    let asking = api.clone();
    let first = Arc::new(InitialList::default());
    let listed = Arc::clone(&first);
    let (remembering, known) = (Arc::clone(&context), reader.clone());
    let watch = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(trim_unread_metadata)
        .reflect(writer)
        .inspect(move |event| {
            served.seen(event);
            if matches!(event, Ok(watcher::Event::InitDone)) {
                remembering.health.cache_synced();
            }
            match event {
                Ok(event) => {
                    // Receivers of `listed` and `changed` read the state that this updates.
                    forget_deleted(&remembering, event, &known);
                    announce_change(&remembering, event);
                    listed.seen(event);
                }
                Err(error) => {
                    tracing::warn!(%error, "watch of HTCJobs failed, restarting; check that the CRD is installed");
                }
            }
        })
        .touched_objects();
    context.pools.default().tracker.forget_deleted(reader.clone(), context.listed.subscribe());
    context.metrics.count_objects(reader.clone());
    let wakes =
        futures::stream::unfold(
            wakes,
            |mut receiver| async move { receiver.recv().await.map(|object| (object, receiver)) },
        );
    let control = Controller::for_stream(watch, reader)
        .with_config(controller::Config::default().concurrency(concurrency))
        .reconcile_on(wakes)
        .graceful_shutdown_on(stop)
        .run(reconcile::reconcile, reconcile::on_error, context)
        .for_each(|result| {
            if let Ok((object, _)) = result {
                first.reconciled(&object);
            }
            futures::future::ready(())
        });
    tokio::select! {
        () = control => {}
        never = asked.ask(asking) => match never {},
    }
}

/// Drops the metadata that is never read: users may write large amounts into it. Keeps the spec whole, because each
/// submission writes its script, and the labels and annotations that `spec.env` names.
fn trim_unread_metadata(object: &mut ObservedHTCJob) {
    let fields = object.0.as_ref().map(|object| variables::fields(&object.spec)).unwrap_or_default();
    let metadata = object.meta_mut();
    // Set to `None` rather than cleared: an empty list keeps its allocation, 1 KB for each object.
    (metadata.managed_fields, metadata.owner_references) = (None, None);
    metadata.labels.take_if(|labels| {
        labels.retain(|key, _| {
            [APP_LABEL, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL].contains(&key.as_str())
                || fields.contains(&Field::Label(key.clone()))
        });
        labels.is_empty()
    });
    let read = [
        ABANDON_ANNOTATION,
        BACKEND_ANNOTATION,
        CLAIM_ANNOTATION,
        FILES_OF_ANNOTATION,
        OPERATOR_ANNOTATION,
        POOL_ANNOTATION,
        SUBMIT_AGAIN_ANNOTATION,
    ];
    let is_read = |key: &String| read.contains(&key.as_str()) || fields.contains(&Field::Annotation(key.clone()));
    object.annotations_mut().retain(|key, _| is_read(key));
}

fn announce_change(context: &Context, event: &watcher::Event<ObservedHTCJob>) {
    let touched = match event {
        // Before the initial list is complete, the absence of an object proves nothing.
        watcher::Event::Init | watcher::Event::InitApply(_) => return,
        watcher::Event::InitDone => {
            context.listed.send_replace(true);
            None
        }
        watcher::Event::Apply(object) | watcher::Event::Delete(object) => Some(ObjectName::of(object)),
    };
    // Fails only if there is no receiver.
    let _ = context.changed.send(touched);
}

/// Forgets deleted objects. A complete list also reveals the objects that were deleted while the watch was broken.
fn forget_deleted(
    context: &Arc<Context>,
    event: &watcher::Event<ObservedHTCJob>,
    known: &reflector::Store<ObservedHTCJob>,
) {
    let uid = |object: &ObservedHTCJob| object.uid().map(|uid| Uid::from(uid.as_str()));
    match event {
        watcher::Event::Delete(object) => {
            if let Some(uid) = uid(object) {
                unguarded::remove_jobs(context, object);
                context.requests.withdraw(&uid);
                context.forget(&uid);
                context.pools.observe_deletion(&uid);
            }
        }
        watcher::Event::InitDone => {
            let objects = known.state();
            let there: HashSet<Uid> = objects.iter().filter_map(|object| uid(object)).collect();
            context.stores().iter().for_each(|store| store.retain(&there));
            for object in &objects {
                context.pools.observe(object);
            }
        }
        watcher::Event::Apply(object) => context.pools.observe(object),
        watcher::Event::Init | watcher::Event::InitApply(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn observed_htcjob_keeps_only_the_metadata_in_use() {
        let mut object: ObservedHTCJob = serde_json::from_value(json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
            "metadata": {
                "name": "a", "uid": "u", "generation": 7, "finalizers": ["f"],
                "labels": { "l": "x", QUEUE_NAME_LABEL: "q", PRIORITY_CLASS_LABEL: "p" }, "managedFields": [{ "manager": "m" }],
                "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c" }],
                "annotations": {
                    CLAIM_ANNOTATION: "1", OPERATOR_ANNOTATION: "2", ABANDON_ANNOTATION: "true", SUBMIT_AGAIN_ANNOTATION: "true", "example.org/large": "x",
                    "htc.cern.ch/of-no-meaning": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                },
            },
            "spec": {},
        }))
        .unwrap();
        let mut named = object.clone();
        trim_unread_metadata(&mut object);
        assert_eq!(
            object.annotations().keys().map(String::as_str).collect::<Vec<_>>(),
            [ABANDON_ANNOTATION, CLAIM_ANNOTATION, OPERATOR_ANNOTATION, SUBMIT_AGAIN_ANNOTATION]
        );
        assert_eq!(object.labels().keys().collect::<Vec<_>>(), [PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL]);
        named.0 = named.0.map(|mut named| {
            let of = |path: &str| json!({ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": path } } });
            let fields = ["metadata.labels['l']", "metadata.annotations['example.org/large']"].map(of);
            named.spec.env = serde_json::from_value(json!(fields)).unwrap();
            named
        });
        trim_unread_metadata(&mut named);
        assert_eq!((named.labels().get("l").map(String::as_str), named.annotations().len()), (Some("x"), 5));
        assert!(object.managed_fields().is_empty() && object.owner_references().is_empty());
        let metadata = (object.name_any(), object.uid(), object.meta().generation, object.finalizers());
        assert_eq!(metadata, ("a".to_owned(), Some("u".to_owned()), Some(7), &["f".to_owned()][..]));
    }
}
