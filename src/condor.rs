//! HTCondor, through its own command-line tools.

pub mod description;
pub mod effects;
pub mod htcopts;
mod names;
pub mod payload;
pub mod query;
mod row;
pub mod schedd;
pub mod submit;
pub mod tools;

pub use names::Names;
pub use schedd::Schedd;
pub use tools::{Output, ToolError, Tools};
