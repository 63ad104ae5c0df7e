//! What users want of single jobs: noted in the ledger, where the controller sees it.

use actix_web::HttpResponse;
use kube::Resource as _;

use super::{Found, Jobs};
use crate::api::text::harmless;
use crate::backends::Asked;
use crate::ledger::NotTaken;
use crate::machine::wishes::Wanted;
use crate::procs::answer::Failure;

/// Most bytes of a user's name in an Event.
const USER: usize = 128;

/// Takes a wish, and answers with the job as it is then. HTCondor has heard nothing of it yet.
pub(super) async fn wish(
    jobs: &Jobs,
    namespace: &str,
    name: &str,
    wanted: Wanted,
    user: &str,
) -> Result<HttpResponse, Failure> {
    let found = jobs.find(namespace, name).await?;
    possible(&found, wanted)?;
    let Found { parent, index, .. } = &found;
    let taken = jobs.records.ledger.wish(&parent.uid, *index, wanted, harmless(user, USER), jobs.clock.now()).await?;
    taken.map_err(|why| {
        Failure::conflict(match why {
            NotTaken::Ended => format!("{name} has ended"),
            NotTaken::Removed => format!("a user has removed {name}, and that cannot be taken back"),
            NotTaken::NotRecorded => {
                format!("the operator has not begun with HTCJob {} yet: try again in a moment", parent.name)
            }
        })
    })?;
    tracing::info!(user, %wanted, "a user wants something of a job");
    jobs.wakes.wake(&parent.uid, found.parent.htcjob());
    Ok(HttpResponse::Ok().json(jobs.find(namespace, name).await?.proc.object()))
}

/// Refuses what could come to nothing but confusion.
fn possible(found: &Found, wanted: Wanted) -> Result<(), Failure> {
    found.must_have(Asked::Wish)?;
    let (name, parent) = (found.proc.name.name(), &found.parent.name);
    let object = found.parent.object.as_ref();
    if found.proc.status.state.is_over() {
        return Err(Failure::conflict(format!("{name} has ended: {}", found.proc.status.state)));
    }
    if object.is_some_and(|object| object.meta().deletion_timestamp.is_some()) {
        return Err(Failure::conflict(format!("HTCJob {parent} is being deleted, and {name} with it")));
    }
    if let Some(Err(why)) = object.map(|object| object.0.as_ref().map_err(ToString::to_string)) {
        return Err(Failure::conflict(format!("the spec of HTCJob {parent} cannot be read: {why}")));
    }
    let suspended = object.and_then(|object| object.0.as_ref().ok()).is_some_and(|htcjob| htcjob.spec.suspend);
    if suspended && wanted == Wanted::Release {
        return Err(Failure::conflict(format!(
            "HTCJob {parent} is suspended, and {name} with it: set spec.suspend to false"
        )));
    }
    Ok(())
}
