//! The cluster's own nodes as a backend: builds the Job of an `HTCJob`, and watches Jobs and Pods. [`crate::htcjob`]
//! does all the writing.

mod pod_log;
mod refused_changes;
mod refused_creations;
mod summaries;
mod template;
#[cfg(test)]
mod tests;
mod watch;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

pub use pod_log::PodLogs;
pub use refused_changes::RefusedChanges;
pub use refused_creations::RefusedCreations;
pub use summaries::job as seen_job;
pub use template::{JobOwner, Texts, TooLarge, config_map, job, job_name, pod_requests};
pub use watch::JobCache;

/// Label of Jobs and Pods: uid of the `HTCJob`.
pub const HTCJOB_UID: &str = "htc.cern.ch/htcjob-uid";
/// Annotation of Jobs and Pods: name of the `HTCJob`, which may be too long for a label.
pub const HTCJOB: &str = "htc.cern.ch/htcjob";
/// Label that Kubernetes adds to the Pods of a Job: the Job's uid.
pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// Name of the main container, the only one in the template.
const CONTAINER: &str = "job";

/// Whether this owner of a Job is an `HTCJob`. Creation, watch and deletion use the same rule.
pub(crate) fn is_htcjob(owner: &OwnerReference) -> bool {
    owner.kind == "HTCJob"
}
