use rstest::rstest;

use super::*;

mod world;

const NOW: i64 = 1_000_000;

fn worker(number: u32, pod: Pod, slot: Slot) -> Worker {
    Worker { number, pod, slot, current: true, drained: false }
}

fn idle(number: u32, seconds: i64) -> Worker {
    worker(number, Pod::Running, Slot::Idle { since: NOW - seconds })
}

fn busy(number: u32) -> Worker {
    worker(number, Pod::Running, Slot::Busy)
}

fn waiting(number: u32) -> Worker {
    worker(number, Pod::Waiting { since: NOW - 1000 }, Slot::Unseen)
}

/// Its containers have not begun for so many seconds.
fn fresh(number: u32, seconds: i64) -> Worker {
    worker(number, Pod::Waiting { since: NOW - seconds }, Slot::Unseen)
}

/// The watch has not shown it yet.
fn made(number: u32, sure: bool) -> Worker {
    worker(number, Pod::Made { sure }, Slot::Unseen)
}

fn unseen(number: u32) -> Worker {
    worker(number, Pod::Running, Slot::Unseen)
}

/// The collector has not named it for long.
fn absent(number: u32, again: bool) -> Worker {
    worker(number, Pod::Running, Slot::Absent { again })
}

fn evidence(goal: Goal, workers: Vec<Worker>) -> Evidence {
    Evidence {
        now: NOW,
        goal,
        workers,
        answer: Answer::Known,
        deaths: Deaths::default(),
        taken: BTreeSet::new(),
        room: u32::MAX,
    }
}

fn follow(needed: u32) -> Goal {
    Goal::Follow { needed, min: 1, max: 5, after: 300 }
}

#[rstest]
#[case::none_yet(Goal::Replicas(2), vec![], Plan { make: vec![0, 1], ..Plan::default() })]
#[case::what_waits_counts(Goal::Replicas(2), vec![waiting(0), busy(1)], Plan::default())]
#[case::what_is_unseen_counts(Goal::Replicas(1), vec![unseen(3)], Plan::default())]
#[case::a_gap_is_filled(Goal::Replicas(3), vec![busy(0), busy(2)], Plan { make: vec![1], ..Plan::default() })]
#[case::the_lowest_that_is_needed(follow(0), vec![], Plan { make: vec![0], ..Plan::default() })]
#[case::up_at_once(follow(3), vec![busy(0)], Plan { make: vec![1, 2], ..Plan::default() })]
#[case::at_most(follow(100), vec![busy(0), busy(1), busy(2), busy(3)], Plan { make: vec![4], ..Plan::default() })]
#[case::the_longest_idle_goes(follow(1), vec![idle(0, 400), idle(1, 500)], Plan { drain: vec![(1, Drain::IfIdle)], ..Plan::default() })]
#[case::the_first_to_go_is_one_that_waits(Goal::Replicas(1), vec![idle(0, 9), waiting(1)], Plan { withdraw: vec![1], ..Plan::default() })]
#[case::not_yet(follow(1), vec![idle(0, 200), idle(1, 100)], Plan { again: Some(NOW + 100), ..Plan::default() })]
#[case::one_that_has_jobs_stays(follow(1), vec![busy(0), busy(1)], Plan::default())]
#[case::unless_fewer_are_asked_for(Goal::Replicas(1), vec![busy(0), busy(1)], Plan { drain: vec![(1, Drain::Graceful)], ..Plan::default() })]
#[case::those_without_jobs_first(Goal::Replicas(1), vec![idle(0, 0), busy(1)], Plan { drain: vec![(0, Drain::IfIdle)], ..Plan::default() })]
#[case::the_last_that_waits_goes_first(Goal::Replicas(1), vec![waiting(0), waiting(1)], Plan { withdraw: vec![1], ..Plan::default() })]
#[case::one_that_waits_may_still_be_needed(follow(1), vec![busy(0), fresh(1, 10)], Plan { again: Some(NOW + 290), ..Plan::default() })]
#[case::meanwhile_another_goes(follow(1), vec![fresh(0, 10), idle(1, 400)], Plan { drain: vec![(1, Drain::IfIdle)], again: Some(NOW + 290), ..Plan::default() })]
#[case::the_next_that_is_due(follow(1), vec![fresh(0, 10), idle(1, 200), busy(2)], Plan { again: Some(NOW + 100), ..Plan::default() })]
#[case::most_counts_more_than_fewest(Goal::Follow { needed: 9, min: 3, max: 2, after: 0 }, vec![], Plan { make: vec![0, 1], ..Plan::default() })]
#[case::none_that_is_unseen(Goal::Replicas(0), vec![unseen(0)], Plan::default())]
fn a_pool_is_as_large_as_it_should_be(#[case] goal: Goal, #[case] workers: Vec<Worker>, #[case] expected: Plan) {
    assert_eq!(scale(&evidence(goal, workers)), expected);
}

#[rstest]
#[case::it_is_replaced(Goal::Replicas(1), vec![absent(0, false)], Plan { make: vec![1], ..Plan::default() })]
#[case::and_goes_if_it_is_still_absent(Goal::Replicas(1), vec![absent(0, true), busy(1)], Plan { discard: vec![0], ..Plan::default() })]
#[case::also_where_none_is_wanted(Goal::Replicas(0), vec![absent(0, true)], Plan { discard: vec![0], ..Plan::default() })]
#[case::and_of_another_template(Goal::Replicas(0), vec![Worker { current: false, ..absent(0, true) }], Plan { discard: vec![0], ..Plan::default() })]
#[case::but_not_one_that_drains(Goal::Replicas(0), vec![Worker { drained: true, ..absent(0, true) }], Plan::default())]
#[case::nor_one_that_is_deleted(Goal::Replicas(0), vec![Worker { pod: Pod::Leaving, ..absent(0, true) }], Plan::default())]
fn a_worker_that_does_not_join_counts_as_dead(
    #[case] goal: Goal,
    #[case] workers: Vec<Worker>,
    #[case] expected: Plan,
) {
    let mut evidence = evidence(goal, workers);
    assert_eq!(scale(&evidence), expected);
    evidence.answer = Answer::Young;
    assert!(scale(&evidence).discard.is_empty());
}

#[rstest]
fn nothing_is_drained_on_an_answer_that_is_worth_nothing(#[values(Answer::Young, Answer::Unknown)] answer: Answer) {
    let outdated = |worker: Worker| Worker { current: false, ..worker };
    let workers = vec![idle(0, 900), busy(1), waiting(2), outdated(idle(4, 900)), outdated(busy(5))];
    let mut evidence = evidence(Goal::Replicas(1), workers);
    evidence.answer = answer;
    let plan = scale(&evidence);
    assert_eq!(plan, Plan { withdraw: vec![2], ..Plan::default() });
}

#[test]
fn some_at_a_time_as_there_is_room_and_by_numbers_that_are_free() {
    let mut evidence = evidence(Goal::Replicas(120), vec![busy(1)]);
    assert_eq!(scale(&evidence).make.len(), 50);
    (evidence.room, evidence.taken) = (2, BTreeSet::from([0, 3]));
    assert_eq!(scale(&evidence).make, vec![2, 4]);
}

#[test]
fn what_goes_is_replaced_and_not_told_twice() {
    let told = Worker { drained: true, ..busy(0) };
    let draining = worker(1, Pod::Running, Slot::Draining);
    let leaving = worker(2, Pod::Leaving, Slot::Busy);
    let plan = scale(&evidence(Goal::Replicas(1), vec![told, draining, leaving]));
    assert_eq!(plan, Plan { make: vec![3], ..Plan::default() });
}

#[test]
fn what_has_ended_is_removed_whatever_htcondor_says() {
    let ended = worker(0, Pod::Ended, Slot::Busy);
    let mut evidence = evidence(Goal::Replicas(1), vec![ended, busy(1)]);
    evidence.answer = Answer::Unknown;
    assert_eq!(scale(&evidence), Plan { remove: vec![0], ..Plan::default() });
}

#[test]
fn what_has_ended_is_replaced() {
    let plan = scale(&evidence(Goal::Replicas(1), vec![worker(0, Pod::Ended, Slot::Idle { since: NOW })]));
    assert_eq!(plan, Plan { make: vec![1], remove: vec![0], ..Plan::default() });
}

#[rstest]
#[case::one_that_is_not_shown_yet_counts(Goal::Replicas(2), vec![busy(0), made(1, true)], Plan::default())]
#[case::its_number_is_taken(Goal::Replicas(2), vec![made(0, true)], Plan { make: vec![1], ..Plan::default() })]
#[case::it_is_withdrawn_when_it_is_seen(Goal::Replicas(1), vec![idle(0, 9), made(1, true)], Plan::default())]
#[case::no_answer_is_no_worker(Goal::Replicas(2), vec![busy(0), made(1, false)], Plan { make: vec![1], ..Plan::default() })]
#[case::nor_none(Goal::Replicas(3), vec![made(1, false)], Plan { make: vec![1, 0, 2], ..Plan::default() })]
#[case::only_if_it_is_wanted(Goal::Replicas(1), vec![busy(0), made(1, false)], Plan::default())]
#[case::and_nobody_goes_for_it(Goal::Replicas(1), vec![idle(0, 9), made(1, false)], Plan::default())]
#[case::nor_is_one_made_of_what_is_outdated(
    Goal::Replicas(1),
    vec![Worker { current: false, ..made(0, false) }],
    Plan { make: vec![1], ..Plan::default() }
)]
fn what_was_made_counts_before_it_is_seen(#[case] goal: Goal, #[case] workers: Vec<Worker>, #[case] expected: Plan) {
    assert_eq!(scale(&evidence(goal, workers)), expected);
}

#[test]
fn workers_of_another_template_are_replaced_and_finish_their_jobs() {
    let old = |worker: Worker| Worker { current: false, ..worker };
    let plan =
        scale(&evidence(Goal::Replicas(2), vec![old(busy(0)), old(idle(1, 0)), old(waiting(2)), old(unseen(3))]));
    let expected = Plan {
        make: vec![4, 5],
        withdraw: vec![2],
        drain: vec![(0, Drain::Graceful), (1, Drain::IfIdle)],
        ..Plan::default()
    };
    assert_eq!(plan, expected);
}

#[rstest]
#[case(1, 10)]
#[case(2, 20)]
#[case(5, 160)]
#[case(6, 300)]
#[case(1000, 300)]
fn workers_that_end_at_once_are_made_ever_more_seldom(#[case] count: u32, #[case] pause: i64) {
    let mut evidence = evidence(Goal::Replicas(1), vec![]);
    evidence.deaths = Deaths { count, last: NOW - pause + 1 };
    let held = scale(&evidence);
    assert_eq!((held.make, held.held_until, held.again), (vec![], Some(NOW + 1), Some(NOW + 1)));
    evidence.deaths.last -= 1;
    assert_eq!(scale(&evidence).make, vec![0]);
}
