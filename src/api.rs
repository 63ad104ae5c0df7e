//! The `HTCJob` as users write and read it: types, conditions, CRD generation.

#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod backend;
mod condition;
mod consent;
mod crd;
mod guarded;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcjob;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcpool;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcqueue;
mod identity;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod managed;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod mini_cluster;
mod object;
mod payload_failure;
mod phase;
mod quantity;
pub mod text;

pub use backend::{Backend, ClaimVolume, KubernetesSpec, PullSecret, Toleration};
pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use consent::{NoConsent, USE, Use};
pub use crd::{crd, crd_yaml, fix_spec, pool_crd, pool_crd_yaml, queue_crd, queue_crd_yaml};
pub use guarded::{Guarded, decoded};
pub use htcjob::{ConfigMapKeyRef, EnvVar, HTCJob, HTCJobSpec, HTCJobStatus, ItemsFrom, MAX_QUEUE, Resources, Script};
pub use htcpool::{ExternalPool, HTCPool, HTCPoolSpec, HTCPoolStatus, POOL_FINALIZER, READY, WorkersStatus, pool_of};
pub use htcqueue::{
    ACTIVE, HTCQueue, HTCQueueSpec, HTCQueueStatus, LabelOperator, LabelRequirement, NamespaceSelector, NamespaceUsed,
    PRIORITY_CLASS, QUEUE_NAME, QueueingStrategy, Quota, StopPolicy, Used, WaitingHTCJob,
};
pub use identity::{Identity, is_name};
pub use managed::{
    Autoscaling, CentralManager, Isolation, ManagedPool, MiniClusters, PodResources, QueueStorage, Reclaim, ScheddPod,
    SigningKeySpec, Storage, Workers,
};
pub use mini_cluster::{MiniCluster, MiniClusterStatus, WorkerTemplate};
pub use object::{ObjectName, Observed, Wake, is_for};
pub use payload_failure::PayloadFailure;
pub use phase::Phase;
pub use quantity::{Quantity, QuantityError};

/// API group of the `HTCJob`.
pub const GROUP: &str = "htc.cern.ch";
/// Held by every `HTCJob` that this operator has seen, until HTCondor is proved to have none of its jobs.
pub const FINALIZER: &str = "htc.cern.ch/condor-jobs";
/// The finalizer of the Go operator of 2020; recognised and released by the same rule.
pub const OLD_FINALIZER: &str = "finalizer.htc.cern.ch";
/// Annotation, written in the patch that attaches the finalizer: id of the ledger that may submit this object.
pub const CLAIM: &str = "htc.cern.ch/ledger";
/// Annotation, written in the same patch: namespace and name of the operator whose it is. Operators of other names leave it
/// alone: they would not find its jobs.
pub const OPERATOR: &str = "htc.cern.ch/operator";
/// Annotation, written in the same patch: namespace and name of its `HTCPool`, for when the spec cannot be read any more.
pub const POOL: &str = "htc.cern.ch/pool";
/// Annotation, written in the same patch: what runs its jobs, for when the spec cannot be read any more; none for HTCondor.
pub const BACKEND: &str = "htc.cern.ch/backend";
/// Label of an `HTCJob` that its Job and Pods get as well.
pub const APP_LABEL: &str = "app";
/// Annotation: `"true"` releases a deleted object although its jobs may be left in HTCondor.
pub const ABANDON: &str = "htc.cern.ch/abandon";
/// Annotation: `"true"` lets an object be submitted again although HTCondor's history no longer reaches back far enough
/// to prove that the earlier attempt never was accepted, or its queue was lost since.
pub const SUBMIT_AGAIN: &str = "htc.cern.ch/submit-again";
