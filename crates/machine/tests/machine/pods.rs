//! The decision about an `HTCJob` whose jobs are Pods: case by case, and for all facts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use htc_machine::chart::of_pods;
use htc_machine::condition::{ConditionStatus, ConditionType, Reason};
use htc_machine::facts::{Claim, Past, Spec, SpecRefused, Unreadable};
use htc_machine::phase::Phase;
use htc_machine::pods::{
    self, BatchJob, Creation, DesiredJob, Exceeded, JobEnd, JobObservation, LeftoverPods, Pod, PodPhase, PodsAction,
    PodsDecision, PodsFacts, PodsObject, PodsObservation, PodsReleasePermit, decide_pods,
};
use htc_machine::runs::{KeptLog, RunEnd, RunState, RunsRecord};
use htc_machine::transitions::{Transition, Trigger, find};
use htc_machine::{Index, Indices, Settings, Timestamp, Uid};
use proptest::prelude::*;

mod logs;
mod queued;
mod stuck;

const NOW: Timestamp = Timestamp(1_000_000);

fn spec(queue: u32) -> Spec {
    Spec { queue, ..Spec::default() }
}

fn new(queue: u32) -> PodsFacts {
    PodsFacts {
        object: PodsObject {
            uid: Uid::from("u"),
            deleting: false,
            finalizer: false,
            claim: Claim::None,
            spec: Ok(spec(queue)),
            job_name: "sums-12345678".to_owned(),
            shows_job: false,
            abandon: false,
            submit_again: false,
        },
        record: RunsRecord::default(),
        past: Past::Continuous,
        job: JobObservation::Absent,
        pods: PodsObservation::Known(BTreeMap::new()),
        leftover_pods: LeftoverPods::Unknown,
        creation: Creation::Allowed,
        update_refused: None,
        queue: None,
        namespace_limit: None,
    }
}

fn job(uid: &str) -> BatchJob {
    BatchJob {
        uid: uid.into(),
        deleting: false,
        suspended: true,
        completions: Some(3),
        parallelism: Some(3),
        deadline: None,
        started: None,
        stopped: false,
        active: 0,
        terminating: 0,
        settled: true,
        succeeded: Indices::default(),
        failed: Indices::default(),
        failing: None,
        end: None,
        ended: None,
    }
}

fn pod(phase: PodPhase, exit: Option<i32>) -> Pod {
    Pod {
        name: "sums-0-x".into(),
        phase,
        failures: 0,
        start: None,
        end: None,
        node: None,
        placed: None,
        gone_by: None,
        exit,
        message: None,
    }
}

fn decide(facts: &PodsFacts) -> PodsDecision {
    decide_pods(facts, NOW, &Settings::default()).unwrap()
}

/// Decides and takes over what was decided.
fn step(facts: &mut PodsFacts) -> PodsDecision {
    let decision = decide(facts);
    if let Some(after) = &decision.after {
        facts.record = after.clone();
    }
    decision
}

fn guarded(queue: u32) -> PodsFacts {
    let mut facts = new(queue);
    (facts.object.finalizer, facts.object.claim) = (true, Claim::Ours);
    step(&mut facts);
    facts
}

/// With its Job recorded.
fn begun(queue: u32) -> PodsFacts {
    let mut facts = guarded(queue);
    facts.job = JobObservation::Ours(BatchJob { parallelism: Some(queue), ..job("j") });
    step(&mut facts);
    facts
}

fn phase(facts: &PodsFacts) -> Phase {
    facts.record.row.as_ref().unwrap().phase
}

fn says(facts: &PodsFacts, kind: ConditionType) -> Option<(ConditionStatus, String)> {
    let conditions = &facts.record.row.as_ref().unwrap().conditions;
    conditions.iter().find(|told| told.kind == kind).map(|told| (told.status, told.reason.clone()))
}

fn is_said(facts: &PodsFacts, kind: ConditionType, status: ConditionStatus, reason: Reason) -> bool {
    says(facts, kind) == Some((status, reason.to_string()))
}

/// Who may delete HTCJobs leaves no Job behind that can be deleted, also if the operator is killed before it deletes it, or the
/// API server does not answer.
#[test]
fn job_of_an_abandoned_htcjob_is_deleted_for_a_while() {
    let at = |seconds: i64| Timestamp(NOW.0 + 1000 * seconds);
    let released =
        |action: &PodsAction| matches!(action, PodsAction::ReleaseFinalizer(PodsReleasePermit::Abandoned(_)));
    let here = JobObservation::Ours(job("j"));
    let unknown = JobObservation::Unknown("away".to_owned());
    let going = JobObservation::Ours(BatchJob { deleting: true, ..job("j") });
    for (seen, goes) in [(&here, false), (&unknown, false), (&going, true), (&JobObservation::Absent, true)] {
        for removed_before in [false, true] {
            let mut facts = PodsFacts { job: seen.clone(), ..begun(2) };
            facts.object.deleting = true;
            if removed_before {
                // Its deletion has waited for long.
                let known =
                    decide_pods(&PodsFacts { job: here.clone(), ..facts.clone() }, at(-600), &Settings::default());
                facts.record = known.unwrap().after.unwrap();
            }
            facts.object.abandon = true;
            let mut last = PodsAction::Nothing;
            for (seconds, asks) in [(0, true), (5, true), (29, true), (30, false)] {
                let decision = decide_pods(&facts, at(seconds), &Settings::default()).unwrap();
                facts.record = decision.after.unwrap();
                last = decision.action;
                if goes {
                    break;
                }
                assert_eq!(last == PodsAction::DeleteJob("j".into()), asks, "{seconds} s: {last:?}");
                assert_eq!(decision.requeue_after.is_some(), asks);
            }
            assert!(released(&last), "{seen:?}: {last:?}");
        }
    }
    // Of one whose Job was never recorded there is nothing to delete.
    let mut facts = PodsFacts { job: unknown, ..guarded(2) };
    (facts.object.deleting, facts.object.abandon) = (true, true);
    assert!(released(&step(&mut facts).action));
}

/// An annotation that anybody may write.
#[test]
fn failure_count_saturates() {
    let mut facts = begun(1);
    facts.job = JobObservation::Ours(BatchJob { suspended: false, started: Some(NOW), ..job("j") });
    let failed = Pod { failures: u32::MAX, ..pod(PodPhase::Running, None) };
    facts.pods = PodsObservation::Known(BTreeMap::from([(Index(0), failed)]));
    step(&mut facts);
    assert_eq!(facts.record.runs[&Index(0)].starts, u32::MAX);
}

#[test]
fn job_is_resumed_only_once_recorded() {
    let mut facts = new(3);
    assert_eq!(decide(&facts).action, PodsAction::AttachFinalizer);
    (facts.object.finalizer, facts.object.claim) = (true, Claim::Ours);
    assert_eq!(step(&mut facts).action, PodsAction::Create);
    facts.job = JobObservation::Ours(job("j"));
    let decision = step(&mut facts);
    // In the transaction that is committed before the action.
    assert_eq!(decision.after.unwrap().job, Some("j".into()));
    let wanted = DesiredJob { suspend: false, parallelism: 3, deadline: None };
    assert_eq!(decision.action, PodsAction::UpdateJob("j".into(), wanted));
    assert_eq!(phase(&facts), Phase::Submitted);
    facts.job = JobObservation::Ours(BatchJob { suspended: false, ..job("j") });
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
}

#[test]
fn recorded_job_that_is_gone_is_lost_and_unrecorded_is_recreated() {
    let mut facts = guarded(2);
    assert_eq!(decide(&facts).action, PodsAction::Create, "it was never recorded");
    facts = begun(2);
    for gone in [JobObservation::Absent, JobObservation::Foreign("x".to_owned()), JobObservation::Ours(job("another"))]
    {
        let mut facts = PodsFacts { job: gone, ..facts.clone() };
        let decision = step(&mut facts);
        assert_eq!((decision.action, phase(&facts)), (PodsAction::Nothing, Phase::Completed));
        assert!(is_said(&facts, ConditionType::Failed, ConditionStatus::True, Reason::JobsLost));
        assert_eq!(pods::counts(&facts.record).failed, 2);
        assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    }
    facts.job = JobObservation::Unknown(String::new());
    step(&mut facts);
    assert_eq!(says(&facts, ConditionType::Tracked), None, "the operator has just been started");
    facts.job = JobObservation::Unknown("no answer".to_owned());
    step(&mut facts);
    assert_eq!(phase(&facts), Phase::Submitted);
    assert!(is_said(&facts, ConditionType::Tracked, ConditionStatus::False, Reason::WatchFailed));
}

#[test]
fn orphaned_pods_of_a_deleted_job_are_reported() {
    for (left, told) in [(LeftoverPods::Some, true), (LeftoverPods::None, false), (LeftoverPods::Unknown, false)] {
        let mut facts = PodsFacts { job: JobObservation::Absent, leftover_pods: left, ..begun(2) };
        let decision = step(&mut facts);
        let words = "; some of its Pods are still there, and go when the HTCJob is deleted";
        let last = &decision.transitions.last().unwrap().detail;
        assert_eq!(last.contains(words), told, "{last}");
    }
}

#[test]
fn ledger_of_unknown_past_creates_no_job() {
    let mut facts = new(1);
    (facts.object.finalizer, facts.object.claim) = (true, Claim::Other);
    facts.past = Past::Unknown { settled: None };
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    assert!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, Reason::PastUnknown));
    // What it finds it goes on with.
    let mut found = PodsFacts { job: JobObservation::Ours(job("j")), ..facts.clone() };
    assert_eq!(step(&mut found).after.unwrap().job, Some("j".into()));
    // A status that shows a Job is presence.
    let mut shown = facts.clone();
    shown.object.shows_job = true;
    step(&mut shown);
    assert!(is_said(&shown, ConditionType::Failed, ConditionStatus::True, Reason::JobsLost));
    facts.object.submit_again = true;
    assert_eq!(step(&mut facts).action, PodsAction::AttachFinalizer, "the claim comes first");
    facts.object.claim = Claim::Ours;
    assert_eq!(step(&mut facts).action, PodsAction::Create);
}

#[test]
fn only_the_status_of_the_job_completes_the_htcjob() {
    let mut facts = begun(2);
    let ended = |exit: i32| pod(PodPhase::Ended, Some(exit));
    facts.pods = PodsObservation::Known(BTreeMap::from([(Index(0), ended(0)), (Index(1), ended(3))]));
    step(&mut facts);
    let counts = pods::counts(&facts.record);
    assert_eq!((phase(&facts), counts.active, counts.succeeded, counts.failed), (Phase::Running, 2, 0, 0));
    let over = BatchJob { suspended: false, succeeded: "0".parse().unwrap(), failed: "1".parse().unwrap(), ..job("j") };
    facts.job = JobObservation::Ours(over.clone());
    step(&mut facts);
    let counts = pods::counts(&facts.record);
    assert_eq!((phase(&facts), counts.active, counts.succeeded, counts.failed), (Phase::Running, 0, 1, 1));
    let end = JobEnd::Failed { exceeded: None, message: "Job has failed indexes".to_owned() };
    facts.job = JobObservation::Ours(BatchJob { end: Some(end), ..over });
    let decision = step(&mut facts);
    assert_eq!(phase(&facts), Phase::Completed);
    let told = &decision.transitions.last().unwrap().detail;
    assert_eq!(
        told,
        "1 of 2 jobs failed: exit code 3 (1); job 1 (Pod sums-0-x) exited with 3. The Job says: Job has failed indexes"
    );
}

#[test]
fn completion_counts_jobs_by_the_spec() {
    let mut facts = begun(2);
    facts.job = JobObservation::Ours(BatchJob { end: Some(JobEnd::Complete), ..job("j") });
    facts.object.spec = Err(Unreadable::invalid("no"));
    step(&mut facts);
    assert_eq!(phase(&facts), Phase::Submitted, "it cannot be read");
    facts.object.spec = Ok(spec(2));
    step(&mut facts);
    assert!(is_said(&facts, ConditionType::Failed, ConditionStatus::True, Reason::JobsFailed), "neither has succeeded");
}

#[test]
fn exit_codes_are_awaited_only_briefly() {
    let mut facts = begun(1);
    let end = Some(JobEnd::Failed { exceeded: None, message: String::new() });
    let failed = BatchJob { failed: "0".parse().unwrap(), end, ended: Some(NOW), ..job("j") };
    facts.job = JobObservation::Ours(failed.clone());
    assert!(step(&mut facts).requeue_after.is_some());
    assert_eq!(phase(&facts), Phase::Running);
    for ended in [Some(Timestamp(NOW.0 - 3000)), Some(Timestamp(NOW.0 + 3_600_000)), None] {
        let mut facts = PodsFacts { job: JobObservation::Ours(BatchJob { ended, ..failed.clone() }), ..facts.clone() };
        step(&mut facts);
        assert_eq!(phase(&facts), Phase::Completed, "{ended:?}");
    }
}

#[test]
fn exceeded_limit_fails_the_htcjob_in_one_or_two_steps() {
    for (exceeded, reason) in
        [(Exceeded::Deadline, Reason::DeadlineExceeded), (Exceeded::FailedIndexes, Reason::MaxFailedIndexesExceeded)]
    {
        for at_once in [false, true] {
            let mut facts = begun(3);
            facts.pods = PodsObservation::Known(BTreeMap::from([(Index(1), pod(PodPhase::Running, None))]));
            let failing = BatchJob { failing: Some(exceeded), suspended: false, ..job("j") };
            if !at_once {
                facts.job = JobObservation::Ours(failing.clone());
                assert_eq!(step(&mut facts).action, PodsAction::Nothing, "it is not resumed any more");
            }
            let end = JobEnd::Failed { exceeded: Some(exceeded), message: "it was active too long".to_owned() };
            facts.job = JobObservation::Ours(BatchJob { end: Some(end), ..failing });
            step(&mut facts);
            assert!(is_said(&facts, ConditionType::Failed, ConditionStatus::True, reason));
            assert_eq!(facts.record.runs[&Index(1)].state, RunState::Ended(RunEnd::Removed));
            assert_eq!(pods::counts(&facts.record).failed, 3);
        }
    }
}

#[test]
fn invalid_spec_or_taken_name_is_reported_and_no_job_created() {
    let mut facts = guarded(1);
    facts.object.spec = Ok(Spec { refused: Some(SpecRefused::invalid("no")), ..spec(1) });
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    assert!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, Reason::InvalidSpec));
    facts.object.spec = Err(Unreadable::invalid("no"));
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    facts.object.spec = Ok(spec(1));
    let again = Duration::from_secs(7);
    for (reason, again) in [(Reason::InvalidSpec, None), (Reason::CreateRefused, Some(again))] {
        facts.creation = Creation::Refused { reason, message: "quota".to_owned(), requeue_after: again };
        let decision = step(&mut facts);
        assert_eq!((decision.action, decision.requeue_after), (PodsAction::Nothing, again));
        assert!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, reason));
    }
    facts.creation = Creation::Allowed;
    let decision = step(&mut facts);
    assert_eq!(
        (decision.action, decision.transitions.len()),
        (PodsAction::Create, 0),
        "it is tried again, and reported once"
    );
    facts.job = JobObservation::Foreign("somebody's".to_owned());
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    assert!(is_said(&facts, ConditionType::Submitted, ConditionStatus::False, Reason::NameTaken));
}

#[test]
fn finalizer_is_released_once_job_and_pods_are_gone() {
    let mut facts = begun(1);
    facts.object.deleting = true;
    assert_eq!(step(&mut facts).action, PodsAction::DeleteJob("j".into()));
    assert_eq!(phase(&facts), Phase::Terminating);
    facts.job = JobObservation::Ours(BatchJob { deleting: true, ..job("j") });
    assert_eq!(step(&mut facts).action, PodsAction::Nothing);
    facts.job = JobObservation::Absent;
    for (left, action) in
        [(LeftoverPods::Unknown, PodsAction::Nothing), (LeftoverPods::Some, PodsAction::DeletePods("j".into()))]
    {
        facts.leftover_pods = left;
        assert_eq!(step(&mut facts).action, action);
    }
    facts.leftover_pods = LeftoverPods::None;
    assert!(matches!(step(&mut facts).action, PodsAction::ReleaseFinalizer(PodsReleasePermit::Gone(_))));
    assert!(matches!(step(&mut facts).action, PodsAction::ReleaseFinalizer(_)), "and again, if that was lost");
    // One of which no Job was begun.
    let mut never = guarded(1);
    never.object.deleting = true;
    assert!(matches!(step(&mut never).action, PodsAction::ReleaseFinalizer(PodsReleasePermit::Gone(_))));
}

/// Its Job is gone, and a Pod on a lost node stays: each decision after the first that says so changes nothing in the ledger, and the API
/// server is asked less and less often.
#[test]
fn lingering_pods_are_reported_once_and_polled_with_backoff() {
    let at = |seconds: i64| Timestamp(NOW.0 + 1000 * seconds);
    let mut facts = begun(1);
    facts.object.deleting = true;
    step(&mut facts);
    (facts.job, facts.leftover_pods) = (JobObservation::Absent, LeftoverPods::Some);
    step(&mut facts);
    let decide_at = |facts: &PodsFacts, seconds| decide_pods(facts, at(seconds), &Settings::default()).unwrap();
    let late = decide_at(&facts, 200);
    facts.record = late.after.unwrap();
    assert!(is_said(&facts, ConditionType::JobsRemoved, ConditionStatus::False, Reason::NotRemovedYet));
    for (seconds, again) in [(205, 20), (210, 21), (3600, 360), (100_000, 600)] {
        let decision = decide_at(&facts, seconds);
        assert_eq!(decision.after.unwrap().row, facts.record.row, "after {seconds} s");
        assert_eq!(decision.requeue_after.unwrap().as_secs(), again, "after {seconds} s");
        assert!(decision.transitions.is_empty() && decision.changed.is_empty());
    }
}

/// Deleted, and it is unknown whether there is a Job.
fn decide_blindly(facts: &PodsFacts) -> PodsAction {
    let mut facts = PodsFacts { job: JobObservation::Unknown("the backend is off".to_owned()), ..facts.clone() };
    facts.object.deleting = true;
    step(&mut facts);
    step(&mut facts).action
}

#[test]
fn unbegun_htcjob_is_released_whatever_is_observed() {
    let never = guarded(1);
    assert!(matches!(decide_blindly(&never), PodsAction::ReleaseFinalizer(PodsReleasePermit::NeverBegun(_))));
    // Also if it was refused, as it is where the backend is off.
    let mut refused = guarded(1);
    refused.object.spec = Ok(Spec { refused: Some(SpecRefused::invalid("off")), ..spec(1) });
    step(&mut refused);
    assert!(matches!(decide_blindly(&refused), PodsAction::ReleaseFinalizer(PodsReleasePermit::NeverBegun(_))));
    // A Job that was recorded may run, and so may one that another ledger has recorded, or this one before it was lost.
    assert_eq!(decide_blindly(&begun(1)), PodsAction::Nothing);
    let mut shown = guarded(1);
    shown.object.shows_job = true;
    assert_eq!(decide_blindly(&shown), PodsAction::Nothing);
    for past in [Past::Unknown { settled: None }, Past::Unknown { settled: Some(NOW) }] {
        // By a row that is older than the doubt, and by none.
        for record in [guarded(1).record, RunsRecord::default()] {
            let mut lost = PodsFacts { past, record, ..guarded(1) };
            lost.object.claim = Claim::Other;
            assert_eq!(decide_blindly(&lost), PodsAction::Nothing);
        }
    }
    // Its row was made in doubt.
    let mut doubted = new(1);
    (doubted.object.finalizer, doubted.object.claim, doubted.past) =
        (true, Claim::Other, Past::Unknown { settled: None });
    step(&mut doubted);
    (doubted.object.claim, doubted.past) = (Claim::Ours, Past::Continuous);
    assert_eq!(decide_blindly(&doubted), PodsAction::Nothing);
    // The first list is under way: it soon shows more.
    let mut soon = PodsFacts { job: JobObservation::Unknown(String::new()), ..guarded(1) };
    soon.object.deleting = true;
    assert_eq!(step(&mut soon).action, PodsAction::Nothing);
}

#[test]
fn ttl_deletes_the_htcjob_after_completion() {
    let mut facts = begun(1);
    let done = BatchJob { succeeded: "0".parse().unwrap(), end: Some(JobEnd::Complete), ..job("j") };
    facts.job = JobObservation::Ours(done);
    facts.object.spec = Ok(Spec { ttl: Some(Duration::from_secs(5)), ..spec(1) });
    assert_eq!(step(&mut facts).requeue_after, Some(Duration::from_secs(5)));
    assert!(is_said(&facts, ConditionType::Complete, ConditionStatus::True, Reason::AllSucceeded));
    let later = decide_pods(&facts, NOW.plus(Duration::from_secs(5)), &Settings::default()).unwrap();
    assert_eq!(later.action, PodsAction::DeleteObject);
}

/// Status and message of the condition `Suspended`.
fn suspended_of(record: &RunsRecord) -> Option<(ConditionStatus, String)> {
    let told = record.row.as_ref()?.conditions.iter().find(|told| told.kind == ConditionType::Suspended)?;
    Some((told.status, told.message.clone()))
}

/// While Pods run, or their Job cannot be changed, no condition says that there are none.
#[test]
fn suspended_condition_follows_the_observed_job() {
    let mut facts = begun(3);
    let says_of = |facts: &mut PodsFacts, job: BatchJob| {
        facts.job = JobObservation::Ours(job);
        let decision = step(facts);
        (suspended_of(&facts.record).unwrap(), decision.action)
    };
    let running = BatchJob { suspended: false, started: Some(NOW), active: 3, ..job("j") };
    facts.object.spec = Ok(Spec { suspend: true, ..spec(3) });
    let is = |text: &str| (ConditionStatus::True, format!("spec.suspend is true: {text}"));
    let (said, action) = says_of(&mut facts, running.clone());
    assert_eq!(said, is("the Job is being suspended"));
    assert!(matches!(action, PodsAction::UpdateJob(_, DesiredJob { suspend: true, .. })));
    facts.update_refused = Some("cannot patch".to_owned());
    let (said, action) = says_of(&mut facts, running.clone());
    assert_eq!(said, is("the Job cannot be suspended: cannot patch"));
    assert!(matches!(action, PodsAction::UpdateJob(_, DesiredJob { suspend: true, .. })), "it is tried again");
    facts.update_refused = None;
    let suspended = BatchJob { suspended: true, ..running };
    let (said, _) = says_of(&mut facts, suspended.clone());
    assert_eq!(said, is("the Job is suspended; the Job controller has not deleted its Pods yet"));
    let stopped = BatchJob { stopped: true, active: 0, terminating: 2, ..suspended };
    let (said, _) = says_of(&mut facts, stopped.clone());
    assert_eq!(said, is("the Job is suspended; Pods that have not ended yet: 2"));
    let (said, _) = says_of(&mut facts, BatchJob { terminating: 0, ..stopped });
    assert_eq!(said, is("the Job is suspended, and has no Pods"));
}

prop_compose! {
    fn jobs()(
        uid in prop_oneof!["j", "k"], deleting: bool, suspended: bool, succeeded in proptest::collection::vec(0_u32..4, 0..4),
        stopped: bool, started in prop_oneof![Just(None), Just(Some(NOW))], active in 0_u32..3, terminating in 0_u32..3,
        failed in proptest::collection::vec(0_u32..4, 0..4), failing in prop_oneof![Just(None), Just(Some(Exceeded::Deadline))],
        end in prop_oneof![
            3 => Just(None), 1 => Just(Some(JobEnd::Complete)),
            1 => Just(Some(JobEnd::Failed { exceeded: Some(Exceeded::FailedIndexes), message: String::new() })),
        ],
    ) -> BatchJob {
        let set = |numbers: Vec<u32>| numbers.into_iter().map(Index).collect();
        let (succeeded, failed) = (set(succeeded), set(failed));
        let seen = BatchJob { deleting, suspended, stopped, started, active, terminating, ..job(&uid) };
        BatchJob { succeeded, failed, failing, end, ..seen }
    }
}

fn seen() -> impl Strategy<Value = JobObservation> {
    prop_oneof![
        Just(JobObservation::Absent),
        Just(JobObservation::Unknown("?".to_owned())),
        Just(JobObservation::Foreign("x".to_owned())),
        jobs().prop_map(JobObservation::Ours),
    ]
}

fn pods_seen() -> impl Strategy<Value = PodsObservation> {
    let phases = prop_oneof![
        Just(pod(PodPhase::Pending(None), None)),
        Just(pod(PodPhase::Pending(Some("ErrImagePull".into())), None)),
        Just(pod(PodPhase::Running, None)),
        (0..3).prop_map(|code| pod(PodPhase::Ended, Some(code))),
    ];
    let some = proptest::collection::btree_map((0_u32..4).prop_map(Index), phases, 0..4);
    prop_oneof![Just(PodsObservation::Unknown), some.prop_map(PodsObservation::Known)]
}

prop_compose! {
    /// What may be seen next, whatever was before.
    fn turn()(
        deleting in prop::bool::weighted(0.2), job in seen(), pods in pods_seen(), suspend: bool,
        left in prop_oneof![Just(LeftoverPods::Unknown), Just(LeftoverPods::None), Just(LeftoverPods::Some)],
        claim in prop_oneof![Just(Claim::Ours), Just(Claim::Other)], readable in prop::bool::weighted(0.9),
        again in prop::bool::weighted(0.1), shows_job in prop::bool::weighted(0.2), abandon in prop::bool::weighted(0.1),
    ) -> (bool, JobObservation, PodsObservation, bool, LeftoverPods, Claim, bool, bool, bool, bool) {
        (deleting, job, pods, suspend, left, claim, readable, again, shows_job, abandon)
    }
}

/// As it is drawn in the chart of what happens to Pods.
fn arrow(told: &Transition) -> String {
    let drawn = |phase: Option<Phase>| phase.map_or_else(|| "[*]".to_owned(), |phase| phase.to_string());
    format!("    {} --> {}: {}\n", drawn(told.from), drawn(told.to), told.trigger)
}

/// The chart shows what happens, and nothing that does not.
#[test]
fn chart_has_exactly_the_transitions_that_occur() {
    let mut happened = BTreeSet::new();
    let mut tell = |facts: &mut PodsFacts| {
        let told = step(facts).transitions;
        happened.extend(told.iter().filter(|told| told.trigger != Trigger::ConditionChanged).map(arrow));
    };
    let mut pending = new(2);
    (pending.object.finalizer, pending.object.claim) = (true, Claim::Ours);
    tell(&mut pending);
    let mut submitted = PodsFacts { job: JobObservation::Ours(job("j")), ..pending.clone() };
    tell(&mut submitted);
    let pods = PodsObservation::Known(BTreeMap::from([(Index(0), pod(PodPhase::Running, None))]));
    let mut running = PodsFacts { pods, ..submitted.clone() };
    tell(&mut running);
    let all = BatchJob { succeeded: "0-1".parse().unwrap(), end: Some(JobEnd::Complete), ..job("j") };
    let mut completed = PodsFacts { job: JobObservation::Ours(all), ..running.clone() };
    tell(&mut completed);
    // Its Job is lost, of one of which this ledger knows nothing, too.
    let mut shown = new(2);
    (shown.object.finalizer, shown.object.claim, shown.past) = (true, Claim::Other, Past::Unknown { settled: None });
    tell(&mut shown);
    shown.object.shows_job = true;
    tell(&mut shown);
    for state in [&submitted, &running] {
        tell(&mut PodsFacts { job: JobObservation::Absent, ..state.clone() });
        for failing in [Exceeded::Deadline, Exceeded::FailedIndexes] {
            let job = JobObservation::Ours(BatchJob { failing: Some(failing), ..job("j") });
            tell(&mut PodsFacts { job, ..state.clone() });
        }
    }
    for state in [&pending, &submitted, &running, &completed] {
        let mut facts = PodsFacts { job: JobObservation::Absent, leftover_pods: LeftoverPods::None, ..state.clone() };
        facts.object.deleting = true;
        tell(&mut facts);
    }
    let chart = of_pods();
    let drawn: BTreeSet<String> =
        chart.split_inclusive('\n').filter(|line| line.contains("-->")).map(str::to_owned).collect();
    assert_eq!(happened, drawn);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn every_observation_keeps_the_rules(turns in proptest::collection::vec(turn(), 1..8)) {
        let chart = of_pods();
        let mut facts = new(4);
        facts.object.finalizer = true;
        let mut deleted = false;
        for (deleting, job, pods, suspend, left, claim, readable, again, shows_job, abandon) in turns {
            deleted |= deleting;
            (facts.job, facts.pods, facts.leftover_pods) = (job, pods, left);
            let object = &mut facts.object;
            (object.deleting, object.claim, object.submit_again) = (deleted, claim, again);
            (object.shows_job, object.abandon) = (shows_job, abandon);
            facts.past = if claim == Claim::Ours { Past::Continuous } else { Past::Unknown { settled: None } };
            object.spec = if readable { Ok(Spec { suspend, ..spec(4) }) } else { Err(Unreadable::invalid("no")) };
            let before = facts.record.clone();
            let decision = decide_pods(&facts, NOW, &Settings::default());
            prop_assert!(decision.is_ok(), "{decision:?}");
            let decision = decision.unwrap();
            let after = decision.after.clone().unwrap();
            // A phase never goes back, and what is told is in the table.
            let phases = (before.row.as_ref().map(|known| known.phase), after.row.as_ref().unwrap().phase);
            prop_assert!(phases.0.is_none_or(|before| before <= phases.1), "{phases:?}");
            for told in &decision.transitions {
                prop_assert!(find(told.from, told.trigger, told.to).is_some(), "{told:?}");
                prop_assert!(told.trigger == Trigger::ConditionChanged || chart.contains(&arrow(told)), "{told:?}");
            }
            // The Job that was recorded first stays, and none is created once there was one, or in doubt.
            prop_assert!(before.job.is_none() || before.job == after.job);
            let new = after.row.as_ref().unwrap().new;
            match &decision.action {
                PodsAction::Create => {
                    prop_assert!(after.job.is_none() && facts.job == JobObservation::Absent && !deleted && readable);
                    prop_assert!((new || again) && claim == Claim::Ours);
                }
                // Nothing is done to a Job that is not the one in the ledger.
                PodsAction::UpdateJob(uid, _) => prop_assert_eq!(Some(uid), after.job.as_ref()),
                PodsAction::DeleteJob(uid) => {
                    let its = matches!(&facts.job, JobObservation::Ours(job) if job.uid == *uid);
                    let recorded = abandon && matches!(facts.job, JobObservation::Unknown(_)) && before.job.as_ref() == Some(uid);
                    prop_assert!((its || recorded) && deleted && after.job.as_ref().is_none_or(|job| job == uid));
                }
                PodsAction::DeletePods(uid) => prop_assert!(deleted && after.job.as_ref() == Some(uid)),
                PodsAction::ReleaseFinalizer(permit) => {
                    let gone = match &facts.job {
                        JobObservation::Absent | JobObservation::Foreign(_) => true,
                        JobObservation::Ours(job) => before.job.as_ref().is_some_and(|uid| *uid != job.uid),
                        JobObservation::Unknown(_) => false,
                    };
                    let nothing_left = gone && (before.job.is_none() || left == LeftoverPods::None);
                    // By a ledger that has known it from its beginning.
                    let never = before.job.is_none() && before.row.as_ref().is_some_and(|known| known.new) && !shows_job;
                    let may = match permit {
                        PodsReleasePermit::Gone(_) => nothing_left,
                        PodsReleasePermit::NeverBegun(_) => never && claim == Claim::Ours,
                        PodsReleasePermit::Abandoned(_) => abandon,
                    };
                    prop_assert!(deleted && may, "{permit:?}");
                }
                // Nobody asks for the log of a Pod that may still write.
                PodsAction::KeepLogs(pods) => {
                    for (index, pod) in pods {
                        let run = &after.runs[index];
                        let over = matches!(run.state, RunState::Ended(RunEnd::Succeeded | RunEnd::Failed));
                        prop_assert!(over && run.id.as_ref() == Some(pod), "{run:?}");
                    }
                }
                PodsAction::DeleteObject | PodsAction::AttachFinalizer | PodsAction::Nothing => {}
            }
            // That it is suspended, and has no Pods, is said when it was seen.
            let said = suspended_of(&after);
            if said != suspended_of(&before) {
                let seen = match &facts.job {
                    JobObservation::Ours(job) => (job.suspended, job.is_stopped() && job.active + job.terminating == 0),
                    JobObservation::Absent | JobObservation::Foreign(_) | JobObservation::Unknown(_) => (false, false),
                };
                let words = |words: &str| said.as_ref().is_some_and(|(_, message)| message.contains(words));
                prop_assert!(!words("the Job is suspended") || seen.0, "{said:?}");
                prop_assert!(!words("has no Pods") || seen.1, "{said:?}");
            }
            // An index that is over stays as it is, and they add up.
            for (index, run) in &before.runs {
                if run.state.end().is_some() {
                    prop_assert_eq!(run.state, after.runs[index].state);
                }
            }
            let counts = pods::counts(&after);
            prop_assert!(counts.active + counts.succeeded + counts.failed <= 4, "{counts:?}");
            facts.record = after;
        }
    }
}
