//! First line of the text about an HTCJob.

use htc_api::{HTCJob, HTCJobStatus};
use kube::ResourceExt as _;

/// Returns the state of an HTCJob in one line.
pub(super) fn head(namespace: &str, job: &HTCJob, status: &HTCJobStatus) -> String {
    let total = status.total.or_else(|| job.spec.job_count());
    let state = status.state.clone().or_else(|| status.phase.map(|phase| phase.to_string()));
    format!(
        "HTCJob {namespace}/{}: {}; {} of {} jobs succeeded, {} failed, {} running, {} idle, {} held",
        job.name_any(),
        state.as_deref().unwrap_or("no operator has seen it yet"),
        status.succeeded,
        total.map_or_else(|| "?".to_owned(), |total| total.to_string()),
        status.failed,
        status.running,
        status.idle,
        status.held
    )
}
