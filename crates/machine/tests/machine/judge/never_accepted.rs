//! Proved never accepted: neither the queue nor history has the job, and both would have it.

use htc_machine::facts::{
    Ad, EarlierAnswer, Evidence, Exit, Facts, HistoryReach, JobState, Listed, Published, QueryErrorKind, Witness,
};
use htc_machine::judge::{Doubt, Verdict};
use htc_machine::phase::Phase;
use htc_machine::{Attempt, Birthdate, Index, SchedDate, judge};
use rstest::rstest;

use crate::given::{
    BIRTH, WITNESS, ad, add_attempt, at, attempt, date, ended, far, history, id, idle_job, indices, job, known_history,
    known_queue, late, pending, queue, refused, removed, staging, stillborn, unknown,
};
use crate::judge::questions::{ALL, never_accepted, never_accepted_by, never_attempted, without};

#[test]
fn never_accepted_is_proved_by_queue_then_history() {
    let facts = refused();
    let proof = never_accepted(&facts).unwrap();
    assert_eq!((proof.uid(), proof.attempt(), proof.indices()), (&facts.object.uid, Attempt(1), &indices("0")));
}

/// However `condor_submit` ended: one that was killed, or that failed, may have left all its jobs in the queue.
#[test]
fn never_accepted_needs_two_answers() {
    let mut facts = refused();
    for refusal in [Some("no".to_owned()), None] {
        facts.record.attempts[0].refusal = refusal;
        let dead = facts.record.attempts[0].dead_since.unwrap();
        let shown = |asked_at, ads: &[Ad]| Some(EarlierAnswer::new(asked_at, ads));
        let later = known_queue(&mut facts).before.clone();
        for before in [None, shown(dead, &[]), shown(at(-1), &[staging(ad(0, "5.0"))])] {
            known_queue(&mut facts).before = before;
            assert_eq!(never_accepted(&facts).map(drop), Err(Doubt::SeenOnce));
        }
        known_queue(&mut facts).before = later;
        assert!(never_accepted(&facts).is_ok());
    }
}

#[test]
fn never_accepted_proof_has_the_verdict_on_the_jobs() {
    let gone = |ad| removed(ad, "removed by htc-operator (by user operator)");
    for (left, verdict) in [
        (vec![], Verdict::Absent),
        (vec![gone(staging(ad(0, "5.0")))], Verdict::Stillborn),
        (vec![gone(staging(ad(0, "5.0"))), gone(late(ad(0, "6.0")))], Verdict::Late),
    ] {
        let mut facts = refused();
        known_history(&mut facts).ads = left.clone().into();
        assert_eq!(never_accepted(&facts).unwrap().verdict(), verdict, "{left:?}");
    }
}

#[test]
fn never_accepted_is_not_proved_while_a_submitter_may_live() {
    let mut facts = refused();
    facts.record.attempts[0].dead_since = None;
    assert_eq!(never_accepted(&facts), Err(Doubt::SubmitterMayLive(at(20))));
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.ask_after_death = false)).is_ok());
    facts.evidence.queue = queue(21, &[]);
    known_history(&mut facts).asked_at = at(22);
    assert!(never_accepted(&facts).is_ok());
    facts.record.attempts[0].dead_since = Some(at(21));
    assert_eq!(never_accepted(&facts), Err(Doubt::NotAskedSince));
}

#[test]
fn never_accepted_ignores_submitters_of_other_jobs() {
    let mut facts = refused();
    let mut other = attempt(2, "1");
    other.dead_since = None;
    add_attempt(&mut facts, other);
    assert!(never_accepted(&facts).is_ok());
    assert_eq!(never_accepted_by(&facts, "0-1", &ALL), Err(Doubt::SubmitterMayLive(at(20))));
}

#[rstest]
#[case::staging(staging(ad(0, "5.0")))]
#[case::accepted(ad(0, "5.0"))]
#[case::late(late(ad(0, "5.0")))]
#[case::stillborn(stillborn(ad(0, "5.0")))]
#[case::of_an_attempt_that_the_ledger_lacks(Ad { attempt: Attempt(7), ..staging(ad(0, "5.0")) })]
fn never_accepted_is_not_proved_while_its_ad_is_in_the_queue(#[case] left: Ad) {
    let mut facts = refused();
    facts.evidence.queue = queue(-1, std::slice::from_ref(&left));
    assert_eq!(never_accepted(&facts), Err(Doubt::Present(vec![left.id])));
    assert!(never_accepted_by(&facts, "1", &ALL).is_ok(), "the ad of another index");
}

#[rstest]
#[case::accepted(ended(ad(0, "5.0"), Exit::Code(0)), false)]
#[case::removed_by_others(removed(staging(ad(0, "5.0")), "via condor_rm"), false)]
#[case::late(ended(late(ad(0, "5.0")), Exit::Code(241)), true)]
#[case::stillborn(stillborn(ad(0, "5.0")), true)]
#[case::staging(staging(ad(0, "5.0")), true)]
fn only_accepted_ads_in_history_contradict_never_accepted(#[case] left: Ad, #[case] proved: bool) {
    let mut facts = refused();
    facts.evidence.history = history(0, &[left]);
    let expected = if proved { Ok(()) } else { Err(Doubt::Present(vec![id("5.0")])) };
    assert_eq!(never_accepted(&facts).map(drop), expected);
}

#[test]
fn history_must_be_asked_after_the_queue() {
    let mut facts = refused();
    facts.evidence.history = unknown(QueryErrorKind::NotAsked);
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    facts.evidence.history = history(-1, &[]);
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.ask_after_death = false)).is_ok());
    facts.evidence.history = unknown(QueryErrorKind::ScheddUnreachable);
    assert!(
        matches!(never_accepted(&facts), Err(Doubt::Unanswered(why)) if why.kind == QueryErrorKind::ScheddUnreachable)
    );
}

#[rstest]
#[case::witness_there(Some(Witness::Newest(WITNESS.to_owned())), far(), true)]
#[case::witness_gone(Some(Witness::Newest(WITNESS.to_owned())), HistoryReach { date: Some(date(-100_000)), ..HistoryReach::default() }, false)]
#[case::another_witness(Some(Witness::Newest("other".to_owned())), far(), false)]
#[case::history_was_empty(Some(Witness::Empty), HistoryReach::default(), true)]
#[case::no_witness_but_a_date(None, far(), true)]
#[case::no_witness_and_the_exact_date(None, HistoryReach { date: Some(date(-100)), ..HistoryReach::default() }, true)]
#[case::no_witness_and_a_later_date(None, HistoryReach { date: Some(date(-99)), ..HistoryReach::default() }, false)]
#[case::no_witness_and_no_date(None, HistoryReach { date: None, ..far() }, false)]
fn history_must_reach_back_before_the_intent(
    #[case] witness: Option<Witness>,
    #[case] reaches: HistoryReach,
    #[case] far_enough: bool,
) {
    let mut facts = refused();
    facts.record.witnesses = witness.map(|witness| (Attempt(1), witness)).into_iter().collect();
    known_history(&mut facts).reaches = reaches;
    let expected = if far_enough { Ok(()) } else { Err(Doubt::HistoryTooShort) };
    assert_eq!(never_accepted(&facts).map(drop), expected);
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.history_reaches_back = false)).is_ok());
    facts.object.submit_again = true;
    assert!(never_accepted(&facts).is_ok(), "an admin allows it");
}

#[test]
fn history_must_reach_back_before_each_intent() {
    let mut facts = refused();
    add_attempt(&mut facts, attempt(2, "0"));
    facts.record.witnesses.insert(Attempt(2), Witness::Newest("gone".to_owned()));
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryTooShort));
}

#[test]
fn without_intent_history_must_reach_back_to_creation() {
    let mut facts = pending(1);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    assert!(never_accepted(&facts).is_ok());
    for (reached, proved) in [(Some(date(-1000)), true), (Some(date(-999)), false), (None, false)] {
        known_history(&mut facts).reaches.date = reached;
        assert_eq!(never_accepted(&facts).is_ok(), proved, "{reached:?}");
    }
}

/// The model's story: a job runs before anybody has seen it, the queue is lost, and the next look finds nothing.
#[test]
fn jobs_submitted_to_a_lost_queue_are_not_resubmitted() {
    let mut facts = refused();
    let answer = known_queue(&mut facts);
    (answer.birthdate, answer.steady_since) = (Birthdate(BIRTH.0 + 1), at(-301));
    assert_eq!(never_accepted(&facts), Err(Doubt::QueueLost));
    facts.object.submit_again = true;
    assert!(never_accepted(&facts).is_ok(), "an admin may know that it never ran");

    // Another ledger's intent may have been made at any time since the object was.
    let mut stranger = pending(1);
    stranger.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    assert!(never_accepted(&stranger).is_ok());
    stranger.object.created = SchedDate(BIRTH.0 - 1);
    known_history(&mut stranger).reaches.date = Some(stranger.object.created);
    assert_eq!(never_accepted(&stranger), Err(Doubt::QueueLost));
}

#[test]
fn submit_again_waives_history_only() {
    let mut facts = refused();
    facts.object.submit_again = true;
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    assert_eq!(never_accepted(&facts), Err(Doubt::Present(vec![id("5.0")])));
    facts.evidence.queue = queue(-1, &[]);
    facts.record.attempts[0].dead_since = None;
    assert!(matches!(never_accepted(&facts), Err(Doubt::SubmitterMayLive(_))));
}

#[rstest]
#[case::ids(Published { listed: Listed::read("5.0"), ..Published::default() })]
#[case::submitted(Published { phase: Some(Phase::Submitted), ..Published::default() })]
#[case::running(Published { phase: Some(Phase::Running), ..Published::default() })]
#[case::completed(Published { phase: Some(Phase::Completed), ..Published::default() })]
fn htcjob_with_published_jobs_needs_an_intent_to_resubmit(#[case] published: Published) {
    let mut facts = pending(1);
    facts.object.published = published;
    assert!(facts.object.published.shows_jobs());
    facts.evidence = Evidence { queue: queue(-1, &[]), history: unknown(QueryErrorKind::NotAsked) };
    // Before they are reported as lost, history is asked.
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    facts.evidence.history = history(0, &[]);
    assert_eq!(never_accepted(&facts), Err(Doubt::PublishedJobs));
    facts.object.submit_again = true;
    assert_eq!(never_accepted(&facts), Err(Doubt::PublishedJobs));
    assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::PublishedJobs));
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_none());
}

fn lists(ids: &str) -> Published {
    Published { phase: Some(Phase::Running), attempt: 1, listed: Listed::read(ids), ..Published::default() }
}

/// A ledger that was lost had submitted 5.0, or more; this one has found 5.0.
#[rstest]
#[case::no_published_jobs(Published::default(), true)]
#[case::found_job(lists("5.0"), true)]
#[case::other_job(lists("6.0"), false)]
#[case::found_job_and_other_job(lists("5.0-1"), false)]
#[case::truncated_list(lists("5.0,…"), false)]
#[case::running_phase_without_a_list(Published { listed: Listed::Nothing, ..lists("5.0") }, false)]
#[case::completed_phase(Published { phase: Some(Phase::Completed), ..lists("5.0") }, false)]
fn published_jobs_that_are_all_found_do_not_block_others(#[case] published: Published, #[case] proved: bool) {
    let mut facts = pending(2);
    facts.object.published = published;
    facts.record.row.as_mut().unwrap().new = false;
    facts.record.jobs.insert(Index(0), idle_job("5.0"));
    facts.evidence = Evidence { queue: queue(-1, &[ad(0, "5.0")]), history: history(0, &[]) };
    let expected = if proved { Ok(()) } else { Err(Doubt::PublishedJobs) };
    assert_eq!(never_accepted_by(&facts, "1", &ALL).map(drop), expected);
    assert!(never_accepted_by(&facts, "1", &without(|rules| rules.status_is_presence = false)).is_ok());
}

#[test]
fn early_phase_alone_does_not_imply_published_jobs() {
    for phase in [None, Some(Phase::Pending), Some(Phase::Terminating)] {
        assert!(!Published { phase, attempt: 3, ..Published::default() }.shows_jobs(), "{phase:?}");
    }
}

#[test]
fn proof_settles_only_attempts_with_no_other_missing_jobs() {
    // Of 4 jobs, two and two were tried; only the second two are judged here.
    let mut facts = refused();
    facts.record.attempts.clear();
    for (number, jobs) in [(1, "0-1"), (2, "2-3")] {
        add_attempt(&mut facts, attempt(number, jobs));
    }
    let settled = |facts: &Facts, jobs| never_accepted_by(facts, jobs, &ALL).unwrap().attempt();
    assert_eq!(settled(&facts, "0-3"), Attempt(2));
    assert_eq!(settled(&facts, "2-3"), Attempt(0), "jobs 0 and 1 of attempt 1 have not been judged");
    assert_eq!(settled(&facts, "0-1"), Attempt(1));
    for (index, id) in [(0, "5.0"), (1, "5.1")] {
        facts.record.jobs.insert(Index(index), job(id, JobState::Idle));
    }
    assert_eq!(settled(&facts, "2-3"), Attempt(2), "jobs 0 and 1 have been accepted");
}
