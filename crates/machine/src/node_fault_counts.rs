//! Faults of nodes of all jobs of one object.

use std::collections::BTreeMap;

use crate::facts::{Job, Record};
use crate::ids::SchedDate;
use crate::outcome::Outcome;
use crate::payload_failure::{JobShEnd, PayloadFailure};

/// Runs that ended by faults of their nodes, of all jobs of one object. They are no failures of the jobs, except the
/// last one of a job that HTCondor does not run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFaultCounts {
    /// Number of runs.
    pub runs: usize,
    /// Number of jobs that had such runs.
    pub jobs: usize,
    /// Machine of most of these runs.
    pub most_often: String,
    /// Machine of the last of them.
    pub last_machine: String,
    /// End of the last of them.
    pub last: SchedDate,
    /// Failure at its end.
    pub cause: Option<PayloadFailure>,
}

impl NodeFaultCounts {
    /// Counts the runs of the jobs in `record`. None if there is no such run.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        Self::of_jobs(record.jobs.values())
    }

    /// Counts the runs of these jobs. None if there is no such run.
    #[must_use]
    pub fn of_jobs<'a>(all: impl Iterator<Item = &'a Job>) -> Option<Self> {
        let mut machines: BTreeMap<&str, usize> = BTreeMap::new();
        let mut jobs = 0;
        let mut last: Option<(SchedDate, &str, Option<PayloadFailure>)> = None;
        for job in all {
            let faults = job.runs.faults.as_deref();
            let end = last_fault(job);
            jobs += usize::from(faults.is_some() || end.is_some());
            for machine in faults.iter().flat_map(|faults| faults.machines.split(',')) {
                *machines.entry(machine).or_default() += 1;
            }
            if let Some((_, machine, _)) = end {
                *machines.entry(machine).or_default() += 1;
            }
            let held = faults.map(|faults| (faults.at, faults.last_machine(), faults.cause()));
            for fault in held.into_iter().chain(end) {
                if last.is_none_or(|(at, ..)| fault.0 > at) {
                    last = Some(fault);
                }
            }
        }
        let (last, last_machine, cause) = last?;
        let (most_often, _) = machines.iter().max_by_key(|(_, count)| **count)?;
        Some(Self {
            runs: machines.values().sum(),
            jobs,
            most_often: (*most_often).to_owned(),
            last_machine: last_machine.to_owned(),
            last,
            cause,
        })
    }
}

/// Returns the fault that ended the job itself: when, on which machine, and why.
fn last_fault(job: &Job) -> Option<(SchedDate, &str, Option<PayloadFailure>)> {
    let Some(Outcome::Killed(signal)) = job.outcome() else { return None };
    let end = JobShEnd::from_signal(*signal).filter(|end| end.is_node_fault())?;
    let host = job.runs.host.as_deref().unwrap_or("?");
    let machine = host.rsplit('@').next().unwrap_or(host);
    Some((job.runs.end.unwrap_or(SchedDate(0)), machine, Some(end.failure)))
}
