//! Turns for what may take long, shared out by namespace: what hangs in one namespace holds up no other.
//!
//! A namespace has a part of all turns. One whose turns last long has a smaller one, and all such namespaces together leave turns
//! to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A turn of this length makes its namespace a slow one, until one takes less.
pub(crate) const SLOW: Duration = Duration::from_secs(5);
/// Time after which a namespace without another such turn is no slow one any more.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(300);

/// How many turns there are at a time.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// In all.
    pub all: usize,
    /// Of one namespace.
    pub each: usize,
    /// Of all slow namespaces together.
    pub slow: usize,
    /// Of one slow namespace.
    pub each_slow: usize,
}

impl Shares {
    /// A limit that is never reached.
    pub const UNLIMITED: usize = Semaphore::MAX_PERMITS;
}

/// The turns for one kind of work.
#[derive(Debug)]
pub struct Turns {
    /// What takes long, and what to check then: for the log.
    what: &'static str,
    shares: Shares,
    all: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Arc<Namespace>>>,
}

#[derive(Debug)]
struct Namespace {
    turns: Arc<Semaphore>,
    slow_turns: Arc<Semaphore>,
    /// When a turn ended that took long, if the last one did.
    slow: Mutex<Option<Instant>>,
}

impl Namespace {
    fn slow(&self) -> MutexGuard<'_, Option<Instant>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.slow().is_some_and(|at| now.saturating_duration_since(at) < REMEMBERED)
    }
}

/// One turn, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    what: &'static str,
    name: String,
    namespace: Arc<Namespace>,
    began: Instant,
    waits: Option<Arc<Waits>>,
    _permits: Permits,
}

/// How long a turn has waited for an answer: that of what comes all the while is short, however long it takes.
#[derive(Debug, Default)]
pub struct Waits {
    longest: Mutex<Duration>,
    /// Those that they are some of.
    all: Option<Arc<Self>>,
}

impl Waits {
    /// None yet; each is also one of `all`.
    #[must_use]
    pub fn among(all: &Arc<Self>) -> Self {
        Self { longest: Mutex::default(), all: Some(Arc::clone(all)) }
    }

    /// The longest so far.
    #[must_use]
    pub fn longest(&self) -> Duration {
        *self.longest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this. It counts also if it is given up.
    pub async fn during<T>(&self, answer: impl Future<Output = T>) -> T {
        let _wait = Wait { waits: self, began: Instant::now() };
        answer.await
    }

    fn note(&self, wait: Duration) {
        {
            let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
            *longest = (*longest).max(wait);
        }
        if let Some(all) = &self.all {
            all.note(wait);
        }
    }
}

/// One that is under way.
struct Wait<'a> {
    waits: &'a Waits,
    began: Instant,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waits.note(self.began.elapsed());
    }
}

/// None of the semaphores is ever closed.
type Permits = (OwnedSemaphorePermit, Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>, OwnedSemaphorePermit);

impl Turns {
    /// `what` takes long in a slow namespace, and what to check then.
    #[must_use]
    pub fn new(what: &'static str, shares: Shares) -> Self {
        let (all, slow) = (Arc::new(Semaphore::new(shares.all)), Arc::new(Semaphore::new(shares.slow)));
        Self { what, shares, all, slow, namespaces: Mutex::default() }
    }

    /// Waits for a turn. None only if there never is one again.
    pub async fn next(&self, name: &str) -> Option<Turn> {
        let namespace = self.of(name, Instant::now());
        // Always in this order. Who waits for a turn of the namespace has none that others could have.
        let its = Arc::clone(&namespace.turns).acquire_owned().await.ok()?;
        let slow = if namespace.is_slow(Instant::now()) {
            let its = Arc::clone(&namespace.slow_turns).acquire_owned().await.ok()?;
            Some((its, Arc::clone(&self.slow).acquire_owned().await.ok()?))
        } else {
            None
        };
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(self.turn(name, namespace, (its, slow, all), Instant::now()))
    }

    /// A turn, if there is one now.
    pub fn try_next(&self, name: &str) -> Option<Turn> {
        self.try_at(name, Instant::now())
    }

    fn try_at(&self, name: &str, now: Instant) -> Option<Turn> {
        let namespace = self.of(name, now);
        let its = Arc::clone(&namespace.turns).try_acquire_owned().ok()?;
        let slow = if namespace.is_slow(now) {
            let its = Arc::clone(&namespace.slow_turns).try_acquire_owned().ok()?;
            Some((its, Arc::clone(&self.slow).try_acquire_owned().ok()?))
        } else {
            None
        };
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.turn(name, namespace, (its, slow, all), now))
    }

    fn turn(&self, name: &str, namespace: Arc<Namespace>, permits: Permits, began: Instant) -> Turn {
        Turn { what: self.what, name: name.to_owned(), namespace, began, waits: None, _permits: permits }
    }

    fn of(&self, name: &str, now: Instant) -> Arc<Namespace> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        // A turn, and who waits for one, keeps its namespace.
        namespaces.retain(|_, namespace| Arc::strong_count(namespace) > 1 || namespace.is_slow(now));
        let Shares { each, each_slow, .. } = self.shares;
        let made = || {
            let (turns, slow_turns) = (Arc::new(Semaphore::new(each)), Arc::new(Semaphore::new(each_slow)));
            Arc::new(Namespace { turns, slow_turns, slow: Mutex::default() })
        };
        Arc::clone(namespaces.entry(name.to_owned()).or_insert_with(made))
    }
}

impl Turn {
    /// From now on it counts as long as its longest wait.
    pub fn counts(&mut self, waits: &Arc<Waits>) {
        self.waits = Some(Arc::clone(waits));
    }

    fn took(&self, now: Instant) -> Duration {
        self.waits.as_ref().map_or_else(|| now.saturating_duration_since(self.began), |waits| waits.longest())
    }

    /// Ends it. What it was for was done, or was refused: if that took less than [`SLOW`], the namespace is no slow one any more.
    pub fn ended(self) {
        self.ended_at(Instant::now());
    }

    fn ended_at(self, now: Instant) {
        if self.took(now) < SLOW {
            *self.namespace.slow() = None;
        }
        self.took_until(now);
    }

    fn took_until(&self, now: Instant) {
        let took = self.took(now);
        if took >= SLOW && !self.namespace.is_slow(now) {
            let (namespace, what) = (&self.name, self.what);
            tracing::warn!(
                namespace,
                ?took,
                "{what}; until one takes less, this namespace has only a share of the turns"
            );
        }
        if took >= SLOW {
            *self.namespace.slow() = Some(now);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.took_until(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { all: 16, each: 8, slow: 4, each_slow: 2 };
    const SHORT: Duration = Duration::from_millis(20);

    fn turns(shares: Shares) -> Turns {
        Turns::new("what is tested takes long", shares)
    }

    fn take_all(turns: &Turns, name: &str, now: Instant) -> Vec<Turn> {
        std::iter::from_fn(|| turns.try_at(name, now)).take(32).collect()
    }

    fn end_all(turns: Vec<Turn>, now: Instant) {
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
    fn slow_namespaces_are_forgotten_after_a_while() {
        let turns = turns(Shares { each_slow: 1, ..SHARES });
        let now = Instant::now();
        let later = now + SLOW;
        turns.try_at("hangs", now).unwrap().ended_at(later);
        let turn = turns.try_at("hangs", later);
        assert!(turn.is_some() && turns.try_at("hangs", later).is_none());
        drop(turn);
        assert_eq!(take_all(&turns, "hangs", later + REMEMBERED).len(), 8);
        assert!(turns.try_at("well", later + REMEMBERED).is_some());
        assert_eq!(turns.namespaces.lock().unwrap().len(), 1);
    }

    #[test]
    fn what_is_given_up_early_proves_nothing() {
        let turns = turns(SHARES);
        let now = Instant::now();
        turns.try_at("hangs", now).unwrap().ended_at(now + SLOW);
        drop(turns.try_at("hangs", now + SLOW));
        assert_eq!(take_all(&turns, "hangs", now + SLOW).len(), 2);
    }

    #[test]
    fn what_comes_all_the_while_is_not_slow() {
        let turns = turns(SHARES);
        let (now, waits) = (Instant::now(), Arc::new(Waits::default()));
        let turn = || {
            let mut turn = turns.try_at("long", now).unwrap();
            turn.counts(&waits);
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
    async fn a_wait_counts_also_if_it_is_given_up() {
        let all = Arc::new(Waits::default());
        let waits = Waits::among(&all);
        let _ = tokio::time::timeout(SHORT, waits.during(std::future::pending::<()>())).await;
        assert!(waits.longest() >= SHORT && all.longest() == waits.longest(), "{waits:?}");
    }

    #[tokio::test]
    async fn turns_of_one_namespace_are_waited_for_by_itself_alone() {
        let turns = turns(SHARES);
        let now = async |name: &str| tokio::time::timeout(SHORT, turns.next(name)).await.ok().flatten();
        let mut hangs = Vec::new();
        for _ in 0..SHARES.each {
            hangs.push(now("hangs").await.unwrap());
        }
        assert!(now("hangs").await.is_none(), "that is its part");
        assert!(now("well").await.is_some());
        let next = hangs.pop();
        let (waited, ()) = tokio::join!(turns.next("hangs"), async { drop(next) });
        hangs.extend(waited);
        assert_eq!(hangs.len(), SHARES.each);
        // They turn out to hang. Who waited meanwhile has the share of a slow one, too.
        let later = Instant::now() + SLOW;
        let (first, ()) = tokio::join!(turns.next("hangs"), async { end_all(std::mem::take(&mut hangs), later) });
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
