use htc_machine::condition::ConditionStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One aspect of the object's current state (the fields of `metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, for example Submitted, Held or Complete.
    #[serde(rename = "type")]
    #[schemars(length(max = 64))]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// Reason in one word. docs/troubleshooting.md explains each.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Human-readable explanation and, if there is one, the next step.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// Time at which the status last changed.
    pub last_transition_time: Time,
    /// Generation of the spec that the condition refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
