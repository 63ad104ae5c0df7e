//! Queues with quotas: decides which jobs of which `HTCJob`s may be in HTCondor at a time. The queues are
//! `HTCQueue`s, or Kueue's.
//!
//! What an `HTCJob` uses and requests is derived from its record (`htc_machine::quota_usage`).
//! [`htc_machine::admission::admit`] decides over all `HTCJob`s. A grant is in the ledger before any job that it
//! covers is submitted. It leaves the ledger in the transaction that records why.

mod assignment;
mod controller;
mod kueue;
pub mod messages;
mod plan;
mod policy;
mod state;
pub mod states;
mod status;
#[cfg(test)]
mod tests;

pub use controller::QueueController;
pub use policy::JobResources;
pub use state::{DecidedUsage, QueueQuery, Queueing, Queues};
