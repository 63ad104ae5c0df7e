//! Reduces Kubernetes Jobs and Pods to what the operator reads.

use std::sync::Arc;
use std::time::Duration;

use htc_machine::ids::{SchedDate, Timestamp};
use htc_machine::pods::{BatchJob, Exceeded, JobEnd, Pod, PodPhase};
use htc_machine::runs::JobUid;
use htc_machine::text::sanitize;
use k8s_openapi::api::batch::v1;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::{CONTAINER, CONTROLLER_UID};

/// Maximum length of a Pod's message, in bytes.
const WORDS: usize = 500;
/// Reasons for which a container waits in a normal start.
const USUAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Summarizes a Job. Its indexes are Kubernetes' completion indexes.
#[must_use]
pub fn job(job: &v1::Job) -> Option<BatchJob> {
    let spec = job.spec.clone().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let indexes = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let is = |kind: &str| conditions.iter().find(|told| told.type_ == kind && told.status == "True");
    let failed = is("Failed");
    let end = match (is("Complete"), failed) {
        (Some(_), _) => Some(JobEnd::Complete),
        (None, Some(failed)) => Some(JobEnd::Failed {
            exceeded: exceeded(failed.reason.as_deref()),
            message: sanitize(failed.message.as_deref().unwrap_or_default(), WORDS),
        }),
        (None, None) => None,
    };
    let count = |count: Option<i32>| count.and_then(|count| u32::try_from(count).ok()).unwrap_or_default();
    let ended = is("Complete").or(failed).and_then(|told| told.last_transition_time.as_ref()).map(moment);
    Some(BatchJob {
        uid: JobUid::from(job.metadata.uid.as_deref()?),
        deleting: job.metadata.deletion_timestamp.is_some(),
        suspended: spec.suspend.unwrap_or_default(),
        completions: spec.completions.and_then(|count| u32::try_from(count).ok()),
        parallelism: spec.parallelism.and_then(|most| u32::try_from(most).ok()),
        deadline: spec.active_deadline_seconds.and_then(|limit| u64::try_from(limit).ok()).map(Duration::from_secs),
        started: status.start_time.as_ref().map(moment),
        stopped: is("Suspended").is_some(),
        active: count(status.active),
        terminating: count(status.terminating),
        settled: false,
        succeeded: indexes(status.completed_indexes),
        failed: indexes(status.failed_indexes),
        failing: is("FailureTarget").and_then(|told| exceeded(told.reason.as_deref())),
        end,
        ended,
    })
}

fn exceeded(reason: Option<&str>) -> Option<Exceeded> {
    match reason {
        Some("DeadlineExceeded") => Some(Exceeded::Deadline),
        Some("MaxFailedIndexesExceeded") => Some(Exceeded::FailedIndexes),
        Some(_) | None => None,
    }
}

fn moment(time: &Time) -> Timestamp {
    Timestamp(time.0.as_millisecond())
}

/// A Pod of a Job.
#[derive(Clone, Debug)]
pub(super) struct SeenPod {
    pub(super) job: JobUid,
    /// Completion index of the Pod.
    pub(super) completion: u32,
    /// Creation time and number of earlier failures. The greatest one of an index is its newest Pod.
    pub(super) order: (i64, u32),
    pub(super) pod: Pod,
}

/// Summarizes a Pod. Returns `None` if it does not belong to an Indexed Job.
pub(super) fn pod(pod: &k8s_openapi::api::core::v1::Pod) -> Option<SeenPod> {
    let ObjectMeta { name, annotations, owner_references, creation_timestamp, deletion_timestamp, .. } = &pod.metadata;
    let annotation = |name: &str| annotations.as_ref()?.get(name);
    let number = |name: &str| annotation(name).and_then(|text| text.parse::<u32>().ok());
    let owner =
        owner_references.iter().flatten().find(|owner| owner.controller == Some(true) && owner.kind == "Job")?;
    // The Job controller finds its Pods by this label. A Pod without it is not the Job's, whatever its owner references
    // say.
    if pod.metadata.labels.as_ref()?.get(CONTROLLER_UID) != Some(&owner.uid) {
        return None;
    }
    let failures = number("batch.kubernetes.io/job-index-failure-count").unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    // Containers that admission has injected are ignored.
    let container = status.container_statuses.iter().flatten().find(|told| told.name == CONTAINER);
    let state = container.and_then(|container| container.state.as_ref());
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let began = state.and_then(|state| state.running.as_ref()).and_then(|running| running.started_at.as_ref());
    let began = began.or_else(|| terminated.and_then(|ended| ended.started_at.as_ref()));
    let scheduled =
        status.conditions.iter().flatten().find(|told| told.type_ == "PodScheduled" && told.status == "True");
    let placed = scheduled.and_then(|told| told.last_transition_time.as_ref());
    let date = |time: &Time| SchedDate(time.0.as_second());
    let phase = match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => PodPhase::Ended,
        Some("Running") => PodPhase::Running,
        Some(_) | None => PodPhase::Pending(kept_from(&status, container).map(Into::into)),
    };
    let words =
        terminated.and_then(|ended| ended.message.as_ref().or(ended.reason.as_ref().filter(|why| *why != "Error")));
    let of_pod = || status.message.as_ref().or(status.reason.as_ref());
    let message = words.filter(|words| !words.trim().is_empty()).or_else(of_pod);
    Some(SeenPod {
        job: JobUid::from(owner.uid.as_str()),
        completion: number("batch.kubernetes.io/job-completion-index")?,
        order: (creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()), failures),
        pod: Pod {
            name: name.as_deref()?.into(),
            phase,
            failures,
            start: began.map(date),
            end: terminated.and_then(|ended| ended.finished_at.as_ref()).map(date),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).map(Into::into),
            placed: placed.map(moment),
            gone_by: deletion_timestamp.as_ref().map(moment),
            exit: terminated.map(|ended| ended.exit_code),
            message: message.map(|words| Arc::from(sanitize(words.trim(), WORDS) + architecture_hint(words))),
        },
    })
}

/// Returns why a Pod that has not started may never start.
fn kept_from(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<String> {
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let waiting = waiting.and_then(|waiting| {
        let reason = waiting.reason.as_deref().filter(|reason| !USUAL.contains(reason))?;
        Some((reason, waiting.message.as_deref()))
    });
    let unscheduled =
        status.conditions.iter().flatten().find(|told| told.type_ == "PodScheduled" && told.status == "False");
    let unscheduled = unscheduled.and_then(|told| Some((told.reason.as_deref()?, told.message.as_deref())));
    let (reason, message) = waiting.or(unscheduled)?;
    let (message, next) = message.map_or_else(Default::default, |message| (format!(": {message}"), next_step(message)));
    Some(sanitize(&format!("{reason}{message}"), WORDS) + next)
}

/// Returns advice for an image, or a program in it, that the node's processor cannot run.
fn architecture_hint(message: &str) -> &'static str {
    if message.trim_end().ends_with("exec format error") {
        ". The image or the program was built for another architecture than the node has: choose nodes by kubernetes.io/arch in spec.kubernetes.nodeSelector, or use an image for both"
    } else {
        ""
    }
}

/// Returns advice for an image that kubelet refuses under `runAsNonRoot`; kubelet's message gives none.
fn next_step(message: &str) -> &'static str {
    if message.contains("runAsNonRoot and image has non-numeric user") {
        ". Pods must not run as root, and the name of a user does not say whether it is root: build the image with a number as USER, such as `USER 1000` in its Dockerfile, or ask the operator's administrator to set --kubernetes-run-as-user or --kubernetes-pod-security=baseline. Then create the HTCJob again"
    } else if message.contains("runAsNonRoot and image will run as root") {
        ". Build the image with another USER than root, as a number, such as `USER 1000` in its Dockerfile, or ask the operator's administrator to set --kubernetes-run-as-user. Then create the HTCJob again"
    } else {
        ""
    }
}
