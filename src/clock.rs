//! The operator's own clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::machine::Timestamp;

/// A wall clock that never goes back while the operator runs: the system's time at the start, plus what has passed since.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_at: i64,
}

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// On the operator's clock, which stands still while the machine does.
    pub at: Timestamp,
    /// On the system's, in milliseconds.
    wall: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { began: Instant::now(), began_at: wall() }
    }
}

impl Clock {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.began_at).plus(self.began.elapsed())
    }

    /// Now, on both clocks.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading { at: self.now(), wall: wall() }
    }
}

impl Reading {
    /// By how much the system's clock has run ahead of the operator's since `earlier`: a virtual machine was paused, or the
    /// system's clock was set. Zero if it has not.
    #[must_use]
    pub fn ahead_since(&self, earlier: &Self) -> Duration {
        let (wall, at) = (self.wall.saturating_sub(earlier.wall), self.at.0.saturating_sub(earlier.at.0));
        Duration::from_millis(u64::try_from(wall.saturating_sub(at)).unwrap_or(0))
    }

    /// The same moment, on a system's clock that is behind by so much.
    #[cfg(test)]
    pub(crate) fn behind(self, by: Duration) -> Self {
        Self { wall: Timestamp(self.wall).before(by).unwrap_or_default().0, ..self }
    }
}

fn wall() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_system_clock_that_runs_ahead_counts() {
        let (second, reading) = (Duration::from_secs(1), Clock::default().reading());
        assert_eq!(reading.ahead_since(&reading), Duration::ZERO);
        assert_eq!(reading.ahead_since(&reading.behind(second)), second);
        assert_eq!(reading.behind(second).ahead_since(&reading), Duration::ZERO, "it was set back");
    }
}
