//! Carries out decisions about jobs in HTCondor, or hands them to a worker.

use std::sync::Arc;
use std::time::Duration;

use htc_api::{Backend, ObservedHTCJob};
use htc_ledger::{LedgerError, RequestResult};
use htc_machine::decide::{Action, Decision, Polling};
use htc_machine::facts::{RequestFailure, Spec, SpecRefused};
use htc_machine::ids::{IDS_IN_LINE, id_lines};
use htc_machine::request::ReleasePermit;
use htc_machine::{Request, RequestKey, Work};
use htc_submit::spec::Texts;

use super::gather::CondorGathered;
use crate::backends::condor::workers::WorkItem;
use crate::htcjob::pass::{ActOutcome, Pass, requeue_unless_done};
use crate::htcjob::spec::items;
use crate::htcjob::{ActError, Context};
use kube::ResourceExt as _;

/// Updates the tracker's polling of the object and carries out the action.
pub(super) async fn act(
    pass: &Pass<'_>,
    gathered: &CondorGathered,
    decision: &Decision,
) -> Result<ActOutcome, ActError> {
    let context = pass.context;
    let mut requeue_after = decision.requeue_after;
    let mut about_to_change =
        gathered.facts.in_flight.is_some() || matches!(decision.details.polling, Polling::Always { urgent: true, .. });
    if let Some(pool) = &gathered.place.pool {
        let jobs = gathered.facts.object.spec.as_ref().map_or(0, Spec::count);
        pool.tracker.watch(&pass.uid, &pass.reference(), decision.details.polling.clone(), jobs);
    }
    match &decision.action {
        Action::Dispatch(Request { work: Work::AttachFinalizer, .. }) => {
            if decision.after.is_none() {
                context.memory.record_claim(&pass.uid);
            }
            let done = pass.attach_finalizer(Backend::HTCondor, gathered.place.name.as_ref()).await?;
            return Ok(ActOutcome::Done { requeue_after: requeue_unless_done(requeue_after, done) });
        }
        Action::Dispatch(Request { work: Work::ReleaseFinalizer(permit), .. }) => {
            log_abandoned_jobs(permit, pass.object);
            let done = pass.release_finalizer().await?;
            forget(pass, gathered);
            return Ok(ActOutcome::Done { requeue_after: requeue_unless_done(None, done) });
        }
        Action::Dispatch(Request { work: Work::DeleteObject, .. }) => {
            requeue_after = requeue_unless_done(requeue_after, pass.delete_object().await?);
        }
        Action::Dispatch(request) => {
            let taken = hand_over(pass, gathered, request.clone()).await?;
            about_to_change |= taken;
            requeue_after = requeue_unless_done(requeue_after, taken);
        }
        Action::Cancel(key) => {
            if context.requests.cancel(key) {
                requeue_after = Some(Duration::ZERO);
            }
        }
        Action::Nothing => {}
    }
    Ok(ActOutcome::Publish { requeue_after, about_to_change })
}

/// Hands a request to a worker of the pool. Returns whether it was taken.
async fn hand_over(pass: &Pass<'_>, gathered: &CondorGathered, request: Request) -> Result<bool, ActError> {
    let Some(pool) = &gathered.place.pool else { return Ok(fail(pass.context, gathered, request.key).await) };
    if matches!(request.work, Work::Submit(..)) && !is_there(pass) {
        return Ok(false);
    }
    let item = WorkItem {
        texts: texts(pass, gathered, &request).await?,
        request,
        name: pass.name.clone(),
        object: pass.reference(),
        identity: gathered.identity.clone(),
        adopted: gathered.facts.record.has_inherited(),
        plan: gathered.plan.clone(),
    };
    Ok(pool.workers.hand_over(item))
}

/// Whether the object has not been deleted since the pass began.
fn is_there(pass: &Pass<'_>) -> bool {
    let there = pass.context.objects.get(&pass.reference());
    there.is_some_and(|there| there.uid() == pass.object.uid())
}

/// Returns the texts that a submission takes from the spec; none for other requests.
async fn texts(
    pass: &Pass<'_>,
    gathered: &CondorGathered,
    request: &Request,
) -> Result<Option<Arc<Texts>>, LedgerError> {
    let (Ok(job), Work::Submit(indices, _)) = (&pass.object.0, &request.work) else { return Ok(None) };
    Ok(Some(Arc::new(Texts {
        source: job.spec.source().unwrap_or_default().to_owned(),
        items: items(pass, job, indices).await?,
        input_bytes: gathered.inputs.iter().filter_map(|input| usize::try_from(input.bytes).ok()).sum(),
    })))
}

/// Records a failed request for a pool that does not exist. It is retried with the usual back-off, and abandoning the
/// jobs does not wait for it. Returns whether the failure was recorded.
async fn fail(context: &Context, gathered: &CondorGathered, key: RequestKey) -> bool {
    let failure =
        gathered.place.refusal.clone().map(|SpecRefused { reason, message }| RequestFailure::new(reason, message));
    let result = RequestResult::without_output(key, context.clock.now(), failure);
    match context.ledger.resolve(vec![result]).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "failure of a request not recorded");
            false
        }
    }
}

/// Logs all ids of jobs that may be left when an administrator abandons an object; an Event has no space for many. The
/// status may list ids that the ledger lacks.
fn log_abandoned_jobs(permit: &ReleasePermit, object: &ObservedHTCJob) {
    let ReleasePermit::Abandoned(ids) = permit else { return };
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let published = status.and_then(|status| status.jobs.as_deref()).unwrap_or_default();
    tracing::warn!(jobs = ids.len(), published, "HTCJob abandoned by annotation");
    for ids in id_lines(ids, IDS_IN_LINE) {
        tracing::warn!(%ids, "jobs may be left in HTCondor");
    }
}

/// Forgets an object that is gone or will be in a moment.
fn forget(pass: &Pass<'_>, gathered: &CondorGathered) {
    let (context, uid) = (pass.context, &pass.uid);
    if let Some(pool) = &gathered.place.pool {
        pool.tracker.watch(uid, &pass.reference(), Polling::Off, 0);
    }
    context.forget(uid);
}
