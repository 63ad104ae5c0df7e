use std::time::{Duration, Instant};

use crate::ids::Index;
use AdmissionOrder::{BestEffortFifo, FairShare, StrictFifo};
use Resource::{Cpus, Gpus, Jobs, Memory};
use proptest::prelude::*;

use super::*;

fn job(cpus: u64) -> Amounts {
    Amounts::of(&[(Jobs, 1), (Cpus, cpus)])
}

fn claim(name: &str, namespace: &str, created: i64, uses: u64, asks: u32) -> QuotaCandidate {
    let (uid, namespace, asks) = (name.into(), namespace.into(), Indices::first(asks));
    QuotaCandidate {
        uid,
        namespace,
        priority: 0,
        created,
        per_job: job(1),
        uses,
        unknown: 0,
        last_grant: 0,
        times_skipped: 0,
        requested: asks,
    }
}

fn terms(order: AdmissionOrder, quota: &[(Resource, u64)]) -> QueuePolicy {
    QueuePolicy { order, stopped: false, quota: QuotaLimits::of(quota), per_namespace: QuotaLimits::default() }
}

/// Returns the grants by name, in their order.
fn granted(claims: &[QuotaCandidate], admission: &Admission) -> Vec<(String, usize)> {
    admission.grants.iter().map(|(place, asks)| (claims[*place].uid.to_string(), asks.len())).collect()
}

/// Returns the waiting candidates: name, position, jobs requested ahead.
fn waiting(claims: &[QuotaCandidate], admission: &Admission) -> Vec<(String, Option<usize>, u64)> {
    let told = |waits: &WaitingCandidate| (claims[waits.candidate].uid.to_string(), waits.position, waits.before);
    admission.waiting.iter().map(told).collect()
}

fn named(all: &[(&str, usize)]) -> Vec<(String, usize)> {
    all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn claim_is_granted_in_part_and_the_rest_waits() {
    let claims = [claim("b", "n", 2, 0, 4), claim("a", "n", 1, 1, 3)];
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let admission = admit(&terms(strategy, &[(Jobs, 5)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("a", 3), ("b", 1)]), "{strategy:?}");
        assert_eq!(admission.grants[1].1.to_string(), "0", "the smallest first");
        assert_eq!(waiting(&claims, &admission), [("b".to_owned(), Some(1), 0)], "{strategy:?}");
        assert_eq!(admission.waiting[0].reason, WaitReason::Quota(Jobs, QuotaScope::Queue));
        assert_eq!((admission.waiting[0].jobs, admission.used.get(Jobs)), (3, 5));
    }
}

#[test]
fn priority_precedes_fair_share_and_fair_share_precedes_age() {
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
fn fair_share_evens_out_greedy_namespaces() {
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
fn small_claim_skips_a_large_one_except_in_strict_order() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("small", "n", 2, 0, 1), claim("other", "m", 3, 7, 0)];
    claims[0].per_job = job(4);
    for strategy in [FairShare, BestEffortFifo] {
        let admission = admit(&terms(strategy, &[(Cpus, 8)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("small", 1)]), "{strategy:?}");
        assert_eq!(admission.waiting[0].reason, WaitReason::Quota(Cpus, QuotaScope::Queue));
    }
    let admission = admit(&terms(StrictFifo, &[(Cpus, 8)]), &claims);
    assert!(admission.grants.is_empty());
    let whys: Vec<WaitReason> = admission.waiting.iter().map(|waits| waits.reason).collect();
    assert_eq!(whys, [WaitReason::Quota(Cpus, QuotaScope::Queue), WaitReason::Behind]);
}

/// Quota is reserved for one job only, and only of the resource that is short.
#[test]
fn often_skipped_claim_gets_a_reservation() {
    let gpu = Amounts::of(&[(Jobs, 1), (Gpus, 1)]);
    let mut claims = [
        claim("large", "n", 1, 0, 5),
        claim("small", "n", 2, 0, 9),
        claim("other", "m", 3, 5, 9),
        claim("gpu", "m", 4, 0, 1),
    ];
    (claims[0].per_job, claims[3].per_job) = (job(4), gpu);
    for strategy in [FairShare, BestEffortFifo] {
        let terms = terms(strategy, &[(Cpus, 8), (Gpus, 1)]);
        claims[0].times_skipped = SKIPS_BEFORE_RESERVATION - 1;
        let admission = admit(&terms, &claims);
        assert_eq!(admission.used.get(Cpus), 8, "{strategy:?}: the small ones pass");
        let passed: HashMap<usize, u32> = admission.skip_counts(&claims).collect();
        assert_eq!(passed[&0], SKIPS_BEFORE_RESERVATION);
        claims[0].times_skipped = SKIPS_BEFORE_RESERVATION;
        let admission = admit(&terms, &claims);
        assert_eq!(granted(&claims, &admission), named(&[("gpu", 1)]), "{strategy:?}");
        assert_eq!(
            admission.skip_counts(&claims).find(|(place, _)| *place == 0),
            Some((0, SKIPS_BEFORE_RESERVATION + 1))
        );
        let small = admission.waiting.iter().find(|waits| waits.candidate == 1).unwrap();
        assert_eq!(small.reason, WaitReason::Behind);
        claims[2].uses = 4;
        let admission = admit(&terms, &claims);
        assert!(granted(&claims, &admission).contains(&("large".to_owned(), 1)));
        assert_eq!(admission.skip_counts(&claims).find(|(place, _)| *place == 0), Some((0, 0)), "it got some");
        claims[2].uses = 5;
    }
}

/// A candidate that its own namespace's limit stops does not block other namespaces.
#[test]
fn reservation_within_a_namespace_blocks_no_other_namespace() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("has", "n", 2, 3, 9), claim("other", "m", 3, 0, 9)];
    (claims[0].per_job, claims[0].times_skipped) = (job(4), SKIPS_BEFORE_RESERVATION);
    let own = QueuePolicy { per_namespace: QuotaLimits::of(&[(Cpus, 6)]), ..terms(FairShare, &[(Cpus, 9)]) };
    let admission = admit(&own, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("other", 6)]), "all that is left of the queue");
}

/// Quota is reserved for one candidate at a time, as several could wait for each other; and not for one that was just
/// granted some.
#[test]
fn quota_is_reserved_for_one_claim_at_a_time() {
    let of = |cpus: u64, gpus: u64| Amounts::of(&[(Jobs, 1), (Cpus, cpus), (Gpus, gpus)]);
    let mut claims = [
        claim("first", "n", 1, 0, 1),
        claim("second", "n", 2, 0, 1),
        claim("small", "m", 3, 0, 9),
        claim("has", "m", 4, 1, 0),
    ];
    (claims[0].per_job, claims[1].per_job, claims[3].per_job) = (of(1, 1), of(2, 1), of(1, 1));
    (claims[0].times_skipped, claims[1].times_skipped) = (SKIPS_BEFORE_RESERVATION, SKIPS_BEFORE_RESERVATION);
    for strategy in [FairShare, BestEffortFifo] {
        let admission = admit(&terms(strategy, &[(Cpus, 4), (Gpus, 1)]), &claims);
        let small: usize = granted(&claims, &admission).iter().map(|(_, jobs)| jobs).sum();
        assert_eq!((small, admission.reservations.as_slice()), (2, &[0][..]), "{strategy:?}");
    }
    let mut claims = [claim("large", "n", 1, 0, 2), claim("small", "m", 2, 0, 1)];
    (claims[0].per_job, claims[0].times_skipped, claims[0].priority) = (job(2), SKIPS_BEFORE_RESERVATION, 1);
    let admission = admit(&terms(FairShare, &[(Cpus, 3)]), &claims);
    assert_eq!(granted(&claims, &admission), named(&[("large", 1), ("small", 1)]));
    assert!(admission.reservations.is_empty());
}

/// One candidate in each namespace that its own limit stops, and one that the queue's limit stops: none waits for
/// another.
#[test]
fn quota_is_reserved_for_one_claim_within_each_limit() {
    let mut claims = [
        claim("one", "n", 1, 0, 1),
        claim("two", "m", 2, 0, 1),
        claim("of-all", "o", 3, 0, 1),
        claim("has", "n", 4, 1, 0),
        claim("has-too", "m", 5, 1, 0),
    ];
    for claim in &mut claims[..3] {
        (claim.per_job, claim.times_skipped) = (job(4), SKIPS_BEFORE_RESERVATION);
    }
    for strategy in [FairShare, BestEffortFifo] {
        let terms = QueuePolicy { per_namespace: QuotaLimits::of(&[(Cpus, 4)]), ..terms(strategy, &[(Cpus, 5)]) };
        let mut waited_for = admit(&terms, &claims).reservations;
        waited_for.sort_unstable();
        assert_eq!(waited_for, [0, 1, 2], "{strategy:?}");
    }
}

/// A candidate that is first anyway skips no other.
#[test]
fn skip_counts_only_claims_that_come_later() {
    let mut claims = [claim("large", "n", 1, 0, 1), claim("small", "m", 2, 0, 1), claim("has", "m", 3, 1, 0)];
    claims[0].per_job = job(4);
    for (priority, passed) in [(5, 0), (0, 1), (-5, 1)] {
        claims[1].priority = priority;
        for strategy in [FairShare, BestEffortFifo] {
            let admission = admit(&terms(strategy, &[(Cpus, 4)]), &claims);
            assert_eq!(granted(&claims, &admission), named(&[("small", 1)]));
            assert_eq!(admission.skip_counts(&claims).collect::<Vec<_>>(), [(0, passed)], "{strategy:?}, {priority}");
        }
    }
}

/// Unknown usage of an HTCJob counts in its own namespace, up to the namespace's limit.
#[test]
fn unknown_usage_counts_up_to_the_limit_of_its_namespace() {
    let mut claims = [claim("unknown", "n", 1, 1, 0), claim("own", "n", 2, 0, 9), claim("other", "m", 3, 0, 9)];
    claims[0].unknown = 100_000;
    let own = QueuePolicy { per_namespace: QuotaLimits::of(&[(Jobs, 4)]), ..terms(FairShare, &[(Jobs, 10)]) };
    let admission = admit(&own, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("other", 4)]));
    assert_eq!((admission.used.get(Jobs), admission.namespaces["n"].used.get(Jobs)), (8, 4));
    assert!(admit(&terms(FairShare, &[(Jobs, 10)]), &claims).grants.is_empty(), "without it all of them count");
}

#[test]
fn too_large_claim_is_reported_and_blocks_no_other() {
    let mut claims = [claim("huge", "n", 1, 0, 1), claim("a", "n", 2, 0, 1)];
    claims[0].per_job = Amounts::of(&[(Jobs, 1), (Memory, 2000)]);
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let admission = admit(&terms(strategy, &[(Jobs, 2), (Memory, 1000)]), &claims);
        assert_eq!(granted(&claims, &admission), named(&[("a", 1)]), "{strategy:?}");
        let waits = &admission.waiting[0];
        assert_eq!((waits.reason, waits.position), (WaitReason::TooLarge(Memory, QuotaScope::Queue), None));
    }
    let own = QueuePolicy { per_namespace: QuotaLimits::of(&[(Memory, 1000)]), ..terms(FairShare, &[]) };
    assert_eq!(admit(&own, &claims).waiting[0].reason, WaitReason::TooLarge(Memory, QuotaScope::Namespace));
}

#[test]
fn namespace_never_exceeds_its_own_limit() {
    let claims = [claim("a", "one", 1, 2, 9), claim("b", "two", 2, 0, 9)];
    let terms = QueuePolicy { per_namespace: QuotaLimits::of(&[(Jobs, 3)]), ..terms(FairShare, &[(Jobs, 100)]) };
    let admission = admit(&terms, &claims);
    assert_eq!(granted(&claims, &admission), named(&[("b", 3), ("a", 1)]));
    assert!(admission.waiting.iter().all(|waits| waits.reason == WaitReason::Quota(Jobs, QuotaScope::Namespace)));
    assert_eq!(admission.namespaces["one"], NamespaceUsage { used: job(1).times(3), waiting: 1 });
}

#[test]
fn stopped_queue_grants_nothing() {
    let claims = [claim("a", "one", 1, 2, 9)];
    let admission = admit(&QueuePolicy { stopped: true, ..terms(FairShare, &[(Jobs, 100)]) }, &claims);
    assert!(admission.grants.is_empty());
    assert_eq!((admission.waiting[0].reason, admission.used.get(Jobs)), (WaitReason::Stopped, 2));
}

/// A waiting candidate is served although another namespace never stops requesting.
#[test]
fn late_namespace_is_served_as_jobs_end() {
    let mut many = claim("many", "early", 1, 10, 10_000);
    let mut few = claim("few", "late", 2, 0, 10);
    let terms = terms(FairShare, &[(Jobs, 10)]);
    for turn in 0.. {
        assert!(turn < 5, "late waits for ever");
        // Two jobs of the largest candidate end at a time.
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
fn admission_of_ten_thousand_claims_is_fast() {
    let claims: Vec<QuotaCandidate> = (0..10_000_i64)
        .map(|number| QuotaCandidate {
            priority: number % 3,
            per_job: job(1 + number.unsigned_abs() % 4),
            ..claim(&format!("uid-{number}"), &format!("namespace-{}", number % 50), number, 1, 100)
        })
        .collect();
    for strategy in [FairShare, BestEffortFifo, StrictFifo] {
        let terms = terms(strategy, &[(Jobs, 60_000), (Cpus, 100_000)]);
        let began = Instant::now();
        let admission = admit(&terms, &claims);
        let took = began.elapsed();
        assert!(!admission.grants.is_empty() && admission.waiting.len() > 5_000);
        // Includes builds without optimisation, beside other tests.
        assert!(took < Duration::from_secs(2), "{strategy:?}: {took:?}");
        println!("{strategy:?}: {took:?}");
    }
}

fn amounts() -> impl Strategy<Value = Amounts> {
    (0_u64..4, 0_u64..4).prop_map(|(cpus, memory)| Amounts::of(&[(Jobs, 1), (Cpus, cpus), (Memory, memory)]))
}

fn limits() -> impl Strategy<Value = QuotaLimits> {
    let limit = || proptest::option::of(0_u64..12);
    (limit(), limit(), limit()).prop_map(|(jobs, cpus, memory)| {
        let all = [(Jobs, jobs), (Cpus, cpus), (Memory, memory)];
        let set: Vec<(Resource, u64)> =
            all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect();
        QuotaLimits::of(&set)
    })
}

fn claims() -> impl Strategy<Value = Vec<QuotaCandidate>> {
    let passed = prop_oneof![3 => Just(0), 1 => Just(SKIPS_BEFORE_RESERVATION)];
    let history = (0_u64..4, 0_u64..3, passed);
    let one = (0..4_usize, -1_i64..2, 0_i64..5, amounts(), history, proptest::collection::vec(0_u32..20, 0..8));
    proptest::collection::vec(one, 0..12).prop_map(|all| {
        let mut claims = Vec::new();
        for (namespace, priority, created, each, (uses, last, passed), asks) in all {
            let uid = format!("uid-{:02}", claims.len()).as_str().into();
            let namespace = ["a", "b", "c", "d"][namespace].into();
            let asks = asks.into_iter().map(Index).collect();
            claims.push(QuotaCandidate {
                uid,
                namespace,
                priority,
                created,
                per_job: each,
                uses,
                unknown: 0,
                last_grant: last,
                times_skipped: passed,
                requested: asks,
            });
        }
        claims
    })
}

fn all_terms() -> impl Strategy<Value = QueuePolicy> {
    let order = prop_oneof![Just(FairShare), Just(BestEffortFifo), Just(StrictFifo)];
    (order, proptest::bool::weighted(0.1), limits(), limits())
        .prop_map(|(order, stopped, quota, per_namespace)| QueuePolicy { order, stopped, quota, per_namespace })
}

/// Sums what is in use by `which`, with `more` jobs of each candidate.
fn use_of(claims: &[QuotaCandidate], more: &HashMap<usize, u64>, which: impl Fn(&QuotaCandidate) -> bool) -> Amounts {
    let its = claims.iter().enumerate().filter(|(_, claim)| which(claim));
    its.fold(Amounts::default(), |sum, (place, claim)| {
        sum.plus(&claim.per_job.times(claim.uses + more.get(&place).copied().unwrap_or_default()))
    })
}

fn counts(admission: &Admission) -> HashMap<usize, u64> {
    admission.grants.iter().map(|(place, asks)| (*place, asks.len() as u64)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No limit is exceeded that was not before; only requested jobs are granted; nothing in use is taken away.
    #[test]
    fn admission_never_exceeds_the_quota(terms in all_terms(), claims in claims()) {
        let admission = admit(&terms, &claims);
        let (none, more) = (HashMap::new(), counts(&admission));
        let mut scopes: Vec<(QuotaLimits, Amounts, Amounts)> =
            vec![(terms.quota, use_of(&claims, &none, |_| true), use_of(&claims, &more, |_| true))];
        for namespace in ["a", "b", "c", "d"] {
            let its = |claim: &QuotaCandidate| &*claim.namespace == namespace;
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
            prop_assert!(asks.without(&claims[*place].requested).is_empty() && !asks.is_empty());
        }
    }

    /// A candidate that waits would not fit, unless the order blocks it or quota is reserved.
    #[test]
    fn admission_leaves_no_usable_quota_idle(terms in all_terms(), mut claims in claims()) {
        for claim in &mut claims {
            claim.times_skipped = 0;
        }
        let admission = admit(&terms, &claims);
        let more = counts(&admission);
        let used = use_of(&claims, &more, |_| true);
        let mut all = 0;
        for waits in &admission.waiting {
            let claim = &claims[waits.candidate];
            let own = use_of(&claims, &more, |other| other.namespace == claim.namespace);
            let fits = terms.quota.short_of(&used, &claim.per_job).is_none()
                && terms.per_namespace.short_of(&own, &claim.per_job).is_none();
            prop_assert!(!fits || terms.stopped || terms.order == StrictFifo, "{waits:?}");
            prop_assert!(!fits || waits.reason == WaitReason::Behind || waits.reason == WaitReason::Stopped, "{waits:?}");
            prop_assert_eq!(waits.jobs, claim.requested.len() as u64 - more.get(&waits.candidate).copied().unwrap_or_default());
            all += 1;
        }
        let asking = claims.iter().enumerate().filter(|(place, claim)| {
            claim.requested.len() as u64 > more.get(place).copied().unwrap_or_default()
        });
        prop_assert_eq!(all, asking.count(), "every waiting claim has a reason");
    }

    /// Of two candidates that fit, the first gets all that it requests before the second gets anything.
    #[test]
    fn strict_order_grants_in_order(terms in all_terms(), claims in claims()) {
        let terms = QueuePolicy { order: StrictFifo, stopped: false, ..terms };
        let admission = admit(&terms, &claims);
        let more = counts(&admission);
        let key = |place: usize| (std::cmp::Reverse(claims[place].priority), claims[place].created, claims[place].uid.clone());
        for waits in admission.waiting.iter().filter(|waits| waits.position.is_some()) {
            for place in more.keys() {
                prop_assert!(key(*place) <= key(waits.candidate), "{} passed {}", claims[*place].uid, claims[waits.candidate].uid);
            }
        }
    }

    #[test]
    fn admission_is_independent_of_the_order_of_claims(terms in all_terms(), claims in claims(), turn in 0_usize..12) {
        let named = |claims: &[QuotaCandidate]| {
            let admission = admit(&terms, claims);
            let grants: Vec<_> =
                admission.grants.iter().map(|(place, asks)| (claims[*place].uid.clone(), asks.clone())).collect();
            let waiting: Vec<_> = admission
                .waiting
                .iter()
                .map(|waits| (claims[waits.candidate].uid.clone(), waits.reason, waits.position, waits.before))
                .collect();
            (grants, waiting, admission.used, admission.namespaces)
        };
        let mut other = claims.clone();
        other.rotate_left(turn % claims.len().max(1));
        other.reverse();
        prop_assert_eq!(named(&claims), named(&other));
    }

    /// If jobs end one after another, every namespace without usage is served, however much the others request, and
    /// although all of them run empty again and again.
    #[test]
    fn no_namespace_starves(quota in 1_u64..6, asks in proptest::collection::vec((1_u64..50, 0_u64..6), 2..4)) {
        let names = ["a", "b", "c"];
        let terms = terms(FairShare, &[(Jobs, quota)]);
        let mut claims: Vec<QuotaCandidate> =
            asks.iter().zip(names).map(|((_, uses), name)| claim(name, name, 1, *uses, 1000)).collect();
        let mut served: BTreeSet<usize> = (0..claims.len()).filter(|place| claims[*place].uses > 0).collect();
        let most: u64 = asks.iter().map(|(_, uses)| uses).sum::<u64>() + quota * 3 + 3;
        let mut number = 0;
        for _ in 0..most {
            for (place, asks) in admit(&terms, &claims).grants {
                served.insert(place);
                number += 1;
                claims[place].uses += asks.len() as u64;
                claims[place].last_grant = number;
            }
            // One job of the largest candidate ends.
            let longest = (0..claims.len()).max_by_key(|place| claims[*place].uses).unwrap();
            claims[longest].uses = claims[longest].uses.saturating_sub(1);
        }
        prop_assert_eq!(served.len(), claims.len(), "{:?}", claims);
    }
}

proptest! {
    // Each case makes hundreds of decisions.
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// If jobs end one after another, each HTCJob is served, however large its jobs and however many small ones are
    /// requested.
    #[test]
    fn no_large_htcjob_starves(
        order in prop_oneof![Just(FairShare), Just(BestEffortFifo)],
        same in any::<bool>(),
        sizes in proptest::collection::vec(1_u64..9, 2..5),
    ) {
        let terms = terms(order, &[(Cpus, 8)]);
        let claim = |(number, cpus): (usize, &u64)| {
            let name = format!("uid-{number}");
            let namespace = if same { "n" } else { name.as_str() };
            QuotaCandidate { per_job: job(*cpus), ..claim(&name, namespace, 1, 0, 1000) }
        };
        let mut claims: Vec<QuotaCandidate> = sizes.iter().enumerate().map(claim).collect();
        let mut served = BTreeSet::new();
        let rounds = (SKIPS_BEFORE_RESERVATION + 20) * 5;
        for round in 0..rounds {
            let admission = admit(&terms, &claims);
            let passed: Vec<_> = admission.skip_counts(&claims).collect();
            for (place, passed) in passed {
                claims[place].times_skipped = passed;
            }
            for (place, asks) in &admission.grants {
                served.insert(*place);
                claims[*place].uses += asks.len() as u64;
                claims[*place].last_grant = u64::from(round) + 1;
            }
            // One of the smallest running jobs ends at a time: the quota that is freed is never enough for a large one
            // at once.
            let ends = (0..claims.len()).filter(|place| claims[*place].uses > 0).min_by_key(|place| claims[*place].per_job.get(Cpus));
            claims[ends.unwrap()].uses -= 1;
        }
        // By age, the first gets all that it requests before the others are entitled to anything.
        let all: BTreeSet<usize> = if order == FairShare && !same { (0..claims.len()).collect() } else { BTreeSet::from([0]) };
        prop_assert!(served.is_superset(&all), "{served:?} of {sizes:?}");
    }

    /// More quota never grants less, if all jobs are alike.
    #[test]
    fn more_quota_never_grants_less(quota in 0_u64..20, claims in claims()) {
        let alike: Vec<QuotaCandidate> = claims.into_iter().map(|claim| QuotaCandidate { per_job: job(1), ..claim }).collect();
        for strategy in [FairShare, BestEffortFifo, StrictFifo] {
            let granted = |quota| admit(&terms(strategy, &[(Jobs, quota)]), &alike).used.get(Jobs);
            prop_assert!(granted(quota) <= granted(quota + 1));
        }
    }
}
