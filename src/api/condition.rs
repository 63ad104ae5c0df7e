use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumIter, EnumString};

/// The conditions an `HTCJob` can carry, in the order in which they stand in its status.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, EnumIter, EnumString,
)]
pub enum ConditionType {
    /// All jobs have been accepted by HTCondor; `False` says what they wait for.
    Submitted,
    /// HTCondor answers questions about the jobs; `False` says why what is shown may be old.
    Tracked,
    /// Some jobs are on hold in HTCondor; the message has HTCondor's reason.
    Held,
    /// `spec.suspend` is in force.
    Suspended,
    /// The output of the ended jobs lies in the output folder.
    OutputFetched,
    /// Deletion: the jobs are gone from HTCondor; `False` says what is waited for.
    JobsRemoved,
    /// Every job succeeded.
    Complete,
    /// Every job has ended, and some did not succeed.
    Failed,
}

/// `metav1.ConditionStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Display, EnumString)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// One thing that holds of the HTCJob, or does not, and why (the fields of `metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about, e.g. Submitted, Held, Complete.
    #[serde(rename = "type")]
    #[schemars(length(max = 64))]
    pub type_: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// Why, as one word.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Why, for people.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: Time,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
