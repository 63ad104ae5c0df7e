//! Whole lives: what one object goes through, decision after decision, until nothing changes any more.

use std::collections::BTreeSet;
use std::time::Duration;

use htc_machine::actions::{JobAction, RequestedAction, StoredAction};
use htc_machine::condition::ConditionType;
use htc_machine::decide::Polling;
use htc_machine::facts::{Exit, JobState, JobStatus, Spec};
use htc_machine::indices::Indices;
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::status::indexes;
use htc_machine::transitions::{TRANSITIONS, Trigger};
use htc_machine::{Index, RequestKind};

use crate::given::world::{Fate, World};

fn rests(world: &World) -> bool {
    world.last.as_ref().is_some_and(|last| last.details.polling == Polling::Off && last.requeue_after.is_none())
}

/// So far that HTCondor has accepted its jobs.
fn submitted(jobs: u32) -> World {
    let mut world = World::new(jobs);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Submitted), "{:?}", world.reasons());
    world
}

/// So far that all its jobs run.
pub fn running(jobs: u32) -> World {
    let mut world = submitted(jobs);
    (0..jobs).for_each(|index| world.start(index));
    world.settle();
    world
}

/// So far that all has ended well and nothing is left to do.
fn completed() -> World {
    let mut world = running(1);
    world.end(0, Exit::Code(0));
    world.run();
    world
}

fn delete(mut world: World) -> World {
    world.facts.object.deleting = true;
    world.run();
    world
}

/// Lived on past its deadline.
fn expired(mut world: World) -> World {
    let queue = world.facts.object.spec.as_ref().unwrap().queue;
    world.facts.object.spec = Ok(Spec { queue, deadline: Some(Duration::from_secs(100)), ..Spec::default() });
    world.settle();
    world.run();
    world
}

fn set_suspend(world: &mut World, suspend: bool) {
    let queue = world.facts.object.spec.as_ref().unwrap().queue;
    world.facts.object.spec = Ok(Spec { queue, suspend, ..Spec::default() });
}

#[test]
fn htcjob_runs_from_creation_to_completion() {
    let world = completed();
    assert_eq!(world.reasons(), ["Pending", "Submitted", "Running", "Completed", "Fetched"]);
    assert_eq!(world.condition(ConditionType::Complete).as_deref(), Some("True AllSucceeded"));
    assert!(world.queue.is_empty() && rests(&world));
    let kinds: Vec<RequestKind> = world.requests.iter().map(|request| request.key.kind).collect();
    assert_eq!(kinds, [RequestKind::AttachFinalizer, RequestKind::Submit, RequestKind::Fetch, RequestKind::Tidy]);
}

#[test]
fn deadline_removes_unfinished_jobs() {
    let mut world = running(3);
    world.end(0, Exit::Code(0));
    world.settle();
    let world = expired(world);
    assert_eq!(world.phase(), Some(Phase::Completed));
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True DeadlineExceeded"));
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    assert_eq!((last.active, last.succeeded, last.failed), (0, 1, 2));
    assert_eq!(world.counts()[&RequestKind::Remove], 1);
}

#[test]
fn deadline_gives_up_unaccepted_jobs() {
    let mut world = World::new(3);
    world.fate = |index| if index == Index(0) { Fate::Accepted } else { Fate::Refused };
    world.facts.object.spec = Ok(Spec { queue: 3, deadline: Some(Duration::from_secs(30)), ..Spec::default() });
    world.settle();
    world.run();
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True DeadlineExceeded"));
    assert_eq!(world.facts.record.row.as_ref().unwrap().given_up, 2);
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    assert_eq!((last.active, last.succeeded, last.failed), (0, 0, 3));
}

#[test]
fn suspension_stops_the_deadline_clock() {
    let mut world = running(1);
    let spec = |suspend| Spec { queue: 1, suspend, deadline: Some(Duration::from_secs(100)), ..Spec::default() };
    world.facts.object.spec = Ok(spec(true));
    world.settle();
    world.wait(1000);
    world.settle();
    world.facts.object.spec = Ok(spec(false));
    world.settle();
    world.wait(80);
    world.settle();
    assert!(world.facts.record.row.as_ref().unwrap().cut_short.is_none());
    world.wait(30);
    world.settle();
    assert!(world.facts.record.row.as_ref().unwrap().cut_short.is_some());
}

#[test]
fn htcjob_is_deleted_after_its_ttl() {
    let mut world = completed();
    let ended = world.now;
    world.facts.object.spec = Ok(Spec { queue: 1, ttl: Some(Duration::from_secs(500)), ..Spec::default() });
    world.settle();
    assert!(!world.facts.object.deleting);
    world.run();
    assert!(world.gone() && world.now.since(ended) >= Duration::from_secs(400));
    assert_eq!(world.counts()[&RequestKind::DeleteObject], 1);
}

#[test]
fn one_failed_job_of_three_fails_the_htcjob() {
    let mut world = running(3);
    world.end(0, Exit::Code(0));
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Running));
    world.end(1, Exit::Signal(9));
    world.end(2, Exit::Code(0));
    world.run();
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True JobsFailed"));
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    assert_eq!((last.active, last.succeeded, last.failed), (0, 2, 1));
    assert_eq!(last.detail, "1 of 3 jobs failed; job 1 (1.1) was killed by signal 9");
    assert!(world.queue.is_empty() && rests(&world));
}

#[test]
fn failures_are_counted_by_kind() {
    let mut world = running(6);
    for (index, exit) in (0..).zip([Exit::Code(0), Exit::Signal(9), Exit::Code(1), Exit::Code(7), Exit::Code(1)]) {
        world.end(index, exit);
    }
    world.end(5, Exit::Code(0));
    world.run();
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    let said = "4 of 6 jobs failed: exit code 1 (2), exit code 7 (1), signal 9 (1); job 1 (1.1) was killed by signal 9";
    assert_eq!(last.detail, said);
    let [succeeded, failed] = indexes(&world.facts.record, &Indices::first(6)).map(|set| set.to_string());
    assert_eq!([succeeded.as_str(), failed.as_str()], ["0,5", "1-4"]);
}

#[test]
fn only_indexes_of_the_spec_run() {
    let asked_for: Indices = "1,3-4".parse().unwrap();
    let mut world = World::new(6);
    world.facts.object.spec = Ok(Spec { queue: 6, indexes: Some(asked_for.clone()), ..Spec::default() });
    world.settle();
    asked_for.iter().for_each(|index| world.start(index.0));
    world.settle();
    world.end(1, Exit::Code(0));
    world.end(3, Exit::Code(2));
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Running));
    world.end(4, Exit::Code(0));
    world.run();
    assert_eq!(world.facts.record.attempted, asked_for);
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    assert_eq!((last.active, last.succeeded, last.failed), (0, 2, 1));
    assert_eq!(indexes(&world.facts.record, &asked_for).map(|set| set.to_string()), ["1,4", "3"]);
    assert!(rests(&world) && delete(world).gone());
}

#[test]
fn parallelism_is_never_exceeded() {
    let mut world = World::new(5);
    let spec = |most| Ok(Spec { queue: 5, parallelism: Some(most), ..Spec::default() });
    let open = |world: &World| -> Vec<u32> {
        let open = world.queue.iter().filter(|ad| ad.status != JobStatus::Completed);
        open.map(|ad| ad.index.0).collect()
    };
    world.facts.object.spec = spec(2);
    world.settle();
    assert_eq!(open(&world), [0, 1]);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False ParallelismReached"));
    assert_eq!(
        world.last.as_ref().map(|last| last.details.polling.clone()),
        Some(Polling::OnChange),
        "it waits for its own jobs"
    );
    world.end(1, Exit::Code(0));
    world.settle();
    assert_eq!(open(&world), [0, 2]);
    world.facts.object.spec = spec(0);
    world.end(0, Exit::Code(0));
    world.settle();
    assert_eq!(open(&world), [2], "running jobs go on");
    world.facts.object.spec = spec(9);
    world.settle();
    assert_eq!(open(&world), [2, 3, 4]);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("True Accepted"));
    (2..5).for_each(|index| world.end(index, Exit::Code(0)));
    world.run();
    assert_eq!(world.condition(ConditionType::Complete).as_deref(), Some("True AllSucceeded"));
    let told = ["Pending", "Submitted", "Running", "AllSubmitted", "Completed", "Fetched"];
    assert_eq!(world.reasons(), told, "no Event for each part");
    assert!(delete(world).gone());
}

/// What was tried takes the places of what was not until it is known that HTCondor has none of it.
#[test]
fn refused_jobs_are_resubmitted_before_others() {
    let mut world = World::new(4);
    world.fate = |_| Fate::Refused;
    world.facts.object.spec = Ok(Spec { queue: 4, parallelism: Some(2), ..Spec::default() });
    world.settle();
    assert_eq!(world.facts.record.attempted.to_string(), "0-1");
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.queue.iter().map(|ad| ad.index.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False ParallelismReached"));
}

/// What fails while it is suspended counts when it is resumed, and it is told that it is.
#[test]
fn htcjob_resumed_with_too_many_failures_fails() {
    let mut world = running(2);
    let spec = |suspend| Ok(Spec { queue: 2, suspend, max_failed: Some(0), ..Spec::default() });
    world.facts.object.spec = spec(true);
    world.settle();
    world.remove_by_hand(0);
    world.settle();
    assert_eq!(world.condition(ConditionType::Suspended).as_deref(), Some("True Suspended"));
    world.facts.object.spec = spec(false);
    world.run();
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True MaxFailedIndexesExceeded"));
    assert_eq!(world.condition(ConditionType::Suspended).as_deref(), Some("False Resumed"));
}

/// Of two that were tried one may still be accepted when there is a place for one only.
#[test]
fn stuck_job_never_exceeds_a_lowered_parallelism() {
    let mut world = World::new(2);
    let spec = |most| Ok(Spec { queue: 2, parallelism: Some(most), ..Spec::default() });
    world.fate = |index| if index == Index(0) { Fate::Refused } else { Fate::Stuck };
    world.facts.object.spec = spec(2);
    world.settle();
    world.fate = |_| Fate::Accepted;
    world.facts.object.spec = spec(1);
    world.run();
    let kinds: Vec<RequestKind> = world.requests.iter().map(|request| request.key.kind).collect();
    assert_eq!(kinds, [RequestKind::AttachFinalizer, RequestKind::Submit, RequestKind::Remove, RequestKind::Submit]);
    assert_eq!(world.queue.len(), 1);
}

#[test]
fn max_failed_indexes_ends_the_remaining_jobs() {
    let mut world = World::new(6);
    world.facts.object.spec = Ok(Spec { queue: 6, parallelism: Some(4), max_failed: Some(1), ..Spec::default() });
    world.settle();
    world.end(0, Exit::Code(3));
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Running), "one may fail");
    world.end(2, Exit::Signal(9));
    world.run();
    assert_eq!(world.phase(), Some(Phase::Completed));
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True MaxFailedIndexesExceeded"));
    let last = world.transitions.iter().find(|told| told.trigger == Trigger::Failed).unwrap();
    assert_eq!((last.active, last.succeeded, last.failed), (0, 0, 6));
    assert!(world.reasons().contains(&"MaxFailedIndexesExceeded"));
    assert_eq!(world.facts.record.row.as_ref().unwrap().given_up, 1, "the last was never submitted");
    assert!(delete(world).gone());
}

#[test]
fn deletion_in_each_phase_leaves_no_job() {
    let mut held = submitted(2);
    held.change(0, |ad| {
        ad.status = JobStatus::Held;
        ad.hold.code = 13;
    });
    held.settle();
    let mut staging = World::new(2);
    staging.fate = |_| Fate::Stuck;
    staging.settle();
    assert_eq!(staging.condition(ConditionType::Submitted).as_deref(), Some("False Staging"));
    for world in [submitted(2), running(2), held, staging, completed()] {
        let phase = world.phase();
        let world = delete(world);
        assert!(world.gone() && world.queue.is_empty(), "{phase:?}: {:?}", world.reasons());
        let tail: Vec<Trigger> = world.transitions.iter().map(|told| told.trigger).collect();
        assert_eq!(tail[tail.len() - 2..], [Trigger::Deleted, Trigger::Gone], "{phase:?}");
        assert_eq!(world.counts()[&RequestKind::ReleaseFinalizer], 1);
        assert_eq!(world.counts()[&RequestKind::Remove], 1, "{phase:?}");
    }
    let mut new = World::new(1);
    new.step();
    let new = delete(new);
    assert!(new.gone());
    assert!(!new.counts().contains_key(&RequestKind::Remove), "there was nothing to remove");
}

#[test]
fn missing_job_is_resubmitted_alone() {
    let mut world = World::new(3);
    world.fate = |index| if index == Index(1) { Fate::Stuck } else { Fate::Accepted };
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Submitted));
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.reasons(), ["Pending", "Submitted", "AllSubmitted"]);
    assert_eq!(world.counts()[&RequestKind::Submit], 2);
    let ids: Vec<String> = world.facts.record.jobs.values().map(|job| job.id.to_string()).collect();
    assert_eq!(ids, ["1.0", "2.0", "1.2"]);
    assert_eq!(world.queue.len(), 3);
}

#[test]
fn missing_job_is_resubmitted_while_others_run() {
    let mut world = World::new(2);
    world.fate = |index| if index == Index(1) { Fate::Stuck } else { Fate::Accepted };
    world.settle();
    world.start(0);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Running));
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.reasons(), ["Pending", "Submitted", "Running", "AllSubmitted"]);
}

#[test]
fn repeated_refusal_is_one_event() {
    let mut world = World::new(1);
    world.fate = |_| Fate::Refused;
    world.settle();
    for _ in 0..6 {
        let again = world.last.as_ref().and_then(|last| last.requeue_after).unwrap();
        world.wait(again.as_secs());
        world.settle();
    }
    assert!(world.counts()[&RequestKind::Submit] >= 5, "{:?}", world.counts());
    assert_eq!(world.reasons(), ["Pending", "SubmitRefused"]);
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.reasons(), ["Pending", "SubmitRefused", "Submitted"]);
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("True Accepted"));
}

#[test]
fn schedd_outage_is_one_event_and_its_end_another() {
    let mut world = running(1);
    world.away = true;
    for _ in 0..3 {
        world.wait(100);
        world.settle();
    }
    world.away = false;
    world.settle();
    world.settle();
    assert_eq!(world.reasons()[3..], ["ScheddUnreachable", "Tracking"]);
}

#[test]
fn refused_parts_of_a_large_htcjob_are_all_resubmitted() {
    let mut world = World::new(5);
    world.settings.jobs_per_attempt = 2;
    world.fate = |_| Fate::Refused;
    world.run();
    assert!(world.facts.record.jobs.is_empty());
    let tried = world.counts()[&RequestKind::Submit];
    assert!(tried > 4, "{tried}");
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.facts.record.jobs.len(), 5, "{:?}", world.condition(ConditionType::Submitted));
    let indices: BTreeSet<Index> = world.queue.iter().map(|ad| ad.index).collect();
    assert_eq!((indices.len(), world.queue.len()), (5, 5));
}

#[test]
fn htcjob_is_suspended_and_resumed() {
    let mut world = World::new(2);
    set_suspend(&mut world, true);
    world.settle();
    assert_eq!(world.reasons(), ["Pending", "Suspended"]);
    assert!(world.queue.is_empty() && rests(&world));
    set_suspend(&mut world, false);
    world.settle();
    world.start(0);
    world.settle();
    set_suspend(&mut world, true);
    world.run();
    assert!(world.queue.iter().all(|ad| ad.hold.is_ours()), "{:?}", world.queue);
    assert_eq!(world.phase(), Some(Phase::Running));
    assert_eq!(world.condition(ConditionType::Held), None);
    let started = |world: &World| world.facts.record.row.as_ref().and_then(|known| known.started).unwrap();
    let first = started(&world);
    world.wait(100);
    world.settle();
    assert_eq!(started(&world), first);
    let resumed = world.now;
    set_suspend(&mut world, false);
    world.run();
    assert!(started(&world) >= resumed, "the start is the resumption, as in batch/v1");
    assert!(world.queue.iter().all(|ad| ad.status == JobStatus::Idle));
    assert_eq!(world.condition(ConditionType::Suspended).as_deref(), Some("False Resumed"));
}

#[test]
fn suspended_htcjob_with_an_open_attempt_is_not_resubmitted() {
    for fate in [|_| Fate::Refused, |_| Fate::Stuck] {
        let mut world = World::new(1);
        world.fate = fate;
        world.settle();
        let tried = world.counts()[&RequestKind::Submit];
        set_suspend(&mut world, true);
        world.settle();
        world.wait(1000);
        world.settle();
        assert_eq!(world.counts()[&RequestKind::Submit], tried, "nothing is submitted while it is suspended");
        set_suspend(&mut world, false);
        world.fate = |_| Fate::Accepted;
        world.run();
        assert_eq!(world.phase(), Some(Phase::Submitted));
    }
}

#[test]
fn job_removed_by_hand_fails_as_removed() {
    let mut world = running(2);
    world.remove_by_hand(0);
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Running));
    assert!(matches!(world.facts.record.jobs[&Index(0)].state, JobState::Ended(Outcome::Removed(_))));
    world.remove_by_hand(1);
    world.run();
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True Removed"));
    assert!(rests(&world));
}

#[test]
fn idle_job_removed_by_hand_has_no_output_to_fetch() {
    let mut world = submitted(1);
    world.remove_by_hand(0);
    world.run();
    assert_eq!(world.reasons()[2..4], ["Failed", "NothingToFetch"]);
}

#[test]
fn restarted_job_is_reported_as_ran_again() {
    let mut world = running(2);
    world.end(0, Exit::Code(1));
    world.settle();
    world.start(0);
    world.settle();
    assert_eq!(world.reasons(), ["Pending", "Submitted", "Running", "RanAgain"]);
}

#[test]
fn job_that_ends_without_an_observed_start_completes() {
    let mut world = submitted(1);
    world.change(0, |ad| {
        ad.status = JobStatus::Completed;
        ad.exit = Some(Exit::Code(0));
    });
    world.settle();
    assert_eq!(world.reasons()[2], "Completed");
}

#[test]
fn lost_queue_fails_the_htcjob_as_lost() {
    let mut world = running(2);
    world.lose_queue();
    world.settle();
    assert_eq!(world.condition(ConditionType::Tracked).as_deref(), Some("False AnotherSchedd"));
    assert_eq!(world.phase(), Some(Phase::Running), "not before it has been seen for a while");
    world.wait(300);
    world.run();
    assert_eq!(world.condition(ConditionType::Failed).as_deref(), Some("True JobsLost"));
    assert_eq!(world.counts()[&RequestKind::Submit], 1, "never submitted again");
    let world = delete(world);
    assert!(world.gone());
}

#[test]
fn lost_queue_does_not_block_deletion_forever() {
    let mut world = running(1);
    world.lose_queue();
    world.facts.object.deleting = true;
    world.settle();
    assert!(!world.gone(), "another schedd may answer to the name");
    world.wait(300);
    world.run();
    assert!(world.gone());
}

#[test]
fn operator_killed_during_submission_finds_the_jobs() {
    let mut world = World::new(1);
    world.step();
    world.step();
    // The end of the submitter was not recorded.
    world.facts.record.attempts[0].dead_since = None;
    world.facts.record.requests.get_mut(&RequestKind::Submit).unwrap().finished = None;
    world.settle();
    assert_eq!(world.phase(), Some(Phase::Submitted));
    assert_eq!(world.counts()[&RequestKind::Submit], 1);
}

#[test]
fn operator_killed_before_submission_resubmits_after_the_deadline() {
    let mut world = World::new(1);
    world.fate = |_| Fate::Refused;
    world.step();
    world.step();
    world.facts.record.attempts[0].dead_since = None;
    world.facts.record.attempts[0].refusal = None;
    world.settle();
    assert_eq!(world.condition(ConditionType::Submitted).as_deref(), Some("False SubmitterMayLive"));
    let began = world.now;
    world.fate = |_| Fate::Accepted;
    world.run();
    assert_eq!(world.phase(), Some(Phase::Submitted));
    assert_eq!(world.counts()[&RequestKind::Submit], 2);
    assert!(world.now.since(began).as_secs() >= 110, "its time limit and a margin");
    assert_eq!(world.reasons(), ["Pending", "SubmitterMayLive", "Submitted"]);
}

/// A user removes its only job while a submission is tried in vain.
fn removed_before_it_is_submitted() -> World {
    let mut world = World::new(1);
    world.fate = |_| Fate::Refused;
    world.settle();
    let wish = RequestedAction::new(JobAction::Remove, world.now);
    world
        .facts
        .record
        .requested_actions
        .insert(Index(0), StoredAction { number: 1, action: wish, unreported: Some("alice".to_owned()) });
    world.run();
    assert_eq!(world.phase(), Some(Phase::Completed));
    world
}

/// Every row of the table is made by some life, and no life makes a transition that the table lacks (the world checks that).
#[test]
fn every_transition_of_the_table_occurs() {
    let mut lives = vec![delete(World::new(1)), delete(submitted(1)), delete(running(1)), delete(completed())];
    // Started but not deleted before it had its row.
    let mut deleted_at_once = World::new(1);
    deleted_at_once.step();
    lives.push(delete(deleted_at_once));
    lives.push(removed_before_it_is_submitted());
    for started in [false, true] {
        // The last is accepted, in both phases; a condition changes in both.
        let mut world = World::new(2);
        world.fate = |index| if index == Index(1) { Fate::Stuck } else { Fate::Accepted };
        world.settle();
        if started {
            world.start(0);
        }
        world.settle();
        world.fate = |_| Fate::Accepted;
        world.run();
        world.away = true;
        world.settle();
        world.ask();
        world.settle();
        world.away = false;
        world.settle();
        // It ends with success or failure, with and without a start that was seen.
        for index in 0..2 {
            world.change(index, |ad| {
                ad.status = JobStatus::Completed;
                ad.exit = Some(Exit::Code(i32::from(!started)));
            });
        }
        world.run();
        lives.push(world);
    }
    let mut failed = running(2);
    failed.end(0, Exit::Code(7));
    failed.settle();
    failed.start(0);
    failed.settle();
    failed.end(0, Exit::Code(7));
    failed.end(1, Exit::Code(7));
    failed.run();
    lives.push(failed);
    let mut unseen = submitted(1);
    unseen.change(0, |ad| {
        ad.status = JobStatus::Completed;
        ad.exit = Some(Exit::Code(0));
    });
    unseen.run();
    lives.push(unseen);
    let mut refused = World::new(1);
    refused.fate = |_| Fate::Refused;
    refused.settle();
    lives.push(refused);
    let mut stuck = running(1);
    stuck.facts.object.deleting = true;
    stuck.away = true;
    stuck.settle();
    stuck.ask();
    stuck.settle();
    lives.push(stuck);
    for world in [submitted(1), running(1)] {
        lives.push(expired(world));
    }
    for mut world in [submitted(2), running(2)] {
        world.facts.object.spec = Ok(Spec { queue: 2, max_failed: Some(0), ..Spec::default() });
        world.remove_by_hand(0);
        world.run();
        lives.push(world);
    }
    let seen: Vec<_> = lives
        .iter()
        .flat_map(|world| world.transitions.iter().map(|told| (told.from, told.trigger, told.to)))
        .collect();
    let never: Vec<String> = TRANSITIONS
        .iter()
        .filter(|row| !seen.contains(&(row.from, row.trigger, row.to)))
        .map(|row| format!("{:?} --{}--> {:?}", row.from, row.trigger, row.to))
        .collect();
    assert!(never.is_empty(), "rows that decide never makes: {never:#?}");
}
