//! Output is fetched and tidied, and the end is reported.

use std::time::Duration;

use htc_machine::condition::ConditionType;
use htc_machine::decide::{Action, Polling};
use htc_machine::facts::{Ad, ErrTail, Exit, Facts, Hold, InFlight, JobState, OutputRefusal, RequestFailure, Spec};
use htc_machine::outcome::{Loss, Outcome};
use htc_machine::phase::Phase;
use htc_machine::{Index, RequestKind, Rules, Settings, Work};
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
fn output_is_fetched_then_jobs_are_tidied() {
    let mut facts = completed();
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Fetch(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing", "the output is waited for");
    facts.in_flight = Some(in_flight(&facts, RequestKind::Fetch, true));
    assert_eq!(decide(&facts).action, Action::Nothing);
    facts.in_flight = None;
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(RequestKind::Fetch, done(-2));
    let decision = decide(&facts);
    assert_eq!(work(&decision), Some(&Work::Tidy(indices("0"))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "True Fetched");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
    facts.record.requests.insert(RequestKind::Tidy, done(-1));
    assert_eq!(decide(&facts).action, Action::Nothing, "the answer is from before");
    facts.evidence.queue = queue(0, &[]);
    let decision = decide(&facts);
    assert!(decision.after.as_ref().unwrap().jobs[&Index(0)].gone);
    assert_eq!(
        (decision.action, decision.details.polling, decision.requeue_after),
        (Action::Nothing, Polling::Off, None)
    );
}

#[test]
fn slowly_leaving_job_is_not_tidied_every_second() {
    // PERIODIC_EXPR_INTERVAL is 60 s.
    let mut facts = completed();
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(RequestKind::Fetch, done(-20));
    facts.record.requests.insert(RequestKind::Tidy, done(-10));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert!(
        watched(&decision) && decision.requeue_after == Some(Duration::from_secs(50)),
        "{:?}",
        decision.requeue_after
    );
    facts.record.requests.insert(RequestKind::Tidy, done(-60));
    facts.record.requests.insert(RequestKind::Fetch, done(-70));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))));
    facts.record.requests.insert(RequestKind::Tidy, done(-10));
    facts.record.requests.insert(RequestKind::Fetch, done(-5));
    assert_eq!(work(&decide(&facts)), Some(&Work::Tidy(indices("0"))), "there is more output than at the last one");
}

#[test]
fn failed_fetch_is_reported_and_retried_with_backoff() {
    let mut facts = completed();
    facts.record.requests.insert(RequestKind::Fetch, failed(-9, 2));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False ScheddUnreachable");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded", "False is an answer, too");
    facts.record.requests.insert(RequestKind::Fetch, failed(-10, 2));
    let Action::Dispatch(request) = decide(&facts).action else { panic!() };
    assert!(request.alone);
    assert_eq!((request.work, request.key.step), (Work::Fetch(indices("0")), 3));
}

/// It has befallen the operator.
#[test]
fn operator_stop_before_a_fetch_is_not_an_event() {
    let mut facts = completed();
    for (reason, events) in [("ScheddUnreachable", 1), ("OperatorStopping", 0)] {
        let mut last = failed(-9, 2);
        last.failure.as_mut().unwrap().reason = reason.to_owned();
        facts.record.requests.insert(RequestKind::Fetch, last);
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), format!("False {reason}"));
        assert_eq!(decision.transitions.iter().filter(|row| row.reason == reason).count(), events);
    }
}

#[test]
fn completion_waits_for_output_only_for_a_while() {
    let mut facts = completed();
    facts.in_flight = Some(in_flight(&facts, RequestKind::Fetch, true));
    facts.record.row.as_mut().unwrap().completed = Some(at(-599));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Complete), "nothing");
    assert_eq!(decision.requeue_after, Some(Duration::from_secs(1)));
    facts.record.row.as_mut().unwrap().completed = Some(at(-600));
    assert_eq!(condition(&decide(&facts), ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn ttl_does_not_delete_an_htcjob_with_unfetched_output() {
    let mut facts = completed();
    facts.object.spec.as_mut().unwrap().ttl = Some(Duration::ZERO);
    facts.record.requests.insert(RequestKind::Fetch, failed(-1, 3));
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
    assert_eq!(work(&decision), None);
    change_job(&mut facts, |job| (job.fetched, job.gone) = (true, true));
    facts.record.requests.insert(RequestKind::Fetch, done(-1));
    facts.evidence.queue = queue(0, &[]);
    assert_eq!(work(&decide(&facts)), Some(&Work::DeleteObject));
}

#[test]
fn output_of_a_job_that_left_the_queue_is_lost() {
    let mut facts = completed();
    facts.evidence.queue = queue(-1, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "nothing", "history has to be asked first");
    assert!(
        matches!(decision.details.polling, Polling::Always { history: Some(_), .. }),
        "{:?}",
        decision.details.polling
    );
    facts.evidence.history = history(0, &[]);
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputLost");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");
}

#[test]
fn output_staged_out_according_to_history_is_not_lost() {
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
fn condition_names_the_output_folder_and_its_retention() {
    let mut facts = completed();
    change_job(&mut facts, |job| job.fetched = true);
    let said = |facts: &Facts, keep_output| {
        let settings = Settings { keep_output, ..settings() };
        let decision = htc_machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap();
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
    facts.record.requests.insert(RequestKind::Fetch, done(-700));
    facts.record.refusals.insert(Index(1), OutputRefusal { why: "it is too much".to_owned(), stands: true });
    facts
}

#[test]
fn refused_output_is_not_refetched_and_does_not_block_others() {
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
    assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, None), "and it rests");
    assert_eq!(decision.details.polling, Polling::OnChange);
    assert_eq!(condition(&decision, ConditionType::OutputFetched), "False OutputRefused");
    assert_eq!(condition(&decision, ConditionType::Complete), "True AllSucceeded");

    // By other limits it may be kept.
    facts.record.refusals.get_mut(&Index(1)).unwrap().stands = false;
    assert_eq!(work(&decide(&facts)), Some(&Work::Fetch(indices("1"))));
    facts.record.jobs.get_mut(&Index(1)).unwrap().fetched = true;
    assert_eq!(condition(&decide(&facts), ConditionType::OutputFetched), "True Fetched");
}

#[test]
fn refused_output_of_a_job_that_left_is_neither_fetched_nor_lost() {
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
    assert_eq!(
        (decision.action, decision.details.polling, decision.requeue_after),
        (Action::Nothing, Polling::Off, None)
    );
}

#[test]
fn output_is_fetched_at_intervals_while_jobs_run() {
    let jobs = [
        (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0))),
        (running_job("5.1"), running(ad(1, "5.1"))),
    ];
    let mut facts = accepted(Phase::Running, &jobs);
    facts.record.requests.insert(RequestKind::Fetch, done(-59));
    let decision = decide(&facts);
    assert_eq!((decision.action.clone(), decision.requeue_after), (Action::Nothing, Some(Duration::from_secs(1))));
    facts.record.requests.insert(RequestKind::Fetch, done(-60));
    assert_eq!(work(&decide(&facts)), Some(&Work::Fetch(indices("0"))));
}

#[rstest]
#[case::all_succeeded(&[Outcome::Succeeded, Outcome::Succeeded], ConditionType::Complete, "True AllSucceeded")]
#[case::one_failed(&[Outcome::Succeeded, Outcome::Failed(1)], ConditionType::Failed, "True JobsFailed")]
#[case::killed(&[Outcome::Killed(9)], ConditionType::Failed, "True JobsFailed")]
#[case::all_removed(&[Outcome::Removed(String::new()), Outcome::Removed("by a policy".to_owned())], ConditionType::Failed, "True Removed")]
#[case::one_removed(&[Outcome::Removed(String::new()), Outcome::Succeeded], ConditionType::Failed, "True JobsFailed")]
#[case::lost(&[Outcome::Lost(Loss::Vanished), Outcome::Succeeded], ConditionType::Failed, "True JobsLost")]
fn completion_sets_one_condition_with_its_reason(
    #[case] outcomes: &[Outcome],
    #[case] kind: ConditionType,
    #[case] said: &str,
) {
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
fn err_tail_of_the_first_failed_job_is_reported_once() {
    let code = |code| (ended_job("5.0", Outcome::Failed(code)), ended(ad(0, "5.0"), Exit::Code(code)));
    let mut facts = accepted(Phase::Completed, &[code(3)]);
    change_job(&mut facts, |job| job.fetched = true);
    facts.record.requests.insert(RequestKind::Fetch, done(-2));
    let without = decide(&facts);
    assert_eq!(message(&without, ConditionType::Failed), "1 of 1 job failed; job 0 (5.0) exited with 3");
    assert!(!without.transitions.iter().any(|told| told.reason == "JobsFailed"));

    facts.record.err_tail = Some(ErrTail { index: Index(0), text: "it broke".to_owned() });
    let decision = decide(&facts);
    let words = "1 of 1 job failed; job 0 (5.0) exited with 3; the err of job 0 ends with: it broke";
    assert_eq!(message(&decision, ConditionType::Failed), words);
    let told: Vec<_> = decision.transitions.iter().filter(|told| told.reason == "JobsFailed").collect();
    assert!(matches!(told[..], [told] if told.detail == words && told.warning), "{told:?}");
    facts.record = decision.after.unwrap();
    assert!(decide(&facts).transitions.is_empty(), "not again");

    // It came only after `Failed` had been set without it.
    let err = facts.record.err_tail.take();
    facts.record = Facts { record: without.after.unwrap(), ..facts.clone() }.record;
    facts.record.err_tail = err;
    let decision = decide(&facts);
    assert_eq!(message(&decision, ConditionType::Failed), words);
    assert_eq!(decision.transitions.iter().filter(|told| told.reason == "JobsFailed").count(), 1);

    // A job that has not failed after all is not reported.
    facts.record.jobs.get_mut(&Index(0)).unwrap().state = JobState::Ended(Outcome::Removed(String::new()));
    assert!(!message(&decide(&facts), ConditionType::Failed).contains("it broke"));
}

#[test]
fn fetch_runs_alone_after_its_own_failure() {
    let alone = |reason: &str| {
        let mut facts = completed();
        let failure = RequestFailure { reason: reason.to_owned(), message: "why".to_owned() };
        let last = failed(-60, 1);
        let last = htc_machine::facts::LastRequest { failure: Some(failure), ..last };
        facts.record.requests.insert(RequestKind::Fetch, last);
        let decision = decide(&facts);
        assert_eq!(condition(&decision, ConditionType::OutputFetched), format!("False {reason}"));
        let Action::Dispatch(request) = decision.action else { panic!("{:?}", decision.action) };
        request.alone
    };
    assert!(alone("FetchFailed") && alone("ScheddUnreachable"));
    assert!(!alone("OutputVolumeFull"), "a full volume is not the fault of an HTCJob");
}

#[test]
fn hold_for_too_much_output_names_the_remedy() {
    let reason = Hold { code: 33, subcode: 0, reason: "too much".to_owned(), since: None };
    let facts = |hold: &Hold| {
        let mut seen = ad(0, "5.0");
        seen.status = htc_machine::facts::JobStatus::Held;
        seen.hold = hold.clone();
        accepted(Phase::Running, &[(crate::given::job("5.0", JobState::Held(hold.clone())), seen)])
    };
    let says = |hold: &Hold| {
        let decision = decide(&facts(hold));
        let known = decision.after.unwrap().row.unwrap();
        known.conditions.iter().find(|condition| condition.kind == ConditionType::Held).unwrap().message.clone()
    };
    assert!(says(&reason).contains("--output-limit") && !says(&reason).contains("condor_release"), "{}", says(&reason));
    assert!(says(&Hold { code: 12, ..reason }).contains("condor_release"));
}

/// Failed fetches of all wait for one another, and a transfer may take an hour: what else is to be done does not wait for them.
#[test]
fn pending_fetch_is_cancelled_for_a_hold_or_release() {
    let fetched = (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)));
    let runs = (running_job("5.1"), running(ad(1, "5.1")));
    let held = (job("5.1", JobState::Held(own_hold())), held(ad(1, "5.1"), Hold::BY_USER, Hold::SUSPENDED));
    for (other, suspend, wanted) in [(&runs, true, Work::Hold), (&held, false, Work::Release)] {
        let mut facts = accepted(Phase::Running, &[fetched.clone(), other.clone()]);
        let with = |suspend| Ok(Spec { queue: 2, suspend, ..Spec::default() });
        facts.object.spec = with(suspend);
        let waits = in_flight(&facts, RequestKind::Fetch, false);
        for running in [false, true] {
            facts.in_flight = Some(InFlight { running, ..waits.clone() });
            assert_eq!(decide(&facts).action, Action::Cancel(waits.key.clone()), "{wanted:?}");
        }
        facts.in_flight = None;
        assert_eq!(work(&decide(&facts)), Some(&wanted));
        facts.object.spec = with(!suspend);
        facts.in_flight = Some(in_flight(&facts, RequestKind::Fetch, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "nothing else is wanted");
    }
}
