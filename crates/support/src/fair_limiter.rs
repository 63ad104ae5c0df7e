//! Concurrency limits that are shared fairly by key, such as a namespace or a user: the work of one does not block the
//! others.
//!
//! A key may hold a part of all permits. A slow key may hold a smaller part, and all slow keys together leave permits
//! to the others.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

/// Duration from which a permit makes its key slow, until a later one takes less.
pub(crate) const SLOW: Duration = Duration::from_secs(5);
/// Time after which a key without another slow permit is no longer slow.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(300);

/// Numbers of permits that can be held at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Total number.
    pub all: usize,
    /// Number per key.
    pub each: usize,
    /// Number for all slow keys together.
    pub slow: usize,
    /// Number per slow key.
    pub each_slow: usize,
}

impl Shares {
    /// Limit that is never reached.
    pub const UNLIMITED: usize = Semaphore::MAX_PERMITS;
}

/// Permits for one kind of work, by namespace or another key.
#[derive(Debug)]
pub struct FairLimiter<K = String> {
    /// Log message about what takes long, and what to check then. `None` if no key is ever slow.
    what: Option<&'static str>,
    shares: Shares,
    all: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    keys: Mutex<HashMap<K, Arc<KeyShare>>>,
}

#[derive(Debug)]
struct KeyShare {
    turns: Arc<Semaphore>,
    slow_turns: Arc<Semaphore>,
    /// Time at which the last permit ended, if it was slow.
    slow: Mutex<Option<Instant>>,
}

impl KeyShare {
    fn slow(&self) -> MutexGuard<'_, Option<Instant>> {
        self.slow.lock()
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.slow().is_some_and(|at| now.saturating_duration_since(at) < REMEMBERED)
    }
}

/// Permit, held until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct FairPermit {
    /// Log message about what takes long, and the key.
    what: Option<(&'static str, String)>,
    share: Arc<KeyShare>,
    began: Instant,
    waits: Option<Arc<WaitTimes>>,
    _permits: Permits,
}

/// Longest wait for an answer while a permit is held. A long transfer whose data keeps arriving counts as a short wait.
#[derive(Debug, Default)]
pub struct WaitTimes {
    longest: Mutex<Duration>,
    /// Wait times of a larger group that these belong to.
    all: Option<Arc<Self>>,
}

impl WaitTimes {
    /// Creates wait times that also count for `all`.
    #[must_use]
    pub fn among(all: &Arc<Self>) -> Self {
        Self { longest: Mutex::default(), all: Some(Arc::clone(all)) }
    }

    /// Returns the longest wait so far.
    #[must_use]
    pub fn longest(&self) -> Duration {
        *self.longest.lock()
    }

    /// Waits for `answer` and records the duration, also if the wait is cancelled.
    pub async fn during<T>(&self, answer: impl Future<Output = T>) -> T {
        let _wait = WaitTimer { waits: self, began: Instant::now() };
        answer.await
    }

    fn note(&self, wait: Duration) {
        {
            let mut longest = self.longest.lock();
            *longest = (*longest).max(wait);
        }
        if let Some(all) = &self.all {
            all.note(wait);
        }
    }
}

/// Wait in progress. Dropping it records its duration.
struct WaitTimer<'a> {
    waits: &'a WaitTimes,
    began: Instant,
}

impl Drop for WaitTimer<'_> {
    fn drop(&mut self) {
        self.waits.note(self.began.elapsed());
    }
}

/// Permits of the key, of slow keys, and of all. None of the semaphores is ever closed.
type Permits = (OwnedSemaphorePermit, Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>, OwnedSemaphorePermit);

/// Which permits are all in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// No permit is left for the key.
    Key,
    /// No permit is left at all.
    All,
}

impl<K: Clone + Display + Eq + Hash> FairLimiter<K> {
    /// Creates the permits for one kind of work. `what` is the log message for slow keys: what takes long, and what to
    /// check.
    #[must_use]
    pub fn new(what: &'static str, shares: Shares) -> Self {
        Self::with(Some(what), shares)
    }

    /// Creates permits that may be held for long: no key is slow.
    #[must_use]
    pub fn never_slow(all: usize, each: usize) -> Self {
        Self::with(None, Shares { all, each, slow: 0, each_slow: 0 })
    }

    fn with(what: Option<&'static str>, shares: Shares) -> Self {
        let (all, slow) = (Arc::new(Semaphore::new(shares.all)), Arc::new(Semaphore::new(shares.slow)));
        Self { what, shares, all, slow, keys: Mutex::default() }
    }

    /// Waits for a permit. Returns `None` only if there will never be one again.
    pub async fn acquire(&self, key: impl Into<K>) -> Option<FairPermit> {
        self.acquire_until(key.into(), None).await.ok()
    }

    /// Waits for a permit, at most for `wait`.
    ///
    /// # Errors
    /// None became free. Returns which are in use.
    pub async fn acquire_within(&self, key: impl Into<K>, wait: Duration) -> Result<FairPermit, Exhausted> {
        self.acquire_until(key.into(), Some(Instant::now() + wait)).await
    }

    async fn acquire_until(&self, key: K, until: Option<Instant>) -> Result<FairPermit, Exhausted> {
        let share = self.of(key.clone(), Instant::now());
        // Always acquires in this order. A caller that waits for a permit of its key holds none that others could use.
        let its = wait_until(&share.turns, until).await.ok_or(Exhausted::Key)?;
        let slow = if share.is_slow(Instant::now()) {
            let its = wait_until(&share.slow_turns, until).await.ok_or(Exhausted::Key)?;
            Some((its, wait_until(&self.slow, until).await.ok_or(Exhausted::All)?))
        } else {
            None
        };
        let all = wait_until(&self.all, until).await.ok_or(Exhausted::All)?;
        Ok(self.permit(&key, share, (its, slow, all), Instant::now()))
    }

    /// Returns a permit if one is free now.
    pub fn try_acquire(&self, key: impl Into<K>) -> Option<FairPermit> {
        self.try_at(key, Instant::now())
    }

    fn try_at(&self, key: impl Into<K>, now: Instant) -> Option<FairPermit> {
        let key = key.into();
        let share = self.of(key.clone(), now);
        let its = Arc::clone(&share.turns).try_acquire_owned().ok()?;
        let slow = if share.is_slow(now) {
            let its = Arc::clone(&share.slow_turns).try_acquire_owned().ok()?;
            Some((its, Arc::clone(&self.slow).try_acquire_owned().ok()?))
        } else {
            None
        };
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(&key, share, (its, slow, all), now))
    }

    fn permit(&self, key: &K, share: Arc<KeyShare>, permits: Permits, began: Instant) -> FairPermit {
        let what = self.what.map(|what| (what, key.to_string()));
        FairPermit { what, share, began, waits: None, _permits: permits }
    }

    fn of(&self, key: K, now: Instant) -> Arc<KeyShare> {
        let mut keys = self.keys.lock();
        // Keeps keys with a permit, with a waiting caller, or known to be slow.
        keys.retain(|_, share| Arc::strong_count(share) > 1 || share.is_slow(now));
        let Shares { each, each_slow, .. } = self.shares;
        let made = || {
            let (turns, slow_turns) = (Arc::new(Semaphore::new(each)), Arc::new(Semaphore::new(each_slow)));
            Arc::new(KeyShare { turns, slow_turns, slow: Mutex::default() })
        };
        Arc::clone(keys.entry(key).or_insert_with(made))
    }
}

/// Waits for one of the permits. Returns `None` if there was none until then.
async fn wait_until(permits: &Arc<Semaphore>, until: Option<Instant>) -> Option<OwnedSemaphorePermit> {
    let permit = Arc::clone(permits).acquire_owned();
    match until {
        Some(until) => timeout_at(until.into(), permit).await.ok()?.ok(),
        None => permit.await.ok(),
    }
}

impl FairPermit {
    /// Counts the longest wait as the duration of this permit, instead of the time it is held.
    pub fn count_waits(&mut self, waits: &Arc<WaitTimes>) {
        self.waits = Some(Arc::clone(waits));
    }

    fn took(&self, now: Instant) -> Duration {
        self.waits.as_ref().map_or_else(|| now.saturating_duration_since(self.began), |waits| waits.longest())
    }

    /// Ends the permit after its work was done or refused. If that took less than [`SLOW`], the key is no longer slow.
    pub fn finish(self) {
        self.ended_at(Instant::now());
    }

    fn ended_at(self, now: Instant) {
        if self.took(now) < SLOW {
            *self.share.slow() = None;
        }
        self.took_until(now);
    }

    fn took_until(&self, now: Instant) {
        let (took, Some((what, namespace))) = (self.took(now), &self.what) else { return };
        if took >= SLOW && !self.share.is_slow(now) {
            tracing::warn!(namespace, ?took, what, "requests slow, namespace limited to its share");
        }
        if took >= SLOW {
            *self.share.slow() = Some(now);
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.took_until(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { all: 16, each: 8, slow: 4, each_slow: 2 };
    const SHORT: Duration = Duration::from_millis(20);

    fn turns(shares: Shares) -> FairLimiter {
        FairLimiter::new("what is tested takes long", shares)
    }

    fn take_all(turns: &FairLimiter, name: &str, now: Instant) -> Vec<FairPermit> {
        std::iter::from_fn(|| turns.try_at(name, now)).take(32).collect()
    }

    fn end_all(turns: Vec<FairPermit>, now: Instant) {
        for turn in turns {
            turn.ended_at(now);
        }
    }

    #[test]
    fn slow_namespaces_leave_turns_to_others() {
        let turns = turns(Shares { all: Shares::UNLIMITED, each: Shares::UNLIMITED, slow: 8, each_slow: 4 });
        let now = Instant::now();
        let first = take_all(&turns, "hangs", now);
        assert_eq!(first.len(), 32, "nothing is known of it yet");
        let later = now + SLOW;
        end_all(first, later);
        let [one, other, third] = ["hangs", "other", "third"].map(|name| {
            if name != "hangs" {
                turns.try_at(name, now).unwrap().ended_at(later);
            }
            take_all(&turns, name, later)
        });
        assert_eq!((one.len(), other.len(), third.len()), (4, 4, 0), "of one, and of all that are slow");
        assert_eq!(take_all(&turns, "well", later).len(), 32);

        drop(other);
        assert_eq!(take_all(&turns, "third", later).len(), 4, "others are through, or were given up");
        end_all(one, later);
        assert_eq!(take_all(&turns, "hangs", later).len(), 32, "it hangs no more");
    }

    #[test]
    fn slow_namespaces_recover_after_a_while() {
        let turns = turns(Shares { each_slow: 1, ..SHARES });
        let now = Instant::now();
        let later = now + SLOW;
        turns.try_at("hangs", now).unwrap().ended_at(later);
        let turn = turns.try_at("hangs", later);
        assert!(turn.is_some() && turns.try_at("hangs", later).is_none());
        drop(turn);
        assert_eq!(take_all(&turns, "hangs", later + REMEMBERED).len(), 8);
        assert!(turns.try_at("well", later + REMEMBERED).is_some());
        assert_eq!(turns.keys.lock().len(), 1);
    }

    #[test]
    fn who_may_take_long_is_never_slow_and_is_not_kept_without_a_permit() {
        let (turns, now) = (FairLimiter::<String>::never_slow(16, 8), Instant::now());
        let mut taken = take_all(&turns, "long", now);
        taken.pop().unwrap().ended_at(now + SLOW);
        assert_eq!((taken.len(), take_all(&turns, "long", now + SLOW).len()), (7, 1));
        for number in 0..1000 {
            drop(turns.try_at(format!("user-{number}"), now));
        }
        let keys: Vec<String> = turns.keys.lock().keys().cloned().collect();
        assert!(keys.len() <= 2 && keys.iter().any(|key| key == "long"), "{keys:?}");
    }

    #[test]
    fn turn_dropped_early_does_not_clear_slowness() {
        let turns = turns(SHARES);
        let now = Instant::now();
        turns.try_at("hangs", now).unwrap().ended_at(now + SLOW);
        drop(turns.try_at("hangs", now + SLOW));
        assert_eq!(take_all(&turns, "hangs", now + SLOW).len(), 2);
    }

    #[test]
    fn steady_transfer_is_not_slow() {
        let turns = turns(SHARES);
        let (now, waits) = (Instant::now(), Arc::new(WaitTimes::default()));
        let turn = || {
            let mut turn = turns.try_at("long", now).unwrap();
            turn.count_waits(&waits);
            turn
        };
        turn().ended_at(now + 20 * SLOW);
        drop(turn());
        assert_eq!(take_all(&turns, "long", now + 20 * SLOW).len(), SHARES.each);
        waits.note(SLOW);
        waits.note(SHORT);
        turn().ended_at(now + 20 * SLOW);
        assert_eq!(take_all(&turns, "long", now + 20 * SLOW).len(), SHARES.each_slow);
    }

    #[tokio::test]
    async fn abandoned_wait_is_counted() {
        let all = Arc::new(WaitTimes::default());
        let waits = WaitTimes::among(&all);
        let _ = tokio::time::timeout(SHORT, waits.during(std::future::pending::<()>())).await;
        assert!(waits.longest() >= SHORT && all.longest() == waits.longest(), "{waits:?}");
    }

    #[tokio::test]
    async fn exhausted_namespace_delays_only_itself() {
        let turns = turns(SHARES);
        let now = async |name: &str| tokio::time::timeout(SHORT, turns.acquire(name)).await.ok().flatten();
        let mut hangs = Vec::new();
        for _ in 0..SHARES.each {
            hangs.push(now("hangs").await.unwrap());
        }
        assert!(now("hangs").await.is_none(), "that is its part");
        assert!(now("well").await.is_some());
        let next = hangs.pop();
        let (waited, ()) = tokio::join!(turns.acquire("hangs"), async { drop(next) });
        hangs.extend(waited);
        assert_eq!(hangs.len(), SHARES.each);
        // These permits turn out to be slow. A caller that waited meanwhile gets a slow namespace's share, too.
        let later = Instant::now() + SLOW;
        let (first, ()) = tokio::join!(turns.acquire("hangs"), async { end_all(std::mem::take(&mut hangs), later) });
        let (second, third) = (now("hangs").await, now("hangs").await);
        assert!(first.is_some() && second.is_some() && third.is_none(), "{third:?}");
        let mut well = Vec::new();
        for name in ["well", "better"] {
            for _ in 0..SHARES.each {
                well.extend(now(name).await);
            }
        }
        assert_eq!(well.len(), SHARES.all - SHARES.each_slow);
    }
}
