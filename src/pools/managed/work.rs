//! What an `HTCJob` in a pool has to do, by the operator's ledger. Statuses say the same, later, and others may write them.

use crate::api::{ConditionStatus, ConditionType, Phase, Reason};
use crate::machine::facts::{Condition, Facts, JobState, Record};

/// Why jobs are not all submitted that will be without anybody doing anything.
const COMING: [Reason; 5] =
    [Reason::Submitting, Reason::SmallerSubmissions, Reason::Asking, Reason::Parallelism, Reason::PoolNotReady];

/// The jobs of one `HTCJob`, as far as workers are asked for by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Wait in HTCondor.
    pub idle: usize,
    /// Run.
    pub running: usize,
    /// Are held in HTCondor, by whomever.
    pub held: usize,
    /// Jobs of its queue, as far as they were counted; else the `HTCJob` says it.
    pub queue: Option<u32>,
    /// Jobs that are over, or will never be submitted.
    pub over: usize,
    /// Those that HTCondor does not have.
    pub rest: Rest,
    /// They are held by the spec or the queue.
    pub suspended: bool,
    /// HTCondor has all of them, or has begun to run some.
    pub begun: bool,
    /// Nothing begins any more.
    pub ended: bool,
}

/// Jobs that HTCondor does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// They wait for something: it is not known when they come. Or there are none.
    #[default]
    Waits,
    /// It is about to get them.
    Comes,
    /// It is about to get so many, which have room in a queue.
    Granted(usize),
}

impl Work {
    /// As a pass over the `HTCJob` leaves it in the ledger; none if another ledger may know of more.
    #[must_use]
    pub fn known(facts: &Facts, record: &Record) -> Option<Self> {
        let work = Self::of(record, facts.object.spec.as_ref().ok().map(|spec| spec.queue));
        (work.ended || !facts.is_anothers(record)).then_some(work)
    }

    /// As the ledger has it before the first pass; none of what the ledger may not know from its beginning.
    #[must_use]
    pub fn at_start(record: &Record, queue: Option<u32>) -> Option<Self> {
        record.known.as_ref().is_some_and(|known| known.new).then(|| Self::of(record, queue))
    }

    /// By what the ledger has. `queue`: how many jobs the `HTCJob`'s queue has, if they were counted.
    #[must_use]
    pub fn of(record: &Record, queue: Option<u32>) -> Self {
        let mut work = Self { queue, ..Self::default() };
        for job in record.jobs.values() {
            match job.state {
                JobState::Idle => work.idle += 1,
                JobState::Running => work.running += 1,
                JobState::Held(_) => work.held += 1,
                JobState::Ended(_) => work.over += 1,
            }
        }
        let withdrawn = record.wishes.withdrawn();
        work.over += withdrawn.len();
        let Some(known) = &record.known else { return work };
        work.over += known.given_up as usize;
        work.begun = matches!(known.phase, Phase::Submitted | Phase::Running);
        work.ended = matches!(known.phase, Phase::Completed | Phase::Terminating);
        let told = |kind| known.conditions.iter().find(|told| told.kind == kind);
        work.suspended = told(ConditionType::Suspended).is_some_and(|told| told.status == ConditionStatus::True);
        let in_queue = told(ConditionType::QuotaReserved).is_some_and(|told| !says(told, Reason::NoQueue));
        let comes = |told: &Condition| {
            told.status == ConditionStatus::True || COMING.into_iter().any(|reason| says(told, reason))
        };
        work.rest = match told(ConditionType::Submitted) {
            Some(told) if comes(told) && in_queue => {
                let open = |index| !record.jobs.contains_key(&index) && !withdrawn.contains(index);
                Rest::Granted(record.granted.iter().filter(|index| open(*index)).count())
            }
            Some(told) if comes(told) => Rest::Comes,
            Some(_) | None => Rest::Waits,
        };
        work
    }

    /// Jobs that HTCondor has.
    #[must_use]
    pub const fn active(&self) -> usize {
        self.idle + self.running + self.held
    }
}

fn says(told: &Condition, reason: Reason) -> bool {
    told.reason == <&str>::from(reason)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::machine::Indices;
    use crate::machine::facts::{Hold, Job, Known, Runs};
    use crate::machine::ids::{Attempt, Birthdate, ClusterId, Index, JobId, SchedDate, Timestamp};
    use crate::machine::outcome::Outcome;

    /// Conditions such as `Submitted=False:Submitting`.
    fn known(phase: Phase, conditions: &str) -> Known {
        let condition = |told: &str| {
            let (kind, told) = told.split_once('=').unwrap();
            let (status, reason) = told.split_once(':').unwrap();
            Condition {
                kind: kind.parse().unwrap(),
                status: if status == "True" { ConditionStatus::True } else { ConditionStatus::False },
                reason: reason.to_owned(),
                message: String::new(),
                since: Timestamp(0),
            }
        };
        Known {
            phase,
            new: true,
            started: None,
            completed: None,
            cut_short: None,
            given_up: 0,
            released: false,
            queue: None,
            conditions: conditions.split_whitespace().map(condition).collect(),
        }
    }

    /// One job is idle, one runs, one is held and one has ended; two more have room in a queue.
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
                runs: Runs::default(),
            };
            (Index(proc), job)
        };
        let jobs = states.into_iter().zip(0..).map(job).collect();
        Record { known: Some(known(phase, conditions)), jobs, granted: Indices::first(6), ..Record::default() }
    }

    #[rstest]
    #[case::on_its_way("Submitted=False:Submitting", Rest::Comes)]
    #[case::not_known_to_be_there("Submitted=False:Asking", Rest::Comes)]
    #[case::the_pool_begins("Submitted=False:PoolNotReady", Rest::Comes)]
    #[case::some_at_a_time("Submitted=False:Parallelism", Rest::Comes)]
    #[case::all_are_there("Submitted=True:Accepted", Rest::Comes)]
    #[case::its_files_do_not_come("Submitted=False:Staging", Rest::Waits)]
    #[case::it_may_not_use_the_pool("Submitted=False:PoolNotFound", Rest::Waits)]
    #[case::the_namespace_has_enough("Submitted=False:NamespaceLimit", Rest::Waits)]
    #[case::without_room("Submitted=False:Queued QuotaReserved=False:WaitingForQuota", Rest::Waits)]
    #[case::not_known_of_its_queue("Submitted=False:Queued", Rest::Waits)]
    #[case::with_room_for_two("Submitted=False:Submitting QuotaReserved=True:QuotaReserved", Rest::Granted(2))]
    #[case::in_no_queue_any_more("Submitted=False:Submitting QuotaReserved=True:NoQueue", Rest::Comes)]
    #[case::nothing_is_said("", Rest::Waits)]
    fn what_htcondor_does_not_have_may_be_about_to_come(#[case] conditions: &str, #[case] expected: Rest) {
        let work = Work::of(&record(Phase::Submitted, conditions), None);
        assert_eq!(work.rest, expected);
        assert_eq!((work.idle, work.running, work.held, work.over, work.active()), (1, 1, 1, 1, 3));
    }

    #[test]
    fn what_has_begun_and_what_is_over() {
        let of = |phase, conditions| {
            let work = Work::of(&record(phase, conditions), None);
            (work.begun, work.ended, work.suspended)
        };
        assert_eq!(of(Phase::Pending, ""), (false, false, false));
        assert_eq!(of(Phase::Submitted, "Suspended=False:Resumed"), (true, false, false));
        assert_eq!(of(Phase::Running, "Suspended=True:Suspended"), (true, false, true));
        assert_eq!(of(Phase::Completed, ""), (false, true, false));
        assert_eq!(of(Phase::Terminating, ""), (false, true, false));
        let mut cut_short = record(Phase::Running, "");
        cut_short.known.as_mut().unwrap().given_up = 5;
        assert_eq!(Work::of(&cut_short, None).over, 6);
        assert_eq!(Work::of(&Record::default(), Some(3)), Work { queue: Some(3), ..Work::default() });
    }
}
