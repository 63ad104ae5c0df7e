//! Which Pod was the last of an index, and whose log is kept.

use htc_machine::ids::SchedDate;

use super::*;

/// Over, with a Pod of each.
fn over(queue: u32) -> PodsFacts {
    let mut facts = begun(queue);
    let pods = (0..queue).map(|index| (Index(index), pod(PodPhase::Ended, Some(0)))).collect();
    facts.pods = PodsObservation::Known(pods);
    let succeeded = (0..queue).map(Index).collect();
    facts.job = JobObservation::Ours(BatchJob { succeeded, end: Some(JobEnd::Complete), ..job("j") });
    facts
}

fn kept() -> KeptLog {
    KeptLog::Kept { id: "sums-0-x".into(), bytes: 3 }
}

fn failed(tries: u32, at: Timestamp) -> KeptLog {
    KeptLog::Failed { tries, at, why: "no answer".into() }
}

#[test]
fn logs_of_ended_pods_are_kept_with_retries() {
    let mut facts = begun(2);
    facts.pods = PodsObservation::Known(BTreeMap::from([
        (Index(0), pod(PodPhase::Ended, Some(0))),
        (Index(1), pod(PodPhase::Running, None)),
    ]));
    let running = BatchJob { suspended: false, parallelism: Some(2), ..job("j") };
    facts.job = JobObservation::Ours(running.clone());
    assert_eq!(step(&mut facts).action, PodsAction::Nothing, "the status of the Job has no end");
    facts.job = JobObservation::Ours(BatchJob { succeeded: "0".parse().unwrap(), ..running });
    let wanted = PodsAction::KeepLogs(vec![(Index(0), "sums-0-x".into())]);
    assert_eq!(step(&mut facts).action, wanted, "while the others run");
    let mut with = |log| {
        facts.record.runs.get_mut(&Index(0)).unwrap().log = log;
        decide(&facts)
    };
    assert_eq!(with(kept()).action, PodsAction::Nothing);
    assert_eq!(with(KeptLog::Gone).action, PodsAction::Nothing);
    assert_eq!(with(KeptLog::Kept { id: "another".into(), bytes: 3 }).action, wanted);
    let waits = with(failed(1, NOW));
    assert_eq!((waits.action, waits.requeue_after), (PodsAction::Nothing, Some(Duration::from_secs(10))));
    assert_eq!(with(failed(2, Timestamp(NOW.0 - 19_000))).action, PodsAction::Nothing);
    assert_eq!(with(failed(2, Timestamp(NOW.0 - 20_000))).action, wanted);
    assert_eq!(with(failed(17, Timestamp(NOW.0 - 600_000))).action, wanted);
    assert_eq!(with(failed(18, Timestamp(0))).action, PodsAction::Nothing, "it is given up");
}

/// The Job and its Pods are watched apart: either may be told first, also the end of all.
#[test]
fn log_of_the_last_pod_is_kept_in_any_order_of_observations() {
    let named = |name: &str, failures, exit| Pod {
        name: name.into(),
        failures,
        start: Some(SchedDate(1)),
        end: Some(SchedDate(8)),
        node: Some(format!("node-of-{name}").into()),
        ..pod(PodPhase::Ended, Some(exit))
    };
    let seen = |pod: &Pod| PodsObservation::Known(BTreeMap::from([(Index(0), pod.clone())]));
    let failed_end = JobEnd::Failed { exceeded: None, message: String::new() };
    for (code, all) in [(0, false), (0, true), (4, false), (4, true)] {
        for first in [pod(PodPhase::Pending(None), None), pod(PodPhase::Running, None), named("first", 0, 3)] {
            let mut facts = begun(2);
            let running = BatchJob { suspended: false, parallelism: Some(2), started: Some(NOW), ..job("j") };
            (facts.job, facts.pods) = (JobObservation::Ours(running.clone()), seen(&first));
            step(&mut facts);
            let (one, both) = ("0".parse().unwrap(), "0-1".parse().unwrap());
            let indexes: Indices = if all { both } else { one };
            let word = if code == 0 {
                BatchJob { succeeded: indexes, end: all.then_some(JobEnd::Complete), ..running }
            } else {
                BatchJob { failed: indexes, end: all.then_some(failed_end.clone()), ..running }
            };
            facts.job = JobObservation::Ours(word);
            step(&mut facts);
            facts.pods = seen(&named("last", 1, code));
            let action = step(&mut facts).action;
            let run = facts.record.runs[&Index(0)].clone();
            let known = (run.id.as_deref(), run.exit, run.host.as_deref(), run.end, run.starts);
            assert_eq!(known, (Some("last"), Some(code), Some("node-of-last"), Some(SchedDate(8)), 2), "{code} {all}");
            assert_eq!(action, PodsAction::KeepLogs(vec![(Index(0), "last".into())]), "{code} {all}");
            // When it has gone, an earlier one is none of it.
            facts.pods = seen(&named("first", 0, 3));
            step(&mut facts);
            assert_eq!(facts.record.runs[&Index(0)], run);
            // Nor is one of an index that has not run.
            facts.pods = PodsObservation::Known(BTreeMap::from([(Index(7), named("other", 0, 0))]));
            if all {
                step(&mut facts);
                assert_eq!(facts.record.runs.len(), 2);
            }
        }
    }
}

/// The log of a try that failed is not taken for that of the one that succeeded.
#[test]
fn failed_try_is_not_taken_for_the_successful_one() {
    let mut facts = begun(1);
    let running = BatchJob { suspended: false, parallelism: Some(1), ..job("j") };
    facts.job = JobObservation::Ours(running.clone());
    facts.pods = PodsObservation::Known(BTreeMap::from([(Index(0), pod(PodPhase::Ended, Some(3)))]));
    step(&mut facts);
    facts.job = JobObservation::Ours(BatchJob { succeeded: "0".parse().unwrap(), ..running });
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    let run = &facts.record.runs[&Index(0)];
    assert_eq!((run.id.as_deref(), run.exit), (None, Some(0)));
}

#[test]
fn deletion_waits_only_briefly_for_logs() {
    let mut facts = over(1);
    assert!(matches!(step(&mut facts).action, PodsAction::KeepLogs(_)));
    facts.object.deleting = true;
    assert!(matches!(step(&mut facts).action, PodsAction::KeepLogs(_)), "before the Pods go");
    let later = |facts: &PodsFacts, seconds: i64| {
        decide_pods(facts, Timestamp(NOW.0 + seconds * 1000), &Settings::default()).unwrap()
    };
    facts.record.runs.get_mut(&Index(0)).unwrap().log = failed(9, NOW);
    let waits = later(&facts, 4);
    assert_eq!((waits.action, waits.requeue_after), (PodsAction::Nothing, Some(Duration::from_secs(1))));
    assert!(matches!(later(&facts, 59).action, PodsAction::KeepLogs(_)));
    assert_eq!(later(&facts, 60).action, PodsAction::DeleteJob("j".into()), "whatever became of them");
    facts.record.runs.get_mut(&Index(0)).unwrap().log = kept();
    assert_eq!(later(&facts, 1).action, PodsAction::DeleteJob("j".into()));
    // What runs has no end, and is not waited for.
    let mut runs = begun(1);
    runs.pods = PodsObservation::Known(BTreeMap::from([(Index(0), pod(PodPhase::Running, None))]));
    step(&mut runs);
    runs.object.deleting = true;
    assert_eq!(step(&mut runs).action, PodsAction::DeleteJob("j".into()));
}
