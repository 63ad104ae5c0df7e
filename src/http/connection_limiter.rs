//! Limits the connections of a port. Clients that are not identified never take the place of one that is.
//!
//! A connection counts as waiting until its client is identified, which on most ports is until it ends. The newest
//! connection is always accepted. If too many wait, the oldest one of the address with the most connections is
//! closed. Identified clients have places of their own.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use tokio::sync::Notify;

/// Limits on the connections of one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Maximum number of connections whose clients are not identified.
    pub(crate) waiting: usize,
    /// Maximum number of those from one address; with IPv6 from one /64, which is what one host may have.
    pub(crate) per_address: usize,
    /// Maximum number of connections whose clients are identified.
    pub(crate) known: usize,
}

/// The limiter of one port; clones share it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    limits: ConnectionLimits,
    inner: Arc<Mutex<ConnectionTable>>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    known: usize,
    /// By address; in each, the oldest first.
    waiting: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
}

impl ConnectionTable {
    fn remove(&mut self, from: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let of_address = self.waiting.get_mut(&from)?;
        let removed = of_address.remove(&number);
        if of_address.is_empty() {
            self.waiting.remove(&from);
        }
        removed
    }

    /// Closes the oldest connection that waits from this address.
    fn end_oldest(&mut self, from: IpAddr) {
        let oldest = self.waiting.get(&from).and_then(|all| all.keys().next().copied());
        if let Some(end) = oldest.and_then(|number| self.remove(from, number)) {
            tracing::debug!(%from, "oldest connection of an address closed");
            end.notify_one();
        }
    }

    /// Returns the address with the most waiting connections; of several, the one that has waited longest.
    fn greediest(&self) -> Option<IpAddr> {
        let rank = |all: &BTreeMap<u64, _>| (all.len(), std::cmp::Reverse(all.keys().next().copied()));
        self.waiting.iter().max_by_key(|(_, all)| rank(all)).map(|(from, _)| *from)
    }
}

/// Place of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    door: ConnectionLimiter,
    from: IpAddr,
    number: u64,
    known: bool,
    end: Arc<Notify>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, inner: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, ConnectionTable> {
        self.inner.lock()
    }

    /// Returns a place for a new connection from this address. Another connection is closed if there are too many.
    pub(super) fn admit(&self, address: IpAddr) -> ConnectionPermit {
        let (from, end) = (neighbours(address), Arc::new(Notify::new()));
        let mut inner = self.inner();
        if inner.waiting.get(&from).map_or(0, BTreeMap::len) >= self.limits.per_address {
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
        ConnectionPermit { door: self.clone(), from, number, known: false, end }
    }
}

impl ConnectionPermit {
    /// Moves the connection to the places of identified clients. Returns false if all of these are taken, or if it
    /// has been closed.
    pub(super) fn promote(&mut self) -> bool {
        let mut inner = self.door.inner();
        if inner.known >= self.door.limits.known || inner.remove(self.from, self.number).is_none() {
            return false;
        }
        inner.known += 1;
        self.known = true;
        true
    }

    /// Returns what notifies when the connection has to close for a newer one.
    pub(super) fn end(&self) -> Arc<Notify> {
        Arc::clone(&self.end)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut inner = self.door.inner();
        if self.known {
            inner.known -= 1;
        } else {
            inner.remove(self.from, self.number);
        }
    }
}

/// Returns what counts as one address.
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

    fn door() -> ConnectionLimiter {
        ConnectionLimiter::new(ConnectionLimits { waiting: 4, per_address: 2, known: 1 })
    }

    fn enter(door: &ConnectionLimiter, from: &str) -> ConnectionPermit {
        door.admit(from.parse().unwrap())
    }

    fn has_ended(place: &ConnectionPermit) -> bool {
        place.end().notified().now_or_never().is_some()
    }

    #[test]
    fn newest_connection_of_an_address_ends_its_oldest() {
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
    fn limit_ends_a_connection_of_the_busiest_address() {
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
    fn known_clients_are_never_ended_and_have_their_own_limit() {
        let door = door();
        let mut known = enter(&door, "10.0.0.1");
        assert!(known.promote());
        let waiting: Vec<ConnectionPermit> = (0..9).map(|_| enter(&door, "10.0.0.1")).collect();
        assert!(!has_ended(&known));
        assert!(!enter(&door, "10.0.0.2").promote(), "one is known already");
        drop((known, waiting));
        assert!(enter(&door, "10.0.0.2").promote());
        let inner = door.inner();
        assert!(inner.known == 0 && inner.waiting.is_empty(), "nothing is kept of those that are gone: {inner:?}");
    }

    #[test]
    fn ended_connection_does_not_become_known() {
        let door = door();
        let [mut oldest, _second, _newest] = [(); 3].map(|()| enter(&door, "10.0.0.1"));
        assert!(!oldest.promote());
    }
}
