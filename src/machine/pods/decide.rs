//! The decision about an `HTCJob` whose jobs are Pods: facts in; the new record and at most one action out.

mod absorb;
mod live;
mod logs;
mod queued;
mod stuck;
mod terminate;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::facts::{BatchJob, Facts, JobSeen};
use super::proofs::{NeverBegun, PodsGone};
use super::status::Counts;
use crate::api::{ConditionStatus, ConditionType, Reason};
use crate::machine::facts::{Claim, Condition, Known, Past, Spec};
use crate::machine::ids::{Index, Timestamp};
use crate::machine::phase::Phase;
use crate::machine::rules::Settings;
use crate::machine::runs::{JobUid, Record};
use crate::machine::status::Conditions;
use crate::machine::summary::EVERYDAY;
use crate::machine::transitions::{IllegalTransition, Transition, Trigger, legal};

/// What is to be done about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The record as it is to be after this decision; none where the object is not ours yet.
    pub after: Option<Record>,
    /// The indexes whose rows differ from before.
    pub changed: BTreeSet<Index>,
    /// What is to be journaled, in the same transaction.
    pub transitions: Vec<Transition>,
    /// What to do, once the record is committed.
    pub action: Action,
    /// Look at the object again after this time even if nothing happens.
    pub again: Option<Duration>,
}

/// At most one effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing to do, or nothing that may be done now.
    Nothing,
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// Create the ConfigMap and the Job, suspended.
    Create,
    /// Change what may change of the Job.
    Adjust(JobUid, Adjust),
    /// Keep the logs of the last Pods of these indexes, which are over.
    KeepLogs(Vec<(Index, Arc<str>)>),
    /// Delete the Job and its Pods.
    DeleteJob(JobUid),
    /// Delete the Pods that are left of a Job that is gone.
    DeletePods(JobUid),
    /// Let the object go.
    ReleaseFinalizer(Permit),
    /// Delete the object: `ttlSecondsAfterFinished` has passed.
    DeleteObject,
}

/// How the Job is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjust {
    /// `spec.suspend`
    pub suspend: bool,
    /// `spec.parallelism`
    pub parallelism: u32,
    /// `spec.activeDeadlineSeconds`
    pub deadline: Option<Duration>,
}

impl Adjust {
    /// How the Job is to be once it is recorded.
    #[must_use]
    pub fn of(spec: &Spec) -> Self {
        let all = u32::try_from(spec.count()).unwrap_or(u32::MAX);
        let parallelism = spec.parallelism.map_or(all, |most| most.min(all));
        Self { suspend: spec.suspend, parallelism, deadline: spec.deadline }
    }
}

/// Why an object may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Nothing of it is left.
    Gone(PodsGone),
    /// It has run nothing.
    NeverBegun(NeverBegun),
    /// An admin said so; this Job may be left.
    Abandoned(String),
}

/// The object's Job, as far as it is the one that is recorded.
enum OwnJob<'a> {
    Unknown(&'a str),
    Gone,
    Here(&'a BatchJob),
}

/// Decides what is to be done about one object. Total: there is an answer for all facts.
///
/// # Errors
///
/// The decision would make a transition that is not in the table: a defect of this program. Nothing of it may be carried out.
pub fn decide_pods(facts: &Facts, now: Timestamp, settings: &Settings) -> Result<Decision, IllegalTransition> {
    let Some(mut run) = Run::begin(facts, now, settings) else {
        let action = if facts.object.deleting { Action::Nothing } else { Action::AttachFinalizer };
        let (changed, transitions) = (BTreeSet::new(), Vec::new());
        return Ok(Decision { after: None, changed, transitions, action, again: None });
    };
    if facts.object.deleting {
        run.absorb();
        run.terminate();
    } else if run.known.released || run.known.phase == Phase::Terminating {
        run.wait_for_deletion();
    } else {
        run.absorb();
        run.live();
    }
    run.finish()
}

/// One decision in the making.
struct Run<'a> {
    facts: &'a Facts,
    now: Timestamp,
    settings: &'a Settings,
    record: Record,
    known: Known,
    conditions: Conditions,
    transitions: Vec<Transition>,
    illegal: Option<IllegalTransition>,
    action: Action,
    again: Option<Duration>,
}

impl<'a> Run<'a> {
    fn begin(facts: &'a Facts, now: Timestamp, settings: &'a Settings) -> Option<Self> {
        let mut record = facts.record.clone();
        let row = record.known.take();
        let guarded = row.is_none();
        let known = match row {
            Some(known) => known,
            None if !facts.object.finalizer => return None,
            None => Known {
                phase: Phase::Pending,
                new: facts.object.claim == Claim::Ours && facts.past == Past::Continuous && !facts.object.shows_job,
                started: None,
                completed: None,
                cut_short: None,
                given_up: 0,
                released: false,
                queue: None,
                conditions: Vec::new(),
            },
        };
        let conditions = Conditions::new(known.conditions.clone());
        let (transitions, action) = (Vec::new(), Action::Nothing);
        let mut run =
            Self { facts, now, settings, record, known, conditions, transitions, illegal: None, action, again: None };
        if guarded {
            let detail = "the finalizer is attached; the HTCJob is recorded".to_owned();
            run.tell(None, Trigger::Guarded, Some(Phase::Pending), detail, false);
        }
        Some(run)
    }

    fn finish(mut self) -> Result<Decision, IllegalTransition> {
        if let Some(illegal) = self.illegal {
            return Err(illegal);
        }
        let (conditions, changed) = std::mem::take(&mut self.conditions).finish();
        for condition in changed.into_iter().filter(worth_an_event) {
            let warning = match condition.kind {
                ConditionType::QuotaReserved => {
                    let troubles = [Reason::ExceedsMaxQuota, Reason::Misconfigured];
                    condition.reason.parse().is_ok_and(|reason| troubles.contains(&reason))
                }
                ConditionType::Stuck => condition.status == ConditionStatus::True,
                ConditionType::Submitted | ConditionType::Tracked | ConditionType::JobsRemoved => {
                    condition.status != ConditionStatus::True
                }
                ConditionType::Held
                | ConditionType::Suspended
                | ConditionType::OutputFetched
                | ConditionType::Complete
                | ConditionType::Failed => false,
            };
            let phase = Some(self.known.phase);
            self.push(phase, phase, Trigger::ConditionChanged, condition.reason, condition.message, warning);
        }
        self.known.conditions = conditions;
        self.record.known = Some(self.known);
        let before = &self.facts.record.runs;
        let changed = self.record.runs.iter().filter(|(index, run)| before.get(index) != Some(run));
        Ok(Decision {
            changed: changed.map(|(index, _)| *index).collect(),
            after: Some(self.record),
            transitions: self.transitions,
            action: self.action,
            again: self.again,
        })
    }

    /// Journals a change, if the table allows it; if it does not, there is no decision.
    fn tell(&mut self, from: Option<Phase>, trigger: Trigger, to: Option<Phase>, detail: String, warning: bool) {
        match legal(from, trigger, to) {
            Ok(row) => {
                let reason = row.reason.map_or_else(|| trigger.to_string(), str::to_owned);
                self.push(from, to, trigger, reason, detail, warning);
            }
            Err(illegal) => {
                self.illegal.get_or_insert(illegal);
            }
        }
    }

    fn push(
        &mut self,
        from: Option<Phase>,
        to: Option<Phase>,
        trigger: Trigger,
        reason: String,
        detail: String,
        warning: bool,
    ) {
        let Counts { active, succeeded, failed, .. } = Counts::of(&self.record);
        let failed = failed + self.known.given_up as usize;
        self.transitions.push(Transition { from, to, trigger, reason, detail, warning, active, succeeded, failed });
    }

    /// Moves to another phase.
    fn go(&mut self, trigger: Trigger, to: Phase, detail: String, warning: bool) {
        self.tell(Some(self.known.phase), trigger, Some(to), detail, warning);
        self.known.phase = to;
    }

    fn say(&mut self, kind: ConditionType, status: ConditionStatus, reason: Reason, message: &str) {
        self.conditions.set(kind, status, reason.into(), message, self.now);
    }

    fn look_again(&mut self, pause: Duration) {
        self.again = Some(self.again.map_or(pause, |again| again.min(pause)));
    }

    /// What is recorded is what counts: another Job of the name is not this object's.
    fn own_job(&self) -> OwnJob<'a> {
        let facts = self.facts;
        match &facts.job {
            JobSeen::Unknown(why) => OwnJob::Unknown(why),
            JobSeen::Ours(job) if self.record.job.as_ref().is_none_or(|uid| *uid == job.uid) => OwnJob::Here(job),
            JobSeen::Absent | JobSeen::Foreign(_) | JobSeen::Ours(_) => OwnJob::Gone,
        }
    }
}

/// Progress that happens to all is no Event, nor what a transition tells already.
fn worth_an_event(condition: &Condition) -> bool {
    match condition.kind {
        ConditionType::Submitted | ConditionType::JobsRemoved => {
            condition.status == ConditionStatus::False
                && !condition.reason.parse().is_ok_and(|reason| EVERYDAY.contains(&reason))
        }
        ConditionType::Tracked
        | ConditionType::Held
        | ConditionType::Stuck
        | ConditionType::Suspended
        | ConditionType::OutputFetched => true,
        // That nothing is decided yet is nothing to tell.
        ConditionType::QuotaReserved => condition.reason != Reason::Waiting.to_string(),
        ConditionType::Complete | ConditionType::Failed => false,
    }
}
