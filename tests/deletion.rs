//! `kubectl delete` in each phase: the object stays until HTCondor has none of its jobs left, and nobody else's are touched.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;
#[path = "deletion/phases.rs"]
mod phases;
#[path = "deletion/trouble.rs"]
mod trouble;
#[path = "deletion/watch.rs"]
mod watch;
