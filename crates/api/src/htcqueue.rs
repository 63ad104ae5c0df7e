//! HTCQueue: limits on the jobs that are in HTCondor at a time, and their division among namespaces.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{Condition, Quantity, quantity};

/// Label of an HTCJob with the name of its HTCQueue. Kueue uses the same label.
pub const QUEUE_NAME_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label of an HTCJob with one of the names in `spec.priorities` of its HTCQueue. Kueue uses the same label.
pub const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Type of the only condition of an HTCQueue.
pub const ACTIVE_CONDITION: &str = "Active";

/// Which HTCJobs the queue is for, and how many of their jobs may be in HTCondor at a time.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "htc.cern.ch",
    version = "v1alpha1",
    kind = "HTCQueue",
    plural = "htcqueues",
    shortname = "htcq",
    status = "HTCQueueStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "An HTCQueue limits how many jobs of HTCJobs are in HTCondor at a time. HTCJobs name it in the label kueue.x-k8s.io/queue-name.",
    printcolumn(
        name = "Used",
        type_ = "integer",
        json_path = ".status.used.jobs",
        description = "jobs that have quota"
    ),
    printcolumn(
        name = "Quota",
        type_ = "integer",
        json_path = ".spec.quota.jobs",
        description = "maximum number of jobs that may have quota"
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waitingJobs",
        description = "jobs that wait for quota"
    ),
    printcolumn(
        name = "Active",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Active')].status",
        description = "whether jobs get quota in this queue"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Active')].message",
        description = "explanation of the condition Active",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("!has(self.queueingStrategy) || self.queueingStrategy != 'StrictFIFO' || !has(self.fairSharing) || !self.fairSharing")
        .message("StrictFIFO serves HTCJobs by priority and age only: leave fairSharing out, or write BestEffortFIFO").field_path(".fairSharing")
)]
#[serde(rename_all = "camelCase")]
pub struct HTCQueueSpec {
    /// Namespaces whose HTCJobs may use the queue, by their labels. `{}` selects all namespaces. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<NamespaceSelector>,

    /// The queue is also for HTCJobs of these namespaces that name no queue.
    /// If several queues are default for a namespace, the one whose name comes first in the alphabet is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,

    /// Quota of all jobs in the queue together. Resources that are left out are not limited.
    #[serde(default)]
    pub quota: Quota,

    /// Quota of the jobs of each namespace. Resources that are left out are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_namespace: Option<Quota>,

    /// Among HTCJobs of the same priority, the namespace that uses least is served first. Default: true, with StrictFIFO false.
    /// With false the oldest HTCJob is served first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<bool>,

    /// With `BestEffortFIFO`, an HTCJob that does not fit is passed by others that do. This is the default.
    /// With `StrictFIFO` none passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queueing_strategy: Option<QueueingStrategy>,

    /// Numbers for the names that HTCJobs may have in the label `kueue.x-k8s.io/priority-class`. Higher ones are served first.
    /// HTCJobs without this label have priority 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(name, name.size() <= 63)")
        .message("a name in priorities is the value of a label: at most 63 characters"))]
    pub priorities: BTreeMap<String, i32>,

    /// `Hold` gives no quota to further jobs. `HoldAndDrain` also holds the jobs that are in HTCondor and deletes Pods, as spec.suspend of their HTCJobs does.
    /// Default: `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_policy: Option<StopPolicy>,
}

/// Amounts that may be used at most.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Jobs that are in HTCondor, or on their way there, and have not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1000000000")
        .message("jobs is a number of jobs, 0 or more; leave it out for no limit"))]
    pub jobs: Option<i64>,
    /// Cores of these jobs, as they request them in HTCondor. A job that requests none has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1000000000")
        .message("cpus is a number of cores, 0 or more; leave it out for no limit"))]
    pub cpus: Option<i64>,
    /// Memory of these jobs, such as 500Gi. HTCJobs must then say how much memory each job needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(quantity::BYTES)
        .message("memory is a Kubernetes quantity such as 500Gi; a number alone is bytes"))]
    pub memory: Option<Quantity>,
    /// GPUs of these jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1000000000")
        .message("gpus is a number of GPUs, 0 or more; leave it out for no limit"))]
    pub gpus: Option<i64>,
}

/// Namespaces, by their labels. All that is written must be true of a namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Labels that the namespace must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = { "type": "string", "maxLength": 63 }))]
    pub match_labels: BTreeMap<String, String>,
    /// What must be true of its labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// What must be true of one label.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    /// Name of the label.
    #[schemars(length(max = 317))]
    pub key: String,
    /// What must be true: `In`, `NotIn` (one of the values), `Exists` or `DoesNotExist`.
    pub operator: LabelOperator,
    /// Values, for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// How a label is compared, as in Kubernetes' label selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum LabelOperator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// Whether HTCJobs that do not fit are passed. Default: BestEffortFIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum QueueingStrategy {
    /// They are.
    #[serde(rename = "BestEffortFIFO")]
    BestEffortFifo,
    /// They are not.
    #[serde(rename = "StrictFIFO")]
    StrictFifo,
}

/// What an administrator has stopped. Default: None. `Hold` gives no quota to further jobs; `HoldAndDrain` also holds jobs in HTCondor and deletes Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum StopPolicy {
    /// It is.
    None,
    /// No further job gets quota.
    Hold,
    /// The same, and jobs in HTCondor are held and Pods deleted.
    HoldAndDrain,
}

/// Observed state of the HTCQueue.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HTCQueueStatus {
    /// Generation of the spec that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is in use. It may be more than a quota that was lowered.
    #[serde(default)]
    pub used: Used,
    /// HTCJobs that have quota for some of their jobs.
    #[serde(default)]
    pub admitted: i64,
    /// HTCJobs that wait for quota, for all or for some of their jobs.
    #[serde(default)]
    pub pending: i64,
    /// Jobs that wait for quota.
    #[serde(default)]
    pub waiting_jobs: i64,
    /// The same for each namespace: the first 100 in the order of the alphabet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub by_namespace: Vec<NamespaceUsed>,
    /// The first 10 HTCJobs that wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub waiting: Vec<WaitingHTCJob>,
    /// Active: whether jobs get quota in this queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Amounts in use.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Number of jobs in use.
    #[serde(default)]
    pub jobs: i64,
    /// Number of cores in use.
    #[serde(default)]
    pub cpus: i64,
    /// Memory in use, for example 2048Mi.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub memory: String,
    /// Number of GPUs in use.
    #[serde(default)]
    pub gpus: i64,
}

/// What the HTCJobs of one namespace use.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsed {
    /// Name of the namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// What is in use.
    #[serde(default)]
    pub used: Used,
    /// HTCJobs that wait for quota.
    #[serde(default)]
    pub pending: i64,
}

/// An HTCJob that waits for quota.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingHTCJob {
    /// Namespace of the HTCJob.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the HTCJob.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its position in the queue, from 1. An HTCJob that cannot get quota as it is has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<i64>,
    /// Jobs of it that wait.
    #[serde(default)]
    pub jobs: i64,
    /// Reason of its condition QuotaReserved.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// What it waits for.
    #[schemars(length(max = 1024))]
    pub message: String,
}

impl NamespaceSelector {
    /// Whether the selector matches a namespace with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.is_met_by(labels))
    }
}

impl LabelRequirement {
    fn is_met_by(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_one_of_them = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            LabelOperator::In => is_one_of_them,
            LabelOperator::NotIn => !is_one_of_them,
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

impl HTCQueueSpec {
    /// Whether HTCJobs of a namespace with these labels may use the queue.
    #[must_use]
    pub fn admits(&self, labels: &BTreeMap<String, String>) -> bool {
        self.namespace_selector.as_ref().is_some_and(|selector| selector.selects(labels))
    }

    /// Returns the queue's stop policy.
    #[must_use]
    pub fn stop(&self) -> StopPolicy {
        self.stop_policy.unwrap_or(StopPolicy::None)
    }
}

impl HTCQueue {
    /// Returns the condition `Active`.
    #[must_use]
    pub fn active_condition(&self) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == ACTIVE_CONDITION)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({ "matchLabels": { "team": "atlas" } }), true)]
    #[case(json!({ "matchLabels": { "team": "cms" } }), false)]
    #[case(json!({ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["atlas", "cms"] }] }), true)]
    #[case(json!({ "matchExpressions": [{ "key": "team", "operator": "NotIn", "values": ["atlas"] }] }), false)]
    #[case(json!({ "matchExpressions": [{ "key": "other", "operator": "NotIn", "values": ["atlas"] }] }), true)]
    #[case(json!({ "matchExpressions": [{ "key": "team", "operator": "Exists" }] }), true)]
    #[case(json!({ "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] }), false)]
    #[case(json!({ "matchLabels": { "team": "atlas" }, "matchExpressions": [{ "key": "x", "operator": "Exists" }] }), false)]
    fn namespace_selector_matches_as_in_kubernetes(#[case] selector: serde_json::Value, #[case] selected: bool) {
        let labels = BTreeMap::from([("team".to_owned(), "atlas".to_owned())]);
        let spec: HTCQueueSpec = serde_json::from_value(json!({ "namespaceSelector": selector })).unwrap();
        assert_eq!(spec.admits(&labels), selected);
        assert!(!HTCQueueSpec::default().admits(&labels), "a queue without a selector admits no namespace");
    }
}
