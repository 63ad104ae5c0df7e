//! Exponential back-off, of one caller and by key, the only use of the `backoff` crate; and a limit of failures shared
//! by many callers.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;
use htc_machine::Timestamp;
use parking_lot::Mutex;

/// Pauses that double, with jitter, from `first` to `longest` until they are reset.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Backoff {
    /// Creates a back-off whose first pause is `first`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self(ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            randomization_factor: 0.2,
            multiplier: 2.0,
            max_interval: longest,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        })
    }

    /// Returns the pause before the next try.
    pub fn pause(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Makes the next pause the first one again, after a success.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// Time on one of the clocks that back-offs are measured with.
pub trait Time: Copy + PartialOrd {
    /// Adds a pause.
    #[must_use]
    fn after(self, pause: Duration) -> Self;
}

impl Time for Instant {
    fn after(self, pause: Duration) -> Self {
        self + pause
    }
}

impl Time for Timestamp {
    fn after(self, pause: Duration) -> Self {
        self.plus(pause)
    }
}

/// Last failure of what is retried after a pause.
#[derive(Debug)]
pub struct Failure<C, T> {
    /// Why it failed.
    pub cause: C,
    /// Time of the next retry.
    pub retry_at: T,
    backoff: Backoff,
}

impl<C, T: Time> Failure<C, T> {
    /// Records a failure after another one. Without another, the pause has the first length of `pauses`: first and
    /// longest.
    #[must_use]
    pub fn after(before: Option<Self>, cause: C, pauses: (Duration, Duration), now: T) -> Self {
        let mut backoff = before.map_or_else(|| Backoff::new(pauses.0, pauses.1), |failure| failure.backoff);
        Self { cause, retry_at: now.after(backoff.pause()), backoff }
    }

    /// Returns whether the retry has to wait.
    #[must_use]
    pub fn is_active(&self, now: T) -> bool {
        now < self.retry_at
    }
}

/// Back-off by key, such as client-go's `ItemExponentialFailureRateLimiter`.
#[derive(Debug)]
pub struct Backoffs<K, C, T>(HashMap<K, Failure<C, T>>);

impl<K, C, T> Default for Backoffs<K, C, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, C, T: Time> Backoffs<K, C, T> {
    /// Records a failure. Returns the time of the next retry. `pauses`: first and longest.
    pub fn failed(&mut self, key: K, cause: C, pauses: (Duration, Duration), now: T) -> T {
        let failure = Failure::after(self.0.remove(&key), cause, pauses, now);
        let retry_at = failure.retry_at;
        self.0.insert(key, failure);
        retry_at
    }

    /// Returns the last failure since a success.
    pub fn last(&self, key: &K) -> Option<&Failure<C, T>> {
        self.0.get(key)
    }

    /// Returns the last failure if the retry has to wait.
    pub fn active(&self, key: &K, now: T) -> Option<&Failure<C, T>> {
        self.last(key).filter(|failure| failure.is_active(now))
    }

    /// Forgets the failures of a key, after a success.
    pub fn reset(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Forgets the failures of other keys.
    pub fn retain(&mut self, stays: impl Fn(&K, &Failure<C, T>) -> bool) {
        self.0.retain(|key, failure| stays(key, failure));
    }
}

/// Limit of failures shared by many callers. Each failure delays the next try of all of them. Successes do not count.
#[derive(Debug)]
pub struct FailureLimit {
    /// Time from one failure to the next try.
    spacing: Duration,
    next: Mutex<Instant>,
}

impl FailureLimit {
    /// Allows `failures` per minute, at least one.
    #[must_use]
    pub fn per_minute(failures: u32) -> Self {
        Self { spacing: Duration::from_secs(60) / failures.max(1), next: Mutex::new(Instant::now()) }
    }

    /// Records a failed try.
    pub fn failed(&self) {
        let mut next = self.next.lock();
        *next = (*next).max(Instant::now()) + self.spacing;
    }

    /// Returns how long the next try has to wait.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.next.lock().saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_delay_the_next_try_and_add_up() {
        let limit = FailureLimit::per_minute(60);
        assert_eq!(limit.wait(), Duration::ZERO);
        let mut first = None;
        for failures in 1..=3 {
            let began = Instant::now();
            limit.failed();
            let wait = limit.wait();
            assert!(wait <= Duration::from_secs(failures), "{wait:?}");
            first.get_or_insert(began);
            let since = first.map_or(Duration::ZERO, |first| first.elapsed());
            assert!(wait + since >= Duration::from_secs(failures), "{wait:?} after {since:?}");
        }
    }

    #[test]
    fn each_key_has_a_back_off_of_its_own() {
        let (mut backoffs, pauses, now) =
            (Backoffs::default(), (Duration::from_secs(1), Duration::from_secs(10)), Timestamp(0));
        let first = backoffs.failed("a", "refused", pauses, now).since(now);
        let again = backoffs.failed("a", "no answer", pauses, now).since(now);
        assert!(first <= Duration::from_millis(1200) && again >= Duration::from_millis(1600), "{first:?}, {again:?}");
        assert_eq!(backoffs.active(&"a", now).map(|failure| failure.cause), Some("no answer"));
        assert!(backoffs.active(&"a", now.plus(again)).is_none() && backoffs.last(&"a").is_some());
        assert!(backoffs.failed("b", "refused", pauses, now).since(now) <= Duration::from_millis(1200));
        backoffs.reset(&"a");
        assert!(backoffs.last(&"a").is_none());
        assert!(backoffs.failed("a", "refused", pauses, now).since(now) <= Duration::from_millis(1200));
        backoffs.retain(|key, _| *key == "b");
        assert!(backoffs.last(&"a").is_none() && backoffs.last(&"b").is_some());
    }

    #[test]
    fn backoff_grows_to_its_maximum_and_resets() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let grown: Vec<Duration> = (0..8).map(|_| backoff.pause()).collect();
        assert!(grown[0] <= Duration::from_millis(1200), "{grown:?}");
        assert!(grown[7] >= Duration::from_secs(8) && grown[7] <= Duration::from_secs(12), "{grown:?}");
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(1200));
    }
}
