//! What jobs report of themselves: hints, which HTCondor confirms or refutes.

use htc_operator::machine::decide::Look;
use htc_operator::machine::facts::{Answer, Claim, End, Evidence, Exit, Facts, Hold, JobState, JobStatus, Report, Why};
use htc_operator::machine::outcome::Outcome;
use htc_operator::machine::phase::Phase;
use htc_operator::machine::status::Counts;
use htc_operator::machine::transitions::Trigger;
use htc_operator::machine::{Decision, Index};

use crate::decide::decision::{decide, phase, state, triggers};
use crate::given::{
    accepted, ad, at, ended, ended_job, held, id, idle_job, known_queue, queue, removed, running, running_job,
    submitted, unknown,
};

fn counts(decision: &Decision) -> [usize; 3] {
    let Counts { active, succeeded, failed, .. } = Counts::of(decision.after.as_ref().unwrap());
    [active, succeeded, failed]
}

fn reports(facts: &mut Facts, job: &str, report: Report) {
    facts.record.reports.insert(id(job), report);
}

fn began(seconds: i64) -> Report {
    Report { started: Some(at(seconds)), ended: None }
}

fn over(seconds: i64, code: i32) -> Report {
    Report { started: Some(at(seconds - 5)), ended: Some(End { at: at(seconds), code }) }
}

fn asks_soon(decision: &Decision) -> bool {
    matches!(decision.look, Look::Every { soon: true, .. })
}

/// One job, shown as running before it reported its end.
fn one_running() -> Facts {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    known_queue(&mut facts).asked_at = at(-10);
    facts
}

#[test]
fn a_reported_start_moves_a_recorded_job_on_at_once() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0")), (idle_job("5.1"), ad(1, "5.1"))]);
    reports(&mut facts, "5.1", began(0));
    let decision = decide(&facts);
    assert_eq!((phase(&decision), triggers(&decision)), (Phase::Running, vec![Trigger::Started]));
    assert_eq!((state(&decision, 0), state(&decision, 1)), (JobState::Idle, JobState::Running));
    assert_eq!(decision.changed.iter().copied().collect::<Vec<_>>(), [Index(1)]);
    // The same answer of HTCondor's is looked at again: nothing is written twice.
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), ad(0, "5.0"))]);
    reports(&mut facts, "5.0", began(0));
    assert!(decide(&facts).changed.is_empty());
}

#[test]
fn an_answer_from_after_a_reported_start_is_the_truth() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    reports(&mut facts, "5.0", began(-10));
    let decision = decide(&facts);
    assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Running, JobState::Idle));
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), held(ad(0, "5.0"), Hold::BY_USER, 0))]);
    reports(&mut facts, "5.0", began(0));
    assert!(matches!(state(&decide(&facts), 0), JobState::Held(_)), "a held job is not moved by what it said");
}

#[test]
fn a_report_works_while_htcondor_is_away() {
    let mut facts = one_running();
    facts.evidence.queue = unknown(Why::ScheddUnreachable);
    reports(&mut facts, "5.0", over(-1, 0));
    assert_eq!(counts(&decide(&facts)), [0, 1, 0]);
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    facts.evidence = Evidence::none();
    reports(&mut facts, "5.0", began(-1));
    assert_eq!(phase(&decide(&facts)), Phase::Running);
}

#[test]
fn a_reported_end_counts_but_only_htcondor_completes() {
    for (code, expected) in [(0, [0, 1, 0]), (7, [0, 0, 1]), (137, [0, 0, 1])] {
        let mut facts = one_running();
        reports(&mut facts, "5.0", over(-1, code));
        let decision = decide(&facts);
        assert_eq!(counts(&decision), expected, "{code}");
        assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Running, JobState::Running));
        assert!(asks_soon(&decision) && triggers(&decision).is_empty() && decision.changed.is_empty());
        // Confirmed.
        facts.evidence.queue = queue(0, &[ended(ad(0, "5.0"), Exit::Code(code))]);
        let decision = decide(&facts);
        assert_eq!((phase(&decision), counts(&decision)), (Phase::Completed, expected));
        assert!(decision.refuted.is_empty());
    }
}

#[test]
fn an_end_before_the_start_is_a_start_too() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    reports(&mut facts, "5.0", Report { started: None, ended: Some(End { at: at(0), code: 0 }) });
    let decision = decide(&facts);
    assert_eq!((phase(&decision), counts(&decision)), (Phase::Running, [0, 1, 0]));
    reports(&mut facts, "5.0", Report { started: Some(at(0)), ended: Some(End { at: at(-1), code: 0 }) });
    assert_eq!(counts(&decide(&facts)), [0, 1, 0]);
}

#[test]
fn an_end_that_something_can_follow_only_makes_htcondor_be_asked() {
    let mut facts = one_running();
    facts.object.may_rerun = true;
    reports(&mut facts, "5.0", over(-1, 1));
    let decision = decide(&facts);
    assert_eq!(counts(&decision), [1, 0, 0]);
    assert!(asks_soon(&decision));
    // It runs again: neither a surprise, nor worth asking about for ever.
    reports(&mut facts, "5.0", over(-600, 1));
    known_queue(&mut facts).asked_at = at(-1);
    let decision = decide(&facts);
    assert!(!asks_soon(&decision) && decision.refuted.is_empty() && triggers(&decision).is_empty());
    facts.evidence.queue = queue(0, &[ended(ad(0, "5.0"), Exit::Code(0))]);
    let decision = decide(&facts);
    assert_eq!((phase(&decision), decision.refuted.len()), (Phase::Completed, 0));
}

#[test]
fn htcondor_wins_where_it_says_otherwise_and_it_is_told_once() {
    let contradictions = [
        ad(0, "5.0"),
        held(ad(0, "5.0"), Hold::BY_USER, 0),
        held(ad(0, "5.0"), 12, 0),
        ended(ad(0, "5.0"), Exit::Code(3)),
        ended(ad(0, "5.0"), Exit::Signal(9)),
        removed(running(ad(0, "5.0")), "via condor_rm"),
    ];
    for shown in contradictions {
        let mut facts = one_running();
        reports(&mut facts, "5.0", over(-1, 0));
        facts.evidence.queue = queue(0, std::slice::from_ref(&shown));
        let decision = decide(&facts);
        assert_eq!(decision.refuted, [id("5.0")], "{shown:?}");
        assert_eq!(counts(&decision)[1], 0, "{shown:?}");
        let told: Vec<_> = decision.transitions.iter().filter(|told| told.reason == "CallbackRefuted").collect();
        assert_eq!(told.len(), 1, "{:?}", decision.transitions);
        assert!(told[0].warning && told[0].detail.contains("5.0"), "{}", told[0].detail);
        // As the ledger gives it back.
        facts.record = decision.after.unwrap();
        facts.record.reports.clear();
        assert!(decide(&facts).transitions.iter().all(|told| told.reason != "CallbackRefuted"));
    }
}

#[test]
fn a_job_may_be_shown_as_running_for_a_while_after_its_end() {
    for (asked, refuted) in [(-100, false), (-41, false), (-39, true), (0, true)] {
        let mut facts = one_running();
        reports(&mut facts, "5.0", over(-100, 0));
        known_queue(&mut facts).asked_at = at(asked);
        assert_eq!(!decide(&facts).refuted.is_empty(), refuted, "asked at {asked}");
        // But not while its output is on its way, however long that takes.
        let Answer::Known(queue) = &mut facts.evidence.queue else { unreachable!() };
        let mut ads = queue.ads.to_vec();
        ads[0].status = JobStatus::TransferringOutput;
        queue.ads = ads.into();
        assert!(decide(&facts).refuted.is_empty(), "asked at {asked}");
    }
}

#[test]
fn what_an_unknown_job_reports_only_makes_htcondor_be_asked() {
    let mut facts = submitted(1);
    facts.evidence.queue = queue(-10, &[]);
    reports(&mut facts, "5.0", over(-1, 0));
    let decision = decide(&facts);
    assert_eq!((phase(&decision), counts(&decision)), (Phase::Pending, [0, 0, 0]));
    assert!(asks_soon(&decision));
    // And the id of another job of the same number does not count for this one.
    let mut facts = one_running();
    reports(&mut facts, "6.0", over(-1, 0));
    assert_eq!(counts(&decide(&facts)), [1, 0, 0]);
}

#[test]
fn what_comes_late_has_no_effect() {
    for report in [began(0), over(0, 1), over(0, 0)] {
        let jobs = [(ended_job("5.0", Outcome::Succeeded), ended(ad(0, "5.0"), Exit::Code(0)))];
        let mut facts = accepted(Phase::Completed, &jobs);
        let before = decide(&facts);
        reports(&mut facts, "5.0", report.clone());
        let mut after = decide(&facts);
        after.after.as_mut().unwrap().reports.clear();
        assert_eq!(after, before, "{report:?}");
        facts.object.deleting = true;
        facts.object.claim = Claim::Ours;
        assert_eq!(counts(&decide(&facts)), [0, 1, 0]);
    }
}
