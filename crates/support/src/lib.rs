//! Utilities that the operator's crates share: clock, back-off, rate limits, fence, log, metrics, and a client for the
//! API server.

pub mod clock;
pub mod consent;
pub mod failpoint;
pub mod fair_limiter;
pub mod fence;
pub mod forget;
pub mod health;
pub mod image_registry;
pub mod kubernetes;
pub mod metrics;
pub mod registry_login;
pub mod retry;
pub mod telemetry;
