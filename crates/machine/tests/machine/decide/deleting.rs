//! Deletion: jobs are removed, and the finalizer goes only with proof.

use std::time::Duration;

use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::decide::{Action, Polling};
use htc_machine::facts::{Ad, Evidence, Facts, LastRequest, ObjectRow, Past, QueryErrorKind, Unreadable};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::phase::Phase;
use htc_machine::request::{ReleasePermit, RemovalScope};
use htc_machine::transitions::Trigger;
use htc_machine::{Birthdate, RequestKind, Rules, Work};

use crate::decide::decision::{condition, decide, message, phase, triggers, watched, work};
use crate::given::{
    accepted, ad, at, done, failed, id, idle_job, in_flight, known, known_queue, pending, queue, removed, running,
    running_job, settings, submitted, unknown,
};

fn deleting(mut facts: Facts) -> Facts {
    facts.object.deleting = true;
    facts
}

/// Being deleted since 50 s: the jobs were removed 10 s ago.
fn removing(jobs: &[Ad]) -> Facts {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    let mut known = known(Phase::Terminating);
    known.conditions.push(htc_machine::facts::ConditionRecord {
        kind: ConditionType::JobsRemoved,
        status: ConditionStatus::False,
        reason: "Removing".to_owned(),
        message: String::new(),
        since: at(-50),
    });
    facts.record.row = Some(known);
    facts.record.requests.insert(RequestKind::Remove, done(-10));
    facts.evidence.queue = queue(-1, jobs);
    facts
}

#[test]
fn deletion_of_unsubmitted_htcjob_releases_the_finalizer_at_once() {
    let decision = decide(&deleting(pending(1)));
    assert_eq!(triggers(&decision), [Trigger::Deleted, Trigger::Gone]);
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(ReleasePermit::NeverSubmitted(_)))));
    let mut stands = deleting(pending(1));
    stands.in_flight = Some(in_flight(&stands, RequestKind::Submit, true));
    let decision = decide(&stands);
    assert_eq!((triggers(&decision), decision.action), (vec![Trigger::Deleted], Action::Nothing));
}

#[test]
fn deletion_removes_jobs_in_every_phase() {
    for phase_before in [Phase::Pending, Phase::Submitted, Phase::Running, Phase::Completed] {
        let mut facts = deleting(accepted(phase_before, &[(running_job("5.0"), running(ad(0, "5.0")))]));
        if phase_before == Phase::Pending {
            facts.record.jobs.clear();
            facts.evidence = Evidence::none();
        }
        let decision = decide(&facts);
        assert_eq!(phase(&decision), Phase::Terminating);
        assert_eq!(triggers(&decision).last(), Some(&Trigger::Deleted));
        assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::All)));
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False Removing");
    }
}

#[test]
fn deletion_waits_for_a_submitter_that_may_live() {
    let mut facts = deleting(submitted(1));
    facts.record.attempts[0].dead_since = None;
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(20))));
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False SubmitterMayLive");
}

#[test]
fn deletion_waits_for_no_submitter_once_all_jobs_are_accepted() {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    facts.record.attempts[0].dead_since = None;
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::All)));
    facts.record.attempts[0].indices = crate::given::indices("0-1");
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False SubmitterMayLive");
    assert_eq!(decision.action, Action::Nothing);
}

#[test]
fn removal_before_the_end_of_the_submitter_does_not_count() {
    let mut facts = removing(&[]);
    facts.record.jobs.clear();
    facts.record.attempts[0].dead_since = Some(at(-5));
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::All)));
}

#[test]
fn finalizer_is_released_only_with_proof() {
    let decision = decide(&removing(&[]));
    assert_eq!(triggers(&decision), [Trigger::Gone]);
    let Some(Work::ReleaseFinalizer(ReleasePermit::Gone(proof))) = work(&decision) else { panic!() };
    assert_eq!(proof.asked_at(), at(-1));
    assert_eq!(decision.details.polling, Polling::Off);
    for (change, what) in [
        ((|facts| facts.evidence.queue = unknown(QueryErrorKind::NotAsked)) as fn(&mut Facts), "not asked"),
        (|facts| facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable), "no answer"),
        (|facts| known_queue(facts).asked_at = at(-10), "asked before the removal"),
        (|facts| known_queue(facts).birthdate = Birthdate(1), "another schedd"),
        (|facts| facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]), "still there"),
        (|facts| facts.past = Past::Unknown { settled: None }, "unknown past"),
        (|facts| facts.in_flight = Some(in_flight(facts, RequestKind::Fetch, true)), "a request stands"),
    ] {
        let mut facts = removing(&[]);
        change(&mut facts);
        let decision = decide(&facts);
        assert!(!matches!(work(&decision), Some(Work::ReleaseFinalizer(_))), "{what}");
        assert!(!triggers(&decision).contains(&Trigger::Gone), "{what}");
        assert!(watched(&decision) || facts.in_flight.is_some(), "it would never be woken: {what}");
    }
    let lax = Rules { prove_gone: false, ..Rules::ALL };
    let there = removing(&[running(ad(0, "5.0"))]);
    let decision = htc_machine::decide(&there, at(0), &settings(), &lax).unwrap();
    assert_eq!(triggers(&decision), [Trigger::Gone], "only the rule stands against it");
}

#[test]
fn finalizer_release_is_retried_and_reported_once() {
    let mut facts = removing(&[]);
    facts.record = decide(&facts).after.unwrap();
    let decision = decide(&facts);
    assert!(decision.transitions.is_empty());
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(_))));
    facts.object.finalizer = false;
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.details.polling), (Action::Nothing, Polling::Off));
}

#[test]
fn lingering_removed_jobs_are_awaited_and_reported_with_a_hint() {
    let lingering = removed(running(ad(0, "5.0")), REMOVED_BY_US);
    let mut facts = removing(std::slice::from_ref(&lingering));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(matches!(decision.details.polling, Polling::Always { urgent: true, .. }));
    facts.record.requests.insert(RequestKind::Remove, done(-16));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing, "a second condor_rm would not help");
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False NotRemovedYet");
    let told = message(&decision, ConditionType::JobsRemoved);
    assert!(told.contains("5.0") && told.contains("condor_rm -forcex"), "{told}");
    assert!(
        matches!(decision.details.polling, Polling::Always { urgent: true, .. }),
        "their end is awaited for as long as it takes"
    );
}

#[test]
fn removal_without_effect_is_repeated_with_backoff() {
    for (step, pause) in [(1, 5), (2, 10), (4, 40)] {
        let mut facts = removing(&[running(ad(0, "5.0"))]);
        facts.record.requests.insert(RequestKind::Remove, LastRequest { step, ..done(1 - pause) });
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
        facts.record.requests.insert(RequestKind::Remove, LastRequest { step, ..done(-pause) });
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::All)));
    }
}

#[test]
fn failed_removal_is_reported_and_retried_with_backoff() {
    for (failures, pause) in [(1, 5), (2, 10), (30, 600)] {
        let mut facts = removing(&[running(ad(0, "5.0"))]);
        facts.record.requests.insert(RequestKind::Remove, failed(1 - pause, failures));
        let decision = decide(&facts);
        assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False ScheddUnreachable");
        facts.record.requests.insert(RequestKind::Remove, failed(-pause, failures));
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::All)));
    }
}

#[test]
fn deletion_cancels_queued_requests_except_removals() {
    for kind in [RequestKind::Hold, RequestKind::Release, RequestKind::Fetch, RequestKind::Tidy, RequestKind::Submit] {
        let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
        facts.in_flight = Some(in_flight(&facts, kind, false));
        assert!(matches!(decide(&facts).action, Action::Cancel(key) if key.kind == kind), "{kind}");
        // Of what runs only a transfer is stopped.
        facts.in_flight = Some(in_flight(&facts, kind, true));
        assert_eq!(matches!(decide(&facts).action, Action::Cancel(_)), kind == RequestKind::Fetch, "{kind}");
    }
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.in_flight = Some(in_flight(&facts, RequestKind::Remove, false));
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn abandon_releases_the_finalizer_of_an_unreachable_schedd() {
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
    facts.record.row = Some(known(Phase::Running));
    assert!(!matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))), "only with a deletion");
}

/// A leader whose clock is behind that of the one before it: the deletion seems to begin in the future.
#[test]
fn deletion_begun_on_a_clock_ahead_is_removed_once() {
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.record.row.as_mut().unwrap().conditions.iter_mut().for_each(|told| told.since = at(30));
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::Remove(RemovalScope::All))), "{decision:?}");
    let known = decision.after.unwrap().row.unwrap();
    assert_eq!(known.conditions.iter().find(|told| told.kind == ConditionType::JobsRemoved).unwrap().since, at(0));
    facts.record.row = Some(known);
    facts.record.requests.insert(RequestKind::Remove, done(0));
    facts.evidence.queue = queue(0, &[running(ad(0, "5.0"))]);
    assert!(!matches!(work(&decide(&facts)), Some(Work::Remove(_))), "not back to back");

    // A removal of that clock may have been before the deletion.
    facts.record.requests.insert(RequestKind::Remove, done(20));
    facts.evidence.queue = queue(0, &[]);
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::Remove(RemovalScope::All))), "{decision:?}");
}

/// One condor_rm, whatever comes of it.
#[test]
fn abandoned_htcjob_is_removed_once_before_release() {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    facts.object.abandon = true;
    let asks = |facts: &Facts| work(&decide(facts)) == Some(&Work::Remove(RemovalScope::All));
    let lets_go =
        |facts: &Facts| matches!(work(&decide(facts)), Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(_))));
    // From before the deletion: because of a deadline, for example.
    facts.record.requests.insert(RequestKind::Remove, done(-100));
    assert!(asks(&facts));
    facts.record = decide(&facts).after.unwrap();
    assert!(asks(&facts), "it was not asked yet");
    let mut under_way = facts.clone();
    under_way.in_flight = Some(in_flight(&facts, RequestKind::Remove, true));
    assert_eq!(decide(&under_way).action, Action::Nothing);
    let mut stopped = failed(0, 1);
    stopped.failure.as_mut().unwrap().reason = "OperatorStopping".to_owned();
    facts.record.requests.insert(RequestKind::Remove, stopped);
    assert!(!lets_go(&facts), "it was never begun");
    for ended in [done(0), failed(0, 1)] {
        facts.record.requests.insert(RequestKind::Remove, ended);
        assert!(lets_go(&facts));
    }
    let mut never = deleting(pending(1));
    never.object.abandon = true;
    assert!(lets_go(&never), "there is nothing to remove");
}

/// As above: it seems to begin in the future.
#[test]
fn htcjob_abandoned_on_a_clock_ahead_is_removed_once() {
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.object.abandon = true;
    facts.record.row.as_mut().unwrap().conditions.iter_mut().for_each(|told| told.since = at(30));
    facts.record.requests.insert(RequestKind::Remove, done(20));
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::All)), "that one may have been before the deletion");
    facts.record.requests.insert(RequestKind::Remove, done(0));
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(_)))), "{decision:?}");
}

#[test]
fn abandon_waits_for_the_request_in_flight() {
    let mut facts = removing(&[]);
    facts.object.abandon = true;
    facts.in_flight = Some(in_flight(&facts, RequestKind::Remove, true));
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.transitions.len()), (Action::Nothing, 0));
}

#[test]
fn deletion_continues_with_an_unreadable_spec() {
    let mut facts = removing(&[]);
    facts.object.spec = Err(Unreadable::invalid("cannot be read"));
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))));
}

/// etcd was restored: the object lives, and the ledger says that it was being deleted, or was let go.
#[test]
fn htcjob_restored_after_deletion_is_reported_and_never_submitted() {
    let mut released = pending(1);
    released.record.row = Some(ObjectRow { released: true, ..known(Phase::Terminating) });
    let mut removed = accepted(Phase::Terminating, &[(idle_job("5.0"), ad(0, "5.0"))]);
    removed.evidence.queue = queue(-1, &[]);
    let mut never_submitted = pending(1);
    never_submitted.record.row = Some(known(Phase::Terminating));
    for mut facts in [released, removed, never_submitted] {
        let decision = decide(&facts);
        assert_eq!((phase(&decision), &decision.action), (Phase::Terminating, &Action::Nothing));
        assert_eq!(condition(&decision, ConditionType::Submitted), "False WasDeleted");
        assert_eq!(triggers(&decision), [Trigger::ConditionChanged], "an Event");
        facts.record = decision.after.unwrap();
        assert!(decide(&facts).transitions.is_empty(), "reported once");
        facts.object.submit_again = true;
        assert_eq!(decide(&facts).action, Action::Nothing);
        facts.object.finalizer = false;
        assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer), "it is still to be let go in order");
    }
    let mut facts = pending(1);
    facts.record.row = Some(known(Phase::Terminating));
    let lax = Rules { deleted_is_over: false, ..Rules::ALL };
    let decision = htc_machine::decide(&facts, at(0), &settings(), &lax).unwrap();
    assert!(matches!(work(&decision), Some(Work::Submit(..))), "only the rule stands against it");
    facts.object.deleting = true;
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))), "deleted again, it goes");
}
