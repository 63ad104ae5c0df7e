use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use htc_machine::facts::InFlight;
use htc_machine::{RequestKey, RequestKind, Rules, Uid};
use parking_lot::Mutex;
use strum::IntoEnumIterator as _;
use tokio::sync::Notify;

/// Requests that are queued or running, at most one for each object.
#[derive(Debug, Default)]
pub struct Registry(Mutex<RequestTable>);

#[derive(Debug, Default)]
struct RequestTable {
    last: u64,
    of: HashMap<Uid, RequestEntry>,
}

#[derive(Debug)]
struct RequestEntry {
    ticket: RequestTicket,
    request: InFlight,
    /// Stops the request while it runs, if its kind allows that.
    stop: Option<Arc<Notify>>,
}

/// Distinguishes requests of the same object and the same key. A cancelled request stays in the queue until its worker
/// reaches it, and a new one may exist by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTicket(u64);

impl Registry {
    fn with<T>(&self, work: impl FnOnce(&mut RequestTable) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Registers a request. Returns `None` if its object already has one.
    #[must_use]
    pub fn enter(&self, key: &RequestKey) -> Option<RequestTicket> {
        self.with(|RequestTable { last, of }| {
            if of.contains_key(&key.uid) {
                return None;
            }
            *last += 1;
            let (ticket, request) = (RequestTicket(*last), InFlight { key: key.clone(), running: false });
            of.insert(key.uid.clone(), RequestEntry { ticket, request, stop: None });
            Some(ticket)
        })
    }

    /// Returns the request of an object.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<InFlight> {
        self.with(|entries| entries.of.get(uid).map(|entry| entry.request.clone()))
    }

    /// Returns the number of requests of each kind.
    #[must_use]
    pub fn depths(&self) -> BTreeMap<&'static str, usize> {
        self.with(|entries| {
            let mut depths: BTreeMap<&'static str, usize> = RequestKind::iter().map(|kind| (kind.into(), 0)).collect();
            for entry in entries.of.values() {
                *depths.entry(entry.request.key.kind.into()).or_default() += 1;
            }
            depths
        })
    }

    /// Returns the number of requests that no worker has started.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.with(|entries| entries.of.values().filter(|entry| !entry.request.running).count())
    }

    /// Cancels a request: at once if no worker has started it; a transfer in progress is asked to stop. Returns whether
    /// the object has no request now.
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

    /// Cancels the request of an object that is gone, if no worker has started it.
    pub fn withdraw(&self, uid: &Uid) {
        self.with(|entries| {
            if entries.of.get(uid).is_some_and(|entry| !entry.request.running) {
                entries.of.remove(uid);
            }
        });
    }

    /// Whether a request exists and was not cancelled.
    #[must_use]
    pub fn stands(&self, uid: &Uid, ticket: RequestTicket) -> bool {
        self.with(|entries| entries.of.get(uid).is_some_and(|entry| entry.ticket == ticket))
    }

    /// Marks a request as started by a worker. Returns false if it was cancelled. From then on `stop` ends it, if its
    /// kind allows that.
    #[must_use]
    pub fn take_up(&self, uid: &Uid, ticket: RequestTicket, stop: &Arc<Notify>) -> bool {
        self.with(|entries| {
            let entry = entries.of.get_mut(uid).filter(|entry| entry.ticket == ticket);
            entry.is_some_and(|entry| {
                entry.request.running = true;
                entry.stop = entry.request.can_be_cancelled(&Rules::ALL).then(|| Arc::clone(stop));
                true
            })
        })
    }

    /// Removes the request of an object, however it ended.
    pub fn resolve(&self, uid: &Uid, ticket: RequestTicket) {
        self.with(|entries| {
            if entries.of.get(uid).is_some_and(|entry| entry.ticket == ticket) {
                entries.of.remove(uid);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use htc_machine::Attempt;

    use super::*;

    fn key(uid: &str, kind: RequestKind) -> RequestKey {
        RequestKey { uid: uid.into(), kind, attempt: Attempt(1), step: 1 }
    }

    #[test]
    fn one_request_is_in_flight_per_object() {
        let registry = Registry::default();
        let first = registry.enter(&key("a", RequestKind::Submit)).unwrap();
        assert!(registry.enter(&key("a", RequestKind::Hold)).is_none());
        assert!(registry.enter(&key("b", RequestKind::Submit)).is_some());
        registry.resolve(&"a".into(), first);
        assert!(registry.enter(&key("a", RequestKind::Submit)).is_some());
    }

    #[test]
    fn cancelled_request_frees_its_object_and_never_runs() {
        let (registry, uid, key, stop) =
            (Registry::default(), "a".into(), key("a", RequestKind::Submit), Arc::default());
        let cancelled = registry.enter(&key).unwrap();
        assert!(registry.cancel(&key) && !registry.stands(&uid, cancelled));
        let again = registry.enter(&key).unwrap();
        // The worker reaches the cancelled one while the other one waits, and again while that runs.
        for _ in 0..2 {
            assert!(!registry.take_up(&uid, cancelled, &stop));
            registry.resolve(&uid, cancelled);
            assert!(registry.stands(&uid, again));
            let _ = registry.take_up(&uid, again, &stop);
        }
    }

    #[test]
    fn request_of_a_deleted_object_is_withdrawn_unless_it_runs() {
        let (registry, key, stop) = (Registry::default(), key("a", RequestKind::Submit), Arc::default());
        let waits = registry.enter(&key).unwrap();
        registry.withdraw(&key.uid);
        assert!(!registry.take_up(&key.uid, waits, &stop));
        let runs = registry.enter(&key).unwrap();
        assert!(registry.take_up(&key.uid, runs, &stop));
        registry.withdraw(&key.uid);
        assert!(registry.stands(&key.uid, runs));
    }

    #[tokio::test]
    async fn only_a_running_transfer_is_interrupted() {
        let registry = Registry::default();
        let begin = |key: &RequestKey| {
            let stop = Arc::default();
            let ticket = registry.enter(key).unwrap();
            assert!(registry.take_up(&key.uid, ticket, &stop) && !registry.cancel(key));
            assert!(registry.get(&key.uid).is_some_and(|request| request.running));
            stop
        };
        begin(&key("a", RequestKind::Fetch)).notified().await;
        let pause = std::time::Duration::from_millis(10);
        assert!(tokio::time::timeout(pause, begin(&key("b", RequestKind::Submit)).notified()).await.is_err());
    }
}
