//! How often HTCondor is asked which jobs have changed: as often as it is cheap.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use super::entry::Urgency;
use crate::condor::tools::Cost;

/// What all looks may take of one processor here, and of HTCondor's time.
const SHARE: f64 = 0.02;
/// Nobody needs to know sooner.
const SHORTEST: Duration = Duration::from_secs(1);

/// Over so many questions the cost of one is spread: one that meets a bad moment, such as a schedd that starts hundreds of jobs, is paid
/// for in parts, not by one long silence.
const SPREAD: u32 = 8;

/// What the last questions of one kind cost.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Cost>);

impl Recent {
    pub(super) fn add(&mut self, cost: Cost) {
        if self.0.len() >= SPREAD as usize {
            self.0.pop_front();
        }
        self.0.push_back(cost);
    }

    /// The cost of each, on average.
    pub(super) fn mean(&self) -> Cost {
        let Cost { here, there } = self.0.iter().fold(Cost::default(), |sum, cost| sum + *cost);
        let number = u32::try_from(self.0.len()).unwrap_or(SPREAD).max(1);
        Cost { here: here / number, there: there / number }
    }
}

/// The pause after a question which jobs have changed, if such questions cost `changes` each, and a look at all jobs each `interval` costs
/// `all`: such that together they take no more than their share. `None` where the looks at all jobs take all of it.
///
/// It is `interval` at most: questions that cost so much may have met bad moments, and are put again.
pub(super) fn pause(changes: Cost, all: Cost, interval: Duration) -> Option<Duration> {
    if interval <= SHORTEST {
        return None;
    }
    let period = |changes: Duration, all: Duration| {
        let left = SHARE - all.as_secs_f64() / interval.as_secs_f64();
        (left > 0.0).then(|| changes.as_secs_f64() / left)
    };
    let period = period(changes.here, all.here)?.max(period(changes.there, all.there)?);
    Some(Duration::try_from_secs_f64(period).map_or(interval, |pause| pause.clamp(SHORTEST, interval)))
}

/// The pause between two looks at all jobs, if the last one took so long and was answered; none if there is nothing to ask. It is as long at
/// least: nobody looks for more than half of the time.
pub(super) fn until_next_look(
    urgency: Urgency,
    interval: Duration,
    soon: Duration,
    took: Duration,
) -> Option<Duration> {
    Some(until_next(urgency, interval, soon)?.max(took))
}

/// The pause between two questions about objects of which something is awaited, and about no others. `many`: they have many jobs, and such
/// questions take a third of the time at most. What is long in answering about few is a schedd that is busy with other things, and one question
/// that waits for it costs it no more than ten.
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

    fn cost(here: u64, there: u64) -> Cost {
        Cost { here: Duration::from_millis(here), there: Duration::from_millis(there) }
    }

    #[test]
    fn what_is_cheap_is_asked_each_second() {
        // 200 jobs: three tools at all of them, one at those that have changed.
        assert_eq!(pause(cost(15, 10), cost(45, 40), INTERVAL), Some(SHORTEST));
        assert_eq!(pause(Cost::default(), Cost::default(), INTERVAL), Some(SHORTEST), "nothing is known yet");
    }

    #[test]
    fn what_is_dear_is_asked_seldom_or_never() {
        let seconds = |changes, all| pause(changes, all, INTERVAL).map(|pause| pause.as_secs_f64().round());
        assert_eq!(seconds(cost(40, 10), cost(0, 0)), Some(2.0));
        assert_eq!(seconds(cost(10, 40), cost(0, 0)), Some(2.0), "whoever it is that works for it");
        assert_eq!(seconds(cost(40, 10), cost(200, 0)), Some(4.0), "half of the share is taken");
        assert_eq!(seconds(cost(40, 10), cost(0, 200)), Some(2.0), "of another");
        assert_eq!(seconds(cost(5000, 5000), cost(50, 50)), Some(20.0));
        assert_eq!(seconds(cost(1, 1), cost(400, 0)), None);
        assert_eq!(seconds(cost(1, 1), cost(0, 400)), None);
        assert_eq!(pause(cost(1, 1), cost(1, 1), SHORTEST), None, "all are looked at as often");
        assert_eq!(pause(cost(1, 1), cost(1, 1), Duration::ZERO), None);
    }

    #[test]
    fn one_bad_moment_is_paid_for_in_parts() {
        let mut recent = Recent::default();
        let pauses: Vec<f64> = (0..32)
            .map(|number| {
                recent.add(if number == 8 { cost(15, 800) } else { cost(15, 10) });
                pause(recent.mean(), Cost::default(), INTERVAL).unwrap().as_secs_f64()
            })
            .collect();
        assert!(pauses[..8].iter().all(|pause| *pause <= 1.0), "{pauses:?}");
        assert!(pauses[8..16].iter().all(|pause| *pause > 5.0 && *pause < 6.0), "{pauses:?}");
        assert!(pauses[16..].iter().all(|pause| *pause <= 1.0), "{pauses:?}");
    }

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn looks_at_all_jobs_take_half_of_the_time_at_most() {
        let next = |urgency, took| until_next_look(urgency, INTERVAL, SOON, took);
        let lasting = Urgency::Lasting(Reverse(SOON * 3));
        for urgency in [Urgency::Interval, lasting, Urgency::Soon, Urgency::Briskly, Urgency::Now] {
            assert_eq!(next(urgency, INTERVAL * 3), Some(INTERVAL * 3), "{urgency:?}");
            assert!(next(urgency, Duration::ZERO) <= Some(INTERVAL), "{urgency:?}");
        }
        assert_eq!(next(Urgency::Nothing, INTERVAL * 3), None);
    }

    #[test]
    fn what_is_awaited_is_asked_for_within_a_second_or_three_times_what_that_takes() {
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
    fn what_lasts_long_is_asked_for_after_a_tenth_of_that_time() {
        let next =
            |lasts| until_next_question(Urgency::Lasting(Reverse(lasts / 10)), INTERVAL, SOON, false, Duration::ZERO);
        assert_eq!(next(SOON * 60), Some(SOON * 6));
        assert_eq!(next(SOON * 5), Some(SOON));
        assert_eq!(next(SOON * 600), Some(INTERVAL));
        assert_eq!(until_next_question(Urgency::Interval, INTERVAL, SOON, false, SOON), None, "it is watched");
    }

    proptest! {
        #[test]
        fn spread_or_not_they_take_their_share_at_most(costs in proptest::collection::vec(0..400_u64, 1..60)) {
            let mut recent = Recent::default();
            let (mut spent, mut time) = (0.0, 0.0);
            // What the last ones cost is paid for by those that follow.
            for spent_now in costs.iter().copied().chain([0; SPREAD as usize]) {
                recent.add(cost(0, spent_now));
                spent += Duration::from_millis(spent_now).as_secs_f64();
                time += pause(recent.mean(), Cost::default(), INTERVAL).unwrap().as_secs_f64();
            }
            prop_assert!(spent <= SHARE * time * 1.000_001, "{spent} s in {time} s");
        }

        #[test]
        fn looks_take_their_share_at_most(
            changes in (0..10_000_000_u64, 0..10_000_000_u64),
            all in (0..2_000_000_u64, 0..2_000_000_u64),
            interval in 0..1_000_000_u64,
        ) {
            let cost = |(here, there)| Cost { here: Duration::from_micros(here), there: Duration::from_micros(there) };
            let (changes, all, interval) = (cost(changes), cost(all), Duration::from_millis(interval));
            let seconds = |time: Duration| time.as_secs_f64();
            // At its longest the pause does not follow the cost any more.
            if let Some(pause) = pause(changes, all, interval) {
                prop_assert!(pause >= SHORTEST && pause <= interval);
                for (changes, all) in [(changes.here, all.here), (changes.there, all.there)] {
                    let share = seconds(changes) / seconds(pause + changes) + seconds(all) / seconds(interval + all);
                    prop_assert!(share <= SHARE || pause == interval, "{share} after {pause:?}");
                    prop_assert!(seconds(all) / seconds(interval) < SHARE);
                }
            } else {
                let taken = seconds(all.here.max(all.there)) / seconds(interval);
                prop_assert!(interval <= SHORTEST || taken >= SHARE);
            }
        }
    }
}
