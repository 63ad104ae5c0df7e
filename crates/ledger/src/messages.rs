//! Data that the controller and the workers write to the ledger.

use std::collections::BTreeMap;

use htc_api::{Identity, ObjectName};
use htc_machine::actions::ActionUpdate;
use htc_machine::facts::{Job, ObjectRow, RequestFailure, Submission, Witness};
use htc_machine::ids::{Attempt, Index, JobId, RequestKey, ScheddName, Timestamp, Uid};
use htc_machine::indices::Indices;
use htc_machine::judge::SubmitterLock;
use htc_machine::transitions::Transition;

/// Decision about an object, to be written in one transaction.
pub struct Save {
    pub uid: Uid,
    pub name: ObjectName,
    /// HTCPool of the object, fixed by the first write; `None` for the pool of the operator's flags.
    pub pool: Option<ObjectName>,
    pub row: ObjectRow,
    pub jobs: Vec<(Index, Job)>,
    /// Highest attempt that need not be read again, with all before it.
    pub settled: Option<Attempt>,
    /// Highest attempt of which, as of all before it, the jobs without a row are proved never to have been accepted.
    pub absent: Option<Attempt>,
    /// Changes to requested actions on single jobs.
    pub action_updates: Vec<ActionUpdate>,
    pub schedd: ScheddName,
    /// Folder from which the jobs were submitted (`tempDir`).
    pub sandbox: String,
    pub transitions: Vec<Transition>,
    /// Jobs whose reported end HTCondor contradicts.
    pub refuted: Vec<JobId>,
    /// Jobs that give back their queue quota.
    pub returned_quota: Indices,
    pub now: Timestamp,
}

/// Queue quota for jobs of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub uid: Uid,
    pub queue: String,
    pub indices: Indices,
    /// Number of the grant; later grants have higher numbers.
    pub number: u64,
    /// Resources per job, as the queue has encoded them; empty if unknown.
    pub per_job: String,
}

/// Start of work on a request. For a submission, it includes the jobs to submit.
#[derive(Clone, Debug)]
pub struct Intent {
    pub key: RequestKey,
    /// Time at which the work starts.
    pub at: Timestamp,
    /// Submission to make, if the request is one.
    pub submission: Option<NotedSubmission>,
}

/// Submission, with what was recorded before it.
#[derive(Clone, Debug)]
pub struct NotedSubmission {
    pub submission: Submission,
    /// Newest entry of HTCondor's history before the submission, or that the history was empty.
    pub witness: Witness,
    /// HTCondor user as the schedd sees it: `User` of the jobs.
    pub user: String,
    /// Identity with which the jobs are submitted.
    pub identity: Identity,
    /// Lock that the submitter holds while it lives.
    pub lock: Option<SubmitterLock>,
}

/// Result of a request.
#[derive(Clone, Debug)]
pub struct RequestResult {
    pub key: RequestKey,
    /// Time at which the request's tool had ended.
    pub at: Timestamp,
    /// Failure, if there was one.
    pub failure: Option<RequestFailure>,
    /// Jobs whose output was fetched.
    pub fetched: Indices,
    /// Size of the output of each fetched job, in bytes.
    pub sizes: BTreeMap<Index, u64>,
    /// Jobs whose output is not kept, each with the reason.
    pub refused: Vec<(Index, String)>,
    /// Parts of the output of fetched jobs that did not come back, in the words of `job.sh`.
    pub omitted: BTreeMap<Index, String>,
}

impl RequestResult {
    /// Returns the result of a request that fetched no output.
    #[must_use]
    pub fn without_output(key: RequestKey, at: Timestamp, failure: Option<RequestFailure>) -> Self {
        Self {
            key,
            at,
            failure,
            fetched: Indices::default(),
            sizes: BTreeMap::new(),
            refused: Vec::new(),
            omitted: BTreeMap::new(),
        }
    }
}

/// Result of a submitter.
#[derive(Clone, Debug)]
pub struct SubmitResult {
    pub key: RequestKey,
    /// Time at which the submitter ended or was abandoned.
    pub at: Timestamp,
    /// Time at which its whole process group was seen to be dead; `None` if that was not seen.
    pub dead_since: Option<Timestamp>,
    /// Exit status, if it had one. No decision depends on it.
    pub exit_status: Option<i32>,
    /// Error output, if it failed.
    pub message: Option<String>,
    /// Whether the tool never ran, because the fence was closed after the intent was recorded.
    pub not_run: bool,
    /// Highest attempt that, with all before it, was proved to have had no effect. The new attempt replaces them if its
    /// tool ran.
    pub supersedes: Option<Attempt>,
}
