//! The `HTCJob`s of each `HTCPool`, from the watch. Notifies the pool's reconciler when they change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use htc_api::{FINALIZER, ObjectName, ObservedHTCJob};
use htc_machine::Uid;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use tokio::sync::Notify;

/// The `HTCJob`s of each `HTCPool`. The cost of a change does not grow with their number.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The `HTCPool` of each `HTCJob` that is in one.
    pools: HashMap<Uid, ObjectName>,
    of: HashMap<ObjectName, MembersOfPool>,
}

/// The `HTCJob`s of one pool.
#[derive(Debug, Default)]
struct MembersOfPool {
    members: HashMap<Uid, Member>,
    /// Notified when the demand for workers may have changed.
    changed: Arc<Notify>,
}

#[derive(Debug, PartialEq)]
struct Member {
    object: ObjectRef<ObservedHTCJob>,
    /// Grows with each change of the spec, and with the deletion. The frequent changes of the status do not count.
    generation: Option<i64>,
    guarded: bool,
}

impl Members {
    /// Takes over an object from the watch, with the pool that it is in; `None` if it is in none.
    pub(super) fn observe(&mut self, uid: &Uid, object: &ObservedHTCJob, pool: Option<ObjectName>) {
        if self.pools.get(uid) != pool.as_ref() {
            self.gone(uid);
        }
        let Some(pool) = pool else { return };
        let member = Member {
            object: ObjectRef::from_obj(object),
            generation: object.meta().generation,
            guarded: object.finalizers().iter().any(|finalizer| finalizer == FINALIZER),
        };
        let of = self.of.entry(pool.clone()).or_default();
        if of.members.get(uid) != Some(&member) {
            of.members.insert(uid.clone(), member);
            of.changed.notify_one();
            self.pools.insert(uid.clone(), pool);
        }
    }

    /// Removes an object that is gone.
    pub(super) fn gone(&mut self, uid: &Uid) {
        let Some(pool) = self.pools.remove(uid) else { return };
        if let Some(of) = self.of.get_mut(&pool) {
            of.members.remove(uid);
            of.changed.notify_one();
            if !of.matters() {
                self.of.remove(&pool);
            }
        }
    }

    /// Removes all other objects: they are gone.
    pub(super) fn keep(&mut self, uids: &HashSet<Uid>) {
        let gone: Vec<Uid> = self.pools.keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        for uid in gone {
            self.gone(&uid);
        }
    }

    /// Notifies the pool that the demand of this object has changed.
    pub(super) fn changed(&self, uid: &Uid) {
        if let Some(of) = self.pools.get(uid).and_then(|pool| self.of.get(pool)) {
            of.changed.notify_one();
        }
    }

    /// Returns the objects in this pool.
    pub(super) fn of(&self, pool: &ObjectName) -> impl Iterator<Item = (&Uid, &ObjectRef<ObservedHTCJob>)> {
        let members = self.of.get(pool).into_iter().flat_map(|of| &of.members);
        members.map(|(uid, member)| (uid, &member.object))
    }

    /// Returns what is notified when the demand for workers of this pool may have changed.
    pub(super) fn listen(&mut self, pool: &ObjectName) -> Arc<Notify> {
        self.of.retain(|_, of| of.matters());
        Arc::clone(&self.of.entry(pool.clone()).or_default().changed)
    }
}

impl MembersOfPool {
    /// Returns whether it has members or a listener.
    fn matters(&self) -> bool {
        !self.members.is_empty() || Arc::strong_count(&self.changed) > 1
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    fn pool(name: &str) -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: name.to_owned() }
    }

    fn object(name: &str, generation: i64, finalizers: &[&str], running: u32) -> ObservedHTCJob {
        serde_json::from_value(json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob",
            "metadata": { "name": name, "namespace": "n", "uid": name, "generation": generation, "finalizers": finalizers },
            "spec": { "script": { "image": "i", "command": "sh", "source": "x" } },
            "status": { "running": running },
        }))
        .unwrap()
    }

    /// Returns whether it was notified since the last call.
    fn is_told(changed: &Notify) -> bool {
        changed.notified().now_or_never().is_some()
    }

    #[test]
    fn pool_is_notified_of_its_own_htcjobs_but_not_of_status_changes() {
        let mut members = Members::default();
        let (own, other) = (members.listen(&pool("own")), members.listen(&pool("other")));
        let uid = Uid::from("a");
        let mut told = |generation, finalizers: &[&str], running| {
            members.observe(&uid, &object("a", generation, finalizers, running), Some(pool("own")));
            (is_told(&own), is_told(&other))
        };
        assert_eq!(told(1, &[], 0), (true, false), "it has come");
        assert_eq!(told(1, &[FINALIZER], 0), (true, false));
        assert_eq!((told(1, &[FINALIZER], 1), told(1, &[FINALIZER], 2)), ((false, false), (false, false)), "a status");
        assert_eq!(told(2, &[FINALIZER], 2), (true, false), "its spec");
        members.changed(&uid);
        assert_eq!((is_told(&own), is_told(&other)), (true, false), "what it has to do");
        members.observe(&uid, &object("a", 2, &[], 0), Some(pool("other")));
        assert_eq!((is_told(&own), is_told(&other)), (true, true), "it is in another pool");
        assert_eq!((members.of(&pool("own")).count(), members.of(&pool("other")).count()), (0, 1));
        members.gone(&uid);
        assert_eq!((is_told(&own), is_told(&other)), (false, true));
        members.observe(&"b".into(), &object("b", 1, &[], 0), None);
        assert_eq!((is_told(&own), is_told(&other)), (false, false), "it is in no pool that has a name");
    }

    #[test]
    fn deleted_members_are_forgotten() {
        let mut members = Members::default();
        for (name, its) in [("a", "own"), ("b", "own"), ("c", "other")] {
            members.observe(&name.into(), &object(name, 1, &[], 0), Some(pool(its)));
        }
        members.keep(&HashSet::from(["b".into()]));
        let left: Vec<&Uid> = members.of(&pool("own")).map(|(uid, _)| uid).collect();
        assert_eq!((left, members.of.len()), (vec![&Uid::from("b")], 1));
        members.gone(&"b".into());
        assert!(members.of.is_empty() && members.pools.is_empty());
    }
}
