//! Requests: the effects that `decide` can ask for, at most one at a time for each object.

use super::ids::{JobId, RequestKey};
use super::indices::Indices;
use super::judge::{NeverAttempted, NeverSubmitted, ProvenGone, ProvenNeverAccepted};

/// One effect to carry out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Key of the request.
    pub key: RequestKey,
    /// Work to do.
    pub work: Work,
    /// Whether the request is carried out alone: it has failed before and might make others of its batch fail.
    pub alone: bool,
}

/// Work to do, with the proof that it is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// Submit these jobs.
    Submit(Indices, SubmitPermit),
    /// Remove jobs of this object.
    Remove(RemovalScope),
    /// Hold the jobs that are idle or running.
    Hold,
    /// Release the jobs that the operator holds.
    Release,
    /// Hold these jobs, if they are idle or running: users request it.
    HoldJobs(Vec<JobId>),
    /// Release these jobs, if they are held.
    ReleaseJobs(Vec<JobId>),
    /// Fetch the output of these ended jobs.
    Fetch(Indices),
    /// Let these ended jobs leave the queue: their output is fetched.
    Tidy(Indices),
    /// Remove the finalizer, so that the object can be deleted.
    ReleaseFinalizer(ReleasePermit),
    /// Delete the object: `ttlSecondsAfterFinished` has passed.
    DeleteObject,
}

/// Proof that jobs may be submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubmitPermit {
    /// They never were part of an attempt.
    First(NeverAttempted),
    /// The earlier attempts are proved to have had no job accepted.
    Again(ProvenNeverAccepted),
}

/// Why an object may be released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReleasePermit {
    /// HTCondor is proved to have none of its jobs.
    Gone(ProvenGone),
    /// Nothing was ever submitted.
    NeverSubmitted(NeverSubmitted),
    /// An administrator requested it; these jobs may be left.
    Abandoned(Vec<JobId>),
}

/// Jobs of the object to remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RemovalScope {
    /// All jobs.
    All,
    /// Jobs still in staging, and only while they are.
    Staging,
    /// Jobs that have not ended, because a limit of the spec is exceeded.
    Unfinished,
    /// Jobs that never counted: late ones and duplicates.
    Extra(Vec<JobId>),
    /// Those of these jobs that have not ended: users request it.
    Requested(Vec<JobId>),
}
