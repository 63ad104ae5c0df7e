//! What was decided is carried out here, or handed to a worker.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use serde_json::json;

use super::gather::Gathered;
use super::{Context, WriteError};
use crate::api::{BACKEND, Backend, CLAIM, FINALIZER, OLD_FINALIZER, OPERATOR, ObjectName, Observed, POOL};
use crate::failpoint::{Point, around};
use crate::ledger::RequestResult;
use crate::machine::decide::{Action, Decision, Look};
use crate::machine::facts::{Failure, Record, Spec, SpecRefused};
use crate::machine::ids::{IDS_IN_LINE, id_lines};
use crate::machine::request::ReleasePermit;
use crate::machine::{Request, RequestKey, Work};
use crate::workers::{Texts, WorkItem};

/// Pause after what was refused for the moment: the object had changed, or a worker's queue was full.
const BUSY: Duration = Duration::from_secs(1);

/// What is left to be done.
pub(super) enum Acted {
    /// Nothing: the object has become another one, or is gone.
    Over {
        /// When the next pass is due.
        again: Option<Duration>,
    },
    /// Its status may be another one.
    Shown(Box<ToShow>),
}

/// What the status is made from.
pub(super) struct ToShow {
    /// What the ledger has now.
    pub(super) record: Option<Record>,
    /// When the next pass is due.
    pub(super) again: Option<Duration>,
    /// The status will soon be another one.
    pub(super) about_to_change: bool,
    /// Why what was decided was not carried out. It hides nothing of what is to be shown.
    pub(super) refused: Option<WriteError>,
}

/// Tells the tracker what to look for, and does what was decided. If the API server refuses that, its answer comes with what is to
/// be shown.
pub(super) async fn act(
    context: &Context,
    object: &Observed,
    gathered: &Gathered,
    decision: Decision,
    texts: Option<Arc<Texts>>,
) -> Acted {
    let Decision { after: record, action, look, mut again, .. } = decision;
    let mut refused = None;
    let (uid, name) = (&gathered.facts.object.uid, &gathered.name);
    let mut about_to_change = gathered.facts.in_flight.is_some() || matches!(look, Look::Every { soon: true, .. });
    let reference = ObjectRef::from_obj(object);
    if let Some(pool) = &gathered.place.pool {
        let jobs = gathered.facts.object.spec.as_ref().map_or(0, Spec::count);
        pool.tracker.watch(uid, &reference, look, jobs, gathered.still_inherited());
    }
    match action {
        Action::Hand(Request { work: Work::AttachFinalizer, .. }) => {
            if record.is_none() {
                context.volatile.claim(uid);
            }
            let pool = gathered.place.name.as_ref();
            match attach(context, object, name, pool, Backend::HTCondor).await {
                Ok(done) => return Acted::Over { again: unless_done(again, done) },
                Err(error) => refused = Some(error),
            }
        }
        Action::Hand(Request { work: Work::ReleaseFinalizer(permit), .. }) => {
            name_what_is_left(&permit, object);
            match release(context, object, name).await {
                Ok(done) => {
                    forget(context, gathered, &reference);
                    return Acted::Over { again: unless_done(None, done) };
                }
                Err(error) => refused = Some(error),
            }
        }
        Action::Hand(Request { work: Work::DeleteObject, .. }) => match delete(context, object, name).await {
            Ok(done) => again = unless_done(again, done),
            Err(error) => refused = Some(error),
        },
        Action::Hand(request) => {
            let (plan, identity) = (gathered.plan.clone(), gathered.identity.clone());
            let adopted = gathered.facts.record.has_inherited();
            let (name, object) = (name.clone(), reference);
            let item = WorkItem { request, name, object, identity, adopted, plan, texts };
            let taken = match &gathered.place.pool {
                Some(pool) => pool.workers.hand_over(item),
                None => fail(context, gathered, item.request.key).await,
            };
            about_to_change |= taken;
            again = unless_done(again, taken);
        }
        Action::Cancel(key) => {
            if context.requests.cancel(&key) {
                again = Some(Duration::ZERO);
            }
        }
        Action::Nothing => {}
    }
    // The next try may be a long time away.
    about_to_change &= refused.is_none();
    Acted::Shown(Box::new(ToShow { record, again, about_to_change, refused }))
}

/// A request for a pool that is not there has failed: it is tried again after the usual pauses, and who abandons what is there does
/// not wait for it. Whether that is recorded.
async fn fail(context: &Context, gathered: &Gathered, key: RequestKey) -> bool {
    let failure = gathered.place.trouble.clone().map(|SpecRefused { reason, message }| Failure::new(reason, message));
    let result = RequestResult::without_output(key, context.clock.now(), failure);
    match context.ledger.resolve(vec![result]).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "that a request has failed was not recorded");
            false
        }
    }
}

/// What was refused is tried again even if the watch shows no change: a conflict that was made up on the way, or whose change
/// was seen already, would never be.
pub(super) fn unless_done(again: Option<Duration>, done: bool) -> Option<Duration> {
    if done { again } else { Some(sooner(again, BUSY)) }
}

/// The shorter of two pauses.
pub(super) fn sooner(again: Option<Duration>, pause: Duration) -> Duration {
    again.map_or(pause, |again| again.min(pause))
}

/// All ids that may be left when an admin lets an object go: an Event has no room for many. The status may know ids that
/// the ledger lacks.
fn name_what_is_left(permit: &ReleasePermit, object: &Observed) {
    let ReleasePermit::Abandoned(ids) = permit else { return };
    let status = object.0.as_ref().ok().and_then(|job| job.status.as_ref());
    let published = status.and_then(|status| status.jobs.as_deref()).unwrap_or_default();
    tracing::warn!(jobs = ids.len(), published, "abandoned by annotation");
    for ids in id_lines(ids, IDS_IN_LINE) {
        tracing::warn!(%ids, "these jobs may be left in HTCondor");
    }
}

/// Attaches the finalizer and the claim in one patch, only if the object is still the one that was seen.
pub(super) async fn attach(
    context: &Context,
    object: &Observed,
    name: &ObjectName,
    pool: Option<&ObjectName>,
    backend: Backend,
) -> Result<bool, WriteError> {
    let mut finalizers = object.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let pool = pool.map(ObjectName::to_string);
    let backend = backend.annotation();
    let annotations = json!({ CLAIM: context.ledger.id(), OPERATOR: context.operator, POOL: pool, BACKEND: backend });
    let metadata = json!({ "finalizers": finalizers, "annotations": annotations });
    let patched = patch_metadata(context, object, name, "attach the finalizer of HTCJob", metadata);
    around(Point::BeforeFinalizerAttached, patched, Point::AfterFinalizerAttached).await
}

/// Takes our finalizers away, only if the object is still the one that was seen. One that is gone already is fine.
pub(super) async fn release(context: &Context, object: &Observed, name: &ObjectName) -> Result<bool, WriteError> {
    let finalizers: Vec<&String> =
        object.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER && *finalizer != OLD_FINALIZER).collect();
    let patched =
        patch_metadata(context, object, name, "release the finalizer of HTCJob", json!({ "finalizers": finalizers }));
    around(Point::BeforeFinalizerReleased, patched, Point::AfterFinalizerReleased).await
}

/// Deletes an object whose time after its end is over, only if it is still the one that was seen.
pub(super) async fn delete(context: &Context, object: &Observed, name: &ObjectName) -> Result<bool, WriteError> {
    let api: Api<Observed> = Api::namespaced(context.client.clone(), &name.namespace);
    let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    let deleted = context.writes.write("delete HTCJob", name, api.delete(&name.name, &parameters));
    let done = around(Point::BeforeObjectDeleted, deleted, Point::AfterObjectDeleted).await?;
    if done {
        tracing::info!("deleted: ttlSecondsAfterFinished has passed");
    }
    Ok(done)
}

/// A merge patch that carries uid and resourceVersion: the API server refuses it when anything has changed since.
async fn patch_metadata(
    context: &Context,
    object: &Observed,
    name: &ObjectName,
    what: &'static str,
    mut metadata: serde_json::Value,
) -> Result<bool, WriteError> {
    metadata["uid"] = json!(object.uid());
    metadata["resourceVersion"] = json!(object.resource_version());
    let api: Api<Observed> = Api::namespaced(context.client.clone(), &name.namespace);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let parameters = PatchParams::default();
    context.writes.write(what, name, api.patch(&name.name, &parameters, &patch)).await
}

/// The object is gone, or will be in a moment.
fn forget(context: &Context, gathered: &Gathered, reference: &ObjectRef<Observed>) {
    let uid = &gathered.facts.object.uid;
    if let Some(pool) = &gathered.place.pool {
        pool.tracker.watch(uid, reference, Look::Nothing, 0, Arc::default());
    }
    context.pools.forget(uid);
    context.namespace_jobs.forget(uid);
    context.queues.forget(uid);
    context.volatile.forget(uid);
}
