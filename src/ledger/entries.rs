//! What the controller and the workers have to say to the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{Identity, ObjectName};
use crate::machine::facts::{Failure, Job, Known, Submission, Witness};
use crate::machine::ids::{Attempt, Index, JobId, RequestKey, ScheddName, Timestamp, Uid};
use crate::machine::indices::Indices;
use crate::machine::inherited::InheritedJob;
use crate::machine::judge::SubmitterLock;
use crate::machine::transitions::Transition;
use crate::machine::wishes::Change;

/// A decision, to be written in one transaction.
pub(crate) struct Save {
    pub(crate) uid: Uid,
    pub(crate) name: ObjectName,
    /// Its `HTCPool`, which stays what it was first; none for the pool of the operator's flags.
    pub(crate) pool: Option<ObjectName>,
    pub(crate) known: Known,
    pub(crate) jobs: Vec<(Index, Job)>,
    /// The attempts up to this one need not be read again.
    pub(crate) settled: Option<Attempt>,
    /// Of the attempts up to this one, all jobs that are not recorded are proved never to have been accepted.
    pub(crate) absent: Option<Attempt>,
    /// What has become of wishes about single jobs.
    pub(crate) wishes: Vec<Change>,
    pub(crate) schedd: ScheddName,
    /// The folder the jobs were submitted from (`tempDir`).
    pub(crate) sandbox: String,
    pub(crate) transitions: Vec<Transition>,
    /// Jobs of the object that the Go operator submitted.
    pub(crate) inherited: Arc<[InheritedJob]>,
    /// Jobs whose reported end HTCondor contradicts.
    pub(crate) refuted: Vec<JobId>,
    /// Jobs that give back their room in the queue.
    pub(crate) gives_back: Indices,
    pub(crate) now: Timestamp,
}

/// Room in a queue for jobs of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The object.
    pub uid: Uid,
    /// The queue.
    pub queue: String,
    /// The jobs.
    pub indices: Indices,
    /// Its number: later grants have higher ones.
    pub number: u64,
    /// What each of the jobs uses, as the queue has written it; empty if that is not known.
    pub each: String,
}

/// That a request is taken up; for a submission, also what is to be submitted.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The request.
    pub key: RequestKey,
    /// When.
    pub at: Timestamp,
    /// For a submission.
    pub submission: Option<Noted>,
}

/// A submission, and what was noted before it.
#[derive(Clone, Debug)]
pub struct Noted {
    /// What is to be submitted.
    pub submission: Submission,
    /// What history had before.
    pub witness: Witness,
    /// Who we are to the schedd: `User` of the jobs.
    pub user: String,
    /// In whose name it is done.
    pub identity: Identity,
    /// What its submitter will hold for as long as it lives.
    pub lock: Option<SubmitterLock>,
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct RequestResult {
    /// The request.
    pub key: RequestKey,
    /// When its tool had ended.
    pub at: Timestamp,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Jobs whose output was fetched.
    pub fetched: Indices,
    /// How many bytes the output of each of them has.
    pub sizes: BTreeMap<Index, u64>,
    /// Jobs whose output is not kept, and why.
    pub refused: Vec<(Index, String)>,
    /// What of the output of fetched jobs did not come back, in `job.sh`'s words.
    pub omitted: BTreeMap<Index, String>,
}

impl RequestResult {
    /// That of a request which brought no output.
    #[must_use]
    pub fn without_output(key: RequestKey, at: Timestamp, failure: Option<Failure>) -> Self {
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

/// How a submitter ended.
#[derive(Clone, Debug)]
pub struct SubmitResult {
    /// The request.
    pub key: RequestKey,
    /// When it ended, or was given up.
    pub at: Timestamp,
    /// When its whole process group was seen to be dead; none if that was not seen.
    pub dead_since: Option<Timestamp>,
    /// Its exit status, if it had one. It decides nothing.
    pub exit_status: Option<i32>,
    /// What it said, if it failed.
    pub message: Option<String>,
    /// The fence was refused after the intent: the tool never ran.
    pub not_run: bool,
    /// Attempts up to this one were proved to have come to nothing; this one takes their place, if its tool ran.
    pub supersedes: Option<Attempt>,
}
