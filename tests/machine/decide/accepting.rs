//! What became of an attempt: jobs that are accepted, staged, late, refused, or to be submitted again.

use std::time::Duration;

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::{Action, Look};
use htc_operator::machine::facts::{Evidence, Exit, Facts, Failure, Past, Reach, Why};
use htc_operator::machine::judge::REMOVED_BY_US;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::{Scope, SubmitPermit};
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Attempt, Index, Kind, Rules, Work};

use crate::decide::decision::{condition, decide, message, phase, submits, triggers, watched, work};
use crate::given::{
    BIRTH, accepted, ad, add_attempt, at, attempt, done, ended, failed, history, id, idle_job, indices, known,
    known_queue, late, pending, queue, removed, running, settings, staging, stillborn, submitted, unknown,
};

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
    let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax).unwrap();
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
        (|facts| crate::given::known_history(facts).reaches = Reach::default(), "history is too short"),
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
    let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax).unwrap();
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
        assert!(message(&decision, ConditionType::Submitted).starts_with("condor_submit failed: ERROR: no; retrying"));
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
        assert!(!request.alone, "a schedd that is away is no HTCJob's fault");
        assert_eq!(request.key.step, failures + 1);
        let failure = Failure { reason: "CannotWriteFiles".to_owned(), message: "m".to_owned() };
        facts.record.requests.get_mut(&Kind::Submit).unwrap().failure = Some(failure);
        let Action::Hand(request) = decide(&facts).action else { panic!() };
        assert!(request.alone, "it spoils nobody else's");
    }
}

#[test]
fn all_parts_of_a_large_object_are_submitted_again() {
    let mut facts = submitted(750);
    facts.record.attempts.clear();
    add_attempt(&mut facts, attempt(1, "0-499"));
    add_attempt(&mut facts, attempt(2, "500-749"));
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    let decision = decide(&facts);
    let Some(Work::Submit(first, SubmitPermit::Again(proof))) = work(&decision) else { panic!("{decision:?}") };
    assert_eq!((first, proof.indices()), (&indices("0-499"), &indices("0-499")));
    assert_eq!(proof.attempt(), Attempt(1), "attempt 2 is judged when its jobs are submitted again");
}
