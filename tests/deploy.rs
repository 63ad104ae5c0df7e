//! What a site installs: the overlays as the API server takes them, the operator under exactly their rights, and its image.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod bed;

#[path = "deploy/dockerfile.rs"]
mod dockerfile;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/life.rs"]
mod life;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/overlays.rs"]
mod overlays;
#[path = "deploy/rights.rs"]
mod rights;
