//! How often the collector is asked about workers of which something is awaited: a Pod may be Pending for days.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pools::managed::groups::Group;
use crate::pools::managed::scale::{Evidence, Worker};

/// The pauses between questions while what is known of the workers stays the same.
#[derive(Debug, Default)]
pub(super) struct Pace {
    workers: Vec<Worker>,
    pause: Duration,
}

impl Pace {
    /// The pause before the next question while something is awaited: `soon` after a change, and twice as long after each answer
    /// that shows no change, up to `calm`.
    pub(super) fn pause(&self, soon: Duration, calm: Duration) -> Duration {
        self.pause.clamp(soon.min(calm), calm)
    }

    /// This is known of the workers now. `asked`: after a new answer.
    pub(super) fn note(&mut self, groups: &BTreeMap<Group, Evidence>, asked: bool, soon: Duration) {
        let workers: Vec<Worker> = groups.values().flat_map(|group| group.workers.iter().copied()).collect();
        if workers != self.workers {
            (self.workers, self.pause) = (workers, Duration::ZERO);
        } else if asked {
            self.pause = self.pause.max(soon).saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pools::managed::scale::{Answer, Deaths, Goal, Pod, Slot};

    fn groups(pod: Pod) -> BTreeMap<Group, Evidence> {
        let worker = Worker { number: 0, pod, slot: Slot::Unseen, current: true, drained: false };
        let evidence = Evidence {
            now: 0,
            goal: Goal::Replicas(1),
            workers: vec![worker],
            answer: Answer::Known,
            deaths: Deaths::default(),
            taken: BTreeSet::new(),
            room: 1,
        };
        BTreeMap::from([(Group::HTCJob("u".to_owned()), evidence)])
    }

    #[test]
    fn pauses_grow_while_nothing_changes() {
        let (soon, calm) = (Duration::from_secs(1), Duration::from_secs(10));
        let (mut pace, waits) = (Pace::default(), groups(Pod::Waiting { since: 0 }));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pace.note(&waits, true, soon);
            // Looks without a question say nothing new.
            pace.note(&waits, false, soon);
            pauses.push(pace.pause(soon, calm).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        pace.note(&groups(Pod::Running), false, soon);
        assert_eq!(pace.pause(soon, calm), soon);
    }
}
