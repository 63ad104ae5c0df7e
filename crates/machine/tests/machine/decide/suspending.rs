//! `spec.suspend`: jobs are held and released.

use std::time::Duration;

use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::decide::Action;
use htc_machine::facts::{ConditionRecord, Facts, Hold, JobState, QueryErrorKind, Spec};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::{RequestKind, Timestamp, Work};

use crate::decide::decision::{condition, decide, work};
use crate::given::{
    accepted, ad, done, ended_job, failed, held, idle_job, job, other_hold, own_hold, running, running_job, unknown,
};

fn suspend(mut facts: Facts, suspend: bool) -> Facts {
    let queue = facts.object.spec.as_ref().unwrap().queue;
    facts.object.spec = Ok(Spec { queue, suspend, ..Spec::default() });
    facts
}

#[test]
fn suspend_holds_unheld_jobs_in_each_answer() {
    for (job, ad) in [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.0"), running(ad(0, "5.0")))] {
        let mut facts = suspend(accepted(Phase::Running, &[(job, ad)]), true);
        assert_eq!(work(&decide(&facts)), Some(&Work::Hold));
        facts.record.requests.insert(RequestKind::Hold, done(-1));
        assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the hold");
        facts.record.requests.insert(RequestKind::Hold, done(-2));
        assert_eq!(work(&decide(&facts)), Some(&Work::Hold), "the hold was refused: again");
        facts.record.requests.insert(RequestKind::Hold, failed(-2, 1));
        assert_eq!(decide(&facts).requeue_after, Some(Duration::from_secs(3)), "it failed: after a pause");
        facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
        assert_eq!(decide(&facts).action, Action::Nothing);
    }
}

#[test]
fn only_own_holds_are_released() {
    let ours = (job("5.0", JobState::Held(own_hold())), held(ad(0, "5.0"), Hold::BY_USER, Hold::SUSPENDED));
    let theirs = |index, text| (job(text, JobState::Held(other_hold())), held(ad(index, text), 13, 2));
    let by_hand = |index, text| (job(text, JobState::Idle), held(ad(index, text), Hold::BY_USER, 0));
    let all = [ours.clone(), theirs(1, "5.1"), by_hand(2, "5.2")];
    assert_eq!(work(&decide(&suspend(accepted(Phase::Submitted, &all), false))), Some(&Work::Release));
    assert_eq!(decide(&suspend(accepted(Phase::Submitted, &all), true)).action, Action::Nothing);
    for hold in [theirs(0, "5.0"), by_hand(0, "5.0")] {
        assert_eq!(decide(&suspend(accepted(Phase::Submitted, &[hold]), false)).action, Action::Nothing);
    }
    let decision = decide(&suspend(accepted(Phase::Submitted, &[ours]), true));
    assert_eq!(condition(&decision, ConditionType::Suspended), "True Suspended");
    assert_eq!(condition(&decision, ConditionType::Held), "nothing", "it is no trouble");
}

#[test]
fn suspend_does_not_affect_a_completed_htcjob() {
    let facts = accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ad(0, "5.0"))]);
    let decision = decide(&suspend(facts.clone(), true));
    assert_eq!(condition(&decision, ConditionType::Suspended), "nothing");

    // Its jobs ended while they were about to be held.
    let told = told_suspended();
    for still in [true, false] {
        let mut facts = suspend(facts.clone(), still);
        facts.record.row.as_mut().unwrap().conditions = vec![told.clone()];
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::Suspended), "False JobsEnded");
        facts.record = decision.after.unwrap();
        assert!(decide(&facts).transitions.iter().all(|row| row.reason != "JobsEnded"), "it is reported once");
    }
}

fn told_suspended() -> ConditionRecord {
    ConditionRecord {
        kind: ConditionType::Suspended,
        status: ConditionStatus::True,
        reason: "Suspended".to_owned(),
        message: "spec.suspend is true: 1 job being held".to_owned(),
        since: Timestamp(0),
    }
}
