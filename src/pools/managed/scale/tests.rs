use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::pools::managed::states::{State, TABLE};

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

fn unseen(number: u32) -> Worker {
    worker(number, Pod::Running, Slot::Unseen)
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
fn nothing_is_drained_on_an_answer_that_is_worth_nothing(#[values(Answer::Young, Answer::Unknown)] answer: Answer) {
    let outdated = Worker { current: false, ..idle(4, 900) };
    let mut evidence = evidence(Goal::Replicas(1), vec![idle(0, 900), busy(1), waiting(2), outdated]);
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

/// A pool, as it is, and as it is seen.
#[derive(Clone, Debug)]
struct World {
    now: i64,
    pods: Vec<Real>,
    collector_began: i64,
    next: u32,
    /// The states in which the workers were last, by their ids.
    states: Vec<(u32, State)>,
}

#[derive(Clone, Debug)]
struct Real {
    number: u32,
    /// Tells pods of one name apart.
    id: u32,
    pod: Pod,
    /// Jobs that run.
    jobs: u32,
    draining: bool,
    idle_since: i64,
    told: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Time(i64),
    Begin(usize),
    JobStarts(usize),
    JobEnds(usize),
    NodeDies(usize),
    CollectorRestarts,
    Goal(Goal),
    /// A look; whether the answer comes, and whether a job starts on each worker between the look and the act.
    Look {
        answer: bool,
        late_job: bool,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let goal = prop_oneof![
        (0u32..6).prop_map(Goal::Replicas),
        (0u32..8, 0u32..3, 3u32..6).prop_map(|(needed, min, max)| Goal::Follow { needed, min, max, after: 30 }),
    ];
    let event = prop_oneof![
        (1i64..60).prop_map(Event::Time),
        (0usize..8).prop_map(Event::Begin),
        (0usize..8).prop_map(Event::JobStarts),
        (0usize..8).prop_map(Event::JobEnds),
        (0usize..8).prop_map(Event::NodeDies),
        Just(Event::CollectorRestarts),
        goal.prop_map(Event::Goal),
        (any::<bool>(), any::<bool>()).prop_map(|(answer, late_job)| Event::Look { answer, late_job }),
    ];
    prop::collection::vec(event, 1..120)
}

impl World {
    fn new() -> Self {
        Self { now: NOW, pods: Vec::new(), collector_began: NOW - 1000, next: 0, states: Vec::new() }
    }

    /// Each change of state stands in the table.
    fn record(&mut self) {
        let state = |real: &Real| match (real.pod, real.draining, real.jobs) {
            (Pod::Waiting { .. }, ..) => State::Waiting,
            (Pod::Ended, ..) => State::Ended,
            (Pod::Leaving, ..) => State::Leaving,
            (Pod::Running, true, _) => State::Draining,
            (Pod::Running, false, 0) => State::Idle,
            (Pod::Running, false, _) => State::Busy,
        };
        let now: Vec<(u32, State)> = self.pods.iter().map(|real| (real.id, state(real))).collect();
        let of =
            |states: &[(u32, State)], id: u32| states.iter().find(|(other, _)| *other == id).map(|(_, state)| *state);
        let allowed = |from: Option<State>, to: Option<State>| TABLE.iter().any(|row| (row.from, row.to) == (from, to));
        for id in self.states.iter().chain(&now).map(|(id, _)| *id) {
            let (from, to) = (of(&self.states, id), of(&now, id));
            // One that begins is not seen for a while.
            let unseen = from == Some(State::Waiting) && to == Some(State::Idle);
            assert!(from == to || unseen || allowed(from, to), "a worker went from {from:?} to {to:?}");
        }
        self.states = now;
    }

    fn see(&self, goal: Goal, answer: bool) -> Evidence {
        let answer = if !answer {
            Answer::Unknown
        } else if self.now - self.collector_began < 40 {
            Answer::Young
        } else {
            Answer::Known
        };
        let seen = |real: &Real| Worker {
            number: real.number,
            pod: real.pod,
            // A collector that has begun anew knows nothing of them.
            slot: match real.pod {
                Pod::Running if answer == Answer::Known && real.draining => Slot::Draining,
                Pod::Running if answer == Answer::Known && real.jobs > 0 => Slot::Busy,
                Pod::Running if answer == Answer::Known => Slot::Idle { since: real.idle_since },
                Pod::Running | Pod::Waiting { .. } | Pod::Ended | Pod::Leaving => Slot::Unseen,
            },
            current: true,
            drained: real.told,
        };
        let workers = self.pods.iter().map(seen).collect();
        Evidence {
            now: self.now,
            goal,
            workers,
            answer,
            deaths: Deaths::default(),
            taken: BTreeSet::new(),
            room: u32::MAX,
        }
    }

    /// Does what HTCondor and Kubernetes would do.
    fn act(&mut self, plan: &Plan, goal: Goal) {
        for number in &plan.make {
            assert!(self.pods.iter().all(|real| real.number != *number), "worker {number} is there already");
            self.next += 1;
            let (id, pod) = (self.next, Pod::Waiting { since: self.now });
            self.pods.push(Real {
                number: *number,
                id,
                pod,
                jobs: 0,
                draining: false,
                idle_since: self.now,
                told: false,
            });
        }
        self.record();
        for number in &plan.remove {
            let real = self.pods.iter().find(|real| real.number == *number).unwrap();
            assert_eq!(real.pod, Pod::Ended, "a pod that runs is deleted");
            self.pods.retain(|real| real.number != *number);
        }
        self.record();
        // The API server refuses it for a pod that has changed.
        self.pods.retain(|real| !(plan.withdraw.contains(&real.number) && matches!(real.pod, Pod::Waiting { .. })));
        self.record();
        for (number, how) in &plan.drain {
            let real = self.pods.iter_mut().find(|real| real.number == *number).unwrap();
            match how {
                // HTCondor refuses.
                Drain::IfIdle if real.jobs > 0 => {}
                Drain::IfIdle => (real.draining, real.told) = (true, true),
                Drain::Graceful => {
                    assert!(matches!(goal, Goal::Replicas(_)), "nobody asked for that");
                    (real.draining, real.told) = (true, true);
                }
            }
        }
        self.drained_ones_end();
    }

    /// A worker that is drained ends after its last job; never before.
    fn drained_ones_end(&mut self) {
        self.record();
        for real in &mut self.pods {
            if real.pod == Pod::Running && real.draining && real.jobs == 0 {
                real.pod = Pod::Ended;
            }
        }
        self.record();
    }

    fn step(&mut self, event: &Event, goal: &mut Goal) {
        let one = |world: &Self, index: usize, fits: fn(&Real) -> bool| {
            world.pods.iter().position(fits).filter(|_| index < world.pods.len()).map(|first| {
                let other = index.max(first);
                if fits(&world.pods[other]) { other } else { first }
            })
        };
        match event {
            Event::Time(seconds) => self.now += seconds,
            Event::Begin(index) => {
                if let Some(index) = one(self, *index, |real| matches!(real.pod, Pod::Waiting { .. })) {
                    (self.pods[index].pod, self.pods[index].idle_since) = (Pod::Running, self.now);
                }
            }
            Event::JobStarts(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == Pod::Running && !real.draining) {
                    self.pods[index].jobs += 1;
                }
            }
            Event::JobEnds(index) => {
                if let Some(index) = one(self, *index, |real| real.jobs > 0) {
                    (self.pods[index].jobs, self.pods[index].idle_since) = (self.pods[index].jobs - 1, self.now);
                }
                self.drained_ones_end();
            }
            Event::NodeDies(index) => {
                if let Some(index) = one(self, *index, |real| real.pod == Pod::Running) {
                    (self.pods[index].pod, self.pods[index].jobs) = (Pod::Ended, 0);
                }
            }
            Event::CollectorRestarts => self.collector_began = self.now,
            Event::Goal(new) => *goal = *new,
            Event::Look { answer, late_job } => {
                let seen = self.see(*goal, *answer);
                let plan = scale(&seen);
                assert_eq!(plan, scale(&seen));
                if seen.answer != Answer::Known {
                    assert!(plan.drain.is_empty(), "{plan:?}");
                }
                if *late_job {
                    for real in self.pods.iter_mut().filter(|real| real.pod == Pod::Running && !real.draining) {
                        real.jobs += 1;
                    }
                }
                self.record();
                let jobs: u32 = self.pods.iter().map(|real| real.jobs).sum();
                self.act(&plan, *goal);
                assert_eq!(self.pods.iter().map(|real| real.jobs).sum::<u32>(), jobs, "a job is lost by {plan:?}");
            }
        }
        self.record();
    }

    /// Nothing more happens: all jobs end, and it is looked at for long enough.
    fn settle(&mut self, goal: Goal) {
        for _ in 0..20 {
            for real in &mut self.pods {
                if matches!(real.pod, Pod::Waiting { .. }) {
                    (real.pod, real.idle_since) = (Pod::Running, self.now);
                }
                real.jobs = 0;
            }
            self.drained_ones_end();
            self.now += 61;
            let plan = scale(&self.see(goal, true));
            self.act(&plan, goal);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 2000 }))]

    #[test]
    fn no_job_is_ever_lost_and_the_pool_becomes_what_it_should_be(events in events()) {
        let (mut world, mut goal) = (World::new(), Goal::Replicas(2));
        for event in &events {
            world.step(event, &mut goal);
            let mut ids: Vec<u32> = world.pods.iter().map(|real| real.id).collect();
            ids.dedup();
            prop_assert_eq!(ids.len(), world.pods.len());
        }
        world.settle(goal);
        prop_assert_eq!(u32::try_from(world.pods.len()).unwrap(), goal.wanted(), "{:?}", world);
        prop_assert_eq!(scale(&world.see(goal, true)), Plan { again: scale(&world.see(goal, true)).again, ..Plan::default() });
    }
}
