use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::machine::Index;
use Order::{BestEffortFifo, FairShare, StrictFifo};
use Resource::{Cpus, Gpus, Jobs, Memory};

fn job(cpus: u64) -> Amounts {
    Amounts::of(&[(Jobs, 1), (Cpus, cpus)])
}

fn claim(name: &str, namespace: &str, created: i64, uses: u64, asks: u32) -> Claim {
    let (uid, namespace, asks) = (name.into(), namespace.into(), Indices::first(asks));
    Claim { uid, namespace, priority: 0, created, each: job(1), uses, unknown: 0, last: 0, passed: 0, asks }
}

fn terms(order: Order, quota: &[(Resource, u64)]) -> Terms {
    Terms { order, stopped: false, quota: Limits::of(quota), per_namespace: Limits::default() }
}

/// What each claim got, by name, in the order in which it did.
fn granted(claims: &[Claim], admission: &Admission) -> Vec<(String, usize)> {
    admission.grants.iter().map(|(place, asks)| (claims[*place].uid.to_string(), asks.len())).collect()
}

/// Who waits: name, place, jobs that are asked for before.
fn waiting(claims: &[Claim], admission: &Admission) -> Vec<(String, Option<usize>, u64)> {
    let told = |waits: &Waits| (claims[waits.claim].uid.to_string(), waits.place, waits.before);
    admission.waiting.iter().map(told).collect()
}

fn named(all: &[(&str, usize)]) -> Vec<(String, usize)> {
    all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn a_part_is_granted_and_the_rest_waits() {
    let claims = [claim("b", "n", 2, 0, 4), claim("a", "n", 1, 1, 3)];
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let admission = admit(&terms(strategy, &[(Jobs, 5)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("a", 3), ("b", 1)]), "{strategy:?}");
        assert_eq!(admission.grants[1].1.to_string(), "0", "the smallest first");
        assert_eq!(waiting(&claims, &admission), [("b".to_owned(), Some(1), 0)], "{strategy:?}");
        assert_eq!(admission.waiting[0].why, Why::Quota(Jobs, Scope::Queue));
        assert_eq!((admission.waiting[0].jobs, admission.used.get(Jobs)), (3, 5));
    }
}

#[test]
fn priority_comes_before_fairness_and_that_before_age() {
    let mut claims = vec![
        claim("old", "busy", 1, 6, 9),
        claim("young", "idle", 2, 0, 9),
        claim("urgent", "busy", 3, 0, 2),
        claim("later", "idle", 4, 0, 1),
    ];
    claims[2].priority = 10;
    let admission = admit(&terms(FairShare, &[(Jobs, 12)]), &claims);
    assert_eq!(granted(&claims, &admission), named(&[("urgent", 2), ("young", 4)]), "busy has eight by then");
    let places = waiting(&claims, &admission);
    assert_eq!(
        places,
        [("young".to_owned(), Some(1), 0), ("old".to_owned(), Some(2), 5), ("later".to_owned(), Some(3), 14)]
    );
    let admission = admit(&terms(BestEffortFifo, &[(Jobs, 12)]), &claims);
    assert_eq!(granted(&claims, &admission), named(&[("urgent", 2), ("old", 4)]));
}

#[test]
fn namespaces_that_ask_for_much_end_up_even() {
    let claims =
        [claim("a", "one", 1, 0, 100_000), claim("b", "two", 2, 0, 100_000), claim("c", "three", 3, 30_000, 9)];
    let admission = admit(&terms(FairShare, &[(Jobs, 90_000)]), &claims);
    let of = |name: &str| {
        granted(&claims, &admission).into_iter().find(|(other, _)| other == name).map_or(0, |(_, count)| count)
    };
    assert_eq!(of("a") + of("b") + of("c"), 60_000);
    assert!(of("a").abs_diff(of("b")) <= 1, "{} {}", of("a"), of("b"));
}

#[test]
fn a_small_one_passes_a_large_one_unless_it_may_not() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("small", "n", 2, 0, 1), claim("other", "m", 3, 7, 0)];
    claims[0].each = job(4);
    for strategy in [FairShare, BestEffortFifo] {
        let admission = admit(&terms(strategy, &[(Cpus, 8)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("small", 1)]), "{strategy:?}");
        assert_eq!(admission.waiting[0].why, Why::Quota(Cpus, Scope::Queue));
    }
    let admission = admit(&terms(StrictFifo, &[(Cpus, 8)]), &claims);
    assert!(admission.grants.is_empty());
    let whys: Vec<Why> = admission.waiting.iter().map(|waits| waits.why).collect();
    assert_eq!(whys, [Why::Quota(Cpus, Scope::Queue), Why::Behind]);
}

/// Room is kept for one job of it, and only of what it lacks.
#[test]
fn who_was_passed_too_often_is_waited_for() {
    let gpu = Amounts::of(&[(Jobs, 1), (Gpus, 1)]);
    let mut claims = [
        claim("large", "n", 1, 0, 5),
        claim("small", "n", 2, 0, 9),
        claim("other", "m", 3, 5, 9),
        claim("gpu", "m", 4, 0, 1),
    ];
    (claims[0].each, claims[3].each) = (job(4), gpu);
    for strategy in [FairShare, BestEffortFifo] {
        let terms = terms(strategy, &[(Cpus, 8), (Gpus, 1)]);
        claims[0].passed = PATIENCE - 1;
        let admission = admit(&terms, &claims);
        assert_eq!(admission.used.get(Cpus), 8, "{strategy:?}: the small ones pass");
        let passed: HashMap<usize, u32> = admission.passed(&claims).collect();
        assert_eq!(passed[&0], PATIENCE);
        claims[0].passed = PATIENCE;
        let admission = admit(&terms, &claims);
        assert_eq!(granted(&claims, &admission), named(&[("gpu", 1)]), "{strategy:?}");
        assert_eq!(admission.passed(&claims).find(|(place, _)| *place == 0), Some((0, PATIENCE + 1)));
        let small = admission.waiting.iter().find(|waits| waits.claim == 1).unwrap();
        assert_eq!(small.why, Why::Behind);
        claims[2].uses = 4;
        let admission = admit(&terms, &claims);
        assert!(granted(&claims, &admission).contains(&("large".to_owned(), 1)));
        assert_eq!(admission.passed(&claims).find(|(place, _)| *place == 0), Some((0, 0)), "it got some");
        claims[2].uses = 5;
    }
}

/// Whoever is stopped by the limit of its own namespace holds up nobody in another one.
#[test]
fn who_is_waited_for_in_its_namespace_holds_up_no_other() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("has", "n", 2, 3, 9), claim("other", "m", 3, 0, 9)];
    (claims[0].each, claims[0].passed) = (job(4), PATIENCE);
    let own = Terms { per_namespace: Limits::of(&[(Cpus, 6)]), ..terms(FairShare, &[(Cpus, 9)]) };
    let admission = admit(&own, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("other", 6)]), "all that is left of the queue");
}

/// Room is kept for one at a time, as several could wait for each other; and for nobody who has just got some.
#[test]
fn room_is_kept_for_one_at_a_time() {
    let of = |cpus: u64, gpus: u64| Amounts::of(&[(Jobs, 1), (Cpus, cpus), (Gpus, gpus)]);
    let mut claims = [
        claim("first", "n", 1, 0, 1),
        claim("second", "n", 2, 0, 1),
        claim("small", "m", 3, 0, 9),
        claim("has", "m", 4, 1, 0),
    ];
    (claims[0].each, claims[1].each, claims[3].each) = (of(1, 1), of(2, 1), of(1, 1));
    (claims[0].passed, claims[1].passed) = (PATIENCE, PATIENCE);
    for strategy in [FairShare, BestEffortFifo] {
        let admission = admit(&terms(strategy, &[(Cpus, 4), (Gpus, 1)]), &claims);
        let small: usize = granted(&claims, &admission).iter().map(|(_, jobs)| jobs).sum();
        assert_eq!((small, admission.waited_for.as_slice()), (2, &[0][..]), "{strategy:?}");
    }
    let mut claims = [claim("large", "n", 1, 0, 2), claim("small", "m", 2, 0, 1)];
    (claims[0].each, claims[0].passed, claims[0].priority) = (job(2), PATIENCE, 1);
    let admission = admit(&terms(FairShare, &[(Cpus, 3)]), &claims);
    assert_eq!(granted(&claims, &admission), named(&[("large", 1), ("small", 1)]));
    assert!(admission.waited_for.is_empty());
}

/// One in each namespace that its own limit stops, and one that the queue's does: none of them waits for another.
#[test]
fn room_is_kept_for_one_within_each_limit() {
    let mut claims = [
        claim("one", "n", 1, 0, 1),
        claim("two", "m", 2, 0, 1),
        claim("of-all", "o", 3, 0, 1),
        claim("has", "n", 4, 1, 0),
        claim("has-too", "m", 5, 1, 0),
    ];
    for claim in &mut claims[..3] {
        (claim.each, claim.passed) = (job(4), PATIENCE);
    }
    for strategy in [FairShare, BestEffortFifo] {
        let terms = Terms { per_namespace: Limits::of(&[(Cpus, 4)]), ..terms(strategy, &[(Cpus, 5)]) };
        let mut waited_for = admit(&terms, &claims).waited_for;
        waited_for.sort_unstable();
        assert_eq!(waited_for, [0, 1, 2], "{strategy:?}");
    }
}

/// Who comes first anyway passes nobody.
#[test]
fn only_those_who_are_not_before_it_pass_it() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("small", "m", 2, 0, 1), claim("has", "m", 3, 1, 0)];
    claims[0].each = job(4);
    for (priority, passed) in [(5, 0), (0, 1), (-5, 1)] {
        claims[1].priority = priority;
        for strategy in [FairShare, BestEffortFifo] {
            let admission = admit(&terms(strategy, &[(Cpus, 4)]), &claims);
            assert_eq!(granted(&claims, &admission), named(&[("small", 1)]));
            assert_eq!(admission.passed(&claims).collect::<Vec<_>>(), [(0, passed)], "{strategy:?}, {priority}");
        }
    }
}

/// What is said of an HTCJob of which nothing is known takes from its own namespace, where that has a limit.
#[test]
fn what_is_unknown_takes_no_more_than_its_namespace_may_have() {
    let mut claims = [claim("unknown", "n", 1, 1, 0), claim("own", "n", 2, 0, 9), claim("other", "m", 3, 0, 9)];
    claims[0].unknown = 100_000;
    let own = Terms { per_namespace: Limits::of(&[(Jobs, 4)]), ..terms(FairShare, &[(Jobs, 10)]) };
    let admission = admit(&own, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("other", 4)]));
    assert_eq!((admission.used.get(Jobs), admission.namespaces["n"].used.get(Jobs)), (8, 4));
    assert!(admit(&terms(FairShare, &[(Jobs, 10)]), &claims).grants.is_empty(), "without it all of them count");
}

#[test]
fn what_is_too_large_says_so_at_once_and_holds_up_nobody() {
    let mut claims = [claim("huge", "n", 1, 0, 1), claim("a", "n", 2, 0, 1)];
    claims[0].each = Amounts::of(&[(Jobs, 1), (Memory, 2000)]);
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let admission = admit(&terms(strategy, &[(Jobs, 2), (Memory, 1000)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("a", 1)]), "{strategy:?}");
        let waits = &admission.waiting[0];
        assert_eq!((waits.why, waits.place), (Why::TooLarge(Memory, Scope::Queue), None));
    }
    let own = Terms { per_namespace: Limits::of(&[(Memory, 1000)]), ..terms(FairShare, &[]) };
    assert_eq!(admit(&own, &claims).waiting[0].why, Why::TooLarge(Memory, Scope::Namespace));
}

#[test]
fn a_namespace_has_no_more_than_its_own_limit() {
    let claims = [claim("a", "one", 1, 2, 9), claim("b", "two", 2, 0, 9)];
    let terms = Terms { per_namespace: Limits::of(&[(Jobs, 3)]), ..terms(FairShare, &[(Jobs, 100)]) };
    let admission = admit(&terms, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("b", 3), ("a", 1)]));
    assert!(admission.waiting.iter().all(|waits| waits.why == Why::Quota(Jobs, Scope::Namespace)));
    assert_eq!(admission.namespaces["one"], Share { used: job(1).times(3), waiting: 1 });
}

#[test]
fn a_queue_that_is_stopped_gives_nothing_new() {
    let claims = [claim("a", "one", 1, 2, 9)];
    let admission = admit(&Terms { stopped: true, ..terms(FairShare, &[(Jobs, 100)]) }, &claims);
    assert!(admission.grants.is_empty());
    assert_eq!((admission.waiting[0].why, admission.used.get(Jobs)), (Why::Stopped, 2));
}

/// One that waits gets room although another namespace never stops asking.
#[test]
fn a_namespace_that_comes_later_is_served_as_jobs_end() {
    let mut many = claim("many", "early", 1, 10, 10_000);
    let mut few = claim("few", "late", 2, 0, 10);
    let terms = terms(FairShare, &[(Jobs, 10)]);
    for turn in 0.. {
        assert!(turn < 5, "late waits for ever");
        // Two jobs of the one that has most end at a time.
        many.uses = many.uses.saturating_sub(2);
        let claims = [many.clone(), few.clone()];
        for (place, asks) in admit(&terms, &claims).grants {
            if place == 0 { many.uses += asks.len() as u64 } else { few.uses += asks.len() as u64 }
        }
        if few.uses >= 5 {
            break;
        }
    }
}

#[test]
fn ten_thousand_that_wait_take_no_time() {
    let claims: Vec<Claim> = (0..10_000_i64)
        .map(|number| Claim {
            priority: number % 3,
            each: job(1 + number.unsigned_abs() % 4),
            ..claim(&format!("uid-{number}"), &format!("namespace-{}", number % 50), number, 1, 100)
        })
        .collect();
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let terms = terms(strategy, &[(Jobs, 60_000), (Cpus, 100_000)]);
        let began = Instant::now();
        let admission = admit(&terms, &claims);
        let took = began.elapsed();
        assert!(!admission.grants.is_empty() && admission.waiting.len() > 5_000);
        // Without optimisation, beside other tests.
        assert!(took < Duration::from_secs(2), "{strategy:?}: {took:?}");
        println!("{strategy:?}: {took:?}");
    }
}

fn amounts() -> impl Strategy<Value = Amounts> {
    (0_u64..4, 0_u64..4).prop_map(|(cpus, memory)| Amounts::of(&[(Jobs, 1), (Cpus, cpus), (Memory, memory)]))
}

fn limits() -> impl Strategy<Value = Limits> {
    let limit = || proptest::option::of(0_u64..12);
    (limit(), limit(), limit()).prop_map(|(jobs, cpus, memory)| {
        let all = [(Jobs, jobs), (Cpus, cpus), (Memory, memory)];
        let set: Vec<(Resource, u64)> =
            all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect();
        Limits::of(&set)
    })
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let passed = prop_oneof![3 => Just(0), 1 => Just(PATIENCE)];
    let history = (0_u64..4, 0_u64..3, passed);
    let one = (0..4_usize, -1_i64..2, 0_i64..5, amounts(), history, proptest::collection::vec(0_u32..20, 0..8));
    proptest::collection::vec(one, 0..12).prop_map(|all| {
        let mut claims = Vec::new();
        for (namespace, priority, created, each, (uses, last, passed), asks) in all {
            let uid = format!("uid-{:02}", claims.len()).as_str().into();
            let namespace = ["a", "b", "c", "d"][namespace].into();
            let asks = asks.into_iter().map(Index).collect();
            claims.push(Claim { uid, namespace, priority, created, each, uses, unknown: 0, last, passed, asks });
        }
        claims
    })
}

fn all_terms() -> impl Strategy<Value = Terms> {
    let order = prop_oneof![Just(FairShare), Just(BestEffortFifo), Just(StrictFifo)];
    (order, proptest::bool::weighted(0.1), limits(), limits())
        .prop_map(|(order, stopped, quota, per_namespace)| Terms { order, stopped, quota, per_namespace })
}

/// What is in use of `which`, with `more` of each claim.
fn use_of(claims: &[Claim], more: &HashMap<usize, u64>, which: impl Fn(&Claim) -> bool) -> Amounts {
    let its = claims.iter().enumerate().filter(|(_, claim)| which(claim));
    its.fold(Amounts::default(), |sum, (place, claim)| {
        sum.plus(&claim.each.times(claim.uses + more.get(&place).copied().unwrap_or_default()))
    })
}

fn counts(admission: &Admission) -> HashMap<usize, u64> {
    admission.grants.iter().map(|(place, asks)| (*place, asks.len() as u64)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Nothing is over a limit that was not before; what is granted was asked for; nothing that is in use is taken.
    #[test]
    fn never_over_the_quota_unless_it_was_before(terms in all_terms(), claims in claims()) {
        let admission = admit(&terms, &claims);
        let (none, more) = (HashMap::new(), counts(&admission));
        let mut scopes: Vec<(Limits, Amounts, Amounts)> =
            vec![(terms.quota, use_of(&claims, &none, |_| true), use_of(&claims, &more, |_| true))];
        for namespace in ["a", "b", "c", "d"] {
            let its = |claim: &Claim| &*claim.namespace == namespace;
            scopes.push((terms.per_namespace, use_of(&claims, &none, its), use_of(&claims, &more, its)));
        }
        prop_assert_eq!(admission.used, scopes[0].2);
        for (limits, before, after) in scopes {
            for (resource, limit) in limits.iter() {
                let (before, after) = (before.get(resource), after.get(resource));
                prop_assert!(after <= limit || after == before, "{} of {limit}, {before} before", after);
            }
        }
        for (place, asks) in &admission.grants {
            prop_assert!(asks.without(&claims[*place].asks).is_empty() && !asks.is_empty());
        }
    }

    /// Unless nobody may pass, or somebody is waited for: who waits would not fit.
    #[test]
    fn no_room_is_left_that_somebody_asks_for(terms in all_terms(), mut claims in claims()) {
        for claim in &mut claims {
            claim.passed = 0;
        }
        let admission = admit(&terms, &claims);
        let more = counts(&admission);
        let used = use_of(&claims, &more, |_| true);
        let mut all = 0;
        for waits in &admission.waiting {
            let claim = &claims[waits.claim];
            let own = use_of(&claims, &more, |other| other.namespace == claim.namespace);
            let fits = terms.quota.short_of(&used, &claim.each).is_none()
                && terms.per_namespace.short_of(&own, &claim.each).is_none();
            prop_assert!(!fits || terms.stopped || terms.order == StrictFifo, "{waits:?}");
            prop_assert!(!fits || waits.why == Why::Behind || waits.why == Why::Stopped, "{waits:?}");
            prop_assert_eq!(waits.jobs, claim.asks.len() as u64 - more.get(&waits.claim).copied().unwrap_or_default());
            all += 1;
        }
        let asking = claims.iter().enumerate().filter(|(place, claim)| {
            claim.asks.len() as u64 > more.get(place).copied().unwrap_or_default()
        });
        prop_assert_eq!(all, asking.count(), "everybody who waits is told why");
    }

    /// Of two that could be served the first gets all that it asks for before the second gets anything.
    #[test]
    fn in_strict_order_nobody_passes(terms in all_terms(), claims in claims()) {
        let terms = Terms { order: StrictFifo, stopped: false, ..terms };
        let admission = admit(&terms, &claims);
        let more = counts(&admission);
        let key = |place: usize| (std::cmp::Reverse(claims[place].priority), claims[place].created, claims[place].uid.clone());
        for waits in admission.waiting.iter().filter(|waits| waits.place.is_some()) {
            for place in more.keys() {
                prop_assert!(key(*place) <= key(waits.claim), "{} passed {}", claims[*place].uid, claims[waits.claim].uid);
            }
        }
    }

    #[test]
    fn the_order_of_the_claims_makes_no_difference(terms in all_terms(), claims in claims(), turn in 0_usize..12) {
        let named = |claims: &[Claim]| {
            let admission = admit(&terms, claims);
            let grants: Vec<_> =
                admission.grants.iter().map(|(place, asks)| (claims[*place].uid.clone(), asks.clone())).collect();
            let waiting: Vec<_> = admission
                .waiting
                .iter()
                .map(|waits| (claims[waits.claim].uid.clone(), waits.why, waits.place, waits.before))
                .collect();
            (grants, waiting, admission.used, admission.namespaces)
        };
        let mut other = claims.clone();
        other.rotate_left(turn % claims.len().max(1));
        other.reverse();
        prop_assert_eq!(named(&claims), named(&other));
    }

    /// Where jobs end one after another, every namespace that has nothing is served, however much the others ask for, and though all
    /// of them have nothing again and again.
    #[test]
    fn no_namespace_starves(quota in 1_u64..6, asks in proptest::collection::vec((1_u64..50, 0_u64..6), 2..4)) {
        let names = ["a", "b", "c"];
        let terms = terms(FairShare, &[(Jobs, quota)]);
        let mut claims: Vec<Claim> =
            asks.iter().zip(names).map(|((_, uses), name)| claim(name, name, 1, *uses, 1000)).collect();
        let mut served: BTreeSet<usize> = (0..claims.len()).filter(|place| claims[*place].uses > 0).collect();
        let most: u64 = asks.iter().map(|(_, uses)| uses).sum::<u64>() + quota * 3 + 3;
        let mut number = 0;
        for _ in 0..most {
            for (place, asks) in admit(&terms, &claims).grants {
                served.insert(place);
                number += 1;
                claims[place].uses += asks.len() as u64;
                claims[place].last = number;
            }
            // One job ends, of whoever has most.
            let longest = (0..claims.len()).max_by_key(|place| claims[*place].uses).unwrap();
            claims[longest].uses = claims[longest].uses.saturating_sub(1);
        }
        prop_assert_eq!(served.len(), claims.len(), "{:?}", claims);
    }
}

proptest! {
    // Hundreds of decisions in each.
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Where jobs end one after another, each HTCJob is served, however large its jobs are and however many small ones are asked for.
    #[test]
    fn no_large_one_starves(
        order in prop_oneof![Just(FairShare), Just(BestEffortFifo)],
        same in any::<bool>(),
        sizes in proptest::collection::vec(1_u64..9, 2..5),
    ) {
        let terms = terms(order, &[(Cpus, 8)]);
        let claim = |(number, cpus): (usize, &u64)| {
            let name = format!("uid-{number}");
            let namespace = if same { "n" } else { name.as_str() };
            Claim { each: job(*cpus), ..claim(&name, namespace, 1, 0, 1000) }
        };
        let mut claims: Vec<Claim> = sizes.iter().enumerate().map(claim).collect();
        let mut served = BTreeSet::new();
        let rounds = (PATIENCE + 20) * 5;
        for round in 0..rounds {
            let admission = admit(&terms, &claims);
            let passed: Vec<_> = admission.passed(&claims).collect();
            for (place, passed) in passed {
                claims[place].passed = passed;
            }
            for (place, asks) in &admission.grants {
                served.insert(*place);
                claims[*place].uses += asks.len() as u64;
                claims[*place].last = u64::from(round) + 1;
            }
            // One job ends at a time, of the smallest that run: the room that comes free is never enough for a large one at once.
            let ends = (0..claims.len()).filter(|place| claims[*place].uses > 0).min_by_key(|place| claims[*place].each.get(Cpus));
            claims[ends.unwrap()].uses -= 1;
        }
        // In order of age the first has all that it asks for before the others have a right to anything.
        let all: BTreeSet<usize> = if order == FairShare && !same { (0..claims.len()).collect() } else { BTreeSet::from([0]) };
        prop_assert!(served.is_superset(&all), "{served:?} of {sizes:?}");
    }

    /// More quota never means less granted, where all jobs are alike.
    #[test]
    fn more_quota_is_no_less_room(quota in 0_u64..20, claims in claims()) {
        let alike: Vec<Claim> = claims.into_iter().map(|claim| Claim { each: job(1), ..claim }).collect();
        for strategy in [FairShare, BestEffortFifo, StrictFifo] {
            let granted = |quota| admit(&terms(strategy, &[(Jobs, quota)]), &alike).used.get(Jobs);
            prop_assert!(granted(quota) <= granted(quota + 1));
        }
    }
}
