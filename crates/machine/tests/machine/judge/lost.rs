//! Lost: jobs that were accepted and are in neither place.

use htc_machine::facts::{Ad, EarlierAnswer, Evidence, Exit, Facts, HistoryReach, JobState, QueryErrorKind};
use htc_machine::judge;
use htc_machine::judge::Doubt;
use htc_machine::outcome::Loss;
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Birthdate, Index, Rules};
use rstest::rstest;

use crate::given::{
    BIRTH, accepted, ad, at, ended, history, id, job, known_history, known_queue, queue, running, settings, stillborn,
    unknown,
};

/// A job that was accepted and is in neither place.
fn vanished() -> Facts {
    let mut facts = accepted(Phase::Running, &[(job("5.0", JobState::Running), running(ad(0, "5.0")))]);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    facts
}

fn is_lost(facts: &Facts) -> Result<Loss, Doubt> {
    let sightings = judge::Sightings::new(&facts.evidence, &Rules::ALL);
    let seen = sightings.of(Index(0));
    judge::is_lost(&facts.record.jobs[&Index(0)], &facts.record, &facts.evidence, seen, &settings(), &Rules::ALL)
}

#[test]
fn job_in_neither_queue_nor_history_is_lost() {
    assert_eq!(is_lost(&vanished()), Ok(Loss::Vanished));
}

#[rstest]
#[case::queue_older_than_the_job(|facts: &mut Facts| known_queue(facts).asked_at = at(-80), Doubt::NotAskedSince)]
#[case::history_not_asked(|facts: &mut Facts| facts.evidence.history = unknown(QueryErrorKind::NotAsked), Doubt::HistoryNotAsked)]
#[case::history_before_queue(|facts: &mut Facts| facts.evidence.history = history(-1, &[]), Doubt::HistoryNotAsked)]
#[case::history_too_short(|facts: &mut Facts| known_history(facts).reaches = HistoryReach::default(), Doubt::HistoryTooShort)]
#[case::in_history(
    |facts: &mut Facts| facts.evidence.history = history(0, &[ended(ad(0, "5.0"), Exit::Code(0))]),
    Doubt::Present(vec![id("5.0")])
)]
#[case::older_birthdate(
    |facts: &mut Facts| known_queue(facts).birthdate = Birthdate(BIRTH.0 - 1),
    Doubt::BirthdateChanged
)]
#[case::newer_birthdate_not_steady(
    |facts: &mut Facts| { let queue = known_queue(facts); queue.birthdate = Birthdate(BIRTH.0 + 1); queue.steady_since = at(-10); },
    Doubt::BirthdateChanged
)]
fn job_is_not_lost_while_there_is_doubt(#[case] change: fn(&mut Facts), #[case] doubt: Doubt) {
    let mut facts = vanished();
    change(&mut facts);
    assert_eq!(is_lost(&facts), Err(doubt));
}

/// HTCondor may answer with success and show less than there is, whatever it is asked about.
#[test]
fn job_is_lost_only_if_two_answers_lack_it() {
    let mut facts = vanished();
    let shown = |asked, ads: &[Ad]| Some(EarlierAnswer::new(at(asked), ads));
    for before in [None, shown(-2, &[running(ad(0, "5.0"))]), shown(-80, &[])] {
        known_queue(&mut facts).before = before;
        assert_eq!(is_lost(&facts), Err(Doubt::SeenOnce));
    }
    known_queue(&mut facts).before = shown(-2, &[ad(1, "5.1")]);
    assert_eq!(is_lost(&facts), Ok(Loss::Vanished));
}

#[test]
fn job_is_lost_with_its_queue() {
    let mut facts = vanished();
    known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1);
    assert_eq!(is_lost(&facts), Ok(Loss::QueueReset));
    known_history(&mut facts).reaches = HistoryReach::default();
    assert_eq!(is_lost(&facts), Ok(Loss::QueueReset), "the new queue's history need not reach back");
    facts.evidence.history = unknown(QueryErrorKind::NotAsked);
    assert_eq!(is_lost(&facts), Err(Doubt::HistoryNotAsked), "it may have ended before");
}

#[test]
fn job_id_of_another_attempt_is_not_the_lost_job() {
    let mut facts = vanished();
    facts.evidence.history = history(0, &[Ad { attempt: Attempt(2), ..stillborn(ad(0, "5.0")) }]);
    assert_eq!(is_lost(&facts), Ok(Loss::Vanished));
}
