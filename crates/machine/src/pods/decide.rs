//! The decision about an `HTCJob` whose jobs are Pods: takes the facts; returns the new record and at most one action.

mod absorb;
mod live;
mod logs;
mod queue;
mod stuck;
mod terminate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::facts::{OwnJob, PodsFacts};
use super::proofs::{NeverBegun, PodsGone};
use super::status::counts;
use crate::condition::Reason;
use crate::decide::Decision;
use crate::decide::draft::{DecisionDraft, DecisionFacts};
use crate::facts::{Claim, ObjectRow, Past, QueueFacts, Spec, Unreadable};
use crate::ids::{Index, Timestamp};
use crate::rules::{Rules, Settings};
use crate::runs::{JobUid, Run, RunsRecord};
use crate::status::Counts;
use crate::transitions::IllegalTransition;

/// Result of one decision about an HTCJob whose jobs are Pods.
pub type PodsDecision = Decision<RunsRecord, PodsAction, ()>;

/// The action of a decision: at most one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodsAction {
    /// Do nothing, or nothing is allowed now.
    #[default]
    Nothing,
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// Create the ConfigMap and the Job, suspended.
    Create,
    /// Change the fields of the Job that may change.
    UpdateJob(JobUid, DesiredJob),
    /// Copy the logs of the last Pods of these indexes, which are over.
    KeepLogs(Vec<(Index, Arc<str>)>),
    /// Delete the Job and its Pods.
    DeleteJob(JobUid),
    /// Delete the Pods that are left of a Job that is gone.
    DeletePods(JobUid),
    /// Remove the finalizer, so that the object can be deleted.
    ReleaseFinalizer(PodsReleasePermit),
    /// Delete the object: `ttlSecondsAfterFinished` has passed.
    DeleteObject,
}

/// Desired values of the Job's fields that may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredJob {
    /// `spec.suspend`
    pub suspend: bool,
    /// `spec.parallelism`
    pub parallelism: u32,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
}

impl DesiredJob {
    /// Returns the desired values for a Job that is recorded, before any limits.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        let all = u32::try_from(spec.count()).unwrap_or(u32::MAX);
        let parallelism = spec.parallelism.map_or(all, |most| most.min(all));
        Self { suspend: spec.suspend, parallelism, deadline: spec.deadline }
    }
}

/// Why an object may be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodsReleasePermit {
    /// Neither the Job nor its Pods are left.
    Gone(PodsGone),
    /// Nothing of it has run.
    NeverBegun(NeverBegun),
    /// An administrator requested it; this Job may be left.
    Abandoned(String),
}

/// Decides what to do about one object. Total: every combination of facts has a decision. The steps, in their order:
///
/// 1. Attach the finalizer to an object without a row: nothing else is done before a deletion waits for the Job.
/// 2. Record the Job, and delete it with an object that is being deleted. Before 3: each object can be deleted.
/// 3. Wait for the deletion of an object that came back after it. Before 4: its jobs are not to run again.
/// 4. Record the Job, and take the next step of any other object.
///
/// # Errors
///
/// Fails if the decision would make a transition that is not in the table, which is a defect of this program.
/// No part of such a decision may be carried out.
pub fn decide_pods(facts: &PodsFacts, now: Timestamp, settings: &Settings) -> Result<PodsDecision, IllegalTransition> {
    let object = &facts.object; // 1.
    let new = object.claim == Claim::Ours && facts.past == Past::Continuous && !object.shows_job;
    let first = object.finalizer.then(|| ObjectRow::found(new));
    let Some(mut draft) = PodsDecider::begin(facts, now, settings, &Rules::ALL, first) else {
        let action = if object.deleting { PodsAction::Nothing } else { PodsAction::AttachFinalizer };
        return Ok(PodsDecision::without_record(action));
    };
    if object.deleting {
        draft.absorb(); // 2.
        draft.terminate();
    } else if draft.came_back() {
        draft.set_came_back_condition("Nothing is created again"); // 3.
    } else {
        draft.absorb(); // 4.
        draft.live();
    }
    draft.finish()
}

/// Draft of a decision about jobs that are Pods.
type PodsDecider<'a> = DecisionDraft<'a, PodsFacts>;

impl DecisionFacts for PodsFacts {
    type Record = RunsRecord;
    type Job = Run;
    type Action = PodsAction;
    type Details = ();

    const QUOTA_WARNINGS: &'static [Reason] =
        &[Reason::ExceedsMaxQuota, Reason::Misconfigured, Reason::QueueNotFound, Reason::QueueNotAllowed];
    // A queue that has not decided yet is no Event.
    const QUOTA_PROGRESS: &'static [Reason] = &[Reason::Waiting];

    fn recorded_message(&self) -> String {
        "recorded; will be run as a Job of Kubernetes".to_owned()
    }

    fn record(&self) -> &RunsRecord {
        &self.record
    }

    fn spec(&self) -> Result<&Spec, &Unreadable> {
        self.object.spec.as_ref()
    }

    fn queue(&self) -> Option<&QueueFacts> {
        self.queue.as_ref()
    }

    fn row(record: &mut RunsRecord) -> &mut Option<ObjectRow> {
        &mut record.row
    }

    fn jobs(record: &RunsRecord) -> &BTreeMap<Index, Run> {
        &record.runs
    }

    fn counts(record: &RunsRecord) -> Counts {
        counts(record)
    }
}

impl<'a> PodsDecider<'a> {
    /// Returns the state of the recorded Job.
    fn own_job(&self) -> OwnJob<'a> {
        self.facts.own_job(&self.record)
    }
}
