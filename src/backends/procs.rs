//! Builds [`HTCProc`]s: each job of an `HTCJob` as an object of the API. They are computed on request from the `HTCJob`
//! and the ledger, and never stored.

use std::sync::Arc;

use htc_api::htcproc::{EarlierExit, HTCProc, HTCProcSpec, HTCProcStatus, ProcName, State};
use htc_api::{Backend, HTCJobSpec, MAX_QUEUE, NodeFaultsStatus, ObjectName, ObservedHTCJob};
use htc_ledger::{ProcAction, ProcRow, RunRow};
use htc_machine::actions::JobAction;
use htc_machine::facts::JobState;
use htc_machine::ids::{Index, SchedDate, Uid};
use htc_machine::indices::Indices;
use htc_machine::node_fault_counts::NodeFaultCounts;
use htc_machine::runs::{KeptLog, RunEnd, RunState};
use kube::Resource as _;

/// The data of an `HTCJob` that its HTCProcs need.
#[derive(Clone, Debug, Default)]
pub struct Parent {
    pub namespace: String,
    pub name: String,
    pub uid: Uid,
    /// Creation time, in RFC 3339.
    pub created: Option<String>,
    /// Whether the HTCJob is being deleted.
    pub deleted: bool,
    /// Indexes of the jobs that the spec requests; empty if the spec is unreadable.
    pub asked_for: Indices,
    /// The object itself, for its items.
    pub(crate) object: Option<Arc<ObservedHTCJob>>,
}

impl Parent {
    /// Builds it from an object in the watch cache.
    #[must_use]
    pub fn of(object: &Arc<ObservedHTCJob>) -> Self {
        let meta = object.meta();
        let spec = object.0.as_ref().ok().map(|htcjob| &htcjob.spec);
        // With items from a ConfigMap, the status has the number of jobs once the items were read.
        let total = || object.0.as_ref().ok().and_then(|htcjob| htcjob.status.as_ref()?.total);
        let read = || total().map(|total| spec.and_then(|spec| spec.indexes.as_ref()).map_or(total, |_| MAX_QUEUE));
        let queue = spec.and_then(|spec| spec.job_count().or_else(read)).and_then(|queue| u32::try_from(queue).ok());
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: Uid::from(meta.uid.as_deref().unwrap_or_default()),
            created: meta.creation_timestamp.as_ref().map(|time| time.0.to_string()),
            deleted: meta.deletion_timestamp.is_some(),
            asked_for: spec.map(|spec| asked_for(spec, queue.unwrap_or_default())).unwrap_or_default(),
            object: Some(Arc::clone(object)),
        }
    }

    /// Returns namespace and name.
    #[must_use]
    pub fn htcjob(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Whether only the ledger knows the number of items.
    #[must_use]
    pub fn counts_items(&self) -> bool {
        self.spec().is_some_and(|spec| spec.items_from.is_some() && spec.job_count().is_none())
    }

    /// Sets the number of items.
    pub fn has_items(&mut self, items: u32) {
        if let Some(spec) = self.spec() {
            self.asked_for = asked_for(spec, items);
        }
    }

    fn spec(&self) -> Option<&HTCJobSpec> {
        Some(&self.object.as_ref()?.0.as_ref().ok()?.spec)
    }

    /// Whether the jobs take items that only the ledger knows.
    #[must_use]
    pub fn takes_items(&self) -> bool {
        self.spec().is_some_and(|spec| spec.items_from.is_some())
    }

    /// Returns the backend that runs the jobs.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.object.as_ref().map(|object| Backend::of(object)).unwrap_or_default()
    }

    /// Returns the item of a job according to the spec.
    fn item(&self, index: Index) -> Option<&String> {
        self.spec()?.items.get(usize::try_from(index.0).ok()?)
    }
}

/// Returns the indexes that run, out of `queue` jobs. Selections that the operator would refuse are empty.
fn asked_for(spec: &HTCJobSpec, queue: u32) -> Indices {
    let Some(text) = &spec.indexes else { return Indices::first(queue) };
    let indexes = Indices::in_any_order(text);
    indexes.filter(|indexes| indexes.last().is_some_and(|last| last.0 < queue)).unwrap_or_default()
}

fn time(date: SchedDate) -> Option<String> {
    jiff::Timestamp::from_second(date.0).ok().map(|time| time.to_string())
}

/// Builds the HTCProc of a job that is recorded for HTCondor.
#[must_use]
pub fn recorded(parent: &Parent, row: &ProcRow, now: SchedDate) -> HTCProc {
    let job = &row.job;
    let reported = || row.reported.map(|end| end.outcome());
    let outcome = job.outcome().cloned().or_else(reported);
    let mut status = HTCProcStatus {
        id: Some(job.id.to_string()),
        schedd: row.schedd.as_ref().map(|name| name.as_str().to_owned()),
        host: job.runs.host.as_deref().map(str::to_owned),
        // HTCondor increments its counter of starts a moment after the job starts.
        attempts: job.runs.count.max(u32::from(job.started)),
        submit_time: Some(job.staged_in).filter(|date| date.0 > 0).and_then(time),
        start_time: job.runs.start.and_then(time),
        completion_time: job.runs.end.and_then(time),
        output_fetched: job.fetched,
        output_bytes: row.output_bytes.filter(|_| job.fetched),
        ..HTCProcStatus::new(State::Idle)
    };
    status.state = match (&outcome, &job.state) {
        (Some(outcome), _) => status.ended(outcome),
        (None, JobState::Running) => State::Running,
        (None, JobState::Held(hold)) => {
            (status.hold_code, status.hold_reason) = (Some(hold.code), Some(hold.reason.clone()));
            status.held_since = hold.since.and_then(time);
            State::Held
        }
        (None, JobState::Idle | JobState::Ended(_)) => {
            status.message = job.runs.waits_for.map(|waits| waits.sentence().to_owned());
            State::Idle
        }
    };
    let end = match status.state {
        State::Running => Some(now),
        state if state.is_over() => job.runs.end,
        _ => None,
    };
    status.node_faults = NodeFaultCounts::of_jobs(std::iter::once(job)).as_ref().map(NodeFaultsStatus::from);
    // If the job ended by itself, its last exit is its result and not an earlier one.
    let ended = matches!(status.state, State::Succeeded | State::Failed);
    let earlier = row.exits.iter().filter(|(number, _)| !ended || *number < job.runs.exits);
    status.earlier_exits = earlier.copied().map(EarlierExit::from).collect();
    status.request(row.requested);
    status.refuse(row.requested, row.refusal.as_deref());
    status.omit(row.omitted.as_deref());
    status.duration_seconds = job.runs.start.zip(end).map(|(start, end)| (end.0 - start.0).max(0));
    proc(parent, row.index, (row.changed, row.stated), status)
}

/// Builds the HTCProc of a job whose backend reports its state.
#[must_use]
pub fn of_run(parent: &Parent, row: &RunRow, now: SchedDate) -> HTCProc {
    let run = &row.run;
    let state = match run.state {
        RunState::Waiting => State::Waiting,
        RunState::Pending | RunState::Exited => State::Idle,
        RunState::Running => State::Running,
        RunState::Ended(RunEnd::Succeeded) => State::Succeeded,
        RunState::Ended(RunEnd::Failed) => State::Failed,
        RunState::Ended(RunEnd::Removed) => State::Removed,
    };
    let end = if state == State::Running { Some(now) } else { run.end };
    let kept = match &run.log {
        KeptLog::Kept { id, bytes } if run.id.as_ref() == Some(id) => Some(*bytes),
        KeptLog::Kept { .. } | KeptLog::NotYet | KeptLog::Failed { .. } | KeptLog::Gone => None,
    };
    let status = HTCProcStatus {
        output_fetched: kept.is_some(),
        output_bytes: kept.and_then(|bytes| i64::try_from(bytes).ok()),
        id: run.id.as_deref().map(str::to_owned),
        host: run.host.as_deref().map(str::to_owned),
        attempts: run.starts,
        exit_code: run.exit,
        start_time: run.start.and_then(time),
        completion_time: run.end.and_then(time),
        duration_seconds: run.start.zip(end).map(|(start, end)| (end.0 - start.0).max(0)),
        message: run.message.as_deref().filter(|_| state != State::Succeeded).map(str::to_owned),
        ..HTCProcStatus::new(state)
    };
    proc(parent, row.index, (row.changed, row.stated), status)
}

/// Builds the HTCProc of a job that HTCondor has not accepted. `given_up`: it will never be submitted.
#[must_use]
pub fn not_recorded(parent: &Parent, index: Index, given_up: bool, wish: Option<&ProcAction>) -> HTCProc {
    let withdrawn = wish.is_some_and(|wish| wish.withdrawn);
    let wanted = wish.and_then(|wish| wish.action);
    let mut status = match wanted {
        _ if given_up || withdrawn => HTCProcStatus::new(State::Removed),
        Some(JobAction::Hold) => HTCProcStatus::new(State::Held),
        Some(JobAction::Release | JobAction::Remove) | None => HTCProcStatus::new(State::Waiting),
    };
    status.request(wanted);
    if status.state == State::Held {
        status.hold_reason = Some("held by a user before it was submitted".to_owned());
    } else if withdrawn {
        status.message = Some("a user removed the job before it was submitted".to_owned());
    } else if given_up {
        status.message = Some("the HTCJob was cut short before this job was submitted".to_owned());
    }
    let version = wish.map_or(0, |wish| wish.changed);
    proc(parent, index, (version, version), status)
}

fn proc(parent: &Parent, index: Index, (version, stated): (i64, i64), status: HTCProcStatus) -> HTCProc {
    HTCProc {
        name: ProcName {
            namespace: parent.namespace.clone(),
            htcjob: parent.name.clone(),
            htcjob_uid: parent.uid.to_string(),
            created: parent.created.clone(),
            index: index.0,
            version,
            stated,
        },
        spec: HTCProcSpec { htc_job: parent.name.clone(), index: index.0, item: parent.item(index).cloned() },
        status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_select_from_the_items_of_a_config_map() {
        let mut htcjob = htc_api::HTCJob::new("fit", HTCJobSpec::default());
        htcjob.spec.items_from = Some(htc_api::ItemsFrom::default());
        htcjob.spec.indexes = Some("3,7".to_owned());
        let of = |htcjob: &htc_api::HTCJob| Parent::of(&Arc::new(htc_api::Guarded(Ok(htcjob.clone()))));
        let (some, none): (Indices, Indices) = ("3,7".parse().unwrap(), Indices::default());
        assert_eq!(of(&htcjob).asked_for, none, "they are not read yet");
        // The number of items does not follow from the number of jobs that run.
        htcjob.status = Some(htc_api::HTCJobStatus { total: Some(2), ..Default::default() });
        let mut parent = of(&htcjob);
        assert!(parent.counts_items() && parent.asked_for == some, "{:?}", parent.asked_for);
        for (items, expected) in [(8, &some), (7, &none)] {
            parent.has_items(items);
            assert_eq!(&parent.asked_for, expected);
        }
    }
}
