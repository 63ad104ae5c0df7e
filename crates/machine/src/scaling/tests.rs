use rstest::rstest;

use super::*;

const NOW: i64 = 1_000_000;

fn worker(number: u32, pod: PodState, slot: SlotState) -> Worker {
    Worker { number, pod_state: pod, slot_state: slot, up_to_date: true, drain_accepted: false }
}

fn idle(number: u32, seconds: i64) -> Worker {
    worker(number, PodState::Running, SlotState::Idle { since: NOW - seconds })
}

fn busy(number: u32) -> Worker {
    worker(number, PodState::Running, SlotState::Busy)
}

fn waiting(number: u32) -> Worker {
    worker(number, PodState::Waiting { since: NOW - 1000 }, SlotState::Unseen)
}

/// A worker whose containers have not started for `seconds`.
fn fresh(number: u32, seconds: i64) -> Worker {
    worker(number, PodState::Waiting { since: NOW - seconds }, SlotState::Unseen)
}

/// A worker that the watch has not reported yet.
fn made(number: u32, sure: bool) -> Worker {
    worker(number, PodState::Requested { confirmed: sure }, SlotState::Unseen)
}

fn unseen(number: u32) -> Worker {
    worker(number, PodState::Running, SlotState::Unseen)
}

/// A worker that the collector has not named for long.
fn absent(number: u32, again: bool) -> Worker {
    worker(number, PodState::Running, SlotState::Absent { confirmed: again })
}

fn evidence(goal: Goal, workers: Vec<Worker>) -> WorkerEvidence {
    WorkerEvidence {
        now: NOW,
        goal,
        workers,
        answer: AnswerQuality::Known,
        deaths: EarlyExits::default(),
        taken_numbers: BTreeSet::new(),
        max_create: u32::MAX,
    }
}

fn follow(needed: u32) -> Goal {
    Goal::Autoscale { needed, min: 1, max: 5, scale_down_after: 300 }
}

#[rstest]
#[case::no_worker_yet(Goal::Replicas(2), vec![], ScalePlan { create: vec![0, 1], ..ScalePlan::default() })]
#[case::waiting_pod_counts(Goal::Replicas(2), vec![waiting(0), busy(1)], ScalePlan::default())]
#[case::unseen_worker_counts(Goal::Replicas(1), vec![unseen(3)], ScalePlan::default())]
#[case::a_gap_is_filled(Goal::Replicas(3), vec![busy(0), busy(2)], ScalePlan { create: vec![1], ..ScalePlan::default() })]
#[case::at_least_min(follow(0), vec![], ScalePlan { create: vec![0], ..ScalePlan::default() })]
#[case::scale_up_at_once(follow(3), vec![busy(0)], ScalePlan { create: vec![1, 2], ..ScalePlan::default() })]
#[case::at_most_max(follow(100), vec![busy(0), busy(1), busy(2), busy(3)], ScalePlan { create: vec![4], ..ScalePlan::default() })]
#[case::longest_idle_is_drained(follow(1), vec![idle(0, 400), idle(1, 500)], ScalePlan { drain: vec![(1, Drain::IfIdle)], ..ScalePlan::default() })]
#[case::waiting_pod_is_deleted_first(Goal::Replicas(1), vec![idle(0, 9), waiting(1)], ScalePlan { delete_unstarted: vec![1], ..ScalePlan::default() })]
#[case::idle_too_briefly(follow(1), vec![idle(0, 200), idle(1, 100)], ScalePlan { requeue_at: Some(NOW + 100), ..ScalePlan::default() })]
#[case::busy_worker_stays_when_autoscaled(follow(1), vec![busy(0), busy(1)], ScalePlan::default())]
#[case::busy_worker_is_drained_for_fewer_replicas(Goal::Replicas(1), vec![busy(0), busy(1)], ScalePlan { drain: vec![(1, Drain::Graceful)], ..ScalePlan::default() })]
#[case::idle_worker_is_drained_before_a_busy_one(Goal::Replicas(1), vec![idle(0, 0), busy(1)], ScalePlan { drain: vec![(0, Drain::IfIdle)], ..ScalePlan::default() })]
#[case::last_waiting_pod_is_deleted_first(Goal::Replicas(1), vec![waiting(0), waiting(1)], ScalePlan { delete_unstarted: vec![1], ..ScalePlan::default() })]
#[case::young_waiting_pod_stays(follow(1), vec![busy(0), fresh(1, 10)], ScalePlan { requeue_at: Some(NOW + 290), ..ScalePlan::default() })]
#[case::idle_worker_is_drained_beside_a_young_pod(follow(1), vec![fresh(0, 10), idle(1, 400)], ScalePlan { drain: vec![(1, Drain::IfIdle)], requeue_at: Some(NOW + 290), ..ScalePlan::default() })]
#[case::requeue_at_the_next_due_worker(follow(1), vec![fresh(0, 10), idle(1, 200), busy(2)], ScalePlan { requeue_at: Some(NOW + 100), ..ScalePlan::default() })]
#[case::max_precedes_min(Goal::Autoscale { needed: 9, min: 3, max: 2, scale_down_after: 0 }, vec![], ScalePlan { create: vec![0, 1], ..ScalePlan::default() })]
#[case::unseen_worker_is_not_deleted(Goal::Replicas(0), vec![unseen(0)], ScalePlan::default())]
fn pool_is_scaled_to_its_goal(#[case] goal: Goal, #[case] workers: Vec<Worker>, #[case] expected: ScalePlan) {
    assert_eq!(scale(&evidence(goal, workers)), expected);
}

#[rstest]
#[case::replaced(Goal::Replicas(1), vec![absent(0, false)], ScalePlan { create: vec![1], ..ScalePlan::default() })]
#[case::deleted_once_confirmed_absent(Goal::Replicas(1), vec![absent(0, true), busy(1)], ScalePlan { delete_unknown: vec![0], ..ScalePlan::default() })]
#[case::deleted_with_goal_zero(Goal::Replicas(0), vec![absent(0, true)], ScalePlan { delete_unknown: vec![0], ..ScalePlan::default() })]
#[case::outdated_is_deleted(Goal::Replicas(0), vec![Worker { up_to_date: false, ..absent(0, true) }], ScalePlan { delete_unknown: vec![0], ..ScalePlan::default() })]
#[case::draining_is_not_deleted(Goal::Replicas(0), vec![Worker { drain_accepted: true, ..absent(0, true) }], ScalePlan::default())]
#[case::terminating_is_not_deleted(Goal::Replicas(0), vec![Worker { pod_state: PodState::Terminating, ..absent(0, true) }], ScalePlan::default())]
fn worker_that_does_not_join_counts_as_dead(
    #[case] goal: Goal,
    #[case] workers: Vec<Worker>,
    #[case] expected: ScalePlan,
) {
    let mut evidence = evidence(goal, workers);
    assert_eq!(scale(&evidence), expected);
    evidence.answer = AnswerQuality::Young;
    assert!(scale(&evidence).delete_unknown.is_empty());
}

#[rstest]
fn no_worker_is_drained_without_a_reliable_answer(
    #[values(AnswerQuality::Young, AnswerQuality::Unknown)] answer: AnswerQuality,
) {
    let outdated = |worker: Worker| Worker { up_to_date: false, ..worker };
    let workers = vec![idle(0, 900), busy(1), waiting(2), outdated(idle(4, 900)), outdated(busy(5))];
    let mut evidence = evidence(Goal::Replicas(1), workers);
    evidence.answer = answer;
    let plan = scale(&evidence);
    assert_eq!(plan, ScalePlan { delete_unstarted: vec![2], ..ScalePlan::default() });
}

#[test]
fn workers_are_created_in_batches_with_free_numbers() {
    let mut evidence = evidence(Goal::Replicas(120), vec![busy(1)]);
    assert_eq!(scale(&evidence).create.len(), 50);
    (evidence.max_create, evidence.taken_numbers) = (2, BTreeSet::from([0, 3]));
    assert_eq!(scale(&evidence).create, vec![2, 4]);
}

#[test]
fn leaving_worker_is_replaced_and_drained_once() {
    let told = Worker { drain_accepted: true, ..busy(0) };
    let draining = worker(1, PodState::Running, SlotState::Draining);
    let leaving = worker(2, PodState::Terminating, SlotState::Busy);
    let plan = scale(&evidence(Goal::Replicas(1), vec![told, draining, leaving]));
    assert_eq!(plan, ScalePlan { create: vec![3], ..ScalePlan::default() });
}

#[test]
fn ended_worker_is_deleted_whatever_the_collector_answers() {
    let ended = worker(0, PodState::Ended, SlotState::Busy);
    let mut evidence = evidence(Goal::Replicas(1), vec![ended, busy(1)]);
    evidence.answer = AnswerQuality::Unknown;
    assert_eq!(scale(&evidence), ScalePlan { delete_ended: vec![0], ..ScalePlan::default() });
}

#[test]
fn ended_worker_is_replaced() {
    let plan = scale(&evidence(Goal::Replicas(1), vec![worker(0, PodState::Ended, SlotState::Idle { since: NOW })]));
    assert_eq!(plan, ScalePlan { create: vec![1], delete_ended: vec![0], ..ScalePlan::default() });
}

#[rstest]
#[case::confirmed_counts(Goal::Replicas(2), vec![busy(0), made(1, true)], ScalePlan::default())]
#[case::confirmed_keeps_its_number(Goal::Replicas(2), vec![made(0, true)], ScalePlan { create: vec![1], ..ScalePlan::default() })]
#[case::confirmed_is_not_withdrawn_unseen(Goal::Replicas(1), vec![idle(0, 9), made(1, true)], ScalePlan::default())]
#[case::unconfirmed_is_requested_again(Goal::Replicas(2), vec![busy(0), made(1, false)], ScalePlan { create: vec![1], ..ScalePlan::default() })]
#[case::unconfirmed_is_requested_again_first(Goal::Replicas(3), vec![made(1, false)], ScalePlan { create: vec![1, 0, 2], ..ScalePlan::default() })]
#[case::unconfirmed_is_dropped_if_not_needed(Goal::Replicas(1), vec![busy(0), made(1, false)], ScalePlan::default())]
#[case::idle_worker_stays_beside_unconfirmed(Goal::Replicas(1), vec![idle(0, 9), made(1, false)], ScalePlan::default())]
#[case::outdated_unconfirmed_is_not_requested_again(
    Goal::Replicas(1),
    vec![Worker { up_to_date: false, ..made(0, false) }],
    ScalePlan { create: vec![1], ..ScalePlan::default() }
)]
fn requested_worker_counts_before_it_is_observed(
    #[case] goal: Goal,
    #[case] workers: Vec<Worker>,
    #[case] expected: ScalePlan,
) {
    assert_eq!(scale(&evidence(goal, workers)), expected);
}

#[test]
fn outdated_workers_are_replaced_and_finish_their_jobs() {
    let old = |worker: Worker| Worker { up_to_date: false, ..worker };
    let plan =
        scale(&evidence(Goal::Replicas(2), vec![old(busy(0)), old(idle(1, 0)), old(waiting(2)), old(unseen(3))]));
    let expected = ScalePlan {
        create: vec![4, 5],
        delete_unstarted: vec![2],
        drain: vec![(0, Drain::Graceful), (1, Drain::IfIdle)],
        ..ScalePlan::default()
    };
    assert_eq!(plan, expected);
}

#[rstest]
#[case(1, 10)]
#[case(2, 20)]
#[case(5, 160)]
#[case(6, 300)]
#[case(1000, 300)]
fn workers_that_exit_early_are_recreated_with_backoff(#[case] count: u32, #[case] pause: i64) {
    let mut evidence = evidence(Goal::Replicas(1), vec![]);
    evidence.deaths = EarlyExits { count, last: NOW - pause + 1 };
    let held = scale(&evidence);
    assert_eq!((held.create, held.backoff_until, held.requeue_at), (vec![], Some(NOW + 1), Some(NOW + 1)));
    evidence.deaths.last -= 1;
    assert_eq!(scale(&evidence).create, vec![0]);
}
