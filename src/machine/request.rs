//! Requests: the effects that `decide` can ask for, at most one at a time for each object.

use std::sync::Arc;

use super::ids::{JobId, RequestKey};
use super::indices::Indices;
use super::inherited::InheritedJob;
use super::judge::{NeverAttempted, NeverSubmitted, ProvenGone, ProvenNeverAccepted};

/// One effect to be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Its name.
    pub key: RequestKey,
    /// The work itself.
    pub work: Work,
    /// It has failed before and goes alone, so that it spoils nobody else's.
    pub alone: bool,
}

/// What is to be done, with the proof that it may be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// Submit these jobs.
    Submit(Indices, SubmitPermit),
    /// Write this operator's attributes into the ads of these jobs of the Go operator.
    Adopt(Arc<[InheritedJob]>),
    /// Remove jobs of this object.
    Remove(Scope),
    /// Hold the jobs that are idle or running.
    Hold,
    /// Release the jobs that the operator holds.
    Release,
    /// Hold these jobs, if they are idle or running: users ask for it.
    HoldJobs(Vec<JobId>),
    /// Release these jobs, if they are held.
    ReleaseJobs(Vec<JobId>),
    /// Bring back the output of these ended jobs.
    Fetch(Indices),
    /// Let these ended jobs, whose output is here, leave the queue.
    Tidy(Indices),
    /// Let the object go.
    ReleaseFinalizer(ReleasePermit),
    /// Delete the object: `ttlSecondsAfterFinished` has passed.
    DeleteObject,
}

/// Why jobs may be submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubmitPermit {
    /// They never were part of an attempt.
    First(NeverAttempted),
    /// The earlier attempts are proved to have come to nothing.
    Again(ProvenNeverAccepted),
}

/// Why an object may go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReleasePermit {
    /// HTCondor is proved to have none of its jobs.
    Gone(ProvenGone),
    /// Nothing was ever submitted.
    NeverSubmitted(NeverSubmitted),
    /// An admin said so; these jobs may be left.
    Abandoned(Vec<JobId>),
}

/// Which jobs of the object to remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All.
    All,
    /// Those still in staging, and only as long as they are.
    Staging,
    /// Those that have not ended, because of the deadline.
    Unfinished,
    /// Jobs that never counted: late ones and duplicates.
    Extra(Vec<JobId>),
    /// Those of these that have not ended: users ask for it.
    Wished(Vec<JobId>),
}
