//! `judge`, case by case: what one ad says, what is proved, and every doubt.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

#[path = "judge/ads.rs"]
mod ads;
#[path = "judge/gone.rs"]
mod gone;
#[path = "judge/lost.rs"]
mod lost;
mod machine;
#[path = "judge/never_accepted.rs"]
mod never_accepted;
#[path = "judge/never_attempted.rs"]
mod never_attempted;
#[path = "judge/questions.rs"]
mod questions;
