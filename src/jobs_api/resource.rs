//! Resources of the jobs API as the API server and clients expect them: discovery, lists, tables, answers.

pub mod discovery;
pub mod flow;
pub mod list;
pub mod request_path;
pub mod selection;
pub mod status_error;
pub mod story;
pub mod table;
