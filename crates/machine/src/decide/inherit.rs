//! HTCJobs of the Go operator: the record of an adopted job, and the conditions before the adoption.

use super::{Decider, IDS_IN_MESSAGE, absorb};
use crate::annotations::{ABANDON_ANNOTATION, SUBMIT_AGAIN_ANNOTATION};
use crate::facts::{Ad, Job, JobState, ObjectRow, Record, Spec};
use crate::ids::{Attempt, Birthdate, JobId, RequestKind, SchedDate, Timestamp, id_ranges};
use crate::inherited::InheritedJob;
use crate::judge::{AdSource, Doubt};
use crate::outcome::Outcome;
use crate::request::Work;
use crate::status::{Counts, jobs_text};
use crate::transitions::{Notice, Transition, Trigger};

/// Returns the row of an adopted job. `seen`: its ad in HTCondor, and where.
/// The Go operator's outcome of an ended job is kept: in HTCondor all its jobs end with 0. The state of the others is
/// HTCondor's.
#[must_use]
pub fn adopted_job(
    inherited: &InheritedJob,
    seen: Option<(&Ad, AdSource)>,
    birthdate: Birthdate,
    created: SchedDate,
    now: Timestamp,
) -> Job {
    let ad = seen.map(|(ad, _)| ad);
    let left = seen.is_some_and(|(_, place)| place == AdSource::History);
    let state = match (&inherited.outcome, ad) {
        (Some(outcome), _) => JobState::Ended(outcome.clone()),
        (None, Some(ad)) => absorb::state_of(ad),
        (None, None) => JobState::Idle,
    };
    let ended = matches!(state, JobState::Ended(_));
    Job {
        id: inherited.id,
        attempt: Attempt::INHERITED,
        birthdate,
        recorded: now,
        staged_in: ad.and_then(|ad| ad.staged_in).unwrap_or(created),
        started: inherited.outcome.is_some() || ad.is_some_and(|ad| ad.started),
        state,
        fetched: inherited.fetched || (left && ad.is_some_and(|ad| ad.staged_out.is_some())),
        gone: left && ended,
        runs: ad.map(|ad| ad.runs.clone()).unwrap_or_default(),
    }
}

/// Returns the row and the journal of an object whose jobs are adopted and in `record`. The next decision moves it to
/// its phase.
#[must_use]
pub fn adoption(record: &Record, new_jobs: usize) -> (ObjectRow, Vec<Transition>) {
    let known = record.row.clone().unwrap_or_else(|| ObjectRow::found(false));
    let counts = Counts::of(record);
    let told = |from, trigger, reason: String, detail| Transition {
        from,
        to: Some(known.phase),
        trigger,
        reason,
        detail,
        warning: false,
        active: counts.active,
        succeeded: counts.succeeded,
        failed: counts.failed,
    };
    let mut transitions = Vec::new();
    if record.row.is_none() {
        let detail = "the HTCJob of the Go operator is recorded".to_owned();
        transitions.push(told(None, Trigger::Guarded, Trigger::Guarded.to_string(), detail));
    }
    if new_jobs > 0 {
        let mut ids: Vec<JobId> = record.jobs.values().map(|job| job.id).collect();
        ids.sort_unstable();
        let mut detail =
            format!("{} that the Go operator submitted: {}", jobs_text(new_jobs), id_ranges(&ids, IDS_IN_MESSAGE));
        if counts.active > 0 {
            detail.push_str(
                "; HTCondor reports exit code 0 for all jobs of the Go operator, even failed ones: check their output",
            );
        }
        transitions.push(told(Some(known.phase), Trigger::ConditionChanged, Notice::Adopted.to_string(), detail));
    }
    (known, transitions)
}

impl Decider<'_> {
    /// Waits for the adoption. Nothing else is done with the object, unless a person states that it has no jobs.
    pub(super) fn wait_for_adoption(&mut self, doubt: &Doubt) {
        let (reason, message) = self.resolve_doubt(doubt);
        self.set_not_submitted(reason, &message);
        if self.facts.object.submit_again && !self.facts.object.published.shows_jobs() {
            self.request(RequestKind::AttachFinalizer, Work::AttachFinalizer);
        }
    }

    /// Returns a message that says what to do about an object whose jobs are not adopted.
    pub(super) fn not_adopted(&self) -> String {
        let adopt = "the Go operator had this HTCJob, and its jobs are not adopted: stop the operator and run `htc-operator adopt`";
        if self.facts.object.deleting {
            format!(
                "{adopt}; or look for its jobs in HTCondor (JOB_NAME is in their Environment), remove them, and annotate the HTCJob with {ABANDON_ANNOTATION}=true"
            )
        } else if self.facts.object.published.shows_jobs() {
            format!("{adopt}; nothing is submitted again")
        } else {
            format!(
                "{adopt}; nothing is submitted again; annotate it with {SUBMIT_AGAIN_ANNOTATION}=true if you know that its jobs never ran, or delete it"
            )
        }
    }

    /// Returns how many jobs the object is to have. If the Go operator submitted them, it is as many as there are.
    pub(super) fn asked_for(&self) -> usize {
        if self.record.has_inherited() {
            return self.record.jobs.len();
        }
        self.facts.object.spec.as_ref().map_or(usize::MAX, Spec::count)
    }

    /// Whether the Go operator reported this outcome, so that HTCondor's answer about it does not count.
    pub(super) fn told_before(job: &Job) -> bool {
        job.attempt == Attempt::INHERITED && matches!(job.outcome(), Some(Outcome::Succeeded | Outcome::FailedBefore))
    }
}
