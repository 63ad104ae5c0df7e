//! The Events of an HTCJob.

use htc_operator::api::HTCJob;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::cluster::Jobs;

/// The Events of the object, in no order.
pub(super) async fn events_of(jobs: &Jobs, job: &HTCJob) -> Result<Vec<Event>, kube::Error> {
    let api: Api<Event> = Api::namespaced(jobs.client.clone(), &jobs.namespace);
    let uid = job.uid().unwrap_or_default();
    Ok(api.list(&ListParams::default().fields(&format!("involvedObject.uid={uid}"))).await?.items)
}

/// When it happened.
pub(super) fn time(event: &Event) -> Timestamp {
    let time = event.event_time.as_ref().map(|time| time.0);
    time.or(event.last_timestamp.as_ref().map(|time| time.0)).unwrap_or_default()
}
