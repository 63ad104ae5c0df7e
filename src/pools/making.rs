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
use super::{Named, Pool};
use crate::api::{ExternalPool, HTCPoolSpec, Identity, ObjectName, Observed};
use crate::condor::{KnownUsers, Schedd};
use crate::credentials::signing::Signer;
use crate::credentials::{Credentials, Own, Setup};
use crate::health::Health;
use crate::ledger::LedgerError;
use crate::machine::{ScheddName, Timestamp};
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

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Host and port of its collector.
    pub(super) collector: String,
    /// Name of its schedd.
    pub(super) schedd: String,
    /// The Secret with the operator's credentials for it.
    pub(super) secret: ObjectName,
    /// Who makes tokens for the HTCJobs of each namespace, in a managed pool.
    pub(super) signer: Option<Signer>,
}

impl Reach {
    pub(super) fn of_external(namespace: &str, external: &ExternalPool) -> Self {
        let secret = ObjectName { namespace: namespace.to_owned(), name: external.credentials_secret_name.clone() };
        Self { collector: external.collector.clone(), schedd: external.schedd.clone(), secret, signer: None }
    }
}

/// What every pool has, and what pools of `HTCPool`s are made from.
pub struct Base {
    /// The API server, for Secrets.
    pub client: Client,
    /// What the workers of the operator's own pool have: all of it that is no schedd's own is every pool's.
    pub shared: Arc<Shared>,
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
        let Shared { schedd: own, ledger, clock, wake, metrics, .. } = &*self.shared;
        let metrics = metrics.of_pool(name);
        let Reach { collector, schedd, secret, signer } = reach.clone();
        let tools = own.tools.for_pool(&collector, metrics.clone());
        let users = KnownUsers::new(ledger.identities(Some(name.clone())).await?);
        let schedd = ScheddName::from(schedd.as_str());
        if signer.is_some() {
            // From before each namespace had a name of its own.
            for uid in ledger.submitted_by_operator(name.clone()).await? {
                users.assign(&uid, &Identity::Operator, Timestamp(0));
            }
        }
        // Whether the operator is ready is not for one of its pools to say.
        let health = Health::default();
        let schedd = Schedd::new(schedd, own.operator.clone(), tools, *clock, users, health);
        let schedd = Arc::new(schedd.with_secret(secret.clone()));
        let setup = Setup { own: Own::Secret(secret), signer, ..self.credentials.clone() };
        let credentials = Credentials::new(setup, Arc::clone(&schedd), Some(self.client.clone()), metrics.clone());
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
            async move {
                // Without them every question would fail; why there are none is then its answer.
                if let Some(Err(why)) = credentials.look_for_own().await {
                    schedd.lacks_credentials(Some(why));
                }
                let probe = probe(&schedd, &seen, &news, (soon, interval.saturating_mul(SELDOM)));
                tokio::join!(Arc::clone(&credentials).keep(), Box::pin(tracker.run()), probe);
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
