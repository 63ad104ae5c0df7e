//! The cluster's own nodes as a backend: what an `HTCJob` is as a Job, and what is seen of Jobs and Pods. Nothing is written here:
//! [`crate::controller`] does that.

mod changes;
mod creations;
mod plan;
mod pod_log;
mod progress;
mod seen;
mod template;
#[cfg(test)]
mod tests;
mod watch;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

pub use changes::Changes;
pub use creations::Creations;
pub use plan::{PodPlan, PodPlanError, Site};
pub use pod_log::PodLogs;
pub use progress::progress;
pub use seen::job as seen_job;
pub use template::{Identity, Texts, TooLarge, asked_for, config_map, job, job_name};
pub use watch::Watched;

/// Label of Jobs and Pods: uid of the `HTCJob`.
pub const HTCJOB_UID: &str = "htc.cern.ch/htcjob-uid";
/// Annotation of Jobs and Pods: name of the `HTCJob`, which may be too long for a label.
pub const HTCJOB: &str = "htc.cern.ch/htcjob";
/// Label that Kubernetes gives to the Pods of a Job: the Job's uid.
pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// The only container of the Pods.
const CONTAINER: &str = "job";
/// Where the script is in the container.
const MOUNTED: &str = "/etc/htcjob";

/// Whether this owner of a Job is an `HTCJob`. What is created, seen and deleted goes by the same rule.
pub(crate) fn is_htcjob(owner: &OwnerReference) -> bool {
    owner.kind == "HTCJob"
}
