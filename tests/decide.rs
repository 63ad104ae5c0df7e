//! `decide`: each phase case by case, whole lives in a small world, and properties over facts of every kind.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

#[path = "decide/cases.rs"]
mod cases;
#[path = "decide/lives.rs"]
mod lives;
mod machine;
#[path = "decide/properties.rs"]
mod properties;
