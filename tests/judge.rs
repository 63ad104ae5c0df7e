//! `judge`, case by case: what one ad says, what is proved, and every doubt.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

mod machine;

use htc_operator::machine::facts::{
    Ad, Answer, Evidence, Exit, Facts, JobState, JobStatus, Loss, Outcome, Past, Published, Reach, Why, Witness,
};
use htc_operator::machine::judge::{
    self, Acceptance, Doubt, NeverAttempted, Place, ProvenGone, ProvenNeverAccepted, REMOVED_BY_US, Sightings,
};
use htc_operator::machine::phase::Phase;
use htc_operator::machine::request::Kind;
use htc_operator::machine::{Attempt, Birthdate, Index, Rules, SchedDate};
use machine::{
    BIRTH, STAGING_FAILED, WITNESS, accepted, ad, add_attempt, at, attempt, date, done, ended, far, held, history, id,
    indices, job, known, known_history, known_queue, late, pending, queue, removed, running, settings, staging,
    stillborn, submitted, unknown,
};
use rstest::rstest;

const ALL: Rules = Rules::ALL;

fn without(change: impl Fn(&mut Rules)) -> Rules {
    let mut rules = ALL;
    change(&mut rules);
    rules
}

// --- what one ad says -----------------------------------------------------------------------------------------------

fn unstaged(ad: Ad) -> Ad {
    Ad { staged_in: None, ..ad }
}

fn in_time_by(seconds: i64) -> Ad {
    let ad = ad(0, "5.0");
    Ad { staged_in: ad.not_after.map(|limit| SchedDate(limit.0 - seconds)), ..ad }
}

#[rstest]
#[case::files_are_there(ad(0, "5.0"), Acceptance::Accepted)]
#[case::files_came_at_the_last_moment(in_time_by(0), Acceptance::Accepted)]
#[case::files_came_too_late(in_time_by(-1), Acceptance::Late)]
#[case::late_and_started(running(late(ad(0, "5.0"))), Acceptance::Late)]
#[case::late_and_ended(ended(late(ad(0, "5.0")), Exit::Code(241)), Acceptance::Late)]
#[case::late_and_removed_by_us(removed(late(ad(0, "5.0")), REMOVED_BY_US), Acceptance::Late)]
#[case::late_and_removed_by_others(removed(late(ad(0, "5.0")), "via condor_rm"), Acceptance::Late)]
#[case::no_limit_in_the_ad(Ad { not_after: None, ..ad(0, "5.0") }, Acceptance::Accepted)]
#[case::running(running(ad(0, "5.0")), Acceptance::Accepted)]
#[case::held_with_the_old_spooling_code(held(ad(0, "5.0"), 16, 0), Acceptance::Accepted)]
#[case::started_though_no_date_is_there(running(unstaged(ad(0, "5.0"))), Acceptance::Accepted)]
#[case::ended_though_no_date_is_there(ended(unstaged(ad(0, "5.0")), Exit::Code(0)), Acceptance::Accepted)]
#[case::removed_after_it_had_started(removed(running(unstaged(ad(0, "5.0"))), "via condor_rm"), Acceptance::Accepted)]
#[case::removed_once_it_was_accepted(removed(ad(0, "5.0"), "via condor_rm"), Acceptance::Accepted)]
#[case::files_on_their_way(staging(ad(0, "5.0")), Acceptance::Staging)]
#[case::not_even_held_yet(unstaged(ad(0, "5.0")), Acceptance::Staging)]
#[case::the_schedd_gave_up(removed(staging(ad(0, "5.0")), STAGING_FAILED), Acceptance::Stillborn)]
#[case::the_schedd_gave_up_in_more_words(
    removed(staging(ad(0, "5.0")), "Staging of job files failed: disk full"),
    Acceptance::Stillborn
)]
#[case::removed_by_us(stillborn(ad(0, "5.0")), Acceptance::Stillborn)]
#[case::removed_by_others(removed(staging(ad(0, "5.0")), "via condor_rm (by user alice)"), Acceptance::RemovedByOthers)]
#[case::removed_for_no_reason(removed(staging(ad(0, "5.0")), ""), Acceptance::RemovedByOthers)]
#[case::somebody_quotes_us(removed(staging(ad(0, "5.0")), "not removed by htc-operator"), Acceptance::RemovedByOthers)]
fn an_ad_says_what_became_of_its_submission(#[case] ad: Ad, #[case] verdict: Acceptance) {
    assert_eq!(judge::acceptance(&ad, &ALL), verdict);
    let counts = matches!(verdict, Acceptance::Accepted | Acceptance::RemovedByOthers);
    assert_eq!(judge::counts(verdict), counts);
}

#[rstest]
#[case::idle(ad(0, "5.0"), None)]
#[case::running(running(ad(0, "5.0")), None)]
#[case::held(held(ad(0, "5.0"), 1, 0), None)]
#[case::output_on_its_way(Ad { status: JobStatus::TransferringOutput, ..running(ad(0, "5.0")) }, None)]
#[case::suspended_by_its_node(Ad { status: JobStatus::Suspended, ..running(ad(0, "5.0")) }, None)]
#[case::running_again_with_a_stale_exit_code(Ad { exit: Some(Exit::Code(1)), ..running(ad(0, "5.0")) }, None)]
#[case::exit_0(ended(ad(0, "5.0"), Exit::Code(0)), Some(Outcome::Succeeded))]
#[case::exit_7(ended(ad(0, "5.0"), Exit::Code(7)), Some(Outcome::Failed(7)))]
#[case::killed(ended(ad(0, "5.0"), Exit::Signal(9)), Some(Outcome::Killed(9)))]
#[case::removed(removed(running(ad(0, "5.0")), "via condor_rm"), Some(Outcome::Removed))]
#[case::removed_after_it_had_ended(
    removed(ended(ad(0, "5.0"), Exit::Code(0)), "via condor_rm"),
    Some(Outcome::Succeeded)
)]
#[case::removed_after_it_had_failed(
    removed(ended(ad(0, "5.0"), Exit::Code(7)), "via condor_rm"),
    Some(Outcome::Failed(7))
)]
#[case::removed_after_a_signal(
    removed(ended(ad(0, "5.0"), Exit::Signal(11)), "via condor_rm"),
    Some(Outcome::Killed(11))
)]
#[case::removed_between_two_tries(
    removed(Ad { exit: Some(Exit::Code(1)), ..running(ad(0, "5.0")) }, "via condor_rm"),
    Some(Outcome::Removed)
)]
fn an_ad_says_how_its_job_ended(#[case] ad: Ad, #[case] outcome: Option<Outcome>) {
    assert_eq!(judge::outcome(&ad), outcome);
}

#[test]
fn an_ad_in_both_places_counts_as_in_history() {
    let evidence = Evidence {
        queue: queue(-2, &[running(ad(0, "5.0")), ad(1, "5.1")]),
        history: history(-1, &[ended(ad(0, "5.0"), Exit::Code(0))]),
    };
    let sightings = Sightings::new(&evidence, &ALL);
    let of_0 = sightings.of(Index(0));
    assert_eq!(of_0.len(), 1);
    assert_eq!((of_0[0].place, of_0[0].ad.status), (Place::History, JobStatus::Completed));
    assert_eq!(sightings.of(Index(1))[0].place, Place::Queue);
    assert!(sightings.of(Index(2)).is_empty());
    assert_eq!(sightings.iter().count(), 2);
}

#[test]
fn the_same_number_in_two_attempts_is_two_jobs() {
    // A schedd that lost its queue begins again at 1.0.
    let again = Ad { attempt: Attempt(2), ..running(ad(0, "1.0")) };
    let evidence = Evidence { queue: queue(-2, &[again]), history: history(-1, &[stillborn(ad(0, "1.0"))]) };
    let sightings = Sightings::new(&evidence, &ALL);
    let seen: Vec<_> = sightings.of(Index(0)).iter().map(|seen| (seen.place, seen.acceptance)).collect();
    assert_eq!(seen, [(Place::Queue, Acceptance::Accepted), (Place::History, Acceptance::Stillborn)]);
}

#[test]
fn ads_that_count_come_first_then_the_smallest_id() {
    let evidence = Evidence {
        queue: queue(
            -1,
            &[
                stillborn(ad(0, "2.0")),
                late(ad(0, "3.0")),
                staging(ad(0, "4.0")),
                ad(0, "10.0"),
                ad(0, "9.1"),
                removed(staging(ad(0, "1.0")), "via condor_rm"),
            ],
        ),
        history: unknown(Why::NotAsked),
    };
    let sightings = Sightings::new(&evidence, &ALL);
    let ids: Vec<String> = sightings.of(Index(0)).iter().map(|seen| seen.ad.id.to_string()).collect();
    assert_eq!(ids, ["9.1", "10.0", "1.0", "4.0", "3.0", "2.0"]);
}

// --- proved gone ----------------------------------------------------------------------------------------------------

fn prove_gone(facts: &Facts) -> Result<ProvenGone, Doubt> {
    prove_gone_by(facts, &ALL)
}

fn prove_gone_by(facts: &Facts, rules: &Rules) -> Result<ProvenGone, Doubt> {
    judge::prove_gone(&facts.object, &facts.record, facts.past, &facts.evidence, &settings(), rules)
}

/// Submitted, accepted, removed a second before the queue was found empty.
fn emptied() -> Facts {
    let mut facts = accepted(Phase::Terminating, &[(job("5.0", JobState::Idle), ad(0, "5.0"))]);
    facts.record.requests.insert(Kind::Remove, done(-2));
    facts.evidence.queue = queue(-1, &[]);
    facts
}

#[test]
fn gone_is_proved_by_an_empty_queue_after_everything() {
    let facts = emptied();
    let proof = prove_gone(&facts).unwrap();
    assert_eq!((proof.uid(), proof.asked_at()), (&facts.object.uid, at(-1)));
}

#[rstest]
#[case(Why::NotAsked)]
#[case(Why::ScheddUnreachable)]
#[case(Why::CredentialsRefused)]
#[case(Why::Incomplete)]
#[case(Why::SuddenDrop)]
#[case(Why::AnotherSchedd)]
fn no_answer_proves_nothing(#[case] why: Why) {
    let mut facts = emptied();
    facts.evidence.queue = unknown(why);
    let Answer::Unknown(answer) = unknown::<()>(why) else { panic!() };
    assert_eq!(prove_gone(&facts), Err(Doubt::Unanswered(answer.clone())));
    assert_eq!(never_accepted(&facts), Err(Doubt::Unanswered(answer.clone())));
    let lost = job("5.0", JobState::Idle);
    assert_eq!(judge::is_lost(&lost, &facts.record, &facts.evidence, &settings()), Err(Doubt::Unanswered(answer)));
}

#[test]
fn gone_is_not_proved_while_ads_are_there() {
    let mut facts = emptied();
    for left in [ad(0, "5.0"), staging(ad(0, "6.0")), late(ad(0, "7.0")), removed(ad(0, "8.0"), REMOVED_BY_US)] {
        facts.evidence.queue = queue(-1, std::slice::from_ref(&left));
        assert_eq!(prove_gone(&facts), Err(Doubt::Present(vec![left.id])));
    }
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(9, "6.0")]);
    assert_eq!(prove_gone(&facts), Err(Doubt::Present(vec![id("5.0"), id("6.0")])));
}

#[test]
fn gone_is_not_proved_while_a_submitter_may_live() {
    let mut facts = emptied();
    let limit = at(-40 + 60);
    facts.record.attempts[0].dead_since = None;
    assert_eq!(prove_gone(&facts), Err(Doubt::SubmitterMayLive(limit)));
    assert!(prove_gone_by(&facts, &without(|rules| rules.ask_after_death = false)).is_ok());
    known_queue(&mut facts).asked_at = limit;
    assert_eq!(prove_gone(&facts), Err(Doubt::SubmitterMayLive(limit)));
    known_queue(&mut facts).asked_at.0 += 1;
    assert!(prove_gone(&facts).is_ok());
}

#[test]
fn gone_is_not_proved_by_an_answer_older_than_the_submitters_death() {
    let mut facts = emptied();
    facts.record.attempts[0].dead_since = Some(at(-1));
    assert_eq!(prove_gone(&facts), Err(Doubt::NotAskedSince));
    facts.record.attempts[0].dead_since = Some(at(-2));
    assert!(prove_gone(&facts).is_ok());
}

#[test]
fn every_submitter_must_be_dead() {
    let mut facts = emptied();
    let mut second = attempt(2, "0");
    second.dead_since = Some(at(-1));
    add_attempt(&mut facts, second);
    assert_eq!(prove_gone(&facts), Err(Doubt::NotAskedSince));
}

#[test]
fn gone_is_not_proved_by_an_answer_older_than_the_last_change() {
    for change in [
        |facts: &mut Facts| facts.record.jobs.get_mut(&Index(0)).unwrap().recorded = at(-1),
        |facts: &mut Facts| drop(facts.record.requests.insert(Kind::Remove, done(-1))),
        |facts: &mut Facts| drop(facts.record.requests.insert(Kind::Fetch, done(5))),
        |facts: &mut Facts| {
            // It was taken up, and its end was not seen.
            facts.record.requests.insert(
                Kind::Hold,
                htc_operator::machine::facts::LastRequest { finished: None, started: at(-1), ..done(0) },
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

#[test]
fn a_birthdate_is_that_of_the_intent_or_plainly_that_of_a_new_queue() {
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
fn a_ledger_of_unknown_past_proves_nothing_before_it_is_settled() {
    for (past, doubt) in [
        (Past::Unknown { settled: None }, Some(Doubt::PastUnknown)),
        (Past::Unknown { settled: Some(at(-1)) }, Some(Doubt::NotAskedSince)),
        (Past::Unknown { settled: Some(at(-2)) }, None),
        (Past::Continuous, None),
    ] {
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
fn without_the_rule_gone_is_believed_and_not_proved() {
    let mut facts = emptied();
    facts.evidence.queue = queue(-1, &[ad(0, "5.0")]);
    assert!(prove_gone(&facts).is_err());
    assert!(prove_gone_by(&facts, &without(|rules| rules.prove_gone = false)).is_ok());
}

// --- proved never accepted ------------------------------------------------------------------------------------------

fn never_accepted(facts: &Facts) -> Result<ProvenNeverAccepted, Doubt> {
    never_accepted_by(facts, "0", &ALL)
}

fn never_accepted_by(facts: &Facts, jobs: &str, rules: &Rules) -> Result<ProvenNeverAccepted, Doubt> {
    let sightings = Sightings::new(&facts.evidence, rules);
    judge::prove_never_accepted(
        &facts.object,
        &facts.record,
        facts.past,
        &indices(jobs),
        &facts.evidence,
        &sightings,
        &settings(),
        rules,
    )
}

/// Attempt 1 ended 90 s ago; neither the queue nor history has a job of it.
fn refused() -> Facts {
    let mut facts = submitted(1);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    facts
}

/// The same with another answer of the queue.
fn refused_by(other: &Facts) -> Facts {
    let mut facts = refused();
    facts.evidence.queue = other.evidence.queue.clone();
    facts
}

#[test]
fn never_accepted_is_proved_by_queue_then_history() {
    let facts = refused();
    let proof = never_accepted(&facts).unwrap();
    assert_eq!((proof.uid(), proof.attempt(), proof.indices()), (&facts.object.uid, Attempt(1), &indices("0")));
}

#[test]
fn never_accepted_is_not_proved_while_a_submitter_may_live() {
    let mut facts = refused();
    facts.record.attempts[0].dead_since = None;
    assert_eq!(never_accepted(&facts), Err(Doubt::SubmitterMayLive(at(20))));
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.ask_after_death = false)).is_ok());
    known_queue(&mut facts).asked_at = at(21);
    known_history(&mut facts).asked_at = at(22);
    assert!(never_accepted(&facts).is_ok());
    facts.record.attempts[0].dead_since = Some(at(21));
    assert_eq!(never_accepted(&facts), Err(Doubt::NotAskedSince));
}

#[test]
fn the_submitters_of_other_jobs_do_not_matter() {
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
fn of_history_only_what_counts_stands_against_it(#[case] left: Ad, #[case] proved: bool) {
    let mut facts = refused();
    facts.evidence.history = history(0, &[left]);
    let expected = if proved { Ok(()) } else { Err(Doubt::Present(vec![id("5.0")])) };
    assert_eq!(never_accepted(&facts).map(drop), expected);
}

#[test]
fn history_must_be_asked_after_the_queue() {
    let mut facts = refused();
    facts.evidence.history = unknown(Why::NotAsked);
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    facts.evidence.history = history(-1, &[]);
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.ask_after_death = false)).is_ok());
    facts.evidence.history = unknown(Why::ScheddUnreachable);
    assert!(matches!(never_accepted(&facts), Err(Doubt::Unanswered(why)) if why.why == Why::ScheddUnreachable));
}

#[rstest]
#[case::witness_there(Some(Witness::Newest(WITNESS.to_owned())), far(), true)]
#[case::witness_gone(Some(Witness::Newest(WITNESS.to_owned())), Reach { date: Some(date(-100_000)), ..Reach::default() }, false)]
#[case::another_witness(Some(Witness::Newest("other".to_owned())), far(), false)]
#[case::history_was_empty(Some(Witness::Empty), Reach::default(), true)]
#[case::no_witness_but_a_date(None, far(), true)]
#[case::no_witness_and_the_very_date(None, Reach { date: Some(date(-100)), ..Reach::default() }, true)]
#[case::no_witness_and_too_young_a_date(None, Reach { date: Some(date(-99)), ..Reach::default() }, false)]
#[case::no_witness_and_no_date(None, Reach { date: None, ..far() }, false)]
fn history_must_reach_back_before_the_intent(
    #[case] witness: Option<Witness>,
    #[case] reaches: Reach,
    #[case] far_enough: bool,
) {
    let mut facts = refused();
    facts.record.witnesses = witness.map(|witness| (Attempt(1), witness)).into_iter().collect();
    known_history(&mut facts).reaches = reaches;
    let expected = if far_enough { Ok(()) } else { Err(Doubt::HistoryTooShort) };
    assert_eq!(never_accepted(&facts).map(drop), expected);
    assert!(never_accepted_by(&facts, "0", &without(|rules| rules.history_reaches_back = false)).is_ok());
    facts.object.submit_again = true;
    assert!(never_accepted(&facts).is_ok(), "an admin said that it may go on");
}

#[test]
fn history_must_reach_back_before_each_intent() {
    let mut facts = refused();
    add_attempt(&mut facts, attempt(2, "0"));
    facts.record.witnesses.insert(Attempt(2), Witness::Newest("gone".to_owned()));
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryTooShort));
}

#[test]
fn where_no_intent_is_known_history_must_reach_back_to_the_objects_creation() {
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
fn what_was_handed_to_a_queue_that_is_lost_is_not_submitted_again() {
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
fn an_admin_can_waive_history_but_neither_the_queue_nor_the_submitters_death() {
    let mut facts = refused();
    facts.object.submit_again = true;
    facts.evidence.queue = queue(-1, &[staging(ad(0, "5.0"))]);
    assert_eq!(never_accepted(&facts), Err(Doubt::Present(vec![id("5.0")])));
    facts.evidence.queue = queue(-1, &[]);
    facts.record.attempts[0].dead_since = None;
    assert!(matches!(never_accepted(&facts), Err(Doubt::SubmitterMayLive(_))));
}

#[rstest]
#[case::ids(Published { has_ids: true, ..Published::default() })]
#[case::submitted(Published { phase: Some(Phase::Submitted), ..Published::default() })]
#[case::running(Published { phase: Some(Phase::Running), ..Published::default() })]
#[case::completed(Published { phase: Some(Phase::Completed), ..Published::default() })]
fn a_status_that_shows_jobs_is_never_submitted_without_an_intent(#[case] published: Published) {
    let mut facts = pending(1);
    facts.object.published = published;
    assert!(facts.object.published.shows_jobs());
    facts.evidence = Evidence { queue: queue(-1, &[]), history: unknown(Why::NotAsked) };
    // Before it is said that they are lost, history is asked.
    assert_eq!(never_accepted(&facts), Err(Doubt::HistoryNotAsked));
    facts.evidence.history = history(0, &[]);
    assert_eq!(never_accepted(&facts), Err(Doubt::PublishedJobs));
    facts.object.submit_again = true;
    assert_eq!(never_accepted(&facts), Err(Doubt::PublishedJobs));
    assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::PublishedJobs));
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_none());
}

#[test]
fn a_status_with_a_phase_only_shows_no_jobs() {
    for phase in [None, Some(Phase::Pending), Some(Phase::Terminating)] {
        assert!(!Published { phase, attempt: 3, has_ids: false }.shows_jobs(), "{phase:?}");
    }
}

#[test]
fn an_attempt_with_other_missing_jobs_is_not_settled_by_the_proof() {
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

// --- never attempted, never submitted -------------------------------------------------------------------------------

fn never_attempted(facts: &Facts, jobs: &str, rules: &Rules) -> Result<NeverAttempted, Doubt> {
    judge::never_attempted(&facts.object, &facts.record, facts.past, &indices(jobs), rules)
}

#[test]
fn a_new_object_needs_no_evidence() {
    let facts = pending(3);
    assert_eq!(never_attempted(&facts, "0-2", &ALL).unwrap().indices(), &indices("0-2"));
    assert!(judge::never_submitted(&facts.object, &facts.record, facts.past).is_some());
}

#[test]
fn what_was_part_of_an_attempt_was_attempted() {
    let mut facts = submitted(2);
    assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::NotAskedSince));
    assert_eq!(never_attempted(&facts, "1-2", &ALL), Err(Doubt::NotAskedSince));
    assert!(never_attempted(&facts, "2", &ALL).is_ok());
    facts.object.published.has_ids = true;
    assert!(never_attempted(&facts, "2", &ALL).is_ok(), "the ledger knows where the ids come from");
}

#[test]
fn an_object_of_unknown_past_was_perhaps_attempted() {
    let mut stranger = pending(1);
    stranger.record.known = Some(htc_operator::machine::facts::Known { new: false, ..known(Phase::Pending) });
    let mut unknown_past = pending(1);
    unknown_past.past = Past::Unknown { settled: Some(at(-50)) };
    let mut no_row = pending(1);
    no_row.record.known = None;
    for facts in [stranger, unknown_past, no_row] {
        assert_eq!(never_attempted(&facts, "0", &ALL), Err(Doubt::PastUnknown));
        assert!(never_attempted(&facts, "0", &without(|rules| rules.doubt_unknown_past = false)).is_ok());
    }
}

#[test]
fn never_submitted_needs_a_spotless_record() {
    let spotless = |change: fn(&mut Facts)| {
        let mut facts = pending(1);
        change(&mut facts);
        judge::never_submitted(&facts.object, &facts.record, facts.past).is_some()
    };
    assert!(spotless(|_| {}));
    assert!(!spotless(|facts| facts.record.highest = Attempt(1)));
    assert!(!spotless(|facts| drop(facts.record.jobs.insert(Index(0), job("5.0", JobState::Idle)))));
    assert!(!spotless(|facts| facts.object.published.has_ids = true));
    assert!(!spotless(|facts| facts.past = Past::Unknown { settled: Some(at(-50)) }));
    assert!(!spotless(|facts| facts.record.known.as_mut().unwrap().new = false));
}

// --- lost -----------------------------------------------------------------------------------------------------------

/// A job that was accepted and is in neither place.
fn vanished() -> Facts {
    let mut facts = accepted(Phase::Running, &[(job("5.0", JobState::Running), running(ad(0, "5.0")))]);
    facts.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    facts
}

fn is_lost(facts: &Facts) -> Result<Loss, Doubt> {
    judge::is_lost(&facts.record.jobs[&Index(0)], &facts.record, &facts.evidence, &settings())
}

#[test]
fn a_job_in_neither_place_is_lost() {
    assert_eq!(is_lost(&vanished()), Ok(Loss::Vanished));
}

#[rstest]
#[case::queue_older_than_the_job(|facts: &mut Facts| known_queue(facts).asked_at = at(-80), Doubt::NotAskedSince)]
#[case::history_not_asked(|facts: &mut Facts| facts.evidence.history = unknown(Why::NotAsked), Doubt::HistoryNotAsked)]
#[case::history_before_queue(|facts: &mut Facts| facts.evidence.history = history(-1, &[]), Doubt::HistoryNotAsked)]
#[case::history_too_short(|facts: &mut Facts| known_history(facts).reaches = Reach::default(), Doubt::HistoryTooShort)]
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
fn a_job_is_not_lost_while_there_is_doubt(#[case] change: fn(&mut Facts), #[case] doubt: Doubt) {
    let mut facts = vanished();
    change(&mut facts);
    assert_eq!(is_lost(&facts), Err(doubt));
}

#[test]
fn a_job_goes_with_its_queue() {
    let mut facts = vanished();
    known_queue(&mut facts).birthdate = Birthdate(BIRTH.0 + 1);
    assert_eq!(is_lost(&facts), Ok(Loss::QueueReset));
    known_history(&mut facts).reaches = Reach::default();
    assert_eq!(is_lost(&facts), Ok(Loss::QueueReset), "the new queue's history need not reach back");
    facts.evidence.history = unknown(Why::NotAsked);
    assert_eq!(is_lost(&facts), Err(Doubt::HistoryNotAsked), "it may have ended before");
}

#[test]
fn the_same_number_of_another_attempt_is_not_the_lost_job() {
    let mut facts = vanished();
    facts.evidence.history = history(0, &[Ad { attempt: Attempt(2), ..stillborn(ad(0, "5.0")) }]);
    assert_eq!(is_lost(&facts), Ok(Loss::Vanished));
}

// --- the rules ------------------------------------------------------------------------------------------------------

#[test]
fn each_rule_for_ads_is_needed() {
    let too_late = late(ad(0, "5.0"));
    assert_eq!(judge::acceptance(&too_late, &without(|rules| rules.late_is_no_job = false)), Acceptance::Accepted);
    let on_its_way = staging(ad(0, "5.0"));
    assert_eq!(
        judge::acceptance(&on_its_way, &without(|rules| rules.staged_is_accepted = false)),
        Acceptance::Accepted
    );
}
