//! Lives of an object whose ledger is lost on the way.

use htc_machine::condition::ConditionType;
use htc_machine::facts::{Claim, Evidence, Exit, Listed, Past, Record, Spec};
use htc_machine::phase::Phase;
use htc_machine::{Index, RequestKind};

use crate::decide::lives::running;
use crate::given::world::World;

/// What a new ledger knows of an object that another one had.
fn forgotten(mut world: World) -> World {
    world.facts.record = Record::default();
    world.facts.object.claim = Claim::Other;
    world.facts.past = Past::Unknown { settled: None };
    world.facts.evidence = Evidence::none();
    world
}

/// The wait for an earlier operator's submitter ends; with the claim the past counts as known.
fn settle_past(world: &mut World) {
    world.settle();
    world.wait(660);
    world.facts.past = Past::Unknown { settled: Some(world.now) };
    world.settle();
    assert_eq!(world.facts.object.claim, Claim::Ours, "{:?}", world.condition(ConditionType::Submitted));
    world.facts.past = Past::Continuous;
    world.run();
}

#[test]
fn lost_ledger_is_rebuilt_from_htcondor() {
    let mut world = forgotten(running(2));
    settle_past(&mut world);
    assert_eq!(world.phase(), Some(Phase::Running));
    assert_eq!(world.facts.record.jobs.len(), 2);
    assert_eq!(world.counts()[&RequestKind::Submit], 1, "only the submission of the first ledger");
}

#[test]
fn ended_jobs_of_a_lost_ledger_are_found_in_history() {
    let mut world = running(1);
    world.end(0, Exit::Code(0));
    world.leave(|_| true);
    let mut world = forgotten(world);
    settle_past(&mut world);
    assert_eq!(world.phase(), Some(Phase::Completed));
    assert_eq!(world.counts()[&RequestKind::Submit], 1);
}

#[test]
fn missing_jobs_of_a_lost_ledger_are_not_resubmitted() {
    let mut world = running(1);
    world.queue.clear();
    let mut world = forgotten(world);
    settle_past(&mut world);
    assert_eq!(world.counts()[&RequestKind::Submit], 1);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False JobsLost"));
    let told = world.reasons().iter().filter(|reason| **reason == "JobsLost").count();
    assert_eq!(told, 1, "{:?}", world.reasons());
}

#[test]
fn unsubmitted_htcjob_of_a_lost_ledger_is_submitted_after_the_wait() {
    let mut world = World::new(3);
    world.settings.jobs_per_attempt = 2;
    world.facts.object.finalizer = true;
    world.facts.object.claim = Claim::Other;
    world.facts.past = Past::Unknown { settled: None };
    world.settle();
    assert!(!world.counts().contains_key(&RequestKind::Submit));
    settle_past(&mut world);
    assert_eq!(world.phase(), Some(Phase::Submitted));
    assert_eq!(world.facts.record.jobs.len(), 3, "{:?}", world.condition(ConditionType::Submitted));
    assert_eq!(world.counts()[&RequestKind::Submit], 2);
}

/// Two jobs, one at a time: the first runs when the ledger is lost.
#[test]
fn new_ledger_that_finds_all_listed_jobs_submits_the_rest() {
    let mut world = World::new(2);
    world.facts.object.spec = Ok(Spec { queue: 2, parallelism: Some(1), ..Spec::default() });
    world.settle();
    world.start(0);
    world.settle();
    assert_eq!(world.facts.object.published.listed, Listed::read("1.0"));
    let mut world = forgotten(world);
    settle_past(&mut world);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False ParallelismReached"));
    world.end(0, Exit::Code(0));
    world.run();
    world.end(1, Exit::Code(0));
    world.run();
    assert_eq!(world.phase(), Some(Phase::Completed));
    assert_eq!(world.counts()[&RequestKind::Submit], 2);
}

/// Of two jobs one is nowhere: the status says that it was there, whatever else the next ledger lists.
#[test]
fn published_job_that_is_missing_is_not_resubmitted() {
    let mut world = running(2);
    world.queue.retain(|ad| ad.index == Index(0));
    let mut world = forgotten(world);
    settle_past(&mut world);
    world.end(0, Exit::Code(0));
    world.run();
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False JobsLost"));
    assert_eq!(world.counts()[&RequestKind::Submit], 1);
    assert_eq!(world.facts.object.published.listed, Listed::read("1.0-1"));
}
