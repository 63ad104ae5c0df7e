//! A real Kueue beside a real HTCondor and the Job controller. Its controller takes up to half an hour to build, so these are for `make test-long`.

mod away;
mod ends;
mod kills;
mod lives;
mod parts;
mod pods;
mod rights;
pub mod stage;
mod taken;

pub use kills::POINTS;
