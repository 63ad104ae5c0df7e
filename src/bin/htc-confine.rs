//! Becomes a program that may touch only what its command line says: [`htc_operator::confine`] beside HTCondor's daemons.
#![allow(clippy::print_stderr, reason = "there is nobody else to say it")]

use std::process::ExitCode;

use htc_operator::confine;

fn main() -> ExitCode {
    let (why, code) = confine::step(std::env::args_os());
    eprintln!("htc-confine: {why}");
    ExitCode::from(code)
}
