//! What jobs report of themselves: the receiver alone, with every kind of request; and real jobs on real pools.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;

#[path = "callbacks/corpus.rs"]
mod corpus;
#[path = "callbacks/desk.rs"]
mod desk;
#[path = "callbacks/http.rs"]
mod http;
#[path = "callbacks/jobs.rs"]
mod jobs;
#[path = "callbacks/keys.rs"]
mod keys;
#[path = "callbacks/latency.rs"]
mod latency;
#[path = "callbacks/limits.rs"]
mod limits;
#[path = "callbacks/monitor.rs"]
mod monitor;
#[path = "callbacks/readiness.rs"]
mod readiness;
#[path = "callbacks/receiver.rs"]
mod receiver;
#[path = "callbacks/requests.rs"]
mod requests;
#[path = "callbacks/storm.rs"]
mod storm;
#[path = "callbacks/tls.rs"]
mod tls;
#[path = "callbacks/ways.rs"]
mod ways;
