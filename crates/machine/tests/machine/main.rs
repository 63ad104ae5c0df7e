//! The state machine, case by case and by its properties. No servers.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod decide;
mod given;
mod judge;
mod pods;
mod steps;
