//! One decision at a time.

use std::time::Duration;

use htc_operator::api::{ConditionStatus, ConditionType};
use htc_operator::machine::decide::{Action, Decision, Look};
use htc_operator::machine::facts::{
    Ad, Claim, Condition, Evidence, Exit, Facts, Failure, Hold, JobState, LastRequest, Loss, Outcome, Past, Published,
    Reach, Spec, Why,
};
use htc_operator::machine::judge::REMOVED_BY_US;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::{ReleasePermit, Scope, SubmitPermit};
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Attempt, Birthdate, Index, Indices, Kind, Rules, Timestamp, Work};
use rstest::rstest;

use crate::machine::{
    BIRTH, accepted, ad, add_attempt, at, attempt, date, done, ended, failed, fresh, held, history, id, in_flight,
    indices, job, known, known_queue, late, pending, queue, removed, running, settings, staging, stillborn, submitted,
    unknown,
};

fn decide(facts: &Facts) -> Decision {
    htc_operator::machine::decide(facts, at(0), &settings(), &Rules::ALL)
}

fn work(decision: &Decision) -> Option<&Work> {
    match &decision.action {
        Action::Hand(request) => Some(&request.work),
        Action::Nothing | Action::Cancel(_) => None,
    }
}

fn submits(decision: &Decision) -> Option<(&Indices, bool, Attempt)> {
    match &decision.action {
        Action::Hand(request) => match &request.work {
            Work::Submit(indices, permit) => {
                Some((indices, matches!(permit, SubmitPermit::Again(_)), request.key.attempt))
            }
            _ => None,
        },
        Action::Nothing | Action::Cancel(_) => None,
    }
}

fn phase(decision: &Decision) -> Phase {
    decision.after.as_ref().unwrap().known.as_ref().unwrap().phase
}

/// `"True Fetched"`
fn condition(decision: &Decision, kind: ConditionType) -> String {
    let known = decision.after.as_ref().unwrap().known.as_ref().unwrap();
    let condition = known.conditions.iter().find(|condition| condition.kind == kind);
    condition.map_or_else(|| "nothing".to_owned(), |condition| format!("{} {}", condition.status, condition.reason))
}

fn message(decision: &Decision, kind: ConditionType) -> String {
    let known = decision.after.as_ref().unwrap().known.as_ref().unwrap();
    known.conditions.iter().find(|condition| condition.kind == kind).unwrap().message.clone()
}

fn triggers(decision: &Decision) -> Vec<Trigger> {
    decision.transitions.iter().map(|transition| transition.trigger).collect()
}

fn state(decision: &Decision, index: u32) -> JobState {
    decision.after.as_ref().unwrap().jobs[&Index(index)].state.clone()
}

fn watched(decision: &Decision) -> bool {
    decision.look != Look::Nothing
}

fn own_hold() -> Hold {
    Hold { code: Hold::BY_USER, subcode: Hold::SUSPENDED, reason: "spec.suspend".to_owned() }
}

fn other_hold() -> Hold {
    Hold { code: 13, subcode: 2, reason: "because".to_owned() }
}

fn idle_job(text: &str) -> htc_operator::machine::facts::Job {
    job(text, JobState::Idle)
}

fn running_job(text: &str) -> htc_operator::machine::facts::Job {
    job(text, JobState::Running)
}

fn ended_job(text: &str, outcome: Outcome) -> htc_operator::machine::facts::Job {
    job(text, JobState::Ended(outcome))
}

// --- attach, submit -------------------------------------------------------------------------------------------------

#[test]
fn an_object_without_finalizer_gets_it_and_nothing_else() {
    let decision = decide(&fresh(3));
    assert_eq!(work(&decision), Some(&Work::AttachFinalizer));
    assert!(decision.after.is_none() && decision.transitions.is_empty() && !watched(&decision));
}

#[test]
fn an_object_on_its_way_out_without_finalizer_is_left_alone() {
    let mut facts = fresh(3);
    facts.object.deleting = true;
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after), (Action::Nothing, None));
}

#[test]
fn a_finalizer_taken_away_by_hand_comes_back_before_anything_else() {
    let mut facts = pending(3);
    facts.object.finalizer = false;
    assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer));
}

#[test]
fn a_guarded_object_enters_the_ledger_and_is_submitted() {
    let mut facts = pending(3);
    facts.record.known = None;
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Guarded]);
    assert_eq!(phase(&decision), Phase::Pending);
    assert!(decision.after.as_ref().unwrap().known.as_ref().unwrap().new);
    assert_eq!(submits(&decision), Some((&indices("0-2"), false, Attempt(1))));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Submitting");
}

#[rstest]
#[case::claimed_by_another_ledger(|facts: &mut Facts| facts.object.claim = Claim::Other)]
#[case::claimed_by_nobody(|facts: &mut Facts| facts.object.claim = Claim::None)]
#[case::of_unknown_past(|facts: &mut Facts| facts.past = Past::Unknown { settled: None })]
#[case::with_jobs_in_its_status(|facts: &mut Facts| facts.object.published.has_ids = true)]
fn an_object_that_is_not_new_is_entered_as_such_and_not_submitted(#[case] change: fn(&mut Facts)) {
    let mut facts = pending(1);
    facts.record.known = None;
    change(&mut facts);
    let decision = decide(&facts);
    assert!(!decision.after.as_ref().unwrap().known.as_ref().unwrap().new);
    assert_eq!(submits(&decision), None);
    assert!(watched(&decision));
}

#[test]
fn a_large_object_is_submitted_in_parts() {
    let mut facts = pending(5000);
    assert_eq!(submits(&decide(&facts)), Some((&indices("0-1999"), false, Attempt(1))));
    add_attempt(&mut facts, attempt(1, "0-1999"));
    assert_eq!(submits(&decide(&facts)), Some((&indices("2000-3999"), false, Attempt(2))));
}

#[test]
fn the_number_of_an_attempt_is_one_more_than_any_that_is_known() {
    let mut facts = pending(2);
    facts.record.highest = Attempt(3);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(4));
    facts.object.published.attempt = 6;
    assert_eq!(submits(&decide(&facts)), None, "the ledger lacks what the status has: an old copy");
    facts.record.highest = Attempt(6);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(7));
    facts.evidence.history = history(0, &[Ad { attempt: Attempt(8), ..stillborn(ad(0, "5.0")) }]);
    facts.evidence.queue = queue(-1, &[Ad { attempt: Attempt(9), ..stillborn(ad(1, "5.1")) }]);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(10));
}

#[rstest]
#[case::queued(false)]
#[case::running(true)]
fn while_a_submission_stands_nothing_is_asked_for(#[case] running: bool) {
    let mut facts = pending(1);
    facts.in_flight = Some(in_flight(&facts, Kind::Submit, running));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Submitting");
}

#[test]
fn while_any_request_stands_nothing_is_submitted() {
    for kind in [Kind::Remove, Kind::Hold, Kind::Release, Kind::Fetch, Kind::Tidy] {
        let mut facts = pending(1);
        facts.in_flight = Some(in_flight(&facts, kind, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "{kind}");
        let lax = Rules { one_request: false, ..Rules::ALL };
        let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax);
        assert!(submits(&decision).is_some(), "only the rule stands against it");
    }
}

#[test]
fn a_queued_submission_is_cancelled_by_deletion_and_by_suspend() {
    for change in [
        |facts: &mut Facts| facts.object.deleting = true,
        |facts: &mut Facts| facts.object.spec = Ok(Spec { queue: 1, suspend: true }),
    ] {
        let mut facts = pending(1);
        facts.in_flight = Some(in_flight(&facts, Kind::Submit, false));
        change(&mut facts);
        let key = facts.in_flight.as_ref().unwrap().key.clone();
        assert_eq!(decide(&facts).action, Action::Cancel(key));
        facts.in_flight = Some(in_flight(&facts, Kind::Submit, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "what runs is waited for");
    }
}

#[test]
fn a_spec_that_cannot_be_run_is_said_so_and_never_submitted() {
    let mut facts = pending(1);
    facts.object.spec = Err("spec.htcopts: line 1: …".to_owned());
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False InvalidSpec");
    assert_eq!(decision.transitions.iter().map(|told| told.reason.as_str()).collect::<Vec<_>>(), ["InvalidSpec"]);
    assert!(decision.transitions[0].warning);
}

#[test]
fn jobs_of_a_spec_that_is_no_longer_understood_are_followed_all_the_same() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.object.spec = Err("the operator was updated".to_owned());
    let decision = decide(&facts);
    assert!(watched(&decision));
}

#[test]
fn suspended_objects_are_not_submitted() {
    let mut facts = pending(1);
    facts.object.spec = Ok(Spec { queue: 1, suspend: true });
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Suspended), "True Suspended");
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Suspended");
    let mut tried = submitted(1);
    tried.object.spec = Ok(Spec { queue: 1, suspend: true });
    tried.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    let decision = decide(&tried);
    assert_eq!(decision.action, Action::Nothing);
    assert!(watched(&decision), "a job may still be accepted, and is then held");
}

// --- judging an attempt ---------------------------------------------------------------------------------------------

#[test]
fn after_a_submission_htcondor_is_asked_soon() {
    let mut facts = submitted(1);
    let decision = decide(&facts);
    assert_eq!(decision.look, Look::Every { history: None, soon: true });
    facts.evidence.queue = queue(-95, &[]);
    facts.record.attempts[0].dead_since = Some(at(-3));
    assert_eq!(decide(&facts).look, Look::Every { history: None, soon: true });
    assert_eq!(submits(&decision), None);
}

#[test]
fn accepted_jobs_are_recorded_and_move_the_object_on() {
    let mut facts = submitted(2);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1")]);
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Accepted]);
    assert_eq!(phase(&decision), Phase::Submitted);
    assert_eq!(decision.changed.iter().map(|index| index.0).collect::<Vec<_>>(), [0, 1]);
    let job = decision.after.as_ref().unwrap().jobs[&Index(1)].clone();
    assert_eq!((job.id, job.attempt, job.birthdate, job.recorded), (id("5.1"), Attempt(1), BIRTH, at(0)));
    assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");
    assert_eq!(decision.look, Look::Changes);
}

#[test]
fn of_two_accepted_jobs_the_smaller_is_kept_unless_another_was_recorded() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[ad(0, "10.0"), ad(0, "9.0")]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs[&Index(0)].id, id("9.0"));
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::Extra(vec![id("10.0")]))));
    facts.record.jobs.insert(Index(0), idle_job("10.0"));
    facts.record.known = Some(known(Phase::Submitted));
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs[&Index(0)].id, id("10.0"));
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::Extra(vec![id("9.0")]))));
}

#[test]
fn a_duplicate_that_we_removed_is_never_kept_in_place_of_the_one_that_runs() {
    let mut facts = submitted(1);
    facts.evidence = Evidence {
        queue: queue(-1, &[running(ad(0, "10.0"))]),
        history: history(0, &[removed(ad(0, "9.0"), REMOVED_BY_US)]),
    };
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs[&Index(0)].id, id("10.0"));
    assert_eq!(work(&decision), None);
}

#[test]
fn late_jobs_never_count_and_are_removed() {
    let mut facts = submitted(1);
    facts.evidence = Evidence { queue: queue(-1, &[late(ad(0, "5.0"))]), history: history(0, &[]) };
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs.is_empty());
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::Extra(vec![id("5.0")]))));
    facts.evidence =
        Evidence { queue: queue(-1, &[]), history: history(0, &[ended(late(ad(0, "5.0")), Exit::Code(241))]) };
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs.is_empty());
    assert_eq!(submits(&decision), Some((&indices("0"), true, Attempt(2))));
    let lax = Rules { late_is_no_job: false, ..Rules::ALL };
    let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax);
    assert_eq!(phase(&decision), Phase::Completed, "only the rule stands against it");
}

#[test]
fn extras_are_removed_once_an_answer_is_younger_than_the_last_removal() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    facts.evidence.queue = queue(-10, &[ad(0, "5.0"), ad(0, "6.0"), removed(ad(0, "7.0"), REMOVED_BY_US)]);
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::Extra(vec![id("6.0")]))));
    facts.record.requests.insert(Kind::Remove, done(-5));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(matches!(decision.look, Look::Every { soon: true, .. }));
}

#[test]
fn nothing_is_submitted_again_without_proof() {
    let settled = || {
        let mut facts = submitted(2);
        facts.evidence =
            Evidence { queue: queue(-2, &[ad(1, "5.1")]), history: history(-1, &[stillborn(ad(0, "5.0"))]) };
        facts
    };
    assert_eq!(submits(&decide(&settled())), Some((&indices("0"), true, Attempt(2))), "only what is missing");
    for (change, what) in [
        ((|facts| facts.record.attempts[0].dead_since = None) as fn(&mut Facts), "the submitter may live"),
        (|facts| facts.record.attempts[0].dead_since = Some(at(-1)), "the answer is too old"),
        (|facts| facts.evidence.history = unknown(Why::NotAsked), "history was not asked"),
        (|facts| facts.evidence.history = unknown(Why::ScheddUnreachable), "history did not answer"),
        (|facts| facts.evidence.queue = unknown(Why::ScheddUnreachable), "the queue did not answer"),
        (|facts| facts.evidence.queue = queue(-2, &[staging(ad(0, "6.0")), ad(1, "5.1")]), "its ad is in the queue"),
        (|facts| crate::machine::known_history(facts).reaches = Reach::default(), "history is too short"),
    ] {
        let mut facts = settled();
        change(&mut facts);
        let decision = decide(&facts);
        assert_eq!(submits(&decision), None, "{what}");
        assert!(watched(&decision), "nobody would wake it: {what}");
        assert!(condition(&decision, ConditionType::Submitted).starts_with("False"), "{what}");
    }
}

#[test]
fn an_attempt_of_an_operator_that_was_killed_is_waited_for_without_haste_and_without_sleep() {
    let mut facts = submitted(1);
    facts.record.attempts[0].dead_since = None;
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False SubmitterMayLive");
    assert!(watched(&decision), "its jobs may be accepted meanwhile");
    assert_eq!(decision.again, Some(Duration::from_secs(20)));
    // Its time is over, but the answer is from before.
    facts.record.attempts[0].not_after = at(-60);
    let decision = decide(&facts);
    assert!(watched(&decision));
    assert!(decision.again.is_none_or(|again| again >= Duration::from_secs(1)), "{:?}", decision.again);
}

#[test]
fn staging_is_waited_for_and_then_removed() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Staging");
    assert_eq!(decision.again, Some(Duration::from_secs(30)));
    facts.record.attempts[0].dead_since = Some(at(-120));
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::Staging)));
    facts.record.requests.insert(Kind::Remove, done(0));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the removal");
}

#[test]
fn staging_is_not_removed_while_its_submitter_may_live() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    facts.record.attempts[0].dead_since = None;
    facts.record.attempts[0].not_after = at(-59);
    assert_eq!(decide(&facts).action, Action::Nothing);
    // Dead since 120 s.
    facts.record.attempts[0].not_after = at(-180);
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::Staging)));
}

#[test]
fn staging_of_an_attempt_that_the_ledger_lacks_is_removed_after_the_same_patience() {
    let mut facts = pending(1);
    facts.record.known.as_mut().unwrap().new = false;
    facts.past = Past::Unknown { settled: Some(at(-119)) };
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
    facts.past = Past::Unknown { settled: Some(at(-120)) };
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::Staging)));
}

#[test]
fn staging_is_not_accepted() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    assert_eq!(phase(&decide(&facts)), Phase::Pending);
    let lax = Rules { staged_is_accepted: false, ..Rules::ALL };
    let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax);
    assert_eq!(phase(&decision), Phase::Submitted, "only the rule stands against it");
}

#[test]
fn a_refusal_is_told_and_tried_again_with_growing_pauses() {
    for (refused, pause) in [(1, 5), (2, 10), (5, 80), (20, 600)] {
        let mut facts = submitted(1);
        facts.record.refused = refused;
        facts.record.attempts[0].refusal = Some("ERROR: no".to_owned());
        facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
        facts.record.attempts[0].intent_at = at(1 - pause);
        facts.record.attempts[0].dead_since = Some(at(1 - pause));
        facts.record.requests.get_mut(&Kind::Submit).unwrap().finished = Some(at(1 - pause));
        if pause == 5 {
            known_queue(&mut facts).asked_at = at(-1);
        }
        let decision = decide(&facts);
        assert_eq!(decision.action, Action::Nothing);
        assert_eq!(decision.again, Some(Duration::from_secs(1)), "after {refused}");
        assert_eq!(condition(&decision, ConditionType::Submitted), "False SubmitRefused");
        assert!(
            message(&decision, ConditionType::Submitted)
                .starts_with("condor_submit failed: ERROR: no; it is tried again")
        );
        facts.record.attempts[0].intent_at = at(-pause);
        facts.record.requests.get_mut(&Kind::Submit).unwrap().finished = Some(at(-pause));
        let decision = decide(&facts);
        assert_eq!(submits(&decision), Some((&indices("0"), true, Attempt(2))));
    }
}

#[test]
fn a_submission_that_never_came_to_an_intent_is_tried_again_with_growing_pauses() {
    for (failures, pause) in [(1, 5), (3, 20), (30, 600)] {
        let mut facts = pending(1);
        facts.record.requests.insert(Kind::Submit, failed(1 - pause, failures));
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
        assert_eq!(condition(&decision, ConditionType::Submitted), "False ScheddUnreachable");
        facts.record.requests.insert(Kind::Submit, failed(-pause, failures));
        let decision = decide(&facts);
        assert_eq!(submits(&decision), Some((&indices("0"), false, Attempt(1))));
        let Action::Hand(request) = decision.action else { panic!() };
        assert!(request.alone, "it spoils nobody else's");
        assert_eq!(request.key.step, failures + 1);
    }
}

#[test]
fn all_parts_of_a_large_object_are_submitted_again() {
    let mut facts = submitted(3000);
    facts.record.attempts.clear();
    add_attempt(&mut facts, attempt(1, "0-1999"));
    add_attempt(&mut facts, attempt(2, "2000-2999"));
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    let decision = decide(&facts);
    let Some(Work::Submit(first, SubmitPermit::Again(proof))) = work(&decision) else { panic!("{decision:?}") };
    assert_eq!((first, proof.indices()), (&indices("0-1999"), &indices("0-1999")));
    assert_eq!(proof.attempt(), Attempt(1), "attempt 2 is judged when its jobs are submitted again");
}

// --- another ledger, another schedd ---------------------------------------------------------------------------------

#[test]
fn an_object_of_another_ledger_is_claimed_only_after_a_look_that_is_younger_than_the_wait() {
    let mut facts = pending(1);
    facts.record.known.as_mut().unwrap().new = false;
    facts.object.claim = Claim::Other;
    facts.past = Past::Unknown { settled: None };
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), watched(&decision)), (Action::Nothing, true));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False PastUnknown");
    facts.past = Past::Unknown { settled: Some(at(-1)) };
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), watched(&decision)), (Action::Nothing, true));
    facts.past = Past::Unknown { settled: Some(at(-2)) };
    assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer));
    facts.evidence.history = history(0, &[]);
    assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer), "claimed first, submitted then");
}

#[test]
fn a_status_with_jobs_that_are_nowhere_is_lost_and_never_submitted() {
    let mut facts = pending(1);
    facts.record.known.as_mut().unwrap().new = false;
    facts.object.published = Published { phase: Some(Phase::Running), attempt: 1, has_ids: true };
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }), "history may have them");
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Lost");
    facts.evidence.history = history(0, &[ended(ad(0, "5.0"), Exit::Code(0))]);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Completed, "history has it after all");
}

#[test]
fn what_another_ledger_has_claimed_is_never_submitted() {
    for claim in [Claim::Other, Claim::None] {
        let mut facts = pending(1);
        facts.object.claim = claim;
        assert_eq!(decide(&facts).action, Action::Nothing, "{claim:?}, whatever the past");
        facts.past = Past::Unknown { settled: Some(at(-50)) };
        facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
        assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer), "{claim:?}");
    }
}

#[test]
fn jobs_that_no_intent_is_known_of_are_looked_for_as_far_back_as_the_object() {
    // Two parts; only the first is in this ledger, and the object is not new to it.
    let mut facts = pending(3000);
    facts.record.known.as_mut().unwrap().new = false;
    add_attempt(&mut facts, attempt(1, "0-1999"));
    facts.evidence.queue = queue(-1, &[]);
    let Look::Every { history: Some(reach), .. } = decide(&facts).look else { panic!("history is not asked") };
    assert_eq!(reach.date, Some(facts.object.created));
    facts.record.known.as_mut().unwrap().new = true;
    add_attempt(&mut facts, attempt(2, "2000-2999"));
    let Look::Every { history: Some(reach), .. } = decide(&facts).look else { panic!("history is not asked") };
    assert_eq!(reach.date, None, "every intent has its witness");
}

#[test]
fn another_schedd_under_the_same_name_is_told_and_not_believed() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 - 1);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Running);
    assert_eq!(condition(&decision, ConditionType::Tracked), "False AnotherSchedd");
    known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Lost(Loss::QueueReset)));
    assert_eq!(triggers(&decision)[0], Trigger::Failed);
    assert_eq!(condition(&decision, ConditionType::Failed), "True Lost");
}

#[test]
fn after_a_queue_reset_the_same_number_is_another_job() {
    for attempt in [1, 2] {
        let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
        let other = Ad { attempt: Attempt(attempt), ..ended(ad(0, "5.0"), Exit::Code(0)) };
        facts.evidence = Evidence { queue: queue(-1, &[other]), history: history(0, &[]) };
        known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1);
        assert_eq!(state(&decide(&facts), 0), JobState::Ended(Outcome::Lost(Loss::QueueReset)), "{attempt}");
    }
}

#[test]
fn the_same_number_of_another_attempt_says_nothing_of_a_job() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    let other = Ad { attempt: Attempt(2), ..stillborn(ad(0, "5.0")) };
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, std::slice::from_ref(&other)) };
    assert_eq!(state(&decide(&facts), 0), JobState::Ended(Outcome::Lost(Loss::Vanished)));
    facts.evidence = Evidence { queue: queue(-1, &[running(ad(0, "5.0"))]), history: history(0, &[other]) };
    assert_eq!(state(&decide(&facts), 0), JobState::Running);
}

// --- jobs under way -------------------------------------------------------------------------------------------------

#[test]
fn the_first_start_and_the_end_move_the_object_on() {
    let jobs = [(idle_job("5.0"), running(ad(0, "5.0"))), (idle_job("5.1"), ad(1, "5.1"))];
    let decision = decide(&accepted(Phase::Submitted, &jobs));
    assert_eq!((triggers(&decision), phase(&decision)), (vec![Trigger::Started], Phase::Running));
    let jobs = [
        (running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(0))),
        (running_job("5.1"), ended(ad(1, "5.1"), Exit::Code(0))),
    ];
    let decision = decide(&accepted(Phase::Running, &jobs));
    assert_eq!((triggers(&decision), phase(&decision)), (vec![Trigger::Succeeded], Phase::Completed));
    assert_eq!(work(&decision), Some(&Work::Fetch(indices("0-1"))));
}

#[test]
fn one_look_may_show_a_whole_life() {
    let mut facts = submitted(1);
    facts.record.known = None;
    facts.evidence.queue = queue(-1, &[ended(ad(0, "5.0"), Exit::Code(7))]);
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Guarded, Trigger::Accepted, Trigger::Started, Trigger::Failed]);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Failed(7)));
}

#[test]
fn a_job_that_has_ended_in_the_queue_and_left_since_keeps_its_outcome() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.history = history(0, &[ended(ad(0, "5.0"), Exit::Signal(9))]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Killed(9)));
    assert!(decision.after.as_ref().unwrap().jobs[&Index(0)].gone);
}

#[test]
fn a_job_removed_by_hand_fails_as_removed() {
    for ad_in in [removed(running(ad(0, "5.0")), "via condor_rm"), removed(ad(0, "5.0"), "via condor_rm")] {
        let facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad_in)]);
        let decision = decide(&facts);
        assert_eq!(phase(&decision), Phase::Completed);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), "True NothingToFetch");
        assert_eq!(condition(&decision, ConditionType::Failed), "True Removed");
    }
}

#[test]
fn a_job_removed_before_it_was_accepted_fails_as_removed_and_is_not_submitted_again() {
    let mut facts = submitted(1);
    facts.evidence = Evidence {
        queue: queue(-1, &[]),
        history: history(0, &[removed(staging(ad(0, "5.0")), "via condor_rm (by user alice)")]),
    };
    let decision = decide(&facts);
    assert_eq!(submits(&decision), None);
    assert_eq!(condition(&decision, ConditionType::Failed), "True Removed");
}

#[test]
fn a_job_that_vanished_is_looked_for_and_then_lost() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Running);
    assert!(matches!(decision.look, Look::Every { history: Some(_), soon: true }));
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Lost(Loss::Vanished)));
    assert_eq!(condition(&decision, ConditionType::Failed), "True Lost");
    assert_eq!(submits(&decision), None);
}

#[test]
fn nothing_is_completed_while_jobs_are_missing_or_held() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(0)))]);
    facts.object.spec = Ok(Spec { queue: 2, suspend: false });
    assert_eq!(phase(&decide(&facts)), Phase::Running);
    let jobs = [
        (running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(0))),
        (idle_job("5.1"), held(ad(1, "5.1"), Hold::BY_USER, 0)),
    ];
    assert_eq!(phase(&decide(&accepted(Phase::Running, &jobs))), Phase::Running);
}

#[test]
fn a_job_that_was_not_asked_for_is_not_recorded_but_removed() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1")]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs.len(), 1);
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::Extra(vec![id("5.1")]))));
}

#[test]
fn a_job_that_runs_again_is_told() {
    let jobs =
        [(ended_job("5.0", Outcome::Failed(1)), running(ad(0, "5.0"))), (running_job("5.1"), running(ad(1, "5.1")))];
    let decision = decide(&accepted(Phase::Running, &jobs));
    assert_eq!(triggers(&decision), [Trigger::RanAgain]);
    assert_eq!(state(&decision, 0), JobState::Running);
    assert_eq!(decision.transitions[0].failed, 0);
}

#[test]
fn nothing_runs_again_once_the_object_is_completed() {
    let jobs = [(ended_job("5.0", Outcome::Succeeded), running(ad(0, "5.0")))];
    let decision = decide(&accepted(Phase::Completed, &jobs));
    assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Completed, JobState::Ended(Outcome::Succeeded)));
}

#[test]
fn a_job_that_left_the_queue_after_its_end_is_gone() {
    let mut facts = accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ad(0, "5.0"))]);
    change_job(&mut facts, |job| job.fetched = true);
    facts.evidence.queue = queue(-1, &[]);
    assert!(decide(&facts).after.unwrap().jobs[&Index(0)].gone);
    facts.evidence.queue = queue(-80, &[]);
    assert!(!decide(&facts).after.unwrap().jobs[&Index(0)].gone, "the answer is older than the record");
}

#[test]
fn held_jobs_are_told_with_htcondors_reason_and_complete_nothing() {
    let facts = accepted(Phase::Submitted, &[(idle_job("5.0"), held(ad(0, "5.0"), 13, 2))]);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Submitted);
    assert_eq!(condition(&decision, ConditionType::Held), "True JobsHeld");
    assert_eq!(
        message(&decision, ConditionType::Held),
        "1 of 1 job held; 5.0: because; condor_release lets held jobs go on"
    );
    assert_eq!((triggers(&decision), decision.transitions[0].warning), (vec![Trigger::ConditionChanged], true));
    let mut released = accepted(Phase::Submitted, &[(job("5.0", JobState::Held(other_hold())), ad(0, "5.0"))]);
    released.record.known = decision.after.unwrap().known;
    assert_eq!(condition(&decide(&released), ConditionType::Held), "False NotHeld");
}

#[test]
fn nothing_is_said_when_htcondor_is_away_but_that() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = unknown(Why::ScheddUnreachable);
    let away = decide(&facts);
    assert_eq!(condition(&away, ConditionType::Tracked), "False ScheddUnreachable");
    assert_eq!((away.changed.len(), phase(&away), away.look), (0, Phase::Running, Look::Changes));
    facts.record.known = away.after.unwrap().known;
    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    assert_eq!(condition(&decide(&facts), ConditionType::Tracked), "True Tracking");
}

// --- suspend --------------------------------------------------------------------------------------------------------

fn suspend(mut facts: Facts, suspend: bool) -> Facts {
    let queue = facts.object.spec.as_ref().unwrap().queue;
    facts.object.spec = Ok(Spec { queue, suspend });
    facts
}

#[test]
fn suspend_holds_at_each_look_what_is_loose() {
    for (job, ad) in [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.0"), running(ad(0, "5.0")))] {
        let mut facts = suspend(accepted(Phase::Running, &[(job, ad)]), true);
        assert_eq!(work(&decide(&facts)), Some(&Work::Hold));
        facts.record.requests.insert(Kind::Hold, done(-1));
        assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the hold");
        facts.record.requests.insert(Kind::Hold, done(-2));
        assert_eq!(work(&decide(&facts)), Some(&Work::Hold), "the hold was refused: again");
        facts.record.requests.insert(Kind::Hold, failed(-2, 1));
        assert_eq!(decide(&facts).again, Some(Duration::from_secs(3)), "it failed: after a pause");
        facts.evidence.queue = unknown(Why::ScheddUnreachable);
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
fn suspend_does_nothing_to_what_is_completed() {
    let facts = accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ad(0, "5.0"))]);
    let decision = decide(&suspend(facts.clone(), true));
    assert_eq!(condition(&decision, ConditionType::Suspended), "nothing");

    // Its jobs ended while they were about to be held.
    let told = told_suspended();
    for still in [true, false] {
        let mut facts = suspend(facts.clone(), still);
        facts.record.known.as_mut().unwrap().conditions = vec![told.clone()];
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::Suspended), "False JobsEnded");
        facts.record = decision.after.unwrap();
        assert!(decide(&facts).transitions.iter().all(|row| row.reason != "JobsEnded"), "it is told once");
    }
}

fn told_suspended() -> Condition {
    Condition {
        kind: ConditionType::Suspended,
        status: ConditionStatus::True,
        reason: "Suspended".to_owned(),
        message: "spec.suspend is true: 1 job being held".to_owned(),
        since: Timestamp(0),
    }
}

// --- output ---------------------------------------------------------------------------------------------------------

/// One job that succeeded a minute ago and lies in the queue.
fn completed() -> Facts {
    accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)))])
}

fn change_job(facts: &mut Facts, change: impl Fn(&mut htc_operator::machine::facts::Job)) {
    facts.record.jobs.values_mut().for_each(change);
}

#[test]
fn output_is_fetched_then_tidied_then_it_rests() {
    let mut facts = completed();
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Fetch(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing", "the output is waited for");
    facts.in_flight = Some(in_flight(&facts, Kind::Fetch, true));
    assert_eq!(decide(&facts).action, Action::Nothing);
    facts.in_flight = None;
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(Kind::Fetch, done(-2));
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Tidy(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "True Fetched");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
    facts.record.requests.insert(Kind::Tidy, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before");
    facts.evidence.queue = queue(0, &[]);
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs[&Index(0)].gone);
    assert_eq!((decision.action, decision.look, decision.again), (Action::Nothing, Look::Nothing, None));
}

#[test]
fn a_job_that_takes_its_time_to_leave_is_not_tidied_every_second() {
    // PERIODIC_EXPR_INTERVAL is 60 s.
    let mut facts = completed();
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(Kind::Fetch, done(-20));
    facts.record.requests.insert(Kind::Tidy, done(-10));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(watched(&decision) && decision.again == Some(Duration::from_secs(50)), "{:?}", decision.again);
    facts.record.requests.insert(Kind::Tidy, done(-60));
    facts.record.requests.insert(Kind::Fetch, done(-70));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))));
    facts.record.requests.insert(Kind::Tidy, done(-10));
    facts.record.requests.insert(Kind::Fetch, done(-5));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))), "there is more output than at the last one");
}

#[test]
fn output_that_cannot_be_fetched_is_told_and_tried_again_with_growing_pauses() {
    let mut facts = completed();
    facts.record.requests.insert(Kind::Fetch, failed(-9, 2));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False ScheddUnreachable");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded", "False is an answer, too");
    facts.record.requests.insert(Kind::Fetch, failed(-10, 2));
    let Action::Hand(request) = decide(&facts).action else { panic!() };
    assert!(request.alone);
    assert_eq!((request.work, request.key.step), (Work::Fetch(indices("0")), 3));
}

#[test]
fn the_end_does_not_wait_for_output_for_ever() {
    let mut facts = completed();
    facts.in_flight = Some(in_flight(&facts, Kind::Fetch, true));
    facts.record.known.as_mut().unwrap().completed = Some(at(-599));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing");
    assert_eq!(decision.again, Some(Duration::from_secs(1)));
    facts.record.known.as_mut().unwrap().completed = Some(at(-600));
    assert_eq!(condition(&decide(&facts), ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn output_that_left_with_its_job_is_lost() {
    let mut facts = completed();
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "nothing", "history has to be asked first");
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }), "{:?}", decision.look);
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputLost");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn output_that_history_shows_as_fetched_is_not_lost() {
    // 25.14 lets a job leave once its output was fetched; a crash may have come before that was written down.
    let mut facts = completed();
    facts.evidence.queue = queue(-1, &[]);
    let left = ended(ad(0, "5.0"), Exit::Code(0));
    facts.evidence.history = history(0, &[Ad { staged_out: Some(date(0)), ..left.clone() }]);
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "True Fetched");
    facts.evidence.history = history(0, &[left]);
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "False OutputLost");
}

#[test]
fn while_jobs_run_output_is_fetched_now_and_then() {
    let jobs = [
        (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0))),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = accepted(Phase::Running, &jobs);
    facts.record.requests.insert(Kind::Fetch, done(-59));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
    facts.record.requests.insert(Kind::Fetch, done(-60));
    assert_eq!(work(&decide(&facts)), Some(&Work::Fetch(indices("0"))));
}

#[rstest]
#[case::all_succeeded(&[Outcome::Succeeded, Outcome::Succeeded], ConditionType::Complete, "True AllSucceeded")]
#[case::one_failed(&[Outcome::Succeeded, Outcome::Failed(1)], ConditionType::Failed, "True JobsFailed")]
#[case::killed(&[Outcome::Killed(9)], ConditionType::Failed, "True JobsFailed")]
#[case::all_removed(&[Outcome::Removed, Outcome::Removed], ConditionType::Failed, "True Removed")]
#[case::one_removed(&[Outcome::Removed, Outcome::Succeeded], ConditionType::Failed, "True JobsFailed")]
#[case::lost(&[Outcome::Lost(Loss::Vanished), Outcome::Succeeded], ConditionType::Failed, "True Lost")]
fn the_end_is_said_once_with_its_reason(#[case] outcomes: &[Outcome], #[case] kind: ConditionType, #[case] said: &str) {
    let jobs: Vec<_> = (0..)
        .zip(outcomes)
        .map(|(index, outcome)| {
            let text = format!("5.{index}");
            (ended_job(&text, outcome.clone()), ended(ad(index, &text), Exit::Code(0)))
        })
        .collect();
    let mut facts = accepted(Phase::Completed, &jobs);
    change_job(&mut facts, |job| (job.fetched, job.gone) = (true, true));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, kind), said);
    let other = if kind == ConditionType::Complete { ConditionType::Failed } else { ConditionType::Complete };
    assert_eq!(condition(&decision, other), "nothing");
}

// --- deletion -------------------------------------------------------------------------------------------------------

fn deleting(mut facts: Facts) -> Facts {
    facts.object.deleting = true;
    facts
}

/// Being deleted since 50 s: the jobs were removed 10 s ago.
fn removing(jobs: &[Ad]) -> Facts {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    let mut known = known(Phase::Terminating);
    known.conditions.push(htc_operator::machine::facts::Condition {
        kind: ConditionType::JobsRemoved,
        status: ConditionStatus::False,
        reason: "Removing".to_owned(),
        message: String::new(),
        since: at(-50),
    });
    facts.record.known = Some(known);
    facts.record.requests.insert(Kind::Remove, done(-10));
    facts.evidence.queue = queue(-1, jobs);
    facts
}

#[test]
fn what_was_never_submitted_goes_at_once() {
    let decision = decide(&deleting(pending(1)));
    assert_eq!(triggers(&decision), [Trigger::Deleted, Trigger::Gone]);
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(ReleasePermit::NeverSubmitted(_)))));
    let mut stands = deleting(pending(1));
    stands.in_flight = Some(in_flight(&stands, Kind::Submit, true));
    let decision = decide(&stands);
    assert_eq!((triggers(&decision), decision.action), (vec![Trigger::Deleted], Action::Nothing));
}

#[test]
fn deletion_removes_from_every_phase() {
    for phase_before in [Phase::Pending, Phase::Submitted, Phase::Running, Phase::Completed] {
        let mut facts = deleting(accepted(phase_before, &[(running_job("5.0"), running(ad(0, "5.0")))]));
        if phase_before == Phase::Pending {
            facts.record.jobs.clear();
            facts.evidence = Evidence::none();
        }
        let decision = decide(&facts);
        assert_eq!(phase(&decision), Phase::Terminating);
        assert_eq!(triggers(&decision).last(), Some(&Trigger::Deleted));
        assert_eq!(work(&decision), Some(&Work::Remove(Scope::All)));
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False Removing");
    }
}

#[test]
fn deletion_waits_for_a_submitter_that_may_live() {
    let mut facts = deleting(submitted(1));
    facts.record.attempts[0].dead_since = None;
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(20))));
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False SubmitterMayLive");
}

#[test]
fn a_removal_from_before_the_submitters_death_does_not_count() {
    let mut facts = removing(&[]);
    facts.record.attempts[0].dead_since = Some(at(-5));
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::All)));
}

#[test]
fn the_finalizer_goes_only_with_proof() {
    let decision = decide(&removing(&[]));
    assert_eq!(triggers(&decision), [Trigger::Gone]);
    let Some(Work::ReleaseFinalizer(ReleasePermit::Gone(proof))) = work(&decision) else { panic!() };
    assert_eq!(proof.asked_at(), at(-1));
    assert_eq!(decision.look, Look::Nothing);
    for (change, what) in [
        ((|facts| facts.evidence.queue = unknown(Why::NotAsked)) as fn(&mut Facts), "not asked"),
        (|facts| facts.evidence.queue = unknown(Why::ScheddUnreachable), "no answer"),
        (|facts| known_queue(facts).asked_at = at(-10), "asked before the removal"),
        (|facts| known_queue(facts).birthdate = Birthdate(1), "another schedd"),
        (|facts| facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]), "still there"),
        (|facts| facts.past = Past::Unknown { settled: None }, "unknown past"),
        (|facts| facts.in_flight = Some(in_flight(facts, Kind::Fetch, true)), "a request stands"),
    ] {
        let mut facts = removing(&[]);
        change(&mut facts);
        let decision = decide(&facts);
        assert!(!matches!(work(&decision), Some(Work::ReleaseFinalizer(_))), "{what}");
        assert!(!triggers(&decision).contains(&Trigger::Gone), "{what}");
        assert!(watched(&decision) || facts.in_flight.is_some(), "nobody would wake it: {what}");
    }
    let lax = Rules { prove_gone: false, ..Rules::ALL };
    let there = removing(&[running(ad(0, "5.0"))]);
    let decision = htc_operator::machine::decide(&there, at(0), &settings(), &lax);
    assert_eq!(triggers(&decision), [Trigger::Gone], "only the rule stands against it");
}

#[test]
fn a_conflict_in_releasing_the_finalizer_is_tried_again_and_told_once() {
    let mut facts = removing(&[]);
    facts.record = decide(&facts).after.unwrap();
    let decision = decide(&facts);
    assert!(decision.transitions.is_empty());
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(_))));
    facts.object.finalizer = false;
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.look), (Action::Nothing, Look::Nothing));
}

#[test]
fn jobs_that_linger_as_removed_are_waited_for_with_a_hint() {
    let lingering = removed(running(ad(0, "5.0")), REMOVED_BY_US);
    let mut facts = removing(std::slice::from_ref(&lingering));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(matches!(decision.look, Look::Every { soon: true, .. }));
    facts.record.requests.insert(Kind::Remove, done(-16));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing, "a second condor_rm would not help");
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False NotRemovedYet");
    let told = message(&decision, ConditionType::JobsRemoved);
    assert!(told.contains("5.0") && told.contains("condor_rm -forcex"), "{told}");
    assert!(matches!(decision.look, Look::Every { soon: false, .. }));
}

#[test]
fn jobs_that_are_not_being_removed_are_removed_again_with_growing_pauses() {
    for (step, pause) in [(1, 5), (2, 10), (4, 40)] {
        let mut facts = removing(&[running(ad(0, "5.0"))]);
        facts.record.requests.insert(Kind::Remove, LastRequest { step, ..done(1 - pause) });
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
        facts.record.requests.insert(Kind::Remove, LastRequest { step, ..done(-pause) });
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::All)));
    }
}

#[test]
fn a_removal_that_fails_is_told_and_tried_again_with_growing_pauses() {
    for (failures, pause) in [(1, 5), (2, 10), (30, 600)] {
        let mut facts = removing(&[running(ad(0, "5.0"))]);
        facts.record.requests.insert(Kind::Remove, failed(1 - pause, failures));
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False ScheddUnreachable");
        facts.record.requests.insert(Kind::Remove, failed(-pause, failures));
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::All)));
    }
}

#[test]
fn queued_work_is_cancelled_by_deletion_but_for_the_removal() {
    for kind in [Kind::Hold, Kind::Release, Kind::Fetch, Kind::Tidy, Kind::Submit] {
        let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
        facts.in_flight = Some(in_flight(&facts, kind, false));
        assert!(matches!(decide(&facts).action, Action::Cancel(key) if key.kind == kind), "{kind}");
    }
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.in_flight = Some(in_flight(&facts, Kind::Remove, false));
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn an_admin_can_abandon_what_htcondor_does_not_answer_for() {
    let mut facts = removing(&[]);
    facts.evidence = Evidence::none();
    facts.object.abandon = true;
    facts.record.attempts[0].dead_since = None;
    let decision = decide(&facts);
    let Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(ids))) = work(&decision) else { panic!("{decision:?}") };
    assert_eq!(ids, &[id("5.0")]);
    assert_eq!(triggers(&decision), [Trigger::Gone]);
    assert!(decision.transitions[0].warning && decision.transitions[0].detail.contains("5.0"));
    facts.object.deleting = false;
    facts.record.known = Some(known(Phase::Running));
    assert!(!matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))), "only with a deletion");
}

#[test]
fn abandoning_waits_for_the_request_that_stands() {
    let mut facts = removing(&[]);
    facts.object.abandon = true;
    facts.in_flight = Some(in_flight(&facts, Kind::Remove, true));
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.transitions.len()), (Action::Nothing, 0));
}

#[test]
fn a_deletion_goes_on_though_the_spec_cannot_be_read() {
    let mut facts = removing(&[]);
    facts.object.spec = Err("cannot be read".to_owned());
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))));
}

#[test]
fn failures_have_words() {
    let mut facts = pending(1);
    let failure =
        Failure { reason: "CannotWriteFiles".to_owned(), message: "cannot write /data: disk full".to_owned() };
    facts.record.requests.insert(Kind::Submit, LastRequest { failure: Some(failure), ..failed(-1, 1) });
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False CannotWriteFiles");
    assert_eq!(message(&decision, ConditionType::Submitted), "cannot write /data: disk full");
    assert_eq!(date(0).0, crate::machine::SCHEDD_NOW);
}
