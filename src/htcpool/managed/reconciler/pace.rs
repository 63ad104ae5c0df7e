//! Interval of the queries to the collector while a change of the workers is expected. A Pod may be Pending for days.

use std::collections::BTreeMap;
use std::time::Duration;

use htc_machine::scaling::{Worker, WorkerEvidence};
use htc_machine::worker_groups::WorkerGroup;

/// Back-off of the queries while the observed workers stay the same.
#[derive(Debug, Default)]
pub(super) struct CollectorBackoff {
    workers: Vec<Worker>,
    pause: Duration,
}

impl CollectorBackoff {
    /// Returns the pause before the next query while a change is expected.
    ///
    /// It is `soon` after a change, and doubles with each answer without a change, up to `calm`.
    pub(super) fn pause(&self, soon: Duration, calm: Duration) -> Duration {
        self.pause.clamp(soon.min(calm), calm)
    }

    /// Records the observed workers. `asked`: they come from a new answer.
    pub(super) fn note(&mut self, groups: &BTreeMap<WorkerGroup, WorkerEvidence>, asked: bool, soon: Duration) {
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

    use htc_machine::scaling::{AnswerQuality, EarlyExits, Goal, PodState, SlotState};

    use super::*;

    fn groups(pod: PodState) -> BTreeMap<WorkerGroup, WorkerEvidence> {
        let worker = Worker {
            number: 0,
            pod_state: pod,
            slot_state: SlotState::Unseen,
            up_to_date: true,
            drain_accepted: false,
        };
        let evidence = WorkerEvidence {
            now: 0,
            goal: Goal::Replicas(1),
            workers: vec![worker],
            answer: AnswerQuality::Known,
            deaths: EarlyExits::default(),
            taken_numbers: BTreeSet::new(),
            max_create: 1,
        };
        BTreeMap::from([(WorkerGroup::HTCJob("u".to_owned()), evidence)])
    }

    #[test]
    fn collector_backoff_grows_while_nothing_changes() {
        let (soon, calm) = (Duration::from_secs(1), Duration::from_secs(10));
        let (mut pace, waits) = (CollectorBackoff::default(), groups(PodState::Waiting { since: 0 }));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pace.note(&waits, true, soon);
            // A reconcile without a query brings nothing new.
            pace.note(&waits, false, soon);
            pauses.push(pace.pause(soon, calm).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        pace.note(&groups(PodState::Running), false, soon);
        assert_eq!(pace.pause(soon, calm), soon);
    }
}
