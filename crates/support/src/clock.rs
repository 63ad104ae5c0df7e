//! Monotonic wall clock of the operator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use htc_machine::Timestamp;

/// Wall clock that never goes back while the operator runs. It returns the system's time at the start plus the time
/// elapsed since then.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_at: i64,
}

/// Moment, read from the operator's clock and from the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time on the operator's clock, which stands still while the machine is suspended.
    pub at: Timestamp,
    /// Time on the system's clock, in milliseconds since 1970.
    wall: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { began: Instant::now(), began_at: wall() }
    }
}

impl Clock {
    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.began_at).plus(self.began.elapsed())
    }

    /// Returns the current time on both clocks.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading { at: self.now(), wall: wall() }
    }
}

impl Reading {
    /// Returns how far the system's clock has run ahead of the operator's since `earlier`. It does so when a virtual
    /// machine is paused or the system's clock is set. Zero if it has not.
    #[must_use]
    pub fn ahead_since(&self, earlier: &Self) -> Duration {
        let (wall, at) = (self.wall.saturating_sub(earlier.wall), self.at.0.saturating_sub(earlier.at.0));
        Duration::from_millis(u64::try_from(wall.saturating_sub(at)).unwrap_or(0))
    }

    /// Returns the same moment with the system's clock set back by `by`.
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
    fn only_a_clock_jump_ahead_is_measured() {
        let (second, reading) = (Duration::from_secs(1), Clock::default().reading());
        assert_eq!(reading.ahead_since(&reading), Duration::ZERO);
        assert_eq!(reading.ahead_since(&reading.behind(second)), second);
        assert_eq!(reading.behind(second).ahead_since(&reading), Duration::ZERO, "it was set back");
    }
}
