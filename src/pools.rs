//! HTCondor pools: that of the operator's flags, and those of `HTCPool`s. All that is known and done in one of them is its own.

mod due;
mod keeper;
mod making;
pub mod managed;
mod members;
mod reach;
mod seen;
pub mod states;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::api::{HTCJobSpec, HTCPoolSpec, Identity, MiniClusterStatus, ObjectName, Observed, POOL, Reason, pool_of};
use crate::condor::Schedd;
use crate::credentials::Credentials;
use crate::machine::Uid;
use crate::machine::facts::SpecRefused;
use crate::metrics::Metrics;
use crate::tracker::Tracker;
use crate::workers::Workers;

pub use keeper::PoolKeeper;
pub use making::{Base, PartEnded};
use managed::work::Work;
use members::Members;
pub use reach::Reach;

/// An HTCondor pool: the schedd that has the jobs, and all that is known and done only there.
#[derive(Debug)]
pub struct Pool {
    /// The schedd.
    pub schedd: Arc<Schedd>,
    /// In whose name it is spoken to.
    pub credentials: Arc<Credentials>,
    /// Its answers.
    pub tracker: Arc<Tracker>,
    /// The effects.
    pub workers: Workers,
}

impl Pool {
    /// In whose name the jobs of an object are; none if that is for its spec to say, which cannot be read. What was submitted in the
    /// operator's name stays in it.
    #[must_use]
    pub fn identity(&self, uid: &Uid, namespace: &str, spec: Option<&HTCJobSpec>) -> Option<Identity> {
        match self.credentials.of_namespace(namespace) {
            Some(of_namespace) => {
                let before = self.schedd.users.assigned(uid).map(|(identity, _)| identity);
                Some(before.filter(|before| *before == Identity::Operator).unwrap_or(of_namespace))
            }
            None => spec.map(|spec| Identity::of(namespace, spec)),
        }
    }
}

/// Where the jobs of one `HTCJob` are, or go.
#[derive(Clone, Debug)]
pub struct Place {
    /// The `HTCPool`; none for the pool of the operator's flags.
    pub name: Option<ObjectName>,
    /// The pool; none while it is not known where that is.
    pub pool: Option<Arc<Pool>>,
    /// Why nothing is submitted there.
    pub trouble: Option<SpecRefused>,
}

/// All pools of one operator.
#[derive(Debug)]
pub struct Pools {
    default: Arc<Pool>,
    /// There is no such pool: the operator's flags name no schedd.
    without_default: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    named: HashMap<ObjectName, Named>,
    /// The pool of each object that is recorded: it stays where it was first.
    assigned: HashMap<Uid, Option<ObjectName>>,
    /// Batches of pools that have ended: they come to their end.
    ending: HashMap<ObjectName, Vec<JoinHandle<()>>>,
    /// What is known of the workers that objects have of their own.
    own_workers: HashMap<Uid, MiniClusterStatus>,
    /// What objects in pools that have a name have to do there.
    work: HashMap<Uid, Work>,
    /// Which objects are in them.
    members: Members,
    /// Whether all `HTCPool`s are known; why not, as far as that is.
    listed: Option<Result<(), String>>,
}

/// The pool of an `HTCPool`, at work.
#[derive(Debug)]
struct Named {
    /// `metadata.uid` of the `HTCPool`.
    uid: String,
    pool: Arc<Pool>,
    /// Where it is.
    reach: Reach,
    /// Who may use it.
    spec: HTCPoolSpec,
    /// Why nothing is submitted to it.
    trouble: Option<String>,
    /// Ends when the last batch does, once nobody has the pool.
    lanes: JoinHandle<()>,
    /// What asks HTCondor. It ends when this is dropped.
    _asking: JoinSet<()>,
    metrics: Metrics,
}

impl Pools {
    /// That of the operator's flags, and no others yet. `recorded`: the pools of the objects that the ledger has; `work`: what those
    /// have to do that are in pools with a name.
    #[must_use]
    pub fn new(
        default: Arc<Pool>,
        recorded: impl IntoIterator<Item = (Uid, Option<ObjectName>)>,
        work: impl IntoIterator<Item = (Uid, Work)>,
    ) -> Self {
        let (assigned, work) = (recorded.into_iter().collect(), work.into_iter().collect());
        let state = State { assigned, work, ..State::default() };
        let without_default = default.schedd.name.as_str().is_empty();
        Self { default, without_default, state: Mutex::new(state) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The pool of the operator's flags.
    #[must_use]
    pub const fn default(&self) -> &Arc<Pool> {
        &self.default
    }

    /// Whether the operator's flags name a schedd.
    #[must_use]
    pub const fn has_default(&self) -> bool {
        !self.without_default
    }

    /// Where the jobs of this object are, or go. What is recorded counts; else what its spec says.
    #[must_use]
    pub fn place(&self, uid: &Uid, namespace: &str, object: &Observed) -> Place {
        self.with(|state| {
            let Some(name) = state.name_for(uid, namespace, object) else {
                if self.without_default {
                    return Place { name: None, pool: None, trouble: Some(no_default()) };
                }
                return Place { name: None, pool: Some(Arc::clone(&self.default)), trouble: None };
            };
            let Some(named) = state.named.get(&name) else {
                let trouble = Some(state.not_found(&name, namespace));
                return Place { name: Some(name), pool: None, trouble };
            };
            let trouble = named.trouble(&name, namespace, object);
            Place { name: Some(name), pool: Some(Arc::clone(&named.pool)), trouble }
        })
    }

    /// The name of that.
    fn name_for(&self, uid: &Uid, namespace: &str, object: &Observed) -> Option<ObjectName> {
        self.with(|state| state.name_for(uid, namespace, object))
    }

    /// From now on the object's jobs are in this pool.
    pub fn assign(&self, uid: &Uid, name: Option<&ObjectName>) {
        self.with(|state| {
            state.assigned.entry(uid.clone()).or_insert_with(|| name.cloned());
        });
    }

    /// The object is gone.
    pub fn forget(&self, uid: &Uid) {
        self.default.schedd.users.forget(uid);
        self.with(|state| {
            state.forget(uid);
            state.named.values().for_each(|named| named.pool.schedd.users.forget(uid));
        });
    }

    /// The watch shows this object.
    pub fn saw(&self, object: &Observed) {
        let Some(uid) = object.uid().map(|uid| Uid::from(uid.as_str())) else { return };
        self.with(|state| {
            let pool = state.name_for(&uid, &object.namespace().unwrap_or_default(), object);
            state.members.saw(&uid, object, pool);
        });
    }

    /// The watch shows it no more.
    pub fn gone(&self, uid: &Uid) {
        self.forget(uid);
        self.with(|state| state.members.gone(uid));
    }

    /// All objects but these are gone.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.default.schedd.users.keep(uids);
        self.with(|state| {
            state.assigned.retain(|uid, _| uids.contains(uid));
            state.own_workers.retain(|uid, _| uids.contains(uid));
            state.work.retain(|uid, _| uids.contains(uid));
            state.members.keep(uids);
            state.named.values().for_each(|named| named.pool.schedd.users.keep(uids));
        });
    }

    /// What an object has to do in its pool, as the ledger has it now; none if that is not known. `is_there`: whether the watch still
    /// shows the object. If it went meanwhile, it was forgotten already, and nobody says so again.
    pub fn set_work(&self, uid: &Uid, work: Option<Work>, is_there: impl FnOnce() -> bool) {
        if !self.with(|state| state.set_work(uid, work, is_there)) {
            self.forget(uid);
        }
    }

    /// The objects in this pool, and what they have to do there.
    fn members(&self, name: &ObjectName) -> Vec<(Uid, ObjectRef<Observed>, Option<Work>)> {
        self.with(|state| {
            let members = state.members.of(name);
            members.map(|(uid, object)| (uid.clone(), object.clone(), state.work.get(uid).copied())).collect()
        })
    }

    /// Is notified when something changes that workers of this pool are asked for by.
    fn listen(&self, name: &ObjectName) -> Arc<Notify> {
        self.with(|state| state.members.listen(name))
    }

    /// What is known of the workers that an object has of its own.
    #[must_use]
    pub fn own_workers(&self, uid: &Uid) -> Option<MiniClusterStatus> {
        self.with(|state| state.own_workers.get(uid).cloned())
    }

    /// Whether that is new.
    fn set_own_workers(&self, uid: &Uid, status: MiniClusterStatus) -> bool {
        self.with(|state| {
            let new = state.own_workers.get(uid) != Some(&status);
            state.own_workers.insert(uid.clone(), status);
            new
        })
    }

    /// Ends the pools of all `HTCPool`s, and waits for their batches.
    pub async fn drain(&self) {
        let ending: Vec<JoinHandle<()>> = self.with(|state| {
            let ended = state.named.drain().map(|(_, named)| named.end());
            ended.chain(state.ending.drain().flat_map(|(_, lanes)| lanes)).collect()
        });
        for lanes in ending {
            let _ = lanes.await;
        }
    }

    /// All `HTCPool`s are known; or not, for this reason. What was known stays so. Whether that is new.
    fn are_listed(&self, result: Result<(), String>) -> bool {
        self.with(|state| {
            let new = state.listed.as_ref().is_none_or(|listed| listed.is_err() && *listed != result);
            if new {
                state.listed = Some(result);
            }
            new
        })
    }

    fn names(&self) -> Vec<ObjectName> {
        self.with(|state| state.named.keys().cloned().collect())
    }

    fn uid(&self, name: &ObjectName) -> Option<String> {
        self.with(|state| state.named.get(name).map(|named| named.uid.clone()))
    }

    fn reach(&self, name: &ObjectName) -> Option<Reach> {
        self.with(|state| state.named.get(name).map(|named| named.reach.clone()))
    }

    /// Why nothing is submitted to it, for whoever may use it.
    fn trouble_of(&self, name: &ObjectName) -> Option<String> {
        self.with(|state| state.named.get(name).and_then(|named| named.trouble.clone()))
    }

    fn put(&self, name: &ObjectName, named: Named) {
        self.with(|state| state.named.insert(name.clone(), named));
    }

    /// Whether that is new.
    fn set(&self, name: &ObjectName, spec: &HTCPoolSpec, trouble: Option<String>) -> bool {
        self.with(|state| {
            let Some(named) = state.named.get_mut(name) else { return false };
            let new = named.spec != *spec || named.trouble != trouble;
            (named.spec, named.trouble) = (spec.clone(), trouble);
            new
        })
    }

    /// The pool is gone, or has become another one: nobody gets it any more.
    fn end(&self, name: &ObjectName) {
        self.with(|state| {
            if let Some(named) = state.named.remove(name) {
                state.ending.entry(name.clone()).or_default().push(named.end());
            }
        });
    }

    /// Whether something of a pool that has ended is still under way.
    fn is_ending(&self, name: &ObjectName) -> bool {
        self.with(|state| {
            let Some(lanes) = state.ending.get_mut(name) else { return false };
            lanes.retain(|lanes| !lanes.is_finished());
            !lanes.is_empty()
        })
    }
}

/// Of an object that names no pool, where there is none for it.
fn no_default() -> SpecRefused {
    let message = "this operator has no pool of its own: delete the HTCJob, and create it with spec.pool, the name of an HTCPool (kubectl get htcpools -A)";
    SpecRefused { reason: Reason::PoolNotFound, message: message.to_owned() }
}

/// Of a pool in another namespace that is not there, or not for this one: who may not use it does not learn which of the two it is.
fn not_for(name: &ObjectName, namespace: &str) -> SpecRefused {
    let message = format!(
        "there is no HTCPool {name} for HTCJobs of namespace {namespace}: ask the administrator of namespace {} to create it, or to add namespace {namespace} to its spec.allowedNamespaces; or delete the HTCJob and create it again with another spec.pool",
        name.namespace
    );
    SpecRefused { reason: Reason::PoolNotFound, message }
}

impl State {
    /// Whether the object is there. It is looked at under the lock that [`Self::forget`] waits for: who forgets it later comes later.
    fn set_work(&mut self, uid: &Uid, work: Option<Work>, is_there: impl FnOnce() -> bool) -> bool {
        let is_there = is_there();
        let work = work.filter(|_| is_there);
        let before = match work {
            Some(work) => self.work.insert(uid.clone(), work),
            None => self.work.remove(uid),
        };
        if before != work {
            self.members.changed(uid);
        }
        is_there
    }

    fn forget(&mut self, uid: &Uid) {
        self.assigned.remove(uid);
        self.own_workers.remove(uid);
        if self.work.remove(uid).is_some() {
            self.members.changed(uid);
        }
    }

    fn name_for(&self, uid: &Uid, namespace: &str, object: &Observed) -> Option<ObjectName> {
        self.assigned.get(uid).cloned().unwrap_or_else(|| match &object.0 {
            Ok(job) => pool_of(namespace, &job.spec),
            Err(_) => object.annotations().get(POOL).and_then(|name| name.parse().ok()),
        })
    }

    fn not_found(&self, name: &ObjectName, namespace: &str) -> SpecRefused {
        let (reason, message) = match &self.listed {
            Some(Ok(())) if name.namespace != namespace => return not_for(name, namespace),
            Some(Ok(())) => (
                Reason::PoolNotFound,
                format!(
                    "there is no HTCPool {name}, or the operator does not work with it yet: create the HTCPool, or delete the HTCJob and create it again with another spec.pool (kubectl get htcpools -A)"
                ),
            ),
            Some(Err(why)) => {
                (Reason::PoolNotReady, format!("the operator cannot list HTCPools: {why}; ask its administrator"))
            }
            None => (Reason::PoolNotReady, "the operator is still listing the HTCPools".to_owned()),
        };
        SpecRefused { reason, message }
    }
}

impl Named {
    /// Why nothing of this namespace is submitted to it.
    fn trouble(&self, name: &ObjectName, namespace: &str, object: &Observed) -> Option<SpecRefused> {
        if !self.spec.allows(&name.namespace, namespace) {
            if name.namespace != namespace {
                return Some(not_for(name, namespace));
            }
            let message = format!(
                "HTCPool {name} is not for namespace {namespace}: ask its administrator to add the namespace to spec.allowedNamespaces, or delete the HTCJob and create it again with another spec.pool"
            );
            return Some(SpecRefused { reason: Reason::PoolNotAllowed, message });
        }
        if self.spec.managed.is_some() && object.0.as_ref().is_ok_and(|job| job.spec.credentials_secret_name.is_some())
        {
            let message = format!(
                "only the operator may submit to HTCPool {name} (spec.managed): delete the HTCJob, and create it without spec.credentialsSecretName, or with another spec.pool"
            );
            return Some(SpecRefused::invalid(message));
        }
        if let Some(message) = &self.trouble {
            let message = format!("HTCPool {name} is not ready: {message}");
            return Some(SpecRefused { reason: Reason::PoolNotReady, message });
        }
        let job = object.0.as_ref().ok()?;
        let Some(managed) = &self.spec.managed else {
            job.spec.mini_cluster.as_ref()?;
            let message = format!(
                "HTCPool {name} has no workers that the operator makes (spec.managed): delete the HTCJob and create it again without spec.miniCluster, or with the spec.pool of a managed pool"
            );
            return Some(SpecRefused { reason: Reason::NoWorkerFits, message });
        };
        let why = managed::demand::fits(managed, &job.spec).err()?;
        Some(SpecRefused { reason: Reason::NoWorkerFits, message: format!("no worker of HTCPool {name} fits: {why}") })
    }

    /// Ends when the batches under way do.
    fn end(self) -> JoinHandle<()> {
        let Self { pool, lanes, metrics, .. } = self;
        let credentials = Arc::clone(&pool.credentials);
        tokio::spawn(async move {
            // Their queues are shut once nobody has the pool.
            drop(pool);
            let _ = lanes.await;
            credentials.close();
            metrics.forget_pool();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass may come to its end after the watch has told that its object is gone.
    #[test]
    fn what_is_gone_gets_no_work_any_more() {
        let (mut state, uid, work) = (State::default(), Uid::from("u"), Some(Work { idle: 9, ..Work::default() }));
        assert!(state.set_work(&uid, work, || true));
        assert_eq!(state.work.get(&uid).copied(), work);
        state.forget(&uid);
        assert!(!state.set_work(&uid, work, || false));
        assert!(state.work.is_empty());
    }
}
