use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use strum::IntoEnumIterator as _;
use tokio::sync::Notify;

use crate::machine::facts::InFlight;
use crate::machine::{Kind, RequestKey, Rules, Uid};

/// The requests that are queued or running, at most one for each object.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    last: u64,
    of: HashMap<Uid, Entry>,
}

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    request: InFlight,
    /// Ends it while it runs, if it is one that can be stopped half way.
    stop: Option<Arc<Notify>>,
}

/// Tells a request from another one of the same object and the same key: one that was cancelled is in its queue until its worker
/// comes to it, and a new one may stand by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Registry {
    fn with<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enters a request; none if one stands for its object.
    #[must_use]
    pub fn enter(&self, key: &RequestKey) -> Option<Ticket> {
        self.with(|Entries { last, of }| {
            if of.contains_key(&key.uid) {
                return None;
            }
            *last += 1;
            let (ticket, request) = (Ticket(*last), InFlight { key: key.clone(), running: false });
            of.insert(key.uid.clone(), Entry { ticket, request, stop: None });
            Some(ticket)
        })
    }

    /// The request of an object.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<InFlight> {
        self.with(|entries| entries.of.get(uid).map(|entry| entry.request.clone()))
    }

    /// How many requests of each kind stand.
    #[must_use]
    pub fn depths(&self) -> BTreeMap<&'static str, usize> {
        self.with(|entries| {
            let mut depths: BTreeMap<&'static str, usize> = Kind::iter().map(|kind| (kind.into(), 0)).collect();
            for entry in entries.of.values() {
                *depths.entry(entry.request.key.kind.into()).or_default() += 1;
            }
            depths
        })
    }

    /// How many requests no worker has taken up.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.with(|entries| entries.of.values().filter(|entry| !entry.request.running).count())
    }

    /// Takes a request back: at once if no worker has taken it up, and a transfer under way is told to stop. Whether its object is
    /// free now.
    pub fn cancel(&self, key: &RequestKey) -> bool {
        self.with(|entries| {
            let Some(entry) = entries.of.get(&key.uid).filter(|entry| entry.request.key == *key) else { return false };
            let waits = !entry.request.running;
            if waits {
                entries.of.remove(&key.uid);
            } else if let Some(stop) = &entry.stop {
                stop.notify_one();
            }
            waits
        })
    }

    /// Whether a request stands and was not cancelled.
    #[must_use]
    pub fn stands(&self, uid: &Uid, ticket: Ticket) -> bool {
        self.with(|entries| entries.of.get(uid).is_some_and(|entry| entry.ticket == ticket))
    }

    /// A worker takes a request up; false if it was cancelled. From then on `stop` ends it, if that can be.
    #[must_use]
    pub fn take_up(&self, uid: &Uid, ticket: Ticket, stop: &Arc<Notify>) -> bool {
        self.with(|entries| {
            let entry = entries.of.get_mut(uid).filter(|entry| entry.ticket == ticket);
            entry.is_some_and(|entry| {
                entry.request.running = true;
                entry.stop = entry.request.can_be_cancelled(&Rules::ALL).then(|| Arc::clone(stop));
                true
            })
        })
    }

    /// The request of an object has ended, however it did.
    pub fn resolve(&self, uid: &Uid, ticket: Ticket) {
        self.with(|entries| {
            if entries.of.get(uid).is_some_and(|entry| entry.ticket == ticket) {
                entries.of.remove(uid);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Attempt;

    fn key(uid: &str, kind: Kind) -> RequestKey {
        RequestKey { uid: uid.into(), kind, attempt: Attempt(1), step: 1 }
    }

    #[test]
    fn one_request_stands_for_each_object() {
        let registry = Registry::default();
        let first = registry.enter(&key("a", Kind::Submit)).unwrap();
        assert!(registry.enter(&key("a", Kind::Hold)).is_none());
        assert!(registry.enter(&key("b", Kind::Submit)).is_some());
        registry.resolve(&"a".into(), first);
        assert!(registry.enter(&key("a", Kind::Submit)).is_some());
    }

    #[test]
    fn what_was_cancelled_is_free_at_once_and_is_never_taken_up() {
        let (registry, uid, key, stop) = (Registry::default(), "a".into(), key("a", Kind::Submit), Arc::default());
        let cancelled = registry.enter(&key).unwrap();
        assert!(registry.cancel(&key) && !registry.stands(&uid, cancelled));
        let again = registry.enter(&key).unwrap();
        // Its worker comes to the one that was cancelled while the other one waits, and once more while that runs.
        for _ in 0..2 {
            assert!(!registry.take_up(&uid, cancelled, &stop));
            registry.resolve(&uid, cancelled);
            assert!(registry.stands(&uid, again));
            let _ = registry.take_up(&uid, again, &stop);
        }
    }

    #[tokio::test]
    async fn only_a_transfer_is_stopped_half_way() {
        let registry = Registry::default();
        let begin = |key: &RequestKey| {
            let stop = Arc::default();
            let ticket = registry.enter(key).unwrap();
            assert!(registry.take_up(&key.uid, ticket, &stop) && !registry.cancel(key));
            assert!(registry.get(&key.uid).is_some_and(|request| request.running));
            stop
        };
        begin(&key("a", Kind::Fetch)).notified().await;
        let pause = std::time::Duration::from_millis(10);
        assert!(tokio::time::timeout(pause, begin(&key("b", Kind::Submit)).notified()).await.is_err());
    }
}
