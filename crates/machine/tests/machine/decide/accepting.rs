//! What became of an attempt: jobs that are accepted, staged, late, refused, or to be submitted again.

use std::time::Duration;

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Polling};
use htc_machine::facts::{Evidence, Exit, Facts, HistoryReach, Past, QueryErrorKind, RequestFailure};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::phase::Phase;
use htc_machine::request::{RemovalScope, SubmitPermit};
use htc_machine::transitions::Trigger;
use htc_machine::{Attempt, Index, RequestKind, Rules, Work};

use crate::decide::decision::{condition, decide, message, phase, submits, triggers, watched, work};
use crate::given::{
    BIRTH, accepted, ad, add_attempt, at, attempt, done, ended, failed, history, id, idle_job, indices, known,
    known_queue, late, pending, queue, removed, running, settings, staging, stillborn, submitted, unknown,
};

#[test]
fn queue_is_polled_urgently_after_a_submission() {
    let mut facts = submitted(1);
    let decision = decide(&facts);
    assert_eq!(decision.details.polling, Polling::Always { history: None, urgent: true });
    facts.evidence.queue = queue(-95, &[]);
    facts.record.attempts[0].dead_since = Some(at(-3));
    assert_eq!(decide(&facts).details.polling, Polling::Always { history: None, urgent: true });
    assert_eq!(submits(&decision), None);
}

#[test]
fn accepted_jobs_are_recorded_and_advance_the_phase() {
    let mut facts = submitted(2);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1")]);
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Accepted]);
    assert_eq!(phase(&decision), Phase::Submitted);
    assert_eq!(decision.changed.iter().map(|index| index.0).collect::<Vec<_>>(), [0, 1]);
    let job = decision.after.as_ref().unwrap().jobs[&Index(1)].clone();
    assert_eq!((job.id, job.attempt, job.birthdate, job.recorded), (id("5.1"), Attempt(1), BIRTH, at(0)));
    assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");
    assert_eq!(decision.details.polling, Polling::OnChange);
}

#[test]
fn smaller_of_two_accepted_jobs_is_kept_unless_the_other_is_recorded() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[ad(0, "10.0"), ad(0, "9.0")]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs[&Index(0)].id, id("9.0"));
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::Extra(vec![id("10.0")]))));
    facts.record.jobs.insert(Index(0), idle_job("10.0"));
    facts.record.row = Some(known(Phase::Submitted));
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs[&Index(0)].id, id("10.0"));
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::Extra(vec![id("9.0")]))));
}

#[test]
fn removed_duplicate_never_replaces_the_running_job() {
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
fn late_jobs_do_not_count_and_are_removed() {
    let mut facts = submitted(1);
    facts.evidence = Evidence { queue: queue(-1, &[late(ad(0, "5.0"))]), history: history(0, &[]) };
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs.is_empty());
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::Extra(vec![id("5.0")]))));
    facts.evidence =
        Evidence { queue: queue(-1, &[]), history: history(0, &[ended(late(ad(0, "5.0")), Exit::Code(241))]) };
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs.is_empty());
    assert_eq!(submits(&decision), Some((&indices("0"), true, Attempt(2))));
    let lax = Rules { late_is_no_job: false, ..Rules::ALL };
    let decision = htc_machine::decide(&facts, at(0), &settings(), &lax).unwrap();
    assert_eq!(phase(&decision), Phase::Completed, "only the rule stands against it");
}

#[test]
fn extra_jobs_are_removed_by_answers_newer_than_the_last_removal() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    facts.evidence.queue = queue(-10, &[ad(0, "5.0"), ad(0, "6.0"), removed(ad(0, "7.0"), REMOVED_BY_US)]);
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::Extra(vec![id("6.0")]))));
    facts.record.requests.insert(RequestKind::Remove, done(-5));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(matches!(decision.details.polling, Polling::Always { urgent: true, .. }));
}

#[test]
fn no_job_is_resubmitted_without_proof() {
    let settled = || {
        let mut facts = submitted(2);
        facts.evidence =
            Evidence { queue: queue(-2, &[ad(1, "5.1")]), history: history(-1, &[stillborn(ad(0, "5.0"))]) };
        facts
    };
    assert_eq!(submits(&decide(&settled())), Some((&indices("0"), true, Attempt(2))), "only missing jobs");
    for (change, what) in [
        ((|facts| facts.record.attempts[0].dead_since = None) as fn(&mut Facts), "the submitter may live"),
        (|facts| facts.record.attempts[0].dead_since = Some(at(-1)), "the answer is too old"),
        (|facts| facts.evidence.history = unknown(QueryErrorKind::NotAsked), "history was not asked"),
        (|facts| facts.evidence.history = unknown(QueryErrorKind::ScheddUnreachable), "history did not answer"),
        (|facts| facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable), "the queue did not answer"),
        (|facts| facts.evidence.queue = queue(-2, &[staging(ad(0, "6.0")), ad(1, "5.1")]), "its ad is in the queue"),
        (|facts| crate::given::known_history(facts).reaches = HistoryReach::default(), "history is too short"),
    ] {
        let mut facts = settled();
        change(&mut facts);
        let decision = decide(&facts);
        assert_eq!(submits(&decision), None, "{what}");
        assert!(watched(&decision), "it would never be woken: {what}");
        assert!(condition(&decision, ConditionType::Submitted).starts_with("False"), "{what}");
    }
}

#[test]
fn attempt_of_a_killed_operator_is_polled_until_its_deadline() {
    let mut facts = submitted(1);
    facts.record.attempts[0].dead_since = None;
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False SubmitterMayLive");
    assert!(watched(&decision), "its jobs may be accepted meanwhile");
    assert_eq!(decision.requeue_after, Some(Duration::from_secs(20)));
    // Its time is over, but the answer is from before.
    facts.record.attempts[0].submitter_deadline = at(-60);
    let decision = decide(&facts);
    assert!(watched(&decision));
    assert!(decision.requeue_after.is_none_or(|again| again >= Duration::from_secs(1)), "{:?}", decision.requeue_after);
}

#[test]
fn staging_job_is_removed_after_the_staging_timeout() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Staging");
    assert_eq!(decision.requeue_after, Some(Duration::from_secs(30)));
    facts.record.attempts[0].dead_since = Some(at(-120));
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::Staging)));
    facts.record.requests.insert(RequestKind::Remove, done(0));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the removal");
}

#[test]
fn staging_job_is_kept_while_its_submitter_may_live() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    facts.record.attempts[0].dead_since = None;
    facts.record.attempts[0].submitter_deadline = at(-59);
    assert_eq!(decide(&facts).action, Action::Nothing);
    // Dead since 120 s.
    facts.record.attempts[0].submitter_deadline = at(-180);
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::Staging)));
}

#[test]
fn staging_job_of_an_unknown_attempt_has_the_same_timeout() {
    let mut facts = pending(1);
    facts.record.row.as_mut().unwrap().new = false;
    facts.past = Past::Unknown { settled: Some(at(-119)) };
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
    facts.past = Past::Unknown { settled: Some(at(-120)) };
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::Staging)));
}

#[test]
fn staging_job_is_not_accepted() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    assert_eq!(phase(&decide(&facts)), Phase::Pending);
    let lax = Rules { staged_is_accepted: false, ..Rules::ALL };
    let decision = htc_machine::decide(&facts, at(0), &settings(), &lax).unwrap();
    assert_eq!(phase(&decision), Phase::Submitted, "only the rule stands against it");
}

#[test]
fn refused_submission_is_reported_and_retried_with_backoff() {
    for (refused, pause) in [(1, 5), (2, 10), (5, 80), (20, 600)] {
        let mut facts = submitted(1);
        facts.record.refused = refused;
        facts.record.attempts[0].refusal = Some("ERROR: no".to_owned());
        facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
        facts.record.attempts[0].intent_at = at(1 - pause);
        facts.record.attempts[0].dead_since = Some(at(1 - pause));
        facts.record.requests.get_mut(&RequestKind::Submit).unwrap().finished = Some(at(1 - pause));
        if pause == 5 {
            known_queue(&mut facts).asked_at = at(-1);
        }
        let decision = decide(&facts);
        assert_eq!(decision.action, Action::Nothing);
        assert_eq!(decision.requeue_after, Some(Duration::from_secs(1)), "after {refused}");
        assert_eq!(condition(&decision, ConditionType::Submitted), "False SubmitRefused");
        assert!(message(&decision, ConditionType::Submitted).starts_with("condor_submit failed: ERROR: no; retrying"));
        facts.record.attempts[0].intent_at = at(-pause);
        facts.record.requests.get_mut(&RequestKind::Submit).unwrap().finished = Some(at(-pause));
        let decision = decide(&facts);
        assert_eq!(submits(&decision), Some((&indices("0"), true, Attempt(2))));
    }
}

#[test]
fn submission_without_intent_is_retried_with_backoff() {
    for (failures, pause) in [(1, 5), (3, 20), (30, 600)] {
        let mut facts = pending(1);
        facts.record.requests.insert(RequestKind::Submit, failed(1 - pause, failures));
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
        assert_eq!(condition(&decision, ConditionType::Submitted), "False ScheddUnreachable");
        facts.record.requests.insert(RequestKind::Submit, failed(-pause, failures));
        let decision = decide(&facts);
        assert_eq!(submits(&decision), Some((&indices("0"), false, Attempt(1))));
        let Action::Dispatch(request) = decision.action else { panic!() };
        assert!(!request.alone, "a schedd that is away is no HTCJob's fault");
        assert_eq!(request.key.step, failures + 1);
        let failure = RequestFailure { reason: "CannotWriteFiles".to_owned(), message: "m".to_owned() };
        facts.record.requests.get_mut(&RequestKind::Submit).unwrap().failure = Some(failure);
        let Action::Dispatch(request) = decide(&facts).action else { panic!() };
        assert!(request.alone, "it affects no other submission");
    }
}

#[test]
fn all_parts_of_a_large_htcjob_are_resubmitted() {
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
