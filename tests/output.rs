//! What jobs leave: the end of their `err`, a cap on it, room for it, and how long it is kept.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy counts only functions with #[test] as tests, not what they share; the site is shared with another test"
)]

mod bed;
#[path = "output/err.rs"]
mod err;
#[path = "output/lanes.rs"]
mod lanes;
#[path = "output/limits.rs"]
mod limits;
#[path = "output/retention.rs"]
mod retention;
#[path = "outages/site.rs"]
mod site;
#[macro_use]
#[path = "outages/versions.rs"]
mod versions;

on_both_versions!(
    err::its_end_is_told,
    err::hostile_files_are_harmless,
    limits::too_much_output_is_held,
    limits::nothing_is_fetched_onto_a_full_volume,
    lanes::one_that_fails_holds_up_no_other,
    retention::what_is_left_goes_in_its_time,
    retention::what_comes_back_is_not_taken_for_new,
);
