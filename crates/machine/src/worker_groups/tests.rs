use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::scaling::{AnswerQuality, Drain, SlotState};

const NOW: i64 = 1_000_000;

fn of(image: &str) -> SharedGroup {
    SharedGroup { image: image.to_owned(), namespace: None, volumes: String::new() }
}

fn wants(needed: &[(&str, u32)], min: u32, max: u32) -> SharedGoal {
    let needed = needed.iter().map(|(image, needed)| (of(image), *needed)).collect();
    SharedGoal::Autoscale { needed, min, max, scale_down_after: 300 }
}

/// Computes goals by image, for workers of all namespaces.
fn goals(
    wish: &SharedGoal,
    there: &BTreeMap<String, ExistingWorkers>,
    unknown: &BTreeSet<String>,
) -> BTreeMap<String, Goal> {
    let there = there.iter().map(|(image, there)| (of(image), *there)).collect();
    let unknown = unknown.iter().map(|image| of(image)).collect();
    wish.goals(&of("own"), &there, &unknown, NOW).into_iter().map(|(group, goal)| (group.image, goal)).collect()
}

#[rstest]
#[case::own_image_only(&[("own", 3)], 0, 5, &[("own", 3)])]
#[case::minimum_without_demand(&[], 1, 5, &[("own", 1)])]
#[case::enough_for_all(&[("a", 2), ("own", 1)], 0, 5, &[("a", 2), ("own", 1)])]
#[case::divided_in_turn(&[("a", 9), ("b", 1), ("own", 9)], 0, 6, &[("a", 3), ("b", 1), ("own", 2)])]
#[case::minimum_comes_first(&[("a", 9)], 2, 3, &[("a", 1), ("own", 2)])]
#[case::at_most_max(&[("a", 1), ("b", 1)], 0, 1, &[("a", 1), ("b", 0), ("own", 0)])]
#[case::max_below_min(&[("own", 9)], 3, 2, &[("own", 2)])]
#[case::minimum_of_a_requested_image(&[("own", 1)], 3, 5, &[("own", 3)])]
#[case::minimum_counts_as_its_share(&[("a", 9), ("own", 1)], 2, 4, &[("a", 2), ("own", 2)])]
fn images_share_the_allowed_workers(
    #[case] needed: &[(&str, u32)],
    #[case] min: u32,
    #[case] max: u32,
    #[case] expected: &[(&str, u32)],
) {
    let goals = self::goals(&wants(needed, min, max), &BTreeMap::new(), &BTreeSet::new());
    let wanted: Vec<(&str, u32)> = goals.iter().map(|(image, goal)| (image.as_str(), goal.wanted())).collect();
    assert_eq!(wanted, expected);
}

#[test]
fn workers_with_volumes_are_none_of_the_minimum() {
    let with_volumes = SharedGroup { volumes: "a:/a".to_owned(), ..of("own") };
    let wish = SharedGoal::Autoscale {
        needed: BTreeMap::from([(with_volumes.clone(), 2)]),
        min: 1,
        max: 5,
        scale_down_after: 300,
    };
    let goals = wish.goals(&of("own"), &BTreeMap::new(), &BTreeSet::new(), NOW);
    assert_eq!((goals[&with_volumes].wanted(), goals[&of("own")].wanted()), (2, 1));
}

/// For image `a` the need of its jobs is unknown.
#[rstest]
#[case::keeps_its_workers(&[("a", 3)], &[("b", 9)], 0, 4, &[("a", 3), ("b", 1), ("own", 0)])]
#[case::before_the_minimum_of_another(&[("a", 3)], &[], 2, 4, &[("a", 3), ("own", 2)])]
#[case::known_demand_counts(&[("a", 1)], &[("a", 3), ("b", 3)], 0, 4, &[("a", 3), ("b", 1), ("own", 0)])]
#[case::despite_a_lower_max(&[("a", 3), ("b", 2)], &[("b", 2)], 0, 1, &[("a", 3), ("b", 0), ("own", 0)])]
#[case::without_workers(&[], &[("b", 9)], 0, 4, &[("a", 0), ("b", 4), ("own", 0)])]
fn unknown_demand_removes_no_worker(
    #[case] alive: &[(&str, u32)],
    #[case] needed: &[(&str, u32)],
    #[case] min: u32,
    #[case] max: u32,
    #[case] expected: &[(&str, u32)],
) {
    let of = |(image, alive): &(&str, u32)| {
        ((*image).to_owned(), ExistingWorkers { alive: *alive, ..ExistingWorkers::default() })
    };
    let (there, unknown) = (alive.iter().map(of).collect(), BTreeSet::from(["a".to_owned()]));
    let goals = self::goals(&wants(needed, min, max), &there, &unknown);
    let wanted: Vec<(&str, u32)> = goals.iter().map(|(image, goal)| (image.as_str(), goal.wanted())).collect();
    assert_eq!(wanted, expected);
}

#[test]
fn unneeded_group_has_the_goal_zero() {
    let old = BTreeMap::from([("old".to_owned(), ExistingWorkers::default())]);
    assert_eq!(goals(&wants(&[], 0, 5), &old, &BTreeSet::new())["old"].wanted(), 0);
    let fixed = goals(&SharedGoal::Replicas(2), &old, &BTreeSet::new());
    assert_eq!(fixed, BTreeMap::from([("old".to_owned(), Goal::Replicas(0)), ("own".to_owned(), Goal::Replicas(2))]));
}

#[rstest]
#[case::two_failures_are_tolerated(2, 0, 0, 2)]
#[case::three_failures_back_off(3, 10, 0, 0)]
#[case::live_workers_stay_during_backoff(3, 10, 1, 1)]
#[case::one_try_after_backoff(3, 40, 0, 1)]
#[case::backoff_grows(6, 299, 0, 0)]
#[case::backoff_ends_at_five_minutes(6, 300, 0, 1)]
fn failing_image_gives_its_share_to_the_others(
    #[case] count: u32,
    #[case] ago: i64,
    #[case] alive: u32,
    #[case] expected: u32,
) {
    let there =
        BTreeMap::from([("a".to_owned(), ExistingWorkers { alive, deaths: EarlyExits { count, last: NOW - ago } })]);
    let goals = self::goals(&wants(&[("a", 9), ("own", 9)], 0, 4), &there, &BTreeSet::new());
    assert_eq!((goals["a"].wanted(), goals["own"].wanted()), (expected, 4 - expected));
}

#[test]
fn minimum_is_not_held_for_a_failing_image() {
    let failing = ExistingWorkers { deaths: EarlyExits { count: 3, last: NOW }, ..ExistingWorkers::default() };
    let there = BTreeMap::from([("own".to_owned(), failing)]);
    let goals = self::goals(&wants(&[("a", 9)], 2, 4), &there, &BTreeSet::new());
    assert_eq!((goals["a"].wanted(), goals["own"].wanted()), (4, 0));
}

#[test]
fn images_are_requested_by_jobs_and_by_the_spec() {
    let asked = |wish: &SharedGoal| {
        wish.requested_groups(&of("own")).into_iter().map(|group| group.image.clone()).collect::<Vec<_>>()
    };
    assert_eq!(asked(&wants(&[("a", 1), ("b", 0)], 0, 4)), ["a"]);
    assert_eq!(asked(&wants(&[("a", 1)], 1, 4)), ["a", "own"]);
    assert_eq!((asked(&SharedGoal::Replicas(1)), asked(&SharedGoal::Replicas(0))), (vec!["own".to_owned()], vec![]));
}

#[test]
fn leaving_workers_do_not_count_against_the_limit() {
    let going = [
        Worker { drain_accepted: true, ..worker(0, SlotState::Busy) },
        worker(1, SlotState::Draining),
        Worker { pod_state: PodState::Ended, ..worker(2, SlotState::Busy) },
        Worker { pod_state: PodState::Terminating, ..worker(3, SlotState::Busy) },
        Worker { up_to_date: false, ..worker(4, SlotState::Busy) },
    ];
    let plans = plan(&wants(&[("own", 2)], 0, 2), &[("a", going.to_vec())]);
    assert_eq!(plans["own"].create, [5, 6]);
}

#[test]
fn unconfirmed_workers_count_and_are_requested_again() {
    let made = |number, sure| Worker {
        pod_state: PodState::Requested { confirmed: sure },
        ..worker(number, SlotState::Unseen)
    };
    let wish = wants(&[("a", 2), ("own", 2)], 0, 4);
    let plans = plan(&wish, &[("a", vec![made(0, false), made(1, true)]), ("own", vec![worker(2, SlotState::Busy)])]);
    assert_eq!((&plans["a"].create, &plans["own"].create), (&vec![0], &vec![3]));
}

#[test]
fn unconfirmed_workers_are_not_requested_again_at_the_limit() {
    let unsure =
        |number| Worker { pod_state: PodState::Requested { confirmed: false }, ..worker(number, SlotState::Unseen) };
    let busy = |number| worker(number, SlotState::Busy);
    let wish = wants(&[("a", 2), ("own", 2)], 0, 3);
    let full = plan(&wish, &[("a", vec![unsure(0), unsure(1)]), ("own", vec![busy(2), busy(3), busy(4)])]);
    assert_eq!((&full["a"].create, &full["own"].create), (&vec![], &vec![]));
    let roomy = plan(&wish, &[("a", vec![unsure(0), unsure(1)]), ("own", vec![busy(2), busy(3)])]);
    assert_eq!((&roomy["a"].create, &roomy["own"].create), (&vec![0], &vec![]));
}

fn worker(number: u32, slot: SlotState) -> Worker {
    Worker { number, pod_state: PodState::Running, slot_state: slot, up_to_date: true, drain_accepted: false }
}

fn groups(wish: &SharedGoal, there: &[(&str, Vec<Worker>)]) -> BTreeMap<String, WorkerEvidence> {
    let known = there.iter().map(|(image, _)| ((*image).to_owned(), ExistingWorkers::default())).collect();
    let goals = self::goals(wish, &known, &BTreeSet::new());
    let of = |(image, goal): (String, Goal)| {
        let its = there.iter().filter(|(other, _)| *other == image);
        let workers = its.flat_map(|(_, workers)| workers.clone()).collect();
        let (answer, deaths, taken, room) = (AnswerQuality::Known, EarlyExits::default(), BTreeSet::new(), u32::MAX);
        (image, WorkerEvidence { now: NOW, goal, workers, answer, deaths, taken_numbers: taken, max_create: room })
    };
    goals.into_iter().map(of).collect()
}

fn plan(wish: &SharedGoal, there: &[(&str, Vec<Worker>)]) -> BTreeMap<String, ScalePlan> {
    scale_all(&groups(wish, there), wish.most())
}

#[test]
fn worker_numbers_are_unique_in_the_pool() {
    let plans = plan(&wants(&[("a", 2), ("own", 2)], 0, 9), &[("a", vec![worker(1, SlotState::Busy)])]);
    assert_eq!((&plans["a"].create, &plans["own"].create), (&vec![0], &vec![2, 3]));
}

#[test]
fn idle_workers_are_drained_at_once_only_at_the_limit() {
    let short = SlotState::Idle { since: NOW - 1 };
    let there = [("a", vec![worker(0, SlotState::Busy), worker(1, short), worker(2, short)])];
    let roomy = plan(&wants(&[("a", 1), ("own", 1)], 0, 4), &there);
    assert_eq!((&roomy["a"].drain, &roomy["own"].create), (&vec![], &vec![3]));
    let crowded = plan(&wants(&[("a", 1), ("own", 1)], 0, 3), &there);
    assert_eq!(crowded["a"].drain, vec![(1, Drain::IfIdle), (2, Drain::IfIdle)]);
    // Not before that worker is drained.
    assert_eq!(crowded["own"].create, Vec::<u32>::new());
}

#[test]
fn busy_workers_stay() {
    let there = [("a", vec![worker(0, SlotState::Busy), worker(1, SlotState::Busy)])];
    let plans = plan(&wants(&[("a", 1), ("own", 2)], 0, 2), &there);
    assert_eq!((&plans["a"], &plans["own"]), (&ScalePlan::default(), &ScalePlan::default()));
}

#[test]
fn image_in_backoff_does_not_delay_other_images() {
    let wish = wants(&[("a", 1), ("own", 1)], 0, 5);
    let mut groups = groups(&wish, &[]);
    groups.get_mut("a").unwrap().deaths = EarlyExits { count: 9, last: NOW };
    let plans = scale_all(&groups, wish.most());
    assert_eq!((&plans["a"].create, &plans["own"].create), (&vec![], &vec![0]));
}

#[test]
fn workers_of_htcjobs_have_their_own_limit_and_unique_numbers() {
    let group = |needed: u32, workers: Vec<Worker>| {
        let goal = Goal::Autoscale { needed, min: 0, max: needed, scale_down_after: 300 };
        let (answer, deaths, taken) = (AnswerQuality::Known, EarlyExits::default(), BTreeSet::new());
        WorkerEvidence { now: NOW, goal, workers, answer, deaths, taken_numbers: taken, max_create: u32::MAX }
    };
    let (image, its, other) =
        (WorkerGroup::Shared(of("own")), WorkerGroup::HTCJob("u-1".to_owned()), WorkerGroup::HTCJob("u-2".to_owned()));
    let groups = BTreeMap::from([
        (image.clone(), group(3, vec![worker(0, SlotState::Busy)])),
        (its.clone(), group(3, vec![worker(2, SlotState::Busy)])),
        (other.clone(), group(1, vec![worker(5, SlotState::Busy)])),
    ]);
    let made = |shared, own| {
        let plans = scale_pool(&groups, WorkerLimits { shared, own });
        [&image, &its, &other].map(|group| plans[group].create.clone())
    };
    assert_eq!(made(3, 4), [vec![1, 3], vec![4, 6], vec![]]);
    assert_eq!(made(1, 4), [vec![], vec![1, 3], vec![]], "the pool's own are as many as there may be");
    assert_eq!(made(3, 2), [vec![1, 3], vec![], vec![]], "those of HTCJobs are");
}

fn any_worker() -> impl Strategy<Value = (PodState, SlotState, bool)> {
    let pod = prop_oneof![
        (0i64..600).prop_map(|age| PodState::Waiting { since: NOW - age }),
        Just(PodState::Running),
        Just(PodState::Running),
        Just(PodState::Ended),
        Just(PodState::Terminating),
        any::<bool>().prop_map(|confirmed| PodState::Requested { confirmed }),
    ];
    let slot = prop_oneof![
        Just(SlotState::Unseen),
        (0i64..600).prop_map(|age| SlotState::Idle { since: NOW - age }),
        Just(SlotState::Busy),
        Just(SlotState::Draining),
    ];
    (pod, slot, any::<bool>())
}

const IMAGES: [&str; 3] = ["a", "b", "own"];

/// An attacker with a worker's token claims that workers accept no more jobs, or that they have some.
#[test]
fn false_reports_about_workers_create_at_most_twice_the_limit() {
    let wish = wants(&[("own", 4)], 0, 4);
    let mut there: Vec<Worker> = Vec::new();
    for _ in 0..9 {
        let plans = plan(&wish, &[("own", there.clone())]);
        assert!(plans["own"].drain.is_empty());
        there.extend(plans["own"].create.iter().map(|number| worker(*number, SlotState::Draining)));
    }
    assert_eq!(there.len(), 8);
    // Workers that were drained make room for others.
    there.iter_mut().take(3).for_each(|worker| worker.drain_accepted = true);
    assert_eq!(plan(&wish, &[("own", there)])["own"].create.len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 1000 }))]

    #[test]
    fn groups_together_stay_in_the_limit_and_act_on_their_own_workers(
        workers in prop::collection::vec((0usize..3, any_worker()), 0..8),
        needed in prop::array::uniform3(0u32..5),
        (min, max) in (0u32..3, 0u32..6),
    ) {
        let mut there: Vec<(&str, Vec<Worker>)> = IMAGES.iter().map(|image| (*image, Vec::new())).collect();
        for (number, (place, (pod_state, slot_state, drain_accepted))) in (0..).zip(workers) {
            there[place].1.push(Worker { number, pod_state, slot_state, up_to_date: true, drain_accepted });
        }
        let needed: Vec<(&str, u32)> = IMAGES.into_iter().zip(needed).collect();
        let wish = wants(&needed, min, max);
        let groups = groups(&wish, &there);
        let plans = scale_all(&groups, max);
        let stay = groups.values().flat_map(|group| &group.workers).filter(|worker| worker.counts()).count();
        let made: Vec<u32> = plans.values().flat_map(|plan| plan.create.clone()).collect();
        let not_sent_away = groups.values().flat_map(|group| &group.workers).filter(|worker| worker.is_there()).count();
        let again = |number: &u32| groups.values().flat_map(|group| &group.workers).any(|worker| {
            worker.number == *number && worker.pod_state == PodState::Requested { confirmed: false }
        });
        let unsure = |worker: &&Worker| worker.counts() && worker.pod_state == PodState::Requested { confirmed: false };
        let unsure = groups.values().flat_map(|group| &group.workers).filter(unsure).count();
        prop_assert!(made.is_empty() || stay - unsure + made.len() <= max as usize);
        let made: Vec<u32> = made.into_iter().filter(|number| !again(number)).collect();
        prop_assert!(made.is_empty() || stay + made.len() <= max as usize);
        prop_assert!(made.is_empty() || not_sent_away + made.len() <= 2 * max as usize);
        let numbers: BTreeSet<u32> = there.iter().flat_map(|(_, workers)| workers).map(|worker| worker.number).collect();
        prop_assert!(made.iter().all(|number| !numbers.contains(number)));
        prop_assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), made.len());
        for (image, plan) in &plans {
            let own: Vec<u32> = groups[image].workers.iter().map(|worker| worker.number).collect();
            let told = plan.delete_ended.iter().chain(&plan.delete_unstarted).chain(plan.drain.iter().map(|(number, _)| number));
            prop_assert!(told.into_iter().all(|number| own.contains(number)));
            prop_assert!(plan.drain.iter().all(|(_, how)| *how == Drain::IfIdle));
        }
    }

    /// Each worker runs one job of its image per step, and is idle when there is none.
    #[test]
    fn every_image_gets_workers_in_turn(needed in prop::array::uniform3(0u32..9), (min, max) in (0u32..3, 3u32..6)) {
        let mut left: Vec<(&str, u32)> = IMAGES.into_iter().zip(needed).collect();
        let mut there: Vec<(&str, Vec<Worker>)> = IMAGES.iter().map(|image| (*image, Vec::new())).collect();
        for _ in 0..60 {
            let wish = wants(&left, min, max);
            let plans = plan(&wish, &there);
            for ((image, workers), (_, left)) in there.iter_mut().zip(&mut left) {
                let plan = &plans[*image];
                for worker in workers.iter_mut() {
                    let was = matches!(worker.slot_state, SlotState::Idle { .. });
                    worker.slot_state = match (*left, was) {
                        (0, true) => worker.slot_state,
                        (0, false) => SlotState::Idle { since: NOW },
                        (_, _) => SlotState::Busy,
                    };
                    *left = left.saturating_sub(1);
                }
                workers.retain(|worker| {
                    let drained = plan.drain.iter().any(|(number, _)| *number == worker.number);
                    !(drained && matches!(worker.slot_state, SlotState::Idle { .. }))
                });
                workers.extend(plan.create.iter().map(|number| self::worker(*number, SlotState::Idle { since: NOW })));
            }
        }
        prop_assert!(left.iter().all(|(_, left)| *left == 0), "{left:?} {there:?}");
    }
}

/// Tests of workers of a pool of namespace `home` that serve one namespace each.
mod of_namespaces {
    use super::*;

    fn its(namespace: &str) -> SharedGroup {
        SharedGroup { image: "own".to_owned(), namespace: Some(namespace.to_owned()), volumes: String::new() }
    }

    fn counts(text: &[(&str, u32)]) -> BTreeMap<SharedGroup, u32> {
        text.iter().map(|(namespace, count)| (its(namespace), *count)).collect()
    }

    fn alive(text: &[(&str, u32)]) -> BTreeMap<SharedGroup, ExistingWorkers> {
        let there = |(group, alive)| (group, ExistingWorkers { alive, ..ExistingWorkers::default() });
        counts(text).into_iter().map(there).collect()
    }

    fn goals(wish: &SharedGoal, there: &[(&str, u32)]) -> BTreeMap<String, Goal> {
        let goals = wish.goals(&its("home"), &alive(there), &BTreeSet::new(), NOW);
        goals.into_iter().map(|(group, goal)| (group.namespace.unwrap(), goal)).collect()
    }

    #[rstest]
    #[case::in_the_namespace_of_the_pool(&[], &[], &[("home", 3)])]
    #[case::in_the_namespace_that_has_workers(&[], &[("a", 2)], &[("a", 2), ("home", 1)])]
    #[case::in_the_namespace_with_demand(&[("a", 9)], &[("home", 3)], &[("a", 3), ("home", 0)])]
    #[case::divided_in_turn(&[("a", 9), ("b", 9)], &[], &[("a", 2), ("b", 1), ("home", 0)])]
    #[case::from_a_namespace_without_demand(&[("b", 1)], &[("a", 3)], &[("a", 2), ("b", 1), ("home", 0)])]
    #[case::all_to_the_demand(&[("b", 3)], &[("a", 3)], &[("a", 0), ("b", 3), ("home", 0)])]
    fn fixed_replicas_are_divided_by_demand(
        #[case] needed: &[(&str, u32)],
        #[case] there: &[(&str, u32)],
        #[case] expected: &[(&str, u32)],
    ) {
        let goals = goals(&SharedGoal::Divided { replicas: 3, needed: counts(needed) }, there);
        let wanted: Vec<(&str, u32)> =
            goals.iter().map(|(namespace, goal)| (namespace.as_str(), goal.wanted())).collect();
        assert_eq!(wanted, expected);
    }

    #[test]
    fn only_a_group_above_its_share_gives_back_busy_workers() {
        let wish = |needed| SharedGoal::Autoscale { needed: counts(needed), min: 0, max: 4, scale_down_after: 300 };
        let goals = goals(&wish(&[("a", 9), ("b", 1)]), &[("a", 4)]);
        assert_eq!(goals["a"], Goal::Replicas(3));
        assert_eq!(goals["b"], Goal::Autoscale { needed: 1, min: 0, max: 1, scale_down_after: 300 });
    }

    #[test]
    fn namespace_with_several_images_gets_one_share() {
        let of = |namespace: &str, image: &str, needed: u32| {
            (
                SharedGroup { image: image.to_owned(), namespace: Some(namespace.to_owned()), volumes: String::new() },
                needed,
            )
        };
        let needed = BTreeMap::from([of("a", "x", 9), of("a", "y", 9), of("a", "z", 9), of("b", "x", 9)]);
        let goals = SharedGoal::Autoscale { needed, min: 0, max: 6, scale_down_after: 300 }.goals(
            &its("home"),
            &BTreeMap::new(),
            &BTreeSet::new(),
            NOW,
        );
        let sum = |namespace: &str| -> u32 {
            goals
                .iter()
                .filter(|(group, _)| group.namespace.as_deref() == Some(namespace))
                .map(|(_, goal)| goal.wanted())
                .sum()
        };
        assert_eq!((sum("a"), sum("b")), (3, 3), "{goals:?}");
    }

    #[rstest]
    #[case::fixed_replicas(|needed| SharedGoal::Divided { replicas: 1, needed })]
    #[case::autoscaled(|needed| SharedGoal::Autoscale { needed, min: 0, max: 1, scale_down_after: 300 })]
    fn each_namespace_gets_workers_within_a_day(#[case] wish: fn(BTreeMap<SharedGroup, u32>) -> SharedGoal) {
        let of = |needed: &[(&str, u32)], now: i64| {
            let goals = wish(counts(needed)).goals(&its("home"), &BTreeMap::new(), &BTreeSet::new(), now);
            let got = goals.into_iter().filter(|(_, goal)| goal.wanted() > 0);
            got.map(|(group, _)| group.namespace.unwrap()).collect::<Vec<_>>()
        };
        let all = [("a", 9), ("b", 9), ("c", 9)];
        let got: BTreeSet<Vec<String>> = (0..24).map(|turn| of(&all, NOW + turn * TURN)).collect();
        assert_eq!(got, ["a", "b", "c"].map(|name| vec![name.to_owned()]).into());
        let begin = NOW - NOW.rem_euclid(TURN);
        assert_eq!(of(&all, begin), of(&all, begin + TURN - 1), "no namespace loses its workers within a turn");
    }

    /// One worker of `a` is busy for ever, as more of its jobs follow; `b` waits.
    #[test]
    fn one_namespace_does_not_hold_all_workers_forever() {
        let wish = SharedGoal::Divided { replicas: 2, needed: counts(&[("a", 9), ("b", 9)]) };
        let busy = vec![worker(0, SlotState::Busy), worker(1, SlotState::Busy)];
        let goals = wish.goals(&its("home"), &alive(&[("a", 2)]), &BTreeSet::new(), NOW);
        let evidence = |(group, goal): (SharedGroup, Goal)| {
            let workers = if group == its("a") { busy.clone() } else { Vec::new() };
            let (answer, deaths, taken, room) =
                (AnswerQuality::Known, EarlyExits::default(), BTreeSet::new(), u32::MAX);
            (group, WorkerEvidence { now: NOW, goal, workers, answer, deaths, taken_numbers: taken, max_create: room })
        };
        let plans = scale_all(&goals.into_iter().map(evidence).collect(), wish.most());
        assert_eq!(plans[&its("a")].drain, [(1, Drain::Graceful)]);
        assert_eq!(plans[&its("b")].create, Vec::<u32>::new(), "not before that one takes no more jobs");
    }
}
