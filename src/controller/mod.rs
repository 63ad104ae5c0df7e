//! Watches `HTCJob`s; for each: gather the facts, decide, commit, hand the request over, publish.

mod crd_served;
mod events;
mod first_list;
mod gather;
mod memory;
mod publish;
mod reconcile;
pub mod secret;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ListParams};
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{Controller, WatchStreamExt as _, controller, watcher};
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::mpsc;

use crate::api::HTCJob;
use crate::clock::Clock;
use crate::condor::Schedd;
use crate::credentials::Credentials;
use crate::fence::Fence;
use crate::ledger::Ledger;
use crate::machine::{Settings, Uid};
use crate::tracker::Tracker;
use crate::workers::{Planner, Workers};
use crate::{health, metrics};

use crd_served::CrdServed;
pub use events::Publisher;
use first_list::FirstList;
pub use memory::Memory;

/// An `HTCJob` as it is watched: one that cannot be decoded does not end the watch, and can still be deleted.
pub type Observed = DeserializeGuard<HTCJob>;

/// The field manager of all that the operator writes.
pub const MANAGER: &str = "htc-operator";
/// Time limit of one request to the API server.
pub const API_LIMIT: Duration = Duration::from_secs(15);

/// What every reconcile needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The journal.
    pub ledger: Ledger,
    /// HTCondor's answers.
    pub tracker: Arc<Tracker>,
    /// The effects.
    pub workers: Workers,
    /// Specs into plans.
    pub planner: Planner,
    /// Times and sizes.
    pub settings: Settings,
    /// The schedd.
    pub schedd: Arc<Schedd>,
    /// In whose name it is spoken to.
    pub credentials: Arc<Credentials>,
    /// Namespace and name of this operator.
    pub operator: String,
    /// Whether it may act.
    pub fence: Fence,
    /// The clock.
    pub clock: Clock,
    /// Told whenever the journal has news.
    pub publisher: Publisher,
    /// What is remembered of each object.
    pub memory: Memory,
}

/// Why a reconcile failed; it is tried again with growing pauses.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] crate::ledger::LedgerError),
    /// The API server.
    #[error("cannot {what} of HTCJob {object}: {source}")]
    Api {
        /// What was being written.
        what: &'static str,
        /// `namespace/name`
        object: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {what} of HTCJob {object}: the API server did not answer within {} s", API_LIMIT.as_secs())]
    ApiSilent {
        /// What was being written.
        what: &'static str,
        /// `namespace/name`
        object: String,
    },
    /// This operator may not act now.
    #[error(transparent)]
    Refused(#[from] crate::fence::Refused),
    /// The object has no uid or namespace.
    #[error("the API server sent an HTCJob without {0}")]
    Nameless(&'static str),
}

/// What is asked about all namespaces, or about one.
pub(crate) fn watched<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |name| Api::namespaced(client.clone(), name))
}

/// Runs until `stop` resolves and the reconciles under way are done.
pub async fn run(
    context: Arc<Context>,
    namespace: Option<&str>,
    concurrency: u16,
    wakes: mpsc::Receiver<ObjectRef<Observed>>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = context.client.clone();
    let api: Api<Observed> = watched(&client, namespace);
    let (reader, writer) = reflector::store();
    let served = Arc::new(CrdServed::default());
    let asked = Arc::clone(&served);
    let asking = api.clone();
    let first = Arc::new(FirstList::default());
    let listed = Arc::clone(&first);
    let (remembering, known) = (Arc::clone(&context), reader.clone());
    let watch = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|object| {
            // Not emptied: an empty list keeps its room, 1 KB for each object.
            object.meta_mut().managed_fields = None;
            object.annotations_mut().remove("kubectl.kubernetes.io/last-applied-configuration");
        })
        .reflect(writer)
        .inspect(move |event| {
            served.seen(event);
            if matches!(event, Ok(watcher::Event::InitDone)) {
                health::cache_synced();
            }
            match event {
                Ok(event) => {
                    listed.seen(event);
                    forget_what_is_gone(&remembering, event, &known);
                }
                Err(error) => {
                    tracing::warn!(%error, "the watch of HTCJobs broke; it is begun again (is the CRD installed?)");
                }
            }
        })
        .touched_objects();
    context.tracker.forget_what_leaves(reader.clone());
    metrics::count_objects(reader.clone());
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
            match result {
                Ok((object, _)) => first.reconciled(&object),
                Err(controller::Error::ReconcilerFailed(error, object)) => {
                    tracing::warn!(%error, %object, "a reconcile failed; it is tried again");
                }
                Err(_) => {}
            }
            futures::future::ready(())
        });
    tokio::select! {
        () = control => {}
        never = asked.ask(asking) => match never {},
    }
}

/// What nobody has told us of, and what went while the watch was broken, too.
fn forget_what_is_gone(context: &Context, event: &watcher::Event<Observed>, known: &reflector::Store<Observed>) {
    let uid = |object: &Observed| object.uid().map(|uid| Uid::from(uid.as_str()));
    match event {
        watcher::Event::Delete(object) => {
            if let Some(uid) = uid(object) {
                context.memory.forget(&uid);
                context.schedd.names.forget(&uid);
            }
        }
        watcher::Event::InitDone => {
            let there: HashSet<Uid> = known.state().iter().filter_map(|object| uid(object)).collect();
            context.memory.keep(&there);
            context.schedd.names.keep(&there);
        }
        watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::Apply(_) => {}
    }
}

/// How long the API server asks to be left alone (`Retry-After`, with 429 and 503).
fn retry_after(error: &kube::Error) -> Duration {
    match error {
        kube::Error::Api(status) => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            Duration::from_secs(seconds.into())
        }
        _ => Duration::ZERO,
    }
}

/// Whether the API server serves the `HTCJob`s that are watched, in words if not.
pub async fn served(client: &Client, namespace: Option<&str>) -> Result<(), String> {
    let api: Api<Observed> = watched(client, namespace);
    match tokio::time::timeout(API_LIMIT, api.list(&ListParams::default().limit(1))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            Err("the API server does not know HTCJobs: run `kubectl apply -f crd/`".to_owned())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the API server did not answer within {} s", API_LIMIT.as_secs())),
    }
}
