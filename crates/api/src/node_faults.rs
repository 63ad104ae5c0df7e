//! Runs of jobs that ended by faults of their nodes.

use htc_machine::node_fault_counts::NodeFaultCounts;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Runs of jobs that ended by faults of their nodes, and not of the jobs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeFaultsStatus {
    /// Number of these runs.
    pub runs: i64,
    /// Number of jobs that had such runs.
    pub jobs: i64,
    /// Machine of most of these runs.
    #[schemars(length(max = 256))]
    pub most_often: String,
    /// Machine of the last of these runs.
    #[schemars(length(max = 256))]
    pub last_machine: String,
    /// Why the last of these runs ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub cause: Option<String>,
}

impl From<&NodeFaultCounts> for NodeFaultsStatus {
    fn from(counts: &NodeFaultCounts) -> Self {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let name = |machine: &str| machine.chars().take(256).collect();
        Self {
            runs: number(counts.runs),
            jobs: number(counts.jobs),
            most_often: name(&counts.most_often),
            last_machine: name(&counts.last_machine),
            cause: counts.cause.map(|cause| cause.sentence().to_owned()),
        }
    }
}
