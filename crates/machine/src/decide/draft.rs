//! Draft of a decision: the record, conditions and transitions that all backends change in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Decision;
use crate::condition::{ConditionStatus, ConditionType, Reason};
use crate::facts::{
    ConditionRecord, CutShort, Exceeded, ObjectRow, QueueFacts, QueueKind, Spec, Unreadable, suspension_cause,
};
use crate::ids::{Index, Timestamp};
use crate::phase::Phase;
use crate::rules::{Rules, Settings};
use crate::status::{Conditions, Counts};
use crate::summary::EVERYDAY;
use crate::transitions::{IllegalTransition, Transition, Trigger, legal};

use ConditionStatus::{False, True};

/// Facts of one backend, as a draft needs them.
pub(crate) trait DecisionFacts {
    /// The ledger's record of the object.
    type Record: Clone;
    /// Row of one job in the record.
    type Job: PartialEq;
    /// Action of a decision. Its default is to do nothing.
    type Action: Default;
    /// Results that only this backend has.
    type Details: Default;

    /// Reasons of `QuotaReserved` that a person should look at.
    const QUOTA_WARNINGS: &'static [Reason];
    /// Reasons of `QuotaReserved` that are no Event.
    const QUOTA_PROGRESS: &'static [Reason] = &[];

    /// Message of the first transition: the ledger has the object.
    fn recorded_message(&self) -> String;

    /// Returns the record before the decision.
    fn record(&self) -> &Self::Record;
    /// Returns the spec, or why it cannot be read.
    fn spec(&self) -> Result<&Spec, &Unreadable>;
    /// Returns the queue that the object is in.
    fn queue(&self) -> Option<&QueueFacts>;
    /// Returns the object's row in a record.
    fn row(record: &mut Self::Record) -> &mut Option<ObjectRow>;
    /// Returns the jobs' rows in a record. A decision adds rows and removes none.
    fn jobs(record: &Self::Record) -> &BTreeMap<Index, Self::Job>;
    /// Counts the jobs of a record.
    fn counts(record: &Self::Record) -> Counts;
    /// Whether `Submitted` stays False with its old reason, because the new one is mere progress.
    fn keeps_reason(_record: &Self::Record, _old: Reason, _new: Reason) -> bool {
        false
    }
    /// Adds the results that follow from the record after the decision.
    fn complete_details(&self, _after: &Self::Record, _rules: &Rules, _details: &mut Self::Details) {}
}

/// Decision of the backend with these facts.
type DecisionOf<F> =
    Decision<<F as DecisionFacts>::Record, <F as DecisionFacts>::Action, <F as DecisionFacts>::Details>;

/// Working state of one decision. Each backend adds its own steps.
pub(crate) struct DecisionDraft<'a, F: DecisionFacts> {
    pub(crate) facts: &'a F,
    pub(crate) now: Timestamp,
    pub(crate) settings: &'a Settings,
    pub(crate) rules: &'a Rules,
    /// Record after this decision, with the row from before it.
    pub(crate) record: F::Record,
    /// Row after this decision.
    pub(crate) known: ObjectRow,
    pub(crate) conditions: Conditions,
    pub(crate) transitions: Vec<Transition>,
    illegal: Option<IllegalTransition>,
    pub(crate) action: F::Action,
    pub(crate) requeue_after: Option<Duration>,
    pub(crate) details: F::Details,
}

impl<'a, F: DecisionFacts> DecisionDraft<'a, F> {
    /// Starts from the recorded row or, if there is none, from a first row.
    /// `first`: none if no first row may be written yet.
    pub(crate) fn begin(
        facts: &'a F,
        now: Timestamp,
        settings: &'a Settings,
        rules: &'a Rules,
        first: Option<ObjectRow>,
    ) -> Option<Self> {
        let mut record = facts.record().clone();
        let row = F::row(&mut record);
        let is_first = row.is_none();
        let known = row.clone().or(first)?;
        *row = Some(known.clone());
        let mut draft = Self {
            facts,
            now,
            settings,
            rules,
            record,
            conditions: Conditions::new(known.conditions.clone()),
            known,
            transitions: Vec::new(),
            illegal: None,
            action: F::Action::default(),
            requeue_after: None,
            details: F::Details::default(),
        };
        if is_first {
            let detail = facts.recorded_message();
            draft.record_transition(None, Trigger::Guarded, Some(Phase::Pending), detail, false);
        }
        Some(draft)
    }

    /// Returns the decision, with a row for the journal for each condition that changed.
    pub(crate) fn finish(mut self) -> Result<DecisionOf<F>, IllegalTransition> {
        if let Some(illegal) = self.illegal {
            return Err(illegal);
        }
        let (conditions, changed) = std::mem::take(&mut self.conditions).finish();
        for condition in changed.into_iter().filter(is_event::<F>) {
            let warning = is_warning::<F>(&condition);
            self.record_condition(condition.reason, condition.message, warning);
        }
        self.known.conditions = conditions;
        let changed = changed_jobs(F::jobs(self.facts.record()), F::jobs(&self.record));
        *F::row(&mut self.record) = Some(self.known);
        self.facts.complete_details(&self.record, self.rules, &mut self.details);
        Ok(Decision {
            after: Some(self.record),
            changed,
            transitions: self.transitions,
            action: self.action,
            requeue_after: self.requeue_after,
            details: self.details,
        })
    }

    /// Adds a transition to the journal if the table has it. If it does not, the whole decision fails.
    pub(crate) fn record_transition(
        &mut self,
        from: Option<Phase>,
        trigger: Trigger,
        to: Option<Phase>,
        detail: String,
        warning: bool,
    ) {
        match legal(from, trigger, to) {
            Ok(row) => {
                let reason = row.reason.map_or_else(|| trigger.to_string(), str::to_owned);
                self.push(from, trigger, to, reason, detail, warning);
            }
            Err(illegal) => {
                self.illegal.get_or_insert(illegal);
            }
        }
    }

    fn push(
        &mut self,
        from: Option<Phase>,
        trigger: Trigger,
        to: Option<Phase>,
        reason: String,
        detail: String,
        warning: bool,
    ) {
        let Counts { active, succeeded, failed, .. } = F::counts(&self.record);
        self.transitions.push(Transition { from, to, trigger, reason, detail, warning, active, succeeded, failed });
    }

    /// Records a transition that leaves the phase as it is.
    pub(crate) fn record_in_phase(&mut self, trigger: Trigger, detail: String, warning: bool) {
        let phase = Some(self.known.phase);
        self.record_transition(phase, trigger, phase, detail, warning);
    }

    /// Adds a changed condition, or a notice, to the journal.
    pub(crate) fn record_condition(&mut self, reason: String, detail: String, warning: bool) {
        let phase = Some(self.known.phase);
        self.push(phase, Trigger::ConditionChanged, phase, reason, detail, warning);
    }

    /// Moves the object to another phase and records the transition.
    pub(crate) fn set_phase(&mut self, trigger: Trigger, to: Phase, detail: String, warning: bool) {
        self.record_transition(Some(self.known.phase), trigger, Some(to), detail, warning);
        self.known.phase = to;
    }

    /// Moves the object to `Terminating` if it is not there yet.
    pub(crate) fn begin_termination(&mut self, detail: impl FnOnce(&Self) -> String) {
        if self.known.phase != Phase::Terminating {
            let detail = detail(self);
            self.set_phase(Trigger::Deleted, Phase::Terminating, detail, false);
        }
    }

    /// Records that the object may be released. Returns false if that was recorded before.
    pub(crate) fn record_release(&mut self, detail: String, warning: bool) -> bool {
        if self.known.released {
            return false;
        }
        self.known.released = true;
        self.record_transition(Some(Phase::Terminating), Trigger::Gone, None, detail, warning);
        true
    }

    /// Whether the object was being deleted, or was released, and exists again: the API server's data are older than
    /// the ledger.
    pub(crate) fn came_back(&self) -> bool {
        (self.known.phase == Phase::Terminating || self.known.released) && self.rules.deleted_is_over
    }

    /// Sets the condition of an object that came back. `jobs`: what is known about its jobs, and what is not done again.
    pub(crate) fn set_came_back_condition(&mut self, jobs: &str) {
        let message = format!(
            "the HTCJob was deleted before, and is back: the API server's data were restored from a copy. {jobs}. Delete it; create a new HTCJob to run the jobs again"
        );
        self.set_not_submitted(Reason::WasDeleted, message);
    }

    /// Whether the limits that cut an object short apply.
    pub(crate) fn can_be_cut_short(&self) -> bool {
        self.known.cut_short.is_none() && matches!(self.known.phase, Phase::Submitted | Phase::Running)
    }

    /// Cuts the object short, because it has exceeded a limit.
    pub(crate) fn cut_short(&mut self, exceeded: Exceeded, detail: String) {
        self.known.cut_short = Some(CutShort { at: self.now, exceeded });
        let trigger = match exceeded {
            Exceeded::Deadline => Trigger::DeadlineExceeded,
            Exceeded::FailedIndexes => Trigger::MaxFailedIndexesExceeded,
        };
        self.record_in_phase(trigger, detail, true);
    }

    /// Records how many jobs never were accepted and never will be.
    pub(crate) fn give_up(&mut self, jobs: usize) {
        self.known.given_up = u32::try_from(jobs).unwrap_or(u32::MAX);
        if let Some(row) = F::row(&mut self.record) {
            row.given_up = self.known.given_up;
        }
    }

    /// Completes the object: every job has an outcome.
    pub(crate) fn complete_phase(&mut self, succeeded: bool, detail: String) {
        self.known.completed = Some(self.now);
        let trigger = if succeeded { Trigger::Succeeded } else { Trigger::Failed };
        self.set_phase(trigger, Phase::Completed, detail, !succeeded);
    }

    /// Whether `ttlSecondsAfterFinished` has passed; if not, requeues for then.
    pub(crate) fn has_outlived_ttl(&mut self) -> bool {
        let ttl = self.facts.spec().ok().and_then(|spec| spec.ttl);
        ttl.zip(self.known.completed).is_some_and(|(ttl, completed)| self.is_due(completed.plus(ttl)))
    }

    /// Sets a condition. `Submitted` keeps the reason of a failure or of a wait for a person while mere progress is
    /// made: one Event for all tries, not one for each.
    pub(crate) fn set_condition(
        &mut self,
        kind: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl AsRef<str>,
    ) {
        let old = self.conditions.get(kind).filter(|old| kind == ConditionType::Submitted && old.status == False);
        let old = old.and_then(|old| old.reason.parse().ok());
        if !old.is_some_and(|old| F::keeps_reason(&self.record, old, reason)) {
            self.conditions.set(kind, status, reason.into(), message.as_ref(), self.now);
        }
    }

    /// Sets `Submitted` to False.
    pub(crate) fn set_not_submitted(&mut self, reason: Reason, message: impl AsRef<str>) {
        self.set_condition(ConditionType::Submitted, False, reason, message);
    }

    /// Sets `Submitted` to False, and reconciles again after a time if there is one.
    pub(crate) fn set_not_submitted_and_requeue(
        &mut self,
        reason: Reason,
        message: &str,
        requeue_after: Option<Duration>,
    ) {
        self.set_not_submitted(reason, message);
        if let Some(wait) = requeue_after {
            self.requeue_within(wait);
        }
    }

    /// Sets a condition to False, if it exists.
    pub(crate) fn clear_condition(&mut self, kind: ConditionType, reason: Reason, message: &str) {
        self.conditions.clear(kind, reason.into(), message, self.now);
    }

    /// Sets `Suspended` to False once every job has ended. Jobs that were still to be held, or to be released, have
    /// ended before that.
    pub(crate) fn end_suspension(&mut self) {
        if self.conditions.is_true(ConditionType::Suspended) {
            let message = "every job has ended; none can be suspended";
            self.set_condition(ConditionType::Suspended, False, Reason::JobsEnded, message);
        }
    }

    /// Records which queue the object is in, before any of its conditions is set.
    pub(crate) fn record_queue(&mut self) {
        if let Some(queue) = self.facts.queue().and_then(QueueFacts::is_in) {
            self.known.last_queue = Some(queue.to_owned());
        }
    }

    /// Returns why the jobs are suspended.
    pub(crate) fn why_suspended(&self) -> String {
        let drained = self.facts.queue().and_then(QueueFacts::drained_message);
        drained.unwrap_or_else(|| "spec.suspend is true".to_owned())
    }

    /// Returns why the jobs are not suspended any more.
    pub(crate) fn why_resumed(&self) -> &'static str {
        match self.facts.queue().map(|queue| queue.kind) {
            Some(QueueKind::LocalQueue) => "spec.suspend is false, and Kueue admits the HTCJob",
            Some(QueueKind::HTCQueue) | None => "spec.suspend is false",
        }
    }

    /// Sets `QuotaReserved` for an object that is not in a queue any more. `jobs`: what its jobs do.
    pub(crate) fn set_no_queue_condition(&mut self, jobs: &str) {
        if self.conditions.get(ConditionType::QuotaReserved).is_some() {
            let message = format!("no queue applies: the jobs {jobs}");
            self.set_condition(ConditionType::QuotaReserved, True, Reason::NoQueue, message);
        }
    }

    /// Sets `QuotaReserved` of an object that has quota, or that is suspended. Returns false if neither applies.
    /// `waited`: whether the object waited for quota before.
    pub(crate) fn set_reserved_condition(&mut self, queue: &QueueFacts, reserved: bool, waited: bool) -> bool {
        let kind = ConditionType::QuotaReserved;
        let suspended = self.facts.spec().is_ok_and(|spec| spec.suspend);
        if reserved {
            self.set_condition(kind, True, Reason::QuotaReserved, queue.reserved_message());
        } else if queue.drained && queue.kind == QueueKind::LocalQueue {
            // While nothing is known yet, the condition stays.
            if let Some(wait) = &queue.wait {
                self.set_condition(kind, False, wait.reason, &wait.message);
            }
        } else if suspended {
            let (reason, why) = suspension_cause(queue.drained);
            if waited || self.conditions.get(kind).is_some() {
                let message = format!("{why}: no job of this HTCJob has quota in {queue}");
                self.set_condition(kind, False, reason, message);
            }
        } else {
            return false;
        }
        true
    }

    /// Reconciles again after this time at the latest.
    pub(crate) fn requeue_within(&mut self, wait: Duration) {
        let wait = wait.max(Duration::from_millis(1));
        self.requeue_after = Some(self.requeue_after.map_or(wait, |other| other.min(wait)));
    }

    /// Whether this time has come; if not, requeues for then.
    pub(crate) fn is_due(&mut self, due: Timestamp) -> bool {
        let wait = due.since(self.now);
        if !wait.is_zero() {
            self.requeue_within(wait);
        }
        wait.is_zero()
    }
}

/// Returns the jobs whose rows differ, or are new. No row is ever removed.
fn changed_jobs<T: PartialEq>(before: &BTreeMap<Index, T>, after: &BTreeMap<Index, T>) -> BTreeSet<Index> {
    let mut before = before.iter().peekable();
    let mut is_changed =
        |index: &Index, job: &T| before.next_if(|(other, _)| *other == index).is_none_or(|(_, before)| before != job);
    after.iter().filter(|(index, job)| is_changed(index, job)).map(|(index, _)| *index).collect()
}

/// Whether a change of this condition is an Event of its own.
/// Other changes come with a transition of the phase, or are everyday progress.
fn is_event<F: DecisionFacts>(condition: &ConditionRecord) -> bool {
    let has_one_of = |reasons: &[Reason]| condition.reason.parse().is_ok_and(|reason| reasons.contains(&reason));
    // An operator that stops, or loses the leadership for a moment, is not an event of the HTCJob.
    if has_one_of(&[Reason::OperatorStopping]) {
        return false;
    }
    match condition.kind {
        ConditionType::Submitted | ConditionType::JobsRemoved => condition.status == False && !has_one_of(EVERYDAY),
        ConditionType::QuotaReserved => !has_one_of(F::QUOTA_PROGRESS),
        ConditionType::Tracked
        | ConditionType::Held
        | ConditionType::NodeFaults
        | ConditionType::Stuck
        | ConditionType::Suspended
        | ConditionType::OutputFetched => true,
        ConditionType::Complete | ConditionType::Failed => false,
    }
}

/// Whether a person should look at a condition.
fn is_warning<F: DecisionFacts>(condition: &ConditionRecord) -> bool {
    match condition.kind {
        ConditionType::Held | ConditionType::NodeFaults | ConditionType::Stuck => condition.status == True,
        ConditionType::QuotaReserved => {
            condition.reason.parse().is_ok_and(|reason| F::QUOTA_WARNINGS.contains(&reason))
        }
        ConditionType::Suspended | ConditionType::Complete | ConditionType::Failed => false,
        ConditionType::Submitted
        | ConditionType::Tracked
        | ConditionType::OutputFetched
        | ConditionType::JobsRemoved => condition.status != True,
    }
}
