//! Facts about one `HTCJob`: the object, the ledger's record, the request in flight, HTCondor's answers.

mod evidence;
mod job;
mod node_faults;
mod object;
mod queue;
mod record;
mod request;

use super::ids::{ScheddName, Timestamp};

pub use evidence::{
    Ad, Answer, EarlierAnswer, Evidence, Exit, History, JobStatus, QueryError, QueryErrorKind, QueueAnswer,
};
pub use job::{Hold, Job, JobState, RunHistory, WaitsFor};
pub use node_faults::{NoNodeFaults, NodeFaults};
pub use object::{Claim, Listed, Object, Past, Published, Spec, SpecRefused, Unreadable};
pub(crate) use queue::suspension_cause;
pub use queue::{QueueFacts, QueueKind, QueueWait};
pub use record::{
    ConditionRecord, CutShort, ErrTail, Exceeded, HistoryReach, ObjectRow, OmittedOutput, OutputRefusal, Record,
    Report, ReportedEnd, Submission, Witness,
};
pub use request::{InFlight, LastRequest, RequestFailure};

/// All input of one decision.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The object as last read from the API server; possibly stale.
    pub object: Object,
    /// The ledger's record of the object.
    pub record: Record,
    /// Whether the ledger is known to have recorded everything that happened before.
    pub past: Past,
    /// Request that is queued or running for this object. Must be read *before* `record`: then a request that has just
    /// ended is either still here or already in the record.
    pub in_flight: Option<InFlight>,
    /// HTCondor's dated answers.
    pub evidence: Evidence,
    /// When the first query was sent that the queue has not answered since its last answer.
    /// None if the lack of an answer has another reason.
    pub silent_since: Option<Timestamp>,
    /// True if the schedd did not answer its last query, by any identity, a short while ago.
    pub schedd_is_silent: bool,
    /// Queue that the object is in; none if it needs no quota.
    pub queue: Option<QueueFacts>,
    /// Schedd that gave the answers, and to which jobs are submitted now.
    pub schedd: ScheddName,
}

impl Facts {
    /// Whether another ledger may know more about the object's jobs in HTCondor than `record`: until the claim is ours,
    /// `record` may lack some.
    #[must_use]
    pub fn is_anothers(&self, record: &Record) -> bool {
        matches!(self.past, Past::Unknown { .. })
            && record.row.as_ref().is_none_or(|known| !known.new)
            && self.object.claim != Claim::Ours
    }
}
