//! HTCondor pools: the default pool of the operator's flags, and one pool for each `HTCPool`.
//!
//! Each pool has its own schedd connection, credentials, tracker and workers. Pools share no state of HTCondor.

mod controller;
mod endpoint;
mod factory;
pub mod managed;
mod members;
mod readiness;
mod schedule;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use htc_api::{
    HTCJobSpec, HTCPoolSpec, Identity, Isolation, MiniClusterStatus, ObjectName, ObservedHTCJob, POOL_ANNOTATION,
    Reason, pool_of,
};
use htc_machine::Uid;
use htc_machine::demand::JobDemand;
use htc_machine::facts::SpecRefused;
use htc_support::forget::Forget;
use htc_support::metrics::Metrics;
use htcondor::Schedd;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::backends::condor::credentials::Credentials;
use crate::backends::condor::tracker::Tracker;
use crate::backends::condor::workers::ScheddWorkers;
pub use controller::PoolController;
pub use factory::{PoolFactory, TaskFailures};

pub use endpoint::PoolEndpoint;
use members::Members;

/// An HTCondor pool: the schedd that holds the jobs, and everything that works against this schedd only.
#[derive(Debug)]
pub struct Pool {
    pub schedd: Arc<Schedd>,
    /// Credentials that requests to the schedd are authenticated with.
    pub credentials: Arc<Credentials>,
    /// Polls the schedd, and keeps its latest answers.
    pub tracker: Arc<Tracker>,
    /// Worker loops that carry out effects: submit, remove, transfer.
    pub workers: ScheddWorkers,
}

impl Pool {
    /// Returns the identity that owns the jobs of an `HTCJob`.
    ///
    /// In a pool with one HTCondor user per namespace, jobs that were submitted as the operator stay the operator's.
    /// Returns `None` if the spec decides about the identity, but cannot be read.
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

/// The pool that the jobs of one `HTCJob` are in, or will be submitted to.
#[derive(Clone, Debug)]
pub struct PoolPlacement {
    /// The `HTCPool`; `None` for the default pool.
    pub name: Option<ObjectName>,
    /// The pool; `None` while it does not run, or if it does not exist.
    pub pool: Option<Arc<Pool>>,
    /// Reason why nothing is submitted to it; `None` if it accepts jobs.
    pub refusal: Option<SpecRefused>,
    /// Whether the operator runs its workers, as Pods. True for a pool that does not run, as nothing is submitted to it.
    pub managed: bool,
}

#[derive(Debug)]
pub struct Pools {
    default: Arc<Pool>,
    /// The operator's flags name no schedd: `default` is a placeholder.
    without_default: bool,
    state: Mutex<PoolTable>,
}

#[derive(Debug, Default)]
struct PoolTable {
    named: HashMap<ObjectName, NamedPool>,
    /// Pool of each `HTCJob` that the ledger has. It never changes.
    assigned: HashMap<Uid, Option<ObjectName>>,
    /// Tasks of stopped pools that wait for the batches under way.
    ending: HashMap<ObjectName, Vec<JoinHandle<()>>>,
    /// Status of the workers that belong to one `HTCJob` (`spec.miniCluster`).
    own_workers: HashMap<Uid, MiniClusterStatus>,
    /// Demand of the `HTCJob`s in pools of `HTCPool`s.
    demand: HashMap<Uid, JobDemand>,
    /// The `HTCJob`s of each `HTCPool`.
    members: Members,
    listing: PoolListing,
}

/// Whether all `HTCPool`s were listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum PoolListing {
    #[default]
    Pending,
    Complete,
    /// They were never listed; the error of the watch.
    Failed(String),
}

/// The running pool of an `HTCPool`.
#[derive(Debug)]
struct NamedPool {
    /// `metadata.uid` of the `HTCPool`.
    uid: String,
    pool: Arc<Pool>,
    endpoint: PoolEndpoint,
    /// Spec of the `HTCPool`: among others, the namespaces that may use the pool.
    spec: HTCPoolSpec,
    /// Reason why nothing is submitted to it, whatever the namespace.
    trouble: Option<String>,
    /// Task of the workers. Ends after the last batch, once all references to `pool` are dropped.
    lanes: JoinHandle<()>,
    /// Tasks that query HTCondor. Dropping the set aborts them.
    _asking: JoinSet<()>,
    metrics: Metrics,
}

impl Pools {
    /// Creates the table with the default pool only.
    ///
    /// `recorded`: pool of each `HTCJob` in the ledger. `work`: demand of those in pools of `HTCPool`s.
    #[must_use]
    pub fn new(
        default: Arc<Pool>,
        recorded: impl IntoIterator<Item = (Uid, Option<ObjectName>)>,
        work: impl IntoIterator<Item = (Uid, JobDemand)>,
    ) -> Self {
        let (assigned, work) = (recorded.into_iter().collect(), work.into_iter().collect());
        let state = PoolTable { assigned, demand: work, ..PoolTable::default() };
        let without_default = default.schedd.name.as_str().is_empty();
        Self { default, without_default, state: Mutex::new(state) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut PoolTable) -> T) -> T {
        work(&mut self.state.lock())
    }

    /// Returns the pool of the operator's flags.
    #[must_use]
    pub const fn default(&self) -> &Arc<Pool> {
        &self.default
    }

    /// Returns whether the operator's flags name a schedd.
    #[must_use]
    pub const fn has_default(&self) -> bool {
        !self.without_default
    }

    /// Returns the pool that the jobs of this `HTCJob` are in, or will be submitted to.
    ///
    /// The pool that the ledger has recorded takes precedence over the spec.
    #[must_use]
    pub fn placement(&self, uid: &Uid, namespace: &str, object: &ObservedHTCJob) -> PoolPlacement {
        self.with(|state| {
            let Some(name) = state.name_for(uid, namespace, object) else {
                if self.without_default {
                    return PoolPlacement { name: None, pool: None, refusal: Some(no_default()), managed: false };
                }
                let pool = Some(Arc::clone(&self.default));
                return PoolPlacement { name: None, pool, refusal: None, managed: false };
            };
            let Some(named) = state.named.get(&name) else {
                let trouble = Some(state.not_found(&name, namespace));
                return PoolPlacement { name: Some(name), pool: None, refusal: trouble, managed: true };
            };
            let trouble = named.trouble(&name, namespace, object);
            let (pool, managed) = (Some(Arc::clone(&named.pool)), named.spec.managed.is_some());
            PoolPlacement { name: Some(name), pool, refusal: trouble, managed }
        })
    }

    /// Returns the `HTCPool` of this `HTCJob`; `None` for the default pool.
    fn name_for(&self, uid: &Uid, namespace: &str, object: &ObservedHTCJob) -> Option<ObjectName> {
        self.with(|state| state.name_for(uid, namespace, object))
    }

    /// Records the pool of an `HTCJob`. A pool that was recorded before stays.
    pub fn assign(&self, uid: &Uid, name: Option<&ObjectName>) {
        self.with(|state| {
            state.assigned.entry(uid.clone()).or_insert_with(|| name.cloned());
        });
    }

    /// Takes over an `HTCJob` from the watch.
    pub fn observe(&self, object: &ObservedHTCJob) {
        let Some(uid) = object.uid().map(|uid| Uid::from(uid.as_str())) else { return };
        self.with(|state| {
            let pool = state.name_for(&uid, &object.namespace().unwrap_or_default(), object);
            state.members.observe(&uid, object, pool);
        });
    }

    /// Takes over from the watch that an `HTCJob` is deleted.
    pub fn observe_deletion(&self, uid: &Uid) {
        self.with(|state| state.members.gone(uid));
    }

    /// Updates the demand of an `HTCJob` from the ledger; `None` if it is not known.
    ///
    /// `is_there`: whether the watch still has the object. If it was deleted in the meantime, it was already forgotten.
    /// As no second deletion follows, it is forgotten here again.
    pub fn set_demand(&self, uid: &Uid, work: Option<JobDemand>, is_there: impl FnOnce() -> bool) {
        if !self.with(|state| state.set_work(uid, work, is_there)) {
            self.forget(uid);
        }
    }

    /// Returns the `HTCJob`s in this pool with their demand.
    fn members(&self, name: &ObjectName) -> Vec<(Uid, ObjectRef<ObservedHTCJob>, Option<JobDemand>)> {
        self.with(|state| {
            let members = state.members.of(name);
            members.map(|(uid, object)| (uid.clone(), object.clone(), state.demand.get(uid).copied())).collect()
        })
    }

    /// Returns what is notified when the demand for workers of this pool may have changed.
    fn listen(&self, name: &ObjectName) -> Arc<Notify> {
        self.with(|state| state.members.listen(name))
    }

    /// Returns the status of the workers that belong to this `HTCJob` alone.
    #[must_use]
    pub fn own_workers(&self, uid: &Uid) -> Option<MiniClusterStatus> {
        self.with(|state| state.own_workers.get(uid).cloned())
    }

    /// Returns whether the status has changed.
    fn set_own_workers(&self, uid: &Uid, status: MiniClusterStatus) -> bool {
        self.with(|state| {
            let new = state.own_workers.get(uid) != Some(&status);
            state.own_workers.insert(uid.clone(), status);
            new
        })
    }

    /// Stops the pools of all `HTCPool`s, and waits for their batches under way.
    pub async fn drain(&self) {
        let ending: Vec<JoinHandle<()>> = self.with(|state| {
            let ended = state.named.drain().map(|(_, named)| named.end());
            ended.chain(state.ending.drain().flat_map(|(_, lanes)| lanes)).collect()
        });
        for lanes in ending {
            let _ = lanes.await;
        }
    }

    /// Records whether all `HTCPool`s were listed. A later error does not undo a success. Returns whether this has
    /// changed.
    fn record_listing(&self, listing: PoolListing) -> bool {
        self.with(|state| {
            let new = state.listing != PoolListing::Complete && state.listing != listing;
            if new {
                state.listing = listing;
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

    fn reach(&self, name: &ObjectName) -> Option<PoolEndpoint> {
        self.with(|state| state.named.get(name).map(|named| named.endpoint.clone()))
    }

    /// Returns why nothing is submitted to the pool, even from the namespaces that may use it.
    fn trouble_of(&self, name: &ObjectName) -> Option<String> {
        self.with(|state| state.named.get(name).and_then(|named| named.trouble.clone()))
    }

    fn put(&self, name: &ObjectName, named: NamedPool) {
        self.with(|state| state.named.insert(name.clone(), named));
    }

    /// Updates spec and trouble of a running pool. Returns whether they have changed.
    fn set(&self, name: &ObjectName, spec: &HTCPoolSpec, trouble: Option<String>) -> bool {
        self.with(|state| {
            let Some(named) = state.named.get_mut(name) else { return false };
            let new = named.spec != *spec || named.trouble != trouble;
            (named.spec, named.trouble) = (spec.clone(), trouble);
            new
        })
    }

    /// Stops a pool whose `HTCPool` is gone or has another address: no further `HTCJob` gets it.
    fn end(&self, name: &ObjectName) {
        self.with(|state| {
            if let Some(named) = state.named.remove(name) {
                state.ending.entry(name.clone()).or_default().push(named.end());
            }
        });
    }

    /// Returns whether a batch of a stopped pool of this name is still under way.
    fn is_ending(&self, name: &ObjectName) -> bool {
        self.with(|state| {
            let Some(lanes) = state.ending.get_mut(name) else { return false };
            lanes.retain(|lanes| !lanes.is_finished());
            !lanes.is_empty()
        })
    }
}

impl Forget for Pools {
    fn forget(&self, uid: &Uid) {
        self.default.schedd.users.forget(uid);
        self.with(|state| {
            state.forget(uid);
            state.named.values().for_each(|named| named.pool.schedd.users.forget(uid));
        });
    }

    fn retain(&self, uids: &HashSet<Uid>) {
        self.default.schedd.users.keep(uids);
        self.with(|state| {
            state.assigned.retain(|uid, _| uids.contains(uid));
            state.own_workers.retain(|uid, _| uids.contains(uid));
            state.demand.retain(|uid, _| uids.contains(uid));
            state.members.keep(uids);
            state.named.values().for_each(|named| named.pool.schedd.users.keep(uids));
        });
    }
}

/// Refuses an `HTCJob` without `spec.pool` where the operator has no default pool.
fn no_default() -> SpecRefused {
    let message = "this operator has no pool of its own: delete the HTCJob, and create it with spec.pool, the name of an HTCPool (kubectl get htcpools -A)";
    SpecRefused { reason: Reason::PoolNotFound, message: message.to_owned() }
}

/// Refuses a pool in another namespace that does not exist or is not for this namespace.
///
/// The message is the same for both, so that it does not reveal which pools exist.
fn not_for(name: &ObjectName, namespace: &str) -> SpecRefused {
    let message = format!(
        "there is no HTCPool {name} for HTCJobs of namespace {namespace}: ask the administrator of namespace {} to create it, or to add namespace {namespace} to its spec.allowedNamespaces; or delete the HTCJob and create it again with another spec.pool",
        name.namespace
    );
    SpecRefused { reason: Reason::PoolNotFound, message }
}

impl PoolTable {
    /// Returns whether the object is there.
    ///
    /// This is checked under the lock that [`Self::forget`] takes, too: a deletion that comes later is handled later.
    fn set_work(&mut self, uid: &Uid, work: Option<JobDemand>, is_there: impl FnOnce() -> bool) -> bool {
        let is_there = is_there();
        let work = work.filter(|_| is_there);
        let before = match work {
            Some(work) => self.demand.insert(uid.clone(), work),
            None => self.demand.remove(uid),
        };
        if before != work {
            self.members.changed(uid);
        }
        is_there
    }

    fn forget(&mut self, uid: &Uid) {
        self.assigned.remove(uid);
        self.own_workers.remove(uid);
        if self.demand.remove(uid).is_some() {
            self.members.changed(uid);
        }
    }

    fn name_for(&self, uid: &Uid, namespace: &str, object: &ObservedHTCJob) -> Option<ObjectName> {
        self.assigned.get(uid).cloned().unwrap_or_else(|| match &object.0 {
            Ok(job) => pool_of(namespace, &job.spec),
            Err(_) => object.annotations().get(POOL_ANNOTATION).and_then(|name| name.parse().ok()),
        })
    }

    fn not_found(&self, name: &ObjectName, namespace: &str) -> SpecRefused {
        let (reason, message) = match &self.listing {
            PoolListing::Complete if name.namespace != namespace => return not_for(name, namespace),
            PoolListing::Complete => (
                Reason::PoolNotFound,
                format!(
                    "there is no HTCPool {name}, or the operator does not work with it yet: create the HTCPool, or delete the HTCJob and create it again with another spec.pool (kubectl get htcpools -A)"
                ),
            ),
            PoolListing::Failed(why) => {
                (Reason::PoolNotReady, format!("the operator cannot list HTCPools: {why}; ask its administrator"))
            }
            PoolListing::Pending => (Reason::PoolNotReady, "the operator is still listing the HTCPools".to_owned()),
        };
        SpecRefused { reason, message }
    }
}

impl NamedPool {
    /// Returns why nothing of this `HTCJob` is submitted to the pool.
    fn trouble(&self, name: &ObjectName, namespace: &str, object: &ObservedHTCJob) -> Option<SpecRefused> {
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
        if self.spec.managed.is_some()
            && name.namespace != namespace
            && object.0.as_ref().is_ok_and(|job| !job.spec.volumes.is_empty())
        {
            let message = format!(
                "the workers of HTCPool {name} are Pods of namespace {}, and cannot mount claims of namespace {namespace}: delete the HTCJob, and create it without spec.volumes, or in the namespace of a managed pool",
                name.namespace
            );
            return Some(SpecRefused::invalid(message));
        }
        if self.spec.managed.as_ref().is_some_and(|managed| managed.workers.isolation == Isolation::None)
            && object.0.as_ref().is_ok_and(|job| job.spec.uses_secrets() && job.spec.mini_cluster.is_none())
        {
            let message = format!(
                "the workers of HTCPool {name} run jobs of all namespaces (isolation: None), so HTCJobs there cannot use Secrets: delete the HTCJob, and create it without them in spec.files and spec.env, with spec.miniCluster, or with another spec.pool"
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
        let why = managed::demand::jobs_per_worker(managed, &job.spec).err()?;
        Some(SpecRefused { reason: Reason::NoWorkerFits, message: format!("no worker of HTCPool {name} fits: {why}") })
    }

    /// Stops the pool. The task ends after the batches under way.
    fn end(self) -> JoinHandle<()> {
        let Self { pool, lanes, metrics, .. } = self;
        let credentials = Arc::clone(&pool.credentials);
        tokio::spawn(async move {
            // The queues of the workers close when the last reference to the pool is dropped.
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

    /// A reconcile may finish after the watch has reported the deletion of its object.
    #[test]
    fn deleted_htcjob_gets_no_demand() {
        let (mut state, uid, work) =
            (PoolTable::default(), Uid::from("u"), Some(JobDemand { idle: 9, ..JobDemand::default() }));
        assert!(state.set_work(&uid, work, || true));
        assert_eq!(state.demand.get(&uid).copied(), work);
        state.forget(&uid);
        assert!(!state.set_work(&uid, work, || false));
        assert!(state.demand.is_empty());
    }
}
