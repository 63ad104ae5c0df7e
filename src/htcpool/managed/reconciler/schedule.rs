//! Schedule of the reconciles of a pool's workers: after a change, or at a time for what has no event.

use std::time::{Duration, Instant};

/// Changes within this time are handled by one reconcile.
const TOGETHER: Duration = Duration::from_millis(100);

/// The time of the next reconcile.
#[derive(Debug)]
pub(super) struct WorkerSchedule {
    /// Shortest interval between reconciles because of `HTCJob`s: each covers the whole pool.
    soon: Duration,
    /// Start of the last reconcile.
    began: Instant,
    next: Instant,
}

impl WorkerSchedule {
    /// Creates a schedule whose first reconcile is due now.
    pub(super) const fn new(soon: Duration, now: Instant) -> Self {
        Self { soon, began: now, next: now }
    }

    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Schedules a reconcile after a change of a worker's Pod.
    pub(super) fn pods_changed(&mut self, now: Instant) {
        self.next = self.next.min(now + TOGETHER);
    }

    /// Schedules a reconcile after a change of the demand of the pool's `HTCJob`s.
    pub(super) fn jobs_changed(&mut self, now: Instant) {
        self.next = self.next.min((now + TOGETHER).max(self.began + self.soon));
    }

    /// Records the end of a reconcile that began at `began`. The next one is due after `pause`, or after a change.
    pub(super) fn finish(&mut self, began: Instant, now: Instant, pause: Duration) {
        (self.began, self.next) = (began, now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);
    const CALM: Duration = Duration::from_secs(20);

    /// Counts the reconciles in this time. A change comes every `each`.
    fn looks(time: Duration, each: Duration, change: fn(&mut WorkerSchedule, Instant)) -> u32 {
        let began = Instant::now();
        let (mut due, mut count, mut changes) = (WorkerSchedule::new(SOON, began), 0, began + each);
        loop {
            let now = changes.min(due.next());
            if now >= began + time {
                return count;
            }
            if now < due.next() {
                change(&mut due, now);
                changes += each;
            } else {
                due.finish(now, now, CALM);
                count += 1;
            }
        }
    }

    #[test]
    fn unchanged_pool_is_reconciled_at_intervals() {
        assert_eq!(looks(CALM * 10, CALM * 100, WorkerSchedule::jobs_changed), 10);
    }

    #[test]
    fn changes_are_reconciled_soon_and_batched() {
        let began = Instant::now();
        let mut due = WorkerSchedule::new(SOON, began);
        due.finish(began, began, CALM);
        due.jobs_changed(began + SOON * 5);
        assert_eq!(due.next(), began + SOON * 5 + TOGETHER, "the last look was long ago");
        let often = Duration::from_millis(10);
        let looks_at_jobs = looks(SOON * 60, often, WorkerSchedule::jobs_changed);
        assert!((55..=61).contains(&looks_at_jobs), "{looks_at_jobs}");
        // A stream of changes does not delay the reconciles.
        let looks_at_pods = looks(SOON * 6, often, WorkerSchedule::pods_changed);
        assert!((50..=61).contains(&looks_at_pods), "{looks_at_pods}");
    }
}
