//! The journal as Events: one for each row, under a name that makes a second one impossible.

use std::sync::Arc;
use std::time::Duration;

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
use crate::kubernetes::{MANAGER, limited};
use crate::ledger::{Journaled, Ledger};
use crate::machine::Uid;
use crate::retry::Backoff;

/// Rows told in one go.
const BATCH: usize = 200;
/// Requests under way at once.
const PARALLEL: usize = 8;
/// Longest pause before they are tried again.
const LONGEST: Duration = Duration::from_secs(60);
/// The API server refuses longer messages.
const MESSAGE: usize = 1024;

/// Tells the journal's rows to Kubernetes, apart from the reconciles. Rows that were not told before a crash are told
/// after it.
#[derive(Clone, Debug, Default)]
pub struct Publisher(Arc<Notify>);

impl Publisher {
    /// The journal has new rows.
    pub fn news(&self) {
        self.0.notify_one();
    }

    /// Runs until it is dropped.
    pub async fn run(&self, client: Client, ledger: Ledger, clock: Clock, fence: Fence) {
        let mut backoff = Backoff::new(Duration::from_millis(500), LONGEST);
        loop {
            match tell(&client, &ledger, clock, &fence).await {
                Ok(0) => {
                    backoff.reset();
                    self.0.notified().await;
                }
                Ok(_) => backoff.reset(),
                Err(TellError { message, wait }) => {
                    tracing::warn!(%message, "Events cannot be written; they will be");
                    tokio::time::sleep(backoff.pause().max(wait.min(LONGEST))).await;
                }
            }
        }
    }
}

/// Why rows could not be told.
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

/// Tells what has not been told; how many rows there were. It is given up after as many failures as there are requests at
/// once: one row that cannot be told holds up no other, and a server that refuses all is left alone.
async fn tell(client: &Client, ledger: &Ledger, clock: Clock, fence: &Fence) -> Result<usize, TellError> {
    let rows = ledger.untold(BATCH).await?;
    let count = rows.len();
    if count == 0 {
        return Ok(0);
    }
    let (mut told, mut troubles) = (Vec::new(), Vec::new());
    let mut results = futures::stream::iter(rows.into_iter().map(|row| create(client, fence, row))).buffered(PARALLEL);
    while let Some(result) = results.next().await {
        match result {
            Ok(row) => told.push(row),
            Err(trouble) => troubles.push(trouble),
        }
        if troubles.len() >= PARALLEL {
            break;
        }
    }
    ledger.told(told, clock.now()).await?;
    troubles.pop().map_or(Ok(count), Err)
}

#[tracing::instrument(name = "event", level = "error", skip_all, fields(namespace = %row.name.namespace, htcjob = %row.name.name, uid = %row.uid, seq = row.seq))]
async fn create(client: &Client, fence: &Fence, row: Journaled) -> Result<(Uid, i64), TellError> {
    let api: Api<Event> = Api::namespaced(client.clone(), &row.name.namespace);
    let event = event(&row);
    fence.check()?;
    let parameters = PostParams::default();
    let created = limited("write an Event of HTCJob", &row.name, api.create(&parameters, &event));
    match around(Point::BeforeEventWritten, created, Point::AfterEventWritten).await {
        Ok(_) => {}
        // Told before; or it can never be told: the namespace is on its way out, or the Event is refused.
        Err(error) if error.code() == Some(409) => {}
        Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 422)) => {
            let message = error.answer().map(|status| status.message.as_str());
            tracing::warn!(message, "an Event was refused");
        }
        Err(error) => return Err(TellError { wait: error.retry_after(), message: error.to_string() }),
    }
    Ok((row.uid, row.seq))
}

fn event(row: &Journaled) -> Event {
    let short = row.uid.as_str().get(..8).unwrap_or_default();
    let stem: String = row.name.name.chars().take(200).collect();
    let time = Moment::from_millisecond(row.time.0)
        .ok()
        .map(|moment| Time(Moment::from_second(moment.as_second()).unwrap_or(moment)));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{stem}.{short}.{:04}", row.seq)),
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
