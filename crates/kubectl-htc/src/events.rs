//! Events of an HTCJob.

use htc_api::HTCJob;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::CommandFailure;
use super::cluster::JobsClient;

/// Returns the Events of the object, in no order.
pub(super) async fn events_of(jobs: &JobsClient, job: &HTCJob) -> Result<Vec<Event>, CommandFailure> {
    let api: Api<Event> = Api::namespaced(jobs.client.clone(), &jobs.namespace);
    let uid = job.uid().unwrap_or_default();
    let events = api.list(&ListParams::default().fields(&format!("involvedObject.uid={uid}"))).await;
    let doing = || format!("list the Events of HTCJob {}/{}", jobs.namespace, job.name_any());
    Ok(events.map_err(|error| CommandFailure::new(&doing(), error))?.items)
}

/// Returns when an Event happened.
pub(super) fn time(event: &Event) -> Timestamp {
    let time = event.event_time.as_ref().map(|time| time.0);
    time.or(event.last_timestamp.as_ref().map(|time| time.0)).unwrap_or_default()
}
