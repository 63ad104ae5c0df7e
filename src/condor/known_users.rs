//! Under which names the schedd knows us, and in whose name the jobs of each object are.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use crate::api::Identity;
use crate::machine::{Timestamp, Uid};

/// `User`s of this operator's jobs. An ad counts for an object only if it is in a name of that object's identity: `HTCOperator`
/// and `HTCJobUID` can be written by anybody, and so could users of one namespace make up jobs of another's.
#[derive(Debug, Default)]
pub struct KnownUsers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// For each identity its names, and since when each is known.
    users: HashMap<Identity, BTreeMap<String, Timestamp>>,
    /// All these names.
    names: BTreeSet<String>,
    /// For each object its identity, and since when it is known. Objects that are not here may have jobs in any name.
    objects: HashMap<Uid, (Identity, Timestamp)>,
}

impl KnownUsers {
    /// With names that are known from before.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = (Identity, String)>) -> Self {
        let names = Self::default();
        known.into_iter().for_each(|(identity, user)| names.learn(&identity, &user, Timestamp(0)));
        names
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The schedd calls this identity `user`.
    pub(super) fn learn(&self, identity: &Identity, user: &str, now: Timestamp) {
        self.with(|state| {
            let users = state.users.entry(identity.clone()).or_default();
            if !users.contains_key(user) {
                users.insert(user.to_owned(), now);
                state.names.insert(user.to_owned());
            }
        });
    }

    /// Since when some name of this identity is known: jobs in it are seen in answers to later questions only.
    #[must_use]
    pub fn known_since(&self, identity: &Identity) -> Option<Timestamp> {
        self.with(|state| state.users.get(identity)?.values().min().copied())
    }

    /// From now on only jobs in the name of this identity count for the object; since when that is so.
    pub fn assign(&self, uid: &Uid, identity: &Identity, now: Timestamp) -> Timestamp {
        self.with(|state| match state.objects.get(uid) {
            Some((known, since)) if known == identity => *since,
            Some(_) | None => {
                state.objects.insert(uid.clone(), (identity.clone(), now));
                now
            }
        })
    }

    /// Whose the object's jobs are, if that is known.
    #[must_use]
    pub fn assigned(&self, uid: &Uid) -> Option<(Identity, Timestamp)> {
        self.with(|state| state.objects.get(uid).cloned())
    }

    /// All objects but these are gone.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.with(|state| state.objects.retain(|uid, _| uids.contains(uid)));
    }

    /// The object is gone: whatever is left of its jobs counts as left.
    pub fn forget(&self, uid: &Uid) {
        self.with(|state| state.objects.remove(uid));
    }

    /// In whose name that is or was, the operator's own first: several Secrets may have credentials of one user.
    #[must_use]
    pub fn identities_of(&self, user: &str) -> BTreeSet<Identity> {
        self.with(|state| {
            let its = state.users.iter().filter(|(_, users)| users.contains_key(user));
            its.map(|(identity, _)| identity.clone()).collect()
        })
    }

    /// All names of one identity.
    pub(super) fn of(&self, identity: &Identity) -> Vec<String> {
        self.with(|state| state.users.get(identity).map(|users| users.keys().cloned().collect()).unwrap_or_default())
    }

    /// The names of identities that no Secret is for: nobody but the operator can be these.
    pub(super) fn without_secrets(&self) -> BTreeSet<String> {
        let secret = |identity: &Identity| matches!(identity, Identity::Secret { .. });
        self.with(|state| {
            let users = state.users.iter().filter(|(identity, _)| !secret(identity));
            users.flat_map(|(_, users)| users.keys().cloned()).collect()
        })
    }

    /// The names of all identities.
    pub(super) fn all(&self) -> BTreeSet<String> {
        self.with(|state| state.names.clone())
    }

    /// Whether it is a name of any identity.
    pub(super) fn knows(&self, user: &str) -> bool {
        self.with(|state| state.names.contains(user))
    }

    /// Whether a job of this object may be `user`'s.
    pub(super) fn belongs(&self, uid: &str, user: &str) -> bool {
        self.with(|state| match state.objects.get(uid) {
            Some((identity, _)) => {
                let is = |identity| state.users.get(identity).is_some_and(|users| users.contains_key(user));
                // Before namespaces had names of their own, and the ledger knows no more of it: nobody else can have the operator's.
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
    fn nobody_makes_up_jobs_of_another_identitys_objects() {
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
    fn what_is_known_again_is_known_since_the_first_time() {
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
