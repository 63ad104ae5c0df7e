//! What jobs report of themselves: the receiver alone, with every kind of request. No servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod corpus;
mod receiver;
mod requests;
