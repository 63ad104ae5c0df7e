//! Schedule of the reconciles. An `HTCPool` has one reconcile at a time, and does not wait for another one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use htc_api::ObjectName;

/// The next reconcile of each `HTCPool`.
#[derive(Debug, Default)]
pub(super) struct ReconcileSchedule {
    /// Number of changes so far.
    news: u64,
    of: HashMap<ObjectName, NextReconcile>,
}

#[derive(Clone, Copy, Debug)]
enum NextReconcile {
    /// A reconcile is under way. It began at this number of changes.
    UnderWay(u64),
    /// Due at this time, or with the next change.
    Next(Option<Instant>),
}

impl ReconcileSchedule {
    /// Makes all pools due after a change. One whose reconcile is under way is reconciled once more after it.
    pub(super) fn invalidate_all(&mut self) {
        self.news += 1;
        for look in self.of.values_mut() {
            if matches!(look, NextReconcile::Next(_)) {
                *look = NextReconcile::Next(Some(Instant::now()));
            }
        }
    }

    /// Returns the indices of the names that are due, and marks their reconciles as under way.
    pub(super) fn take_due(&mut self, names: &[ObjectName], now: Instant) -> Vec<usize> {
        self.of.retain(|name, look| matches!(look, NextReconcile::UnderWay(_)) || names.contains(name));
        let mut places = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let is_due = match self.of.get(name) {
                None => true,
                Some(NextReconcile::UnderWay(_)) => false,
                Some(NextReconcile::Next(at)) => at.is_some_and(|at| at <= now),
            };
            if is_due {
                self.of.insert(name.clone(), NextReconcile::UnderWay(self.news));
                places.push(place);
            }
        }
        places
    }

    /// Records the end of a reconcile. The next one is due after `again`, or with the next change.
    pub(super) fn finish(&mut self, name: &ObjectName, requeue_after: Option<Duration>, now: Instant) {
        let Some(look) = self.of.get_mut(name) else { return };
        let came_meanwhile = matches!(look, NextReconcile::UnderWay(news) if *news != self.news);
        *look = NextReconcile::Next(if came_meanwhile {
            Some(now)
        } else {
            requeue_after.map(|requeue_after| now + requeue_after)
        });
    }

    /// Returns when the next reconcile is due; `None` if all wait for a change.
    pub(super) fn next(&self) -> Option<Instant> {
        let times = self.of.values().filter_map(|look| match look {
            NextReconcile::UnderWay(_) => None,
            NextReconcile::Next(at) => *at,
        });
        times.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn slow_reconcile_does_not_delay_others() {
        let (mut due, now) = (ReconcileSchedule::default(), Instant::now());
        let names = ["hangs", "well"].map(named);
        assert_eq!(due.take_due(&names, now), [0, 1]);
        assert_eq!(due.next(), None);
        let later = Duration::from_secs(2);
        due.finish(&names[1], Some(later), now);
        assert_eq!((due.take_due(&names, now), due.next()), (vec![], Some(now + later)));
        assert_eq!(due.take_due(&names, now + later), [1]);
        due.finish(&names[1], None, now);
        assert_eq!(due.next(), None);
        due.invalidate_all();
        assert_eq!(due.take_due(&names, Instant::now()), [1], "the other one is under way");
        due.finish(&names[0], None, now);
        assert_eq!(due.take_due(&names, now), [0], "there was news meanwhile");
    }

    #[test]
    fn deleted_pool_is_forgotten_once_its_reconcile_ends() {
        let (mut due, now) = (ReconcileSchedule::default(), Instant::now());
        let names = ["gone", "there"].map(named);
        assert_eq!(due.take_due(&names, now), [0, 1]);
        due.finish(&names[1], None, now);
        assert!(due.take_due(&names[1..], now).is_empty());
        due.finish(&names[0], None, now);
        assert!(due.take_due(&names[1..], now).is_empty());
        assert_eq!(due.of.len(), 1);
    }
}
