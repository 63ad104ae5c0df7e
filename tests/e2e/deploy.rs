//! What a site installs: the overlays as the API server takes them, the operator under exactly their rights, and its image.

mod dockerfile;
mod finalizer;
mod image;
mod jobs_api;
pub mod manifests;
pub mod overlays;
pub mod rbac;
pub mod rights;
