//! One pass over one `HTCJob`: what all backends share, and the trait of what differs between them.

use std::time::Duration;

use htc_api::{CLAIM_ANNOTATION, FINALIZER, HTCJobStatus, ObjectName, ObservedHTCJob, Phase};
use htc_ledger::LedgerError;
use htc_machine::demand::JobDemand;
use htc_machine::facts::{Claim, ObjectRow, Past, QueueFacts};
use htc_machine::transitions::{IllegalTransition, Transition, Trigger};
use htc_machine::{Indices, Timestamp, Uid};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use super::memory::Deferral;
use super::{ActError, Context, GatherError};
use crate::htcqueue::{DecidedUsage, QueueQuery};

/// Requeue time after a temporary refusal: the object had changed, or the queue of a worker was full.
const BUSY: Duration = Duration::from_secs(1);

/// Object of a pass, and what the pass works with.
pub(super) struct Pass<'a> {
    pub(super) context: &'a Context,
    /// Object as the watch returned it.
    pub(super) object: &'a ObservedHTCJob,
    pub(super) uid: Uid,
    pub(super) name: ObjectName,
}

/// Backend that runs jobs: the steps of a pass that differ from other backends'.
pub(super) trait JobBackend {
    /// Facts for the decision, and the inputs of its action.
    type Gathered;
    /// Decision of the state machine.
    type Decision;
    /// Which changes of the status may wait if no change is expected soon.
    const DEFERRAL: Deferral;

    /// Gathers the facts.
    async fn gather(pass: &Pass<'_>) -> Result<Self::Gathered, GatherError>;

    /// Computes the decision within the namespace's limit on jobs, which it reserves and settles.
    fn decide(pass: &Pass<'_>, gathered: &mut Self::Gathered) -> Result<Self::Decision, IllegalTransition>;

    /// Returns what the decision changes for queues and pools.
    fn outcome<'a>(pass: &'a Pass<'_>, gathered: &'a Self::Gathered, decision: &'a Self::Decision) -> PassOutcome<'a>;

    /// Writes the decision to the ledger in one transaction, together with the quota that it returns. Returns whether
    /// there was anything to write.
    async fn commit(
        pass: &Pass<'_>,
        gathered: &Self::Gathered,
        decision: &Self::Decision,
        returned: Indices,
    ) -> Result<bool, LedgerError>;

    /// Carries out the action of a committed decision, or hands it to a worker.
    async fn act(pass: &Pass<'_>, gathered: &Self::Gathered, decision: &Self::Decision)
    -> Result<ActOutcome, ActError>;

    /// Builds the status; none if the object has no row in the ledger or is not guarded by a finalizer.
    fn status(pass: &Pass<'_>, gathered: &Self::Gathered, decision: &Self::Decision) -> Option<HTCJobStatus>;
}

/// What a committed decision changes for others.
pub(super) struct PassOutcome<'a> {
    /// Quota usage for the queues; none if there are no queues.
    pub(super) quota: Option<DecidedUsage<'a>>,
    pub(super) demand: PoolDemand,
}

/// Demand for a pool's workers.
pub(super) enum PoolDemand {
    /// The object is in no pool that has workers of its own.
    NoPool,
    /// The object is in a pool, and it is not known which workers it needs.
    Unknown,
    Known(JobDemand),
}

/// What remains to be done after a decision was carried out.
pub(super) enum ActOutcome {
    /// Nothing: the object was changed or is gone.
    Done {
        /// Time until the next reconcile.
        requeue_after: Option<Duration>,
    },
    /// Publish the status, which may have changed.
    Publish {
        /// Time until the next reconcile.
        requeue_after: Option<Duration>,
        /// Whether the status is expected to change soon.
        about_to_change: bool,
    },
}

impl<'a> Pass<'a> {
    /// Reads the identity of the object.
    ///
    /// # Errors
    ///
    /// Fails if the API server sent an object without a uid or a namespace.
    pub(super) fn new(object: &'a ObservedHTCJob, context: &'a Context) -> Result<Self, GatherError> {
        let uid = Uid::from(object.uid().ok_or(GatherError::Nameless("uid"))?.as_str());
        let namespace = object.namespace().ok_or(GatherError::Nameless("namespace"))?;
        Ok(Self { context, object, uid, name: ObjectName { namespace, name: object.name_any() } })
    }

    pub(super) fn reference(&self) -> ObjectRef<ObservedHTCJob> {
        ObjectRef::from_obj(self.object)
    }

    /// Time of this operator's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.object.meta().deletion_timestamp.is_some()
    }

    /// Whether the annotation is `true`.
    pub(super) fn is_annotated(&self, key: &str) -> bool {
        self.object.annotations().get(key).is_some_and(|value| value == "true")
    }

    /// Published status, if the object can be read.
    pub(super) fn status(&self) -> Option<&'a HTCJobStatus> {
        self.object.0.as_ref().ok().and_then(|job| job.status.as_ref())
    }

    /// Ledger that claimed the object.
    pub(super) fn claim(&self) -> Claim {
        match self.object.annotations().get(CLAIM_ANNOTATION) {
            None => Claim::None,
            Some(id) if id == self.context.ledger.id() => Claim::Ours,
            Some(_) => Claim::Other,
        }
    }

    /// Determines whether jobs of an unknown past may exist. `recorded`: whether the ledger has a row of the object.
    ///
    /// An object with our finalizer but without our ledger's claim may have been submitted by another operator, whose
    /// submitter still runs. It waits for the maximum lifetime of a submitter, counted from the first time it was seen
    /// in that state.
    pub(super) fn past(&self, claim: Claim, recorded: bool) -> Past {
        let (context, uid) = (self.context, &self.uid);
        // One patch adds both finalizer and claim. Without either, no operator of this kind has ever touched the object.
        let untouched = claim == Claim::None && !self.has_finalizer();
        if !untouched && claim != Claim::Ours {
            let now = self.now();
            let settles = context.memory.foreign_claim_since(uid, now);
            let settles = settles.plus(context.settings.submit_max + context.settings.dead_margin);
            return Past::Unknown { settled: (settles <= now).then_some(settles) };
        }
        if !untouched {
            context.memory.clear_foreign_claim(uid);
        }
        if self.may_be_forgotten(recorded) { Past::Unknown { settled: Some(self.now()) } } else { Past::Continuous }
    }

    /// Whether an object that we claimed may have had rows that were removed from the ledger by now. Without a row it
    /// is new, unless it is old enough for that: then it came back with a restored etcd, and its jobs may have run.
    fn may_be_forgotten(&self, recorded: bool) -> bool {
        let (context, uid) = (self.context, &self.uid);
        if recorded {
            context.memory.clear_claim(uid);
            return false;
        }
        let created = self.object.creation_timestamp().map_or(0, |time| time.0.as_millisecond());
        !context.memory.has_claimed(uid) && context.ledger.has_forgotten(Timestamp(created))
    }

    /// Returns what is known about the queue of the object. `granting_queue`: the queue that granted it quota before.
    pub(super) fn queue_facts(
        &self,
        granting_queue: Option<&str>,
        row: Option<&ObjectRow>,
        has_held_jobs: bool,
    ) -> Option<QueueFacts> {
        self.context.queues.queue_facts(&QueueQuery {
            uid: &self.uid,
            namespace: &self.name.namespace,
            object: self.object,
            granting_queue,
            last_queue: row.and_then(|row| row.last_queue.as_deref()),
            has_held_jobs,
        })
    }

    /// Logs the transitions of a committed decision, and wakes the publisher of Events. `before`: the row before the
    /// decision.
    pub(super) fn announce(&self, transitions: &[Transition], before: Option<&ObjectRow>) {
        for transition in transitions {
            log(transition, before.is_none());
        }
        if !transitions.is_empty() {
            self.context.publisher.news();
        }
    }

    /// Tells queues and pools what a committed decision changes for them.
    pub(super) fn report(&self, outcome: &PassOutcome<'_>) {
        let context = self.context;
        if let Some(quota) = &outcome.quota {
            context.queues.record_decision(quota);
        }
        let demand = match outcome.demand {
            PoolDemand::NoPool => return,
            PoolDemand::Unknown => None,
            PoolDemand::Known(demand) => Some(demand),
        };
        let exists = || {
            let there = context.objects.get(&self.reference());
            there.is_some_and(|there| there.uid().as_deref() == Some(self.uid.as_str()))
        };
        context.pools.set_demand(&self.uid, demand, exists);
    }
}

impl PassOutcome<'_> {
    /// Quota that the decision returns to its queue.
    pub(super) fn returned_quota(&self) -> Indices {
        self.quota.as_ref().map(|quota| quota.usage.returned.clone()).unwrap_or_default()
    }
}

/// Logs one line for a transition.
fn log(transition: &Transition, is_new: bool) {
    let phase = |phase: Option<Phase>| phase.map_or("-", <&str>::from);
    let (from, to) = (phase(transition.from), phase(transition.to));
    let Transition { reason, detail, active, succeeded, failed, .. } = transition;
    let quiet = transition.trigger == Trigger::ConditionChanged && is_new;
    if transition.warning && !quiet {
        tracing::warn!(from, to, reason, active, succeeded, failed, %detail, "transition");
    } else {
        tracing::info!(from, to, reason, active, succeeded, failed, %detail, "transition");
    }
}

/// Requeues after a refused write even if the watch shows no change. A conflict may be spurious, or the watch may have
/// delivered its change already.
pub(super) fn requeue_unless_done(requeue_after: Option<Duration>, done: bool) -> Option<Duration> {
    if done { requeue_after } else { Some(earlier_requeue(requeue_after, BUSY)) }
}

/// Returns the shorter of two pauses.
pub(super) fn earlier_requeue(requeue_after: Option<Duration>, pause: Duration) -> Duration {
    requeue_after.map_or(pause, |requeue_after| requeue_after.min(pause))
}
