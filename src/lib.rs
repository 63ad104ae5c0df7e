//! htc-operator: runs Kubernetes `HTCJob`s on an HTCondor pool, exactly once, and leaves nothing behind.
//!
//! The rooms, in the order in which they build on one another: each uses only those that are listed before it, and
//! `cargo test --lib order` names the line that does otherwise.
//!
//! - [`http`]: ports, their limits, TLS and certificates.
//! - [`leader`]: the Lease.
//! - [`output`]: where output lands.
//! - [`backends`]: HTCondor and Pods.
//! - [`htcpool`]: the controller of `HTCPool`s, and the pools that the operator runs itself.
//! - [`htcqueue`]: admission by `HTCQueue`s or Kueue.
//! - [`callbacks`]: CloudEvents of jobs; probes and metrics.
//! - [`htcjob`]: the controller of `HTCJob`s, and the only place that writes them.
//! - [`jobs_api`]: single jobs as objects of an aggregated API.
//! - [`cli`]: flags, and what the commands do.
//! - `order`: the test of this order.

pub mod backends;
pub mod callbacks;
pub mod cli;
pub mod htcjob;
pub mod htcpool;
pub mod htcqueue;
pub mod http;
pub mod jobs_api;
pub mod leader;
#[cfg(test)]
mod order;
pub mod output;
