//! The command line: flags, and the commands.

pub mod check;
pub mod config;
pub mod run;
