//! Rate limit of the reports of one HTCJob's jobs: the ledger's time for them is missing to all other HTCJobs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use htc_machine::Uid;
use parking_lot::Mutex;

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Reports per second in the long run; at least 1.
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

/// Number of HTCJobs above which full buckets are looked for and dropped.
const MANY: usize = 1_024;

/// The buckets of all HTCJobs.
pub(super) struct Rates {
    /// Time to refill one report.
    every: Duration,
    /// Time to refill a whole bucket.
    whole: Duration,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    /// When each bucket is full again. Only a sender with the token of an HTCJob gets a bucket.
    full_at: HashMap<Uid, Instant>,
    /// Number of buckets at which the full ones are dropped: a full bucket is the same as none.
    tidy_at: usize,
}

impl Rates {
    pub(super) fn new(rate: Rate) -> Self {
        let every = Duration::from_secs(1) / rate.per_second.max(1);
        let buckets = Mutex::new(Buckets { full_at: HashMap::new(), tidy_at: MANY });
        Self { every, whole: every * rate.burst, buckets }
    }

    /// Returns whether one more report of this HTCJob may be stored now, and counts it if so.
    pub(super) fn admit(&self, uid: &Uid, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
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
    fn burst_is_admitted_then_the_refill_rate() {
        let (rates, now) = (Rates::new(Rate { per_second: 10, burst: 30 }), Instant::now());
        assert_eq!(admitted(&rates, "a", now, 100), 30);
        assert_eq!(admitted(&rates, "a", now + Duration::from_millis(99), 100), 0);
        assert_eq!(admitted(&rates, "a", now + Duration::from_millis(500), 100), 5);
        assert_eq!(admitted(&rates, "b", now, 100), 30, "another HTCJob has a bucket of its own");
        assert_eq!(admitted(&rates, "a", now + Duration::from_secs(3_600), 100), 30, "a bucket does not overflow");
    }

    #[test]
    fn full_buckets_are_dropped() {
        let (rates, now) = (Rates::new(Rate { per_second: 10, burst: 30 }), Instant::now());
        for number in 0..10 * MANY {
            assert!(rates.admit(&number.to_string().as_str().into(), now + Duration::from_millis(number as u64)));
        }
        assert!(rates.buckets.lock().full_at.len() <= MANY);
    }
}
