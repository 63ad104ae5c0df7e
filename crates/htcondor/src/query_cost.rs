//! Cost of a query to HTCondor.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Upper bound of a query's cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryCost {
    /// Processor time on this machine: that of the tool, and that for reading its answer.
    pub local_cpu: Duration,
    /// Time for which the tool waited for others. HTCondor's daemons were busy with the query for no longer.
    pub remote_wait: Duration,
}

impl Add for QueryCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { local_cpu: self.local_cpu + other.local_cpu, remote_wait: self.remote_wait + other.remote_wait }
    }
}

impl Sub for QueryCost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (here, there) =
            (self.local_cpu.saturating_sub(other.local_cpu), self.remote_wait.saturating_sub(other.remote_wait));
        Self { local_cpu: here, remote_wait: there }
    }
}

impl QueryCost {
    /// Computes the cost of a process from its `/proc/PID/schedstat` and its duration. The file has the time for which
    /// the process ran and the time for which it waited for a processor, in nanoseconds. Without these numbers, the
    /// whole duration counts as both.
    pub(super) fn of(schedstat: Option<&str>, took: Duration) -> Self {
        let mut numbers = schedstat.unwrap_or_default().split_whitespace().map(|word| word.parse().ok());
        match (numbers.next().flatten().filter(|ran| *ran > 0), numbers.next().flatten()) {
            (Some(ran), Some(waited)) => {
                let (ran, waited) = (Duration::from_nanos(ran), Duration::from_nanos(waited));
                Self { local_cpu: ran, remote_wait: took.saturating_sub(ran + waited) }
            }
            _ => Self { local_cpu: took, remote_wait: took },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_query_cost_is_the_whole_duration() {
        let took = Duration::from_millis(50);
        let cost = QueryCost::of(Some("12000000 8000000 17\n"), took);
        assert_eq!(cost, QueryCost { local_cpu: Duration::from_millis(12), remote_wait: Duration::from_millis(30) });
        for odd in [None, Some(""), Some("0 0 0\n"), Some("12000000"), Some("a b c")] {
            assert_eq!(QueryCost::of(odd, took), QueryCost { local_cpu: took, remote_wait: took }, "{odd:?}");
        }
    }
}
