//! How often the jobs of one HTCJob may report: what each report costs the ledger, all HTCJobs pay.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::machine::Uid;

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Reports in a second, for as long as it likes; at least 1.
    pub per_second: u32,
    /// Reports at once: the jobs of an HTCJob may all begin in the same moment.
    pub burst: u32,
}

impl Default for Rate {
    /// A twentieth of what the ledger can store in a second, and half a second's worth at once.
    fn default() -> Self {
        Self { per_second: 1_000, burst: 10_000 }
    }
}

/// Fewest HTCJobs at which those are looked for that have not reported for a while.
const MANY: usize = 1_024;

/// The buckets of all HTCJobs.
pub(super) struct Rates {
    /// What refilling takes for one report.
    every: Duration,
    /// What refilling takes for all of a bucket.
    whole: Duration,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    /// When each is full again. Only who has the token of an HTCJob gets one.
    full_at: HashMap<Uid, Instant>,
    /// At how many the full ones are dropped: they are as if there were none.
    tidy_at: usize,
}

impl Rates {
    pub(super) fn new(rate: Rate) -> Self {
        let every = Duration::from_secs(1) / rate.per_second.max(1);
        let buckets = Mutex::new(Buckets { full_at: HashMap::new(), tidy_at: MANY });
        Self { every, whole: every * rate.burst, buckets }
    }

    /// Whether one more report of this HTCJob may be stored now; it is then counted.
    pub(super) fn admit(&self, uid: &Uid, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.full_at.len() >= buckets.tidy_at {
            buckets.full_at.retain(|_, full_at| *full_at > now);
            buckets.tidy_at = MANY.max(2 * buckets.full_at.len());
        }
        let then = |full_at: Instant| full_at.max(now) + self.every;
        let fits = |full_at: Instant| full_at.saturating_duration_since(now) <= self.whole;
        match buckets.full_at.entry(uid.clone()) {
            Entry::Occupied(mut full_at) => {
                let after = then(*full_at.get());
                if fits(after) {
                    full_at.insert(after);
                }
                fits(after)
            }
            Entry::Vacant(none) => {
                none.insert(then(now));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(rates: &Rates, uid: &str, now: Instant, tries: usize) -> usize {
        (0..tries).filter(|_| rates.admit(&uid.into(), now)).count()
    }

    #[test]
    fn a_burst_is_taken_and_then_as_many_as_are_refilled() {
        let (rates, now) = (Rates::new(Rate { per_second: 10, burst: 30 }), Instant::now());
        assert_eq!(admitted(&rates, "a", now, 100), 30);
        assert_eq!(admitted(&rates, "a", now + Duration::from_millis(99), 100), 0);
        assert_eq!(admitted(&rates, "a", now + Duration::from_millis(500), 100), 5);
        assert_eq!(admitted(&rates, "b", now, 100), 30, "another HTCJob has a bucket of its own");
        assert_eq!(admitted(&rates, "a", now + Duration::from_secs(3_600), 100), 30, "a bucket does not overflow");
    }

    #[test]
    fn buckets_that_are_full_again_are_dropped() {
        let (rates, now) = (Rates::new(Rate { per_second: 10, burst: 30 }), Instant::now());
        for number in 0..10 * MANY {
            assert!(rates.admit(&number.to_string().as_str().into(), now + Duration::from_millis(number as u64)));
        }
        assert!(rates.buckets.lock().unwrap().full_at.len() <= MANY);
    }
}
