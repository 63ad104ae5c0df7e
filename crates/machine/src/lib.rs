//! The state machine: takes what is known about one HTCJob, returns what to do. No I/O, no clock, no async.
//!
//! Each of its modules uses only modules that are listed before it (`cargo test --lib order`):
//!
//! - [`text`]: text written by users and tools, made harmless.
//! - [`annotations`]: annotations by which users allow steps that may not be safe.
//! - [`condition`]: types of conditions and their reasons.
//! - [`payload_failure`]: ends of a job by `job.sh` itself.
//! - [`ids`]: types for names and numbers that must not be mixed up.
//! - [`indices`]: sets of job indices.
//! - [`phase`]: phases and what they mean.
//! - [`outcome`]: outcomes of jobs.
//! - [`inherited`]: what the Go operator left of an HTCJob.
//! - [`actions`]: actions on single jobs that users request.
//! - [`rules`]: times and sizes, and the safety rules that the model can switch off.
//! - [`facts`]: all that is known about one HTCJob.
//! - [`status`]: the counts, conditions and messages of the status, computed from the record.
//! - [`node_fault_counts`]: faults of nodes of all jobs.
//! - [`summary`]: the conditions in one word.
//! - [`judge`]: verdicts and proofs, drawn from dated evidence.
//! - [`request`]: requests, which are the effects that a decision can ask for.
//! - [`transitions`]: the table of legal transitions.
//! - [`worker`]: the order in which a worker carries out a request.
//! - [`chart`]: the table of transitions, drawn as statecharts.
//! - [`mod@decide`]: the decision about an HTCJob whose jobs run in HTCondor.
//! - [`amounts`]: CPU cores, memory and GPUs of jobs.
//! - [`admission`]: which HTCJobs of an HTCQueue get quota.
//! - [`scaling`]: how many workers a group of a managed pool gets.
//! - [`worker_groups`]: how the groups of a managed pool share its workers.
//! - [`progress`]: the progress of an HTCJob, as Kueue counts it.
//! - [`demand`]: the workers that an HTCJob needs from its pool.
//! - [`mod@quota_usage`]: what an HTCJob uses of its queue's quota.
//! - [`runs`]: the jobs of a backend that itself reports their states.
//! - [`pods`]: the decision about an HTCJob whose jobs are Pods.

#![warn(missing_docs)]

pub mod actions;
pub mod admission;
pub mod amounts;
pub mod annotations;
pub mod chart;
pub mod condition;
pub mod decide;
pub mod demand;
pub mod facts;
pub mod ids;
pub mod indices;
pub mod inherited;
pub mod judge;
pub mod node_fault_counts;
pub mod outcome;
pub mod payload_failure;
pub mod phase;
pub mod pods;
pub mod progress;
pub mod quota_usage;
pub mod request;
pub mod rules;
pub mod runs;
pub mod scaling;
pub mod status;
pub mod summary;
pub mod text;
pub mod transitions;
pub mod worker;
pub mod worker_groups;

pub use decide::{Decision, Polling, decide};
pub use facts::Facts;
pub use ids::{
    Attempt, Birthdate, ClusterId, Index, JobId, RequestKey, RequestKind, SchedDate, ScheddName, Timestamp, Uid,
};
pub use indices::Indices;
pub use request::{Request, Work};
pub use rules::{Rules, Settings};
