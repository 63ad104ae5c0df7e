//! Detection of what keeps Pods from starting or ending.

use std::collections::BTreeMap;
use std::time::Duration;

use super::PodsDecider;
use crate::condition::ConditionStatus::True;
use crate::condition::{ConditionType, Reason};
use crate::facts::Spec;
use crate::ids::{Index, Timestamp};
use crate::pods::facts::{BatchJob, Pod, PodPhase, PodsObservation};
use crate::status::jobs_text;

/// How long a Job may take to create its first Pod.
const FIRST_POD: Duration = Duration::from_secs(15);
/// How long a Pod may take to start on its node: large images take minutes.
const STARTED: Duration = Duration::from_secs(300);
/// Time after the end of a Pod's grace period by which a kubelet that answers has removed it.
const OVERDUE: Duration = Duration::from_secs(30);

impl PodsDecider<'_> {
    /// Sets or clears the condition `Stuck`.
    pub(super) fn find_stuck(&mut self, spec: &Spec, job: &BatchJob) {
        let PodsObservation::Known(pods) = &self.facts.pods else { return };
        let found = self.silent_node(pods).or_else(|| self.not_started(pods)).or_else(|| self.no_pod(pods, spec, job));
        if let Some((reason, message)) = found {
            self.set_condition(ConditionType::Stuck, True, reason, &message);
        } else {
            let message = "no Pod is kept from starting or ending";
            self.clear_condition(ConditionType::Stuck, Reason::PodsStart, message);
        }
    }

    /// Finds Pods on nodes that do not answer. A deleted Pod ends when its node reports that; no other replaces it
    /// before.
    fn silent_node(&mut self, pods: &BTreeMap<Index, Pod>) -> Option<(Reason, String)> {
        let gone_by = |pod: &Pod| pod.gone_by.filter(|_| pod.phase != PodPhase::Ended);
        let (overdue, index, Pod { name, node, .. }) = self.overdue(pods, gone_by, OVERDUE)?;
        let node = node.as_deref().unwrap_or("(none)");
        let message = format!(
            "{} held up by a node that does not answer. Pod {name} of job {index} is being deleted, and may still run on node {node}: no other Pod takes its place before it has ended. The job goes on when the node is back, or when an administrator deletes the Node",
            jobs_that(overdue, "is", "are")
        );
        Some((Reason::NodeNotAnswering, message))
    }

    fn not_started(&mut self, pods: &BTreeMap<Index, Pod>) -> Option<(Reason, String)> {
        // If some Pods run, others may wait for a place: Pods that have a node do not.
        let some_run = pods.values().any(|pod| pod.phase == PodPhase::Running);
        let mut stuck = pods.iter().filter(|(_, pod)| !some_run || pod.node.is_some()).filter_map(|(index, pod)| {
            match &pod.phase {
                PodPhase::Pending(Some(why)) => Some((index, &pod.name, why)),
                PodPhase::Pending(None) | PodPhase::Running | PodPhase::Ended => None,
            }
        });
        if let Some((index, name, why)) = stuck.next() {
            let count = jobs_text(1 + stuck.count());
            let message = format!("{count} cannot start. Pod {name} of job {index}: {why}");
            return Some((Reason::PodsCannotStart, message));
        }
        if some_run {
            return None;
        }
        let placed = |pod: &Pod| pod.placed.filter(|_| matches!(pod.phase, PodPhase::Pending(_)));
        let (slow, index, Pod { name, .. }) = self.overdue(pods, placed, STARTED)?;
        let message = format!(
            "{} not started {} min after a node was chosen. Pod {name} of job {index}: its Events say what it waits for, for example a large image or a volume that cannot be mounted (kubectl describe pod {name})",
            jobs_that(slow, "has", "have"),
            STARTED.as_secs() / 60
        );
        Some((Reason::PodsCannotStart, message))
    }

    fn no_pod(&mut self, pods: &BTreeMap<Index, Pod>, spec: &Spec, job: &BatchJob) -> Option<(Reason, String)> {
        let none_yet = pods.is_empty() && job.succeeded.is_empty() && job.failed.is_empty() && job.end.is_none();
        let waits = none_yet && !spec.suspend && !job.suspended && spec.parallelism != Some(0);
        let resumed = job.started.or(self.known.started).filter(|_| waits)?;
        if !self.has_passed(resumed, FIRST_POD) {
            return None;
        }
        if job.started.is_none() {
            let message = format!(
                "no Job controller has looked at Job {}: ask an administrator whether kube-controller-manager runs",
                self.facts.object.job_name
            );
            return Some((Reason::PodsNotCreated, message));
        }
        let message = format!(
            "Job {name} has made no Pod yet: its Events say why, for example a ResourceQuota (kubectl describe job {name})",
            name = self.facts.object.job_name
        );
        Some((Reason::PodsNotCreated, message))
    }

    /// Returns the number of Pods for which this much time has passed since `since`, and the first of them.
    fn overdue<'p>(
        &mut self,
        pods: &'p BTreeMap<Index, Pod>,
        since: impl Fn(&Pod) -> Option<Timestamp>,
        time: Duration,
    ) -> Option<(usize, &'p Index, &'p Pod)> {
        let mut is_overdue = |pod: &Pod| since(pod).is_some_and(|since| self.has_passed(since, time));
        let overdue: Vec<_> = pods.iter().filter(|(_, pod)| is_overdue(pod)).collect();
        overdue.first().map(|(index, pod)| (overdue.len(), *index, *pod))
    }

    /// Whether this much time has passed; if not, requeues for then. `since` is from another clock, and may be ahead.
    fn has_passed(&mut self, since: Timestamp, time: Duration) -> bool {
        self.is_due(since.min(self.now).plus(time))
    }
}

fn jobs_that(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", jobs_text(count), if count == 1 { one } else { many })
}
