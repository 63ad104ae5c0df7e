//! HTCondor's `USER_JOB_WRAPPER` on the workers of managed pools: [`htc_operator::confine::job_wrapper`].
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "HTCondor's configuration reads it, and users read why a job is not started"
)]

use std::ffi::OsString;
use std::process::ExitCode;

use htc_operator::confine::{self, job_wrapper};

/// Prints what jobs are confined by on this node.
const LANDLOCK: &str = "--landlock";
/// Names the file that HTCondor's starter reads why a job was not started from.
const ERROR_FILE: &str = "_CONDOR_WRAPPER_ERROR_FILE";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let first = words.first().and_then(|word| word.to_str());
    if first == Some(confine::COMMAND) {
        let (why, code) = confine::step(words.into_iter());
        eprintln!("htc-operator: {why}");
        return ExitCode::from(code);
    }
    if first == Some(LANDLOCK) {
        println!("{}", job_wrapper::Payloads::here());
        return ExitCode::SUCCESS;
    }
    match job_wrapper::run(&words) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("htc-operator: {why}");
            if let Some(file) = std::env::var_os(ERROR_FILE) {
                // The job may have put a link there, which the starter would follow.
                let _ = std::fs::remove_file(&file);
                let _ = std::fs::write(file, format!("{why}\n"));
            }
            ExitCode::FAILURE
        }
    }
}
