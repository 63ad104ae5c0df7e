//! What a question to HTCondor cost.

use std::ops::{Add, Sub};
use std::time::Duration;

/// What a question cost, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Processor time on this machine: the tool's, and what it took to read its answer.
    pub here: Duration,
    /// The time in which the tool waited for others: HTCondor's daemons were busy with it no longer than that.
    pub there: Duration,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { here: self.here + other.here, there: self.there + other.there }
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (here, there) = (self.here.saturating_sub(other.here), self.there.saturating_sub(other.there));
        Self { here, there }
    }
}

impl Cost {
    /// That of a process of which this is `/proc/PID/schedstat`, and which took so long: the time for which it ran, and the
    /// time for which it could have run, in nanoseconds. Where the kernel does not say, it was all of the time.
    pub(super) fn of(schedstat: Option<&str>, took: Duration) -> Self {
        let mut numbers = schedstat.unwrap_or_default().split_whitespace().map(|word| word.parse().ok());
        match (numbers.next().flatten().filter(|ran| *ran > 0), numbers.next().flatten()) {
            (Some(ran), Some(waited)) => {
                let (ran, waited) = (Duration::from_nanos(ran), Duration::from_nanos(waited));
                Self { here: ran, there: took.saturating_sub(ran + waited) }
            }
            _ => Self { here: took, there: took },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_say_is_taken_for_the_worst() {
        let took = Duration::from_millis(50);
        let cost = Cost::of(Some("12000000 8000000 17\n"), took);
        assert_eq!(cost, Cost { here: Duration::from_millis(12), there: Duration::from_millis(30) });
        for odd in [None, Some(""), Some("0 0 0\n"), Some("12000000"), Some("a b c")] {
            assert_eq!(Cost::of(odd, took), Cost { here: took, there: took }, "{odd:?}");
        }
    }
}
