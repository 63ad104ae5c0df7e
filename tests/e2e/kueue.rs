//! A real Kueue beside a real HTCondor and the Job controller. Its controller takes up to half an hour to build, so these are for `make test-long`.

mod admission;
mod ends;
mod eviction;
mod kills;
mod outage;
mod partial_admission;
mod pods;
mod rights;
pub mod stage;

pub use kills::POINTS;
