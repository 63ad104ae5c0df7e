//! What keeps Pods from starting, or from ending.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Run;
use crate::api::ConditionStatus::True;
use crate::api::{ConditionType, Reason};
use crate::machine::facts::Spec;
use crate::machine::ids::{Index, Timestamp};
use crate::machine::pods::facts::{BatchJob, Pod, PodPhase, PodsSeen};
use crate::machine::status::jobs;

/// How long a Job has to make its first Pod.
const FIRST_POD: Duration = Duration::from_secs(15);
/// How long a Pod has to start on its node: large images take minutes.
const STARTED: Duration = Duration::from_secs(300);
/// A kubelet that answers has removed a Pod by then, counted from the end of the Pod's grace period.
const OVERDUE: Duration = Duration::from_secs(30);

impl Run<'_> {
    /// Says so, or that nothing does.
    pub(super) fn find_stuck(&mut self, spec: &Spec, job: &BatchJob) {
        let PodsSeen::Known(pods) = &self.facts.pods else { return };
        let found = self.silent_node(pods).or_else(|| self.not_started(pods)).or_else(|| self.no_pod(pods, spec, job));
        if let Some((reason, message)) = found {
            self.say(ConditionType::Stuck, True, reason, &message);
        } else {
            let message = "no Pod is kept from starting or ending";
            self.conditions.clear(ConditionType::Stuck, Reason::PodsStart.into(), message, self.now);
        }
    }

    /// A Pod that is deleted ends when its node says so; none takes its place before.
    fn silent_node(&mut self, pods: &BTreeMap<Index, Pod>) -> Option<(Reason, String)> {
        let (mut overdue, mut first) = (0, None);
        for (index, pod) in pods {
            let Some(by) = pod.gone_by.filter(|_| pod.phase != PodPhase::Ended) else { continue };
            if self.is_due(by, OVERDUE) {
                overdue += 1;
                first = first.or(Some((index, pod)));
            }
        }
        let (index, Pod { name, node, .. }) = first?;
        let node = node.as_deref().unwrap_or("(none)");
        let message = format!(
            "{} held up by a node that does not answer. Pod {name} of job {index} is being deleted, and may still run on node {node}: no other Pod takes its place before it has ended. The job goes on when the node is back, or when an administrator deletes the Node",
            jobs_that(overdue, "is", "are")
        );
        Some((Reason::NodeNotAnswering, message))
    }

    fn not_started(&mut self, pods: &BTreeMap<Index, Pod>) -> Option<(Reason, String)> {
        // Where some run, others may wait for their turn: those that have a node do not.
        let some_run = pods.values().any(|pod| pod.phase == PodPhase::Running);
        let mut stuck = pods.iter().filter(|(_, pod)| !some_run || pod.node.is_some()).filter_map(|(index, pod)| {
            match &pod.phase {
                PodPhase::Pending(Some(why)) => Some((index, &pod.name, why)),
                PodPhase::Pending(None) | PodPhase::Running | PodPhase::Ended => None,
            }
        });
        if let Some((index, name, why)) = stuck.next() {
            let count = jobs(1 + stuck.count());
            let message = format!("{count} cannot start. Pod {name} of job {index}: {why}");
            return Some((Reason::PodsCannotStart, message));
        }
        if some_run {
            return None;
        }
        let (mut slow, mut first) = (0, None);
        for (index, pod) in pods {
            let Some(placed) = pod.placed.filter(|_| matches!(pod.phase, PodPhase::Pending(_))) else { continue };
            if self.is_due(placed, STARTED) {
                slow += 1;
                first = first.or(Some((index, pod)));
            }
        }
        let (index, Pod { name, .. }) = first?;
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
        if !self.is_due(resumed, FIRST_POD) {
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

    /// So long after this; if not, it is looked at again then.
    fn is_due(&mut self, since: Timestamp, after: Duration) -> bool {
        let passed = self.now.since(since);
        if passed < after {
            self.look_again(after.saturating_sub(passed));
        }
        passed >= after
    }
}

fn jobs_that(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", jobs(count), if count == 1 { one } else { many })
}
