//! Faults of nodes: HTCondor runs such jobs again by itself. Here they are reported.

use super::Decider;
use crate::condition::ConditionStatus::True;
use crate::condition::{ConditionType, Reason};
use crate::facts::WaitsFor;
use crate::node_fault_counts::NodeFaultCounts;
use crate::status::jobs_text;

impl Decider<'_> {
    /// Sets `NodeFaults` while a job that has not ended had a fault of its node.
    pub(super) fn set_node_faults_condition(&mut self) {
        let open = self.record.jobs.values().filter(|job| job.outcome().is_none());
        if !open.clone().any(|job| job.runs.faults.is_some()) {
            let message = "no job that has not ended had a fault of its node";
            return self.clear_condition(ConditionType::NodeFaults, Reason::NoNodeFaults, message);
        }
        let waiting = open.filter(|job| job.runs.waits_for == Some(WaitsFor::OtherNode)).count();
        let Some(counts) = NodeFaultCounts::of(&self.record) else { return };
        let cause = counts.cause.map(|cause| format!(": {}", cause.sentence())).unwrap_or_default();
        let message = format!(
            "{} of {} ended by faults of their nodes, most often on {}, last on {}{cause}; this is no failure of the jobs: \
             HTCondor runs them again on other machines, after a pause that {} of them still have; have the machine repaired, or exclude it \
             in another HTCJob: spec.requirements: TARGET.Machine =!= \"{}\"",
            if counts.runs == 1 { "1 run".to_owned() } else { format!("{} runs", counts.runs) },
            jobs_text(counts.jobs),
            counts.most_often,
            counts.last_machine,
            waiting,
            counts.most_often
        );
        self.set_condition(ConditionType::NodeFaults, True, Reason::TriedElsewhere, &message);
    }
}
