//! Workers whose pods run, but which the collector does not list.
//!
//! Their startd cannot reach the collector, or has no token that it accepts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use htc_machine::scaling::SlotState;
use htc_machine::worker_groups::WorkerGroup;

/// Seconds that a worker with a running pod may be absent from the answers before it counts as dead.
///
/// This is fifteen times what a startd needs to appear. It is also how long Kubernetes waits before it evicts the pods
/// of a lost node.
const JOINS: i64 = 300;

/// [`JOINS`], or the value that a test sets instead.
static JOINS_WITHIN: LazyLock<i64> = LazyLock::new(|| {
    #[cfg(feature = "fail-points")]
    if let Some(seconds) = std::env::var("HTC_JOIN_SECONDS").ok().and_then(|text| text.parse().ok()) {
        return seconds;
    }
    JOINS
});

/// All absences, by the uids of the pods.
#[derive(Debug, Default)]
pub(super) struct Absences {
    absent: HashMap<String, Absence>,
    /// For each group, the pod of the last worker that counted as dead, until a worker of the group has joined.
    last: BTreeMap<WorkerGroup, String>,
}

/// Times are in unix seconds.
#[derive(Clone, Copy, Debug)]
enum Absence {
    /// No answer has listed the worker since its pod was first seen running and absent, at this time.
    Since(i64),
    /// The worker counts as dead since this time.
    Dead(i64),
}

impl Absences {
    /// Records that a valid answer to the query at `asked` does not list this worker. Returns whether it now counts as
    /// dead.
    pub(super) fn record_absence(&mut self, uid: &str, asked: i64, now: i64) -> bool {
        let absence = self.absent.entry(uid.to_owned()).or_insert(Absence::Since(now));
        match absence {
            Absence::Since(since) if asked.saturating_sub(*since) >= *JOINS_WITHIN => {
                *absence = Absence::Dead(now);
                true
            }
            Absence::Since(_) | Absence::Dead(_) => false,
        }
    }

    /// Records that the collector lists the worker: it no longer counts as dead. Returns whether it did.
    pub(super) fn record_presence(&mut self, uid: &str) -> bool {
        matches!(self.absent.remove(uid), Some(Absence::Dead(_)))
    }

    /// Records that there is no valid answer.
    ///
    /// Only an absence without a gap counts, so those so far are dropped. A dead worker stays dead.
    pub(super) fn record_no_answer(&mut self) {
        self.absent.retain(|_, absence| matches!(absence, Absence::Dead(_)));
    }

    /// Drops workers whose pods are gone.
    pub(super) fn keep(&mut self, there: &HashSet<String>) {
        self.absent.retain(|uid, _| there.contains(uid));
    }

    /// Drops the last deaths of all other groups.
    pub(super) fn keep_groups(&mut self, asked: &BTreeSet<WorkerGroup>) {
        self.last.retain(|group, _| asked.contains(group));
    }

    pub(super) fn is_dead(&self, uid: &str) -> bool {
        matches!(self.absent.get(uid), Some(Absence::Dead(_)))
    }

    /// Returns the state of a worker that the latest answer does not list. `asked`: time of its query, if it is valid.
    pub(super) fn slot(&self, uid: &str, asked: Option<i64>) -> SlotState {
        match self.absent.get(uid) {
            Some(Absence::Dead(since)) => SlotState::Absent { confirmed: asked.is_some_and(|asked| asked > *since) },
            Some(Absence::Since(_)) | None => SlotState::Unseen,
        }
    }

    /// Returns the pod of the group's last dead worker, if it died because it did not join.
    pub(super) fn last(&self, group: &WorkerGroup) -> Option<&str> {
        self.last.get(group).map(String::as_str)
    }

    pub(super) fn set_last(&mut self, group: WorkerGroup, pod: String) {
        self.last.insert(group, pod);
    }

    /// Forgets the last death: a worker of this group has joined and stayed, or the last one died in another way.
    pub(super) fn forget_last(&mut self, group: &WorkerGroup) {
        self.last.remove(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn worker_is_dead_by_an_answer_after_its_join_timeout() {
        let mut absences = Absences::default();
        assert!(!absences.record_absence("u", NOW - 60, NOW), "its time begins when its pod is seen to run");
        assert!(!absences.record_absence("u", NOW + JOINS - 1, NOW + JOINS + 9));
        assert_eq!(absences.slot("u", Some(NOW + JOINS - 1)), SlotState::Unseen);
        assert!(absences.record_absence("u", NOW + JOINS, NOW + JOINS + 10));
        assert!(absences.is_dead("u"));
        assert!(!absences.record_absence("u", NOW + JOINS + 20, NOW + JOINS + 20), "once");
    }

    #[test]
    fn only_a_later_answer_confirms_the_absence() {
        let mut absences = Absences::default();
        absences.record_absence("u", NOW, NOW);
        absences.record_absence("u", NOW + JOINS, NOW + JOINS + 2);
        let again = |asked| absences.slot("u", asked) == SlotState::Absent { confirmed: true };
        assert_eq!(
            [Some(NOW + JOINS), Some(NOW + JOINS + 2), Some(NOW + JOINS + 3), None].map(again),
            [false, false, true, false]
        );
    }

    #[test]
    fn time_without_an_answer_does_not_count_as_absence() {
        let mut absences = Absences::default();
        absences.record_absence("u", NOW, NOW);
        absences.record_no_answer();
        assert!(!absences.record_absence("u", NOW + JOINS, NOW + JOINS));
        assert!(absences.record_absence("u", NOW + 2 * JOINS, NOW + 2 * JOINS));
        absences.record_no_answer();
        assert!(absences.is_dead("u"));
        absences.record_presence("u");
        assert_eq!(absences.slot("u", Some(NOW + 3 * JOINS)), SlotState::Unseen);
    }
}
