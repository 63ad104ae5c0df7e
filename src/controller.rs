//! Watches `HTCJob`s; for each: gather the facts, decide, commit, count it in its queue, hand the request over, publish.

mod act;
mod commit;
mod crd_served;
mod error;
mod events;
mod first_list;
mod gather;
mod items;
mod namespace_jobs;
mod pods;
mod publish;
mod reconcile;
pub mod secret;
mod volatile;
mod writes;

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{Controller, WatchStreamExt as _, controller, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use tokio::sync::{broadcast, mpsc, watch};

use crate::api::{
    ABANDON, APP_LABEL, BACKEND, CLAIM, OPERATOR, ObjectName, Observed, POOL, PRIORITY_CLASS, QUEUE_NAME, SUBMIT_AGAIN,
};
use crate::backends::Backends;
use crate::clock::Clock;
use crate::fence::Fence;
use crate::health::Health;
use crate::kubernetes::{limited, watched};
use crate::ledger::Ledger;
use crate::machine::{Settings, Uid};
use crate::metrics::Metrics;
use crate::pools::Pools;
use crate::queue::Queues;
use crate::workers::{KeptLogs, Planner, Registry};

use crd_served::CrdServed;
pub use error::{GatherError, ReconcileError, WriteError};
pub use events::Publisher;
use first_list::FirstList;
pub use namespace_jobs::NamespaceJobs;
pub use volatile::VolatileState;
pub use writes::{PutOff, Writes};

/// What every reconcile needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The journal.
    pub ledger: Ledger,
    /// Where jobs go.
    pub pools: Arc<Pools>,
    /// The requests under way in all of them.
    pub requests: Arc<Registry>,
    /// Specs into plans.
    pub planner: Planner,
    /// Times and sizes.
    pub settings: Settings,
    /// Namespace and name of this operator.
    pub operator: String,
    /// Whether it may act.
    pub fence: Fence,
    /// The clock.
    pub clock: Clock,
    /// Told whenever the journal has news.
    pub publisher: Publisher,
    /// What is remembered of each object.
    pub volatile: VolatileState,
    /// Those to the API server.
    pub writes: Writes,
    /// How many jobs each namespace may have.
    pub namespace_jobs: NamespaceJobs,
    /// Which jobs have room.
    pub queues: Arc<Queues>,
    /// What runs jobs beside the pools.
    pub backends: Arc<Backends>,
    /// Has logs of those kept.
    pub kept_logs: KeptLogs,
    /// Where it is counted.
    pub metrics: Metrics,
    /// Told what the watch sees.
    pub health: Health,
    /// All `HTCJob`s, as the watch shows them.
    pub objects: reflector::Store<Observed>,
    /// Whether all of them were listed once.
    pub listed: watch::Sender<bool>,
    /// Tells the name of each `HTCJob` that has come, changed or gone; none if it may be any of them.
    pub touched: broadcast::Sender<Option<ObjectName>>,
}

/// Runs until `stop` resolves and the reconciles under way are done.
pub async fn run(
    context: Arc<Context>,
    namespace: Option<&str>,
    concurrency: u16,
    writer: reflector::store::Writer<Observed>,
    wakes: mpsc::Receiver<ObjectRef<Observed>>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (client, reader) = (context.client.clone(), context.objects.clone());
    let api: Api<Observed> = watched(&client, namespace);
    let served = Arc::new(CrdServed::new(context.health.clone()));
    let asked = Arc::clone(&served);
    let asking = api.clone();
    let first = Arc::new(FirstList::default());
    let listed = Arc::clone(&first);
    let (remembering, known) = (Arc::clone(&context), reader.clone());
    let watch = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(keep_what_is_read)
        .reflect(writer)
        .inspect(move |event| {
            served.seen(event);
            if matches!(event, Ok(watcher::Event::InitDone)) {
                remembering.health.cache_synced();
            }
            match event {
                Ok(event) => {
                    // Those that listen to `listed` and `touched` read what this changes.
                    remember_what_is_there(&remembering, event, &known);
                    tell_who_was_touched(&remembering, event);
                    listed.seen(event);
                }
                Err(error) => {
                    tracing::warn!(%error, "the watch of HTCJobs broke; it is begun again (is the CRD installed?)");
                }
            }
        })
        .touched_objects();
    context.pools.default().tracker.forget_what_leaves(reader.clone(), context.listed.subscribe());
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

/// Of the metadata only what is read is kept: whoever writes an HTCJob may put much into it, of which nothing is read. The spec is
/// kept whole: its script is written for each submission.
fn keep_what_is_read(object: &mut Observed) {
    let metadata = object.meta_mut();
    // Not emptied: an empty list keeps its room, 1 KB for each object.
    (metadata.managed_fields, metadata.owner_references) = (None, None);
    metadata.labels.take_if(|labels| {
        labels.retain(|key, _| [APP_LABEL, PRIORITY_CLASS, QUEUE_NAME].contains(&key.as_str()));
        labels.is_empty()
    });
    let read = [ABANDON, BACKEND, CLAIM, OPERATOR, POOL, SUBMIT_AGAIN];
    object.annotations_mut().retain(|key, _| read.contains(&key.as_str()));
}

fn tell_who_was_touched(context: &Context, event: &watcher::Event<Observed>) {
    let touched = match event {
        // Nothing is known otherwise before the last one is listed.
        watcher::Event::Init | watcher::Event::InitApply(_) => return,
        watcher::Event::InitDone => {
            context.listed.send_replace(true);
            None
        }
        watcher::Event::Apply(object) | watcher::Event::Delete(object) => Some(ObjectName::of(object)),
    };
    // It may be that nobody listens.
    let _ = context.touched.send(touched);
}

/// Forgets what is gone, what nobody has told us of, and what went while the watch was broken, too.
fn remember_what_is_there(context: &Context, event: &watcher::Event<Observed>, known: &reflector::Store<Observed>) {
    let uid = |object: &Observed| object.uid().map(|uid| Uid::from(uid.as_str()));
    match event {
        watcher::Event::Delete(object) => {
            if let Some(uid) = uid(object) {
                context.volatile.forget(&uid);
                context.pools.gone(&uid);
                context.namespace_jobs.forget(&uid);
                context.queues.forget(&uid);
                context.backends.forget(&uid);
            }
        }
        watcher::Event::InitDone => {
            let objects = known.state();
            let there: HashSet<Uid> = objects.iter().filter_map(|object| uid(object)).collect();
            context.volatile.keep(&there);
            context.pools.keep(&there);
            for object in &objects {
                context.pools.saw(object);
            }
            context.namespace_jobs.keep(&there);
            context.queues.listed(&there);
            context.backends.keep(&there);
        }
        watcher::Event::Apply(object) => context.pools.saw(object),
        watcher::Event::Init | watcher::Event::InitApply(_) => {}
    }
}

/// Whether the API server serves the `HTCJob`s that are watched, in words if not.
pub async fn served(client: &Client, namespace: Option<&str>) -> Result<(), String> {
    let api: Api<Observed> = watched(client, namespace);
    match limited("list", &"HTCJobs", api.list(&ListParams::default().limit(1))).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(404) => {
            Err("the API server does not know HTCJobs: run `kubectl apply -f crd/`".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_the_metadata_only_what_is_read_is_kept() {
        let mut object: Observed = serde_json::from_value(json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
            "metadata": {
                "name": "a", "uid": "u", "generation": 7, "finalizers": ["f"],
                "labels": { "l": "x", QUEUE_NAME: "q", PRIORITY_CLASS: "p" }, "managedFields": [{ "manager": "m" }],
                "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c" }],
                "annotations": {
                    CLAIM: "1", OPERATOR: "2", ABANDON: "true", SUBMIT_AGAIN: "true", "example.org/large": "x",
                    "htc.cern.ch/of-no-meaning": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                },
            },
            "spec": {},
        }))
        .unwrap();
        keep_what_is_read(&mut object);
        assert_eq!(
            object.annotations().keys().map(String::as_str).collect::<Vec<_>>(),
            [ABANDON, CLAIM, OPERATOR, SUBMIT_AGAIN]
        );
        assert_eq!(object.labels().keys().collect::<Vec<_>>(), [PRIORITY_CLASS, QUEUE_NAME]);
        assert!(object.managed_fields().is_empty() && object.owner_references().is_empty());
        let metadata = (object.name_any(), object.uid(), object.meta().generation, object.finalizers());
        assert_eq!(metadata, ("a".to_owned(), Some("u".to_owned()), Some(7), &["f".to_owned()][..]));
    }
}
