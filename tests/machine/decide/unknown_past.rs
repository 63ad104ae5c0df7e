//! Another ledger, another schedd: what is not known for certain is neither believed nor submitted.

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::{Action, Look};
use htc_operator::machine::facts::{
    Ad, Claim, Evidence, Exit, Facts, JobState, Known, Listed, Past, Published, Record,
};
use htc_operator::machine::outcome::{Loss, Outcome};
use htc_operator::machine::phase::Phase;
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Attempt, Birthdate, Index, Work};
use htc_operator::pools::managed::work::Work as ToDo;

use crate::decide::decision::{condition, decide, phase, state, triggers, watched, work};
use crate::given::{
    BIRTH, accepted, ad, add_attempt, at, attempt, ended, history, known_queue, pending, queue, running, running_job,
    stillborn,
};

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

/// A pass writes down what it has found so far: that may be less than there is.
#[test]
fn what_it_has_to_do_is_not_known_before_it_is_claimed() {
    let of = |facts: &Facts| ToDo::known(facts, decide(facts).after.as_ref().unwrap_or(&facts.record));
    let mut facts = pending(3);
    assert!(of(&facts).is_some());
    facts.record.known.as_mut().unwrap().new = false;
    facts.object.claim = Claim::Other;
    for settled in [None, Some(at(-1))] {
        facts.past = Past::Unknown { settled };
        assert_eq!(of(&facts), None, "{settled:?}");
    }
    let record =
        |new| Record { known: Some(Known { new, ..facts.record.known.clone().unwrap() }), ..Record::default() };
    assert!(ToDo::at_start(&record(true), None).is_some());
    assert_eq!((ToDo::at_start(&record(false), None), ToDo::at_start(&Record::default(), None)), (None, None));
    facts.object.claim = Claim::Ours;
    facts.past = Past::Continuous;
    assert!(of(&facts).is_some());
}

#[test]
fn a_status_with_jobs_that_are_nowhere_is_lost_and_never_submitted() {
    let mut facts = pending(1);
    facts.record.known.as_mut().unwrap().new = false;
    let listed = Listed::read("5.0");
    facts.object.published = Published { phase: Some(Phase::Running), attempt: 1, listed, ..Published::default() };
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

/// What one ledger had is not forgotten when the next one lists its own.
#[test]
fn what_a_status_lists_gets_no_shorter() {
    let lists = |ids: &str| Published { attempt: 1, listed: Listed::read(ids), ..Published::default() };
    let mut record = pending(2).record;
    record.jobs.insert(Index(0), running_job("6.0"));
    let known = record.known.as_mut().unwrap();
    known.new = false;
    for (before, after) in [("5.0-1", "5.0-1,6.0"), ("6.0", "6.0"), ("5.0,…", "5.0,…")] {
        assert_eq!(lists(before).to_list(&record), Listed::read(after), "{before}");
    }
    assert_eq!(Published::default().to_list(&record), Listed::read("6.0"));
    assert_eq!(Published::default().to_list(&Record::default()), Listed::Nothing);
    // A ledger that has made all of its attempts knows better, but not a copy that lacks one.
    record.known.as_mut().unwrap().new = true;
    assert_eq!(lists("5.0-1").to_list(&record), Listed::read("5.0-1,6.0"));
    record.highest = Attempt(1);
    for before in ["5.0-1", "5.0,…"] {
        assert_eq!(lists(before).to_list(&record), Listed::read("6.0"), "{before}");
    }
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
    let mut facts = pending(750);
    facts.record.known.as_mut().unwrap().new = false;
    add_attempt(&mut facts, attempt(1, "0-499"));
    facts.evidence.queue = queue(-1, &[]);
    let Look::Every { history: Some(reach), .. } = decide(&facts).look else { panic!("history is not asked") };
    assert_eq!(reach.date, Some(facts.object.created));
    facts.record.known.as_mut().unwrap().new = true;
    add_attempt(&mut facts, attempt(2, "500-749"));
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
