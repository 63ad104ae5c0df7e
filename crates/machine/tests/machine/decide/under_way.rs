//! Accepted jobs, from their start to their end.

use std::time::Duration;

use htc_machine::condition::ConditionType;
use htc_machine::decide::Polling;
use htc_machine::facts::{Evidence, Exit, Hold, JobState, QueryErrorKind, Spec};
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::phase::Phase;
use htc_machine::request::RemovalScope;
use htc_machine::transitions::Trigger;
use htc_machine::{Index, RequestKind, Work};

use crate::decide::decision::{condition, decide, message, phase, state, submits, triggers, work};
use crate::given::{
    accepted, ad, at, change_job, done, ended, ended_job, held, history, id, idle_job, indices, job, known_queue,
    other_hold, queue, removed, running, running_job, staging, submitted, unknown,
};

#[test]
fn first_start_and_last_end_advance_the_phase() {
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
fn single_answer_may_advance_several_phases() {
    let mut facts = submitted(1);
    facts.record.row = None;
    facts.evidence.queue = queue(-1, &[ended(ad(0, "5.0"), Exit::Code(7))]);
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Guarded, Trigger::Accepted, Trigger::Started, Trigger::Failed]);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Failed(7)));
}

#[test]
fn outcome_in_history_wins_over_the_queue() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.history = history(0, &[ended(ad(0, "5.0"), Exit::Signal(9))]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Killed(9)));
    assert!(decision.after.as_ref().unwrap().jobs[&Index(0)].gone);
}

#[test]
fn job_removed_by_hand_fails_as_removed() {
    for ad_in in [removed(running(ad(0, "5.0")), "via condor_rm"), removed(ad(0, "5.0"), "via condor_rm")] {
        let facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad_in)]);
        let decision = decide(&facts);
        assert_eq!(phase(&decision), Phase::Completed);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), "True NothingToFetch");
        assert_eq!(condition(&decision, ConditionType::Failed), "True Removed");
    }
}

#[test]
fn job_removed_while_staging_fails_and_is_not_resubmitted() {
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
fn vanished_job_is_lost_after_history_is_checked() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Running);
    assert!(matches!(decision.details.polling, Polling::Always { history: Some(_), .. }));
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(state(&decision, 0), JobState::Ended(Outcome::Lost(Loss::Vanished)));
    assert_eq!(condition(&decision, ConditionType::Failed), "True JobsLost");
    assert_eq!(submits(&decision), None);
}

#[test]
fn htcjob_is_not_complete_while_jobs_are_missing_or_held() {
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
fn unrequested_job_is_removed_and_not_recorded() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1")]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().jobs.len(), 1);
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::Extra(vec![id("5.1")]))));
}

#[test]
fn rerun_of_an_ended_job_is_reported() {
    let jobs =
        [(ended_job("5.0", Outcome::Failed(1)), running(ad(0, "5.0"))), (running_job("5.1"), running(ad(1, "5.1")))];
    let decision = decide(&accepted(Phase::Running, &jobs));
    assert_eq!(triggers(&decision), [Trigger::RanAgain]);
    assert_eq!(state(&decision, 0), JobState::Running);
    assert_eq!(decision.transitions[0].failed, 0);
}

#[test]
fn job_of_a_completed_htcjob_keeps_its_outcome() {
    let jobs = [(ended_job("5.0", Outcome::Succeeded), running(ad(0, "5.0")))];
    let decision = decide(&accepted(Phase::Completed, &jobs));
    assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Completed, JobState::Ended(Outcome::Succeeded)));
}

#[test]
fn ended_job_that_left_the_queue_is_gone() {
    let mut facts = accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ad(0, "5.0"))]);
    change_job(&mut facts, |job| job.fetched = true);
    facts.evidence.queue = queue(-1, &[]);
    assert!(decide(&facts).after.unwrap().jobs[&Index(0)].gone);
    facts.evidence.queue = queue(-80, &[]);
    assert!(!decide(&facts).after.unwrap().jobs[&Index(0)].gone, "the answer is older than the record");
}

#[test]
fn held_jobs_are_reported_with_the_hold_reason() {
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
    released.record.row = decision.after.unwrap().row;
    assert_eq!(condition(&decide(&released), ConditionType::Held), "False NotHeld");
}

#[test]
fn unreachable_schedd_changes_only_the_tracked_condition() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
    let away = decide(&facts);
    assert_eq!(condition(&away, ConditionType::Tracked), "False ScheddUnreachable");
    assert_eq!((away.changed.len(), phase(&away), away.details.polling), (0, Phase::Running, Polling::OnChange));
    facts.record.row = away.after.unwrap().row;
    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    assert_eq!(condition(&decide(&facts), ConditionType::Tracked), "True Tracking");
}

/// A schedd that is started again costs no Event, and one that is away one, however often it is asked.
#[test]
fn outage_is_reported_once_after_a_grace_period() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
    facts.silent_since = Some(at(-59));
    let early = decide(&facts);
    assert!(early.transitions.is_empty(), "{early:?}");
    assert_eq!(early.requeue_after, Some(Duration::from_secs(1)), "then it is time to say so");
    facts.silent_since = Some(at(-60));
    let away = decide(&facts);
    assert_eq!(condition(&away, ConditionType::Tracked), "False ScheddUnreachable");
    assert_eq!(away.transitions.len(), 1);

    facts.record.row = away.after.unwrap().row;
    facts.evidence.queue = unknown(QueryErrorKind::CredentialsRefused);
    let otherwise = decide(&facts);
    assert_eq!(condition(&otherwise, ConditionType::Tracked), "False CredentialsRefused", "the reason is the last one");
    assert!(otherwise.transitions.is_empty(), "and no Event of its own");

    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    facts.silent_since = None;
    known_queue(&mut facts).before = None;
    let once = decide(&facts);
    assert_eq!(condition(&once, ConditionType::Tracked), "False ScheddUnreachable");
    assert!(
        once.transitions.is_empty() && matches!(once.details.polling, Polling::Always { .. }),
        "it wakes after the next answer"
    );
    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    assert_eq!(condition(&decide(&facts), ConditionType::Tracked), "True Tracking");
}

#[test]
fn removal_is_polled_until_it_ends() {
    let mut facts = accepted(
        Phase::Running,
        &[(running_job("5.0"), running(ad(0, "5.0"))), (running_job("5.1"), running(ad(1, "5.1")))],
    );
    assert_eq!(decide(&facts).details.polling, Polling::OnChange);
    facts.record.requests.insert(RequestKind::Remove, done(0));
    assert!(
        matches!(decide(&facts).details.polling, Polling::Always { urgent: true, .. }),
        "the answer is from before it"
    );
    facts.record.requests.insert(RequestKind::Remove, done(-5));
    assert_eq!(decide(&facts).details.polling, Polling::OnChange);
    facts.evidence.queue = queue(-1, &[removed(running(ad(0, "5.0")), "via condor_rm"), running(ad(1, "5.1"))]);
    assert!(matches!(decide(&facts).details.polling, Polling::Always { urgent: true, .. }), "whoever removes it");
}
