//! From the finalizer to the first submission, and what stands against it.

use htc_machine::actions::{RequestedAction, StoredAction};
use htc_machine::condition::{ConditionStatus, ConditionType, Reason};
use htc_machine::decide::{Action, Polling};
use htc_machine::facts::{
    Ad, Claim, ConditionRecord, Evidence, Exit, Facts, LastRequest, Listed, Past, RequestFailure, Spec, SpecRefused,
    Unreadable,
};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::transitions::Trigger;
use htc_machine::{Attempt, Index, RequestKind, Rules, Settings, Timestamp, Work};
use rstest::rstest;

use crate::decide::decision::{condition, decide, message, phase, submits, triggers, watched, work};
use crate::given::{
    accepted, ad, add_attempt, at, attempt, date, ended, ended_job, failed, fresh, history, idle_job, in_flight,
    indices, pending, queue, running, running_job, settings, stillborn, submitted,
};

#[test]
fn htcjob_without_finalizer_only_gets_the_finalizer() {
    let decision = decide(&fresh(3));
    assert_eq!(work(&decision), Some(&Work::AttachFinalizer));
    assert!(decision.after.is_none() && decision.transitions.is_empty() && !watched(&decision));
}

#[test]
fn deleting_htcjob_without_finalizer_is_left_alone() {
    let mut facts = fresh(3);
    facts.object.deleting = true;
    let decision = decide(&facts);
    assert_eq!((decision.action, decision.after), (Action::Nothing, None));
}

#[test]
fn removed_finalizer_is_attached_again_first() {
    let mut facts = pending(3);
    facts.object.finalizer = false;
    assert_eq!(work(&decide(&facts)), Some(&Work::AttachFinalizer));
}

#[test]
fn htcjob_with_finalizer_enters_the_ledger_and_is_submitted() {
    let mut facts = pending(3);
    facts.record.row = None;
    let decision = decide(&facts);
    assert_eq!(triggers(&decision), [Trigger::Guarded]);
    assert_eq!(phase(&decision), Phase::Pending);
    assert!(decision.after.as_ref().unwrap().row.as_ref().unwrap().new);
    assert_eq!(submits(&decision), Some((&indices("0-2"), false, Attempt(1))));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Submitting");
}

#[rstest]
#[case::claimed_by_another_ledger(|facts: &mut Facts| facts.object.claim = Claim::Other)]
#[case::unclaimed(|facts: &mut Facts| facts.object.claim = Claim::None)]
#[case::of_unknown_past(|facts: &mut Facts| facts.past = Past::Unknown { settled: None })]
#[case::with_jobs_in_its_status(|facts: &mut Facts| facts.object.published.listed = Listed::Partly)]
fn htcjob_with_a_past_is_recorded_as_not_new_and_not_submitted(#[case] change: fn(&mut Facts)) {
    let mut facts = pending(1);
    facts.record.row = None;
    change(&mut facts);
    let decision = decide(&facts);
    assert!(!decision.after.as_ref().unwrap().row.as_ref().unwrap().new);
    assert_eq!(submits(&decision), None);
    assert!(watched(&decision));
}

#[test]
fn large_htcjob_is_submitted_in_parts() {
    let mut facts = pending(5000);
    assert_eq!(submits(&decide(&facts)), Some((&indices("0-499"), false, Attempt(1))));
    add_attempt(&mut facts, attempt(1, "0-499"));
    // Nothing of it is accepted yet: no refusal, and nothing to wait for.
    facts.record.refused = 1;
    assert_eq!(submits(&decide(&facts)), Some((&indices("500-999"), false, Attempt(2))));
}

#[test]
fn refused_part_is_followed_by_smaller_parts_after_a_pause() {
    let mut facts = pending(5000);
    let mut refused = attempt(1, "0-499");
    refused.refusal = Some("at most 100 here".to_owned());
    let pause = settings().backoff_first;
    refused.intent_at = Timestamp(at(0).0 - i64::try_from(pause.as_millis()).unwrap() + 1);
    add_attempt(&mut facts, refused);
    facts.record.refused = 1;
    let decision = decide(&facts);
    assert_eq!(
        (submits(&decision), condition(&decision, ConditionType::Submitted).as_str()),
        (None, "False SubmitRefused")
    );
    facts.record.attempts[0].intent_at.0 -= 1;
    assert_eq!(submits(&decide(&facts)), Some((&indices("500-624"), false, Attempt(2))));
    // That part was taken: those after it are as small, and do not wait.
    add_attempt(&mut facts, attempt(2, "500-624"));
    facts.record.refused = 2;
    assert_eq!(submits(&decide(&facts)), Some((&indices("625-749"), false, Attempt(3))));
}

#[test]
fn attempt_number_is_one_more_than_any_known() {
    let mut facts = pending(2);
    facts.record.highest = Attempt(3);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(4));
    facts.object.published.attempt = 6;
    assert_eq!(submits(&decide(&facts)), None, "the ledger lacks an attempt of the status: it is an old copy");
    facts.record.highest = Attempt(6);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(7));
    facts.evidence.history = history(0, &[Ad { attempt: Attempt(8), ..stillborn(ad(0, "5.0")) }]);
    facts.evidence.queue = queue(-1, &[Ad { attempt: Attempt(9), ..stillborn(ad(1, "5.1")) }]);
    assert_eq!(submits(&decide(&facts)).unwrap().2, Attempt(10));
}

#[rstest]
#[case::queued(false)]
#[case::running(true)]
fn submission_in_flight_blocks_other_requests(#[case] running: bool) {
    let mut facts = pending(1);
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, running));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Submitting");
}

#[test]
fn request_in_flight_blocks_submission() {
    for kind in [RequestKind::Remove, RequestKind::Hold, RequestKind::Release, RequestKind::Fetch, RequestKind::Tidy] {
        let mut facts = pending(1);
        facts.in_flight = Some(in_flight(&facts, kind, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "{kind}");
        let lax = Rules { one_request: false, ..Rules::ALL };
        let decision = htc_machine::decide(&facts, at(0), &settings(), &lax).unwrap();
        assert!(submits(&decision).is_some(), "only the rule stands against it");
    }
}

#[test]
fn deletion_or_suspend_cancels_a_queued_submission() {
    for change in [
        |facts: &mut Facts| facts.object.deleting = true,
        |facts: &mut Facts| facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() }),
    ] {
        let mut facts = pending(1);
        facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, false));
        change(&mut facts);
        let key = facts.in_flight.as_ref().unwrap().key.clone();
        assert_eq!(decide(&facts).action, Action::Cancel(key));
        facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
        assert_eq!(decide(&facts).action, Action::Nothing, "a running request is awaited");
    }
}

#[test]
fn invalid_spec_is_reported_and_never_submitted() {
    let mut facts = pending(1);
    facts.object.spec = Err(Unreadable::invalid("spec.htcopts: line 1: …"));
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False InvalidSpec");
    assert_eq!(decision.transitions.iter().map(|told| told.reason.as_str()).collect::<Vec<_>>(), ["InvalidSpec"]);
    assert!(decision.transitions[0].warning);
}

/// How many jobs it asks for is not known until its items are read: until then nothing is concluded from their number.
#[test]
fn spec_with_missing_items_waits_for_them() {
    let mut facts = pending(3);
    let spec = facts.object.spec.clone();
    let again = Some(std::time::Duration::from_secs(7));
    let message = "there is no ConfigMap".to_owned();
    facts.object.spec = Err(Unreadable { reason: Reason::ItemsUnavailable, message, requeue_after: again });
    let decision = decide(&facts);
    assert_eq!((&decision.action, decision.requeue_after), (&Action::Nothing, again));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False ItemsUnavailable");
    assert_eq!(decision.transitions.iter().map(|told| told.reason.as_str()).collect::<Vec<_>>(), ["ItemsUnavailable"]);
    facts.record = decision.after.unwrap();
    facts.object.spec = spec;
    let decision = decide(&facts);
    assert_eq!(submits(&decision).map(|(indices, ..)| indices.clone()), Some(indices("0-2")));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Submitting");
    // One whose jobs have all ended is not complete: there may be more of them.
    let ended = (ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)));
    let mut facts = accepted(Phase::Running, &[ended]);
    facts.object.spec = Err(Unreadable::invalid("the items are not known"));
    assert_eq!(decide(&facts).after.unwrap().row.unwrap().phase, Phase::Running);
}

#[test]
fn jobs_of_an_unreadable_spec_are_still_tracked() {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    facts.object.spec = Err(Unreadable::invalid("the operator was updated"));
    let decision = decide(&facts);
    assert!(watched(&decision));
}

/// An operator that refuses what a former one has taken.
#[test]
fn submitted_jobs_of_a_refused_spec_run_to_their_end() {
    let refused = |queue, suspend| {
        Ok(Spec {
            queue,
            suspend,
            refused: Some(SpecRefused::invalid("`+RunNumber` is not allowed")),
            ..Spec::default()
        })
    };
    let mut over = accepted(Phase::Running, &[(running_job("5.0"), ended(ad(0, "5.0"), Exit::Code(0)))]);
    over.object.spec = refused(1, false);
    let decision = decide(&over);
    assert_eq!(
        decision.after.as_ref().and_then(|after| after.row.as_ref()).map(|known| known.phase),
        Some(Phase::Completed)
    );
    assert_eq!(condition(&decision, ConditionType::Submitted), "True Accepted");

    let mut runs = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    runs.object.spec = refused(1, true);
    assert_eq!(work(&decide(&runs)), Some(&Work::Hold));
    // Of the jobs that are missing none is submitted.
    runs.object.spec = refused(2, false);
    let decision = decide(&runs);
    assert_eq!(work(&decision), None);
    assert!(watched(&decision));
    assert_eq!(condition(&decision, ConditionType::Submitted), "False InvalidSpec");

    let mut never = pending(1);
    never.object.spec = refused(1, false);
    let decision = decide(&never);
    assert_eq!(work(&decision), None);
    assert_eq!(message(&decision, ConditionType::Submitted), "`+RunNumber` is not allowed");
}

#[test]
fn suspended_htcjob_is_not_submitted() {
    let mut facts = pending(1);
    facts.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    let decision = decide(&facts);
    assert_eq!(decision.action, Action::Nothing);
    assert_eq!(condition(&decision, ConditionType::Suspended), "True Suspended");
    assert_eq!(condition(&decision, ConditionType::Submitted), "False Suspended");
    let mut tried = submitted(1);
    tried.object.spec = Ok(Spec { queue: 1, suspend: true, ..Spec::default() });
    tried.evidence = Evidence { queue: queue(-1, &[]), history: history(0, &[]) };
    let decision = decide(&tried);
    assert_eq!(decision.action, Action::Nothing);
    assert!(watched(&decision), "a job may still be accepted, and is then held");
}

#[test]
fn failure_message_is_in_the_condition() {
    let mut facts = pending(1);
    let failure =
        RequestFailure { reason: "CannotWriteFiles".to_owned(), message: "cannot write /data: disk full".to_owned() };
    facts.record.requests.insert(RequestKind::Submit, LastRequest { failure: Some(failure), ..failed(-1, 1) });
    let decision = decide(&facts);
    assert_eq!(condition(&decision, ConditionType::Submitted), "False CannotWriteFiles");
    assert_eq!(message(&decision, ConditionType::Submitted), "cannot write /data: disk full");
    assert_eq!(date(0).0, crate::given::SCHEDD_NOW);
}

#[test]
fn earlier_parts_are_polled_while_the_next_is_submitted() {
    let mut facts = pending(5000);
    add_attempt(&mut facts, attempt(1, "0-499"));
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
    assert!(!watched(&decide(&facts)), "of the first there is nothing to be seen yet");
    add_attempt(&mut facts, attempt(2, "500-999"));
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
    assert!(watched(&decide(&facts)));
}

/// The gate of a namespace: never more than it may have, and what is left waits.
#[test]
fn namespace_limit_is_never_exceeded() {
    let within = |facts: &Facts, room: Option<usize>| {
        let settings = Settings { namespace_limit: room, ..settings() };
        htc_machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap()
    };
    let asked = |facts: &Facts, room| submits(&within(facts, room)).map(|(indices, ..)| indices.clone());
    let facts = pending(5);
    assert_eq!(asked(&facts, None), Some(indices("0-4")));
    assert_eq!(asked(&facts, Some(9)), Some(indices("0-4")));
    assert_eq!(asked(&facts, Some(3)), Some(indices("0-2")));
    let full = within(&facts, Some(0));
    assert!(full.details.namespace_is_full && full.requeue_after.is_some() && full.action == Action::Nothing);
    assert_eq!(condition(&full, ConditionType::Submitted), "False NamespaceLimitReached");
    // What was tried may be there, until it is proved that it is not.
    let mut tried = pending(5);
    add_attempt(&mut tried, attempt(1, "0-1"));
    assert_eq!(asked(&tried, Some(3)), Some(indices("2")));
    assert_eq!(asked(&tried, Some(2)), None);
}

/// Those of `spec.parallelism`, and what was refused of them goes again before others do.
#[test]
fn remaining_jobs_wait_for_parallelism() {
    let with = |mut facts: Facts, most| {
        let spec = facts.object.spec.clone().unwrap();
        facts.object.spec = Ok(Spec { parallelism: Some(most), ..spec });
        facts
    };
    let asked = |facts: &Facts| submits(&decide(facts)).map(|(indices, ..)| indices.clone());
    assert_eq!(asked(&with(pending(5), 9)), Some(indices("0-4")));
    assert_eq!(asked(&with(pending(5), 2)), Some(indices("0-1")));
    let paused = decide(&with(pending(5), 0));
    assert_eq!((paused.action.clone(), paused.details.namespace_is_full), (Action::Nothing, false));
    assert_eq!(condition(&paused, ConditionType::Submitted), "False ParallelismReached");
    assert!(message(&paused, ConditionType::Submitted).contains("until it is increased"));
    let mut tried = pending(5);
    add_attempt(&mut tried, attempt(1, "0-1"));
    assert_eq!(asked(&with(tried.clone(), 3)), Some(indices("2")));
    let waiting = decide(&with(tried.clone(), 2));
    assert_eq!(waiting.action, Action::Nothing);
    assert_ne!(condition(&waiting, ConditionType::Submitted), "False ParallelismReached", "the two are judged first");
}

/// What waits for places is said until the last job goes, also while HTCondor is asked about those that went before: one Event.
#[test]
fn namespace_limit_stays_reported_while_attempts_are_judged() {
    let settings = Settings { namespace_limit: Some(3), ..settings() };
    let said = |facts: &Facts| {
        let decision = htc_machine::decide(facts, at(0), &settings, &Rules::ALL).unwrap();
        condition(&decision, ConditionType::Submitted)
    };
    let mut facts = accepted(Phase::Running, &[(running_job("1.0"), running(ad(0, "1.0")))]);
    facts.object.spec = Ok(Spec { queue: 4, ..Spec::default() });
    add_attempt(&mut facts, attempt(2, "1-2"));
    facts.evidence = Evidence::none();
    assert_eq!(said(&facts), "False QueryingHTCondor");
    facts.record.row.as_mut().unwrap().conditions.push(ConditionRecord {
        kind: ConditionType::Submitted,
        status: ConditionStatus::False,
        reason: "NamespaceLimitReached".to_owned(),
        message: "m".to_owned(),
        since: at(-50),
    });
    assert_eq!(said(&facts), "False NamespaceLimitReached");
}

#[test]
fn smaller_of_parallelism_and_namespace_limit_wins() {
    let within = |most, room| {
        let mut facts = pending(5);
        facts.object.spec = Ok(Spec { queue: 5, parallelism: Some(most), ..Spec::default() });
        let settings = Settings { namespace_limit: Some(room), ..settings() };
        let decision = htc_machine::decide(&facts, at(0), &settings, &Rules::ALL).unwrap();
        let submitted = submits(&decision).map_or(0, |(indices, ..)| indices.len());
        (submitted, condition(&decision, ConditionType::Submitted), decision.details.namespace_is_full)
    };
    let submitting = || "False Submitting".to_owned();
    assert_eq!(within(2, 3), (2, submitting(), false));
    assert_eq!(within(3, 2), (2, submitting(), false));
    assert_eq!(within(2, 0), (0, "False NamespaceLimitReached".to_owned(), true));
    assert_eq!(
        within(0, 2),
        (0, "False ParallelismReached".to_owned(), false),
        "it asks for no place of the namespace"
    );
}

#[test]
fn limit_of_the_schedd_is_reported_until_the_last_part() {
    let small = Settings { jobs_per_attempt: 2, size_refusal: Some("MAX_JOBS".into()), ..settings() };
    let told = |queue| {
        let decision = htc_machine::decide(&pending(queue), at(0), &small, &Rules::ALL).unwrap();
        (condition(&decision, ConditionType::Submitted), message(&decision, ConditionType::Submitted))
    };
    assert_eq!(told(2).0, "False Submitting");
    let (reason, message) = told(5);
    assert_eq!(reason, "False SmallerSubmissions");
    assert!(message.contains("at most 2 jobs at once") && message.contains("MAX_JOBS"), "{message}");
}

/// Six jobs, of which the first two are accepted and the next two were submitted.
fn in_parts() -> Facts {
    let mut facts = pending(6);
    facts.record.row.as_mut().unwrap().phase = Phase::Submitted;
    add_attempt(&mut facts, attempt(1, "0-1"));
    add_attempt(&mut facts, attempt(2, "2-3"));
    facts.record.jobs.extend([(Index(0), idle_job("5.0")), (Index(1), idle_job("5.1"))]);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1")]);
    facts
}

#[test]
fn earlier_parts_are_polled_for_acceptance_between_submissions() {
    let mut facts = in_parts();
    let decision = decide(&facts);
    assert_eq!(submits(&decision), Some((&indices("4-5"), false, Attempt(3))));
    assert_eq!(decision.details.polling, Polling::Accepting(Attempt(2)));
    add_attempt(&mut facts, htc_machine::facts::Submission { dead_since: None, ..attempt(3, "4-5") });
    facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
    assert_eq!(decide(&facts).details.polling, Polling::Accepting(Attempt(2)), "its submitter is not waited for");
    facts.record.jobs.extend([(Index(2), idle_job("6.0")), (Index(3), idle_job("6.1"))]);
    facts.evidence.queue = queue(-1, &[ad(0, "5.0"), ad(1, "5.1"), ad(2, "6.0"), ad(3, "6.1")]);
    assert_eq!(decide(&facts).details.polling, Polling::OnChange, "nothing is awaited but the end of the submitter");
    facts.in_flight = None;
    facts.record.attempts[2].dead_since = Some(at(0));
    assert!(
        matches!(decide(&facts).details.polling, Polling::Always { urgent: true, .. }),
        "what is missing is judged by all of it"
    );
}

#[test]
fn refused_withdrawn_or_absent_jobs_are_not_polled_for_acceptance() {
    let changes: [fn(&mut Facts); 3] = [
        |facts| facts.record.attempts[1].refusal = Some("ERROR: no".to_owned()),
        |facts| facts.record.attempts[1].absent = true,
        |facts| {
            for index in [2, 3] {
                let wished =
                    StoredAction { number: 1, action: RequestedAction::Remove { withdrawn: true }, unreported: None };
                facts.record.requested_actions.insert(Index(index), wished);
            }
        },
    ];
    for change in changes {
        let mut facts = in_parts();
        change(&mut facts);
        facts.in_flight = Some(in_flight(&facts, RequestKind::Submit, true));
        facts.in_flight.as_mut().unwrap().key.attempt = Attempt(3);
        assert_eq!(decide(&facts).details.polling, Polling::OnChange);
    }
}
