//! `decide`: each phase case by case, whole lives in a small world, and properties over facts of every kind.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test program; only functions with #[test] count as tests to clippy"
)]

#[path = "decide/accepting.rs"]
mod accepting;
#[path = "decide/decision.rs"]
mod decision;
#[path = "decide/deleting.rs"]
mod deleting;
#[path = "decide/design.rs"]
mod design;
#[path = "decide/inherited.rs"]
mod inherited;
#[path = "decide/large.rs"]
mod large;
#[path = "decide/lives.rs"]
mod lives;
mod machine;
#[path = "decide/output.rs"]
mod output;
#[path = "decide/parts.rs"]
mod parts;
#[path = "decide/properties.rs"]
mod properties;
#[path = "decide/reporting.rs"]
mod reporting;
#[path = "decide/seed.rs"]
mod seed;
#[path = "decide/submitting.rs"]
mod submitting;
#[path = "decide/suspending.rs"]
mod suspending;
#[path = "decide/under_way.rs"]
mod under_way;
#[path = "decide/unknown_past.rs"]
mod unknown_past;
