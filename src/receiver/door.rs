//! Which connections a port keeps. Clients that have not shown who they are never hold a place that one who has needs.
//!
//! A connection waits at the door until its client is known, which on most ports is until it ends. The newest always comes in. If too
//! many wait, the oldest ends, among those of the address that has most. Clients that are known have places of their own.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Numbers of connections of one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most connections whose clients are not known.
    pub(crate) waiting: usize,
    /// Most of them from one address; with IPv6 from one /64, which is what one host may have.
    pub(crate) each: usize,
    /// Most connections whose clients are known.
    pub(crate) known: usize,
}

/// The door of one port; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Door {
    limits: Limits,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    known: usize,
    /// In each address the oldest first.
    waiting: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
}

impl Inner {
    fn remove(&mut self, from: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let of_address = self.waiting.get_mut(&from)?;
        let removed = of_address.remove(&number);
        if of_address.is_empty() {
            self.waiting.remove(&from);
        }
        removed
    }

    /// Ends the oldest connection that waits from this address.
    fn end_oldest(&mut self, from: IpAddr) {
        let oldest = self.waiting.get(&from).and_then(|all| all.keys().next().copied());
        if let Some(end) = oldest.and_then(|number| self.remove(from, number)) {
            tracing::debug!(%from, "the oldest connection of an address is ended for a newer one");
            end.notify_one();
        }
    }

    /// The address of which most connections wait; of several the one that has waited longest.
    fn greediest(&self) -> Option<IpAddr> {
        let rank = |all: &BTreeMap<u64, _>| (all.len(), std::cmp::Reverse(all.keys().next().copied()));
        self.waiting.iter().max_by_key(|(_, all)| rank(all)).map(|(from, _)| *from)
    }
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    door: Door,
    from: IpAddr,
    number: u64,
    known: bool,
    end: Arc<Notify>,
}

impl Door {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection from this address. Another one ends if there are too many.
    pub(super) fn enter(&self, address: IpAddr) -> Place {
        let (from, end) = (neighbours(address), Arc::new(Notify::new()));
        let mut inner = self.inner();
        if inner.waiting.get(&from).map_or(0, BTreeMap::len) >= self.limits.each {
            inner.end_oldest(from);
        }
        if inner.waiting.values().map(BTreeMap::len).sum::<usize>() >= self.limits.waiting
            && let Some(greediest) = inner.greediest()
        {
            inner.end_oldest(greediest);
        }
        let number = inner.next;
        inner.next += 1;
        inner.waiting.entry(from).or_default().insert(number, Arc::clone(&end));
        Place { door: self.clone(), from, number, known: false, end }
    }
}

impl Place {
    /// Moves the connection to the places of those who are known; false if all of these are taken, or if it has been ended.
    pub(super) fn becomes_known(&mut self) -> bool {
        let mut inner = self.door.inner();
        if inner.known >= self.door.limits.known || inner.remove(self.from, self.number).is_none() {
            return false;
        }
        inner.known += 1;
        self.known = true;
        true
    }

    /// Notifies when the connection has to end for a newer one.
    pub(super) fn end(&self) -> Arc<Notify> {
        Arc::clone(&self.end)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.door.inner();
        if self.known {
            inner.known -= 1;
        } else {
            inner.remove(self.from, self.number);
        }
    }
}

/// What counts as one address.
fn neighbours(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn door() -> Door {
        Door::new(Limits { waiting: 4, each: 2, known: 1 })
    }

    fn enter(door: &Door, from: &str) -> Place {
        door.enter(from.parse().unwrap())
    }

    fn has_ended(place: &Place) -> bool {
        place.end().notified().now_or_never().is_some()
    }

    #[test]
    fn newest_of_an_address_ends_its_oldest() {
        let door = door();
        let [oldest, second, newest] = [(); 3].map(|()| enter(&door, "10.0.0.1"));
        assert!(has_ended(&oldest) && !has_ended(&second) && !has_ended(&newest));
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_address() {
        let door = door();
        let [first, _second, other, _third] =
            ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "2001:db8::3"].map(|from| enter(&door, from));
        assert!(has_ended(&first) && !has_ended(&other));
        let mapped = [enter(&door, "::ffff:10.0.0.1"), enter(&door, "10.0.0.1")];
        assert_eq!(mapped[0].from, mapped[1].from);
    }

    #[test]
    fn too_many_end_one_of_the_address_that_has_most() {
        let door = door();
        let single = enter(&door, "10.0.0.1");
        let many = [(); 2].map(|()| enter(&door, "10.0.0.2"));
        let last = enter(&door, "10.0.0.3");
        let newest = enter(&door, "10.0.0.4");
        assert!(has_ended(&many[0]));
        assert!([&single, &many[1], &last, &newest].into_iter().all(|place| !has_ended(place)));
        let _one_more = enter(&door, "10.0.0.5");
        assert!(has_ended(&single), "all have one: the oldest");
    }

    #[test]
    fn known_clients_are_ended_for_nobody_and_have_a_number_of_their_own() {
        let door = door();
        let mut known = enter(&door, "10.0.0.1");
        assert!(known.becomes_known());
        let waiting: Vec<Place> = (0..9).map(|_| enter(&door, "10.0.0.1")).collect();
        assert!(!has_ended(&known));
        assert!(!enter(&door, "10.0.0.2").becomes_known(), "one is known already");
        drop((known, waiting));
        assert!(enter(&door, "10.0.0.2").becomes_known());
        let inner = door.inner();
        assert!(inner.known == 0 && inner.waiting.is_empty(), "nothing is kept of those that are gone: {inner:?}");
    }

    #[test]
    fn what_has_ended_does_not_become_known() {
        let door = door();
        let [mut oldest, _second, _newest] = [(); 3].map(|()| enter(&door, "10.0.0.1"));
        assert!(!oldest.becomes_known());
    }
}
