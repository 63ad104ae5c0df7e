//! Accepted jobs, from their start to their end.

use std::time::Duration;

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::Look;
use htc_operator::machine::facts::{Evidence, Exit, Hold, JobState, Spec, Why};
use htc_operator::machine::outcome::{Loss, Outcome};
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::Scope;
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Index, Kind, Work};

use crate::decide::decision::{condition, decide, message, phase, state, submits, triggers, work};
use crate::given::{
    accepted, ad, at, change_job, done, ended, ended_job, held, history, id, idle_job, indices, job, known_queue,
    other_hold, queue, removed, running, running_job, staging, submitted, unknown,
};

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
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }));
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Lost(Loss::Vanished)));
    assert_eq!(condition(&decision, ConditionType::Failed), "True Lost");
    assert_eq!(submits(&decision), None);
}

#[test]
fn nothing_is_completed_while_jobs_are_missing_or_held() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(0)))]);
    facts.object.spec = Ok(Spec { queue: 2, suspend: false, ..Spec::default() });
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
        "1 of 1 job held; 5.0: because; release held jobs with kubectl htc release or condor_release"
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

/// A schedd that is started again costs no Event, and one that is away one, however often it is asked.
#[test]
fn an_outage_is_told_once_and_only_after_a_silence() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = unknown(Why::ScheddUnreachable);
    facts.silent_since = Some(at(-59));
    let early = decide(&facts);
    assert!(early.transitions.is_empty(), "{early:?}");
    assert_eq!(early.again, Some(Duration::from_secs(1)), "then it is time to say so");
    facts.silent_since = Some(at(-60));
    let away = decide(&facts);
    assert_eq!(condition(&away, ConditionType::Tracked), "False ScheddUnreachable");
    assert_eq!(away.transitions.len(), 1);

    facts.record.known = away.after.unwrap().known;
    facts.evidence.queue = unknown(Why::CredentialsRefused);
    let otherwise = decide(&facts);
    assert_eq!(condition(&otherwise, ConditionType::Tracked), "False CredentialsRefused", "the reason is the last one");
    assert!(otherwise.transitions.is_empty(), "and no Event of its own");

    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    facts.silent_since = None;
    known_queue(&mut facts).before = None;
    let once = decide(&facts);
    assert_eq!(condition(&once, ConditionType::Tracked), "False ScheddUnreachable");
    assert!(once.transitions.is_empty() && matches!(once.look, Look::Every { .. }), "it wakes after the next answer");
    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    assert_eq!(condition(&decide(&facts), ConditionType::Tracked), "True Tracking");
}

#[test]
fn the_end_of_a_removal_is_awaited() {
    let mut facts = accepted(
        Phase::Running,
        &[(running_job("5.0"), running(ad(0, "5.0"))), (running_job("5.1"), running(ad(1, "5.1")))],
    );
    assert_eq!(decide(&facts).look, Look::Changes);
    facts.record.requests.insert(Kind::Remove, done(0));
    assert!(matches!(decide(&facts).look, Look::Every { soon: true, .. }), "the answer is from before it");
    facts.record.requests.insert(Kind::Remove, done(-5));
    assert_eq!(decide(&facts).look, Look::Changes);
    facts.evidence.queue = queue(-1, &[removed(running(ad(0, "5.0")), "via condor_rm"), running(ad(1, "5.1"))]);
    assert!(matches!(decide(&facts).look, Look::Every { soon: true, .. }), "whoever removes it");
}
