//! Decides how often HTCondor is queried for changed jobs: as often as that is cheap.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use crate::backends::condor::tracker::watched_object::Urgency;
use htcondor::tools::QueryCost;

/// Maximum share of one processor here, and of HTCondor's time, that all queries may take.
const SHARE: f64 = 0.02;
/// Shortest pause between two queries for changed jobs.
const SHORTEST: Duration = Duration::from_secs(1);

/// Number of queries over which the cost of one is averaged. A query at a bad moment, such as while a schedd starts
/// hundreds of jobs, then causes slightly longer pauses instead of one long silence.
const SPREAD: u32 = 8;

/// Costs of the last queries of one kind.
#[derive(Debug, Default)]
pub(super) struct RecentCosts(VecDeque<QueryCost>);

impl RecentCosts {
    pub(super) fn add(&mut self, cost: QueryCost) {
        if self.0.len() >= SPREAD as usize {
            self.0.pop_front();
        }
        self.0.push_back(cost);
    }

    /// Returns the average cost of a query.
    pub(super) fn mean(&self) -> QueryCost {
        let QueryCost { local_cpu: here, remote_wait: there } =
            self.0.iter().fold(QueryCost::default(), |sum, cost| sum + *cost);
        let number = u32::try_from(self.0.len()).unwrap_or(SPREAD).max(1);
        QueryCost { local_cpu: here / number, remote_wait: there / number }
    }
}

/// Returns the pause after a query for changed jobs, such that all queries together stay within their share. `changes`:
/// cost of each such query. `all`: cost of the query for all jobs, once in each `interval`. Returns `None` if the
/// queries for all jobs use the whole share.
///
/// The pause never exceeds `interval`: expensive queries may have met bad moments, and should be tried again.
pub(super) fn pause(changes: QueryCost, all: QueryCost, interval: Duration) -> Option<Duration> {
    if interval <= SHORTEST {
        return None;
    }
    let period = |changes: Duration, all: Duration| {
        let left = SHARE - all.as_secs_f64() / interval.as_secs_f64();
        (left > 0.0).then(|| changes.as_secs_f64() / left)
    };
    let period = period(changes.local_cpu, all.local_cpu)?.max(period(changes.remote_wait, all.remote_wait)?);
    Some(Duration::try_from_secs_f64(period).map_or(interval, |pause| pause.clamp(SHORTEST, interval)))
}

/// Returns the pause before the next query for all jobs, or `None` if there is nothing to query. It is at least `took`,
/// the duration of the last answered query, so that queries run for at most half of the time.
pub(super) fn until_next_look(
    urgency: Urgency,
    interval: Duration,
    soon: Duration,
    took: Duration,
) -> Option<Duration> {
    Some(until_next(urgency, interval, soon)?.max(took))
}

/// Returns the pause before the next query for expected changes, or `None` if there are none. `many`: the objects have
/// many jobs; such queries take at most a third of the time. For few jobs, a slow answer means that the schedd is busy
/// with other work, and one waiting query costs it no more than ten.
pub(super) fn until_next_question(
    urgency: Urgency,
    interval: Duration,
    soon: Duration,
    many: bool,
    took: Duration,
) -> Option<Duration> {
    let pause = match urgency {
        Urgency::Briskly if !many => soon / 5,
        Urgency::Nothing | Urgency::Interval => return None,
        _ => until_next(urgency, interval, soon)?,
    };
    Some(pause.max(if many { took * 2 } else { took.min(soon) }))
}

fn until_next(urgency: Urgency, interval: Duration, soon: Duration) -> Option<Duration> {
    match urgency {
        Urgency::Nothing => None,
        Urgency::Interval => Some(interval),
        Urgency::Lasting(Reverse(pause)) => Some(pause.min(interval).max(soon)),
        Urgency::Soon | Urgency::Briskly => Some(soon),
        Urgency::Now => Some(soon / 10),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(20);

    fn cost(here: u64, there: u64) -> QueryCost {
        QueryCost { local_cpu: Duration::from_millis(here), remote_wait: Duration::from_millis(there) }
    }

    #[test]
    fn cheap_query_runs_every_second() {
        // 200 jobs: three tools for the query of all, one for the changed jobs.
        assert_eq!(pause(cost(15, 10), cost(45, 40), INTERVAL), Some(SHORTEST));
        assert_eq!(pause(QueryCost::default(), QueryCost::default(), INTERVAL), Some(SHORTEST), "nothing is known yet");
    }

    #[test]
    fn expensive_query_runs_seldom_or_never() {
        let seconds = |changes, all| pause(changes, all, INTERVAL).map(|pause| pause.as_secs_f64().round());
        assert_eq!(seconds(cost(40, 10), cost(0, 0)), Some(2.0));
        assert_eq!(seconds(cost(10, 40), cost(0, 0)), Some(2.0), "the cost is the schedd's");
        assert_eq!(seconds(cost(40, 10), cost(200, 0)), Some(4.0), "half of the share is taken");
        assert_eq!(seconds(cost(40, 10), cost(0, 200)), Some(2.0), "of another");
        assert_eq!(seconds(cost(5000, 5000), cost(50, 50)), Some(20.0));
        assert_eq!(seconds(cost(1, 1), cost(400, 0)), None);
        assert_eq!(seconds(cost(1, 1), cost(0, 400)), None);
        assert_eq!(pause(cost(1, 1), cost(1, 1), SHORTEST), None, "all are looked at as often");
        assert_eq!(pause(cost(1, 1), cost(1, 1), Duration::ZERO), None);
    }

    #[test]
    fn single_expensive_query_is_amortized() {
        let mut recent = RecentCosts::default();
        let pauses: Vec<f64> = (0..32)
            .map(|number| {
                recent.add(if number == 8 { cost(15, 800) } else { cost(15, 10) });
                pause(recent.mean(), QueryCost::default(), INTERVAL).unwrap().as_secs_f64()
            })
            .collect();
        assert!(pauses[..8].iter().all(|pause| *pause <= 1.0), "{pauses:?}");
        assert!(pauses[8..16].iter().all(|pause| *pause > 5.0 && *pause < 6.0), "{pauses:?}");
        assert!(pauses[16..].iter().all(|pause| *pause <= 1.0), "{pauses:?}");
    }

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn full_query_takes_at_most_half_of_the_time() {
        let next = |urgency, took| until_next_look(urgency, INTERVAL, SOON, took);
        let lasting = Urgency::Lasting(Reverse(SOON * 3));
        for urgency in [Urgency::Interval, lasting, Urgency::Soon, Urgency::Briskly, Urgency::Now] {
            assert_eq!(next(urgency, INTERVAL * 3), Some(INTERVAL * 3), "{urgency:?}");
            assert!(next(urgency, Duration::ZERO) <= Some(INTERVAL), "{urgency:?}");
        }
        assert_eq!(next(Urgency::Nothing, INTERVAL * 3), None);
    }

    #[test]
    fn awaited_jobs_are_queried_within_three_times_the_query_time() {
        let millis = Duration::from_millis;
        for took in [0, 15, 300, 1000, 2800, 20_000].map(millis) {
            for urgency in [Urgency::Soon, Urgency::Briskly, Urgency::Now] {
                for many in [false, true] {
                    let next = until_next_question(urgency, INTERVAL, SOON, many, took).unwrap();
                    assert!(next <= SOON.max(took * 3), "{next:?} after {took:?}, {urgency:?}, {many}");
                    assert!(next >= took * 2 || !many);
                }
            }
        }
        let few = |took| until_next_question(Urgency::Briskly, INTERVAL, SOON, false, millis(took));
        assert_eq!(few(15), Some(SOON / 5));
        assert_eq!(few(2800), Some(SOON), "a busy schedd is not left alone for as long as it was busy");
    }

    #[test]
    fn long_awaited_change_is_queried_after_a_tenth_of_the_wait() {
        let next =
            |lasts| until_next_question(Urgency::Lasting(Reverse(lasts / 10)), INTERVAL, SOON, false, Duration::ZERO);
        assert_eq!(next(SOON * 60), Some(SOON * 6));
        assert_eq!(next(SOON * 5), Some(SOON));
        assert_eq!(next(SOON * 600), Some(INTERVAL));
        assert_eq!(until_next_question(Urgency::Interval, INTERVAL, SOON, false, SOON), None, "it is watched");
    }

    proptest! {
        #[test]
        fn change_queries_never_exceed_their_share(costs in proptest::collection::vec(0..400_u64, 1..60)) {
            let mut recent = RecentCosts::default();
            let (mut spent, mut time) = (0.0, 0.0);
            // The following queries pay for the cost of the last ones.
            for spent_now in costs.iter().copied().chain([0; SPREAD as usize]) {
                recent.add(cost(0, spent_now));
                spent += Duration::from_millis(spent_now).as_secs_f64();
                time += pause(recent.mean(), QueryCost::default(), INTERVAL).unwrap().as_secs_f64();
            }
            prop_assert!(spent <= SHARE * time * 1.000_001, "{spent} s in {time} s");
        }

        #[test]
        fn all_queries_together_never_exceed_their_share(
            changes in (0..10_000_000_u64, 0..10_000_000_u64),
            all in (0..2_000_000_u64, 0..2_000_000_u64),
            interval in 0..1_000_000_u64,
        ) {
            let cost = |(here, there)| QueryCost { local_cpu: Duration::from_micros(here), remote_wait: Duration::from_micros(there) };
            let (changes, all, interval) = (cost(changes), cost(all), Duration::from_millis(interval));
            let seconds = |time: Duration| time.as_secs_f64();
            // At its maximum, the pause no longer follows the cost.
            if let Some(pause) = pause(changes, all, interval) {
                prop_assert!(pause >= SHORTEST && pause <= interval);
                for (changes, all) in [(changes.local_cpu, all.local_cpu), (changes.remote_wait, all.remote_wait)] {
                    let share = seconds(changes) / seconds(pause + changes) + seconds(all) / seconds(interval + all);
                    prop_assert!(share <= SHARE || pause == interval, "{share} after {pause:?}");
                    prop_assert!(seconds(all) / seconds(interval) < SHARE);
                }
            } else {
                let taken = seconds(all.local_cpu.max(all.remote_wait)) / seconds(interval);
                prop_assert!(interval <= SHORTEST || taken >= SHARE);
            }
        }
    }
}
