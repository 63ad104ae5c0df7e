use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::pools::managed::scale::{Answer, Drain, Slot};

const NOW: i64 = 1_000_000;

fn of(image: &str) -> Shared {
    Shared { image: image.to_owned(), namespace: None }
}

fn wants(needed: &[(&str, u32)], min: u32, max: u32) -> Wish {
    let needed = needed.iter().map(|(image, needed)| (of(image), *needed)).collect();
    Wish::Follow { needed, min, max, after: 300 }
}

/// By image, where workers are for all namespaces.
fn goals(wish: &Wish, there: &BTreeMap<String, There>, unknown: &BTreeSet<String>) -> BTreeMap<String, Goal> {
    let there = there.iter().map(|(image, there)| (of(image), *there)).collect();
    let unknown = unknown.iter().map(|image| of(image)).collect();
    wish.goals(&of("own"), &there, &unknown, NOW).into_iter().map(|(group, goal)| (group.image, goal)).collect()
}

#[rstest]
#[case::its_own(&[("own", 3)], 0, 5, &[("own", 3)])]
#[case::none_is_needed(&[], 1, 5, &[("own", 1)])]
#[case::each_gets_what_it_needs(&[("a", 2), ("own", 1)], 0, 5, &[("a", 2), ("own", 1)])]
#[case::in_turn(&[("a", 9), ("b", 1), ("own", 9)], 0, 6, &[("a", 3), ("b", 1), ("own", 2)])]
#[case::the_fewest_come_first(&[("a", 9)], 2, 3, &[("a", 1), ("own", 2)])]
#[case::no_more_than_most(&[("a", 1), ("b", 1)], 0, 1, &[("a", 1), ("b", 0), ("own", 0)])]
#[case::most_is_less_than_fewest(&[("own", 9)], 3, 2, &[("own", 2)])]
#[case::the_fewest_of_one_that_is_asked_for(&[("own", 1)], 3, 5, &[("own", 3)])]
#[case::the_fewest_count_as_its_share(&[("a", 9), ("own", 1)], 2, 4, &[("a", 2), ("own", 2)])]
fn images_share_what_there_may_be(
    #[case] needed: &[(&str, u32)],
    #[case] min: u32,
    #[case] max: u32,
    #[case] expected: &[(&str, u32)],
) {
    let goals = self::goals(&wants(needed, min, max), &BTreeMap::new(), &BTreeSet::new());
    let wanted: Vec<(&str, u32)> = goals.iter().map(|(image, goal)| (image.as_str(), goal.wanted())).collect();
    assert_eq!(wanted, expected);
}

/// Of image `a` it is not known what its jobs need.
#[rstest]
#[case::it_keeps_what_it_has(&[("a", 3)], &[("b", 9)], 0, 4, &[("a", 3), ("b", 1), ("own", 0)])]
#[case::before_the_fewest_of_another(&[("a", 3)], &[], 2, 4, &[("a", 3), ("own", 2)])]
#[case::and_what_is_known_of_it_counts(&[("a", 1)], &[("a", 3), ("b", 3)], 0, 4, &[("a", 3), ("b", 1), ("own", 0)])]
#[case::though_there_may_be_fewer_now(&[("a", 3), ("b", 2)], &[("b", 2)], 0, 1, &[("a", 3), ("b", 0), ("own", 0)])]
#[case::it_has_none(&[], &[("b", 9)], 0, 4, &[("a", 0), ("b", 4), ("own", 0)])]
fn no_worker_goes_for_what_is_not_known(
    #[case] alive: &[(&str, u32)],
    #[case] needed: &[(&str, u32)],
    #[case] min: u32,
    #[case] max: u32,
    #[case] expected: &[(&str, u32)],
) {
    let of = |(image, alive): &(&str, u32)| ((*image).to_owned(), There { alive: *alive, ..There::default() });
    let (there, unknown) = (alive.iter().map(of).collect(), BTreeSet::from(["a".to_owned()]));
    let goals = self::goals(&wants(needed, min, max), &there, &unknown);
    let wanted: Vec<(&str, u32)> = goals.iter().map(|(image, goal)| (image.as_str(), goal.wanted())).collect();
    assert_eq!(wanted, expected);
}

#[test]
fn what_is_there_and_not_needed_has_a_goal() {
    let old = BTreeMap::from([("old".to_owned(), There::default())]);
    assert_eq!(goals(&wants(&[], 0, 5), &old, &BTreeSet::new())["old"].wanted(), 0);
    let fixed = goals(&Wish::Replicas(2), &old, &BTreeSet::new());
    assert_eq!(fixed, BTreeMap::from([("old".to_owned(), Goal::Replicas(0)), ("own".to_owned(), Goal::Replicas(2))]));
}

#[rstest]
#[case::twice_is_bad_luck(2, 0, 0, 2)]
#[case::then_there_is_a_pause(3, 10, 0, 0)]
#[case::in_which_those_that_live_may(3, 10, 1, 1)]
#[case::after_which_it_is_tried_once(3, 40, 0, 1)]
#[case::and_the_pauses_grow(6, 299, 0, 0)]
#[case::to_five_minutes(6, 300, 0, 1)]
fn an_image_that_fails_gives_its_share_to_the_others(
    #[case] count: u32,
    #[case] ago: i64,
    #[case] alive: u32,
    #[case] expected: u32,
) {
    let there = BTreeMap::from([("a".to_owned(), There { alive, deaths: Deaths { count, last: NOW - ago } })]);
    let goals = self::goals(&wants(&[("a", 9), ("own", 9)], 0, 4), &there, &BTreeSet::new());
    assert_eq!((goals["a"].wanted(), goals["own"].wanted()), (expected, 4 - expected));
}

#[test]
fn the_fewest_are_not_kept_for_an_image_that_fails() {
    let failing = There { deaths: Deaths { count: 3, last: NOW }, ..There::default() };
    let there = BTreeMap::from([("own".to_owned(), failing)]);
    let goals = self::goals(&wants(&[("a", 9)], 2, 4), &there, &BTreeSet::new());
    assert_eq!((goals["a"].wanted(), goals["own"].wanted()), (4, 0));
}

#[test]
fn images_are_asked_for_by_jobs_and_by_what_is_written() {
    let asked = |wish: &Wish| wish.asked(&of("own")).into_iter().map(|group| group.image.clone()).collect::<Vec<_>>();
    assert_eq!(asked(&wants(&[("a", 1), ("b", 0)], 0, 4)), ["a"]);
    assert_eq!(asked(&wants(&[("a", 1)], 1, 4)), ["a", "own"]);
    assert_eq!((asked(&Wish::Replicas(1)), asked(&Wish::Replicas(0))), (vec!["own".to_owned()], vec![]));
}

#[test]
fn those_that_go_take_up_no_room() {
    let going = [
        Worker { drained: true, ..worker(0, Slot::Busy) },
        worker(1, Slot::Draining),
        Worker { pod: Pod::Ended, ..worker(2, Slot::Busy) },
        Worker { pod: Pod::Leaving, ..worker(3, Slot::Busy) },
        Worker { current: false, ..worker(4, Slot::Busy) },
    ];
    let plans = plan(&wants(&[("own", 2)], 0, 2), &[("a", going.to_vec())]);
    assert_eq!(plans["own"].make, [5, 6]);
}

#[test]
fn those_that_are_not_seen_yet_take_up_room_and_are_asked_for_again_in_their_place() {
    let made = |number, sure| Worker { pod: Pod::Made { sure }, ..worker(number, Slot::Unseen) };
    let wish = wants(&[("a", 2), ("own", 2)], 0, 4);
    let plans = plan(&wish, &[("a", vec![made(0, false), made(1, true)]), ("own", vec![worker(2, Slot::Busy)])]);
    assert_eq!((&plans["a"].make, &plans["own"].make), (&vec![0], &vec![3]));
}

#[test]
fn nor_are_they_asked_for_again_where_others_have_all_the_room_by_now() {
    let unsure = |number| Worker { pod: Pod::Made { sure: false }, ..worker(number, Slot::Unseen) };
    let busy = |number| worker(number, Slot::Busy);
    let wish = wants(&[("a", 2), ("own", 2)], 0, 3);
    let full = plan(&wish, &[("a", vec![unsure(0), unsure(1)]), ("own", vec![busy(2), busy(3), busy(4)])]);
    assert_eq!((&full["a"].make, &full["own"].make), (&vec![], &vec![]));
    let roomy = plan(&wish, &[("a", vec![unsure(0), unsure(1)]), ("own", vec![busy(2), busy(3)])]);
    assert_eq!((&roomy["a"].make, &roomy["own"].make), (&vec![0], &vec![]));
}

fn worker(number: u32, slot: Slot) -> Worker {
    Worker { number, pod: Pod::Running, slot, current: true, drained: false }
}

fn groups(wish: &Wish, there: &[(&str, Vec<Worker>)]) -> BTreeMap<String, Evidence> {
    let known = there.iter().map(|(image, _)| ((*image).to_owned(), There::default())).collect();
    let goals = self::goals(wish, &known, &BTreeSet::new());
    let of = |(image, goal): (String, Goal)| {
        let its = there.iter().filter(|(other, _)| *other == image);
        let workers = its.flat_map(|(_, workers)| workers.clone()).collect();
        let (answer, deaths, taken, room) = (Answer::Known, Deaths::default(), BTreeSet::new(), u32::MAX);
        (image, Evidence { now: NOW, goal, workers, answer, deaths, taken, room })
    };
    goals.into_iter().map(of).collect()
}

fn plan(wish: &Wish, there: &[(&str, Vec<Worker>)]) -> BTreeMap<String, Plan> {
    scale_all(&groups(wish, there), wish.most())
}

#[test]
fn numbers_are_those_of_the_pool() {
    let plans = plan(&wants(&[("a", 2), ("own", 2)], 0, 9), &[("a", vec![worker(1, Slot::Busy)])]);
    assert_eq!((&plans["a"].make, &plans["own"].make), (&vec![0], &vec![2, 3]));
}

#[test]
fn who_has_nothing_to_do_makes_room_at_once_and_only_then() {
    let short = Slot::Idle { since: NOW - 1 };
    let there = [("a", vec![worker(0, Slot::Busy), worker(1, short), worker(2, short)])];
    let roomy = plan(&wants(&[("a", 1), ("own", 1)], 0, 4), &there);
    assert_eq!((&roomy["a"].drain, &roomy["own"].make), (&vec![], &vec![3]));
    let crowded = plan(&wants(&[("a", 1), ("own", 1)], 0, 3), &there);
    assert_eq!(crowded["a"].drain, vec![(1, Drain::IfIdle), (2, Drain::IfIdle)]);
    // Not before that one is told.
    assert_eq!(crowded["own"].make, Vec::<u32>::new());
}

#[test]
fn who_has_jobs_keeps_its_place() {
    let there = [("a", vec![worker(0, Slot::Busy), worker(1, Slot::Busy)])];
    let plans = plan(&wants(&[("a", 1), ("own", 2)], 0, 2), &there);
    assert_eq!((&plans["a"], &plans["own"]), (&Plan::default(), &Plan::default()));
}

#[test]
fn an_image_whose_workers_end_at_once_holds_up_no_other() {
    let wish = wants(&[("a", 1), ("own", 1)], 0, 5);
    let mut groups = groups(&wish, &[]);
    groups.get_mut("a").unwrap().deaths = Deaths { count: 9, last: NOW };
    let plans = scale_all(&groups, wish.most());
    assert_eq!((&plans["a"].make, &plans["own"].make), (&vec![], &vec![0]));
}

#[test]
fn workers_of_htcjobs_have_room_of_their_own_and_no_number_is_given_twice() {
    let group = |needed: u32, workers: Vec<Worker>| {
        let goal = Goal::Follow { needed, min: 0, max: needed, after: 300 };
        let (answer, deaths, taken) = (Answer::Known, Deaths::default(), BTreeSet::new());
        Evidence { now: NOW, goal, workers, answer, deaths, taken, room: u32::MAX }
    };
    let (image, its, other) =
        (Group::Shared(of("own")), Group::HTCJob("u-1".to_owned()), Group::HTCJob("u-2".to_owned()));
    let groups = BTreeMap::from([
        (image.clone(), group(3, vec![worker(0, Slot::Busy)])),
        (its.clone(), group(3, vec![worker(2, Slot::Busy)])),
        (other.clone(), group(1, vec![worker(5, Slot::Busy)])),
    ]);
    let made = |shared, own| {
        let plans = scale_pool(&groups, Most { shared, own });
        [&image, &its, &other].map(|group| plans[group].make.clone())
    };
    assert_eq!(made(3, 4), [vec![1, 3], vec![4, 6], vec![]]);
    assert_eq!(made(1, 4), [vec![], vec![1, 3], vec![]], "the pool's own are as many as there may be");
    assert_eq!(made(3, 2), [vec![1, 3], vec![], vec![]], "those of HTCJobs are");
}

fn any_worker() -> impl Strategy<Value = (Pod, Slot, bool)> {
    let pod = prop_oneof![
        (0i64..600).prop_map(|age| Pod::Waiting { since: NOW - age }),
        Just(Pod::Running),
        Just(Pod::Running),
        Just(Pod::Ended),
        Just(Pod::Leaving),
        any::<bool>().prop_map(|sure| Pod::Made { sure }),
    ];
    let slot = prop_oneof![
        Just(Slot::Unseen),
        (0i64..600).prop_map(|age| Slot::Idle { since: NOW - age }),
        Just(Slot::Busy),
        Just(Slot::Draining),
    ];
    (pod, slot, any::<bool>())
}

const IMAGES: [&str; 3] = ["a", "b", "own"];

/// Somebody has stolen a worker's token, and says of workers that they take no more jobs, or that they have some.
#[test]
fn lies_about_workers_bring_only_so_many() {
    let wish = wants(&[("own", 4)], 0, 4);
    let mut there: Vec<Worker> = Vec::new();
    for _ in 0..9 {
        let plans = plan(&wish, &[("own", there.clone())]);
        assert!(plans["own"].drain.is_empty());
        there.extend(plans["own"].make.iter().map(|number| worker(*number, Slot::Draining)));
    }
    assert_eq!(there.len(), 8);
    // Those that were sent away make room for others.
    there.iter_mut().take(3).for_each(|worker| worker.drained = true);
    assert_eq!(plan(&wish, &[("own", there)])["own"].make.len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 1000 }))]

    #[test]
    fn together_they_are_never_too_many_and_each_acts_on_its_own(
        workers in prop::collection::vec((0usize..3, any_worker()), 0..8),
        needed in prop::array::uniform3(0u32..5),
        (min, max) in (0u32..3, 0u32..6),
    ) {
        let mut there: Vec<(&str, Vec<Worker>)> = IMAGES.iter().map(|image| (*image, Vec::new())).collect();
        for (number, (place, (pod, slot, drained))) in (0..).zip(workers) {
            there[place].1.push(Worker { number, pod, slot, current: true, drained });
        }
        let needed: Vec<(&str, u32)> = IMAGES.into_iter().zip(needed).collect();
        let wish = wants(&needed, min, max);
        let groups = groups(&wish, &there);
        let plans = scale_all(&groups, max);
        let stay = groups.values().flat_map(|group| &group.workers).filter(|worker| worker.counts()).count();
        let made: Vec<u32> = plans.values().flat_map(|plan| plan.make.clone()).collect();
        let not_sent_away = groups.values().flat_map(|group| &group.workers).filter(|worker| worker.is_there()).count();
        let again = |number: &u32| groups.values().flat_map(|group| &group.workers).any(|worker| {
            worker.number == *number && worker.pod == Pod::Made { sure: false }
        });
        let unsure = |worker: &&Worker| worker.counts() && worker.pod == Pod::Made { sure: false };
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
            let told = plan.remove.iter().chain(&plan.withdraw).chain(plan.drain.iter().map(|(number, _)| number));
            prop_assert!(told.into_iter().all(|number| own.contains(number)));
            prop_assert!(plan.drain.iter().all(|(_, how)| *how == Drain::IfIdle));
        }
    }

    /// Each worker does one job of its image at each look, and has nothing to do when there is none.
    #[test]
    fn every_image_gets_its_turn(needed in prop::array::uniform3(0u32..9), (min, max) in (0u32..3, 3u32..6)) {
        let mut left: Vec<(&str, u32)> = IMAGES.into_iter().zip(needed).collect();
        let mut there: Vec<(&str, Vec<Worker>)> = IMAGES.iter().map(|image| (*image, Vec::new())).collect();
        for _ in 0..60 {
            let wish = wants(&left, min, max);
            let plans = plan(&wish, &there);
            for ((image, workers), (_, left)) in there.iter_mut().zip(&mut left) {
                let plan = &plans[*image];
                for worker in workers.iter_mut() {
                    let was = matches!(worker.slot, Slot::Idle { .. });
                    worker.slot = match (*left, was) {
                        (0, true) => worker.slot,
                        (0, false) => Slot::Idle { since: NOW },
                        (_, _) => Slot::Busy,
                    };
                    *left = left.saturating_sub(1);
                }
                workers.retain(|worker| {
                    let drained = plan.drain.iter().any(|(number, _)| *number == worker.number);
                    !(drained && matches!(worker.slot, Slot::Idle { .. }))
                });
                workers.extend(plan.make.iter().map(|number| self::worker(*number, Slot::Idle { since: NOW })));
            }
        }
        prop_assert!(left.iter().all(|(_, left)| *left == 0), "{left:?} {there:?}");
    }
}

/// Workers of a pool of namespace `home` that one namespace has to itself.
mod of_namespaces {
    use super::*;

    fn its(namespace: &str) -> Shared {
        Shared { image: "own".to_owned(), namespace: Some(namespace.to_owned()) }
    }

    fn counts(text: &[(&str, u32)]) -> BTreeMap<Shared, u32> {
        text.iter().map(|(namespace, count)| (its(namespace), *count)).collect()
    }

    fn alive(text: &[(&str, u32)]) -> BTreeMap<Shared, There> {
        let there = |(group, alive)| (group, There { alive, ..There::default() });
        counts(text).into_iter().map(there).collect()
    }

    fn goals(wish: &Wish, there: &[(&str, u32)]) -> BTreeMap<String, Goal> {
        let goals = wish.goals(&its("home"), &alive(there), &BTreeSet::new(), NOW);
        goals.into_iter().map(|(group, goal)| (group.namespace.unwrap(), goal)).collect()
    }

    #[rstest]
    #[case::they_are_ready_in_the_pools_own(&[], &[], &[("home", 3)])]
    #[case::or_where_they_are(&[], &[("a", 2)], &[("a", 2), ("home", 1)])]
    #[case::where_jobs_need_them(&[("a", 9)], &[("home", 3)], &[("a", 3), ("home", 0)])]
    #[case::in_turn(&[("a", 9), ("b", 9)], &[], &[("a", 2), ("b", 1), ("home", 0)])]
    #[case::whoever_has_them(&[("b", 1)], &[("a", 3)], &[("a", 2), ("b", 1), ("home", 0)])]
    #[case::no_more_than_there_are(&[("b", 3)], &[("a", 3)], &[("a", 0), ("b", 3), ("home", 0)])]
    fn as_many_as_are_written_are_divided(
        #[case] needed: &[(&str, u32)],
        #[case] there: &[(&str, u32)],
        #[case] expected: &[(&str, u32)],
    ) {
        let goals = goals(&Wish::Divided { replicas: 3, needed: counts(needed) }, there);
        let wanted: Vec<(&str, u32)> =
            goals.iter().map(|(namespace, goal)| (namespace.as_str(), goal.wanted())).collect();
        assert_eq!(wanted, expected);
    }

    #[test]
    fn who_gets_fewer_than_it_asks_for_gives_back_those_with_jobs_and_nobody_else_does() {
        let wish = |needed| Wish::Follow { needed: counts(needed), min: 0, max: 4, after: 300 };
        let goals = goals(&wish(&[("a", 9), ("b", 1)]), &[("a", 4)]);
        assert_eq!(goals["a"], Goal::Replicas(3));
        assert_eq!(goals["b"], Goal::Follow { needed: 1, min: 0, max: 1, after: 300 });
    }

    #[test]
    fn a_namespace_with_several_images_gets_no_more_than_the_others() {
        let of = |namespace: &str, image: &str, needed: u32| {
            (Shared { image: image.to_owned(), namespace: Some(namespace.to_owned()) }, needed)
        };
        let needed = BTreeMap::from([of("a", "x", 9), of("a", "y", 9), of("a", "z", 9), of("b", "x", 9)]);
        let goals = Wish::Follow { needed, min: 0, max: 6, after: 300 }.goals(
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
    #[case::written(|needed| Wish::Divided { replicas: 1, needed })]
    #[case::followed(|needed| Wish::Follow { needed, min: 0, max: 1, after: 300 })]
    fn where_workers_are_fewer_than_namespaces_each_gets_some_within_a_day(
        #[case] wish: fn(BTreeMap<Shared, u32>) -> Wish,
    ) {
        let of = |needed: &[(&str, u32)], now: i64| {
            let goals = wish(counts(needed)).goals(&its("home"), &BTreeMap::new(), &BTreeSet::new(), now);
            let got = goals.into_iter().filter(|(_, goal)| goal.wanted() > 0);
            got.map(|(group, _)| group.namespace.unwrap()).collect::<Vec<_>>()
        };
        let all = [("a", 9), ("b", 9), ("c", 9)];
        let got: BTreeSet<Vec<String>> = (0..24).map(|turn| of(&all, NOW + turn * TURN)).collect();
        assert_eq!(got, ["a", "b", "c"].map(|name| vec![name.to_owned()]).into());
        let begin = NOW - NOW.rem_euclid(TURN);
        assert_eq!(of(&all, begin), of(&all, begin + TURN - 1), "nobody loses its workers within a turn");
    }

    /// One of `a` is busy for ever, as others of its jobs follow; `b` waits.
    #[test]
    fn one_namespace_does_not_hold_all_workers_for_ever() {
        let wish = Wish::Divided { replicas: 2, needed: counts(&[("a", 9), ("b", 9)]) };
        let busy = vec![worker(0, Slot::Busy), worker(1, Slot::Busy)];
        let goals = wish.goals(&its("home"), &alive(&[("a", 2)]), &BTreeSet::new(), NOW);
        let evidence = |(group, goal): (Shared, Goal)| {
            let workers = if group == its("a") { busy.clone() } else { Vec::new() };
            let (answer, deaths, taken, room) = (Answer::Known, Deaths::default(), BTreeSet::new(), u32::MAX);
            (group, Evidence { now: NOW, goal, workers, answer, deaths, taken, room })
        };
        let plans = scale_all(&goals.into_iter().map(evidence).collect(), wish.most());
        assert_eq!(plans[&its("a")].drain, [(1, Drain::Graceful)]);
        assert_eq!(plans[&its("b")].make, Vec::<u32>::new(), "not before that one takes no more jobs");
    }
}
