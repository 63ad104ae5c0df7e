//! Demand of an `HTCJob` for workers of its pool, according to the ledger.
//! Statuses have the same information, but later, and others may write them.

use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::facts::{ConditionRecord, Facts, JobState, Record};
use crate::phase::Phase;

/// Reasons for which jobs are not submitted yet but will be without anyone's help.
const COMING: [Reason; 5] = [
    Reason::Submitting,
    Reason::SmallerSubmissions,
    Reason::QueryingHTCondor,
    Reason::ParallelismReached,
    Reason::PoolNotReady,
];

/// Numbers of the jobs of one `HTCJob` that matter for the number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobDemand {
    /// Jobs that wait in HTCondor.
    pub idle: usize,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that are held in HTCondor, by the operator or anyone else.
    pub held: usize,
    /// Number of jobs in `spec.queue`, if it was counted; otherwise the `HTCJob` has it.
    pub queue: Option<u32>,
    /// Jobs that have ended or will never be submitted.
    pub finished: usize,
    /// Jobs that HTCondor does not have.
    pub unsubmitted: Unsubmitted,
    /// Whether the jobs are held because of the spec or the queue.
    pub suspended: bool,
    /// Whether HTCondor has all of the jobs, or has started some.
    pub begun: bool,
    /// Whether no further job will begin.
    pub ended: bool,
}

/// Jobs that HTCondor does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsubmitted {
    /// There are none, or it is not known when they will be submitted.
    #[default]
    Blocked,
    /// They are about to be submitted.
    Imminent,
    /// This number of them is about to be submitted: they have quota in a queue.
    Granted(usize),
}

impl JobDemand {
    /// Returns the demand after a reconcile of the `HTCJob`; none if another ledger may know of more jobs.
    #[must_use]
    pub fn after_pass(facts: &Facts, record: &Record) -> Option<Self> {
        let work = Self::of(record, facts.object.spec.as_ref().ok().map(|spec| spec.queue));
        (work.ended || !facts.is_anothers(record)).then_some(work)
    }

    /// Returns the demand before the first reconcile; none if the ledger may not know the object from its beginning.
    #[must_use]
    pub fn at_start(record: &Record, queue: Option<u32>) -> Option<Self> {
        record.row.as_ref().is_some_and(|known| known.new).then(|| Self::of(record, queue))
    }

    /// Computes the demand from the record. `queue`: number of jobs in the `HTCJob`'s queue, if they were counted.
    #[must_use]
    pub fn of(record: &Record, queue: Option<u32>) -> Self {
        let mut work = Self { queue, ..Self::default() };
        for job in record.jobs.values() {
            match job.state {
                JobState::Idle => work.idle += 1,
                JobState::Running => work.running += 1,
                JobState::Held(_) => work.held += 1,
                JobState::Ended(_) => work.finished += 1,
            }
        }
        let withdrawn = record.requested_actions.withdrawn();
        work.finished += withdrawn.len();
        let Some(known) = &record.row else { return work };
        work.finished += known.given_up as usize;
        work.begun = matches!(known.phase, Phase::Submitted | Phase::Running);
        work.ended = matches!(known.phase, Phase::Completed | Phase::Terminating);
        let told = |kind| known.conditions.iter().find(|told| told.kind == kind);
        work.suspended = told(ConditionType::Suspended).is_some_and(|told| told.status == ConditionStatus::True);
        let in_queue = told(ConditionType::QuotaReserved).is_some_and(|told| !says(told, Reason::NoQueue));
        let comes = |told: &ConditionRecord| {
            told.status == ConditionStatus::True || COMING.into_iter().any(|reason| says(told, reason))
        };
        work.unsubmitted = match told(ConditionType::Submitted) {
            Some(told) if comes(told) && in_queue => {
                let open = |index| !record.jobs.contains_key(&index) && !withdrawn.contains(index);
                Unsubmitted::Granted(record.granted.iter().filter(|index| open(*index)).count())
            }
            Some(told) if comes(told) => Unsubmitted::Imminent,
            Some(_) | None => Unsubmitted::Blocked,
        };
        work
    }

    /// Returns the number of jobs that HTCondor has.
    #[must_use]
    pub const fn active(&self) -> usize {
        self.idle + self.running + self.held
    }
}

fn says(told: &ConditionRecord, reason: Reason) -> bool {
    told.reason == <&str>::from(reason)
}

#[cfg(test)]
mod tests {
    use crate::facts::{Hold, Job, ObjectRow, RunHistory};
    use crate::ids::{Attempt, Birthdate, ClusterId, Index, JobId, SchedDate, Timestamp};
    use crate::indices::Indices;
    use crate::outcome::Outcome;
    use rstest::rstest;

    use super::*;

    /// Parses conditions such as `Submitted=False:Submitting`.
    fn known(phase: Phase, conditions: &str) -> ObjectRow {
        let condition = |told: &str| {
            let (kind, told) = told.split_once('=').unwrap();
            let (status, reason) = told.split_once(':').unwrap();
            ConditionRecord {
                kind: kind.parse().unwrap(),
                status: if status == "True" { ConditionStatus::True } else { ConditionStatus::False },
                reason: reason.to_owned(),
                message: String::new(),
                since: Timestamp(0),
            }
        };
        ObjectRow {
            phase,
            conditions: conditions.split_whitespace().map(condition).collect(),
            ..ObjectRow::found(true)
        }
    }

    /// A record in which one job is idle, one runs, one is held and one has ended; two more have quota in a queue.
    fn record(phase: Phase, conditions: &str) -> Record {
        let hold = Hold { code: 1, subcode: 0, reason: String::new(), since: None };
        let states = [JobState::Idle, JobState::Running, JobState::Held(hold), JobState::Ended(Outcome::Succeeded)];
        let job = |(state, proc): (JobState, u32)| {
            let job = Job {
                id: JobId { cluster: ClusterId(1), proc },
                attempt: Attempt(1),
                birthdate: Birthdate(1),
                recorded: Timestamp(0),
                staged_in: SchedDate(0),
                started: true,
                state,
                fetched: false,
                gone: false,
                runs: RunHistory::default(),
            };
            (Index(proc), job)
        };
        let jobs = states.into_iter().zip(0..).map(job).collect();
        Record { row: Some(known(phase, conditions)), jobs, granted: Indices::first(6), ..Record::default() }
    }

    #[rstest]
    #[case::submitting("Submitted=False:Submitting", Unsubmitted::Imminent)]
    #[case::querying_htcondor("Submitted=False:QueryingHTCondor", Unsubmitted::Imminent)]
    #[case::pool_not_ready("Submitted=False:PoolNotReady", Unsubmitted::Imminent)]
    #[case::parallelism_reached("Submitted=False:ParallelismReached", Unsubmitted::Imminent)]
    #[case::accepted("Submitted=True:Accepted", Unsubmitted::Imminent)]
    #[case::staging("Submitted=False:Staging", Unsubmitted::Blocked)]
    #[case::pool_not_found("Submitted=False:PoolNotFound", Unsubmitted::Blocked)]
    #[case::namespace_limit_reached("Submitted=False:NamespaceLimitReached", Unsubmitted::Blocked)]
    #[case::waiting_for_quota("Submitted=False:Queued QuotaReserved=False:WaitingForQuota", Unsubmitted::Blocked)]
    #[case::unknown_queue("Submitted=False:Queued", Unsubmitted::Blocked)]
    #[case::quota_for_two("Submitted=False:Submitting QuotaReserved=True:QuotaReserved", Unsubmitted::Granted(2))]
    #[case::no_longer_queued("Submitted=False:Submitting QuotaReserved=True:NoQueue", Unsubmitted::Imminent)]
    #[case::no_condition("", Unsubmitted::Blocked)]
    fn unsubmitted_jobs_are_imminent_granted_or_blocked(#[case] conditions: &str, #[case] expected: Unsubmitted) {
        let work = JobDemand::of(&record(Phase::Submitted, conditions), None);
        assert_eq!(work.unsubmitted, expected);
        assert_eq!((work.idle, work.running, work.held, work.finished, work.active()), (1, 1, 1, 1, 3));
    }

    #[test]
    fn demand_distinguishes_begun_ended_and_suspended() {
        let of = |phase, conditions| {
            let work = JobDemand::of(&record(phase, conditions), None);
            (work.begun, work.ended, work.suspended)
        };
        assert_eq!(of(Phase::Pending, ""), (false, false, false));
        assert_eq!(of(Phase::Submitted, "Suspended=False:Resumed"), (true, false, false));
        assert_eq!(of(Phase::Running, "Suspended=True:Suspended"), (true, false, true));
        assert_eq!(of(Phase::Completed, ""), (false, true, false));
        assert_eq!(of(Phase::Terminating, ""), (false, true, false));
        let mut cut_short = record(Phase::Running, "");
        cut_short.row.as_mut().unwrap().given_up = 5;
        assert_eq!(JobDemand::of(&cut_short, None).finished, 6);
        assert_eq!(JobDemand::of(&Record::default(), Some(3)), JobDemand { queue: Some(3), ..JobDemand::default() });
    }
}
