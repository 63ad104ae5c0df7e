//! htc-operator: runs Kubernetes `HTCJob`s on an HTCondor pool, exactly once, and leaves nothing behind.
//!
//! The rooms, in the order in which they build on one another: each uses only those that are listed before it, and
//! `cargo test --lib order` names the line that does otherwise.
//!
//! - [`failpoint`]: where tests end the operator.
//! - [`telemetry`]: its log.
//! - [`retry`]: growing pauses.
//! - [`turns`]: who is next, by namespace.
//! - [`health`]: is it ready?
//! - [`api`]: the `HTCJob` as users write and read it.
//! - [`machine`]: the state machine; what is known goes in, what to do comes out, and nothing else happens there.
//! - [`clock`]: what time it is.
//! - [`fence`]: may this operator act?
//! - [`kubernetes`]: what every room needs of the API server: a client, requests with a time limit.
//! - [`key`]: the tokens of jobs.
//! - [`metrics`]: what is counted and measured.
//! - [`mtls`]: who may connect, by certificate.
//! - [`ledger`]: the SQLite journal; what stands there has been decided, what does not has not happened.
//! - [`procs`]: each job of an HTCJob as an object of the API.
//! - [`lease`]: does this operator lead?
//! - [`confine`]: what one process may touch, and the step that sees to it.
//! - [`condor`]: HTCondor through its own tools, and the only place where processes are started.
//! - [`credentials`]: in whose name that happens; tickets and tokens.
//! - [`workers`]: carry out what was decided, in batches, in the machine's order.
//! - [`tracker`]: asks HTCondor about all jobs at once.
//! - [`orphans`]: jobs without an object.
//! - [`pools`]: whole pools, one for each `HTCPool` beside that of the operator's flags.
//! - [`queue`]: which jobs have room, for each `HTCQueue`.
//! - [`kubernetes_backend`]: the cluster's own nodes instead of a pool: an `HTCJob` as a Job, and what is seen of its Pods.
//! - [`backends`]: the seam: what all others ask of whatever runs the jobs.
//! - [`receiver`]: takes in what jobs report of themselves; answers who asks how the operator is.
//! - [`controller`]: watches, gathers, decides, commits, hands over, publishes; the only place that writes `HTCJob`s.
//! - [`jobs_api`]: shows jobs to the fronts, from the ledger.
//! - [`front`]: the jobs API as the API server sees it; asks whether a user may, and hands on to the leader.
//! - [`retention`]: what is left of objects that are gone.
//! - [`config`]: every flag and variable.
//! - [`operator`]: puts them together.
//! - [`check`]: looks whether they could work.
//! - `order`: the test of this order.

pub mod api;
pub mod backends;
pub mod check;
pub mod clock;
pub mod condor;
pub mod config;
pub mod confine;
pub mod controller;
pub mod credentials;
pub mod failpoint;
pub mod fence;
pub mod front;
pub mod health;
pub mod jobs_api;
pub mod key;
pub mod kubernetes;
pub mod kubernetes_backend;
pub mod lease;
pub mod ledger;
pub mod machine;
pub mod metrics;
pub mod mtls;
pub mod operator;
#[cfg(test)]
mod order;
pub mod orphans;
pub mod pools;
pub mod procs;
pub mod queue;
pub mod receiver;
pub mod retention;
pub mod retry;
pub mod telemetry;
pub mod tracker;
pub mod turns;
pub mod workers;
