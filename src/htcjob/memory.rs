//! State of each object that is kept between two reconciles. All of it may be lost with the process.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use htc_api::{ConditionStatus, ConditionType, HTCJobStatus, Phase};
use htc_machine::{Timestamp, Uid};
use htc_support::forget::Forget;
use htc_support::retry::{Backoff, Failure};
use parking_lot::Mutex;

/// First and longest pause after a failed reconcile.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// First and longest pause after the items or the files of an object could not be read.
const READ_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Time that a status is held back after its last change, so that an expected next change is written with it.
const HOLD_BACK: Duration = Duration::from_secs(1);
/// Additional hold-back for each request that waits for its worker: fewer writes let all requests through sooner.
const HOLD_BACK_FOR_EACH: Duration = Duration::from_millis(10);
/// Maximum hold-back, regardless of the number of waiting requests and changes.
const HOLD_BACK_AT_MOST: Duration = Duration::from_secs(10);

/// Maximum time that the rows of an object are not read again, and its length as a multiple of the time that the last
/// read took.
const REST: (Duration, u32) = (Duration::from_secs(10), 2);
/// Reads that take less are not limited.
const CHEAP: Duration = Duration::from_millis(50);

/// State of all objects, by uid.
#[derive(Debug, Default)]
pub struct ObjectMemory(Mutex<HashMap<Uid, ObjectState>>);

/// State of one object.
#[derive(Debug, Default)]
struct ObjectState {
    /// Status that was last written, until the watch shows it.
    written: Option<HTCJobStatus>,
    /// Status that is held back.
    owed: Option<PendingStatus>,
    /// Back-off while its reconciles fail.
    failing: Option<Backoff>,
    /// Time when it was first seen with another ledger's claim.
    stranger: Option<Timestamp>,
    /// Last failure to read its items.
    items: Option<Failure<String, Timestamp>>,
    /// Last failure to read its files.
    inputs: Option<Failure<String, Timestamp>>,
    /// Time before which its rows in the ledger are not read again.
    rests: Option<Timestamp>,
    /// Whether this process claimed it while it had no row. Then it is new, whatever its age.
    claimed: bool,
}

/// A status that is held back.
#[derive(Debug)]
struct PendingStatus {
    status: HTCJobStatus,
    /// Time since which the published status is out of date.
    since: Timestamp,
    /// Time of the last change of the status that is held back.
    changed: Timestamp,
}

/// Content that is read from ConfigMaps. Each kind has a back-off of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Items of `spec.itemsFrom`.
    Items,
    /// Files of `spec.files`.
    Files,
}

impl ObjectState {
    const fn failed_read(&mut self, content: Content) -> &mut Option<Failure<String, Timestamp>> {
        match content {
            Content::Items => &mut self.items,
            Content::Files => &mut self.inputs,
        }
    }

    const fn is_empty(&self) -> bool {
        matches!(
            self,
            Self {
                written: None,
                owed: None,
                failing: None,
                stranger: None,
                items: None,
                inputs: None,
                rests: None,
                claimed: false,
            }
        )
    }
}

/// Which changes of a status may wait for its next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferral {
    /// None: no further change is expected.
    Nothing,
    /// All but the phase, completion or failure, and the numbers of running, held and ended jobs. A request in flight,
    /// or a requested answer, is expected to change the status.
    AllButNews,
    /// Counts and indexes. Pods that start and end change them many times a second, and the indexes may take 32 KiB.
    Counts,
}

/// When a status is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishTiming {
    /// Not at all: the object has it, or it was written and the watch will show it.
    Unchanged,
    /// Immediately.
    Now,
    /// After this pause, in which the next change is expected.
    Later(Duration),
}

impl ObjectMemory {
    fn of<T>(&self, uid: &Uid, work: impl FnOnce(&mut ObjectState) -> T) -> T {
        let mut all = self.0.lock();
        let seen = all.entry(uid.clone()).or_default();
        let result = work(seen);
        if seen.is_empty() {
            all.remove(uid);
        }
        result
    }

    /// Returns the pause before the next attempt.
    pub(super) fn next_backoff(&self, uid: &Uid) -> Duration {
        self.of(uid, |seen| seen.failing.get_or_insert_with(|| Backoff::new(PAUSES.0, PAUSES.1)).pause())
    }

    pub(super) fn reset_backoff(&self, uid: &Uid) {
        self.of(uid, |seen| seen.failing = None);
    }

    /// Returns the time when the object was first seen with another ledger's claim.
    pub(super) fn foreign_claim_since(&self, uid: &Uid, now: Timestamp) -> Timestamp {
        self.of(uid, |seen| *seen.stranger.get_or_insert(now))
    }

    pub(super) fn clear_foreign_claim(&self, uid: &Uid) {
        self.of(uid, |seen| seen.stranger = None);
    }

    /// Returns why the content could not be read, and the time until it is read again.
    pub(super) fn read_failed_before(&self, uid: &Uid, content: Content, now: Timestamp) -> Option<(String, Duration)> {
        self.of(uid, |state| {
            let failed = state.failed_read(content).as_ref().filter(|failed| failed.is_active(now))?;
            Some((failed.cause.clone(), failed.retry_at.since(now)))
        })
    }

    /// Records that the content could not be read. Returns the pause before the next attempt.
    pub(super) fn read_failed(&self, uid: &Uid, content: Content, message: &str, now: Timestamp) -> Duration {
        self.of(uid, |state| {
            let failed = state.failed_read(content);
            let failure = Failure::after(failed.take(), message.to_owned(), READ_PAUSES, now);
            failed.insert(failure).retry_at.since(now)
        })
    }

    /// Records that the ledger has the content.
    pub(super) fn read_succeeded(&self, uid: &Uid, content: Content) {
        self.of(uid, |state| *state.failed_read(content) = None);
    }

    /// Returns the time until the rows of the object may be read again.
    pub(super) fn read_backoff(&self, uid: &Uid, now: Timestamp) -> Option<Duration> {
        self.of(uid, |seen| {
            seen.rests.take_if(|until| *until <= now);
            seen.rests.map(|until| until.since(now))
        })
    }

    /// Records how long the rows of an object took to read. With the pause that follows, reading takes at most a third
    /// of the time.
    pub(super) fn record_read(&self, uid: &Uid, took: Duration, now: Timestamp) {
        if took >= CHEAP {
            let (longest, times) = REST;
            self.of(uid, |seen| seen.rests = Some(now.plus((took * times).min(longest))));
        }
    }

    pub(super) fn record_claim(&self, uid: &Uid) {
        self.of(uid, |seen| seen.claimed = true);
    }

    /// Records that the object has a row. What this process knew about the claim no longer matters.
    pub(super) fn clear_claim(&self, uid: &Uid) {
        self.of(uid, |seen| seen.claimed = false);
    }

    pub(super) fn has_claimed(&self, uid: &Uid) -> bool {
        self.of(uid, |seen| seen.claimed)
    }

    /// Decides when `status` replaces the published status `shown`. `waiting`: number of requests that wait for their
    /// workers.
    pub(super) fn publish(
        &self,
        uid: &Uid,
        status: &HTCJobStatus,
        shown: Option<&HTCJobStatus>,
        may_wait: Deferral,
        waiting: impl FnOnce() -> usize,
        now: Timestamp,
    ) -> PublishTiming {
        self.of(uid, |seen| {
            if shown == Some(status) {
                seen.written = None;
            }
            let last = seen.written.as_ref().or(shown);
            if last == Some(status) {
                seen.owed = None;
                return PublishTiming::Unchanged;
            }
            if !may_wait.lets(status, last) {
                return PublishTiming::Now;
            }
            let owed =
                seen.owed.get_or_insert_with(|| PendingStatus { status: status.clone(), since: now, changed: now });
            if owed.status != *status {
                (owed.status, owed.changed) = (status.clone(), now);
            }
            let waiting = u32::try_from(waiting()).unwrap_or(u32::MAX);
            let pause = HOLD_BACK + HOLD_BACK_FOR_EACH.saturating_mul(waiting);
            let left = pause.saturating_sub(now.since(owed.changed));
            let left = left.min(HOLD_BACK_AT_MOST.saturating_sub(now.since(owed.since)));
            if left.is_zero() { PublishTiming::Now } else { PublishTiming::Later(left) }
        })
    }

    /// Records that a status was written.
    pub(super) fn published(&self, uid: &Uid, status: HTCJobStatus) {
        self.of(uid, |seen| (seen.written, seen.owed) = (Some(status), None));
    }
}

impl Forget for ObjectMemory {
    fn forget(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }

    fn retain(&self, uids: &HashSet<Uid>) {
        self.0.lock().retain(|uid, _| uids.contains(uid));
    }
}

impl Deferral {
    /// Whether the changes from `last` to `status` may wait. Changes that people and workflows wait for may not.
    fn lets(self, status: &HTCJobStatus, last: Option<&HTCJobStatus>) -> bool {
        match (self, last) {
            (Self::Nothing, _) | (Self::Counts, None) => false,
            (Self::AllButNews, None) => matches!(status.phase, None | Some(Phase::Pending | Phase::Terminating)),
            (Self::AllButNews, Some(last)) => {
                let counts = |status: &HTCJobStatus| (status.running, status.held, status.succeeded, status.failed);
                let same = counts(status) == counts(last) && ends(status) == ends(last);
                (status.phase == last.phase || status.phase == Some(Phase::Terminating)) && same
            }
            (Self::Counts, Some(last)) => status.phase == last.phase && told(status).eq(told(last)),
        }
    }
}

/// Returns type, status and reason of each condition.
fn told(status: &HTCJobStatus) -> impl Iterator<Item = (&str, ConditionStatus, &str)> {
    status.conditions.iter().map(|told| (told.type_.as_str(), told.status, told.reason.as_str()))
}

/// Whether the conditions Complete and Failed are true.
fn ends(status: &HTCJobStatus) -> [bool; 2] {
    [ConditionType::Complete, ConditionType::Failed].map(|kind| {
        let kind = kind.to_string();
        status.conditions.iter().any(|told| told.type_ == kind && told.status == ConditionStatus::True)
    })
}

#[cfg(test)]
mod tests {
    use htc_api::Condition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    const UID: &str = "11111111-0000-4000-8000-000000000000";

    fn status(phase: Phase, attempt: i64) -> HTCJobStatus {
        HTCJobStatus { phase: Some(phase), attempt: Some(attempt), ..HTCJobStatus::default() }
    }

    fn complete() -> Condition {
        Condition {
            type_: ConditionType::Complete.to_string(),
            status: ConditionStatus::True,
            reason: "AllSucceeded".to_owned(),
            message: String::new(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp(millis)
    }

    #[test]
    fn volatile_status_waits_for_the_next_change() {
        let (volatile, uid) = (ObjectMemory::default(), Uid::from(UID));
        let ask = |status: &HTCJobStatus, shown, busy, waiting, now| {
            let may_wait = if busy { Deferral::AllButNews } else { Deferral::Nothing };
            volatile.publish(&uid, status, shown, may_wait, || waiting, at(now))
        };
        let (pending, repeated, submitted) =
            (status(Phase::Pending, 0), status(Phase::Pending, 1), status(Phase::Submitted, 1));
        let later = |millis| PublishTiming::Later(Duration::from_millis(millis));
        assert_eq!(ask(&pending, None, true, 0, 0), later(1000));
        assert_eq!(ask(&pending, None, true, 0, 400), later(600));
        assert_eq!(ask(&pending, None, true, 200, 400), later(2600), "many wait");
        assert_eq!(ask(&pending, None, true, 1_000_000, 400), later(9600));
        assert_eq!(ask(&pending, None, true, 0, 1000), PublishTiming::Now);
        assert_eq!(ask(&pending, None, false, 0, 400), PublishTiming::Now, "nothing is about to change it");
        assert_eq!(ask(&repeated, None, true, 0, 900), later(1000), "it goes on");
        assert_eq!(ask(&repeated, None, true, 1_000_000, 9900), later(100), "it goes on for long");
        volatile.published(&uid, repeated.clone());
        assert_eq!(ask(&repeated, None, true, 0, 1500), PublishTiming::Unchanged);
        assert_eq!(
            ask(&submitted, Some(&repeated), true, 1000, 1500),
            PublishTiming::Now,
            "a phase is published at once"
        );
        volatile.published(&uid, submitted.clone());
        let held = HTCJobStatus { held: 1, ..submitted.clone() };
        assert_eq!(ask(&held, Some(&submitted), true, 1000, 1500), PublishTiming::Now, "and so are counts");
        let complete = HTCJobStatus { conditions: vec![complete()], ..submitted.clone() };
        assert_eq!(ask(&complete, Some(&submitted), true, 1000, 1500), PublishTiming::Now, "and so is the end");
        assert_eq!(ask(&submitted, Some(&submitted), true, 0, 2000), PublishTiming::Unchanged);
        assert!(volatile.0.lock().is_empty(), "no memory is kept of a settled object");
    }

    #[test]
    fn pod_counts_are_batched_and_phase_changes_published_at_once() {
        let (volatile, uid) = (ObjectMemory::default(), Uid::from(UID));
        let running = |succeeded| HTCJobStatus { succeeded, ..status(Phase::Running, 0) };
        let ask = |status: &HTCJobStatus, shown: Option<&HTCJobStatus>, now| {
            volatile.publish(&uid, status, shown, Deferral::Counts, || 0, at(now))
        };
        let shown = running(0);
        assert_eq!(ask(&shown, None, 0), PublishTiming::Now, "nothing was published before");
        // Five jobs end each second, for a minute.
        let mut written = Vec::new();
        for change in 1..=300 {
            let (status, now) = (running(change), change * 200);
            if ask(&status, Some(&shown), now) == PublishTiming::Now {
                volatile.published(&uid, status);
                written.push(now);
            }
        }
        assert!(written.len() <= 6 && written[0] <= 10_200, "{written:?}");
        // The last of these changes is written one second later.
        let (last, now) = (running(301), 61_000);
        assert!(matches!(ask(&last, Some(&shown), now), PublishTiming::Later(pause) if pause <= HOLD_BACK));
        assert_eq!(ask(&last, Some(&shown), now + 1000), PublishTiming::Now);
        volatile.published(&uid, last.clone());
        let stuck = Condition { type_: ConditionType::Stuck.to_string(), ..complete() };
        let stuck = HTCJobStatus { conditions: vec![stuck], ..last.clone() };
        assert_eq!(ask(&stuck, Some(&last), now + 1100), PublishTiming::Now, "a condition");
        let ended = HTCJobStatus { phase: Some(Phase::Completed), ..last.clone() };
        assert_eq!(ask(&ended, Some(&last), now + 1200), PublishTiming::Now, "a phase");
    }

    #[test]
    fn missing_items_are_read_again_with_backoff() {
        let (volatile, uid) = (ObjectMemory::default(), Uid::from(UID));
        assert_eq!(volatile.read_failed_before(&uid, Content::Items, at(0)), None);
        let first = volatile.read_failed(&uid, Content::Items, "no such key", at(0));
        assert_eq!(volatile.read_failed_before(&uid, Content::Items, at(0)), Some(("no such key".to_owned(), first)));
        assert_eq!(volatile.read_failed_before(&uid, Content::Items, at(0).plus(first)), None, "it is time to ask");
        let pauses: Vec<Duration> =
            (0..12).map(|_| volatile.read_failed(&uid, Content::Items, "no such key", at(0))).collect();
        assert!(first <= Duration::from_millis(1200) && pauses[0] > first, "{first:?}, {pauses:?}");
        assert!((Duration::from_secs(48)..=Duration::from_secs(72)).contains(&pauses[11]), "{pauses:?}");
        // Files that are missing have a back-off of their own.
        let pause = volatile.read_failed(&uid, Content::Files, "no such ConfigMap", at(0));
        volatile.read_succeeded(&uid, Content::Items);
        assert_eq!(
            volatile.read_failed_before(&uid, Content::Files, at(0)),
            Some(("no such ConfigMap".to_owned(), pause))
        );
        assert!(volatile.read_failed(&uid, Content::Files, "no such ConfigMap", at(0)) > pause);
        volatile.read_succeeded(&uid, Content::Files);
        assert!(volatile.0.lock().is_empty());
    }

    #[test]
    fn reading_large_htcjobs_takes_at_most_a_third_of_the_time() {
        let (volatile, uid) = (ObjectMemory::default(), Uid::from(UID));
        volatile.record_read(&uid, Duration::from_millis(20), at(0));
        assert_eq!(volatile.read_backoff(&uid, at(0)), None, "few rows");
        volatile.record_read(&uid, Duration::from_millis(400), at(0));
        assert_eq!(volatile.read_backoff(&uid, at(100)), Some(Duration::from_millis(700)));
        assert_eq!(volatile.read_backoff(&uid, at(800)), None);
        volatile.record_read(&uid, Duration::from_secs(60), at(1000));
        assert_eq!(volatile.read_backoff(&uid, at(1000)), Some(Duration::from_secs(10)));
        assert_eq!(volatile.read_backoff(&uid, at(11_000)), None);
        assert!(volatile.0.lock().is_empty());
    }

    #[test]
    fn memory_of_deleted_objects_is_dropped() {
        let (volatile, uid) = (ObjectMemory::default(), Uid::from(UID));
        volatile.record_claim(&uid);
        assert_eq!(volatile.foreign_claim_since(&uid, at(1)), at(1));
        assert_eq!(volatile.foreign_claim_since(&uid, at(2)), at(1));
        volatile.retain(&HashSet::from([uid.clone()]));
        assert!(volatile.has_claimed(&uid));
        volatile.retain(&HashSet::new());
        assert!(!volatile.has_claimed(&uid) && volatile.0.lock().is_empty());
    }
}
