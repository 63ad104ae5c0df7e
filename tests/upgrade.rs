//! An operator that takes over from the Go operator of 2020: its objects, its database and its jobs, as it left them.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;
#[path = "upgrade/document.rs"]
mod document;
#[path = "callbacks/http.rs"]
mod http;
#[path = "upgrade/in_doubt.rs"]
mod in_doubt;
#[path = "upgrade/in_place.rs"]
mod in_place;
#[path = "upgrade/leaving.rs"]
mod leaving;
#[path = "upgrade/old.rs"]
mod old;
#[macro_use]
#[path = "outages/versions.rs"]
mod versions;

on_both_versions!(
    in_place::every_job_is_followed_to_its_end,
    in_place::deletion_removes_exactly_its_jobs,
    in_place::an_operator_that_dies_while_it_adopts,
    in_doubt::nothing_is_submitted_that_may_have_been,
    leaving::out_of_a_queue_with_others,
    leaving::out_of_a_queue_that_is_empty_then,
    document::its_commands_work,
);
