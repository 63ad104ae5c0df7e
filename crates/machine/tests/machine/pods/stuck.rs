//! The condition `Stuck` of Pods that do not start, or do not end.

use std::time::Duration;

use htc_machine::condition::{ConditionStatus, ConditionType, Reason};
use htc_machine::facts::Spec;
use htc_machine::pods::{
    BatchJob, DesiredJob, JobObservation, Pod, PodPhase, PodsAction, PodsFacts, PodsObservation, decide_pods,
};
use htc_machine::{Index, Indices, Settings, Timestamp};

use super::{NOW, begun, decide, guarded, is_said, job, pod, spec, step};

/// What the condition `Stuck` says, and when that is looked at again.
fn stuck(pods: &[Pod]) -> (Option<(bool, Reason, String)>, Option<Duration>) {
    let mut facts = begun(3);
    facts.job = JobObservation::Ours(BatchJob { suspended: false, started: Some(NOW), ..job("j") });
    let indexes = (0..).map(Index);
    facts.pods = PodsObservation::Known(indexes.zip(pods.iter().cloned()).collect());
    let decision = decide(&facts);
    let conditions = decision.after.unwrap().row.unwrap().conditions;
    let told = conditions.into_iter().find(|told| told.kind == ConditionType::Stuck);
    let told = told.map(|told| (told.status == ConditionStatus::True, told.reason.parse().unwrap(), told.message));
    (told, decision.requeue_after)
}

fn seconds_ago(seconds: i64) -> Timestamp {
    Timestamp(NOW.0 - 1000 * seconds)
}

#[test]
fn pod_on_an_unresponsive_node_is_reported_as_stuck() {
    let deleted =
        |ago| Pod { gone_by: Some(seconds_ago(ago)), node: Some("n1".into()), ..pod(PodPhase::Running, None) };
    assert_eq!(stuck(&[deleted(29), pod(PodPhase::Running, None)]), (None, Some(Duration::from_secs(1))));
    let (told, _) = stuck(&[pod(PodPhase::Running, None), deleted(30), deleted(31)]);
    let (is, reason, message) = told.unwrap();
    assert!(is && reason == Reason::NodeNotAnswering, "{reason}");
    let words = "2 jobs are held up by a node that does not answer. Pod sums-0-x of job 1 is being deleted";
    assert!(message.starts_with(words) && message.contains("node n1"), "{message}");
    // One that has ended has only not been taken away.
    assert_eq!(stuck(&[Pod { phase: PodPhase::Ended, ..deleted(999) }]).0, None);
}

#[test]
fn image_pull_failure_is_reported_while_other_pods_run() {
    let waits = |why: &str, node: Option<&str>| Pod {
        node: node.map(Into::into),
        ..pod(PodPhase::Pending(Some(why.into())), None)
    };
    let pull = || waits("ImagePullBackOff: Back-off pulling image \"typo\"", Some("n2"));
    let turn = || waits("Unschedulable: 0/9 nodes are available", None);
    let (told, _) = stuck(&[pod(PodPhase::Running, None), pull(), turn()]);
    let (is, reason, message) = told.unwrap();
    assert!(is && reason == Reason::PodsCannotStart, "{reason}");
    assert!(message.starts_with("1 job cannot start. Pod sums-0-x of job 1: ImagePullBackOff"), "{message}");
    assert_eq!(stuck(&[pod(PodPhase::Running, None), turn()]).0, None, "it waits for its turn");
    assert!(stuck(&[turn(), turn()]).0.unwrap().2.starts_with("2 jobs cannot start. Pod sums-0-x of job 0: Unsched"));
}

#[test]
fn slowly_starting_pod_is_reported_as_stuck() {
    let placed = |ago, phase| Pod { placed: Some(seconds_ago(ago)), ..pod(phase, None) };
    let pending = || PodPhase::Pending(None);
    assert_eq!(stuck(&[placed(299, pending())]), (None, Some(Duration::from_secs(1))));
    let (told, _) = stuck(&[placed(300, pending()), placed(2, pending())]);
    let (is, reason, message) = told.unwrap();
    assert!(is && reason == Reason::PodsCannotStart, "{reason}");
    assert!(
        message.starts_with("1 job has not started 5 min after a node was chosen. Pod sums-0-x of job 0"),
        "{message}"
    );
    assert_eq!(stuck(&[placed(999, pending()), placed(999, PodPhase::Running)]).0, None, "it waits for its turn");
    assert_eq!(stuck(&[pod(pending(), None)]).0, None, "no node was chosen yet");
}

#[test]
fn job_without_expected_pods_is_reported_as_stuck() {
    let told = |change: &dyn Fn(&mut PodsFacts, &mut BatchJob)| {
        let mut facts = begun(3);
        let mut its = BatchJob { suspended: false, started: Some(seconds_ago(15)), ..job("j") };
        change(&mut facts, &mut its);
        facts.job = JobObservation::Ours(its);
        let conditions = decide(&facts).after.unwrap().row.unwrap().conditions;
        conditions.into_iter().find(|told| told.kind == ConditionType::Stuck).map(|told| told.message)
    };
    let message = told(&|_, _| ()).unwrap();
    assert!(message.starts_with("Job sums-12345678 has made no Pod yet"), "{message}");
    assert_eq!(told(&|_, job| job.started = Some(seconds_ago(14))), None);
    assert_eq!(told(&|_, job| job.suspended = true), None);
    assert_eq!(told(&|_, job| job.succeeded = Indices::first(1)), None, "it has made one");
    assert_eq!(told(&|facts, _| facts.object.spec = Ok(Spec { suspend: true, ..spec(3) })), None);
    assert_eq!(told(&|facts, _| facts.object.spec = Ok(Spec { parallelism: Some(0), ..spec(3) })), None);
}

#[test]
fn end_of_stuck_is_reported() {
    let mut facts = begun(1);
    facts.job =
        JobObservation::Ours(BatchJob { suspended: false, started: Some(NOW), parallelism: Some(1), ..job("j") });
    for (phase, status, reason) in [
        (PodPhase::Pending(Some("ErrImagePull".into())), ConditionStatus::True, Reason::PodsCannotStart),
        (PodPhase::Running, ConditionStatus::False, Reason::PodsStart),
    ] {
        facts.pods = PodsObservation::Known([(Index(0), pod(phase, None))].into());
        step(&mut facts);
        assert!(is_said(&facts, ConditionType::Stuck, status, reason));
    }
}

/// A Job that was suspended for long is not one at which nobody looks.
#[test]
fn stuck_timeout_starts_when_the_job_is_resumed() {
    let at = |seconds: i64| Timestamp(NOW.0 + 1000 * seconds);
    let decide_at = |facts: &PodsFacts, now| decide_pods(facts, now, &Settings::default()).unwrap();
    for room in [1, 2] {
        let mut facts = guarded(2);
        facts.namespace_limit = Some(0);
        facts.job = JobObservation::Ours(BatchJob { parallelism: Some(2), stopped: true, ..job("j") });
        for now in [NOW, at(600)] {
            let decision = decide_at(&facts, now);
            assert_eq!(decision.action, PodsAction::Nothing);
            facts.record = decision.after.unwrap();
        }
        facts.namespace_limit = Some(room);
        let decision = decide_at(&facts, at(610));
        assert!(
            matches!(decision.action, PodsAction::UpdateJob(_, DesiredJob { suspend: false, .. })),
            "{:?}",
            decision.action
        );
        facts.record = decision.after.unwrap();
        let parallelism = u32::try_from(room).ok();
        facts.job = JobObservation::Ours(BatchJob { suspended: false, parallelism, stopped: true, ..job("j") });
        let is_stuck = |now| {
            let known = decide_at(&facts, now).after.unwrap().row.unwrap();
            known.conditions.iter().any(|told| told.kind == ConditionType::Stuck)
        };
        assert!(!is_stuck(at(610)) && !is_stuck(at(624)) && is_stuck(at(625)), "{room}");
    }
}

#[test]
fn job_without_a_controller_is_reported_as_stuck() {
    let mut facts = begun(1);
    facts.job = JobObservation::Ours(BatchJob { suspended: false, ..job("j") });
    assert_eq!(decide(&facts).requeue_after, Some(Duration::from_secs(15)));
    facts.record.row.as_mut().unwrap().started = Some(seconds_ago(15));
    let conditions = decide(&facts).after.unwrap().row.unwrap().conditions;
    let told = conditions.iter().find(|told| told.kind == ConditionType::Stuck).unwrap();
    assert!(told.message.starts_with("no Job controller has looked at Job sums-12345678"), "{}", told.message);
}
