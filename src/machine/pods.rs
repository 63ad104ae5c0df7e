//! The second backend: the jobs of an `HTCJob` are the indexes of one Job of Kubernetes, and run as its Pods.
//!
//! Kubernetes gives what HTCondor does not: an object is created once by its name, the API server says whether it is there, and the Job
//! counts its Pods exactly. So there is nothing to be judged here. What is left of doubt is one question: a Job that is gone may
//! have run. It is answered by the order of things: the Job is created *suspended*, its uid is recorded, and only then it is
//! resumed. A Job that was never recorded has run nothing and may be created again; one that was recorded and is gone is lost, and
//! never created again.

mod decide;
mod facts;
mod proofs;
mod room;
mod status;

pub use decide::{Action, Adjust, Decision, Permit, decide_pods};
pub use facts::{BatchJob, Create, Exceeded, Facts, JobEnd, JobSeen, Left, Object, Pod, PodPhase, PodsSeen};
pub use proofs::{NeverBegun, PodsGone};
pub(crate) use room::left;
pub use room::{room, share, share_after};
pub use status::{Counts, indexes};
