//! Admission of HTCJobs to a queue: who gets quota, in which order, and what the others wait for. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::ids::Uid;
use crate::indices::Indices;

use super::amounts::{Amounts, QuotaLimits, Resource};

#[cfg(test)]
mod tests;

/// Order in which waiting HTCJobs are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdmissionOrder {
    /// By priority, then the namespace that uses least, then age. An HTCJob that does not fit is skipped.
    FairShare,
    /// By priority, then age. An HTCJob that does not fit is skipped.
    BestEffortFifo,
    /// By priority, then age. An HTCJob that does not fit blocks those behind it.
    StrictFifo,
}

/// Quota of a queue, and how it is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Order of admission.
    pub order: AdmissionOrder,
    /// Whether no new quota is granted.
    pub stopped: bool,
    /// Quota of all namespaces together.
    pub quota: QuotaLimits,
    /// Quota of each namespace.
    pub per_namespace: QuotaLimits,
}

impl QueuePolicy {
    /// Whether `resource` is limited.
    #[must_use]
    pub const fn limits(&self, resource: Resource) -> bool {
        self.quota.get(resource).is_some() || self.per_namespace.get(resource).is_some()
    }
}

/// Quota that one HTCJob has and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaCandidate {
    /// UID of the HTCJob.
    pub uid: Uid,
    /// Namespace of the HTCJob.
    pub namespace: Arc<str>,
    /// Priority; higher ones are served first.
    pub priority: i64,
    /// Creation time, in Unix seconds.
    pub created: i64,
    /// Amounts that one of the jobs uses.
    pub per_job: Amounts,
    /// Number of jobs in use.
    pub uses: u64,
    /// Number of further jobs that may be in use, although nothing is known about them.
    /// They count only up to the limit of their namespace: creating such an `HTCJob` takes no quota from other
    /// namespaces.
    pub unknown: u64,
    /// Number of the last grant to this HTCJob; 0 if it got none.
    pub last_grant: u64,
    /// Number of decisions in a row in which others got quota that this HTCJob could not use, because one of its jobs
    /// needs more.
    pub times_skipped: u32,
    /// Jobs that the HTCJob requests quota for.
    pub requested: Indices,
}

/// Scope of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaScope {
    /// Limit of the whole queue.
    Queue,
    /// Limit of each namespace.
    Namespace,
}

/// Why an HTCJob waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// One more job would exceed the quota of this resource.
    Quota(Resource, QuotaScope),
    /// One job alone exceeds the limit: the HTCJob waits for ever.
    TooLarge(Resource, QuotaScope),
    /// Another HTCJob is ahead.
    Behind,
    /// The queue grants no new quota.
    Stopped,
}

/// An HTCJob that requests more than it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCandidate {
    /// Position in the list of candidates.
    pub candidate: usize,
    /// Why it waits.
    pub reason: WaitReason,
    /// Number of jobs that wait.
    pub jobs: u64,
    /// Position among the waiting, from 1; none if it is too large ever to be admitted.
    pub position: Option<usize>,
    /// Number of jobs that are requested ahead of it.
    pub before: u64,
}

/// Usage of a queue by one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Amounts in use, including what was granted now.
    pub used: Amounts,
    /// Number of HTCJobs that wait.
    pub waiting: u64,
}

/// Result of an admission cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Granted jobs by position of the candidate, in the order of the grants.
    pub grants: Vec<(usize, Indices)>,
    /// Waiting candidates in the order in which they will be served; those that wait for ever come last.
    pub waiting: Vec<WaitingCandidate>,
    /// Amounts in use, including what was granted now.
    pub used: Amounts,
    /// Usage by namespace.
    pub namespaces: BTreeMap<Arc<str>, NamespaceUsage>,
    /// Candidates for which quota is reserved: others would have got it.
    pub reservations: Vec<usize>,
}

/// Number of skips after which quota for one job of the HTCJob is reserved until it fits.
pub const SKIPS_BEFORE_RESERVATION: u32 = 100;

impl Admission {
    /// Returns how often each candidate that still waits was skipped, this decision included.
    pub fn skip_counts<'a>(&'a self, claims: &'a [QuotaCandidate]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let served: BTreeSet<usize> = self.grants.iter().map(|(place, _)| *place).collect();
        let lowest = served.iter().map(|place| claims[*place].priority).min();
        self.waiting.iter().filter(|waits| waits.position.is_some()).map(
            move |WaitingCandidate { candidate: claim, .. }| {
                let QuotaCandidate { times_skipped: passed, priority, .. } = claims[*claim];
                let again = lowest.is_some_and(|lowest| lowest <= priority);
                (*claim, if served.contains(claim) { 0 } else { passed.saturating_add(again.into()) })
            },
        )
    }
}

/// Decides who gets quota. The order of `claims` makes no difference. Jobs in use stay so, whatever the limits.
#[must_use]
pub fn admit(terms: &QueuePolicy, claims: &[QuotaCandidate]) -> Admission {
    let mut run = AdmissionCycle::new(terms, claims);
    if !terms.stopped {
        match terms.order {
            AdmissionOrder::FairShare => run.admit_fair_share(),
            AdmissionOrder::BestEffortFifo | AdmissionOrder::StrictFifo => run.admit_fifo(),
        }
    }
    run.finish()
}

/// Scale of exact shares of the quota.
const WHOLE: u128 = 1 << 32;
/// One of so many parts of the free quota is granted to a namespace at a time. More parts give a more even division and
/// take more rounds.
const PARTS: u64 = 4;

struct AdmissionCycle<'a> {
    terms: &'a QueuePolicy,
    claims: &'a [QuotaCandidate],
    /// Candidates that request quota and can get it, in order of priority and age.
    line: Vec<usize>,
    too_large: Vec<(usize, WaitReason)>,
    used: Amounts,
    by_namespace: HashMap<&'a str, Amounts>,
    /// Numbers of the last grants. Of two namespaces with equal usage, the one that has waited longer is next.
    last: HashMap<&'a str, u64>,
    granted: HashMap<usize, u64>,
    /// Candidates that were skipped too often: quota for one job of each is reserved, in the queue or only in its
    /// namespace.
    reservations: Vec<(usize, QuotaScope)>,
    /// Candidates that got quota, in that order.
    served: Vec<usize>,
}

impl<'a> AdmissionCycle<'a> {
    fn new(terms: &'a QueuePolicy, claims: &'a [QuotaCandidate]) -> Self {
        let (mut used, mut by_namespace, mut last) = (Amounts::default(), HashMap::new(), HashMap::new());
        for claim in claims {
            let its_jobs = claim.per_job.times(claim.uses);
            used = used.plus(&its_jobs);
            let its: &mut Amounts = by_namespace.entry(&*claim.namespace).or_default();
            *its = its.plus(&its_jobs);
            let its: &mut u64 = last.entry(&*claim.namespace).or_default();
            *its = claim.last_grant.max(*its);
        }
        for claim in claims.iter().filter(|claim| claim.unknown > 0) {
            let its = by_namespace.entry(&*claim.namespace).or_default();
            let more = terms.per_namespace.left_of(its, &claim.per_job.times(claim.unknown));
            used = used.plus(&more);
            *its = its.plus(&more);
        }
        let (mut line, mut too_large) = (Vec::new(), Vec::new());
        for (place, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.requested.is_empty()) {
            match too_large_for(terms, &claim.per_job) {
                Some(why) => too_large.push((place, why)),
                None => line.push(place),
            }
        }
        let by_age = |place: &usize| (claims[*place].created, claims[*place].uid.as_str());
        line.sort_by_key(|place| (std::cmp::Reverse(claims[*place].priority), by_age(place)));
        too_large.sort_by_key(|(place, _)| by_age(place));
        let (granted, waited_for, served) = (HashMap::new(), Vec::new(), Vec::new());
        Self { terms, claims, line, too_large, used, by_namespace, last, granted, reservations: waited_for, served }
    }

    fn left(&self, place: usize) -> u64 {
        let asks = self.claims[place].requested.len() as u64;
        asks.saturating_sub(self.granted.get(&place).copied().unwrap_or_default())
    }

    fn used_by(&self, namespace: &str) -> Amounts {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    /// Returns how many more of the candidate's jobs fit.
    fn fits(&self, place: usize) -> u64 {
        let claim = &self.claims[place];
        let (mut used, mut its) = (self.used, self.used_by(&claim.namespace));
        for (other, scope) in self.reservations.iter().filter(|(other, _)| *other != place) {
            let other = &self.claims[*other];
            if *scope == QuotaScope::Queue {
                used = used.plus(&other.per_job);
            }
            if other.namespace == claim.namespace {
                its = its.plus(&other.per_job);
            }
        }
        let all = self.terms.quota.fit(&used, &claim.per_job);
        let own = self.terms.per_namespace.fit(&its, &claim.per_job);
        all.into_iter().chain(own).min().unwrap_or(u64::MAX).min(self.left(place))
    }

    /// Reserves quota for a candidate that does not fit although it is its turn.
    /// If only its namespace's quota is used up, the reservation does not affect other namespaces.
    fn reserve_quota(&mut self, place: usize) {
        let claim = &self.claims[place];
        if claim.times_skipped < SKIPS_BEFORE_RESERVATION || self.granted.contains_key(&place) {
            return;
        }
        let own = self.terms.per_namespace.fit(&self.used_by(&claim.namespace), &claim.per_job);
        let scope = if own == Some(0) { QuotaScope::Namespace } else { QuotaScope::Queue };
        let same = |(other, its): &(usize, QuotaScope)| {
            *its == scope && (scope == QuotaScope::Queue || self.claims[*other].namespace == claim.namespace)
        };
        if !self.reservations.iter().any(same) {
            self.reservations.push((place, scope));
        }
    }

    fn grant(&mut self, place: usize, count: u64) {
        let claims = self.claims;
        let more = claims[place].per_job.times(count);
        self.used = self.used.plus(&more);
        let its = self.by_namespace.entry(&*claims[place].namespace).or_default();
        *its = its.plus(&more);
        let granted = self.granted.entry(place).or_insert_with(|| {
            self.served.push(place);
            0
        });
        *granted += count;
    }

    fn admit_fifo(&mut self) {
        for place in self.line.clone() {
            let fits = self.fits(place);
            if fits > 0 {
                self.grant(place, fits);
            } else {
                self.reserve_quota(place);
            }
            if self.terms.order == AdmissionOrder::StrictFifo && self.left(place) > 0 {
                return;
            }
        }
    }

    /// Within each priority, serves the namespace with the least usage first, a part of the free quota at a time.
    fn admit_fair_share(&mut self) {
        let line = self.line.clone();
        let mut number = self.last.values().max().copied().unwrap_or_default();
        for same in line.chunk_by(|a, b| self.claims[*a].priority == self.claims[*b].priority) {
            let mut lines: BTreeMap<&'a str, VecDeque<usize>> = BTreeMap::new();
            for place in same {
                lines.entry(&*self.claims[*place].namespace).or_default().push_back(*place);
            }
            let mut turns: BTreeSet<(u128, u64, &'a str)> = lines.keys().map(|namespace| self.key(namespace)).collect();
            while let Some((_, _, namespace)) = turns.pop_first() {
                let Some(line) = lines.get_mut(namespace) else { continue };
                // What does not fit now will not fit later in this cycle.
                while let Some(place) = line.front().copied().filter(|place| self.fits(*place) == 0) {
                    line.pop_front();
                    self.reserve_quota(place);
                }
                let Some(place) = line.front().copied() else { continue };
                let next = turns.first().map(|(share, ..)| *share);
                let count = self.turn(place, next, turns.len());
                self.grant(place, count);
                number += 1;
                self.last.insert(namespace, number);
                turns.insert(self.key(namespace));
            }
        }
    }

    /// Returns the sort key of a namespace: share, then last grant, then name.
    fn key(&self, namespace: &'a str) -> (u128, u64, &'a str) {
        let last = self.last.get(namespace).copied().unwrap_or_default();
        (self.share_of(&self.used_by(namespace)), last, namespace)
    }

    /// Returns how many jobs of `place` are granted before the next namespace, whose share is `next`, is served.
    fn turn(&self, place: usize, next: Option<u128>, others: usize) -> u64 {
        let fits = self.fits(place);
        let Some(next) = next else { return fits };
        let claim = &self.claims[place];
        let Some(free) = self.terms.quota.fit(&self.used, &claim.per_job) else { return fits };
        let used = self.used_by(&claim.namespace);
        let needed = self.terms.quota.iter().filter(|(resource, _)| claim.per_job.get(*resource) > 0);
        let until = needed
            .map(|(resource, limit)| {
                let even = u64::try_from(next * u128::from(limit) / WHOLE).unwrap_or(u64::MAX);
                even.saturating_sub(used.get(resource)) / claim.per_job.get(resource)
            })
            .min();
        let part = free / PARTS / (others as u64 + 1);
        until.unwrap_or(u64::MAX).max(part).clamp(1, fits)
    }

    /// Returns the dominant share: the largest share of any resource's quota.
    fn share_of(&self, used: &Amounts) -> u128 {
        let quota = self.terms.quota.iter().filter(|(_, limit)| *limit > 0);
        quota.map(|(resource, limit)| u128::from(used.get(resource)) * WHOLE / u128::from(limit)).max().unwrap_or(0)
    }

    fn finish(self) -> Admission {
        let mut namespaces: BTreeMap<Arc<str>, NamespaceUsage> = BTreeMap::new();
        for claim in self.claims {
            let share = namespaces.entry(Arc::clone(&claim.namespace)).or_default();
            share.used = self.used_by(&claim.namespace);
        }
        let (mut waiting, mut before) = (Vec::new(), 0_u64);
        let mut head = true;
        for (number, place) in self.who_waits().into_iter().enumerate() {
            let jobs = self.left(place);
            waiting.push(WaitingCandidate {
                candidate: place,
                reason: self.why(place, head),
                jobs,
                position: Some(number + 1),
                before,
            });
            (before, head) = (before.saturating_add(jobs), false);
        }
        let for_ever = self.too_large.iter().map(|(claim, why)| {
            let jobs = self.left(*claim);
            WaitingCandidate { candidate: *claim, reason: *why, jobs, position: None, before: 0 }
        });
        waiting.extend(for_ever);
        for waits in &waiting {
            namespaces.entry(Arc::clone(&self.claims[waits.candidate].namespace)).or_default().waiting += 1;
        }
        let part = |place: usize| {
            let count = self.granted.get(&place).copied().unwrap_or_default();
            (place, self.claims[place].requested.take(usize::try_from(count).unwrap_or(usize::MAX)))
        };
        let grants = self.served.iter().map(|place| part(*place)).collect();
        let waited_for = self.reservations.iter().map(|(place, _)| *place).collect();
        Admission { grants, waiting, used: self.used, namespaces, reservations: waited_for }
    }

    /// Returns the candidates that still wait, in the expected order of service.
    fn who_waits(&self) -> Vec<usize> {
        let waiting: Vec<usize> = self.line.iter().copied().filter(|place| self.left(*place) > 0).collect();
        if self.terms.order != AdmissionOrder::FairShare {
            return waiting;
        }
        // Simulates that each namespace gets what it requests, one HTCJob after another: the one with the least usage
        // is next.
        let mut has: HashMap<&str, Amounts> = HashMap::new();
        let mut keyed: Vec<_> = waiting
            .into_iter()
            .map(|place| {
                let claim = &self.claims[place];
                let own = has.entry(&*claim.namespace).or_insert_with(|| self.used_by(&claim.namespace));
                let share = (self.share_of(own), self.last.get(&*claim.namespace).copied().unwrap_or_default());
                *own = own.plus(&claim.per_job.times(self.left(place)));
                ((std::cmp::Reverse(claim.priority), share, claim.created, claim.uid.as_str()), place)
            })
            .collect();
        keyed.sort();
        keyed.into_iter().map(|(_, place)| place).collect()
    }

    fn why(&self, place: usize, head: bool) -> WaitReason {
        if self.terms.stopped {
            return WaitReason::Stopped;
        }
        if self.terms.order == AdmissionOrder::StrictFifo && !head {
            return WaitReason::Behind;
        }
        let claim = &self.claims[place];
        let own = self.terms.per_namespace.short_of(&self.used_by(&claim.namespace), &claim.per_job);
        let all = self.terms.quota.short_of(&self.used, &claim.per_job);
        match (own, all) {
            (Some(resource), _) => WaitReason::Quota(resource, QuotaScope::Namespace),
            (None, Some(resource)) => WaitReason::Quota(resource, QuotaScope::Queue),
            (None, None) => WaitReason::Behind,
        }
    }
}

/// Returns the resource of which one job of `each` needs more than the whole quota.
fn too_large_for(terms: &QueuePolicy, each: &Amounts) -> Option<WaitReason> {
    let nothing = Amounts::default();
    let of = |limits: &QuotaLimits, scope| {
        limits.short_of(&nothing, each).map(|resource| WaitReason::TooLarge(resource, scope))
    };
    of(&terms.quota, QuotaScope::Queue).or_else(|| of(&terms.per_namespace, QuotaScope::Namespace))
}
