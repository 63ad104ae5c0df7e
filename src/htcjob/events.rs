//! Publishes the transitions in the ledger as Events: one for each row, under a deterministic name that prevents
//! duplicates.

mod backoffs;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use htc_ledger::{EventFilter, JournalRow, Ledger};
use htc_machine::{Timestamp, Uid};
use htc_support::clock::Clock;
use htc_support::failpoint::{Point, around};
use htc_support::kubernetes;
use htc_support::kubernetes::{ApiError, with_timeout};
use htc_support::metrics::Metrics;
use htc_support::retry::Backoff;
use jiff::Timestamp as Moment;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::Status;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use backoffs::{EventBackoffs, EventRefusal, Probe, TOO_LATE};

/// Maximum number of rows in one batch.
const BATCH: usize = 200;
/// Maximum number of concurrent requests.
const PARALLEL: usize = 8;
/// Longest pause before a retry.
const LONGEST: Duration = Duration::from_secs(60);
/// Interval between two searches for rows that are too old.
const CLEANING: Duration = Duration::from_secs(60);
/// Minimum interval between two reads of the ledger, as a multiple of the time that the read took: others need the
/// ledger too.
const READ_SHARE: u32 = 5;

/// Writes the rows of transitions to Kubernetes as Events, independently of reconciles. Rows that were not written
/// before a crash are written after it.
///
/// Namespaces alternate, and so do the objects in each; the rows of one object are written in their order. Rows that
/// the API server refuses (because a webhook fails, for example) are retried with growing pauses, without delaying
/// other objects.
#[derive(Clone, Debug, Default)]
pub struct EventPublisher(Arc<Notifies>);

#[derive(Debug, Default)]
struct Notifies {
    news: Notify,
    trouble: Notify,
}

/// State shared by the tasks that write Events.
struct EventWriter {
    notifies: Arc<Notifies>,
    client: Client,
    ledger: Ledger,
    clock: Clock,
    metrics: Metrics,
    backoffs: Mutex<EventBackoffs>,
}

impl EventPublisher {
    /// Notifies that the ledger has new rows.
    pub fn news(&self) {
        self.0.news.notify_one();
    }

    /// Runs until it is dropped.
    pub async fn run(&self, client: Client, ledger: Ledger, clock: Clock, metrics: Metrics) {
        let (notifies, troubles) = (Arc::clone(&self.0), Mutex::default());
        let teller = EventWriter { notifies, client, ledger, clock, metrics, backoffs: troubles };
        tokio::join!(teller.write_all(), teller.retry_refused(), teller.give_up());
    }
}

/// An error that concerns all rows, and not only the one that was written.
#[derive(Debug)]
struct EventError {
    message: String,
    /// `Retry-After` of the API server.
    wait: Duration,
    /// Whether this operator may not write now; the next leader writes the row.
    fence_closed: bool,
}

impl EventError {
    /// Logs that Events are not written for now.
    fn log(&self) {
        let message = &self.message;
        if self.fence_closed {
            tracing::debug!(%message, "Events not written");
        } else {
            tracing::warn!(%message, "Events not written, retrying");
        }
    }
}

impl<E: std::error::Error> From<E> for EventError {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), wait: Duration::ZERO, fence_closed: false }
    }
}

/// Result for one row.
#[derive(Debug, PartialEq, Eq)]
enum EventOutcome {
    /// The Event was written.
    Written,
    /// The Event can never be written. `missed` is false if the namespace is gone, so that no user can miss it.
    Never { missed: bool },
    /// Refused for now, for a reason that does not concern other objects.
    Refused(EventRefusal),
}

/// Results of the rows of one batch.
#[derive(Debug, Default)]
struct EventBatch {
    told: Vec<(Uid, i64)>,
    /// First namespace whose Events are limited, and its `Retry-After`. If it is the only one, the limit is the
    /// namespace's own.
    limited: Option<(String, Duration)>,
    failures: usize,
    /// Error that may concern all rows, if none was written.
    failed: Option<EventError>,
}

impl EventBatch {
    /// Records the result for a row. Returns whether the next row of the same object may be written.
    fn add(&mut self, row: JournalRow, result: Result<EventOutcome, EventError>) -> bool {
        match result {
            Ok(EventOutcome::Written | EventOutcome::Never { .. }) => {
                self.told.push((row.uid, row.seq));
                return true;
            }
            Ok(EventOutcome::Refused(EventRefusal { limited: false, .. })) => {}
            Ok(EventOutcome::Refused(EventRefusal { limited: true, wait })) => self.limit(&row.name.namespace, wait),
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
            let error = EventError { message, wait: *longest, fence_closed: false };
            self.fail(error);
        }
    }

    fn fail(&mut self, error: EventError) {
        if self.failed.as_ref().is_none_or(|failed| failed.wait <= error.wait) {
            self.failed = Some(error);
        }
    }

    /// Whether the API server is unavailable, so that no further request is worth sending.
    fn is_lost(&self) -> bool {
        self.told.is_empty() && self.failures >= PARALLEL
    }
}

/// Groups the rows by object, in the order of each object's first row.
fn by_object(rows: Vec<JournalRow>) -> Vec<Vec<JournalRow>> {
    let (mut places, mut objects) = (HashMap::new(), Vec::<Vec<JournalRow>>::new());
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
    mutex.lock()
}

impl EventWriter {
    fn backoffs(&self) -> MutexGuard<'_, EventBackoffs> {
        lock(&self.backoffs)
    }

    /// Writes the rows of all objects that are not in back-off.
    async fn write_all(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST);
        loop {
            let began = Instant::now();
            let rows = self.untold().await;
            let next = began + (began.elapsed() * READ_SHARE).min(LONGEST);
            let told = match rows {
                Ok(rows) => self.write_rows(rows).await,
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

    /// Reads rows of objects that are not in back-off.
    async fn untold(&self) -> Result<Vec<JournalRow>, EventError> {
        let except = self.backoffs().except();
        Ok(self.ledger.unwritten_events(BATCH, except).await?)
    }

    /// Writes these rows. Returns their number. Fails if none was written for a reason that concerns all objects; the
    /// caller then pauses.
    async fn write_rows(&self, rows: Vec<JournalRow>) -> Result<usize, EventError> {
        let (count, batch) = (rows.len(), Mutex::<EventBatch>::default());
        let objects = by_object(rows).into_iter().map(|rows| self.write_object(rows, &batch));
        futures::stream::iter(objects).buffer_unordered(PARALLEL).collect::<()>().await;
        let EventBatch { told, failed, .. } = batch.into_inner();
        if told.is_empty() {
            return failed.map_or(Ok(count), Err);
        }
        self.ledger.mark_written(told, self.clock.now()).await?;
        if let Some(EventError { message, .. }) = failed {
            tracing::debug!(%message, "some Events not written, retrying");
        }
        Ok(count)
    }

    /// Writes the rows of one object up to the first failure: no row is written before an earlier one.
    async fn write_object(&self, rows: Vec<JournalRow>, batch: &Mutex<EventBatch>) {
        for row in rows {
            if self.backoffs().blocks(&row.name.namespace, &row.uid) || lock(batch).is_lost() {
                return;
            }
            let result = self.write_row(&row).await;
            if !lock(batch).add(row, result) {
                return;
            }
        }
    }

    /// Writes one row, and records the result.
    async fn write_row(&self, row: &JournalRow) -> Result<EventOutcome, EventError> {
        let told = create(self, row).await?;
        let (namespace, now) = (&row.name.namespace, Instant::now());
        let news = match told {
            EventOutcome::Written => self.backoffs().told(namespace, &row.uid, now),
            EventOutcome::Never { missed } => {
                self.metrics.events_given_up(missed.into());
                self.backoffs().over(namespace, &row.uid)
            }
            EventOutcome::Refused(refusal) => {
                self.backoffs().refused(namespace, &row.uid, refusal, now);
                true
            }
        };
        if news {
            self.notifies.trouble.notify_one();
        }
        Ok(told)
    }

    /// Retries refused rows, one row of each object or namespace at a time.
    async fn retry_refused(&self) {
        let mut probes = FuturesUnordered::new();
        loop {
            let trouble = self.notifies.trouble.notified();
            let (due, next) = self.backoffs().take_due(PARALLEL - probes.len(), Instant::now());
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
        if let Err(EventError { message, wait, .. }) = self.try_probe(&probe).await {
            tracing::debug!(%message, "Events not written, retrying");
            self.backoffs().put_off(&probe, wait, Instant::now());
        }
    }

    async fn try_probe(&self, probe: &Probe) -> Result<(), EventError> {
        let row = match probe {
            Probe::Object(uid) => self.ledger.unwritten_of(uid.clone()).await?,
            Probe::Namespace(namespace) => {
                let objects = self.backoffs().except().objects;
                self.ledger.unwritten_in(namespace.clone(), objects).await?
            }
        };
        let Some(row) = row else {
            self.backoffs().nothing_left(probe);
            self.notifies.news.notify_one();
            return Ok(());
        };
        if matches!(self.write_row(&row).await?, EventOutcome::Written | EventOutcome::Never { .. }) {
            let marked = self.ledger.mark_written(vec![(row.uid, row.seq)], self.clock.now()).await;
            // The back-off has ended, whether or not the row could be marked as written.
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

    /// Drops rows older than the lifetime of Events, of objects that have been refused for as long.
    async fn give_up_old(&self) {
        let hopeless = self.backoffs().hopeless();
        if hopeless == EventFilter::default() {
            return;
        }
        let now = self.clock.now();
        let too_late = Timestamp(now.0 - i64::try_from(TOO_LATE.as_millis()).unwrap_or(i64::MAX));
        match self.ledger.drop_events(hopeless, too_late, now).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::warn!(count, "Events given up after an hour");
                self.metrics.events_given_up(count);
            }
            Err(error) => tracing::warn!(%error, "old Events not given up"),
        }
    }
}

#[tracing::instrument(name = "event", level = "error", skip_all, fields(namespace = %row.name.namespace, htcjob = %row.name.name, uid = %row.uid, seq = row.seq))]
async fn create(teller: &EventWriter, row: &JournalRow) -> Result<EventOutcome, EventError> {
    let api: Api<Event> = Api::namespaced(teller.client.clone(), &row.name.namespace);
    let event = event(row, teller.ledger.id());
    let parameters = PostParams::default();
    let created = with_timeout("write an Event of HTCJob", &row.name, api.create(&parameters, &event));
    match around(Point::BeforeEventWritten, created, Point::AfterEventWritten).await {
        Ok(_) => Ok(EventOutcome::Written),
        Err(error) => classify_error(&error),
    }
}

/// Classifies the error for the row. Returns an error if the failure does not concern this row.
fn classify_error(error: &ApiError) -> Result<EventOutcome, EventError> {
    let wait = error.retry_after();
    let refused = |limited| {
        tracing::warn!(%error, "Event not written, retrying");
        Ok(EventOutcome::Refused(EventRefusal { limited, wait }))
    };
    match error.code() {
        Some(409) if error.answer().is_some_and(Status::is_already_exists) => Ok(EventOutcome::Written),
        Some(404) => Ok(EventOutcome::Never { missed: false }),
        Some(403) if error.answer().is_some_and(is_on_its_way_out) => Ok(EventOutcome::Never { missed: false }),
        Some(400 | 422) => {
            let message = error.answer().map(|status| status.message.as_str());
            tracing::warn!(message, "Event refused");
            Ok(EventOutcome::Never { missed: true })
        }
        // Caused by others, for example by a failing webhook: it may concern this namespace or this object.
        // An API server that has just started answers 403 until it has read the roles.
        Some(403 | 409 | 500 | 504) => refused(false),
        // The limit may apply to this namespace only.
        Some(429 | 503) => refused(true),
        None if matches!(error, ApiError::TimedOut { .. }) => refused(false),
        _ => Err(EventError { wait, message: error.to_string(), fence_closed: error.is_fence_closed() }),
    }
}

/// Whether the namespace is being deleted, and accepts no new objects.
fn is_on_its_way_out(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns the name of the Event. If another ledger may have written Events with the same numbers, the name includes
/// this ledger's id.
fn name(row: &JournalRow, ledger: &str) -> String {
    let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
    let stem: String = row.name.name.chars().take(200).collect();
    let ledger = if row.maybe_written { format!(".{}", short(ledger)) } else { String::new() };
    format!("{stem}.{}{ledger}.{:04}", short(row.uid.as_str()), row.seq)
}

fn event(row: &JournalRow, ledger: &str) -> Event {
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
