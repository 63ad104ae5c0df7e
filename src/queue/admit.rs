//! Who gets room in a queue, in which order, and for what the others wait. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::amounts::{Amounts, Limits, Resource};
use crate::machine::{Indices, Uid};

#[cfg(test)]
mod tests;

/// In which order the waiting ones are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// By priority, then the namespace that uses least, then age. Who does not fit is passed.
    FairShare,
    /// By priority, then age. Who does not fit is passed.
    BestEffortFifo,
    /// By priority, then age. Nobody passes who is before him.
    StrictFifo,
}

/// What a queue gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// In which order.
    pub order: Order,
    /// Nothing new is given.
    pub stopped: bool,
    /// To all together.
    pub quota: Limits,
    /// To each namespace.
    pub per_namespace: Limits,
}

/// What one HTCJob has of a queue, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The HTCJob.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Higher ones come first.
    pub priority: i64,
    /// When it was made, in seconds.
    pub created: i64,
    /// What one of its jobs uses.
    pub each: Amounts,
    /// How many of its jobs are in use.
    pub uses: u64,
    /// How many more may be, of which nothing is known. They take no more than the limit of their namespace: who makes such an `HTCJob`
    /// takes nothing that others could have had.
    pub unknown: u64,
    /// The number of the last grant that it got; 0 if it got none.
    pub last: u64,
    /// In how many decisions in a row others got room that it could not use, as one of its jobs needs more.
    pub passed: u32,
    /// The jobs that it asks room for.
    pub asks: Indices,
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// That of the whole queue.
    Queue,
    /// That of each namespace.
    Namespace,
}

/// Why an HTCJob waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// One more job would be too much of this.
    Quota(Resource, Scope),
    /// One job alone is more than the limit: it waits for ever.
    TooLarge(Resource, Scope),
    /// Another one is before it, and nobody passes.
    Behind,
    /// The queue gives nothing new.
    Stopped,
}

/// An HTCJob that asks for more than it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Which of the claims.
    pub claim: usize,
    /// Why.
    pub why: Why,
    /// How many jobs wait.
    pub jobs: u64,
    /// Its place among those that wait, from 1; none if it is too large to get room ever.
    pub place: Option<usize>,
    /// How many jobs are asked for before it.
    pub before: u64,
}

/// What a namespace has of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// In use, with what was granted now.
    pub used: Amounts,
    /// HTCJobs that wait.
    pub waiting: u64,
}

/// What becomes of all claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Which jobs of which claims get room, in the order in which they do.
    pub grants: Vec<(usize, Indices)>,
    /// Who waits, the next first; those that wait for ever last.
    pub waiting: Vec<Waits>,
    /// In use, with what was granted now.
    pub used: Amounts,
    /// The same by namespace.
    pub namespaces: BTreeMap<Arc<str>, Share>,
    /// Those for whom room is kept: others would have got it.
    pub waited_for: Vec<usize>,
}

/// Who was passed so often is waited for: room for one of its jobs is kept from others until it fits.
pub const PATIENCE: u32 = 100;

impl Admission {
    /// How often each of those that still wait was passed, with this decision.
    pub fn passed<'a>(&'a self, claims: &'a [Claim]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let served: BTreeSet<usize> = self.grants.iter().map(|(place, _)| *place).collect();
        let lowest = served.iter().map(|place| claims[*place].priority).min();
        self.waiting.iter().filter(|waits| waits.place.is_some()).map(move |Waits { claim, .. }| {
            let Claim { passed, priority, .. } = claims[*claim];
            let again = lowest.is_some_and(|lowest| lowest <= priority);
            (*claim, if served.contains(claim) { 0 } else { passed.saturating_add(again.into()) })
        })
    }
}

/// Decides who gets room. The order of `claims` makes no difference. What is in use stays so, whatever the limits.
#[must_use]
pub fn admit(terms: &Terms, claims: &[Claim]) -> Admission {
    let mut run = Run::new(terms, claims);
    if !terms.stopped {
        match terms.order {
            Order::FairShare => run.share(),
            Order::BestEffortFifo | Order::StrictFifo => run.in_line(),
        }
    }
    run.finish()
}

/// An exact part of the quota, scaled.
const WHOLE: u128 = 1 << 32;
/// Of what is free, one of so many parts goes to each namespace in turn: the smaller, the more even, and the more turns.
const PARTS: u64 = 4;

struct Run<'a> {
    terms: &'a Terms,
    claims: &'a [Claim],
    /// Claims that ask for something and can get it, in order of priority and age.
    line: Vec<usize>,
    too_large: Vec<(usize, Why)>,
    used: Amounts,
    by_namespace: HashMap<&'a str, Amounts>,
    /// The numbers of the last grants: of two namespaces that use as much, the one that has waited longer is next.
    last: HashMap<&'a str, u64>,
    granted: HashMap<usize, u64>,
    /// Claims that were passed too often: room for one job of each is kept, within the queue or only within its namespace.
    waited_for: Vec<(usize, Scope)>,
    /// Who got some, in that order.
    served: Vec<usize>,
}

impl<'a> Run<'a> {
    fn new(terms: &'a Terms, claims: &'a [Claim]) -> Self {
        let (mut used, mut by_namespace, mut last) = (Amounts::default(), HashMap::new(), HashMap::new());
        for claim in claims {
            let its_jobs = claim.each.times(claim.uses);
            used = used.plus(&its_jobs);
            let its: &mut Amounts = by_namespace.entry(&*claim.namespace).or_default();
            *its = its.plus(&its_jobs);
            let its: &mut u64 = last.entry(&*claim.namespace).or_default();
            *its = claim.last.max(*its);
        }
        for claim in claims.iter().filter(|claim| claim.unknown > 0) {
            let its = by_namespace.entry(&*claim.namespace).or_default();
            let more = terms.per_namespace.left_of(its, &claim.each.times(claim.unknown));
            used = used.plus(&more);
            *its = its.plus(&more);
        }
        let (mut line, mut too_large) = (Vec::new(), Vec::new());
        for (place, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.asks.is_empty()) {
            match too_large_for(terms, &claim.each) {
                Some(why) => too_large.push((place, why)),
                None => line.push(place),
            }
        }
        let by_age = |place: &usize| (claims[*place].created, claims[*place].uid.as_str());
        line.sort_by_key(|place| (std::cmp::Reverse(claims[*place].priority), by_age(place)));
        too_large.sort_by_key(|(place, _)| by_age(place));
        let (granted, waited_for, served) = (HashMap::new(), Vec::new(), Vec::new());
        Self { terms, claims, line, too_large, used, by_namespace, last, granted, waited_for, served }
    }

    fn left(&self, place: usize) -> u64 {
        let asks = self.claims[place].asks.len() as u64;
        asks.saturating_sub(self.granted.get(&place).copied().unwrap_or_default())
    }

    fn used_by(&self, namespace: &str) -> Amounts {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    /// How many more of its jobs fit.
    fn fits(&self, place: usize) -> u64 {
        let claim = &self.claims[place];
        let (mut used, mut its) = (self.used, self.used_by(&claim.namespace));
        for (other, scope) in self.waited_for.iter().filter(|(other, _)| *other != place) {
            let other = &self.claims[*other];
            if *scope == Scope::Queue {
                used = used.plus(&other.each);
            }
            if other.namespace == claim.namespace {
                its = its.plus(&other.each);
            }
        }
        let all = self.terms.quota.fit(&used, &claim.each);
        let own = self.terms.per_namespace.fit(&its, &claim.each);
        all.into_iter().chain(own).min().unwrap_or(u64::MAX).min(self.left(place))
    }

    /// It does not fit, and it is its turn. What its own namespace uses up holds up nobody in another one.
    fn wait_for(&mut self, place: usize) {
        let claim = &self.claims[place];
        if claim.passed < PATIENCE || self.granted.contains_key(&place) {
            return;
        }
        let own = self.terms.per_namespace.fit(&self.used_by(&claim.namespace), &claim.each);
        let scope = if own == Some(0) { Scope::Namespace } else { Scope::Queue };
        let same = |(other, its): &(usize, Scope)| {
            *its == scope && (scope == Scope::Queue || self.claims[*other].namespace == claim.namespace)
        };
        if !self.waited_for.iter().any(same) {
            self.waited_for.push((place, scope));
        }
    }

    fn grant(&mut self, place: usize, count: u64) {
        let claims = self.claims;
        let more = claims[place].each.times(count);
        self.used = self.used.plus(&more);
        let its = self.by_namespace.entry(&*claims[place].namespace).or_default();
        *its = its.plus(&more);
        let granted = self.granted.entry(place).or_insert_with(|| {
            self.served.push(place);
            0
        });
        *granted += count;
    }

    fn in_line(&mut self) {
        for place in self.line.clone() {
            let fits = self.fits(place);
            if fits > 0 {
                self.grant(place, fits);
            } else {
                self.wait_for(place);
            }
            if self.terms.order == Order::StrictFifo && self.left(place) > 0 {
                return;
            }
        }
    }

    /// Of each priority, the namespace that uses least is served first, a part of what is free at a time.
    fn share(&mut self) {
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
                // What does not fit now does not fit later either.
                while let Some(place) = line.front().copied().filter(|place| self.fits(*place) == 0) {
                    line.pop_front();
                    self.wait_for(place);
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

    /// By which namespaces take turns.
    fn key(&self, namespace: &'a str) -> (u128, u64, &'a str) {
        let last = self.last.get(namespace).copied().unwrap_or_default();
        (self.share_of(&self.used_by(namespace)), last, namespace)
    }

    /// How many jobs of `place` are granted before another namespace has its turn, whose share is `next`.
    fn turn(&self, place: usize, next: Option<u128>, others: usize) -> u64 {
        let fits = self.fits(place);
        let Some(next) = next else { return fits };
        let claim = &self.claims[place];
        let Some(free) = self.terms.quota.fit(&self.used, &claim.each) else { return fits };
        let used = self.used_by(&claim.namespace);
        let needed = self.terms.quota.iter().filter(|(resource, _)| claim.each.get(*resource) > 0);
        let until = needed
            .map(|(resource, limit)| {
                let even = u64::try_from(next * u128::from(limit) / WHOLE).unwrap_or(u64::MAX);
                even.saturating_sub(used.get(resource)) / claim.each.get(resource)
            })
            .min();
        let part = free / PARTS / (others as u64 + 1);
        until.unwrap_or(u64::MAX).max(part).clamp(1, fits)
    }

    /// How much of the quota this is: of what it is most of.
    fn share_of(&self, used: &Amounts) -> u128 {
        let quota = self.terms.quota.iter().filter(|(_, limit)| *limit > 0);
        quota.map(|(resource, limit)| u128::from(used.get(resource)) * WHOLE / u128::from(limit)).max().unwrap_or(0)
    }

    fn finish(self) -> Admission {
        let mut namespaces: BTreeMap<Arc<str>, Share> = BTreeMap::new();
        for claim in self.claims {
            let share = namespaces.entry(Arc::clone(&claim.namespace)).or_default();
            share.used = self.used_by(&claim.namespace);
        }
        let (mut waiting, mut before) = (Vec::new(), 0_u64);
        let mut head = true;
        for (number, place) in self.who_waits().into_iter().enumerate() {
            let jobs = self.left(place);
            waiting.push(Waits { claim: place, why: self.why(place, head), jobs, place: Some(number + 1), before });
            (before, head) = (before.saturating_add(jobs), false);
        }
        let for_ever = self.too_large.iter().map(|(claim, why)| {
            let jobs = self.left(*claim);
            Waits { claim: *claim, why: *why, jobs, place: None, before: 0 }
        });
        waiting.extend(for_ever);
        for waits in &waiting {
            namespaces.entry(Arc::clone(&self.claims[waits.claim].namespace)).or_default().waiting += 1;
        }
        let part = |place: usize| {
            let count = self.granted.get(&place).copied().unwrap_or_default();
            (place, self.claims[place].asks.take(usize::try_from(count).unwrap_or(usize::MAX)))
        };
        let grants = self.served.iter().map(|place| part(*place)).collect();
        let waited_for = self.waited_for.iter().map(|(place, _)| *place).collect();
        Admission { grants, waiting, used: self.used, namespaces, waited_for }
    }

    /// Those that are not served, in the order in which they will be as far as that is known.
    fn who_waits(&self) -> Vec<usize> {
        let waiting: Vec<usize> = self.line.iter().copied().filter(|place| self.left(*place) > 0).collect();
        if self.terms.order != Order::FairShare {
            return waiting;
        }
        // As if each namespace got what it asks for, one HTCJob after another: the one that has least is next.
        let mut has: HashMap<&str, Amounts> = HashMap::new();
        let mut keyed: Vec<_> = waiting
            .into_iter()
            .map(|place| {
                let claim = &self.claims[place];
                let own = has.entry(&*claim.namespace).or_insert_with(|| self.used_by(&claim.namespace));
                let share = (self.share_of(own), self.last.get(&*claim.namespace).copied().unwrap_or_default());
                *own = own.plus(&claim.each.times(self.left(place)));
                ((std::cmp::Reverse(claim.priority), share, claim.created, claim.uid.as_str()), place)
            })
            .collect();
        keyed.sort();
        keyed.into_iter().map(|(_, place)| place).collect()
    }

    fn why(&self, place: usize, head: bool) -> Why {
        if self.terms.stopped {
            return Why::Stopped;
        }
        if self.terms.order == Order::StrictFifo && !head {
            return Why::Behind;
        }
        let claim = &self.claims[place];
        let own = self.terms.per_namespace.short_of(&self.used_by(&claim.namespace), &claim.each);
        let all = self.terms.quota.short_of(&self.used, &claim.each);
        match (own, all) {
            (Some(resource), _) => Why::Quota(resource, Scope::Namespace),
            (None, Some(resource)) => Why::Quota(resource, Scope::Queue),
            (None, None) => Why::Behind,
        }
    }
}

/// What one job of `each` needs more of than there will ever be.
fn too_large_for(terms: &Terms, each: &Amounts) -> Option<Why> {
    let nothing = Amounts::default();
    let of = |limits: &Limits, scope| limits.short_of(&nothing, each).map(|resource| Why::TooLarge(resource, scope));
    of(&terms.quota, Scope::Queue).or_else(|| of(&terms.per_namespace, Scope::Namespace))
}
