//! One pass over one object.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action as Requeue;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use super::gather::{Gathered, gather};
use super::memory::Publish;
use super::publish::{publish, status};
use super::{Context, ReconcileError};
use crate::api::{CLAIM, FINALIZER, OLD_FINALIZER, OPERATOR, ObjectName, Observed};
use crate::failpoint::{Point, around};
use crate::fence::Refused;
use crate::kubernetes::{limited, unless_changed};
use crate::ledger::Save;
use crate::machine::decide::{Action, Decision, Look, decide};
use crate::machine::facts::Known;
use crate::machine::ids::{IDS_IN_LINE, id_lines};
use crate::machine::request::ReleasePermit;
use crate::machine::rules::Rules;
use crate::machine::transitions::{Transition, Trigger};
use crate::machine::{Attempt, Request, Settings, Uid, Work};
use crate::metrics;
use crate::workers::Job;

/// Longest pause that the API server is granted when it asks to be left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// Pause while the Lease is not renewed.
const NOT_LEADING: Duration = Duration::from_secs(2);
/// Pause when a worker's queue is full.
const BUSY: Duration = Duration::from_secs(1);

pub(super) async fn reconcile(object: Arc<Observed>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    match context.fence.check() {
        Ok(()) => {}
        Err(Refused::Stopping) => return Ok(Requeue::await_change()),
        Err(Refused::NotLeading) => return Ok(Requeue::requeue(NOT_LEADING)),
    }
    if object.annotations().get(OPERATOR).is_some_and(|operator| *operator != context.operator) {
        tracing::debug!(object = %ObjectRef::from_obj(object.as_ref()), "left alone: it is another operator's");
        return Ok(Requeue::await_change());
    }
    let gathered = gather(&object, &context).await?;
    let jobs_per_attempt = context.settings.jobs_per_attempt.min(context.workers.jobs_per_submission());
    let refused_more = context.workers.refused_more();
    let settings = Settings { jobs_per_attempt, refused_more, ..context.settings.clone() };
    let decision = decide(&gathered.facts, context.clock.now(), &settings, &Rules::ALL);
    let uid = gathered.facts.object.uid.clone();
    commit(&context, &gathered, &decision).await?;
    let reference = ObjectRef::from_obj(object.as_ref());
    context.tracker.watch(&uid, &reference, decision.look.clone(), gathered.still_inherited());
    let mut again = decision.again;
    let mut about_to_change =
        gathered.facts.in_flight.is_some() || matches!(decision.look, Look::Every { soon: true, .. });
    match decision.action {
        Action::Hand(Request { work: Work::AttachFinalizer, .. }) => {
            if decision.after.is_none() {
                context.memory.claim(&uid);
            }
            let done = attach(&context, &object, &gathered.name).await?;
            return Ok(requeue(sooner(again, done)));
        }
        Action::Hand(Request { work: Work::ReleaseFinalizer(permit), .. }) => {
            name_what_is_left(&permit, &object, &gathered.name, &uid);
            let done = release(&context, &object, &gathered.name).await?;
            forget(&context, &uid, &reference);
            return Ok(requeue(sooner(None, done)));
        }
        Action::Hand(Request { work: Work::DeleteObject, .. }) => {
            let done = delete(&context, &object, &gathered.name).await?;
            again = sooner(again, done);
        }
        Action::Hand(request) => {
            let (name, plan, identity) = (gathered.name.clone(), gathered.plan.clone(), gathered.identity.clone());
            let job = Job { request, name, object: reference, identity, plan };
            if context.workers.hand_over(job) {
                about_to_change = true;
            } else {
                again = Some(again.map_or(BUSY, |again| again.min(BUSY)));
            }
        }
        Action::Cancel(key) => context.workers.cancel(&key),
        Action::Nothing => {}
    }
    if let Some(record) = decision.after.as_ref().filter(|_| gathered.facts.object.finalizer) {
        let old = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
        let status = status(record, &gathered.facts, old, &context.schedd.name, object.meta().generation);
        match context.memory.publish(
            &uid,
            &status,
            old,
            about_to_change,
            || context.workers.waiting(),
            context.clock.now(),
        ) {
            Publish::Known => {}
            Publish::Later(pause) => again = Some(again.map_or(pause, |again| again.min(pause))),
            Publish::Now => {
                let done = publish(&context, &gathered.name, &uid, status).await?;
                again = sooner(again, done);
            }
        }
    }
    context.memory.succeeded(&uid);
    Ok(requeue(again))
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that the controller asks for")]
pub(super) fn on_error(object: Arc<Observed>, error: &ReconcileError, context: Arc<Context>) -> Requeue {
    let uid = Uid::from(object.uid().unwrap_or_default().as_str());
    let pause = context.memory.failed(&uid);
    let asked_for = match error {
        ReconcileError::Api(error) => error.retry_after(),
        ReconcileError::Ledger(_) | ReconcileError::Refused(_) | ReconcileError::Nameless(_) => Duration::ZERO,
    };
    Requeue::requeue(pause.max(asked_for.min(LEFT_ALONE)))
}

/// A write that the API server refused as a conflict is tried again even if the watch shows no change: one that was made
/// up on the way, or whose change was seen already, would never be.
fn sooner(again: Option<Duration>, done: bool) -> Option<Duration> {
    if done { again } else { Some(again.map_or(BUSY, |again| again.min(BUSY))) }
}

fn requeue(again: Option<Duration>) -> Requeue {
    again.map_or_else(Requeue::await_change, Requeue::requeue)
}

/// Writes the decision into the ledger, in one transaction; nothing is handed over or published before.
async fn commit(context: &Context, gathered: &Gathered, decision: &Decision) -> Result<(), ReconcileError> {
    let Some(after) = &decision.after else { return Ok(()) };
    let before = gathered.facts.record.known.as_ref();
    let Some(known) = after.known.clone() else { return Ok(()) };
    let nothing_new = decision.transitions.is_empty() && decision.changed.is_empty() && before == Some(&known);
    if nothing_new {
        return Ok(());
    }
    let uid = gathered.facts.object.uid.clone();
    let jobs =
        decision.changed.iter().filter_map(|index| after.jobs.get(index).map(|job| (*index, job.clone()))).collect();
    log(&gathered.name, &uid, &decision.transitions, before);
    let told = !decision.transitions.is_empty();
    let known_before: BTreeSet<Attempt> = gathered.facts.record.jobs.values().map(|job| job.attempt).collect();
    let attempts: BTreeSet<Attempt> =
        decision.changed.iter().filter_map(|index| after.jobs.get(index)).map(|job| job.attempt).collect();
    let submitted = attempts.difference(&known_before).filter(|attempt| **attempt != Attempt::INHERITED);
    submitted.for_each(|_| metrics::attempt("accepted"));
    let save = Save {
        sandbox: context.planner.sandbox(&uid).display().to_string(),
        uid,
        name: gathered.name.clone(),
        known,
        jobs,
        schedd: context.schedd.name.clone(),
        transitions: decision.transitions.clone(),
        inherited: gathered.inherited(),
        refuted: decision.refuted.clone(),
        now: context.clock.now(),
    };
    context.ledger.save(save).await?;
    if told {
        context.publisher.news();
    }
    Ok(())
}

/// One line for each transition.
fn log(name: &ObjectName, uid: &Uid, transitions: &[Transition], before: Option<&Known>) {
    for transition in transitions {
        let phase = |phase: Option<crate::api::Phase>| phase.map_or("-", <&str>::from);
        let (from, to) = (phase(transition.from), phase(transition.to));
        let jobs =
            format!("{} active, {} succeeded, {} failed", transition.active, transition.succeeded, transition.failed);
        let reason = &transition.reason;
        let ObjectName { namespace, name } = name;
        let quiet = transition.trigger == Trigger::ConditionChanged && before.is_none();
        if transition.warning && !quiet {
            tracing::warn!(%namespace, %name, %uid, from, to, reason, jobs, "{}", transition.detail);
        } else {
            tracing::info!(%namespace, %name, %uid, from, to, reason, jobs, "{}", transition.detail);
        }
    }
}

/// All ids that may be left when an admin lets an object go: an Event has no room for many. The status may know ids that
/// the ledger lacks.
fn name_what_is_left(permit: &ReleasePermit, object: &Observed, name: &ObjectName, uid: &Uid) {
    let ReleasePermit::Abandoned(ids) = permit else { return };
    let ObjectName { namespace, name } = name;
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let published = status.and_then(|status| status.jobs.as_deref()).unwrap_or_default();
    tracing::warn!(%namespace, %name, %uid, jobs = ids.len(), published, "abandoned by annotation");
    for ids in id_lines(ids, IDS_IN_LINE) {
        tracing::warn!(%namespace, %name, %uid, %ids, "these jobs may be left in HTCondor");
    }
}

/// Attaches the finalizer and the claim in one patch, only if the object is still the one that was seen.
async fn attach(context: &Context, object: &Observed, name: &ObjectName) -> Result<bool, ReconcileError> {
    let mut finalizers = object.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let metadata =
        json!({ "finalizers": finalizers, "annotations": { CLAIM: context.ledger.id(), OPERATOR: context.operator } });
    let patched = patch_metadata(context, object, name, "attach the finalizer of HTCJob", metadata);
    around(Point::BeforeFinalizerAttached, patched, Point::AfterFinalizerAttached).await
}

/// Takes our finalizers away, only if the object is still the one that was seen. One that is gone already is fine.
async fn release(context: &Context, object: &Observed, name: &ObjectName) -> Result<bool, ReconcileError> {
    let finalizers: Vec<&String> =
        object.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER && *finalizer != OLD_FINALIZER).collect();
    let patched =
        patch_metadata(context, object, name, "release the finalizer of HTCJob", json!({ "finalizers": finalizers }));
    around(Point::BeforeFinalizerReleased, patched, Point::AfterFinalizerReleased).await
}

/// Deletes an object whose time after its end is over, only if it is still the one that was seen.
async fn delete(context: &Context, object: &Observed, name: &ObjectName) -> Result<bool, ReconcileError> {
    context.fence.check()?;
    let ObjectName { namespace, name: object_name } = name;
    tracing::info!(%namespace, name = %object_name, "deleted: ttlSecondsAfterFinished has passed");
    let api: Api<Observed> = Api::namespaced(context.client.clone(), namespace);
    let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    let deleted = limited("delete HTCJob", name, api.delete(object_name, &parameters));
    Ok(unless_changed(around(Point::BeforeObjectDeleted, deleted, Point::AfterObjectDeleted).await)?)
}

/// A merge patch that carries uid and resourceVersion: the API server refuses it when anything has changed since.
async fn patch_metadata(
    context: &Context,
    object: &Observed,
    name: &ObjectName,
    what: &'static str,
    mut metadata: serde_json::Value,
) -> Result<bool, ReconcileError> {
    metadata["uid"] = json!(object.uid());
    metadata["resourceVersion"] = json!(object.resource_version());
    context.fence.check()?;
    let api: Api<Observed> = Api::namespaced(context.client.clone(), &name.namespace);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let parameters = PatchParams::default();
    Ok(unless_changed(limited(what, name, api.patch(&name.name, &parameters, &patch)).await)?)
}

/// The object is gone, or will be in a moment.
fn forget(context: &Context, uid: &Uid, reference: &ObjectRef<Observed>) {
    context.tracker.watch(uid, reference, Look::Nothing, Arc::default());
    context.schedd.names.forget(uid);
    context.memory.forget(uid);
}
