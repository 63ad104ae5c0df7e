//! `condor_submit`.

use std::path::PathBuf;
use std::time::Duration;

use super::confined::Touches;
use super::schedd::Schedd;
use super::submitter_lock::HeldLock;
use super::tools::{Call, DONE, ToolError};
use crate::api::text::{WORDS, harmless};

/// How a submitter ended. Its exit status decides nothing: it may have failed with every job queued, and succeeded with
/// jobs that are removed a second later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// No process of it is left.
    pub dead: bool,
    /// It was killed at its time limit.
    pub timed_out: bool,
    /// Its exit status, if it had one.
    pub status: Option<i32>,
    /// What it said, if it failed.
    pub message: Option<String>,
}

impl Schedd {
    /// Submits `description`, which names files in the folders `reads`; `limit` is the longest life of the submitter, `holds` what
    /// it holds meanwhile.
    pub async fn submit(
        &self,
        description: String,
        reads: &[PathBuf],
        limit: Duration,
        holds: Option<&HeldLock>,
    ) -> Submitted {
        const TOOL: &str = "condor_submit";
        let arguments = vec!["-spool", "-terse", "-name", self.name.as_str(), "-"];
        let touches = Touches { reads, ..Touches::default() };
        let call = Call {
            tool: TOOL,
            arguments,
            input: description.into_bytes(),
            limit,
            most_bytes: DONE,
            outlives_us: true,
            holds,
            touches,
        };
        match self.tools.call(call).await {
            Ok(output) => {
                let failed = output.status != Some(0);
                let words = harmless(&output.stderr.split_whitespace().collect::<Vec<_>>().join(" "), WORDS);
                Submitted {
                    dead: output.dead,
                    timed_out: false,
                    status: output.status,
                    message: failed.then_some(words),
                }
            }
            Err(error) => {
                self.pauses.failed(&self.identity, &error, self.clock.now());
                let timed_out = matches!(error, ToolError::TimedOut { .. });
                Submitted { dead: error.dead(), timed_out, status: None, message: Some(error.to_string()) }
            }
        }
    }
}
