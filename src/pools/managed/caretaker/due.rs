//! When the workers of a pool are looked at next: when something has changed, or when it is time for what nobody tells.

use std::time::{Duration, Instant};

/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(100);

/// The time of the next look.
#[derive(Debug)]
pub(super) struct Due {
    /// Least time between two looks because of `HTCJob`s: a look goes through all of the pool.
    soon: Duration,
    /// When the last look began.
    began: Instant,
    next: Instant,
}

impl Due {
    /// The first look is due now.
    pub(super) const fn new(soon: Duration, now: Instant) -> Self {
        Self { soon, began: now, next: now }
    }

    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// A Pod of a worker has changed.
    pub(super) fn pods_changed(&mut self, now: Instant) {
        self.next = self.next.min(now + TOGETHER);
    }

    /// What `HTCJob`s of the pool have to do has changed.
    pub(super) fn jobs_changed(&mut self, now: Instant) {
        self.next = self.next.min((now + TOGETHER).max(self.began + self.soon));
    }

    /// A look began then. It is over now, and the next one is due after this time if nothing changes before.
    pub(super) fn looked(&mut self, began: Instant, now: Instant, pause: Duration) {
        (self.began, self.next) = (began, now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);
    const CALM: Duration = Duration::from_secs(20);

    /// How many looks there are in this time while a change comes each so often.
    fn looks(time: Duration, each: Duration, change: fn(&mut Due, Instant)) -> u32 {
        let began = Instant::now();
        let (mut due, mut count, mut changes) = (Due::new(SOON, began), 0, began + each);
        loop {
            let now = changes.min(due.next());
            if now >= began + time {
                return count;
            }
            if now < due.next() {
                change(&mut due, now);
                changes += each;
            } else {
                due.looked(now, now, CALM);
                count += 1;
            }
        }
    }

    #[test]
    fn while_nothing_changes_only_time_brings_a_look() {
        assert_eq!(looks(CALM * 10, CALM * 100, Due::jobs_changed), 10);
    }

    #[test]
    fn changes_are_looked_at_soon_and_together() {
        let began = Instant::now();
        let mut due = Due::new(SOON, began);
        due.looked(began, began, CALM);
        due.jobs_changed(began + SOON * 5);
        assert_eq!(due.next(), began + SOON * 5 + TOGETHER, "the last look was long ago");
        let often = Duration::from_millis(10);
        let looks_at_jobs = looks(SOON * 60, often, Due::jobs_changed);
        assert!((55..=61).contains(&looks_at_jobs), "{looks_at_jobs}");
        // A stream of changes holds up no look.
        let looks_at_pods = looks(SOON * 6, often, Due::pods_changed);
        assert!((50..=61).contains(&looks_at_pods), "{looks_at_pods}");
    }
}
