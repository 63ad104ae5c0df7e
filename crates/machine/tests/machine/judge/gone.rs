//! Proved gone: the queue was empty after everything that could have brought a job.

use std::sync::Arc;
use std::time::Duration;

use htc_machine::facts::{Ad, Answer, EarlierAnswer, Facts, JobState, Past, QueryErrorKind};
use htc_machine::judge;
use htc_machine::judge::{Doubt, REMOVED_BY_US};
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Birthdate, Index, RequestKind, Rules, Settings, Timestamp};
use rstest::rstest;

use crate::given::{
    BIRTH, accepted, ad, add_attempt, at, attempt, done, id, job, known_queue, late, queue, refused, removed, settings,
    staging, unknown,
};
use crate::judge::questions::{ALL, never_accepted, never_accepted_by, prove_gone, prove_gone_by, without};

/// Submitted, accepted, removed a second before the queue was found empty.
fn emptied() -> Facts {
    let mut facts = accepted(Phase::Terminating, &[(job("5.0", JobState::Idle), ad(0, "5.0"))]);
    facts.record.requests.insert(RequestKind::Remove, done(-2));
    facts.evidence.queue = queue(-1, &[]);
    facts
}

/// [`refused`] with another answer of the queue.
fn refused_by(other: &Facts) -> Facts {
    let mut facts = refused();
    facts.evidence.queue = other.evidence.queue.clone();
    facts
}

/// HTCondor may answer with success and show less than there is.
#[test]
fn job_is_gone_only_if_two_answers_lack_it() {
    let mut facts = emptied();
    let shown = |asked, ads: &[Ad]| Some(EarlierAnswer::new(at(asked), ads));
    // None, one with the job, one from before the removal.
    for before in [None, shown(-1, &[ad(0, "5.0")]), shown(-2, &[])] {
        known_queue(&mut facts).before = before;
        assert_eq!(prove_gone(&facts), Err(Doubt::SeenOnce));
    }
    known_queue(&mut facts).before = None;
    assert!(prove_gone_by(&facts, &without(|rules| rules.two_answers = false)).is_ok());
    facts.record.jobs.get_mut(&Index(0)).unwrap().gone = true;
    facts.record.attempts.clear();
    assert!(prove_gone(&facts).is_ok(), "nothing is expected there");
}

#[test]
fn gone_is_proved_by_an_empty_queue_after_all_events() {
    let facts = emptied();
    let proof = prove_gone(&facts).unwrap();
    assert_eq!((proof.uid(), proof.asked_at()), (&facts.object.uid, at(-1)));
}

#[rstest]
#[case(QueryErrorKind::NotAsked)]
#[case(QueryErrorKind::ScheddUnreachable)]
#[case(QueryErrorKind::CredentialsRefused)]
#[case(QueryErrorKind::Incomplete)]
#[case(QueryErrorKind::AnotherSchedd)]
fn unknown_answer_proves_nothing(#[case] why: QueryErrorKind) {
    let mut facts = emptied();
    facts.evidence.queue = unknown(why);
    let Answer::Unknown(answer) = unknown::<()>(why) else { panic!() };
    assert_eq!(prove_gone(&facts), Err(Doubt::Unanswered(answer.clone())));
    assert_eq!(never_accepted(&facts), Err(Doubt::Unanswered(answer.clone())));
    let lost = job("5.0", JobState::Idle);
    assert_eq!(
        judge::is_lost(&lost, &facts.record, &facts.evidence, &[], &settings(), &Rules::ALL),
        Err(Doubt::Unanswered(answer))
    );
}

#[test]
fn gone_is_not_proved_while_ads_are_in_the_queue() {
    let mut facts = emptied();
    for left in [ad(0, "5.0"), staging(ad(0, "6.0")), late(ad(0, "7.0")), removed(ad(0, "8.0"), REMOVED_BY_US)] {
        facts.evidence.queue = queue(-1, std::slice::from_ref(&left));
        assert_eq!(prove_gone(&facts), Err(Doubt::Present(vec![left.id])));
    }
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(9, "6.0")]);
    assert_eq!(prove_gone(&facts), Err(Doubt::Present(vec![id("5.0"), id("6.0")])));
}

/// The same with nothing accepted of the attempt.
fn nothing_accepted() -> Facts {
    let mut facts = emptied();
    facts.record.jobs.clear();
    facts
}

#[test]
fn gone_needs_no_dead_submitter_once_all_jobs_are_accepted() {
    let mut facts = emptied();
    facts.record.attempts[0].dead_since = None;
    assert!(prove_gone(&facts).is_ok());
    let of_another = |facts: &mut Facts| facts.record.jobs.get_mut(&Index(0)).unwrap().attempt = Attempt(2);
    let one_of_two = |facts: &mut Facts| facts.record.attempts[0].indices = "0-1".parse().unwrap();
    for change in [of_another as fn(&mut Facts), one_of_two] {
        let mut facts = facts.clone();
        change(&mut facts);
        assert_eq!(prove_gone(&facts), Err(Doubt::SubmitterMayLive(at(-40 + 60))));
    }
    one_of_two(&mut facts);
    assert!(prove_gone_by(&facts, &without(|rules| rules.every_index_accepted = false)).is_ok());
}

#[test]
fn gone_is_not_proved_while_a_submitter_may_live() {
    let mut facts = nothing_accepted();
    let limit = at(-40 + 60);
    facts.record.attempts[0].dead_since = None;
    assert_eq!(prove_gone(&facts), Err(Doubt::SubmitterMayLive(limit)));
    assert!(prove_gone_by(&facts, &without(|rules| rules.ask_after_death = false)).is_ok());
    known_queue(&mut facts).asked_at = limit;
    assert_eq!(prove_gone(&facts), Err(Doubt::SubmitterMayLive(limit)));
    known_queue(&mut facts).asked_at = at(-40 + 61);
    assert_eq!(prove_gone(&facts), Err(Doubt::SeenOnce), "condor_submit exited with 0");
    known_queue(&mut facts).before = Some(EarlierAnswer { asked_at: Timestamp(limit.0 + 1), shown: Arc::default() });
    assert!(prove_gone(&facts).is_ok());
}

#[test]
fn gone_is_not_proved_by_an_answer_before_the_submitters_end() {
    let mut facts = nothing_accepted();
    facts.record.attempts[0].dead_since = Some(at(-1));
    assert_eq!(prove_gone(&facts), Err(Doubt::NotAskedSince));
    facts.record.attempts[0].dead_since = Some(at(-2));
    assert!(prove_gone(&facts).is_ok());
}

#[test]
fn gone_needs_the_end_of_every_submitter() {
    let mut facts = emptied();
    let mut second = attempt(2, "0");
    second.dead_since = Some(at(-1));
    add_attempt(&mut facts, second);
    assert_eq!(prove_gone(&facts), Err(Doubt::NotAskedSince));
}

#[test]
fn gone_is_not_proved_by_an_answer_before_the_last_change() {
    for change in [
        |facts: &mut Facts| facts.record.jobs.get_mut(&Index(0)).unwrap().recorded = at(-1),
        |facts: &mut Facts| drop(facts.record.requests.insert(RequestKind::Remove, done(-1))),
        |facts: &mut Facts| drop(facts.record.requests.insert(RequestKind::Fetch, done(5))),
        |facts: &mut Facts| {
            // It was taken up, and its end was not seen.
            facts.record.requests.insert(
                RequestKind::Hold,
                htc_machine::facts::LastRequest { finished: None, started: at(-1), ..done(0) },
            );
        },
    ] {
        let mut facts = emptied();
        change(&mut facts);
        assert_eq!(prove_gone(&facts), Err(Doubt::NotAskedSince));
        let old = prove_gone_by(&facts, &without(|rules| rules.ask_after_death = false));
        assert!(old.is_ok(), "only the rule stands against it");
    }
}

/// As in an HTCPool.
#[test]
fn new_birthdate_is_no_reset_where_an_admin_declares_losses() {
    let mut facts = emptied();
    let queue = known_queue(&mut facts);
    (queue.birthdate, queue.steady_since) = (Birthdate(BIRTH.0 + 1), at(-100_000_000));
    let settings = settings();
    assert!(judge::queue_was_reset(queue, BIRTH, &settings));
    let never = Settings { birthdate_steady: Duration::MAX, ..settings };
    assert!(!judge::queue_was_reset(queue, BIRTH, &never));
}

#[test]
fn birthdate_agrees_with_the_intent_or_a_steady_new_queue() {
    let cases = [
        (Birthdate(BIRTH.0), -1, true),
        (Birthdate(BIRTH.0 - 1), -100_000, false),
        (Birthdate(BIRTH.0 + 1), -1, false),
        (Birthdate(BIRTH.0 + 1), -300, false),
        (Birthdate(BIRTH.0 + 1), -301, true),
    ];
    for (birthdate, steady_since, agrees) in cases {
        let mut facts = emptied();
        facts.record.jobs.clear();
        let answer = known_queue(&mut facts);
        (answer.birthdate, answer.steady_since) = (birthdate, at(steady_since));
        let expected = if agrees { Ok(()) } else { Err(Doubt::BirthdateChanged) };
        let what = format!("{birthdate} since {steady_since}");
        assert_eq!(prove_gone(&facts).map(drop), expected, "by attempts: {what}");
        let again = if agrees && birthdate != BIRTH { Err(Doubt::QueueLost) } else { expected.clone() };
        assert_eq!(never_accepted(&refused_by(&facts)).map(drop), again, "{what}");
        let mut of_jobs = emptied();
        of_jobs.evidence.queue = facts.evidence.queue.clone();
        of_jobs.record.attempts.clear();
        assert_eq!(prove_gone(&of_jobs).map(drop), expected, "by jobs: {what}");
        of_jobs.record.jobs.get_mut(&Index(0)).unwrap().gone = true;
        assert!(prove_gone(&of_jobs).is_ok(), "a job that was proved gone needs no birthdate: {what}");
        let lax = without(|rules| rules.same_birthdate = false);
        assert!(prove_gone_by(&facts, &lax).is_ok());
        let Answer::Known(answer) = &facts.evidence.queue else { panic!() };
        assert_eq!(judge::birthdate_agrees(answer, BIRTH, &settings(), &ALL), agrees);
        assert_eq!(judge::queue_was_reset(answer, BIRTH, &settings()), agrees && birthdate > BIRTH);
    }
}

#[test]
fn ledger_of_unknown_past_proves_nothing_before_it_is_settled() {
    for (past, doubt) in [
        (Past::Unknown { settled: None }, Some(Doubt::PastUnknown)),
        (Past::Unknown { settled: Some(at(-1)) }, Some(Doubt::NotAskedSince)),
        (Past::Unknown { settled: Some(at(-2)) }, None),
        (Past::Continuous, None),
    ] {
        // Nothing is known of its jobs.
        let mut facts = nothing_accepted();
        facts.record.attempts.clear();
        facts.past = past;
        assert_eq!(prove_gone(&facts).err(), doubt, "{past:?}");
        if past != Past::Continuous {
            known_queue(&mut facts).before = None;
            assert!(prove_gone(&facts).is_err(), "one answer is not enough: {past:?}");
        }
        let mut facts = emptied();
        facts.past = past;
        assert_eq!(prove_gone(&facts).err(), doubt, "{past:?}");
        let mut facts = refused();
        facts.past = past;
        assert_eq!(never_accepted(&facts).err(), doubt, "{past:?}");
        let lax = without(|rules| rules.doubt_unknown_past = false);
        assert!(never_accepted_by(&facts, "0", &lax).is_ok() && prove_gone_by(&emptied(), &lax).is_ok());
    }
}

#[test]
fn without_the_rule_gone_is_assumed_without_proof() {
    let mut facts = emptied();
    facts.evidence.queue = queue(-1, &[ad(0, "5.0")]);
    assert!(prove_gone(&facts).is_err());
    assert!(prove_gone_by(&facts, &without(|rules| rules.prove_gone = false)).is_ok());
}
