//! What users want of single jobs: held, released, removed.

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::{Action, Look};
use htc_operator::machine::facts::{Exit, Facts, Hold, Job, JobState, LastRequest, Spec};
use htc_operator::machine::outcome::Outcome;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::Scope;
use htc_operator::machine::wishes::{Wanted, Wish, Wished};
use htc_operator::machine::{Index, JobId, Kind, Work};

use crate::decide::decision::{condition, decide, message, phase, submits, work};
use crate::given::world::World;
use crate::given::{
    accepted, ad, at, done, ended_job, failed, held, id, idle_job, in_flight, indices, job, no_hold, other_hold,
    own_hold, pending, queue, running, running_job, submitted,
};

fn wish(facts: &mut Facts, index: u32, wanted: Wanted) {
    let wished = Wished { number: 1, wish: Wish::new(wanted, at(-5)), untold: Some("alice".to_owned()) };
    facts.record.wishes.insert(Index(index), wished);
}

fn wished_hold() -> Hold {
    Hold { code: Hold::BY_USER, subcode: Hold::WISHED, ..no_hold() }
}

fn held_by_wish(text: &str) -> Job {
    job(text, JobState::Held(wished_hold()))
}

fn ids(texts: &[&str]) -> Vec<JobId> {
    texts.iter().map(|text| id(text)).collect()
}

#[test]
fn a_job_that_a_user_holds_is_held_whenever_it_is_loose() {
    let all = [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.1"), running(ad(1, "5.1")))];
    let mut facts = accepted(Phase::Running, &all);
    wish(&mut facts, 1, Wanted::Hold);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::HoldJobs(ids(&["5.1"]))));
    let told: Vec<&str> = decision.transitions.iter().map(|told| told.reason.as_str()).collect();
    assert_eq!(told, ["HeldByUser"]);
    assert_eq!(decision.transitions[0].detail, "alice holds 1 job: 1");
    facts.record.wishes = decision.after.unwrap().wishes;
    assert!(decide(&facts).transitions.is_empty(), "it is told once");
    facts.record.requests.insert(Kind::Hold, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the hold");
    facts.record.requests.insert(Kind::Hold, done(-2));
    assert_eq!(work(&decide(&facts)), Some(&Work::HoldJobs(ids(&["5.1"]))), "somebody has released it");
}

#[test]
fn what_was_replaced_before_it_was_told_is_told_with_what_replaced_it() {
    let all = [0, 1, 2].map(|index| (running_job(&format!("5.{index}")), running(ad(index, &format!("5.{index}")))));
    let mut facts = accepted(Phase::Running, &all);
    for (index, whose) in [(0, "ann holds, then bob"), (1, "bob"), (2, "ann holds, then bob")] {
        let wish = Wish::new(Wanted::Remove, at(-5));
        facts.record.wishes.insert(Index(index), Wished { number: 1, wish, untold: Some(whose.to_owned()) });
    }
    let decision = decide(&facts);
    let told: Vec<&str> = decision.transitions.iter().map(|told| told.detail.as_str()).collect();
    assert_eq!(told, ["ann holds, then bob removes 2 jobs: 0,2", "bob removes 1 job: 1"]);
}

#[test]
fn what_a_user_holds_is_not_released_with_the_others() {
    let ours = |index, text| (job(text, JobState::Held(own_hold())), held(ad(index, text), 1, Hold::SUSPENDED));
    let mut facts = accepted(Phase::Submitted, &[ours(0, "5.0"), ours(1, "5.1")]);
    wish(&mut facts, 0, Wanted::Hold);
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.1"]))));
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { suspend: true, ..spec });
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn a_release_is_over_when_the_job_is_not_held_or_was_released() {
    let by_user = (held_by_wish("5.0"), held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED));
    let by_condor = (job("5.1", JobState::Held(other_hold())), held(ad(1, "5.1"), 13, 2));
    let mut facts = accepted(Phase::Submitted, &[by_user, by_condor]);
    wish(&mut facts, 0, Wanted::Release);
    wish(&mut facts, 1, Wanted::Release);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));
    facts.record.wishes = decision.after.unwrap().wishes;
    assert!(
        matches!(facts.record.wishes.of(Index(0)), Some(Wish::Release { asked: Some(asked), .. }) if *asked == at(0))
    );

    // The operator has crashed before anything was done.
    facts.record.requests.insert(Kind::Release, done(-3));
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));

    // Or half way: whether it was done is not known.
    facts.record.requests.insert(Kind::Release, LastRequest { finished: None, ..done(1) });
    facts.evidence.queue = queue(2, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED), held(ad(1, "5.1"), 13, 2)]);
    assert_eq!(work(&decide(&facts)), Some(&Work::ReleaseJobs(ids(&["5.0", "5.1"]))));
    facts.evidence.queue = queue(-1, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED), held(ad(1, "5.1"), 13, 2)]);

    // It was done, and the answer is older than that.
    facts.record.requests.insert(Kind::Release, done(1));
    assert_eq!(decide(&facts).action, Action::Nothing);
    assert!(decide(&facts).wishes.is_empty());
    assert!(matches!(decide(&facts).look, Look::Every { .. }));

    // One is loose, and the other one held again.
    facts.evidence.queue = queue(2, &[ad(0, "5.0"), held(ad(1, "5.1"), 13, 2)]);
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after.unwrap().wishes.is_empty()), (Action::Nothing, true));

    // It has failed.
    facts.record.requests.insert(Kind::Release, failed(1, 1));
    facts.evidence.queue = queue(2, &[held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED), held(ad(1, "5.1"), 13, 2)]);
    let decision = decide(&facts);
    assert!(decision.again.is_some() && !decision.after.unwrap().wishes.is_empty());
}

#[test]
fn an_answer_from_before_a_release_was_wished_says_nothing_of_it() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    wish(&mut facts, 0, Wanted::Release);
    facts.evidence.queue = queue(-6, &[ad(0, "5.0")]);
    assert!(!decide(&facts).after.unwrap().wishes.is_empty());
    facts.evidence.queue = queue(-4, &[ad(0, "5.0")]);
    facts.in_flight = Some(in_flight(&facts, Kind::Hold, true));
    assert!(!decide(&facts).after.unwrap().wishes.is_empty(), "a hold from before it is under way");
    facts.in_flight = None;
    facts.record.requests.insert(Kind::Hold, done(-3));
    assert!(!decide(&facts).after.unwrap().wishes.is_empty(), "the answer is from before that");
    facts.record.requests.remove(&Kind::Hold);
    assert!(decide(&facts).after.unwrap().wishes.is_empty());
}

#[test]
fn a_job_that_a_user_removes_is_removed_and_the_others_go_on() {
    let all = [(idle_job("5.0"), ad(0, "5.0")), (running_job("5.1"), running(ad(1, "5.1")))];
    let mut facts = accepted(Phase::Running, &all);
    wish(&mut facts, 0, Wanted::Remove);
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Remove(Scope::Wished(ids(&["5.0"])))));
    facts.record.requests.insert(Kind::Remove, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before the removal");
}

#[test]
fn what_was_never_submitted_is_withdrawn() {
    let mut facts = pending(2);
    wish(&mut facts, 1, Wanted::Remove);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().wishes.withdrawn().to_string(), "1");
    assert_eq!(submits(&decision).unwrap().0.to_string(), "0");
    wish(&mut facts, 0, Wanted::Remove);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Completed);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Removed");
    assert!(message(&decision, ConditionType::Failed).starts_with("2 of 2 jobs failed: removed by a user (2)"));
}

#[test]
fn a_submission_that_has_begun_is_waited_for() {
    let mut facts = pending(1);
    wish(&mut facts, 0, Wanted::Remove);
    facts.in_flight = Some(in_flight(&facts, Kind::Submit, false));
    assert!(matches!(decide(&facts).action, Action::Cancel(_)));
    facts.in_flight = Some(in_flight(&facts, Kind::Submit, true));
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after.unwrap().wishes.withdrawn().len()), (Action::Nothing, 0));
}

#[test]
fn what_was_tried_is_withdrawn_only_with_a_proof() {
    let mut facts = submitted(1);
    wish(&mut facts, 0, Wanted::Remove);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.after.as_ref().unwrap().wishes.withdrawn().len(), 0, "history was not asked");
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }));
    facts.evidence.history = crate::given::history(0, &[]);
    assert_eq!(decide(&facts).after.unwrap().wishes.withdrawn().len(), 1);
}

#[test]
fn what_a_user_holds_waits_and_the_others_are_submitted() {
    let mut facts = pending(3);
    wish(&mut facts, 1, Wanted::Hold);
    assert_eq!(submits(&decide(&facts)).unwrap().0.to_string(), "0,2");
    wish(&mut facts, 0, Wanted::Hold);
    wish(&mut facts, 2, Wanted::Hold);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Waiting");
    assert!(message(&decision, ConditionType::Submitted).contains("kubectl htc release"));
    wish(&mut facts, 1, Wanted::Release);
    let decision = decide(&facts);
    assert_eq!(submits(&decision).unwrap().0.to_string(), "1");
}

#[test]
fn a_queued_submission_is_taken_back_once_for_a_job_that_is_held() {
    for wanted in [Wanted::Hold, Wanted::Remove] {
        let mut facts = pending(2);
        wish(&mut facts, 1, wanted);
        facts.in_flight = Some(in_flight(&facts, Kind::Submit, false));
        let decision = decide(&facts);
        assert!(matches!(decision.action, Action::Cancel(_)), "{wanted}");
        facts.record.wishes = decision.after.unwrap().wishes;
        assert_eq!(decide(&facts).action, Action::Nothing, "what is queued since then is without it");
    }
}

#[test]
fn a_removal_of_single_jobs_is_not_that_of_a_deletion() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.object.deleting = true;
    for abandon in [false, true] {
        facts.object.abandon = abandon;
        facts.in_flight = Some(in_flight(&facts, Kind::Remove, true));
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::JobsRemoved), "nothing", "it ends first");
        facts.record = decision.after.unwrap();
        facts.record.requests.insert(Kind::Remove, done(-1));
        facts.in_flight = None;
        assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::All)));
    }
}

#[test]
fn what_is_cut_short_does_not_wait_for_the_removals_before() {
    let jobs = [
        (ended_job("5.0", Outcome::Removed(String::new())), ad(0, "5.0")),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = accepted(Phase::Running, &jobs);
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { max_failed: Some(0), ..spec });
    facts.evidence.queue = queue(0, &[running(ad(1, "5.1"))]);
    facts.record.requests.insert(Kind::Remove, LastRequest { step: 9, ..done(-1) });
    assert_eq!(work(&decide(&facts)), Some(&Work::Remove(Scope::Unfinished)));
}

#[test]
fn what_is_held_and_was_refused_takes_nobodys_place() {
    let mut facts = submitted(2);
    facts.record.attempts[0].indices = indices("0");
    facts.record.attempted = indices("0");
    let spec = facts.object.spec.clone().unwrap();
    facts.object.spec = Ok(Spec { parallelism: Some(1), ..spec });
    wish(&mut facts, 0, Wanted::Hold);
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing, "history was not asked");
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }));
    facts.evidence.history = crate::given::history(0, &[]);
    assert_eq!(submits(&decide(&facts)).unwrap().0.to_string(), "1");
}

#[test]
fn a_job_that_the_queue_does_not_show_is_not_removed_again_and_again() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    wish(&mut facts, 0, Wanted::Remove);
    facts.evidence.queue = queue(-1, &[]);
    assert_eq!(decide(&facts).action, Action::Nothing);
}

#[test]
fn what_a_user_holds_is_no_trouble() {
    let by_user = (held_by_wish("5.0"), held(ad(0, "5.0"), Hold::BY_USER, Hold::WISHED));
    let mut facts = accepted(Phase::Submitted, &[by_user]);
    assert_eq!(condition(&decide(&facts), ConditionType::Held), "True JobsHeld", "nobody is known to want that");
    wish(&mut facts, 0, Wanted::Hold);
    assert_eq!(condition(&decide(&facts), ConditionType::Held), "nothing");
}

/// A whole life: of four jobs one is removed while it waits, one while it runs, one is held and released.
#[test]
fn each_job_goes_its_own_way() {
    let mut small = World::new(4);
    let spec = small.facts.object.spec.clone().unwrap();
    small.facts.object.spec = Ok(Spec { parallelism: Some(3), ..spec });
    small.settle();
    wish(&mut small.facts, 3, Wanted::Remove);
    wish(&mut small.facts, 0, Wanted::Remove);
    wish(&mut small.facts, 1, Wanted::Hold);
    small.start(2);
    small.run();
    assert_eq!(small.phase(), Some(Phase::Running));
    assert_eq!(small.facts.record.wishes.withdrawn().to_string(), "3");
    assert!(matches!(small.facts.record.jobs[&Index(1)].state, JobState::Held(_)));
    wish(&mut small.facts, 1, Wanted::Release);
    small.run();
    assert!(small.facts.record.wishes.of(Index(1)).is_none());
    for index in [1, 2] {
        small.end(index, Exit::Code(0));
    }
    small.run();
    assert_eq!(small.phase(), Some(Phase::Completed));
    let ways = small.facts.record.jobs.len() + small.facts.record.wishes.withdrawn().len();
    assert_eq!(ways, 4);
}
