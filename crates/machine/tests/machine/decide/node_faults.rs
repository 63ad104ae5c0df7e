//! Faults of nodes: HTCondor runs the jobs again by itself, and the machines are named.

use htc_machine::condition::ConditionType;
use htc_machine::decide::Action;
use htc_machine::facts::{Ad, Exit, Hold, JobState, NodeFaults, Spec, WaitsFor};
use htc_machine::node_fault_counts::NodeFaultCounts;
use htc_machine::outcome::Outcome;
use htc_machine::payload_failure::{JobShEnd, PayloadFailure};
use htc_machine::phase::Phase;

use crate::decide::decision::{condition, decide, message, state, work};
use crate::given::{accepted, ad, change_job, date, ended, held, idle_job, running, running_job};

fn faults(count: u32, machines: &str) -> NodeFaults {
    NodeFaults { count, of: 3, at: date(-9), machines: machines.into(), code: 243 }
}

/// The job's last run ended by a fault of its node, and HTCondor holds it.
fn paused(mut ad: Ad) -> Ad {
    ad = held(ad, Hold::BY_POLICY, 0);
    ad.runs.waits_for = Some(WaitsFor::OtherNode);
    with_faults(ad, 1, "a.test")
}

fn with_faults(mut ad: Ad, count: u32, machines: &str) -> Ad {
    ad.runs.faults = Some(Box::new(faults(count, machines)));
    ad
}

#[test]
fn job_that_waits_for_another_node_is_idle_and_not_held() {
    let facts = accepted(Phase::Running, &[(running_job("5.0"), paused(ad(0, "5.0")))]);
    let decision = decide(&facts);
    assert_eq!(
        (state(&decision, 0), condition(&decision, ConditionType::Held)),
        (JobState::Idle, "nothing".to_owned())
    );
    assert_eq!(condition(&decision, ConditionType::NodeFaults), "True TriedElsewhere");
    let text = message(&decision, ConditionType::NodeFaults);
    assert!(
        text.starts_with("1 run of 1 job ended by faults of their nodes, most often on a.test, last on a.test: "),
        "{text}"
    );
    assert!(text.contains("a pause that 1 of them still have"), "{text}");
    let other = accepted(Phase::Running, &[(running_job("5.0"), held(ad(0, "5.0"), Hold::BY_POLICY, 0))]);
    assert_eq!(condition(&decide(&other), ConditionType::Held), "True JobsHeld", "held by the user's own policy");
}

#[test]
fn suspended_job_is_held_once_its_pause_is_over() {
    let suspended = |ad| {
        let mut facts = accepted(Phase::Running, &[(running_job("5.0"), ad)]);
        let queue = facts.object.spec.as_ref().unwrap().queue;
        facts.object.spec = Ok(Spec { queue, suspend: true, ..Spec::default() });
        decide(&facts)
    };
    assert_eq!(suspended(paused(ad(0, "5.0"))).action, Action::Nothing, "HTCondor holds it");
    assert!(work(&suspended(with_faults(ad(0, "5.0"), 1, "a.test"))).is_some());
}

#[test]
fn faults_are_kept_when_a_later_hold_hides_them() {
    let mut facts = accepted(Phase::Running, &[(idle_job("5.0"), running(ad(0, "5.0")))]);
    change_job(&mut facts, |job| job.runs.faults = Some(Box::new(faults(2, "a.test,b.test"))));
    let after = decide(&facts).after.unwrap();
    let counts = NodeFaultCounts::of(&after).unwrap();
    assert_eq!((counts.runs, counts.jobs, counts.last_machine.as_str()), (2, 1, "b.test"));
}

#[test]
fn last_fault_fails_the_job_and_names_all_machines() {
    let end = JobShEnd { failure: PayloadFailure::ImageUnavailable, after_payload: false };
    let mut last = with_faults(ended(ad(0, "5.0"), Exit::Signal(end.signal())), 2, "a.test,b.test");
    last.runs.host = Some("slot1_1@a.test".into());
    let decision = decide(&accepted(Phase::Running, &[(running_job("5.0"), last)]));
    let after = decision.after.unwrap();
    assert_eq!(after.jobs.values().next().unwrap().outcome(), Some(&Outcome::Killed(43)));
    let detail = &decision.transitions.last().unwrap().detail;
    assert!(detail.contains("could not run its script (243): "), "{detail}");
    assert!(detail.ends_with("; HTCondor tried it 3 times, on a.test,b.test,a.test"), "{detail}");
    let counts = NodeFaultCounts::of(&after).unwrap();
    assert_eq!((counts.runs, counts.most_often.as_str()), (3, "a.test"));
}

#[test]
fn exit_code_of_the_payload_is_no_fault_of_a_node() {
    let decision = decide(&accepted(Phase::Running, &[(running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(243)))]));
    assert!(decision.transitions.last().unwrap().detail.ends_with(" exited with 243"));
    assert_eq!(NodeFaultCounts::of(&decision.after.unwrap()), None);
}
