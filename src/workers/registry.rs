use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use strum::IntoEnumIterator as _;

use crate::machine::facts::InFlight;
use crate::machine::{Kind, RequestKey, Uid};

/// The requests that are queued or running, at most one for each object.
#[derive(Debug, Default)]
pub struct Registry(Mutex<HashMap<Uid, Entry>>);

#[derive(Debug)]
struct Entry {
    request: InFlight,
    cancelled: bool,
}

impl Registry {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Uid, Entry>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enters a request; false if one stands for its object.
    #[must_use]
    pub fn enter(&self, key: &RequestKey) -> bool {
        self.with(|entries| {
            let free = !entries.contains_key(&key.uid);
            if free {
                let request = InFlight { key: key.clone(), running: false };
                entries.insert(key.uid.clone(), Entry { request, cancelled: false });
            }
            free
        })
    }

    /// The request of an object.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<InFlight> {
        self.with(|entries| entries.get(uid).map(|entry| entry.request.clone()))
    }

    /// How many requests of each kind stand.
    #[must_use]
    pub fn depths(&self) -> BTreeMap<&'static str, usize> {
        self.with(|entries| {
            let mut depths: BTreeMap<&'static str, usize> = Kind::iter().map(|kind| (kind.into(), 0)).collect();
            for entry in entries.values() {
                *depths.entry(entry.request.key.kind.into()).or_default() += 1;
            }
            depths
        })
    }

    /// How many requests no worker has taken up.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.with(|entries| entries.values().filter(|entry| !entry.request.running).count())
    }

    /// Marks a request as cancelled, unless its worker has taken it up.
    pub fn cancel(&self, key: &RequestKey) {
        self.with(|entries| {
            if let Some(entry) = entries.get_mut(&key.uid)
                && entry.request.key == *key
                && !entry.request.running
            {
                entry.cancelled = true;
            }
        });
    }

    /// Whether the request of an object was cancelled before a worker took it up.
    #[must_use]
    pub fn is_cancelled(&self, uid: &Uid) -> bool {
        self.with(|entries| entries.get(uid).is_some_and(|entry| entry.cancelled))
    }

    /// A worker takes a request up; false if it was cancelled.
    #[must_use]
    pub fn take_up(&self, key: &RequestKey) -> bool {
        self.with(|entries| {
            entries.get_mut(&key.uid).is_some_and(|entry| {
                entry.request.running = !entry.cancelled;
                !entry.cancelled
            })
        })
    }

    /// The request of an object has ended, however it did.
    pub fn resolve(&self, uid: &Uid) {
        self.with(|entries| entries.remove(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Attempt;

    fn key(uid: &str, step: u32) -> RequestKey {
        RequestKey { uid: uid.into(), kind: Kind::Submit, attempt: Attempt(1), step }
    }

    #[test]
    fn one_request_stands_for_each_object() {
        let registry = Registry::default();
        assert!(registry.enter(&key("a", 1)));
        assert!(!registry.enter(&key("a", 2)));
        assert!(registry.enter(&key("b", 1)));
        registry.resolve(&"a".into());
        assert!(registry.enter(&key("a", 2)));
    }

    #[test]
    fn what_runs_is_not_cancelled() {
        let registry = Registry::default();
        assert!(registry.enter(&key("a", 1)) && registry.enter(&key("b", 1)));
        registry.cancel(&key("a", 1));
        assert!(registry.is_cancelled(&"a".into()) && !registry.is_cancelled(&"b".into()));
        assert!(!registry.take_up(&key("a", 1)));
        assert!(registry.take_up(&key("b", 1)));
        registry.cancel(&key("b", 1));
        assert!(registry.get(&"b".into()).is_some_and(|request| request.running));
    }
}
