//! Puts a pool together, and sees to its parts.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use kube::Client;
use kube::runtime::reflector::Store;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::seen::{Schedd as Itself, Seen};
use super::{Named, Pool, Reach};
use crate::api::{HTCPoolSpec, Identity, ObjectName, Observed};
use crate::condor::{KnownUsers, Schedd};
use crate::credentials::Setup;
use crate::ledger::LedgerError;
use crate::machine::Timestamp;
use crate::orphans::count_at_start;
use crate::retry::Backoff;
use crate::tracker::Tracker;
use crate::workers::{Shared, Workers};

/// A schedd that answers is asked who it is so much less often than about its jobs.
pub(super) const SELDOM: u32 = 3;

/// Tells that something has ended that runs for as long as its pool does.
#[derive(Clone, Debug)]
pub struct PartEnded(mpsc::Sender<String>);

impl PartEnded {
    /// And where it is told.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Does this, and tells if it panics.
    async fn watch(self, name: ObjectName, work: impl Future<Output = ()>) {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            let _ = self.0.try_send(name.to_string());
        }
    }
}

/// What every pool has, and what pools of `HTCPool`s are made from.
pub struct Base {
    /// The API server, for Secrets.
    pub client: Client,
    /// What the workers of the operator's own pool have: all of it that is no schedd's own is every pool's.
    pub shared: Arc<Shared>,
    /// The only namespace that is watched, if it is one.
    pub namespace: Option<String>,
    /// How credentials are handled.
    pub credentials: Setup,
    /// Namespace and name of this operator.
    pub name: String,
    /// How often HTCondor is asked about all jobs; while something is about to change; and the longest pause of history.
    pub intervals: (Duration, Duration, Duration),
    /// All `HTCJob`s.
    pub objects: Store<Observed>,
    /// Whether all of them were listed once.
    pub listed: watch::Receiver<bool>,
    /// Told when something of a pool ends that should not.
    pub ended: PartEnded,
}

impl Base {
    /// Puts the pool of an `HTCPool` together. From then on `seen` is what its schedd says of itself; `news` is told of changes.
    pub(super) async fn make(
        &self,
        name: &ObjectName,
        uid: &str,
        spec: &HTCPoolSpec,
        reach: Reach,
        (seen, news): (Arc<Mutex<Seen>>, Arc<Notify>),
    ) -> Result<Named, LedgerError> {
        let Shared { schedd: own, ledger, wake, metrics, .. } = &*self.shared;
        let metrics = metrics.of_pool(name);
        let users = KnownUsers::new(ledger.identities(Some(name.clone())).await?);
        if reach.signer.is_some() {
            // From before each namespace had a name of its own.
            for uid in ledger.submitted_by_operator(name.clone()).await? {
                users.assign(&uid, &Identity::Operator, Timestamp(0));
            }
        }
        let (setup, client) = (self.credentials.clone(), self.client.clone());
        let (schedd, credentials) = reach.open(own, users, setup, client, &metrics);
        let (interval, soon, longest) = self.intervals;
        let tracker = Tracker::new(Arc::clone(&schedd), wake.clone(), interval, soon, longest, metrics.clone());
        tracker.forget_what_leaves(self.objects.clone(), self.listed.clone());
        let tracker = Arc::new(tracker);
        let shared = self.shared.at(Arc::clone(&schedd), Arc::clone(&credentials), metrics.clone());
        let (workers, mut lanes) = Workers::start(Arc::new(shared));
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
                // Without them every question would fail; why there are none is then its answer.
                if let Some(Err(why)) = credentials.look_for_own().await {
                    schedd.lacks_credentials(Some(why));
                }
                let probe = probe(&schedd, &seen, &news, (soon, interval.saturating_mul(SELDOM)));
                let orphans = count_at_start(client, &schedd, &credentials, namespace.as_deref(), metrics);
                tokio::join!(Arc::clone(&credentials).keep(), Box::pin(tracker.run()), probe, Box::pin(orphans));
            }
        };
        let work = work.instrument(tracing::error_span!("pool", htcpool = %name));
        asking.spawn(self.ended.clone().watch(name.clone(), work));
        let pool = Arc::new(Pool { schedd, credentials, tracker, workers });
        let trouble = Some("its schedd has not answered yet".to_owned());
        Ok(Named { uid: uid.to_owned(), pool, reach, spec: spec.clone(), trouble, lanes, _asking: asking, metrics })
    }
}

/// Asks a schedd again and again who it is: with growing pauses while it does not answer.
pub(super) async fn probe(schedd: &Schedd, seen: &Mutex<Seen>, news: &Notify, (soon, seldom): (Duration, Duration)) {
    let mut backoff = Backoff::new(soon, seldom);
    loop {
        let answer = schedd.who().await;
        let pause = if answer.is_ok() { seldom } else { backoff.pause() };
        let before = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = match answer {
            Ok((name, birthdate)) => Seen { schedd: Some(Itself { name, birthdate }), silent: None },
            Err(unknown) => Seen { silent: Some(unknown), ..before.clone() },
        };
        if now.silent.is_none() {
            backoff.reset();
        }
        if now != before {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
            news.notify_one();
        }
        tokio::time::sleep(pause).await;
    }
}
