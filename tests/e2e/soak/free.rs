//! How long a place stays free that `spec.parallelism` leaves to a job that waits.

use crate::soak::checker::{Check, Rule};
use crate::soak::collect::Ad;
use crate::soak::driver::Life;

/// From the start of an operator until it leads, knows what those before it have done, and submits again, in seconds.
const RECOVERY: i64 = 10;
/// The longest that a place may be free while an operator is there, in seconds: a look (8 s), a submission beside all the others, and,
/// once in a while, a submission of an earlier operator that comes too late (15 s) and is removed before the next.
const LONGEST: i64 = 60;

/// A place that a job left, when the next one took it, and for how long an operator was there meanwhile without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub left: i64,
    pub taken: i64,
    pub idle: i64,
}

/// Each place that was left while others waited, in the order in which they were left.
pub fn places(ads: &[&Ad], at_a_time: usize, awake: &[(i64, i64)]) -> Vec<Place> {
    let counting = || ads.iter().filter(|ad| ad.counts());
    let mut staged: Vec<i64> = counting().filter_map(|ad| ad.staged).collect();
    let mut ended: Vec<i64> = counting().filter_map(|ad| ad.completed.or(ad.removed)).collect();
    staged.sort_unstable();
    ended.sort_unstable();
    let place = |(left, taken): (i64, i64)| {
        let beside = |(from, to): &(i64, i64)| taken.min(*to) - left.max(from + RECOVERY);
        Place { left, taken, idle: awake.iter().map(beside).max().unwrap_or(0).max(0) }
    };
    ended.into_iter().zip(staged.into_iter().skip(at_a_time)).map(place).collect()
}

impl Check<'_> {
    /// Where the number does not change.
    pub(super) fn free_places(&mut self, life: &Life, ads: &[&Ad]) {
        for place in life.places(ads, &self.found.awake) {
            let detail = || format!("{place:?}, operators were there at {:?}: {ads:#?}", self.found.awake);
            let detail = (place.idle > LONGEST).then(detail);
            if let Some(detail) = detail {
                self.say(Rule::FreePlace, life, detail);
            }
        }
    }
}
