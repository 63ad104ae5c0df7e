//! The decision: takes the facts; returns the new record, at most one request, and when to reconcile again.

mod absorb;
mod actions;
mod deadline;
mod doubts;
pub(crate) mod draft;
mod hints;
mod inherit;
mod live;
mod node_faults;
mod other_schedd;
mod output;
mod queue;
mod quota;
mod retention;
mod submit;
mod terminate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::facts::{
    Answer, Claim, Facts, HistoryReach, InFlight, Job, ObjectRow, Past, QueueFacts, Record, RequestFailure, Spec,
    Unreadable,
};
use super::ids::{Attempt, Index, JobId, RequestKey, RequestKind, Timestamp};
use super::indices::Indices;
use super::judge::{self, Sightings};
use super::request::{RemovalScope, Request, Work};
use super::rules::{Rules, Settings};
use super::status::Counts;
use super::transitions::{IllegalTransition, Transition};
use crate::actions::ActionUpdate;
use crate::condition::{ConditionStatus, ConditionType, Reason};
use absorb::Absorbed;
use draft::{DecisionDraft, DecisionFacts};
pub use inherit::adopted_job;
pub use inherit::adoption;

/// Result of one decision about an HTCJob. Each backend has its own record, actions and details; those of HTCondor are
/// the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<R = Record, A = Action, D = CondorDetails> {
    /// Record after this decision. None if the object is not managed by this operator yet, or not any more.
    pub after: Option<R>,
    /// Indices of the jobs whose rows in the ledger change.
    pub changed: BTreeSet<Index>,
    /// Rows for the journal, written in the same transaction as the record.
    pub transitions: Vec<Transition>,
    /// Action to take once the record is committed: at most one.
    pub action: A,
    /// Time after which to reconcile again even if nothing happens.
    pub requeue_after: Option<Duration>,
    /// Results that only this backend has.
    pub details: D,
}

impl<R, A, D: Default> Decision<R, A, D> {
    /// Returns the decision about an object that is not managed by this operator yet.
    pub(crate) fn without_record(action: A) -> Self {
        let (changed, transitions, details) = (BTreeSet::new(), Vec::new(), D::default());
        Self { after: None, changed, transitions, action, requeue_after: None, details }
    }
}

/// Results of a decision that only HTCondor's jobs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CondorDetails {
    /// Attempts up to this one are settled and need not be read from the ledger again.
    pub settled: Option<Attempt>,
    /// Highest attempt of a proof: jobs of attempts up to this one that are not recorded were never accepted by
    /// HTCondor.
    pub absent: Option<Attempt>,
    /// New states of the actions on single jobs that users requested.
    pub action_updates: Vec<ActionUpdate>,
    /// Jobs whose own report of their end HTCondor contradicts. The reports no longer count.
    pub refuted: Vec<JobId>,
    /// What to ask HTCondor.
    pub polling: Polling,
    /// True if the object has jobs to submit and its namespace has reached its limit.
    pub namespace_is_full: bool,
    /// Jobs that would be submitted or released now if the queue granted them quota. All other limits already apply.
    /// Empty without a queue.
    pub quota_requests: Indices,
    /// When the last try to submit failed; none once HTCondor has accepted jobs since. The object's
    /// place in the queue counts from then.
    pub failed_at: Option<Timestamp>,
}

/// Maximum number of jobs in one request that is not a submission.
const AT_ONCE: usize = 2000;

/// Maximum number of bytes of ids, or of indexes, in one message.
const IDS_IN_MESSAGE: usize = 512;

/// Reasons of `Submitted` False that the next try to submit may resolve.
const FAILED_TRIES: &[Reason] = &[
    Reason::SubmitRefused,
    Reason::ScheddUnreachable,
    Reason::ToolFailed,
    Reason::CredentialsRefused,
    Reason::CredentialsFailed,
    Reason::CannotWriteFiles,
    Reason::AnswerIncomplete,
];

/// Reasons of `Submitted` False that history causes, and may cause again with the next answer.
const WAITS_FOR_A_PERSON: &[Reason] = &[Reason::HistoryTooShort, Reason::QueueLost, Reason::JobsLost];

/// Reasons of `Submitted` False for which jobs wait until other jobs have ended.
const KEEPS_BACK: &[Reason] = &[Reason::NamespaceLimitReached, Reason::ParallelismReached, Reason::Queued];

/// Failures that are not the fault of one HTCJob. After them its requests may still share a batch with others.
/// A fetch is the exception: it may fail for one of these reasons because of what one HTCJob's jobs have left.
const SHARED_FAILURES: &[Reason] = &[
    Reason::ScheddUnreachable,
    Reason::ToolFailed,
    Reason::CredentialsRefused,
    Reason::CredentialsFailed,
    Reason::AnswerIncomplete,
    Reason::AnotherSchedd,
    Reason::OperatorStopping,
];

/// The request of a decision: at most one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// Do nothing, or nothing is allowed now.
    #[default]
    Nothing,
    /// Carry out this request.
    Dispatch(Request),
    /// Cancel this request unless a worker has taken it up.
    Cancel(RequestKey),
}

/// What to ask HTCondor about an object, and which answers trigger a reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Polling {
    /// Ask nothing: no answer can change the object.
    #[default]
    Off,
    /// Ask at the usual interval; reconcile when the object's ads change.
    OnChange,
    /// Like `OnChange`, and ask soon about attempts from this one on: HTCondor is accepting their jobs.
    Accepting(Attempt),
    /// Ask, and reconcile after each answer.
    Always {
        /// Ask history too, and whether it reaches back this far.
        history: Option<HistoryReach>,
        /// Ask soon instead of at the usual interval.
        urgent: bool,
    },
}

impl Polling {
    fn raise(&mut self, other: Self) {
        *self = match (std::mem::take(self), other) {
            (Self::Always { history: a, urgent: s }, Self::Always { history: b, urgent: t }) => {
                Self::Always { history: a.or(b), urgent: s || t }
            }
            (every @ Self::Always { .. }, _) | (_, every @ Self::Always { .. }) => every,
            (Self::Accepting(a), Self::Accepting(b)) => Self::Accepting(a.min(b)),
            (accepting @ Self::Accepting(_), _) | (_, accepting @ Self::Accepting(_)) => accepting,
            (Self::OnChange, _) | (_, Self::OnChange) => Self::OnChange,
            (Self::Off, Self::Off) => Self::Off,
        };
    }
}

/// Decides what to do about one object. Total: every combination of facts has a decision. The steps, in their order:
///
/// 1. Attach the finalizer to an object without a row: nothing else is done before a deletion waits for the jobs.
/// 2. Wait for the operator of another schedd that has the jobs. Before 3: this schedd's answers say nothing about them.
/// 3. Record HTCondor's answers, then the reports of the jobs: an answer takes precedence over an earlier report.
/// 4. Make the transitions of the phase that follow from 3. Before 5: jobs that have ended are in the journal of an
///    object that is being deleted.
/// 5. Remove the jobs of an object that is being deleted. Before 6 and 7: each object can be deleted.
/// 6. Wait for the adoption of an object of the Go operator. Before 8: it may have jobs that are not known.
/// 7. Wait for the deletion of an object that came back after it. Before 8: its jobs are not to run again.
/// 8. Take the next step of any other object.
///
/// # Errors
///
/// Fails if the decision would make a transition that is not in the table, which is a defect of this program.
/// No part of such a decision may be carried out.
pub fn decide(
    facts: &Facts,
    now: Timestamp,
    settings: &Settings,
    rules: &Rules,
) -> Result<Decision, IllegalTransition> {
    // 1.
    let Some(mut draft) = Decider::begin(facts, now, settings, rules, Decider::first_row(facts, rules)) else {
        return Ok(not_ours_yet(facts));
    };
    // 2.
    if let Some(other) = judge::elsewhere(&facts.object, &facts.record, &facts.schedd, rules) {
        // Reports of the jobs themselves do not come from a schedd: they count whichever schedd answers.
        draft.apply_reports(&Sightings::default());
        draft.wait_for_other_schedd(other);
        return draft.finish();
    }
    let sightings = Sightings::new(&facts.evidence, rules); // 3.
    let Absorbed { ran_again, doubt } = draft.absorb(&sightings);
    draft.apply_reports(&sightings);
    draft.advance(ran_again); // 4.
    if facts.object.deleting {
        draft.terminate(); // 5.
    } else if let Err(doubt) = judge::adopted(&facts.object, rules) {
        draft.wait_for_adoption(&doubt); // 6.
    } else if draft.came_back() {
        draft.wait_for_deletion(); // 7.
    } else {
        draft.live(&sightings, doubt); // 8.
    }
    draft.finish()
}

/// Attaches the finalizer to an object that has no row and no finalizer yet, unless it is being deleted.
fn not_ours_yet(facts: &Facts) -> Decision {
    let uid = facts.object.uid.clone();
    let attach = Request {
        key: RequestKey { uid, kind: RequestKind::AttachFinalizer, attempt: Attempt(0), step: 1 },
        work: Work::AttachFinalizer,
        alone: false,
    };
    let action = if facts.object.deleting { Action::Nothing } else { Action::Dispatch(attach) };
    Decision::without_record(action)
}

/// Draft of a decision about jobs in HTCondor.
type Decider<'a> = DecisionDraft<'a, Facts>;

impl DecisionFacts for Facts {
    type Record = Record;
    type Job = Job;
    type Action = Action;
    type Details = CondorDetails;

    const QUOTA_WARNINGS: &'static [Reason] = &[
        Reason::ExceedsMaxQuota,
        Reason::Misconfigured,
        Reason::QueueNotFound,
        Reason::QueueNotAllowed,
        Reason::Inadmissible,
    ];

    fn recorded_message(&self) -> String {
        format!("recorded; will be submitted to schedd {}", self.schedd)
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn spec(&self) -> Result<&Spec, &Unreadable> {
        self.object.spec.as_ref()
    }

    fn queue(&self) -> Option<&QueueFacts> {
        self.queue.as_ref()
    }

    fn row(record: &mut Record) -> &mut Option<ObjectRow> {
        &mut record.row
    }

    fn jobs(record: &Record) -> &BTreeMap<Index, Job> {
        &record.jobs
    }

    fn counts(record: &Record) -> Counts {
        Counts::of(record)
    }

    fn keeps_reason(record: &Record, old: Reason, new: Reason) -> bool {
        let is_one_of = |reasons: &[Reason]| reasons.contains(&old);
        let has_jobs = !record.jobs.is_empty();
        let others_wait = is_one_of(KEEPS_BACK) && has_jobs;
        match new {
            Reason::QueryingHTCondor => is_one_of(FAILED_TRIES) || is_one_of(WAITS_FOR_A_PERSON) || others_wait,
            // The jobs are submitted in parts, and the rest waits again after each part.
            Reason::Submitting | Reason::SmallerSubmissions => is_one_of(FAILED_TRIES) || is_one_of(KEEPS_BACK),
            // Only some of the jobs are in, after others: the schedd accepts no more at a time.
            Reason::Staging | Reason::JobsPresent => (is_one_of(&[Reason::SubmitRefused]) && has_jobs) || others_wait,
            _ => false,
        }
    }

    fn complete_details(&self, after: &Record, rules: &Rules, details: &mut CondorDetails) {
        details.settled = judge::settled_for_good(after, rules);
        details.action_updates = after.requested_actions.changes(&self.record.requested_actions);
    }
}

impl Decider<'_> {
    /// Returns the first row of the object; none while the finalizer is missing.
    fn first_row(facts: &Facts, rules: &Rules) -> Option<ObjectRow> {
        let object = &facts.object;
        let is_guarded = object.finalizer || object.unadopted || !rules.finalizer_first;
        let new = (object.claim == Claim::Ours || !rules.finalizer_first)
            && facts.past == Past::Continuous
            && !object.unadopted
            && !object.published.shows_jobs();
        is_guarded.then(|| ObjectRow::found(new))
    }

    /// Sets a condition to False with the failure of the last request.
    fn set_failure_condition(&mut self, kind: ConditionType, failure: &RequestFailure) {
        self.conditions.set(kind, ConditionStatus::False, &failure.reason, &failure.message, self.now);
    }

    /// Whether no request is queued or running, so that a new one may be made.
    fn can_request(&self) -> bool {
        self.facts.in_flight.is_none() || !self.rules.one_request
    }

    fn in_flight(&self, kind: RequestKind) -> Option<&InFlight> {
        self.facts.in_flight.as_ref().filter(|request| request.key.kind == kind)
    }

    /// Cancels a request of this kind unless a worker has taken it up.
    fn cancel_queued(&mut self, kind: RequestKind) {
        if let Some(request) = self.in_flight(kind).filter(|request| !request.running) {
            self.action = Action::Cancel(request.key.clone());
        }
    }

    /// Sets the request of this decision, unless there is one already or one is in flight.
    /// Cancels a fetch that is still queued (failed fetches of all HTCJobs share one queue): it is requested again
    /// later.
    /// Removal, hold and release also cancel a running transfer, which may take an hour.
    fn request(&mut self, kind: RequestKind, work: Work) {
        if self.action != Action::Nothing {
            return;
        }
        if !self.can_request() {
            let urgent = match work {
                Work::Remove(scope) => !matches!(scope, RemovalScope::Extra(_)),
                Work::Hold | Work::HoldJobs(_) | Work::Release | Work::ReleaseJobs(_) => true,
                _ => false,
            };
            let in_the_way = |fetch: &&InFlight| {
                kind != RequestKind::Fetch && (!fetch.running || urgent) && fetch.can_be_cancelled(self.rules)
            };
            if let Some(key) = self.in_flight(RequestKind::Fetch).filter(in_the_way).map(|fetch| fetch.key.clone()) {
                self.action = Action::Cancel(key);
            }
            return;
        }
        let is_submit = kind == RequestKind::Submit;
        let attempt = if is_submit { Attempt(self.highest().0.saturating_add(1)) } else { self.record.highest };
        let last = self.record.requests.get(&kind);
        let at_fault = |failure: &RequestFailure| {
            failure.known_reason().is_none_or(|reason| {
                // With these reasons no transfer began, or one was stopped in favour of another request.
                let not_begun = matches!(
                    reason,
                    Reason::OutputVolumeFull
                        | Reason::NamespaceLimitReached
                        | Reason::CredentialsFailed
                        | Reason::OperatorStopping
                );
                !not_begun && (kind == RequestKind::Fetch || !SHARED_FAILURES.contains(&reason))
            })
        };
        let alone = last.is_some_and(|last| last.failures > 0 && last.failure.as_ref().is_none_or(at_fault));
        let step = last.map_or(0, |last| last.step) + 1;
        let key = RequestKey { uid: self.facts.object.uid.clone(), kind, attempt, step };
        self.action = Action::Dispatch(Request { key, work, alone });
    }

    /// Returns the highest attempt that the ledger, the status or an ad shows.
    fn highest(&self) -> Attempt {
        let evidence = &self.facts.evidence;
        let history = match &evidence.history {
            Answer::Known(history) => history.ads.as_ref(),
            Answer::Unknown(_) => &[],
        };
        let seen = evidence.queued().iter().chain(history).map(|ad| ad.attempt);
        seen.chain([self.record.highest, Attempt(self.facts.object.published.attempt)]).max().unwrap_or_default()
    }

    /// Like [`Self::request`], but waits for the back-off after failures of this kind.
    fn request_with_backoff(&mut self, kind: RequestKind, work: Work) {
        let wait = self.record.requests.get(&kind).map_or(Duration::ZERO, |last| {
            last.latest().min(self.now).plus(self.settings.backoff(last.failures)).since(self.now)
        });
        if wait.is_zero() {
            self.request(kind, work);
        } else {
            self.requeue_within(wait);
        }
    }

    /// Asks HTCondor again: soon for a while after `event`, then at the usual interval.
    fn poll_after(&mut self, event: Timestamp) {
        let soon = self.now.since(event) < self.settings.eager;
        self.details.polling.raise(Polling::Always { history: None, urgent: soon });
    }

    /// Asks HTCondor again soon while a step that was begun is not complete. The tracker slows down what takes long.
    fn poll_urgently(&mut self) {
        self.details.polling.raise(Polling::Always { history: None, urgent: true });
    }
}
