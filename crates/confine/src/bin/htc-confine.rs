//! Executes a program with only the access that the command line grants: [`htc_confine`] beside HTCondor's daemons.
#![allow(clippy::print_stderr, reason = "there is nobody else to say it")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let (why, code) = htc_confine::run_step(std::env::args_os());
    eprintln!("htc-confine: {why}");
    ExitCode::from(code)
}
