//! Growing pauses between tries: the one place that knows the `backoff` crate. And a limit that all who fail share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// Pauses that double, with jitter, from `first` to `longest`, until things get better.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Backoff {
    /// Begins with `first`.
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

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Things got better: the next pause is the first again.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// A limit of failures that many share: each makes the next try of any of them wait. What goes well does not count.
#[derive(Debug)]
pub struct FailureLimit {
    /// Time from one failure to the next try.
    spacing: Duration,
    next: Mutex<Instant>,
}

impl FailureLimit {
    /// So many failures a minute, at least one.
    #[must_use]
    pub fn per_minute(failures: u32) -> Self {
        Self { spacing: Duration::from_secs(60) / failures.max(1), next: Mutex::new(Instant::now()) }
    }

    /// A try has failed.
    pub fn failed(&self) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = (*next).max(Instant::now()) + self.spacing;
    }

    /// How long the next try has to wait.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_make_the_next_try_wait_and_add_up() {
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
    fn pauses_grow_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let grown: Vec<Duration> = (0..8).map(|_| backoff.pause()).collect();
        assert!(grown[0] <= Duration::from_millis(1200), "{grown:?}");
        assert!(grown[7] >= Duration::from_secs(8) && grown[7] <= Duration::from_secs(12), "{grown:?}");
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(1200));
    }
}
