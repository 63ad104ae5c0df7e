//! HTCJobs that Kubernetes deleted although they had the finalizer.
//!
//! The API server reads an object, sees no finalizer, and deletes it unconditionally: a finalizer that is added in
//! between holds nothing (kubernetes/kubernetes#77988). The watch then shows a deleted object with the finalizer and without
//! a time of deletion. Any other object gets that time first, also one whose finalizer a person removes.

use std::sync::Arc;
use std::time::Duration;

use htc_api::{Backend, FINALIZER, ObjectName, ObservedHTCJob};
use htc_ledger::LedgerError;
use htc_machine::request::{RemovalScope, Work};
use htc_machine::{Request, RequestKey, RequestKind, Timestamp, Uid};
use htc_support::retry::Backoff;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use super::Context;
use super::condor::identity_of;
use crate::backends::condor::workers::WorkItem;

/// First pause between tries.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause between tries.
const LONGEST: Duration = Duration::from_secs(30);
/// Time in which a pass that began before the deletion may still hand over a submission.
const GRACE: Duration = Duration::from_secs(30);
/// Time after which the jobs are left as orphans.
const LIMIT: Duration = Duration::from_secs(3600);

/// Progress of a removal.
enum Removal {
    /// HTCondor was asked to remove the jobs, or none was submitted.
    Done,
    /// It is tried again.
    Pending,
}

/// Removes the jobs of a deleted object that the finalizer did not hold; in the background.
pub(super) fn remove_jobs(context: &Arc<Context>, object: &ObservedHTCJob) {
    let guarded = object.meta().deletion_timestamp.is_none()
        && object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let Some(uid) = object.uid().filter(|_| guarded && Backend::of(object) == Backend::HTCondor) else { return };
    let (context, object, uid) = (Arc::clone(context), object.clone(), Uid::from(uid.as_str()));
    tokio::spawn(async move {
        let name = ObjectName::of(&object);
        tracing::warn!(htcjob = %name, %uid, "HTCJob deleted in spite of its finalizer, removing its jobs");
        let (began, mut pauses) = (context.clock.now(), Backoff::new(FIRST, LONGEST));
        while context.clock.now().since(began) < LIMIT {
            match remove(&context, &object, &uid, began).await {
                Ok(Removal::Done) => {
                    tracing::info!(htcjob = %name, %uid, "jobs of the deleted HTCJob removed");
                    return;
                }
                Ok(Removal::Pending) => {}
                Err(error) => tracing::warn!(%error, htcjob = %name, "jobs of a deleted HTCJob not removed yet"),
            }
            tokio::time::sleep(pauses.pause()).await;
        }
        tracing::warn!(htcjob = %name, %uid, "jobs of a deleted HTCJob may be left, see htc-operator orphans");
    });
}

/// Hands over a removal, unless one has succeeded. A submission under way is waited for.
async fn remove(
    context: &Context,
    object: &ObservedHTCJob,
    uid: &Uid,
    began: Timestamp,
) -> Result<Removal, LedgerError> {
    if context.requests.get(uid).is_some() {
        return Ok(Removal::Pending);
    }
    let record = context.ledger.load(uid).await?;
    let submitted = record.requests.get(&RequestKind::Submit);
    let after = submitted.map_or(began, |last| began.max(last.finished.unwrap_or(last.started)));
    let last = record.requests.get(&RequestKind::Remove);
    let removed = last.is_some_and(|last| last.failure.is_none() && last.finished.is_some_and(|at| at >= after));
    if removed || record.highest.0 == 0 {
        let over = context.clock.now().since(began) >= GRACE;
        return Ok(if over { Removal::Done } else { Removal::Pending });
    }
    let name = ObjectName::of(object);
    let place = context.pools.placement(uid, &name.namespace, object);
    if let Some(pool) = place.pool {
        let (identity, _) = identity_of(object, uid, &name.namespace, Some(&pool), context.clock.now());
        let step = last.map_or(1, |last| last.step + 1);
        let key = RequestKey { uid: uid.clone(), kind: RequestKind::Remove, attempt: record.highest, step };
        let request = Request { key, work: Work::Remove(RemovalScope::All), alone: true };
        // It is handed over again if the queue is full.
        let _taken = pool.workers.hand_over(WorkItem {
            request,
            name,
            object: ObjectRef::from_obj(object),
            identity,
            adopted: record.has_inherited(),
            plan: None,
            texts: None,
        });
    }
    Ok(Removal::Pending)
}
