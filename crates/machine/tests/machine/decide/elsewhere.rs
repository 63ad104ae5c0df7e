//! Jobs at another schedd than the one that is asked: its answers are about others.

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Decision};
use htc_machine::facts::{Evidence, Facts, JobState};
use htc_machine::judge::prove_gone;
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::phase::Phase;
use htc_machine::{Birthdate, RequestKind, Rules, Work, decide as decide_by};

use crate::decide::decision::{condition, decide, message, phase, state, watched, work};
use crate::given::{
    BIRTH, SCHEDD, accepted, ad, add_attempt, at, attempt, done, ended_job, history, known_queue, pending, queue,
    running, running_job, settings,
};

/// A job runs at one schedd; the operator asks another one, which is younger and has an empty queue.
fn moved() -> Facts {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.record.schedds = [SCHEDD.into()].into();
    facts.schedd = "other@test".into();
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1000);
    facts
}

fn without_the_rule(facts: &Facts) -> Decision {
    decide_by(facts, at(0), &settings(), &Rules { same_schedd: false, ..Rules::ALL }).unwrap()
}

#[test]
fn job_at_another_schedd_is_not_lost() {
    let facts = moved();
    let decision = decide(&facts);
    assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Running, JobState::Running));
    assert_eq!((decision.action.clone(), watched(&decision)), (Action::Nothing, false));
    assert_eq!(condition(&decision, ConditionType::Tracked), "False AnotherSchedd");
    assert!(message(&decision, ConditionType::Tracked).contains("--schedd=schedd@test"));
    let lost = JobState::Ended(Outcome::Lost(Loss::QueueReset));
    assert_eq!(state(&without_the_rule(&facts), 0), lost, "the rule is needed");
}

#[test]
fn htcjob_at_another_schedd_is_released_only_with_abandon() {
    let mut facts = moved();
    facts.object.deleting = true;
    facts.record.requests.insert(RequestKind::Remove, done(-2));
    let decision = decide(&facts);
    assert_eq!((phase(&decision), &decision.action), (Phase::Terminating, &Action::Nothing));
    assert_eq!(condition(&decision, ConditionType::JobsRemoved), "False AnotherSchedd");
    // And once its phase is written down, at the next look.
    facts.record = decision.after.unwrap();
    facts.record.requests.insert(RequestKind::Remove, done(-2));
    assert_eq!(decide(&facts).action, Action::Nothing);
    let released = |decision: &Decision| matches!(work(decision), Some(Work::ReleaseFinalizer(_)));
    let removed = |decision: &Decision| matches!(work(decision), Some(Work::Remove(_)));
    assert!(
        removed(&without_the_rule(&facts)),
        "the rule is needed: it would be removed where it is not, and then proved gone"
    );
    facts.object.abandon = true;
    assert!(released(&decide(&facts)));
}

/// A submission that may have brought in jobs is another schedd's, too; one of which all jobs are known to be gone is nobody's.
#[test]
fn open_attempt_at_another_schedd_is_not_submitted_here() {
    let mut facts = pending(2);
    add_attempt(&mut facts, attempt(1, "0"));
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    facts.schedd = "other@test".into();
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False AnotherSchedd");
    assert!(matches!(work(&without_the_rule(&facts)), Some(Work::Submit(..))), "the rule is needed");

    let mut over = accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ad(0, "5.0"))]);
    over.record.jobs.values_mut().for_each(|job| (job.fetched, job.gone) = (true, true));
    over.schedd = "other@test".into();
    over.object.deleting = true;
    over.record.requests.insert(RequestKind::Remove, done(-2));
    over.evidence.queue = queue(-1, &[]);
    known_queue(&mut over).birthdate = Birthdate(BIRTH.0 - 1000);
    assert_eq!(condition(&decide(&over), ConditionType::JobsRemoved), "False Removing");
    let Facts { object, record, past, evidence, .. } = &over;
    assert!(
        prove_gone(object, record, *past, evidence, &settings(), &Rules::ALL).is_ok(),
        "an older schedd is as good"
    );
}

/// Back at the first schedd everything goes on.
#[test]
fn tracking_resumes_at_the_schedd_of_the_jobs() {
    let mut facts = moved();
    facts.record = decide(&facts).after.unwrap();
    facts.schedd = SCHEDD.into();
    facts.evidence.queue = queue(-1, &[running(ad(0, "5.0"))]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Tracked), "True Tracking");
    assert!(watched(&decision));
}
