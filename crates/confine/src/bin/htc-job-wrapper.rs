//! HTCondor's `USER_JOB_WRAPPER` on the workers of managed pools: [`htc_confine::job_wrapper`].
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "HTCondor's configuration reads it, and users read why a job is not started"
)]

use std::ffi::OsString;
use std::process::ExitCode;

use htc_confine::job_wrapper;

/// Option that prints how jobs are confined on this node.
const LANDLOCK: &str = "--landlock";
/// Variable with the file in which HTCondor's starter finds the reason why a job was not started.
const ERROR_FILE: &str = "_CONDOR_WRAPPER_ERROR_FILE";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let first = words.first().and_then(|word| word.to_str());
    if first == Some(htc_confine::COMMAND) {
        let (why, code) = htc_confine::run_step(words.into_iter());
        eprintln!("htc-operator: {why}");
        return ExitCode::from(code);
    }
    if first == Some(LANDLOCK) {
        println!("{}", job_wrapper::PayloadConfinement::here());
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
