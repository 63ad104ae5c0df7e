//! Workers whose pods run and that the collector does not name: the startd cannot reach it, or has no token that it takes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use super::groups::Group;
use super::scale::Slot;

/// How long answers must not name a worker whose pod runs before it counts as dead, in seconds: fifteen times what a startd needs to be
/// named, and as long as Kubernetes waits before it evicts the pods of a lost node.
const JOINS: i64 = 300;

/// [`JOINS`], or what a test sets in its place.
static JOINS_WITHIN: LazyLock<i64> = LazyLock::new(|| {
    #[cfg(feature = "fail-points")]
    if let Some(seconds) = std::env::var("HTC_JOIN_SECONDS").ok().and_then(|text| text.parse().ok()) {
        return seconds;
    }
    JOINS
});

/// All of them, by the uids of their pods.
#[derive(Debug, Default)]
pub(super) struct Absences {
    absent: HashMap<String, Absence>,
    /// The name of the last pod of each group that counted as dead, until one of the group has joined.
    last: BTreeMap<Group, String>,
}

/// In unix seconds.
#[derive(Clone, Copy, Debug)]
enum Absence {
    /// No answer has named it since its pod was seen to run at this time.
    Since(i64),
    /// It counts as dead since then.
    Dead(i64),
}

impl Absences {
    /// An answer that is worth something, and was asked for at `asked`, does not name this one. Returns whether it counts as dead from
    /// now on.
    pub(super) fn is_not_named(&mut self, uid: &str, asked: i64, now: i64) -> bool {
        let absence = self.absent.entry(uid.to_owned()).or_insert(Absence::Since(now));
        match absence {
            Absence::Since(since) if asked.saturating_sub(*since) >= *JOINS_WITHIN => {
                *absence = Absence::Dead(now);
                true
            }
            Absence::Since(_) | Absence::Dead(_) => false,
        }
    }

    /// The collector names it: it counts again. Returns whether it counted as dead.
    pub(super) fn is_named(&mut self, uid: &str) -> bool {
        matches!(self.absent.remove(uid), Some(Absence::Dead(_)))
    }

    /// An answer is worth nothing. Absence has to last without a gap; what counts as dead stays so.
    pub(super) fn is_unknown(&mut self) {
        self.absent.retain(|_, absence| matches!(absence, Absence::Dead(_)));
    }

    /// Forgets those whose pods are gone.
    pub(super) fn keep(&mut self, there: &HashSet<String>) {
        self.absent.retain(|uid, _| there.contains(uid));
    }

    /// Forgets why workers of other groups have died.
    pub(super) fn keep_groups(&mut self, asked: &BTreeSet<Group>) {
        self.last.retain(|group, _| asked.contains(group));
    }

    pub(super) fn is_dead(&self, uid: &str) -> bool {
        matches!(self.absent.get(uid), Some(Absence::Dead(_)))
    }

    /// What is known of one that an answer does not name. `asked`: when that answer was asked for, if it is worth something.
    pub(super) fn slot(&self, uid: &str, asked: Option<i64>) -> Slot {
        match self.absent.get(uid) {
            Some(Absence::Dead(since)) => Slot::Absent { again: asked.is_some_and(|asked| asked > *since) },
            Some(Absence::Since(_)) | None => Slot::Unseen,
        }
    }

    /// The last worker of this group to die did so by not joining: the name of its pod.
    pub(super) fn last(&self, group: &Group) -> Option<&str> {
        self.last.get(group).map(String::as_str)
    }

    pub(super) fn set_last(&mut self, group: Group, pod: String) {
        self.last.insert(group, pod);
    }

    /// A worker of this group has joined and stayed, or the last one to die did so in another way.
    pub(super) fn forget_last(&mut self, group: &Group) {
        self.last.remove(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn one_dies_by_an_answer_that_was_asked_for_after_its_time() {
        let mut absences = Absences::default();
        assert!(!absences.is_not_named("u", NOW - 60, NOW), "its time begins when its pod is seen to run");
        assert!(!absences.is_not_named("u", NOW + JOINS - 1, NOW + JOINS + 9));
        assert_eq!(absences.slot("u", Some(NOW + JOINS - 1)), Slot::Unseen);
        assert!(absences.is_not_named("u", NOW + JOINS, NOW + JOINS + 10));
        assert!(absences.is_dead("u"));
        assert!(!absences.is_not_named("u", NOW + JOINS + 20, NOW + JOINS + 20), "once");
    }

    #[test]
    fn only_an_answer_from_after_its_death_confirms_it() {
        let mut absences = Absences::default();
        absences.is_not_named("u", NOW, NOW);
        absences.is_not_named("u", NOW + JOINS, NOW + JOINS + 2);
        let again = |asked| absences.slot("u", asked) == Slot::Absent { again: true };
        assert_eq!(
            [Some(NOW + JOINS), Some(NOW + JOINS + 2), Some(NOW + JOINS + 3), None].map(again),
            [false, false, true, false]
        );
    }

    #[test]
    fn time_without_an_answer_proves_nothing() {
        let mut absences = Absences::default();
        absences.is_not_named("u", NOW, NOW);
        absences.is_unknown();
        assert!(!absences.is_not_named("u", NOW + JOINS, NOW + JOINS));
        assert!(absences.is_not_named("u", NOW + 2 * JOINS, NOW + 2 * JOINS));
        absences.is_unknown();
        assert!(absences.is_dead("u"));
        absences.is_named("u");
        assert_eq!(absences.slot("u", Some(NOW + 3 * JOINS)), Slot::Unseen);
    }
}
