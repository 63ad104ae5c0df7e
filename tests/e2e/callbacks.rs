//! What jobs report of themselves: real jobs on real pools, and the operator that listens to them.

mod jobs;
mod keys;
mod latency;
mod limits;
mod monitor;
pub mod readiness;
mod storm;
mod tls;
mod ways;
