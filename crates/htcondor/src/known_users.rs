//! Users (`User`) under which the schedd knows this operator, and the identity of each object's jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use htc_api::Identity;
use htc_machine::{Timestamp, Uid};
use parking_lot::Mutex;

/// Users (`User`) of this operator's jobs. An ad counts for an object only if its user belongs to the object's
/// identity. Anyone can write `HTCOperator` and `HTCJobUID`, so users of one namespace could otherwise fake jobs of
/// another one.
#[derive(Debug, Default)]
pub struct KnownUsers(Mutex<UserTable>);

#[derive(Debug, Default)]
struct UserTable {
    /// Users of each identity, and since when each is known.
    users: HashMap<Identity, BTreeMap<String, Timestamp>>,
    /// Users of all identities.
    names: BTreeSet<String>,
    /// Identity of each object, and since when it is known. Objects without an entry may have jobs of any known user.
    objects: HashMap<Uid, (Identity, Timestamp)>,
}

impl KnownUsers {
    /// Creates a table with already known users.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = (Identity, String)>) -> Self {
        let names = Self::default();
        known.into_iter().for_each(|(identity, user)| names.learn(&identity, &user, Timestamp(0)));
        names
    }

    fn with<T>(&self, work: impl FnOnce(&mut UserTable) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Records that the schedd calls this identity `user`.
    pub(super) fn learn(&self, identity: &Identity, user: &str, now: Timestamp) {
        self.with(|state| {
            let users = state.users.entry(identity.clone()).or_default();
            if !users.contains_key(user) {
                users.insert(user.to_owned(), now);
                state.names.insert(user.to_owned());
            }
        });
    }

    /// Returns since when any user of this identity is known. Only answers to later queries contain that user's jobs.
    #[must_use]
    pub fn known_since(&self, identity: &Identity) -> Option<Timestamp> {
        self.with(|state| state.users.get(identity)?.values().min().copied())
    }

    /// Makes only jobs of this identity's users count for the object. Returns since when that is so.
    pub fn assign(&self, uid: &Uid, identity: &Identity, now: Timestamp) -> Timestamp {
        self.with(|state| match state.objects.get(uid) {
            Some((known, since)) if known == identity => *since,
            Some(_) | None => {
                state.objects.insert(uid.clone(), (identity.clone(), now));
                now
            }
        })
    }

    /// Returns the identity of the object's jobs, and since when it is known.
    #[must_use]
    pub fn assigned(&self, uid: &Uid) -> Option<(Identity, Timestamp)> {
        self.with(|state| state.objects.get(uid).cloned())
    }

    /// Forgets all objects but these.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.with(|state| state.objects.retain(|uid, _| uids.contains(uid)));
    }

    /// Forgets a deleted object. Its remaining jobs then count as orphans.
    pub fn forget(&self, uid: &Uid) {
        self.with(|state| state.objects.remove(uid));
    }

    /// Returns the identities that have or had this user, the operator's own first. Several Secrets may hold
    /// credentials of one user.
    #[must_use]
    pub fn identities_of(&self, user: &str) -> BTreeSet<Identity> {
        self.with(|state| {
            let its = state.users.iter().filter(|(_, users)| users.contains_key(user));
            its.map(|(identity, _)| identity.clone()).collect()
        })
    }

    /// Returns all users of one identity.
    pub(super) fn of(&self, identity: &Identity) -> Vec<String> {
        self.with(|state| state.users.get(identity).map(|users| users.keys().cloned().collect()).unwrap_or_default())
    }

    /// Returns the users of identities without a Secret. Only the operator can act as these.
    pub(super) fn without_secrets(&self) -> BTreeSet<String> {
        let secret = |identity: &Identity| matches!(identity, Identity::Secret { .. });
        self.with(|state| {
            let users = state.users.iter().filter(|(identity, _)| !secret(identity));
            users.flat_map(|(_, users)| users.keys().cloned()).collect()
        })
    }

    /// Returns the users of all identities.
    pub(super) fn all(&self) -> BTreeSet<String> {
        self.with(|state| state.names.clone())
    }

    /// Returns whether this is a user of any identity.
    pub(super) fn knows(&self, user: &str) -> bool {
        self.with(|state| state.names.contains(user))
    }

    /// Returns whether a job of this object may belong to `user`.
    pub(super) fn belongs(&self, uid: &str, user: &str) -> bool {
        self.with(|state| match state.objects.get(uid) {
            Some((identity, _)) => {
                let is = |identity| state.users.get(identity).is_some_and(|users| users.contains_key(user));
                // Jobs from before namespaces had users of their own, of which the ledger has no record. Only this
                // operator can have the operator's user.
                is(identity) || (matches!(identity, Identity::Namespace(_)) && is(&Identity::Operator))
            }
            None => state.names.contains(user),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_cannot_claim_an_object_of_another_identity() {
        let alice = Identity::Secret { namespace: "a".to_owned(), name: "token".to_owned() };
        let bob = Identity::Secret { namespace: "b".to_owned(), name: "token".to_owned() };
        let names = KnownUsers::new([
            (Identity::Operator, "operator@test".to_owned()),
            (alice.clone(), "alice@test".to_owned()),
            (bob.clone(), "bob@test".to_owned()),
        ]);
        assert!(names.belongs("1", "alice@test") && !names.belongs("1", "eve@test"));
        names.assign(&"1".into(), &bob, Timestamp(1));
        names.assign(&"2".into(), &Identity::Operator, Timestamp(1));
        assert!(names.belongs("1", "bob@test") && !names.belongs("1", "alice@test"));
        assert!(names.belongs("2", "operator@test") && !names.belongs("2", "bob@test"));
        names.assign(&"3".into(), &Identity::Namespace("a".to_owned()), Timestamp(1));
        assert!(names.belongs("3", "operator@test") && !names.belongs("3", "alice@test"));
        names.learn(&bob, "bob2@test", Timestamp(2));
        assert!(names.belongs("1", "bob2@test") && names.belongs("1", "bob@test"));
        assert_eq!(names.known_since(&bob), Some(Timestamp(0)));
        names.forget(&"1".into());
        assert!(names.belongs("1", "alice@test"));
        let identities = |user| names.identities_of(user).into_iter().collect::<Vec<_>>();
        assert_eq!((identities("bob2@test"), identities("eve@test")), (vec![bob.clone()], Vec::new()));
        names.learn(&bob, "operator@test", Timestamp(3));
        assert_eq!(identities("operator@test"), [Identity::Operator, bob]);
        assert_eq!(names.all().len(), 4);
        assert!(names.knows("bob2@test") && !names.knows("Bob2@test"));
    }

    #[test]
    fn relearned_user_keeps_its_first_time() {
        let (names, uid) = (KnownUsers::default(), Uid::from("1"));
        let alice = Identity::Secret { namespace: "a".to_owned(), name: "token".to_owned() };
        assert_eq!(names.known_since(&alice), None);
        names.learn(&alice, "alice@test", Timestamp(5));
        names.learn(&alice, "alice@test", Timestamp(7));
        assert_eq!(names.known_since(&alice), Some(Timestamp(5)));
        assert_eq!(names.assign(&uid, &alice, Timestamp(6)), Timestamp(6));
        assert_eq!(names.assign(&uid, &alice, Timestamp(8)), Timestamp(6));
    }
}
