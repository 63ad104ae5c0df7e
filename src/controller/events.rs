//! The journal as Events: one for each row, under a name that makes a second one impossible.

#[cfg(test)]
mod tests;
mod troubles;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp as Moment;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::Status;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::failpoint::{Point, around};
use crate::kubernetes::{self, ApiError, limited};
use crate::ledger::{Except, Journaled, Ledger};
use crate::machine::{Timestamp, Uid};
use crate::metrics::Metrics;
use crate::retry::Backoff;
use troubles::{Probe, Refusal, TOO_LATE, Troubles};

/// Rows told in one go.
const BATCH: usize = 200;
/// Requests under way at once.
const PARALLEL: usize = 8;
/// Longest pause before they are tried again.
const LONGEST: Duration = Duration::from_secs(60);
/// Time between two looks for what is too old.
const CLEANING: Duration = Duration::from_secs(60);
/// From one read of the journal to the next is so many times as long as it took: others need the ledger too.
const READ_SHARE: u32 = 5;

/// Tells the journal's rows to Kubernetes, apart from the reconciles. Rows that were not told before a crash are told
/// after it.
///
/// Namespaces take turns, and in each its objects; what there is to tell of one object is told in its order. What the API server
/// cannot take (a webhook that fails, say) is tried again with growing pauses, beside all others.
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
    metrics: Metrics,
    troubles: Mutex<Troubles>,
}

impl Publisher {
    /// The journal has new rows.
    pub fn news(&self) {
        self.0.news.notify_one();
    }

    /// Runs until it is dropped.
    pub async fn run(&self, client: Client, ledger: Ledger, clock: Clock, metrics: Metrics) {
        let (notifies, troubles) = (Arc::clone(&self.0), Mutex::default());
        let teller = Teller { notifies, client, ledger, clock, metrics, troubles };
        tokio::join!(teller.tell_all(), teller.tell_again(), teller.give_up());
    }
}

/// Why a row could not be told, nor any other.
#[derive(Debug)]
struct TellError {
    message: String,
    /// How long the API server asks to be left alone.
    wait: Duration,
    /// This operator may not write now: the next leader tells it.
    fence_closed: bool,
}

impl TellError {
    /// Logs that Events are not written for now.
    fn log(&self) {
        let message = &self.message;
        if self.fence_closed {
            tracing::debug!(%message, "Events are not written");
        } else {
            tracing::warn!(%message, "Events cannot be written; they will be");
        }
    }
}

impl<E: std::error::Error> From<E> for TellError {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), wait: Duration::ZERO, fence_closed: false }
    }
}

/// What became of one row.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// It is an Event.
    Done,
    /// It never can be one; nobody misses it, if there is no place for Events any more.
    Never { missed: bool },
    /// Not now, and not for what others do.
    Refused(Refusal),
}

/// How it goes with rows that are told in one go.
#[derive(Debug, Default)]
struct Batch {
    told: Vec<(Uid, i64)>,
    /// The first namespace whose Events are limited, and for how long. If it is the only one, the limit is its own.
    limited: Option<(String, Duration)>,
    failures: usize,
    /// Why others may fare no better, if none was told.
    failed: Option<TellError>,
}

impl Batch {
    /// Notes how it went with a row; whether the next of its object may be told.
    fn add(&mut self, row: Journaled, result: Result<Told, TellError>) -> bool {
        match result {
            Ok(Told::Done | Told::Never { .. }) => {
                self.told.push((row.uid, row.seq));
                return true;
            }
            Ok(Told::Refused(Refusal { limited: false, .. })) => {}
            Ok(Told::Refused(Refusal { limited: true, wait })) => self.limit(&row.name.namespace, wait),
            Err(error) => {
                self.failures += 1;
                self.fail(error);
            }
        }
        false
    }

    fn limit(&mut self, namespace: &str, wait: Duration) {
        let (first, longest) = self.limited.get_or_insert_with(|| (namespace.to_owned(), wait));
        *longest = wait.max(*longest);
        if *first != namespace {
            let message = "Events are refused for now".to_owned();
            let error = TellError { message, wait: *longest, fence_closed: false };
            self.fail(error);
        }
    }

    fn fail(&mut self, error: TellError) {
        if self.failed.as_ref().is_none_or(|failed| failed.wait <= error.wait) {
            self.failed = Some(error);
        }
    }

    /// The API server is away: it is no use to begin with more.
    fn is_lost(&self) -> bool {
        self.told.is_empty() && self.failures >= PARALLEL
    }
}

/// The rows of each object, in their order; the objects in that of their first rows.
fn by_object(rows: Vec<Journaled>) -> Vec<Vec<Journaled>> {
    let (mut places, mut objects) = (HashMap::new(), Vec::<Vec<Journaled>>::new());
    for row in rows {
        let place = *places.entry(row.uid.clone()).or_insert(objects.len());
        match objects.get_mut(place) {
            Some(object) => object.push(row),
            None => objects.push(vec![row]),
        }
    }
    objects
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Teller {
    fn troubles(&self) -> MutexGuard<'_, Troubles> {
        lock(&self.troubles)
    }

    /// Tells what goes well.
    async fn tell_all(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST);
        loop {
            let began = Instant::now();
            let rows = self.untold().await;
            let next = began + (began.elapsed() * READ_SHARE).min(LONGEST);
            let told = match rows {
                Ok(rows) => self.tell(rows).await,
                Err(error) => Err(error),
            };
            match told {
                Ok(0) => {
                    backoff.reset();
                    self.notifies.news.notified().await;
                }
                Ok(_) => backoff.reset(),
                Err(error) => {
                    error.log();
                    tokio::time::sleep(backoff.pause().max(error.wait.min(LONGEST))).await;
                }
            }
            tokio::time::sleep_until(next.into()).await;
        }
    }

    /// Rows of all that are not in trouble.
    async fn untold(&self) -> Result<Vec<Journaled>, TellError> {
        let except = self.troubles().except();
        Ok(self.ledger.untold(BATCH, except).await?)
    }

    /// Tells these rows; how many there are. Fails if none was told and that is no trouble of single objects and namespaces: the API
    /// server is left alone.
    async fn tell(&self, rows: Vec<Journaled>) -> Result<usize, TellError> {
        let (count, batch) = (rows.len(), Mutex::<Batch>::default());
        let objects = by_object(rows).into_iter().map(|rows| self.tell_object(rows, &batch));
        futures::stream::iter(objects).buffer_unordered(PARALLEL).collect::<()>().await;
        let Batch { told, failed, .. } = batch.into_inner().unwrap_or_else(PoisonError::into_inner);
        if told.is_empty() {
            return failed.map_or(Ok(count), Err);
        }
        self.ledger.told(told, self.clock.now()).await?;
        if let Some(TellError { message, .. }) = failed {
            tracing::debug!(%message, "some Events cannot be written; they will be");
        }
        Ok(count)
    }

    /// Tells rows of one object, up to the first that is not told: none comes before an earlier one.
    async fn tell_object(&self, rows: Vec<Journaled>, batch: &Mutex<Batch>) {
        for row in rows {
            if self.troubles().blocks(&row.name.namespace, &row.uid) || lock(batch).is_lost() {
                return;
            }
            let result = self.tell_row(&row).await;
            if !lock(batch).add(row, result) {
                return;
            }
        }
    }

    /// Tells one row, and notes how that went.
    async fn tell_row(&self, row: &Journaled) -> Result<Told, TellError> {
        let told = create(self, row).await?;
        let (namespace, now) = (&row.name.namespace, Instant::now());
        let news = match told {
            Told::Done => self.troubles().told(namespace, &row.uid, now),
            Told::Never { missed } => {
                self.metrics.events_given_up(missed.into());
                self.troubles().over(namespace, &row.uid)
            }
            Told::Refused(refusal) => {
                self.troubles().refused(namespace, &row.uid, refusal, now);
                true
            }
        };
        if news {
            self.notifies.trouble.notify_one();
        }
        Ok(told)
    }

    /// Tries again what was refused, one row of each at a time.
    async fn tell_again(&self) {
        let mut probes = FuturesUnordered::new();
        loop {
            let trouble = self.notifies.trouble.notified();
            let (due, next) = self.troubles().take_due(PARALLEL - probes.len(), Instant::now());
            probes.extend(due.into_iter().map(|probe| self.probe(probe)));
            let next = next.unwrap_or_else(|| Instant::now() + LONGEST);
            tokio::select! {
                Some(()) = probes.next() => {}
                () = tokio::time::sleep_until(next.into()) => {}
                () = trouble => {}
            }
        }
    }

    async fn probe(&self, probe: Probe) {
        if let Err(TellError { message, wait, .. }) = self.try_probe(&probe).await {
            tracing::debug!(%message, "Events cannot be written; they will be");
            self.troubles().put_off(&probe, wait, Instant::now());
        }
    }

    async fn try_probe(&self, probe: &Probe) -> Result<(), TellError> {
        let row = match probe {
            Probe::Object(uid) => self.ledger.untold_of(uid.clone()).await?,
            Probe::Namespace(namespace) => {
                let objects = self.troubles().except().objects;
                self.ledger.untold_in(namespace.clone(), objects).await?
            }
        };
        let Some(row) = row else {
            self.troubles().nothing_left(probe);
            self.notifies.news.notify_one();
            return Ok(());
        };
        if matches!(self.tell_row(&row).await?, Told::Done | Told::Never { .. }) {
            let marked = self.ledger.told(vec![(row.uid, row.seq)], self.clock.now()).await;
            // It is no longer in trouble, marked or not.
            self.notifies.news.notify_one();
            marked?;
        }
        Ok(())
    }

    async fn give_up(&self) {
        loop {
            tokio::time::sleep(CLEANING).await;
            self.give_up_old().await;
        }
    }

    /// What is as old as Events get, of those that have been refused for as long, is not told any more.
    async fn give_up_old(&self) {
        let hopeless = self.troubles().hopeless();
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
    let parameters = PostParams::default();
    let created = limited("write an Event of HTCJob", &row.name, api.create(&parameters, &event));
    match around(Point::BeforeEventWritten, created, Point::AfterEventWritten).await {
        Ok(_) => Ok(Told::Done),
        Err(error) => what_it_means(&error),
    }
}

/// What it means for a row that its Event was not written; an error if it says nothing about this row.
fn what_it_means(error: &ApiError) -> Result<Told, TellError> {
    let wait = error.retry_after();
    let refused = |limited| {
        tracing::warn!(%error, "an Event cannot be written; it is tried again");
        Ok(Told::Refused(Refusal { limited, wait }))
    };
    match error.code() {
        Some(409) if error.answer().is_some_and(Status::is_already_exists) => Ok(Told::Done),
        Some(404) => Ok(Told::Never { missed: false }),
        Some(403) if error.answer().is_some_and(is_on_its_way_out) => Ok(Told::Never { missed: false }),
        Some(400 | 422) => {
            let message = error.answer().map(|status| status.message.as_str());
            tracing::warn!(message, "an Event was refused");
            Ok(Told::Never { missed: true })
        }
        // Somebody else's hand in it, or a webhook that fails: it may be this namespace's, or this object's. By a 403 an API server that has
        // just started refuses what it will allow once it has read the roles.
        Some(403 | 409 | 500 | 504) => refused(false),
        // The limit may be this namespace's.
        Some(429 | 503) => refused(true),
        None if matches!(error, ApiError::Silent { .. }) => refused(false),
        _ => Err(TellError { wait, message: error.to_string(), fence_closed: error.is_fence_closed() }),
    }
}

/// Nothing new may be in the namespace: it is being deleted.
fn is_on_its_way_out(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
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
    let about = ObjectReference {
        api_version: Some("htc.cern.ch/v1alpha1".to_owned()),
        kind: Some("HTCJob".to_owned()),
        name: Some(row.name.name.clone()),
        namespace: Some(row.name.namespace.clone()),
        uid: Some(row.uid.to_string()),
        ..ObjectReference::default()
    };
    let mut event = kubernetes::event(about, &row.reason, &row.detail, row.warning, time);
    event.metadata.name = Some(name(row, ledger));
    event
}
