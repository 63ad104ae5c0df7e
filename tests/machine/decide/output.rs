//! Output is fetched and tidied, and the end is said.

use std::time::Duration;

use htc_operator::api::ConditionType;
use htc_operator::machine::decide::{Action, Look};
use htc_operator::machine::facts::{Ad, ErrTail, Exit, Facts, Failure, Hold, InFlight, JobState, Refusal, Spec};
use htc_operator::machine::outcome::{Loss, Outcome};
use htc_operator::machine::phase::Phase;
use htc_operator::machine::{Index, Kind, Rules, Settings, Work};
use rstest::rstest;

use crate::decide::decision::{condition, decide, message, watched, work};
use crate::given::{
    accepted, ad, at, change_job, date, done, ended, ended_job, failed, held, history, in_flight, indices, job,
    own_hold, queue, running, running_job, settings,
};

/// One job that succeeded a minute ago and lies in the queue.
fn completed() -> Facts {
    accepted(Phase::Completed, &[(ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)))])
}

#[test]
fn output_is_fetched_then_tidied_then_it_rests() {
    let mut facts = completed();
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Fetch(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing", "the output is waited for");
    facts.in_flight = Some(in_flight(&facts, Kind::Fetch, true));
    assert_eq!(decide(&facts).action, Action::Nothing);
    facts.in_flight = None;
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(Kind::Fetch, done(-2));
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Tidy(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "True Fetched");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
    facts.record.requests.insert(Kind::Tidy, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before");
    facts.evidence.queue = queue(0, &[]);
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs[&Index(0)].gone);
    assert_eq!((decision.action, decision.look, decision.again), (Action::Nothing, Look::Nothing, None));
}

#[test]
fn a_job_that_takes_its_time_to_leave_is_not_tidied_every_second() {
    // PERIODIC_EXPR_INTERVAL is 60 s.
    let mut facts = completed();
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(Kind::Fetch, done(-20));
    facts.record.requests.insert(Kind::Tidy, done(-10));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(watched(&decision) && decision.again == Some(Duration::from_secs(50)), "{:?}", decision.again);
    facts.record.requests.insert(Kind::Tidy, done(-60));
    facts.record.requests.insert(Kind::Fetch, done(-70));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))));
    facts.record.requests.insert(Kind::Tidy, done(-10));
    facts.record.requests.insert(Kind::Fetch, done(-5));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))), "there is more output than at the last one");
}

#[test]
fn output_that_cannot_be_fetched_is_told_and_tried_again_with_growing_pauses() {
    let mut facts = completed();
    facts.record.requests.insert(Kind::Fetch, failed(-9, 2));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False ScheddUnreachable");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded", "False is an answer, too");
    facts.record.requests.insert(Kind::Fetch, failed(-10, 2));
    let Action::Hand(request) = decide(&facts).action else { panic!() };
    assert!(request.alone);
    assert_eq!((request.work, request.key.step), (Work::Fetch(indices("0")), 3));
}

/// It has befallen the operator.
#[test]
fn that_the_operator_stops_before_it_fetches_is_no_event() {
    let mut facts = completed();
    for (reason, events) in [("ScheddUnreachable", 1), ("Stopped", 0)] {
        let mut last = failed(-9, 2);
        last.failure.as_mut().unwrap().reason = reason.to_owned();
        facts.record.requests.insert(Kind::Fetch, last);
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), format!("False {reason}"));
        assert_eq!(decision.transitions.iter().filter(|row| row.reason == reason).count(), events);
    }
}

#[test]
fn the_end_does_not_wait_for_output_for_ever() {
    let mut facts = completed();
    facts.in_flight = Some(in_flight(&facts, Kind::Fetch, true));
    facts.record.known.as_mut().unwrap().completed = Some(at(-599));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing");
    assert_eq!(decision.again, Some(Duration::from_secs(1)));
    facts.record.known.as_mut().unwrap().completed = Some(at(-600));
    assert_eq!(condition(&decide(&facts), ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn it_does_not_delete_itself_while_its_output_cannot_be_fetched() {
    let mut facts = completed();
    facts.object.spec.as_mut().unwrap().ttl = Some(Duration::ZERO);
    facts.record.requests.insert(Kind::Fetch, failed(-1, 3));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
    assert_eq!(work(&decision), None);
    change_job(&mut facts, |job| (job.fetched, job.gone) = (true, true));
    facts.record.requests.insert(Kind::Fetch, done(-1));
    facts.evidence.queue = queue(0, &[]);
    assert_eq!(work(&decide(&facts)), Some(&Work::DeleteObject));
}

#[test]
fn output_that_left_with_its_job_is_lost() {
    let mut facts = completed();
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "nothing", "history has to be asked first");
    assert!(matches!(decision.look, Look::Every { history: Some(_), .. }), "{:?}", decision.look);
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputLost");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn output_that_history_shows_as_fetched_is_not_lost() {
    // 25.14 lets a job leave once its output was fetched; a crash may have come before that was written down.
    let mut facts = completed();
    facts.evidence.queue = queue(-1, &[]);
    let left = ended(ad(0, "5.0"), Exit::Code(0));
    facts.evidence.history = history(0, &[Ad { staged_out: Some(date(0)), ..left.clone() }]);
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "True Fetched");
    facts.evidence.history = history(0, &[left]);
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "False OutputLost");
}

#[test]
fn it_is_said_where_the_output_is_and_how_long() {
    let mut facts = completed();
    change_job(&mut facts, |job| job.fetched = true);
    let said = |facts: &Facts, keep_output| {
        let settings = Settings { keep_output, ..settings() };
        let decision = htc_operator::machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap();
        message(&decision, ConditionType::OutputFetched)
    };
    let (month, folder) = (Duration::from_secs(30 * 86_400), "/data/htc_out/default/x/11111111");
    let where_it_is = format!("the output of 1 job is in {folder}; it ");
    assert_eq!(said(&facts, month), where_it_is.clone() + "is removed 30 days after the HTCJob is deleted");
    assert_eq!(said(&facts, Duration::MAX), where_it_is.clone() + "stays there after the HTCJob is deleted");
    assert_eq!(said(&facts, Duration::ZERO), where_it_is.clone() + "is removed when the HTCJob is deleted");
    facts.object.spec.as_mut().unwrap().ttl = Some(Duration::from_secs(7200));
    let with_ttl =
        "is removed 30 days after the HTCJob is deleted (2 hours after its end: spec.ttlSecondsAfterFinished)";
    assert_eq!(said(&facts, month), where_it_is + with_ttl);
}

/// Three jobs that succeeded; the output of the second was refused.
fn refused() -> Facts {
    let jobs = ["5.0", "5.1", "5.2"].iter().zip(0..);
    let jobs: Vec<_> =
        jobs.map(|(id, index)| (ended_job(id, Outcome::Succeeded), ended(ad(index, id), Exit::Code(0)))).collect();
    let mut facts = accepted(Phase::Completed, &jobs);
    facts.record.requests.insert(Kind::Fetch, done(-700));
    facts.record.refusals.insert(Index(1), Refusal { why: "it is too much".to_owned(), stands: true });
    facts
}

#[test]
fn what_was_refused_is_not_fetched_again_and_hides_no_other() {
    let mut facts = refused();
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputRefused");
    let said = message(&decision, ConditionType::OutputFetched);
    assert!(said.contains("the output of 1 job") && said.contains("Job 1: it is too much"), "{said}");
    assert_eq!(work(&decision), Some(&Work::Fetch(indices("0,2"))));

    for index in [0, 2] {
        let job = facts.record.jobs.get_mut(&Index(index)).unwrap();
        (job.fetched, job.gone) = (true, true);
    }
    facts.evidence.queue = queue(0, &[ended(ad(1, "5.1"), Exit::Code(0))]);
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, None), "and it rests");
    assert_eq!(decision.look, Look::Changes);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputRefused");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");

    // By other limits it may be kept.
    facts.record.refusals.get_mut(&Index(1)).unwrap().stands = false;
    assert_eq!(work(&decide(&facts)), Some(&Work::Fetch(indices("1"))));
    facts.record.jobs.get_mut(&Index(1)).unwrap().fetched = true;
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "True Fetched");
}

#[test]
fn what_was_refused_and_left_the_queue_is_neither_fetched_nor_lost() {
    // 25.14 lets a job leave once its output was fetched, whatever became of that.
    let mut facts = refused();
    for index in [0, 2] {
        let job = facts.record.jobs.get_mut(&Index(index)).unwrap();
        (job.fetched, job.gone) = (true, true);
    }
    facts.evidence.queue = queue(-1, &[]);
    facts.evidence.history = history(0, &[Ad { staged_out: Some(date(0)), ..ended(ad(1, "5.1"), Exit::Code(0)) }]);
    let decision = decide(&facts);
    let job = &decision.after.as_ref().unwrap().jobs[&Index(1)];
    assert!(job.gone && !job.fetched, "{job:?}");
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputRefused");
    assert_eq!((decision.action, decision.look, decision.again), (Action::Nothing, Look::Nothing, None));
}

#[test]
fn while_jobs_run_output_is_fetched_now_and_then() {
    let jobs = [
        (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0))),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = accepted(Phase::Running, &jobs);
    facts.record.requests.insert(Kind::Fetch, done(-59));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.again), (Action::Nothing, Some(Duration::from_secs(1))));
    facts.record.requests.insert(Kind::Fetch, done(-60));
    assert_eq!(work(&decide(&facts)), Some(&Work::Fetch(indices("0"))));
}

#[rstest]
#[case::all_succeeded(&[Outcome::Succeeded, Outcome::Succeeded], ConditionType::Complete, "True AllSucceeded")]
#[case::one_failed(&[Outcome::Succeeded, Outcome::Failed(1)], ConditionType::Failed, "True JobsFailed")]
#[case::killed(&[Outcome::Killed(9)], ConditionType::Failed, "True JobsFailed")]
#[case::all_removed(&[Outcome::Removed(String::new()), Outcome::Removed("by a policy".to_owned())], ConditionType::Failed, "True Removed")]
#[case::one_removed(&[Outcome::Removed(String::new()), Outcome::Succeeded], ConditionType::Failed, "True JobsFailed")]
#[case::lost(&[Outcome::Lost(Loss::Vanished), Outcome::Succeeded], ConditionType::Failed, "True Lost")]
fn the_end_is_said_once_with_its_reason(#[case] outcomes: &[Outcome], #[case] kind: ConditionType, #[case] said: &str) {
    let jobs: Vec<_> = (0..)
        .zip(outcomes)
        .map(|(index, outcome)| {
            let text = format!("5.{index}");
            (ended_job(&text, outcome.clone()), ended(ad(index, &text), Exit::Code(0)))
        })
        .collect();
    let mut facts = accepted(Phase::Completed, &jobs);
    change_job(&mut facts, |job| (job.fetched, job.gone) = (true, true));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, kind), said);
    let other = if kind == ConditionType::Complete { ConditionType::Failed } else { ConditionType::Complete };
    assert_eq!(condition(&decision, other), "nothing");
}

#[test]
fn what_the_first_failed_job_wrote_last_is_told_once() {
    let code = |code| (ended_job("5.0", Outcome::Failed(code)), ended(ad(0, "5.0"), Exit::Code(code)));
    let mut facts = accepted(Phase::Completed, &[code(3)]);
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(Kind::Fetch, done(-2));
    let without = decide(&facts);
    assert_eq!(message(&without, ConditionType::Failed), "1 of 1 job failed; job 0 (5.0) exited with 3");
    assert!(!without.transitions.iter().any(|told| told.reason == "JobsFailed"));

    facts.record.err = Some(ErrTail { index: Index(0), text: "it broke".to_owned() });
    let decision = decide(&facts);
    let words = "1 of 1 job failed; job 0 (5.0) exited with 3; the err of job 0 ends with: it broke";
    assert_eq!(message(&decision, ConditionType::Failed), words);
    let told: Vec<_> = decision.transitions.iter().filter(|told| told.reason == "JobsFailed").collect();
    assert!(matches!(told[..], [told] if told.detail == words && told.warning), "{told:?}");
    facts.record = decision.after.unwrap();
    assert!(decide(&facts).transitions.is_empty(), "not again");

    // It came only after `Failed` had been said without it.
    let err = facts.record.err.take();
    facts.record = Facts { record: without.after.unwrap(), ..facts.clone() }.record;
    facts.record.err = err;
    let decision = decide(&facts);
    assert_eq!(message(&decision, ConditionType::Failed), words);
    assert_eq!(decision.transitions.iter().filter(|told| told.reason == "JobsFailed").count(), 1);

    // Of a job that has not failed after all nothing is said.
    facts.record.jobs.get_mut(&Index(0)).unwrap().state = JobState::Ended(Outcome::Removed(String::new()));
    assert!(!message(&decide(&facts), ConditionType::Failed).contains("it broke"));
}

#[test]
fn a_fetch_goes_alone_after_a_failure_of_its_own() {
    let alone = |reason: &str| {
        let mut facts = completed();
        let failure = Failure { reason: reason.to_owned(), message: "why".to_owned() };
        let last = failed(-60, 1);
        let last = htc_operator::machine::facts::LastRequest { failure: Some(failure), ..last };
        facts.record.requests.insert(Kind::Fetch, last);
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), format!("False {reason}"));
        let Action::Hand(request) = decision.action else { panic!("{:?}", decision.action) };
        request.alone
    };
    assert!(alone("FetchFailed") && alone("ScheddUnreachable"));
    assert!(!alone("NoSpace"), "a full volume is nobody's fault");
}

#[test]
fn a_job_with_too_much_output_says_what_to_do() {
    let reason = Hold { code: 33, subcode: 0, reason: "too much".to_owned(), since: None };
    let facts = |hold: &Hold| {
        let mut seen = ad(0, "5.0");
        seen.status = htc_operator::machine::facts::JobStatus::Held;
        seen.hold = hold.clone();
        accepted(Phase::Running, &[(crate::given::job("5.0", JobState::Held(hold.clone())), seen)])
    };
    let says = |hold: &Hold| {
        let decision = decide(&facts(hold));
        let known = decision.after.unwrap().known.unwrap();
        known.conditions.iter().find(|condition| condition.kind == ConditionType::Held).unwrap().message.clone()
    };
    assert!(says(&reason).contains("--output-limit") && !says(&reason).contains("condor_release"), "{}", says(&reason));
    assert!(says(&Hold { code: 12, ..reason }).contains("condor_release"));
}

/// Failed fetches of all wait for one another, and a transfer may take an hour: what else is to be done does not wait for them.
#[test]
fn a_fetch_that_waits_for_its_turn_or_runs_is_given_up_for_a_hold_and_a_release() {
    let fetched = (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)));
    let runs = (running_job("5.1"), running(ad(1, "5.1")));
    let held = (job("5.1", JobState::Held(own_hold())), held(ad(1, "5.1"), Hold::BY_USER, Hold::SUSPENDED));
    for (other, suspend, wanted) in [(&runs, true, Work::Hold), (&held, false, Work::Release)] {
        let mut facts = accepted(Phase::Running, &[fetched.clone(), other.clone()]);
        let with = |suspend| Ok(Spec { queue: 2, suspend, ..Spec::default() });
        facts.object.spec = with(suspend);
        let waits = in_flight(&facts, Kind::Fetch, false);
        for running in [false, true] {
            facts.in_flight = Some(InFlight { running, ..waits.clone() });
            assert_eq!(decide(&facts).action, Action::Cancel(waits.key.clone()), "{wanted:?}");
        }
        facts.in_flight = None;
        assert_eq!(work(&decide(&facts)), Some(&wanted));
        facts.object.spec = with(!suspend);
        facts.in_flight = Some(in_flight(&facts, Kind::Fetch, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "nothing else is wanted");
    }
}
