//! Progress lines on stderr: one per step, with the elapsed time at its end.
#![allow(clippy::print_stderr, reason = "progress of a command-line tool")]

use std::time::Instant;

use crate::error::Result;

/// Prints what the step waits for, runs it, and prints how long it took.
pub(crate) fn step<T>(waits_for: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    eprint!("{waits_for} … ");
    let result = work();
    let verdict = if result.is_ok() { "done" } else { "failed" };
    eprintln!("{verdict} ({:.1} s)", start.elapsed().as_secs_f64());
    result
}

/// Prints one line.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
