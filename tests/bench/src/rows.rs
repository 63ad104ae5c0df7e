//! The measurements.

pub(crate) mod at_once;
mod beside;
pub(crate) mod callbacks;
pub(crate) mod ends;
pub(crate) mod finished;
pub(crate) mod huge;
pub(crate) mod kueue;
pub(crate) mod pods;
pub(crate) mod pools;
pub(crate) mod procs;
pub(crate) mod queue;
pub(crate) mod waiting;

use std::time::{Duration, Instant};

/// How long a thousand HTCJobs may take to get their ids.
const LONG: Duration = Duration::from_mins(15);

/// Seconds with one digit, or two if they are few.
fn seconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.2} s") } else { format!("{value:.1} s") }
}

/// How many in a second.
fn rate(count: u32, seconds: f64) -> f64 {
    f64::from(count) / seconds
}

/// A number of things, for arithmetic.
#[allow(clippy::cast_precision_loss, reason = "counts of things are far below 2^52")]
fn real(count: usize) -> f64 {
    count as f64
}

/// Points of a course: seconds since `began`, and the count that `which` picks.
fn course(
    tally: &crate::watch::Tally,
    began: Instant,
    which: impl Fn(&(Instant, usize, usize, usize)) -> usize,
) -> Vec<(f64, f64)> {
    tally
        .course
        .iter()
        .map(|point| (point.0.saturating_duration_since(began).as_secs_f64(), real(which(point))))
        .collect()
}

/// The value below which this share of the sorted values lies.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
    let place = (share * real(sorted.len().saturating_sub(1))).ceil() as usize;
    sorted.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_list() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99), percentile(&[], 0.5)), (3.0, 5.0, 0.0));
        assert_eq!((seconds(1.234), seconds(12.34)), ("1.23 s".to_owned(), "12.3 s".to_owned()));
    }
}
