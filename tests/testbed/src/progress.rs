//! Progress on stderr: a line when a step begins, one when it has ended, and some in between where it takes minutes. Steps may
//! run side by side.
#![allow(clippy::print_stderr, reason = "progress of a command-line tool")]

use std::time::{Duration, Instant};

use crate::error::Result;

/// How often a long step says how far it is.
const EVERY: Duration = Duration::from_secs(20);

/// Prints what the step waits for, runs it, and prints how long it took.
pub(crate) fn step<T>(waits_for: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    eprintln!("{waits_for} …");
    let result = work();
    let what = waits_for.split([':', '(', ',']).next().unwrap_or(waits_for).trim_end();
    let verdict = if result.is_ok() { "done" } else { "failed" };
    eprintln!("{what}: {verdict} ({:.1} s)", start.elapsed().as_secs_f64());
    result
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// How far a step with many equal parts is.
#[derive(Debug)]
pub(crate) struct Meter {
    what: &'static str,
    done: usize,
    total: usize,
    began: Instant,
    said: Instant,
}

impl Meter {
    /// `what` has `total` parts, and none is done.
    pub(crate) fn new(what: &'static str, total: usize) -> Self {
        Self { what, done: 0, total, began: Instant::now(), said: Instant::now() }
    }

    /// One part more is done. From time to time that is printed, with an estimate of what is left.
    pub(crate) fn count(&mut self) {
        self.done += 1;
        if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            say(&format!("{}: {} of {}, {} left", self.what, self.done, self.total, self.left(self.began.elapsed())));
        }
    }

    /// The time that the rest takes if it takes as long as what is done has taken.
    fn left(&self, elapsed: Duration) -> String {
        let rest = u32::try_from(self.total.saturating_sub(self.done)).unwrap_or(u32::MAX);
        let left = (elapsed * rest / u32::try_from(self.done.max(1)).unwrap_or(u32::MAX)).as_secs();
        if left < 60 { "less than a minute".to_owned() } else { format!("about {} min", left.div_ceil(60)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_estimated_from_progress() {
        let mut meter = Meter::new("x", 400);
        meter.done = 100;
        assert_eq!(meter.left(Duration::from_secs(60)), "about 3 min");
        assert_eq!(meter.left(Duration::from_secs(61)), "about 4 min");
        meter.done = 399;
        assert_eq!(meter.left(Duration::from_secs(600)), "less than a minute");
        meter.done = 500;
        assert_eq!(meter.left(Duration::from_secs(600)), "less than a minute");
    }
}
