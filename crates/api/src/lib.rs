//! Custom resources of the operator: types, conditions, names, and CRD generation.

#![warn(missing_docs)]

#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod backend;
#[cfg(feature = "client")]
pub mod client;
mod condition;
mod consent;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod container;
mod crd;
#[allow(clippy::struct_field_names, reason = "the names are those of Kubernetes")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod env;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod files;
mod guarded;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcjob;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcpool;
pub mod htcproc;
#[allow(clippy::duplicated_attributes, reason = "kube's printer columns repeat their keys")]
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod htcqueue;
mod identity;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod managed;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod mini_cluster;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod node_faults;
mod object;
mod quantity;
#[allow(unreachable_pub, reason = "kube's derive makes items that lint takes for unreachable")]
mod volumes;

pub use backend::{Backend, ClaimVolume, KubernetesSpec, PullSecret, Toleration};
pub use condition::Condition;
pub use consent::{NoConsent, USE_LABEL, Use};
pub use container::ContainerSpec;
pub use crd::{crd, crd_yaml, fix_spec, pool_crd, pool_crd_yaml, queue_crd, queue_crd_yaml};
pub use env::{EnvVarSource, FieldRef, KeyRef};
pub use files::{FileConfigMap, FileSource, FrozenFile, FrozenInputs, InputStatus, PullLogin, SealedKey};
pub use guarded::Guarded;
pub use htc_machine::annotations::{ABANDON_ANNOTATION, SUBMIT_AGAIN_ANNOTATION};
pub use htc_machine::condition::{ConditionStatus, ConditionType, Reason};
pub use htc_machine::payload_failure::{JobShEnd, PayloadFailure};
pub use htc_machine::phase::Phase;
pub use htc_machine::rules::MAX_QUEUE;
pub use htcjob::{ConfigMapKeyRef, EnvVar, HTCJob, HTCJobSpec, HTCJobStatus, ItemsFrom, Resources, Script};
pub use htcpool::{
    ExternalPool, HTCPool, HTCPoolSpec, HTCPoolStatus, POOL_FINALIZER, READY_CONDITION, WorkersStatus, pool_of,
};
pub use htcqueue::{
    ACTIVE_CONDITION, HTCQueue, HTCQueueSpec, HTCQueueStatus, LabelOperator, LabelRequirement, NamespaceSelector,
    NamespaceUsed, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL, QueueingStrategy, Quota, StopPolicy, Used, WaitingHTCJob,
};
pub use identity::{Identity, is_name};
pub use managed::{
    Autoscaling, CentralManager, Isolation, ManagedPool, MiniClusters, PodResources, PodUser, QueueStorage, Reclaim,
    ScheddPod, SigningKeySpec, Storage, Workers,
};
pub use mini_cluster::{MiniCluster, MiniClusterStatus, WorkerTemplate};
pub use node_faults::NodeFaultsStatus;
pub use object::{ObjectName, ObservedHTCJob, is_for_operator};
pub use quantity::{Quantity, QuantityError};
pub use volumes::{NoVolume, RESERVED_FOLDERS, Volume};

/// API group of the operator's custom resources.
pub const GROUP: &str = "htc.cern.ch";
/// Finalizer of every HTCJob that this operator has seen. It is released when HTCondor is proved to have none of its
/// jobs.
pub const FINALIZER: &str = "htc.cern.ch/condor-jobs";
/// Finalizer of the Go operator of 2020. It is recognised and released by the same rule.
pub const OLD_FINALIZER: &str = "finalizer.htc.cern.ch";
/// Annotation with the id of the ledger that may submit this object. It is written in the patch that attaches the
/// finalizer.
pub const CLAIM_ANNOTATION: &str = "htc.cern.ch/ledger";
/// Annotation with namespace and name of the operator that owns the object. It is written in the same patch. Operators
/// of other names leave the object alone, because they would not find its jobs.
pub const OPERATOR_ANNOTATION: &str = "htc.cern.ch/operator";
/// Annotation with namespace and name of the object's HTCPool, for the case that the spec becomes unreadable. It is
/// written in the same patch.
pub const POOL_ANNOTATION: &str = "htc.cern.ch/pool";
/// Annotation with the backend of the object's jobs, for the case that the spec becomes unreadable; absent for
/// HTCondor. It is written in the same patch.
pub const BACKEND_ANNOTATION: &str = "htc.cern.ch/backend";
/// Annotation with the uid of an HTCJob in the same namespace. Files from ConfigMaps are then those that were read for that
/// HTCJob. `kubectl htc retry` sets it.
pub const FILES_OF_ANNOTATION: &str = "htc.cern.ch/files-of";
/// Label of an HTCJob that is copied to its Job and Pods.
pub const APP_LABEL: &str = "app";
