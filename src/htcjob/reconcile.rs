//! One reconcile of one object. After a guard it has five steps, each with its own error: gather the facts, decide,
//! commit the decision and report it to queues and pools, act on it, publish the status.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_api::{Backend, ObservedHTCJob, is_for_operator};
use htc_machine::Uid;
use htc_support::fence::FenceClosed;
use kube::ResourceExt as _;
use kube::runtime::controller::Action as Requeue;

use super::condor::Condor;
use super::memory::Deferral;
use super::pass::{ActOutcome, JobBackend, Pass};
use super::pods::Pods;
use super::publish::publish;
use super::{ActError, Context, ReconcileError, WriteError};

/// Maximum `Retry-After` of the API server that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Interval between two checks of the fence while this operator does not hold the Lease.
const FENCE_RECHECK: Duration = Duration::from_secs(2);

/// Reconciles one object; the controller never runs it twice at once for the same object. Every log line inside names
/// the object.
#[tracing::instrument(level = "error", skip_all, fields(
    namespace = %object.namespace().unwrap_or_default(),
    htcjob = %object.name_any(),
    uid = %object.uid().unwrap_or_default(),
))]
pub(super) async fn reconcile(object: Arc<ObservedHTCJob>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let began = Instant::now();
    let result = Box::pin(guarded(&object, &context)).await;
    context.metrics.reconciled(began.elapsed(), result.as_ref().err().map(ReconcileError::step_and_reason));
    if let Err(error) = &result
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, "reconcile failed, retrying");
    }
    result.map(|requeue_after| requeue_after.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// Guards the object and passes it through the steps of its backend. Returns the time until the next reconcile, unless
/// an event triggers one earlier.
async fn guarded(object: &ObservedHTCJob, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    if let ControlFlow::Break(requeue_after) = guard(object, context) {
        return Ok(requeue_after);
    }
    let pass = Pass::new(object, context)?;
    let result = match Backend::of(object) {
        Backend::HTCondor => Box::pin(steps::<Condor>(&pass)).await,
        Backend::Kubernetes => Box::pin(steps::<Pods>(&pass)).await,
    };
    context.queues.record_reconciled(object, result.is_err());
    result
}

/// Gathers, decides, commits, acts and publishes.
async fn steps<B: JobBackend>(pass: &Pass<'_>) -> Result<Option<Duration>, ReconcileError> {
    let memory = &pass.context.memory;
    if let Some(rest) = memory.read_backoff(&pass.uid, pass.now()) {
        return Ok(Some(rest));
    }
    let mut gathered = B::gather(pass).await?;
    let decision = B::decide(pass, &mut gathered)?;
    let outcome = B::outcome(pass, &gathered, &decision);
    let quota = outcome.returned_quota();
    let returned = !quota.is_empty();
    let written = B::commit(pass, &gathered, &decision, quota).await?;
    pass.report(&outcome);
    let (requeue_after, about_to_change, failed) = match Box::pin(B::act(pass, &gathered, &decision)).await {
        Ok(ActOutcome::Done { requeue_after }) => return Ok(requeue_after),
        Ok(ActOutcome::Publish { requeue_after, about_to_change }) => (requeue_after, about_to_change, None),
        // The status is published nevertheless: the next attempt may be far away.
        Err(error) => (None, false, Some(error)),
    };
    let deferral = if about_to_change { Deferral::AllButNews } else { B::DEFERRAL };
    let published = match B::status(pass, &gathered, &decision) {
        Some(status) => Box::pin(publish(pass, status, deferral, requeue_after)).await,
        None => Ok(requeue_after),
    };
    let requeue_after = first_error(failed, published)?;
    memory.reset_backoff(&pass.uid);
    // If quota was returned, the next reconcile reports in the status that those jobs no longer have it.
    Ok(requeue_after.into_iter().chain((written && returned).then_some(Duration::ZERO)).min())
}

/// Returns the error of the action first, because the reconcile failed for it. Logs an error of the status write.
fn first_error<T>(failed: Option<ActError>, published: Result<T, WriteError>) -> Result<T, ReconcileError> {
    let Some(failed) = failed else { return Ok(published?) };
    if let Err(error) = published
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, "status not written");
    }
    Err(failed.into())
}

/// Continues if this operator may handle the object now. Otherwise breaks with the time until the next check.
fn guard(object: &ObservedHTCJob, context: &Context) -> ControlFlow<Option<Duration>> {
    match context.fence.check() {
        Ok(()) => {}
        Err(FenceClosed::Stopping) => return ControlFlow::Break(None),
        Err(FenceClosed::NotLeading) => return ControlFlow::Break(Some(FENCE_RECHECK)),
    }
    if !is_for_operator(&context.operator, object) {
        tracing::debug!("HTCJob of another operator ignored");
        context.queues.record_foreign(object);
        return ControlFlow::Break(None);
    }
    ControlFlow::Continue(())
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that the controller asks for")]
pub(super) fn on_error(object: Arc<ObservedHTCJob>, error: &ReconcileError, context: Arc<Context>) -> Requeue {
    let uid = Uid::from(object.uid().unwrap_or_default().as_str());
    let pause = context.memory.next_backoff(&uid);
    Requeue::requeue(pause.max(error.retry_after().min(MAX_RETRY_AFTER)))
}
