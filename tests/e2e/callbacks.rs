//! Reports of real jobs on real pools to the operator's receiver.

mod delivery;
mod durability;
pub mod jobs;
mod keys;
mod latency;
mod limits;
mod monitor;
pub mod readiness;
pub mod tls;
