//! What a site installs: the overlays as the API server takes them, the operator under exactly their rights, and its image.

mod dockerfile;
mod finalizer;
mod image;
mod jobs_api;
pub mod life;
pub mod manifests;
mod overlays;
pub mod rights;
