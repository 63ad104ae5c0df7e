//! Queues with quotas (`HTCQueue`s): which jobs of which `HTCJob`s may be in HTCondor at a time.

pub mod admit;
mod amounts;

pub use amounts::{Amounts, Limits, Resource};
