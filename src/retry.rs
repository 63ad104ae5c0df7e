//! Growing pauses between tries: the one place that knows the `backoff` crate.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// Pauses that double, with jitter, from `first` to `longest`, until things get better.
#[derive(Debug)]
pub struct Pauses(ExponentialBackoff);

impl Pauses {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_again() {
        let mut pauses = Pauses::new(Duration::from_secs(1), Duration::from_secs(10));
        let grown: Vec<Duration> = (0..8).map(|_| pauses.pause()).collect();
        assert!(grown[0] <= Duration::from_millis(1200), "{grown:?}");
        assert!(grown[7] >= Duration::from_secs(8) && grown[7] <= Duration::from_secs(12), "{grown:?}");
        pauses.reset();
        assert!(pauses.pause() <= Duration::from_millis(1200));
    }
}
