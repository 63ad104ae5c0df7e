//! Deletion: jobs are removed, and the finalizer goes only with proof.

use std::time::Duration;

use htc_operator::api::{ConditionStatus, ConditionType};
use htc_operator::machine::decide::{Action, Look};
use htc_operator::machine::facts::{Ad, Evidence, Facts, Known, LastRequest, Past, Unreadable, Why};
use htc_operator::machine::judge::REMOVED_BY_US;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::{ReleasePermit, Scope};
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Birthdate, Kind, Rules, Work};

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
fn deletion_waits_for_no_submitter_once_all_is_accepted() {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    facts.record.attempts[0].dead_since = None;
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::All)));
    facts.record.attempts[0].indices = crate::given::indices("0-1");
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False SubmitterMayLive");
    assert_eq!(decision.action, Action::Nothing);
}

#[test]
fn a_removal_from_before_the_submitters_death_does_not_count() {
    let mut facts = removing(&[]);
    facts.record.jobs.clear();
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
    let decision = htc_operator::machine::decide(&there, at(0), &settings(), &lax).unwrap();
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
    assert!(matches!(decision.look, Look::Every { soon: true, .. }), "their end is awaited for as long as it takes");
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
fn queued_work_is_cancelled_by_deletion_but_for_the_removal_and_what_that_needs() {
    for kind in [Kind::Hold, Kind::Release, Kind::Fetch, Kind::Tidy, Kind::Submit] {
        let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
        facts.in_flight = Some(in_flight(&facts, kind, false));
        assert!(matches!(decide(&facts).action, Action::Cancel(key) if key.kind == kind), "{kind}");
        // Of what runs only a transfer is stopped.
        facts.in_flight = Some(in_flight(&facts, kind, true));
        assert_eq!(matches!(decide(&facts).action, Action::Cancel(_)), kind == Kind::Fetch, "{kind}");
    }
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    for kind in [Kind::Adopt, Kind::Remove] {
        facts.in_flight = Some(in_flight(&facts, kind, false));
        assert_eq!(decide(&facts).action, Action::Nothing, "{kind}");
    }
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

/// A leader whose clock is behind that of the one before it: the deletion seems to begin in the future.
#[test]
fn a_deletion_that_began_on_a_clock_ahead_needs_one_removal() {
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.record.known.as_mut().unwrap().conditions.iter_mut().for_each(|told| told.since = at(30));
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::Remove(Scope::All))), "{decision:?}");
    let known = decision.after.unwrap().known.unwrap();
    assert_eq!(known.conditions.iter().find(|told| told.kind == ConditionType::JobsRemoved).unwrap().since, at(0));
    facts.record.known = Some(known);
    facts.record.requests.insert(Kind::Remove, done(0));
    facts.evidence.queue = queue(0, &[running(ad(0, "5.0"))]);
    assert!(!matches!(work(&decide(&facts)), Some(Work::Remove(_))), "not back to back");

    // A removal of that clock may have been before the deletion.
    facts.record.requests.insert(Kind::Remove, done(20));
    facts.evidence.queue = queue(0, &[]);
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::Remove(Scope::All))), "{decision:?}");
}

/// One condor_rm, whatever comes of it.
#[test]
fn what_is_abandoned_is_removed_once_before_it_goes() {
    let mut facts = deleting(accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]));
    facts.object.abandon = true;
    let asks = |facts: &Facts| work(&decide(facts)) == Some(&Work::Remove(Scope::All));
    let lets_go =
        |facts: &Facts| matches!(work(&decide(facts)), Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(_))));
    // From before the deletion: because of a deadline, for example.
    facts.record.requests.insert(Kind::Remove, done(-100));
    assert!(asks(&facts));
    facts.record = decide(&facts).after.unwrap();
    assert!(asks(&facts), "it was not asked yet");
    let mut under_way = facts.clone();
    under_way.in_flight = Some(in_flight(&facts, Kind::Remove, true));
    assert_eq!(decide(&under_way).action, Action::Nothing);
    let mut stopped = failed(0, 1);
    stopped.failure.as_mut().unwrap().reason = "Stopped".to_owned();
    facts.record.requests.insert(Kind::Remove, stopped);
    assert!(!lets_go(&facts), "it was never begun");
    for ended in [done(0), failed(0, 1)] {
        facts.record.requests.insert(Kind::Remove, ended);
        assert!(lets_go(&facts));
    }
    let mut never = deleting(pending(1));
    never.object.abandon = true;
    assert!(lets_go(&never), "there is nothing to remove");
}

/// As above: it seems to begin in the future.
#[test]
fn what_is_abandoned_on_a_clock_ahead_is_removed_once() {
    let mut facts = removing(&[running(ad(0, "5.0"))]);
    facts.object.abandon = true;
    facts.record.known.as_mut().unwrap().conditions.iter_mut().for_each(|told| told.since = at(30));
    facts.record.requests.insert(Kind::Remove, done(20));
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::All)), "that one may have been before the deletion");
    facts.record.requests.insert(Kind::Remove, done(0));
    let decision = decide(&facts);
    assert!(matches!(work(&decision), Some(Work::ReleaseFinalizer(ReleasePermit::Abandoned(_)))), "{decision:?}");
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
    facts.object.spec = Err(Unreadable::invalid("cannot be read"));
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))));
}

/// etcd was restored: the object lives, and the ledger says that it was being deleted, or was let go.
#[test]
fn what_was_deleted_and_lives_again_is_told_and_never_submitted() {
    let mut released = pending(1);
    released.record.known = Some(Known { released: true, ..known(Phase::Terminating) });
    let mut removed = accepted(Phase::Terminating, &[(idle_job("5.0"), ad(0, "5.0"))]);
    removed.evidence.queue = queue(-1, &[]);
    let mut never_submitted = pending(1);
    never_submitted.record.known = Some(known(Phase::Terminating));
    for mut facts in [released, removed, never_submitted] {
        let decision = decide(&facts);
        assert_eq!((phase(&decision), &decision.action), (Phase::Terminating, &Action::Nothing));
        assert_eq!(condition(&decision, ConditionType::Submitted), "False WasDeleted");
        assert_eq!(triggers(&decision), [Trigger::ConditionChanged], "an Event");
        facts.record = decision.after.unwrap();
        assert!(decide(&facts).transitions.is_empty(), "told once");
        facts.object.submit_again = true;
        assert_eq!(decide(&facts).action, Action::Nothing);
        facts.object.finalizer = false;
        assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer), "it is still to be let go in order");
    }
    let mut facts = pending(1);
    facts.record.known = Some(known(Phase::Terminating));
    let lax = Rules { deleted_is_over: false, ..Rules::ALL };
    let decision = htc_operator::machine::decide(&facts, at(0), &settings(), &lax).unwrap();
    assert!(matches!(work(&decision), Some(Work::Submit(..))), "only the rule stands against it");
    facts.object.deleting = true;
    assert!(matches!(work(&decide(&facts)), Some(Work::ReleaseFinalizer(_))), "deleted again, it goes");
}
