//! Submission by `condor_submit`.

use std::path::PathBuf;
use std::time::Duration;

use htc_machine::text::{MAX_MESSAGE, sanitize};

use super::schedd::Schedd;
use super::submitter_lock::HeldLock;
use super::tools::{MAX_ACTION_OUTPUT, ToolError, ToolInvocation};
use crate::confinement::FileAccess;

/// How a submitter ended. Its exit status decides nothing: it may have failed with every job queued, or succeeded with
/// jobs that are removed a second later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitterExit {
    /// Whether all processes of the submitter are confirmed to be gone.
    pub dead: bool,
    /// Whether it was killed at its time limit.
    pub timed_out: bool,
    /// Exit status, if it had one.
    pub status: Option<i32>,
    /// Error message, if it failed.
    pub message: Option<String>,
}

impl Schedd {
    /// Submits `description`, which names files in the folders `reads`. `limit` is the longest life of the submitter.
    /// The submitter holds the lock `holds` while it lives.
    pub async fn submit(
        &self,
        description: String,
        reads: &[PathBuf],
        limit: Duration,
        holds: Option<&HeldLock>,
    ) -> SubmitterExit {
        const TOOL: &str = "condor_submit";
        let arguments = vec!["-spool", "-terse", "-name", self.name.as_str(), "-"];
        let touches = FileAccess { reads, ..FileAccess::default() };
        let call = ToolInvocation {
            tool: TOOL,
            arguments,
            input: description.into_bytes(),
            limit,
            max_output: MAX_ACTION_OUTPUT,
            outlives_operator: true,
            inherited_lock: holds,
            access: touches,
        };
        match self.tools.call(call).await {
            Ok(output) => {
                let failed = output.status != Some(0);
                let words = sanitize(&output.stderr.split_whitespace().collect::<Vec<_>>().join(" "), MAX_MESSAGE);
                SubmitterExit {
                    dead: output.dead,
                    timed_out: false,
                    status: output.status,
                    message: failed.then_some(words),
                }
            }
            Err(error) => {
                self.backoff.failed(&self.identity, &error, self.clock.now());
                let timed_out = matches!(error, ToolError::TimedOut { .. });
                SubmitterExit { dead: error.dead(), timed_out, status: None, message: Some(error.to_string()) }
            }
        }
    }
}
