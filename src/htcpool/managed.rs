//! Managed pools: the operator runs central manager, schedd and workers as pods.
//!
//! [`config`], [`objects`], [`demand`], [`mini_cluster`] and [`rotation`] are pure: they compute the desired objects.
//! [`apply`] and `reconciler` write them, and `apply_backoff` limits the retries.

mod absences;
pub mod apply;
pub(super) mod apply_backoff;
mod conditions;
pub mod config;
pub mod demand;
mod desired;
pub mod error;
pub mod existing;
mod expectations;
pub mod mini_cluster;
pub mod names;
pub mod objects;
mod observations;
pub mod paths;
mod payload;
pub(super) mod reconciler;
pub mod rotation;
mod shadow;
#[cfg(test)]
mod world;
