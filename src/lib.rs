//! htc-operator: runs Kubernetes `HTCJob`s on an HTCondor pool, exactly once, and leaves nothing behind.
//!
//! The rooms, in the order in which they build on one another:
//!
//! - [`api`]: the `HTCJob` as users write and read it.
//! - [`kubernetes`]: what every room needs of the API server: a client, and requests with a time limit.
//! - [`machine`]: the state machine; what is known goes in, what to do comes out, and nothing else happens there.
//! - [`ledger`]: the SQLite journal; what stands there has been decided, what does not has not happened.
//! - [`condor`]: HTCondor through its own tools, and the only place where processes are started.
//! - [`credentials`]: in whose name that happens; tickets and tokens.
//! - [`workers`]: carry out what was decided, in batches, in the machine's order.
//! - [`tracker`]: asks HTCondor about all jobs at once.
//! - [`receiver`]: takes in what jobs report of themselves; answers who asks how the operator is.
//! - [`controller`]: watches, gathers, decides, commits, hands over, publishes; the only place that writes to Kubernetes.
//! - [`operator`] puts them together; [`check`] looks whether they could work.
//!
//! Beside them: [`config`], [`clock`], [`fence`] (may this operator act?), [`health`] (is it ready?), [`key`] (tokens of
//! jobs), [`lease`] (does it lead?), [`metrics`], [`orphans`] (jobs without an object), [`retention`] (what is left of objects
//! that are gone), [`retry`] (growing pauses), [`telemetry`], and for tests [`failpoint`].

pub mod api;
pub mod check;
pub mod clock;
pub mod condor;
pub mod config;
pub mod controller;
pub mod credentials;
pub mod failpoint;
pub mod fence;
pub mod health;
pub mod key;
pub mod kubernetes;
pub mod lease;
pub mod ledger;
pub mod machine;
pub mod metrics;
pub mod operator;
pub mod orphans;
pub mod receiver;
pub mod retention;
pub mod retry;
pub mod telemetry;
pub mod tracker;
pub mod workers;
