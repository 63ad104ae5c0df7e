//! The HTCondor backend: workers carry out requests, and a tracker queries all jobs together.

pub mod credentials;
pub mod orphans;
pub mod tracker;
pub mod workers;
