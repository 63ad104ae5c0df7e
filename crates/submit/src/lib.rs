//! Validation of the spec of an `HTCJob`, and the files and submit descriptions made from it. Reads and writes no
//! files.

pub mod description;
pub mod files;
pub mod htcopts;
pub mod items;
pub mod job_token;
pub mod payload;
pub mod pod_metadata;
pub mod pod_spec;
pub mod spec;
pub mod variables;
pub mod volumes;
