//! What users want of single jobs: held, released, removed.

use htc_machine::actions::{JobAction, RequestedAction, StoredAction};
use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Polling};
use htc_machine::facts::{Exit, Facts, Hold, Job, JobState, LastRequest, Spec};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::request::RemovalScope;
use htc_machine::{Index, JobId, RequestKind, Work};

use crate::decide::decision::{condition, decide, message, phase, submits, work};
use crate::given::world::World;
use crate::given::{
    accepted, ad, at, done, ended_job, failed, held, id, idle_job, in_flight, indices, job, no_hold, other_hold,
    own_hold, pending, queue, running, running_job, submitted,
};

fn wish(facts: &mut Facts, index: u32, wanted: JobAction) {
    let wished =
        StoredAction { number: 1, action: RequestedAction::new(wanted, at(-5)), unreported: Some("alice".to_owned()) };
    facts.record.requested_actions.insert(Index(index), wished);
}

fn wished_hold() -> Hold {
    Hold { code: Hold::BY_USER, subcode: Hold::FOR_USER, ..no_hold() }
}

fn held_by_wish(text: &str) -> Job {
    job(text, JobState::Held(wished_hold()))
}

fn ids(texts: &[&str]) -> Vec<JobId> {
    texts.iter().map(|text| id(text)).collect()
}

#[test]
fn job_held_by_user_is_held_again_when_released() {
    let all = [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.1"), running(ad(1, "5.1")))];
    let mut facts = accepted(Phase::Running, &all);
    wish(&mut facts, 1, JobAction::Hold);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::HoldJobs(ids(&["5.1"]))));
    let told: Vec<&str> = decision.transitions.iter().map(|told| told.reason.as_str()).collect();
    assert_eq!(told, ["HeldByUser"]);
    assert_eq!(decision.transitions[0].detail, "alice holds 1 job: 1");
    facts.record.requested_actions = decision.after.unwrap().requested_actions;
    assert!(decide(&facts).transitions.is_empty(), "it is reported once");
    facts.record.requests.insert(RequestKind::Hold, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the hold");
    facts.record.requests.insert(RequestKind::Hold, done(-2));
    assert_eq!(work(&decide(&facts)), Some(&Work::HoldJobs(ids(&["5.1"]))), "it was released by hand");
}

#[test]
fn replaced_action_is_reported_with_its_replacement() {
    let all = [0, 1, 2].map(|index| (running_job(&format!("5.{index}")), running(ad(index, &format!("5.{index}")))));
    let mut facts = accepted(Phase::Running, &all);
    for (index, whose) in [(0, "ann holds, then bob"), (1, "bob"), (2, "ann holds, then bob")] {
        let wish = RequestedAction::new(JobAction::Remove, at(-5));
        facts
            .record
            .requested_actions
            .insert(Index(index), StoredAction { number: 1, action: wish, unreported: Some(whose.to_owned()) });
    }
    let decision = decide(&facts);
    let told: Vec<&str> = decision.transitions.iter().map(|told| told.detail.as_str()).collect();
    assert_eq!(told, ["ann holds, then bob removes 2 jobs: 0,2", "bob removes 1 job: 1"]);
}

#[test]
fn job_held_by_user_is_not_released_on_resume() {
    let ours = |index, text| (job(text, JobState::Held(own_hold())), held(ad(index, text), 1, Hold::SUSPENDED));
    let mut facts = accepted(Phase::Submitted, &[ours(0, "5.0"), ours(1, "5.1")]);
    wish(&mut facts, 0, JobAction::Hold);
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.1"]))));
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { suspend: true, ..spec });
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn release_action_ends_when_the_job_is_not_held() {
    let by_user = (held_by_wish("5.0"), held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER));
    let by_condor = (job("5.1", JobState::Held(other_hold())), held(ad(1, "5.1"), 13, 2));
    let mut facts = accepted(Phase::Submitted, &[by_user, by_condor]);
    wish(&mut facts, 0, JobAction::Release);
    wish(&mut facts, 1, JobAction::Release);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));
    facts.record.requested_actions = decision.after.unwrap().requested_actions;
    assert!(
        matches!(facts.record.requested_actions.of(Index(0)), Some(RequestedAction::Release { asked: Some(asked), .. }) if *asked == at(0))
    );

    // The operator has crashed before anything was done.
    facts.record.requests.insert(RequestKind::Release, done(-3));
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));

    // Or half way: whether it was done is not known.
    facts.record.requests.insert(RequestKind::Release, LastRequest { finished: None, ..done(1) });
    facts.evidence.queue = queue(2, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER), held(ad(1, "5.1"), 13, 2)]);
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));
    facts.evidence.queue = queue(-1, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER), held(ad(1, "5.1"), 13, 2)]);

    // It was done, and the answer is older than that.
    facts.record.requests.insert(RequestKind::Release, done(1));
    assert_eq!(decide(&facts).action, Action::Nothing);
    assert!(decide(&facts).details.action_updates.is_empty());
    assert!(matches!(decide(&facts).details.polling, Polling::Always { .. }));

    // One is loose, and the other one held again.
    facts.evidence.queue = queue(2, &[ad(0, "5.0"), held(ad(1, "5.1"), 13, 2)]);
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after.unwrap().requested_actions.is_empty()), (Action::Nothing, true));

    // It has failed.
    facts.record.requests.insert(RequestKind::Release, failed(1, 1));
    facts.evidence.queue = queue(2, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER), held(ad(1, "5.1"), 13, 2)]);
    let decision = decide(&facts);
    assert!(decision.requeue_after.is_some() && !decision.after.unwrap().requested_actions.is_empty());
}

#[test]
fn answer_before_a_release_action_does_not_end_it() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    wish(&mut facts, 0, JobAction::Release);
    facts.evidence.queue = queue(-6, &[ad(0, "5.0")]);
    assert!(!decide(&facts).after.unwrap().requested_actions.is_empty());
    facts.evidence.queue = queue(-4, &[ad(0, "5.0")]);
    facts.in_flight = Some(in_flight(&facts, RequestKind::Hold, true));
    assert!(!decide(&facts).after.unwrap().requested_actions.is_empty(), "a hold from before it is under way");
    facts.in_flight = None;
    facts.record.requests.insert(RequestKind::Hold, done(-3));
    assert!(!decide(&facts).after.unwrap().requested_actions.is_empty(), "the answer is from before that");
    facts.record.requests.remove(&RequestKind::Hold);
    assert!(decide(&facts).after.unwrap().requested_actions.is_empty());
}

#[test]
fn remove_action_removes_only_its_job() {
    let all = [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.1"), running(ad(1, "5.1")))];
    let mut facts = accepted(Phase::Running, &all);
    wish(&mut facts, 0, JobAction::Remove);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(RemovalScope::Requested(ids(&["5.0"])))));
    facts.record.requests.insert(RequestKind::Remove, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the removal");
}

#[test]
fn unsubmitted_job_is_withdrawn_by_a_remove_action() {
    let mut facts = pending(2);
    wish(&mut facts, 1, JobAction::Remove);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().requested_actions.withdrawn().to_string(), "1");
    assert_eq!(submits(&decision).unwrap().0.to_string(), "0");
    wish(&mut facts, 0, JobAction::Remove);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Completed);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Removed");
    assert!(message(&decision, ConditionType::Failed).starts_with("2 of 2 jobs failed: removed by a user (2)"));
}

#[test]
fn remove_action_waits_for_a_running_submission() {
    let mut facts = pending(1);
    wish(&mut facts, 0, JobAction::Remove);
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, false));
    assert!(matches!(decide(&facts).action, Action::Cancel(_)));
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after.unwrap().requested_actions.withdrawn().len()), (Action::Nothing, 0));
}

#[test]
fn attempted_job_is_withdrawn_only_with_proof() {
    let mut facts = submitted(1);
    wish(&mut facts, 0, JobAction::Remove);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().requested_actions.withdrawn().len(), 0, "history was not asked");
    assert!(matches!(decision.details.polling, Polling::Always { history: Some(_), .. }));
    facts.evidence.history = crate::given::history(0, &[]);
    assert_eq!(decide(&facts).after.unwrap().requested_actions.withdrawn().len(), 1);
}

#[test]
fn unsubmitted_job_held_by_user_waits_and_others_are_submitted() {
    let mut facts = pending(3);
    wish(&mut facts, 1, JobAction::Hold);
    assert_eq!(submits(&decide(&facts)).unwrap().0.to_string(), "0,2");
    wish(&mut facts, 0, JobAction::Hold);
    wish(&mut facts, 2, JobAction::Hold);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Waiting");
    assert!(message(&decision, ConditionType::Submitted).contains("kubectl htc release"));
    wish(&mut facts, 1, JobAction::Release);
    let decision = decide(&facts);
    assert_eq!(submits(&decision).unwrap().0.to_string(), "1");
}

#[test]
fn queued_submission_is_cancelled_once_for_a_new_action() {
    for wanted in [JobAction::Hold, JobAction::Remove] {
        let mut facts = pending(2);
        wish(&mut facts, 1, wanted);
        facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, false));
        let decision = decide(&facts);
        assert!(matches!(decision.action, Action::Cancel(_)), "{wanted}");
        facts.record.requested_actions = decision.after.unwrap().requested_actions;
        assert_eq!(decide(&facts).action, Action::Nothing, "a submission queued since then is without it");
    }
}

#[test]
fn removal_by_action_does_not_count_for_deletion() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.object.deleting = true;
    for abandon in [false, true] {
        facts.object.abandon = abandon;
        facts.in_flight = Some(in_flight(&facts, RequestKind::Remove, true));
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "nothing", "it ends first");
        facts.record = decision.after.unwrap();
        facts.record.requests.insert(RequestKind::Remove, done(-1));
        facts.in_flight = None;
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::All)));
    }
}

#[test]
fn ending_the_rest_does_not_wait_for_earlier_removals() {
    let jobs = [
        (ended_job("5.0", Outcome::Removed(String::new())), ad(0, "5.0")),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = accepted(Phase::Running, &jobs);
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { max_failed: Some(0), ..spec });
    facts.evidence.queue = queue(0, &[running(ad(1, "5.1"))]);
    facts.record.requests.insert(RequestKind::Remove, LastRequest { step: 9, ..done(-1) });
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(RemovalScope::Unfinished)));
}

#[test]
fn refused_job_held_by_user_frees_its_parallelism() {
    let mut facts = submitted(2);
    facts.record.attempts[0].indices = indices("0");
    facts.record.attempted = indices("0");
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { parallelism: Some(1), ..spec });
    wish(&mut facts, 0, JobAction::Hold);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing, "history was not asked");
    assert!(matches!(decision.details.polling, Polling::Always { history: Some(_), .. }));
    facts.evidence.history = crate::given::history(0, &[]);
    assert_eq!(submits(&decide(&facts)).unwrap().0.to_string(), "1");
}

#[test]
fn job_missing_from_the_queue_is_not_removed_repeatedly() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    wish(&mut facts, 0, JobAction::Remove);
    facts.evidence.queue = queue(-1, &[]);
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn hold_by_user_is_not_reported_as_a_problem() {
    let by_user = (held_by_wish("5.0"), held(ad(0, "5.0"), Hold::BY_USER, Hold::FOR_USER));
    let mut facts = accepted(Phase::Submitted, &[by_user]);
    assert_eq!(condition(&decide(&facts), ConditionType::Held), "True JobsHeld", "no hold is requested");
    wish(&mut facts, 0, JobAction::Hold);
    assert_eq!(condition(&decide(&facts), ConditionType::Held), "nothing");
}

/// A whole life: of four jobs one is removed while it waits, one while it runs, one is held and released.
#[test]
fn each_job_follows_its_own_action() {
    let mut small = World::new(4);
    let spec = small.facts.object.spec.clone().unwrap();
    small.facts.object.spec = Ok(Spec { parallelism: Some(3), ..spec });
    small.settle();
    wish(&mut small.facts, 3, JobAction::Remove);
    wish(&mut small.facts, 0, JobAction::Remove);
    wish(&mut small.facts, 1, JobAction::Hold);
    small.start(2);
    small.run();
    assert_eq!(small.phase(), Some(Phase::Running));
    assert_eq!(small.facts.record.requested_actions.withdrawn().to_string(), "3");
    assert!(matches!(small.facts.record.jobs[&Index(1)].state, JobState::Held(_)));
    wish(&mut small.facts, 1, JobAction::Release);
    small.run();
    assert!(small.facts.record.requested_actions.of(Index(1)).is_none());
    for index in [1, 2] {
        small.end(index, Exit::Code(0));
    }
    small.run();
    assert_eq!(small.phase(), Some(Phase::Completed));
    let ways = small.facts.record.jobs.len() + small.facts.record.requested_actions.withdrawn().len();
    assert_eq!(ways, 4);
}
