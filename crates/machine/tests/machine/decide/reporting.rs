//! What jobs report of themselves: hints, which HTCondor confirms or refutes.

use htc_machine::decide::Polling;
use htc_machine::facts::{
    Answer, Claim, Evidence, Exit, Facts, Hold, JobState, JobStatus, QueryErrorKind, Report, ReportedEnd,
};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::status::Counts;
use htc_machine::transitions::Trigger;
use htc_machine::{Decision, Index};

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
    Report { started: Some(at(seconds - 5)), ended: Some(ReportedEnd { at: at(seconds), code }) }
}

fn asks_soon(decision: &Decision) -> bool {
    matches!(decision.details.polling, Polling::Always { urgent: true, .. })
}

/// One job, running in the status before it reported its end.
fn one_running() -> Facts {
    let mut facts = accepted(Phase::Running, &[(running_job("5.0"), running(ad(0, "5.0")))]);
    known_queue(&mut facts).asked_at = at(-10);
    facts
}

#[test]
fn reported_start_sets_a_recorded_job_running() {
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
fn answer_newer_than_a_reported_start_wins() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    reports(&mut facts, "5.0", began(-10));
    let decision = decide(&facts);
    assert_eq!((phase(&decision), state(&decision, 0)), (Phase::Running, JobState::Idle));
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), held(ad(0, "5.0"), Hold::BY_USER, 0))]);
    reports(&mut facts, "5.0", began(0));
    assert!(matches!(state(&decide(&facts), 0), JobState::Held(_)), "a report does not change a held job");
}

#[test]
fn report_counts_while_htcondor_is_unreachable() {
    let mut facts = one_running();
    facts.evidence.queue = unknown(QueryErrorKind::ScheddUnreachable);
    reports(&mut facts, "5.0", over(-1, 0));
    assert_eq!(counts(&decide(&facts)), [0, 1, 0]);
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    facts.evidence = Evidence::none();
    reports(&mut facts, "5.0", began(-1));
    assert_eq!(phase(&decide(&facts)), Phase::Running);
}

#[test]
fn reported_end_counts_but_only_htcondor_completes() {
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
        assert!(decision.details.refuted.is_empty());
    }
}

#[test]
fn reported_end_implies_a_start() {
    let mut facts = accepted(Phase::Submitted, &[(idle_job("5.0"), ad(0, "5.0"))]);
    reports(&mut facts, "5.0", Report { started: None, ended: Some(ReportedEnd { at: at(0), code: 0 }) });
    let decision = decide(&facts);
    assert_eq!((phase(&decision), counts(&decision)), (Phase::Running, [0, 1, 0]));
    reports(&mut facts, "5.0", Report { started: Some(at(0)), ended: Some(ReportedEnd { at: at(-1), code: 0 }) });
    assert_eq!(counts(&decide(&facts)), [0, 1, 0]);
}

#[test]
fn reported_end_of_a_rerunnable_job_only_triggers_a_query() {
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
    assert!(!asks_soon(&decision) && decision.details.refuted.is_empty() && triggers(&decision).is_empty());
    facts.evidence.queue = queue(0, &[ended(ad(0, "5.0"), Exit::Code(0))]);
    let decision = decide(&facts);
    assert_eq!((phase(&decision), decision.details.refuted.len()), (Phase::Completed, 0));
}

#[test]
fn contradicted_report_is_refuted_and_reported_once() {
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
        assert_eq!(decision.details.refuted, [id("5.0")], "{shown:?}");
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
fn reported_end_is_not_refuted_within_the_grace_period() {
    for (asked, refuted) in [(-100, false), (-41, false), (-39, true), (0, true)] {
        let mut facts = one_running();
        reports(&mut facts, "5.0", over(-100, 0));
        known_queue(&mut facts).asked_at = at(asked);
        assert_eq!(!decide(&facts).details.refuted.is_empty(), refuted, "asked at {asked}");
        // But not while its output is on its way, however long that takes.
        let Answer::Known(queue) = &mut facts.evidence.queue else { unreachable!() };
        let mut ads = queue.ads.to_vec();
        ads[0].status = JobStatus::TransferringOutput;
        queue.ads = ads.into();
        assert!(decide(&facts).details.refuted.is_empty(), "asked at {asked}");
    }
}

#[test]
fn report_of_an_unknown_job_only_triggers_a_query() {
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
fn late_report_has_no_effect() {
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
