//! One pass over one object, step by step: guard, gather, decide, commit, count, act, publish.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use kube::runtime::controller::Action as Requeue;
use kube::runtime::reflector::ObjectRef;

use super::act::{Acted, act};
use super::commit::commit;
use super::gather::{Gathered, gather, texts};
use super::publish::publish;
use super::{Context, ReconcileError, WriteError, pods};
use crate::api::{Backend, Observed, Phase, is_for};
use crate::fence::Refused;
use crate::machine::decide::Decision;
use crate::machine::room::{Room, room};
use crate::machine::rules::Rules;
use crate::machine::transitions::IllegalTransition;
use crate::machine::{Settings, Uid};
use crate::pools::managed::work::Work;
use crate::queue::{Decided, Demand, Progress};
use crate::workers::{Texts, Workers};

/// Longest pause that the API server is granted when it asks to be left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// Pause while the Lease is not renewed.
const NOT_LEADING: Duration = Duration::from_secs(2);

/// What the controller calls for each object, once at a time. Every log line from here on names the object.
#[tracing::instrument(level = "error", skip_all, fields(
    namespace = %object.namespace().unwrap_or_default(),
    htcjob = %object.name_any(),
    uid = %object.uid().unwrap_or_default(),
))]
pub(super) async fn reconcile(object: Arc<Observed>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let began = Instant::now();
    let result = Box::pin(pass(&object, &context)).await;
    context.metrics.reconciled(began.elapsed(), result.as_ref().err().map(ReconcileError::step_and_reason));
    if let Err(error) = &result
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, "a reconcile failed; it is tried again");
    }
    result.map(|again| again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// The steps; when the next pass is due, if nothing calls for one before.
async fn pass(object: &Observed, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    if let ControlFlow::Break(again) = guard(object, context) {
        return Ok(again);
    }
    let result = Box::pin(steps(object, context)).await;
    context.queues.looked_at(object, result.is_err());
    result
}

async fn steps(object: &Observed, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    match Backend::of(object) {
        Backend::HTCondor => judged(object, context).await,
        Backend::Kubernetes => Box::pin(pods::pass(object, context)).await,
    }
}

/// Those of an object whose jobs are HTCondor's.
async fn judged(object: &Observed, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let gathered = gather(object, context).await.map_err(ReconcileError::Gather)?;
    let decision = decide(object, &gathered, context).map_err(ReconcileError::Decide)?;
    let texts = texts(object, &gathered, &decision, context).await.map_err(ReconcileError::Gather)?;
    let room = context.queues.give_room().then(|| room(&gathered.facts, &decision, &Rules::ALL));
    let gave = commit(context, &gathered, &decision, room.as_ref()).await.map_err(ReconcileError::Commit)?;
    if let Some(room) = &room {
        count(object, context, &gathered, &decision, room);
    }
    asks(context, &gathered, &decision);
    let again = Box::pin(shown(object, context, &gathered, decision, texts)).await?;
    // What has no room any more is told so by the next pass.
    Ok(again.into_iter().chain(gave.then_some(Duration::ZERO)).min())
}

/// What it has of its queue counts from now on.
fn count(object: &Observed, context: &Context, gathered: &Gathered, decision: &Decision, room: &Room) {
    let (facts, plan) = (&gathered.facts, gathered.plan.as_ref());
    let after = decision.after.as_ref().and_then(|after| after.known.as_ref());
    let suspend = object.0.as_ref().is_ok_and(|job| job.spec.suspend);
    context.queues.decided(&Decided {
        object,
        uid: &facts.object.uid,
        name: &gathered.name,
        bound: facts.record.queue.as_deref(),
        seen_in: after.and_then(|known| known.queue.as_deref()),
        granted: &facts.record.granted,
        demand: plan.map(|plan| Demand::of(Some(&plan.options), &context.planner.site_defaults)),
        room,
        over: after.is_some_and(|known| known.phase == Phase::Completed),
        progress: Progress::of(facts, decision, suspend),
    });
}

/// It asks for workers by what is in the ledger now.
fn asks(context: &Context, gathered: &Gathered, decision: &Decision) {
    if gathered.place.name.is_some() {
        let facts = &gathered.facts;
        let record = decision.after.as_ref().unwrap_or(&facts.record);
        let uid = &facts.object.uid;
        let is_there = || {
            let shown = context.objects.get(&ObjectRef::new(&gathered.name.name).within(&gathered.name.namespace));
            shown.is_some_and(|shown| shown.uid().as_deref() == Some(uid.as_str()))
        };
        context.pools.set_work(uid, Work::known(facts, record), is_there);
    }
}

/// Acts, and publishes what has come of it.
async fn shown(
    object: &Observed,
    context: &Context,
    gathered: &Gathered,
    decision: Decision,
    texts: Option<Arc<Texts>>,
) -> Result<Option<Duration>, ReconcileError> {
    match Box::pin(act(context, object, gathered, decision, texts)).await {
        Acted::Over { again } => Ok(again),
        Acted::Shown(mut status) => {
            let refused = status.refused.take();
            let published = Box::pin(publish(context, object, gathered, *status)).await;
            let again = first_of(refused, published)?;
            context.volatile.succeeded(&gathered.facts.object.uid);
            Ok(again)
        }
    }
}

/// What was refused first is why the pass has failed; a status that was not written either is in the log.
fn first_of<T>(refused: Option<WriteError>, published: Result<T, WriteError>) -> Result<T, ReconcileError> {
    let Some(refused) = refused else { return published.map_err(ReconcileError::Publish) };
    if let Err(error) = published
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, "the status was not written");
    }
    Err(ReconcileError::Act(refused))
}

/// Whether this operator may handle this object now; else when to look again.
fn guard(object: &Observed, context: &Context) -> ControlFlow<Option<Duration>> {
    match context.fence.check() {
        Ok(()) => {}
        Err(Refused::Stopping) => return ControlFlow::Break(None),
        Err(Refused::NotLeading) => return ControlFlow::Break(Some(NOT_LEADING)),
    }
    if !is_for(&context.operator, object) {
        tracing::debug!("left alone: it is another operator's");
        context.queues.left_alone(object);
        return ControlFlow::Break(None);
    }
    ControlFlow::Continue(())
}

/// What the machine makes of the facts, within what the schedd is known to take at once and what the namespace may have.
fn decide(object: &Observed, gathered: &Gathered, context: &Context) -> Result<Decision, IllegalTransition> {
    let workers = gathered.place.pool.as_ref().map(|pool| &pool.workers);
    let most = workers.map_or(usize::MAX, Workers::jobs_per_submission);
    let jobs_per_attempt = context.settings.jobs_per_attempt.min(most);
    let refused_more = workers.and_then(Workers::refused_more);
    let (namespace, facts) = (&gathered.name.namespace, &gathered.facts);
    let namespace_room = context.namespace_jobs.room(namespace, facts);
    let own_pool = gathered.place.name.is_none();
    // Which schedd an HTCPool reaches may change without the operator's administrator: that a queue is lost is for a person to say.
    let birthdate_steady = if own_pool { context.settings.birthdate_steady } else { Duration::MAX };
    let settings =
        Settings { birthdate_steady, jobs_per_attempt, namespace_room, refused_more, ..context.settings.clone() };
    let decision = crate::machine::decide::decide(facts, context.clock.now(), &settings, &Rules::ALL);
    let reference = ObjectRef::from_obj(object);
    context.namespace_jobs.decided(namespace, &reference, facts, decision.as_ref().ok());
    decision
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that the controller asks for")]
pub(super) fn on_error(object: Arc<Observed>, error: &ReconcileError, context: Arc<Context>) -> Requeue {
    let uid = Uid::from(object.uid().unwrap_or_default().as_str());
    let pause = context.volatile.failed(&uid);
    Requeue::requeue(pause.max(error.retry_after().min(LEFT_ALONE)))
}
