//! Actions that users request for single jobs. They are recorded in the ledger, where the controller finds them.

use actix_web::HttpResponse;
use htc_ledger::ActionRefusal;
use htc_machine::actions::JobAction;
use htc_machine::text::sanitize;
use kube::Resource as _;

use super::{FoundJob, JobsService};
use crate::backends::JobFeature;
use crate::jobs_api::resource::status_error::StatusError;

/// Maximum bytes of a user's name in an Event.
const USER: usize = 128;

/// Records a requested action, and answers with the job as it is then. HTCondor has not been asked yet.
pub(super) async fn request_action(
    jobs: &JobsService,
    namespace: &str,
    name: &str,
    wanted: JobAction,
    user: &str,
) -> Result<HttpResponse, StatusError> {
    let found = jobs.find(namespace, name).await?;
    possible(&found, wanted)?;
    let FoundJob { parent, index, .. } = &found;
    let taken =
        jobs.records.ledger.request_action(&parent.uid, *index, wanted, sanitize(user, USER), jobs.clock.now()).await?;
    taken.map_err(|why| {
        StatusError::conflict(match why {
            ActionRefusal::Ended => format!("{name} has ended"),
            ActionRefusal::Removed => format!("a user has removed {name}, and that cannot be taken back"),
            ActionRefusal::NotRecorded => {
                format!("the operator has not begun with HTCJob {} yet: try again in a moment", parent.name)
            }
        })
    })?;
    tracing::info!(user, %wanted, "job action requested");
    jobs.wakes.wake(&parent.uid, found.parent.htcjob());
    Ok(HttpResponse::Ok().json(jobs.find(namespace, name).await?.proc.object()))
}

/// Refuses actions that could only cause confusion.
fn possible(found: &FoundJob, wanted: JobAction) -> Result<(), StatusError> {
    found.require_feature(JobFeature::Action)?;
    let (name, parent) = (found.proc.name.name(), &found.parent.name);
    let object = found.parent.object.as_ref();
    if found.proc.status.state.is_over() {
        return Err(StatusError::conflict(format!("{name} has ended: {}", found.proc.status.state)));
    }
    if object.is_some_and(|object| object.meta().deletion_timestamp.is_some()) {
        return Err(StatusError::conflict(format!("HTCJob {parent} is being deleted, and {name} with it")));
    }
    if let Some(Err(why)) = object.map(|object| object.0.as_ref().map_err(ToString::to_string)) {
        return Err(StatusError::conflict(format!("the spec of HTCJob {parent} cannot be read: {why}")));
    }
    let suspended = object.and_then(|object| object.0.as_ref().ok()).is_some_and(|htcjob| htcjob.spec.suspend);
    if suspended && wanted == JobAction::Release {
        return Err(StatusError::conflict(format!(
            "HTCJob {parent} is suspended, and {name} with it: set spec.suspend to false"
        )));
    }
    Ok(())
}
