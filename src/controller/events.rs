//! The journal as Events: one for each row, under a name that makes a second one impossible.

mod troubles;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use jiff::Timestamp as Moment;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Notify;

use crate::api::text::harmless;
use crate::clock::Clock;
use crate::failpoint::{Point, around};
use crate::fence::Fence;
use crate::kubernetes::{ApiError, MANAGER, limited};
use crate::ledger::{Except, Journaled, Ledger};
use crate::machine::{Timestamp, Uid};
use crate::metrics::Metrics;
use crate::retry::Backoff;
use troubles::{Probe, Troubles};

/// Rows told in one go.
const BATCH: usize = 200;
/// Requests under way at once.
const PARALLEL: usize = 8;
/// Longest pause before they are tried again.
const LONGEST: Duration = Duration::from_secs(60);
/// What has been refused for so long is not told any more once it is as old: Kubernetes keeps Events no longer.
const TOO_LATE: Duration = Duration::from_secs(3600);
/// Pause after a second try that reached nobody.
const PAUSE: Duration = Duration::from_secs(1);
/// The API server refuses longer messages.
const MESSAGE: usize = 1024;

/// Tells the journal's rows to Kubernetes, apart from the reconciles. Rows that were not told before a crash are told
/// after it.
///
/// Namespaces take turns, and in each its objects. What the API server cannot take (a webhook that fails, say) is tried again with
/// growing pauses, beside all others.
#[derive(Clone, Debug, Default)]
pub struct Publisher(Arc<Notifies>);

#[derive(Debug, Default)]
struct Notifies {
    news: Notify,
    trouble: Notify,
}

/// What telling needs.
struct Teller {
    notifies: Arc<Notifies>,
    client: Client,
    ledger: Ledger,
    clock: Clock,
    fence: Fence,
    metrics: Metrics,
    troubles: Mutex<Troubles>,
}

impl Publisher {
    /// The journal has new rows.
    pub fn news(&self) {
        self.0.news.notify_one();
    }

    /// Runs until it is dropped.
    pub async fn run(&self, client: Client, ledger: Ledger, clock: Clock, fence: Fence, metrics: Metrics) {
        let (notifies, troubles) = (Arc::clone(&self.0), Mutex::default());
        let teller = Teller { notifies, client, ledger, clock, fence, metrics, troubles };
        tokio::join!(teller.tell_all(), teller.tell_again());
    }
}

/// Why rows could not be told, none of them.
struct TellError {
    message: String,
    /// How long the API server asks to be left alone.
    wait: Duration,
}

impl<E: std::error::Error> From<E> for TellError {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), wait: Duration::ZERO }
    }
}

/// What became of one row.
enum Told {
    /// It is an Event, or never can be one.
    Done,
    /// Not now, and not for what others do; whether the API server has said so.
    Refused { answered: bool },
}

impl Teller {
    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what goes well.
    async fn tell_all(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST);
        loop {
            match self.tell().await {
                Ok(0) => {
                    backoff.reset();
                    self.notifies.news.notified().await;
                }
                Ok(_) => backoff.reset(),
                Err(TellError { message, wait }) => {
                    tracing::warn!(%message, "Events cannot be written; they will be");
                    tokio::time::sleep(backoff.pause().max(wait.min(LONGEST))).await;
                }
            }
        }
    }

    /// Tells rows of all that are not in trouble; how many there were. A server that refuses all is left alone.
    async fn tell(&self) -> Result<usize, TellError> {
        let except = self.troubles().except();
        let rows = self.ledger.untold(BATCH, except).await?;
        let count = rows.len();
        let (mut told, mut failed) = (Vec::new(), None);
        let mut results = futures::stream::iter(rows.into_iter().map(|row| self.try_row(row))).buffered(PARALLEL);
        while let Some(result) = results.next().await {
            match result {
                Ok(row) => told.extend(row),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !told.is_empty() {
            self.ledger.told(told, self.clock.now()).await?;
        }
        failed.map_or(Ok(count), Err)
    }

    /// Tells one row, unless its object or namespace has come into trouble meanwhile.
    async fn try_row(&self, row: Journaled) -> Result<Option<(Uid, i64)>, TellError> {
        if self.troubles().blocks(&row.name.namespace, &row.uid) {
            return Ok(None);
        }
        self.tell_row(row).await
    }

    /// Tells one row, and notes how that went.
    async fn tell_row(&self, row: Journaled) -> Result<Option<(Uid, i64)>, TellError> {
        match create(self, &row).await? {
            Told::Done => {
                self.troubles().told(&row.name.namespace, &row.uid);
                Ok(Some((row.uid, row.seq)))
            }
            Told::Refused { answered } => {
                self.troubles().refused(&row.name.namespace, &row.uid, answered, Instant::now());
                self.notifies.trouble.notify_one();
                Ok(None)
            }
        }
    }

    /// Tries again what was refused, one row of each at a time.
    async fn tell_again(&self) {
        loop {
            let trouble = self.notifies.trouble.notified();
            let due = self.troubles().due(Instant::now());
            match due {
                Ok(probes) => {
                    let tries = probes.into_iter().map(|probe| self.probe(probe));
                    futures::stream::iter(tries).buffer_unordered(PARALLEL).collect::<()>().await;
                    self.give_up_old().await;
                }
                Err(Some(again)) => tokio::select! {
                    () = tokio::time::sleep_until(again.into()) => {}
                    () = trouble => {}
                },
                Err(None) => trouble.await,
            }
        }
    }

    async fn probe(&self, probe: Probe) {
        let result = async {
            let row = match &probe {
                Probe::Object(uid) => self.ledger.untold_of(uid.clone()).await?,
                Probe::Namespace(namespace) => {
                    let objects = self.troubles().except().objects;
                    self.ledger.untold_in(namespace.clone(), objects).await?
                }
            };
            let Some(row) = row else {
                self.troubles().nothing_left(&probe);
                return Ok(());
            };
            let told = self.tell_row(row).await?;
            if told.is_some() {
                self.ledger.told(told.into_iter().collect(), self.clock.now()).await?;
                self.notifies.news.notify_one();
            }
            Ok::<_, TellError>(())
        };
        if let Err(TellError { message, .. }) = result.await {
            tracing::debug!(%message, "Events cannot be written; they will be");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What is as old as Events get, of those that have been refused for as long, is not told any more.
    async fn give_up_old(&self) {
        let hopeless = self.troubles().hopeless(TOO_LATE, Instant::now());
        if hopeless == Except::default() {
            return;
        }
        let now = self.clock.now();
        let too_late = Timestamp(now.0 - i64::try_from(TOO_LATE.as_millis()).unwrap_or(i64::MAX));
        match self.ledger.give_up_telling(hopeless, too_late, now).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::warn!(count, "Events were refused for an hour and are given up; the journal has them");
                self.metrics.events_given_up(count);
            }
            Err(error) => tracing::warn!(%error, "old Events cannot be given up"),
        }
    }
}

#[tracing::instrument(name = "event", level = "error", skip_all, fields(namespace = %row.name.namespace, htcjob = %row.name.name, uid = %row.uid, seq = row.seq))]
async fn create(teller: &Teller, row: &Journaled) -> Result<Told, TellError> {
    let api: Api<Event> = Api::namespaced(teller.client.clone(), &row.name.namespace);
    let event = event(row, teller.ledger.id());
    teller.fence.check()?;
    let parameters = PostParams::default();
    let created = limited("write an Event of HTCJob", &row.name, api.create(&parameters, &event));
    match around(Point::BeforeEventWritten, created, Point::AfterEventWritten).await {
        Ok(_) => Ok(Told::Done),
        // Told before; or it can never be told: the namespace is on its way out, or the Event is refused.
        Err(error) if error.code() == Some(409) => Ok(Told::Done),
        Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 422)) => {
            let message = error.answer().map(|status| status.message.as_str());
            tracing::warn!(message, "an Event was refused");
            teller.metrics.events_given_up(1);
            Ok(Told::Done)
        }
        // A webhook that fails or does not answer: it may be this namespace's, or this object's.
        Err(error) if matches!(error.code(), Some(500 | 504)) || matches!(error, ApiError::Silent { .. }) => {
            tracing::warn!(%error, "an Event cannot be written; it is tried again");
            Ok(Told::Refused { answered: error.code().is_some() })
        }
        Err(error) => Err(TellError { wait: error.retry_after(), message: error.to_string() }),
    }
}

/// An object that another ledger may have told of has Events of these numbers already: this ledger's have its id in the name.
fn name(row: &Journaled, ledger: &str) -> String {
    let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
    let stem: String = row.name.name.chars().take(200).collect();
    let ledger = if row.told_before { format!(".{}", short(ledger)) } else { String::new() };
    format!("{stem}.{}{ledger}.{:04}", short(row.uid.as_str()), row.seq)
}

fn event(row: &Journaled, ledger: &str) -> Event {
    let time = Moment::from_millisecond(row.time.0)
        .ok()
        .map(|moment| Time(Moment::from_second(moment.as_second()).unwrap_or(moment)));
    Event {
        metadata: ObjectMeta {
            name: Some(name(row, ledger)),
            namespace: Some(row.name.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("htc.cern.ch/v1alpha1".to_owned()),
            kind: Some("HTCJob".to_owned()),
            name: Some(row.name.name.clone()),
            namespace: Some(row.name.namespace.clone()),
            uid: Some(row.uid.to_string()),
            ..ObjectReference::default()
        },
        reason: Some(row.reason.clone()),
        message: Some(harmless(&row.detail, MESSAGE)),
        type_: Some(if row.warning { "Warning" } else { "Normal" }.to_owned()),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        source: Some(EventSource { component: Some(MANAGER.to_owned()), host: None }),
        reporting_component: Some(MANAGER.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectName;

    #[test]
    fn what_another_ledger_may_have_told_has_names_of_its_own() {
        let row = |told_before| Journaled {
            uid: "0123456789ab".into(),
            name: ObjectName { namespace: "n".to_owned(), name: "zero".to_owned() },
            seq: 7,
            time: Timestamp(0),
            reason: "Running".to_owned(),
            detail: String::new(),
            warning: false,
            told_before,
        };
        assert_eq!(name(&row(false), "fedcba9876543210"), "zero.01234567.0007");
        assert_eq!(name(&row(true), "fedcba9876543210"), "zero.01234567.fedcba98.0007");
    }
}
