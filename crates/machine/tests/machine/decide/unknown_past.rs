//! Another ledger, another schedd: what is not known for certain is neither believed nor submitted.

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Polling};
use htc_machine::demand::JobDemand as ToDo;
use htc_machine::facts::{Ad, Claim, Evidence, Exit, Facts, JobState, Listed, ObjectRow, Past, Published, Record};
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::phase::Phase;
use htc_machine::transitions::Trigger;
use htc_machine::{Attempt, Birthdate, Index, Work};

use crate::decide::decision::{condition, decide, phase, state, triggers, watched, work};
use crate::given::{
    BIRTH, accepted, ad, add_attempt, at, attempt, ended, history, known_queue, pending, queue, running, running_job,
    stillborn,
};

#[test]
fn foreign_htcjob_is_claimed_only_by_an_answer_after_the_wait() {
    let mut facts = pending(1);
    facts.record.row.as_mut().unwrap().new = false;
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
fn demand_is_unknown_before_the_htcjob_is_claimed() {
    let of = |facts: &Facts| ToDo::after_pass(facts, decide(facts).after.as_ref().unwrap_or(&facts.record));
    let mut facts = pending(3);
    assert!(of(&facts).is_some());
    facts.record.row.as_mut().unwrap().new = false;
    facts.object.claim = Claim::Other;
    for settled in [None, Some(at(-1))] {
        facts.past = Past::Unknown { settled };
        assert_eq!(of(&facts), None, "{settled:?}");
    }
    let record =
        |new| Record { row: Some(ObjectRow { new, ..facts.record.row.clone().unwrap() }), ..Record::default() };
    assert!(ToDo::at_start(&record(true), None).is_some());
    assert_eq!((ToDo::at_start(&record(false), None), ToDo::at_start(&Record::default(), None)), (None, None));
    facts.object.claim = Claim::Ours;
    facts.past = Past::Continuous;
    assert!(of(&facts).is_some());
}

#[test]
fn published_jobs_that_are_missing_are_lost_and_never_submitted() {
    let mut facts = pending(1);
    facts.record.row.as_mut().unwrap().new = false;
    let listed = Listed::read("5.0");
    facts.object.published = Published { phase: Some(Phase::Running), attempt: 1, listed, ..Published::default() };
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert!(matches!(decision.details.polling, Polling::Always { history: Some(_), .. }), "history may have them");
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False JobsLost");
    facts.evidence.history = history(0, &[ended(ad(0, "5.0"), Exit::Code(0))]);
    let decision = decide(&facts);
    assert_eq!(phase(&decision), Phase::Completed, "history has it after all");
}

/// What one ledger had is not forgotten when the next one lists its own.
#[test]
fn published_job_ids_are_never_dropped() {
    let lists = |ids: &str| Published { attempt: 1, listed: Listed::read(ids), ..Published::default() };
    let mut record = pending(2).record;
    record.jobs.insert(Index(0), running_job("6.0"));
    let known = record.row.as_mut().unwrap();
    known.new = false;
    for (before, after) in [("5.0-1", "5.0-1,6.0"), ("6.0", "6.0"), ("5.0,…", "5.0,…")] {
        assert_eq!(lists(before).to_list(&record), Listed::read(after), "{before}");
    }
    assert_eq!(Published::default().to_list(&record), Listed::read("6.0"));
    assert_eq!(Published::default().to_list(&Record::default()), Listed::Nothing);
    // A ledger that has made all of its attempts knows better, but not a copy that lacks one.
    record.row.as_mut().unwrap().new = true;
    assert_eq!(lists("5.0-1").to_list(&record), Listed::read("5.0-1,6.0"));
    record.highest = Attempt(1);
    for before in ["5.0-1", "5.0,…"] {
        assert_eq!(lists(before).to_list(&record), Listed::read("6.0"), "{before}");
    }
}

#[test]
fn htcjob_claimed_by_another_ledger_is_never_submitted() {
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
fn history_is_searched_back_to_creation_without_an_intent() {
    // Two parts; only the first is in this ledger, and the object is not new to it.
    let mut facts = pending(750);
    facts.record.row.as_mut().unwrap().new = false;
    add_attempt(&mut facts, attempt(1, "0-499"));
    facts.evidence.queue = queue(-1, &[]);
    let Polling::Always { history: Some(reach), .. } = decide(&facts).details.polling else {
        panic!("history is not asked")
    };
    assert_eq!(reach.date, Some(facts.object.created));
    facts.record.row.as_mut().unwrap().new = true;
    add_attempt(&mut facts, attempt(2, "500-749"));
    let Polling::Always { history: Some(reach), .. } = decide(&facts).details.polling else {
        panic!("history is not asked")
    };
    assert_eq!(reach.date, None, "every intent has its witness");
}

#[test]
fn schedd_with_another_birthdate_is_reported_and_not_trusted() {
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
    assert_eq!(condition(&decision, ConditionType::Failed), "True JobsLost");
}

#[test]
fn job_id_after_a_queue_reset_is_another_job() {
    for attempt in [1, 2] {
        let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
        let other = Ad { attempt: Attempt(attempt), ..ended(ad(0, "5.0"), Exit::Code(0)) };
        facts.evidence = Evidence { queue: queue(-1, &[other]), history: history(0, &[]) };
        known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1);
        assert_eq!(state(&decide(&facts), 0), JobState::Ended(Outcome::Lost(Loss::QueueReset)), "{attempt}");
    }
}

#[test]
fn job_id_of_another_attempt_is_another_job() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    let other = Ad { attempt: Attempt(2), ..stillborn(ad(0, "5.0")) };
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, std::slice::from_ref(&other)) };
    assert_eq!(state(&decide(&facts), 0), JobState::Ended(Outcome::Lost(Loss::Vanished)));
    facts.evidence = Evidence { queue: queue(-1, &[running(ad(0, "5.0"))]), history: history(0, &[other]) };
    assert_eq!(state(&decide(&facts), 0), JobState::Running);
}
