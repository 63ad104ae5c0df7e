//! Creates pools, and watches over their tasks.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use htc_api::{HTCPoolSpec, Identity, ObjectName, ObservedHTCJob};
use htc_ledger::LedgerError;
use htc_machine::Timestamp;
use htc_submit::pod_spec::PodSettings;
use htc_support::retry::Backoff;
use htcondor::{KnownUsers, Schedd};
use kube::Client;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::{NamedPool, Pool, PoolEndpoint};
use crate::backends::condor::credentials::CredentialsConfig;
use crate::backends::condor::orphans::count_at_start;
use crate::backends::condor::tracker::Tracker;
use crate::backends::condor::workers::{ScheddWorkers, WorkerContext};
use crate::htcpool::readiness::{ObservedSchedd, ScheddIdentity as Itself};

/// An answering schedd is queried for its identity this many times less often than for its jobs.
pub(super) const PROBE_FACTOR: u32 = 3;

/// Reports tasks that ended although their pool still runs.
#[derive(Clone, Debug)]
pub struct TaskFailures(mpsc::Sender<String>);

impl TaskFailures {
    /// Creates a sender, and the receiver of the names of the pools.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Runs this task, and reports a panic.
    async fn watch(self, name: ObjectName, work: impl Future<Output = ()>) {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            let _ = self.0.try_send(name.to_string());
        }
    }
}

/// Creates the pools of `HTCPool`s from what all pools share.
pub struct PoolFactory {
    /// Client of the API server, for Secrets.
    pub client: Client,
    /// Context of the default pool's workers. All pools share what does not belong to one schedd.
    pub shared: Arc<WorkerContext>,
    /// The watched namespace; `None` if all are watched.
    pub namespace: Option<String>,
    pub credentials: CredentialsConfig,
    /// Namespace and name of this operator.
    pub name: String,
    /// Interval between queries of all jobs; shorter interval while a change is expected; longest pause between queries
    /// of the history.
    pub intervals: (Duration, Duration, Duration),
    pub objects: Store<ObservedHTCJob>,
    /// Whether all `HTCJob`s were listed once.
    pub listed: watch::Receiver<bool>,
    /// Gets the pools whose tasks failed.
    pub ended: TaskFailures,
    /// The site's settings for Pods.
    pub pods: PodSettings,
}

impl PoolFactory {
    /// Creates the pool of an `HTCPool`, and starts its tasks.
    ///
    /// From then on `seen` holds what its schedd reports of itself. `news` is notified when that changes.
    pub(super) async fn make(
        &self,
        name: &ObjectName,
        uid: &str,
        spec: &HTCPoolSpec,
        reach: PoolEndpoint,
        (seen, news): (Arc<Mutex<ObservedSchedd>>, Arc<Notify>),
    ) -> Result<NamedPool, LedgerError> {
        let WorkerContext { schedd: own, ledger, wake, metrics, .. } = &*self.shared;
        let metrics = metrics.of_pool(name);
        let users = KnownUsers::new(ledger.identities(Some(name.clone())).await?);
        if reach.signer.is_some() {
            // Submitted before each namespace had an HTCondor user of its own.
            for uid in ledger.submitted_by_operator(name.clone()).await? {
                users.assign(&uid, &Identity::Operator, Timestamp(0));
            }
        }
        let (setup, client) = (self.credentials.clone(), self.client.clone());
        let (schedd, credentials) = reach.open(own, users, setup, client, &metrics);
        let (interval, soon, longest) = self.intervals;
        let tracker = Tracker::new(Arc::clone(&schedd), wake.clone(), interval, soon, longest, metrics.clone());
        tracker.forget_deleted(self.objects.clone(), self.listed.clone());
        let tracker = Arc::new(tracker);
        let shared = self.shared.at(Arc::clone(&schedd), Arc::clone(&credentials), metrics.clone());
        let (workers, mut lanes) = ScheddWorkers::start(Arc::new(shared));
        let lanes = tokio::spawn({
            let ended = self.ended.clone();
            let name = name.clone();
            async move {
                while let Some(lane) = lanes.join_next().await {
                    if lane.is_err() {
                        let _ = ended.0.try_send(name.to_string());
                    }
                }
            }
        });
        let mut asking = JoinSet::new();
        let work = {
            let (credentials, tracker, schedd) = (Arc::clone(&credentials), Arc::clone(&tracker), Arc::clone(&schedd));
            let (client, namespace, metrics) = (self.client.clone(), self.namespace.clone(), metrics.clone());
            async move {
                // Without credentials every query would fail. Queries then return the reason why there are none.
                if let Some(Err(why)) = credentials.refresh_operator().await {
                    schedd.set_missing_credentials(Some(why.message));
                }
                let probe = probe(&schedd, &seen, &news, (soon, interval.saturating_mul(PROBE_FACTOR)));
                let orphans = count_at_start(client, &schedd, &credentials, namespace.as_deref(), metrics);
                tokio::join!(Arc::clone(&credentials).run(), Box::pin(tracker.run()), probe, Box::pin(orphans));
            }
        };
        let work = work.instrument(tracing::error_span!("pool", htcpool = %name));
        asking.spawn(self.ended.clone().watch(name.clone(), work));
        let pool = Arc::new(Pool { schedd, credentials, tracker, workers });
        let trouble = Some("its schedd has not answered yet".to_owned());
        Ok(NamedPool {
            uid: uid.to_owned(),
            pool,
            endpoint: reach,
            spec: spec.clone(),
            trouble,
            lanes,
            _asking: asking,
            metrics,
        })
    }
}

/// Queries a schedd for its identity in a loop. The pauses grow while it does not answer.
pub(super) async fn probe(
    schedd: &Schedd,
    seen: &Mutex<ObservedSchedd>,
    news: &Notify,
    (soon, seldom): (Duration, Duration),
) {
    let mut backoff = Backoff::new(soon, seldom);
    loop {
        let answer = schedd.who().await;
        let pause = if answer.is_ok() { seldom } else { backoff.pause() };
        let before = seen.lock().clone();
        let now = match answer {
            Ok((name, birthdate)) => ObservedSchedd { schedd: Some(Itself { name, birthdate }), failure: None },
            Err(unknown) => ObservedSchedd { failure: Some(unknown), ..before.clone() },
        };
        if now.failure.is_none() {
            backoff.reset();
        }
        if now != before {
            *seen.lock() = now;
            news.notify_one();
        }
        tokio::time::sleep(pause).await;
    }
}
