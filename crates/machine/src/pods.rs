//! The Kubernetes backend: the jobs of an `HTCJob` are the indexes of one Job of Kubernetes, and run as its Pods.
//!
//! Kubernetes guarantees what HTCondor does not: an object is created once by its name, the API server knows whether it
//! exists, and the Job counts its Pods exactly.
//! So no evidence has to be judged here. One doubt is left: a Job that is gone may have run.
//! The order of steps resolves it: the Job is created *suspended*, its uid is recorded, and only then it is resumed.
//! A Job that was never recorded has run nothing and may be created again.
//! A Job that was recorded and is gone is lost, and never created again.

mod decide;
mod facts;
mod progress;
mod proofs;
mod quota_usage;
mod status;

pub use decide::{DesiredJob, PodsAction, PodsDecision, PodsReleasePermit, decide_pods};
pub use facts::{
    BatchJob, Creation, Exceeded, JobEnd, JobObservation, LeftoverPods, Pod, PodPhase, PodsFacts, PodsObject,
    PodsObservation,
};
pub use progress::progress;
pub use proofs::{NeverBegun, PodsGone};
use quota_usage::left;
pub use quota_usage::{concurrency, concurrency_after, quota_usage};
pub use status::{counts, indexes};
