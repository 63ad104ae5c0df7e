//! The operator's own clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::machine::Timestamp;

/// A wall clock that never goes back while the operator runs: the system's time at the start, plus what has passed since.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_at: i64,
}

impl Default for Clock {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), began_at: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX) }
    }
}

impl Clock {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp(self.began_at).plus(self.began.elapsed())
    }
}
