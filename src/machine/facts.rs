//! What is known about one `HTCJob`: the object, the ledger's record, the request in flight, HTCondor's answers.

mod evidence;
mod job;
mod object;
mod queue;
mod record;
mod request;

use super::ids::{ScheddName, Timestamp};

pub use evidence::{Ad, Answer, Earlier, Evidence, Exit, History, JobStatus, Queue, Unknown, Why};
pub use job::{Hold, Job, JobState, Runs, WaitsFor};
pub use object::{Claim, Listed, Object, Past, Published, Spec, SpecRefused, Unreadable};
pub use queue::{QueueKind, QueueWait, Queued};
pub use record::{
    Condition, CutShort, End, ErrTail, Exceeded, Known, Omitted, Reach, Record, Refusal, Report, Submission, Witness,
};
pub use request::{Failure, InFlight, LastRequest};

/// Everything that one decision is made from.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The object, as the API server last showed it (possibly stale).
    pub object: Object,
    /// What the ledger says of it.
    pub record: Record,
    /// Whether the ledger can be trusted to know all that happened before.
    pub past: Past,
    /// The request that is queued or running for this object. Read *before* `record`: a request that has just ended
    /// is then either still here or already in the record.
    pub in_flight: Option<InFlight>,
    /// HTCondor's dated answers.
    pub evidence: Evidence,
    /// When the first question was put that the queue has not answered since its last answer; none if that is not why there is
    /// none.
    pub silent_since: Option<Timestamp>,
    /// The last question to the schedd, by any identity, had no answer a short while ago.
    pub schedd_is_silent: bool,
    /// The queue that it is in; none if it needs room in none.
    pub queue: Option<Queued>,
    /// The schedd that gave them, and that takes what is submitted now.
    pub schedd: ScheddName,
}

impl Facts {
    /// Another ledger knows what of the object HTCondor has: until the claim is ours, `record` may have less.
    #[must_use]
    pub fn is_anothers(&self, record: &Record) -> bool {
        matches!(self.past, Past::Unknown { .. })
            && record.known.as_ref().is_none_or(|known| !known.new)
            && self.object.claim != Claim::Ours
    }
}
