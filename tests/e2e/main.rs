//! Everything that is promised, on real servers: a module for each promise.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

#[macro_use]
mod versions;

mod apply;
mod attack_options;
mod attacks;
mod benchmark;
mod callbacks;
mod check;
mod credentials;
mod crowd;
mod deletion;
mod deploy;
mod docs;
mod environment;
mod examples;
mod faults;
mod images;
mod inputs;
mod jobs_api;
mod kill_points;
mod kubernetes_backend;
mod kueue;
mod large;
mod lifecycle;
mod many;
mod node_faults;
mod one_process;
mod outages;
mod output;
mod parallelism_under_kills;
mod payload_script;
mod plugin;
mod pools;
mod queue;
mod rules;
mod soak;
mod spec;
mod submit_description;
mod transitions;
mod upgrade;
mod volumes;
