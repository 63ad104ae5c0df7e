//! Publishes the status of the object.

use std::time::Duration;

use htc_api::HTCJobStatus;
use htc_support::failpoint::{Point, around};
use htc_support::kubernetes::FIELD_MANAGER;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::WriteError;
use super::pass::{Pass, earlier_requeue, requeue_unless_done};
use crate::htcjob::memory::{Deferral, PublishTiming};

/// Publishes a status, unless it is unchanged or expected to change soon. Returns the time until the next reconcile.
pub(super) async fn publish(
    pass: &Pass<'_>,
    status: HTCJobStatus,
    deferral: Deferral,
    requeue_after: Option<Duration>,
) -> Result<Option<Duration>, WriteError> {
    let context = pass.context;
    let waiting = || context.requests.waiting();
    Ok(match context.memory.publish(&pass.uid, &status, pass.status(), deferral, waiting, pass.now()) {
        PublishTiming::Unchanged => requeue_after,
        PublishTiming::Later(pause) => Some(earlier_requeue(requeue_after, pause)),
        PublishTiming::Now => requeue_unless_done(requeue_after, write(pass, status).await?),
    })
}

/// Writes the status. Returns false if the object was changed meanwhile.
async fn write(pass: &Pass<'_>, status: HTCJobStatus) -> Result<bool, WriteError> {
    let Pass { context, name, uid, .. } = pass;
    let patch = Patch::Apply(json!({
        "apiVersion": "htc.cern.ch/v1alpha1",
        "kind": "HTCJob",
        // With the uid, a newer object of the same name is not touched.
        "metadata": { "name": name.name, "uid": uid.as_str() },
        "status": status,
    }));
    let (api, parameters) = (pass.api(), PatchParams::apply(FIELD_MANAGER).force());
    let request = api.patch_status(&name.name, &parameters, &patch);
    let written = context.write_limiter.write("write the status of HTCJob", name, request);
    if !around(Point::BeforeStatusWritten, written, Point::AfterStatusWritten).await? {
        return Ok(false);
    }
    context.memory.published(uid, status);
    Ok(true)
}
