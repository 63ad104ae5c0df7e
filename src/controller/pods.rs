//! One pass over an `HTCJob` whose jobs are Pods: the same steps, with facts, decision and effects of their own.

mod act;
mod gather;
mod refused;
mod show;

use std::time::Duration;

use kube::ResourceExt as _;

use super::commit::log;
use super::publish::publish_status;
use super::{Context, ReconcileError};
use crate::api::{BACKEND, Backend, Observed};
use crate::ledger::{LedgerError, SaveRuns};
use crate::machine::pods::{Decision, decide_pods};

use act::{Acted, act};
use gather::{Gathered, gather};
pub use refused::Creations;

/// Whether the jobs of this object are Pods. If its spec cannot be read, the annotation says so that came with the finalizer.
pub(super) fn has(object: &Observed) -> bool {
    match &object.0 {
        Ok(job) => job.spec.backend() == Backend::Kubernetes,
        Err(_) => object.annotations().get(BACKEND).is_some_and(|backend| *backend == Backend::Kubernetes.to_string()),
    }
}

/// The steps; when the next pass is due, if nothing calls for one before.
pub(super) async fn pass(object: &Observed, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let gathered = gather(object, context).await.map_err(ReconcileError::Gather)?;
    let decision =
        decide_pods(&gathered.facts, context.clock.now(), &context.settings).map_err(ReconcileError::Decide)?;
    commit(context, &gathered, &decision).await.map_err(ReconcileError::Commit)?;
    let Decision { after: record, action, again, .. } = decision;
    let again = match act(context, object, &gathered, action, again).await {
        Ok(Acted::Over { again }) => return Ok(again),
        Ok(Acted::Shown { again }) => again,
        Err(error) => {
            // What was refused hides nothing of what is to be shown.
            if let Err(error) = show(context, object, &gathered, record.as_ref(), again).await {
                tracing::warn!(%error, "the status was not written");
            }
            return Err(ReconcileError::Act(error));
        }
    };
    let again = show(context, object, &gathered, record.as_ref(), again).await.map_err(ReconcileError::Publish)?;
    context.volatile.succeeded(&gathered.facts.object.uid);
    Ok(again)
}

async fn show(
    context: &Context,
    object: &Observed,
    gathered: &Gathered,
    record: Option<&crate::machine::pods::Record>,
    again: Option<Duration>,
) -> Result<Option<Duration>, super::WriteError> {
    let Some(record) = record.filter(|_| gathered.facts.object.finalizer) else { return Ok(again) };
    let status = show::status(record, &gathered.facts, object);
    publish_status(context, object, (&gathered.name, &gathered.facts.object.uid), status, false, again).await
}

/// Writes the decision into the ledger, in one transaction; nothing is done or published before.
async fn commit(context: &Context, gathered: &Gathered, decision: &Decision) -> Result<(), LedgerError> {
    let Some(after) = &decision.after else { return Ok(()) };
    let before = &gathered.facts.record;
    let Some(known) = after.known.clone() else { return Ok(()) };
    let changed = !decision.changed.is_empty() || !decision.transitions.is_empty();
    if !changed && before.known.as_ref() == Some(&known) && before.job == after.job {
        return Ok(());
    }
    log(&decision.transitions, before.known.as_ref());
    let runs = decision.changed.iter().filter_map(|index| Some((*index, after.runs.get(index)?.clone())));
    let save = SaveRuns {
        uid: gathered.facts.object.uid.clone(),
        name: gathered.name.clone(),
        known,
        job: after.job.clone(),
        runs: runs.collect(),
        transitions: decision.transitions.clone(),
        now: context.clock.now(),
    };
    context.ledger.save_runs(save).await?;
    if !decision.transitions.is_empty() {
        context.publisher.news();
    }
    Ok(())
}
