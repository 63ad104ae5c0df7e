//! What is remembered of each object between two passes. All of it may be lost with the process.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::api::{ConditionStatus, ConditionType, HTCJobStatus, Phase};
use crate::machine::{Timestamp, Uid};
use crate::retry::Backoff;

/// First and longest pause after a failed reconcile.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// First and longest pause after the items of an object could not be read.
const ITEMS_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// So long after it has changed a status waits for what is about to change it again, while little else is going on.
const HOLD_BACK: Duration = Duration::from_secs(1);
/// By so much longer for each request that waits for its worker: the fewer writes, the sooner all are through.
const HOLD_BACK_FOR_EACH: Duration = Duration::from_millis(10);
/// However many wait, and however often it changes.
const HOLD_BACK_AT_MOST: Duration = Duration::from_secs(10);

/// The longest time for which what is known of an object is not read again, and so many times what reading took.
const REST: (Duration, u32) = (Duration::from_secs(10), 2);
/// What takes less is read as often as there is news.
const CHEAP: Duration = Duration::from_millis(50);

/// Of all objects.
#[derive(Debug, Default)]
pub struct VolatileState(Mutex<HashMap<Uid, Seen>>);

/// Of one object.
#[derive(Debug, Default)]
struct Seen {
    /// What was last written to its status, until the watch shows it.
    written: Option<HTCJobStatus>,
    /// What its status would be if it were written now.
    owed: Option<Owed>,
    /// The pauses while its reconcile fails.
    failing: Option<Backoff>,
    /// When it was first seen under another ledger's claim.
    stranger: Option<Timestamp>,
    /// Its items could not be read.
    items: Option<ItemsFailed>,
    /// Its rows in the ledger are not read before.
    rests: Option<Timestamp>,
    /// It had no row, and this process itself has claimed it: it is new, however old it is.
    claimed: bool,
}

/// Why the items of an object could not be read, and when they are tried again.
#[derive(Debug)]
struct ItemsFailed {
    message: String,
    until: Timestamp,
    pauses: Backoff,
}

/// A status that has not been written.
#[derive(Debug)]
struct Owed {
    status: HTCJobStatus,
    /// Since when the one that is shown is out of date.
    since: Timestamp,
    /// Since when this is what it should be.
    changed: Timestamp,
}

impl Seen {
    const fn is_empty(&self) -> bool {
        matches!(
            self,
            Self { written: None, owed: None, failing: None, stranger: None, items: None, rests: None, claimed: false }
        )
    }
}

/// What of a status may wait for its next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayWait {
    /// Nothing: nothing is about to change it.
    Nothing,
    /// All but the phase, the end, and how many jobs run, are held and have ended. A request that stands, or an answer that is asked for, is
    /// about to change it.
    AllButNews,
    /// Counts and indexes. Pods that come and go change them many times a second, and the indexes may take 32 KiB.
    Counts,
}

/// What becomes of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publish {
    /// The object has it, or will have.
    Known,
    /// It is written now.
    Now,
    /// It waits so long for what is about to change it again.
    Later(Duration),
}

impl VolatileState {
    fn of<T>(&self, uid: &Uid, work: impl FnOnce(&mut Seen) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.entry(uid.clone()).or_default();
        let result = work(seen);
        if seen.is_empty() {
            all.remove(uid);
        }
        result
    }

    /// The object is gone, or will be in a moment.
    pub(super) fn forget(&self, uid: &Uid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Forgets all objects but these.
    pub(super) fn keep(&self, uids: &HashSet<Uid>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| uids.contains(uid));
    }

    /// The pause before the next try.
    pub(super) fn failed(&self, uid: &Uid) -> Duration {
        self.of(uid, |seen| seen.failing.get_or_insert_with(|| Backoff::new(PAUSES.0, PAUSES.1)).pause())
    }

    pub(super) fn succeeded(&self, uid: &Uid) {
        self.of(uid, |seen| seen.failing = None);
    }

    /// When the object was first seen under another ledger's claim.
    pub(super) fn stranger_since(&self, uid: &Uid, now: Timestamp) -> Timestamp {
        self.of(uid, |seen| *seen.stranger.get_or_insert(now))
    }

    pub(super) fn is_no_stranger(&self, uid: &Uid) {
        self.of(uid, |seen| seen.stranger = None);
    }

    /// Why the items could not be read, and for how long they are not asked for again.
    pub(super) fn items_failed_before(&self, uid: &Uid, now: Timestamp) -> Option<(String, Duration)> {
        self.of(uid, |seen| {
            let failed = seen.items.as_ref().filter(|failed| failed.until > now)?;
            Some((failed.message.clone(), failed.until.since(now)))
        })
    }

    /// The items could not be read; the pause before the next try.
    pub(super) fn items_failed(&self, uid: &Uid, message: &str, now: Timestamp) -> Duration {
        self.of(uid, |seen| {
            let pauses = || Backoff::new(ITEMS_PAUSES.0, ITEMS_PAUSES.1);
            let mut pauses = seen.items.take().map_or_else(pauses, |failed| failed.pauses);
            let until = now.plus(pauses.pause());
            seen.items = Some(ItemsFailed { message: message.to_owned(), until, pauses });
            until.since(now)
        })
    }

    pub(super) fn items_are_kept(&self, uid: &Uid) {
        self.of(uid, |seen| seen.items = None);
    }

    /// How long its rows are not to be read again.
    pub(super) fn rests(&self, uid: &Uid, now: Timestamp) -> Option<Duration> {
        self.of(uid, |seen| {
            seen.rests.take_if(|until| *until <= now);
            seen.rests.map(|until| until.since(now))
        })
    }

    /// To read its rows took so long: with the rest that follows, all reads take a third of the time.
    pub(super) fn read(&self, uid: &Uid, took: Duration, now: Timestamp) {
        if took >= CHEAP {
            let (longest, times) = REST;
            self.of(uid, |seen| seen.rests = Some(now.plus((took * times).min(longest))));
        }
    }

    pub(super) fn claim(&self, uid: &Uid) {
        self.of(uid, |seen| seen.claimed = true);
    }

    /// It has a row: what this process knew beyond it no longer matters.
    pub(super) fn has_a_row(&self, uid: &Uid) {
        self.of(uid, |seen| seen.claimed = false);
    }

    pub(super) fn has_claimed(&self, uid: &Uid) -> bool {
        self.of(uid, |seen| seen.claimed)
    }

    /// Whether `status` is to be written over `shown`. `waiting`: how many requests wait for their workers.
    pub(super) fn publish(
        &self,
        uid: &Uid,
        status: &HTCJobStatus,
        shown: Option<&HTCJobStatus>,
        may_wait: MayWait,
        waiting: impl FnOnce() -> usize,
        now: Timestamp,
    ) -> Publish {
        self.of(uid, |seen| {
            if shown == Some(status) {
                seen.written = None;
            }
            let last = seen.written.as_ref().or(shown);
            if last == Some(status) {
                seen.owed = None;
                return Publish::Known;
            }
            if !may_wait.lets(status, last) {
                return Publish::Now;
            }
            let owed = seen.owed.get_or_insert_with(|| Owed { status: status.clone(), since: now, changed: now });
            if owed.status != *status {
                (owed.status, owed.changed) = (status.clone(), now);
            }
            let waiting = u32::try_from(waiting()).unwrap_or(u32::MAX);
            let pause = HOLD_BACK + HOLD_BACK_FOR_EACH.saturating_mul(waiting);
            let left = pause.saturating_sub(now.since(owed.changed));
            let left = left.min(HOLD_BACK_AT_MOST.saturating_sub(now.since(owed.since)));
            if left.is_zero() { Publish::Now } else { Publish::Later(left) }
        })
    }

    /// A status was written.
    pub(super) fn published(&self, uid: &Uid, status: HTCJobStatus) {
        self.of(uid, |seen| (seen.written, seen.owed) = (Some(status), None));
    }
}

impl MayWait {
    /// Whether what `status` says beyond the `last` one may wait. What people and workflows wait for does not.
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

/// Type, status and reason of each condition.
fn told(status: &HTCJobStatus) -> impl Iterator<Item = (&str, ConditionStatus, &str)> {
    status.conditions.iter().map(|told| (told.type_.as_str(), told.status, told.reason.as_str()))
}

/// Whether it is said to be complete, and to have failed.
fn ends(status: &HTCJobStatus) -> [bool; 2] {
    [ConditionType::Complete, ConditionType::Failed].map(|kind| {
        let kind = kind.to_string();
        status.conditions.iter().any(|told| told.type_ == kind && told.status == ConditionStatus::True)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::Condition;

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
    fn what_is_about_to_change_waits_for_it() {
        let (volatile, uid) = (VolatileState::default(), Uid::from(UID));
        let ask = |status: &HTCJobStatus, shown, busy, waiting, now| {
            let may_wait = if busy { MayWait::AllButNews } else { MayWait::Nothing };
            volatile.publish(&uid, status, shown, may_wait, || waiting, at(now))
        };
        let (pending, again, submitted) =
            (status(Phase::Pending, 0), status(Phase::Pending, 1), status(Phase::Submitted, 1));
        let later = |millis| Publish::Later(Duration::from_millis(millis));
        assert_eq!(ask(&pending, None, true, 0, 0), later(1000));
        assert_eq!(ask(&pending, None, true, 0, 400), later(600));
        assert_eq!(ask(&pending, None, true, 200, 400), later(2600), "many wait");
        assert_eq!(ask(&pending, None, true, 1_000_000, 400), later(9600));
        assert_eq!(ask(&pending, None, true, 0, 1000), Publish::Now);
        assert_eq!(ask(&pending, None, false, 0, 400), Publish::Now, "nothing is about to change it");
        assert_eq!(ask(&again, None, true, 0, 900), later(1000), "it goes on");
        assert_eq!(ask(&again, None, true, 1_000_000, 9900), later(100), "it goes on for long");
        volatile.published(&uid, again.clone());
        assert_eq!(ask(&again, None, true, 0, 1500), Publish::Known);
        assert_eq!(ask(&submitted, Some(&again), true, 1000, 1500), Publish::Now, "a phase is said at once");
        volatile.published(&uid, submitted.clone());
        let held = HTCJobStatus { held: 1, ..submitted.clone() };
        assert_eq!(ask(&held, Some(&submitted), true, 1000, 1500), Publish::Now, "and so are counts");
        let complete = HTCJobStatus { conditions: vec![complete()], ..submitted.clone() };
        assert_eq!(ask(&complete, Some(&submitted), true, 1000, 1500), Publish::Now, "and so is the end");
        assert_eq!(ask(&submitted, Some(&submitted), true, 0, 2000), Publish::Known);
        assert!(volatile.0.lock().unwrap().is_empty(), "nothing is kept of what is at rest");
    }

    #[test]
    fn counts_of_pods_are_written_together_and_news_at_once() {
        let (volatile, uid) = (VolatileState::default(), Uid::from(UID));
        let running = |succeeded| HTCJobStatus { succeeded, ..status(Phase::Running, 0) };
        let ask = |status: &HTCJobStatus, shown: Option<&HTCJobStatus>, now| {
            volatile.publish(&uid, status, shown, MayWait::Counts, || 0, at(now))
        };
        let shown = running(0);
        assert_eq!(ask(&shown, None, 0), Publish::Now, "nothing was said before");
        // Five jobs end each second, for a minute.
        let mut written = Vec::new();
        for change in 1..=300 {
            let (status, now) = (running(change), change * 200);
            if ask(&status, Some(&shown), now) == Publish::Now {
                volatile.published(&uid, status);
                written.push(now);
            }
        }
        assert!(written.len() <= 6 && written[0] <= 10_200, "{written:?}");
        // The last of them is written a second later.
        let (last, now) = (running(301), 61_000);
        assert!(matches!(ask(&last, Some(&shown), now), Publish::Later(pause) if pause <= HOLD_BACK));
        assert_eq!(ask(&last, Some(&shown), now + 1000), Publish::Now);
        volatile.published(&uid, last.clone());
        let stuck = Condition { type_: ConditionType::Stuck.to_string(), ..complete() };
        let stuck = HTCJobStatus { conditions: vec![stuck], ..last.clone() };
        assert_eq!(ask(&stuck, Some(&last), now + 1100), Publish::Now, "a condition");
        let ended = HTCJobStatus { phase: Some(Phase::Completed), ..last.clone() };
        assert_eq!(ask(&ended, Some(&last), now + 1200), Publish::Now, "a phase");
    }

    #[test]
    fn items_are_asked_for_after_pauses_that_grow() {
        let (volatile, uid) = (VolatileState::default(), Uid::from(UID));
        assert_eq!(volatile.items_failed_before(&uid, at(0)), None);
        let first = volatile.items_failed(&uid, "no such key", at(0));
        assert_eq!(volatile.items_failed_before(&uid, at(0)), Some(("no such key".to_owned(), first)));
        assert_eq!(volatile.items_failed_before(&uid, at(0).plus(first)), None, "it is time to ask");
        let pauses: Vec<Duration> = (0..12).map(|_| volatile.items_failed(&uid, "no such key", at(0))).collect();
        assert!(first <= Duration::from_millis(1200) && pauses[0] > first, "{first:?}, {pauses:?}");
        assert!((Duration::from_secs(48)..=Duration::from_secs(72)).contains(&pauses[11]), "{pauses:?}");
        volatile.items_are_kept(&uid);
        assert!(volatile.0.lock().unwrap().is_empty());
    }

    #[test]
    fn reading_many_rows_takes_a_third_of_the_time() {
        let (volatile, uid) = (VolatileState::default(), Uid::from(UID));
        volatile.read(&uid, Duration::from_millis(20), at(0));
        assert_eq!(volatile.rests(&uid, at(0)), None, "few rows");
        volatile.read(&uid, Duration::from_millis(400), at(0));
        assert_eq!(volatile.rests(&uid, at(100)), Some(Duration::from_millis(700)));
        assert_eq!(volatile.rests(&uid, at(800)), None);
        volatile.read(&uid, Duration::from_secs(60), at(1000));
        assert_eq!(volatile.rests(&uid, at(1000)), Some(Duration::from_secs(10)));
        assert_eq!(volatile.rests(&uid, at(11_000)), None);
        assert!(volatile.0.lock().unwrap().is_empty());
    }

    #[test]
    fn objects_that_are_gone_are_forgotten() {
        let (volatile, uid) = (VolatileState::default(), Uid::from(UID));
        volatile.claim(&uid);
        assert_eq!(volatile.stranger_since(&uid, at(1)), at(1));
        assert_eq!(volatile.stranger_since(&uid, at(2)), at(1));
        volatile.keep(&HashSet::from([uid.clone()]));
        assert!(volatile.has_claimed(&uid));
        volatile.keep(&HashSet::new());
        assert!(!volatile.has_claimed(&uid) && volatile.0.lock().unwrap().is_empty());
    }
}
