//! One pass over an `HTCJob` whose jobs are Pods: the same steps, with facts, decision and effects of their own.

mod act;
mod gather;
mod show;

use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::commit::log;
use super::publish::publish_status;
use super::volatile::MayWait;
use super::{Context, ReconcileError};
use crate::api::{Observed, Phase};
use crate::kubernetes_backend::{asked_for, progress};
use crate::ledger::{LedgerError, SaveRuns};
use crate::machine::Uid;
use crate::machine::pods::{Decision, decide_pods, room, share, share_after};
use crate::machine::room::Room;
use crate::machine::runs::Record;
use crate::machine::transitions::IllegalTransition;
use crate::queue::{Decided, Demand};

use act::{Acted, act};
use gather::{Gathered, gather};

/// A Job that the watch does not show is asked for again after this time.
const UNWATCHED: Duration = Duration::from_secs(10);

/// The steps; when the next pass is due, if nothing calls for one before.
pub(super) async fn pass(object: &Observed, context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let uid = Uid::from(object.uid().unwrap_or_default().as_str());
    if let Some(rest) = context.volatile.rests(&uid, context.clock.now()) {
        return Ok(Some(rest));
    }
    let mut gathered = gather(object, context).await.map_err(ReconcileError::Gather)?;
    let decision = decide(object, &mut gathered, context).map_err(ReconcileError::Decide)?;
    let room = context.queues.give_room().then(|| room(&gathered.facts, &decision));
    let gave = commit(context, &gathered, &decision, room.as_ref()).await.map_err(ReconcileError::Commit)?;
    if let Some(room) = &room {
        count(context, object, &gathered, &decision, room);
    }
    let Decision { after: record, action, again, .. } = decision;
    let again = again.into_iter().chain(gathered.unwatched.then_some(UNWATCHED));
    // What has no room any more is told so by the next pass.
    let again = again.chain(gave.then_some(Duration::ZERO)).min();
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
    record: Option<&Record>,
    again: Option<Duration>,
) -> Result<Option<Duration>, super::WriteError> {
    let Some(record) = record.filter(|_| gathered.facts.object.finalizer) else { return Ok(again) };
    let status = show::status(record, &gathered.facts, object);
    let of = (&gathered.name, &gathered.facts.object.uid);
    publish_status(context, object, of, status, MayWait::Counts, again).await
}

/// What the machine makes of the facts, within what the namespace may have.
fn decide(object: &Observed, gathered: &mut Gathered, context: &Context) -> Result<Decision, IllegalTransition> {
    let (namespace, wanted) = (&gathered.name.namespace, share(&gathered.facts));
    let room = context.namespace_jobs.share(namespace, &gathered.facts.object.uid, wanted);
    gathered.facts.namespace_room = room;
    let decision = decide_pods(&gathered.facts, context.clock.now(), &context.settings);
    let has = decision.as_ref().map_or(wanted.has, |decision| share_after(&gathered.facts, decision));
    let waits = room.is_some_and(|room| room < wanted.wants);
    let (uid, reference) = (&gathered.facts.object.uid, ObjectRef::from_obj(object));
    context.namespace_jobs.shared(namespace, &reference, uid, has, waits);
    decision
}

/// What it has of its queue counts from now on.
fn count(context: &Context, object: &Observed, gathered: &Gathered, decision: &Decision, room: &Room) {
    let (facts, name) = (&gathered.facts, &gathered.name);
    let resources = object.0.as_ref().ok().map(|job| job.spec.resources.clone().unwrap_or_default());
    let after = decision.after.as_ref().and_then(|after| after.known.as_ref());
    let progress = object.0.as_ref().ok().and_then(|job| {
        let pod = serde_json::to_value(asked_for(&job.spec, &context.backends.pods.site)).ok()?;
        progress(facts, decision, room, job.spec.suspend, pod)
    });
    context.queues.decided(&Decided {
        object,
        uid: &facts.object.uid,
        name,
        bound: facts.record.queue.as_deref(),
        seen_in: after.and_then(|known| known.queue.as_deref()),
        granted: &facts.record.granted,
        demand: resources.as_ref().map(Demand::of_resources),
        room,
        over: after.is_some_and(|known| known.phase == Phase::Completed),
        progress,
    });
}

/// Writes the decision into the ledger, in one transaction; nothing is done or published before.
async fn commit(
    context: &Context,
    gathered: &Gathered,
    decision: &Decision,
    room: Option<&Room>,
) -> Result<bool, LedgerError> {
    let Some(after) = &decision.after else { return Ok(false) };
    let before = &gathered.facts.record;
    let Some(known) = after.known.clone() else { return Ok(false) };
    let gives_back = room.map(|room| room.gives_back.clone()).unwrap_or_default();
    let changed = !decision.changed.is_empty() || !decision.transitions.is_empty() || !gives_back.is_empty();
    if !changed && before.known.as_ref() == Some(&known) && before.job == after.job {
        return Ok(false);
    }
    let gave = !gives_back.is_empty();
    log(&decision.transitions, before.known.as_ref());
    let runs = decision.changed.iter().filter_map(|index| Some((*index, after.runs.get(index)?.clone())));
    let save = SaveRuns {
        uid: gathered.facts.object.uid.clone(),
        name: gathered.name.clone(),
        known,
        job: after.job.clone(),
        runs: runs.collect(),
        gives_back,
        transitions: decision.transitions.clone(),
        now: context.clock.now(),
    };
    context.ledger.save_runs(save).await?;
    if !decision.transitions.is_empty() {
        context.publisher.news();
    }
    Ok(gave)
}
