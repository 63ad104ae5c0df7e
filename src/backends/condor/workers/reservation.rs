//! Reserves disk space for a transfer, within the namespace's limit and the free space.

use std::sync::Arc;
use std::time::Duration;

use htc_api::Reason;
use htc_machine::facts::RequestFailure;
use htc_machine::request::Work;
use tokio::time::Instant;

use super::QueuedRequest;
use super::batch::{Batch, asked, fetch_failed, to_fetch};
use crate::output::disk_budget::{BudgetExceeded, Reservation};
use crate::output::error::VolumeError;
use crate::output::files;

/// Maximum wait for space that others have reserved, before the transfer fails and is retried later.
const WAIT: Duration = Duration::from_secs(10);

/// Why a transfer does not start. `None` for a transfer that was stopped or must ask again: its requests end without a
/// result, as if the operator had been killed.
struct TransferBlocked(Option<RequestFailure>);

impl From<VolumeError> for TransferBlocked {
    fn from(error: VolumeError) -> Self {
        Self(Some(fetch_failed(error.to_string())))
    }
}

/// Reserves space, and leaves in the batch the jobs that fit. Returns false if none is left.
pub(super) async fn reserve(batch: &mut Batch) -> bool {
    match room(batch).await {
        Ok(reservation) => {
            let jobs = reservation.jobs();
            batch.reservation = Some(reservation);
            take_only(batch, jobs).await
        }
        Err(TransferBlocked(None)) => false,
        Err(TransferBlocked(Some(failure))) => batch.give_up(|_| Some(failure.clone())).await,
    }
}

async fn room(batch: &Batch) -> Result<Reservation, TransferBlocked> {
    let most = most_of_namespace(batch).await?;
    let wanted: usize = batch.requests.iter().map(|job| to_fetch(job).len()).sum();
    room_for(batch, wanted.min(most)).await
}

/// Returns the namespace of the batch: all its requests belong to one.
fn namespace(batch: &Batch) -> String {
    batch.requests.first().map(|job| job.name.namespace.clone()).unwrap_or_default()
}

/// Accesses the volume apart from the asynchronous threads, because it may hang.
async fn ask<T: Send + 'static>(
    batch: &Batch,
    question: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TransferBlocked> {
    let answer = batch.shared.files.run_unless(&batch.stop, Vec::new(), files::limit(0), question).await;
    answer.map_or(Err(TransferBlocked(None)), |answer| answer.map_err(TransferBlocked::from))
}

/// Returns the number of jobs whose output the namespace may receive now.
async fn most_of_namespace(batch: &Batch) -> Result<usize, TransferBlocked> {
    let (shared, namespace) = (&batch.shared, namespace(batch));
    let left = tokio::select! {
        left = shared.namespace_output.left(&namespace) => left,
        // The namespace's output is not measured yet; the transfer is retried.
        () = tokio::time::sleep(WAIT) => return Err(TransferBlocked(None)),
        () = batch.stop.notified() => return Err(TransferBlocked(None)),
    };
    let blocked = |error: VolumeError| RequestFailure::new(Reason::NamespaceLimitReached, error.to_string());
    let left = left.map_err(|error| TransferBlocked(Some(blocked(error))))?;
    let jobs = left.map(|left| left.div_ceil(shared.disk_budget.bytes_of_a_job(&namespace)));
    Ok(jobs.map_or(usize::MAX, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX)))
}

/// Reserves space. Removes leftovers of failed transfers of the same jobs first, and waits a short time for space that
/// others have reserved.
async fn room_for(batch: &Batch, wanted: usize) -> Result<Reservation, TransferBlocked> {
    let until = Instant::now() + WAIT;
    let mut cleared = false;
    loop {
        let shared = &batch.shared;
        let released = shared.disk_budget.released();
        let (room, namespace) = (Arc::clone(&shared.disk_budget), namespace(batch));
        let full = match ask(batch, move || room.reserve(&namespace, wanted)).await? {
            Ok(reservation) => return Ok(reservation),
            Err(full) => full,
        };
        if !cleared {
            clear_away(batch).await;
            cleared = true;
        } else if matches!(full, BudgetExceeded::Reserved(_)) && Instant::now() < until {
            tokio::select! {
                () = released => {}
                () = tokio::time::sleep_until(until) => {}
                () = batch.stop.notified() => return Err(TransferBlocked(None)),
            }
        } else {
            return Err(TransferBlocked(Some(RequestFailure::new(Reason::OutputVolumeFull, full.to_string()))));
        }
    }
}

/// Leaves at most `most` jobs in the batch. HTCJobs without a job left are woken, so that they request again.
async fn take_only(batch: &mut Batch, most: usize) -> bool {
    let (taken, later) = first_of(std::mem::take(&mut batch.requests), most);
    batch.requests = taken;
    if !later.is_empty() {
        tracing::debug!(jobs = most, later = later.len(), "disk space for part of the output only");
    }
    for job in later {
        batch.resolve(&job).await;
    }
    !batch.requests.is_empty()
}

/// Splits the requests: those, or parts of them, with the first `most` jobs, and the remaining ones.
fn first_of(jobs: Vec<QueuedRequest>, mut most: usize) -> (Vec<QueuedRequest>, Vec<QueuedRequest>) {
    let (mut taken, mut later) = (Vec::new(), Vec::new());
    for mut job in jobs {
        let part = to_fetch(&job).take(most);
        if part.is_empty() {
            later.push(job);
        } else {
            most -= part.len();
            job.item.request.work = Work::Fetch(part);
            taken.push(job);
        }
    }
    (taken, later)
}

/// Removes the partial output of a failed transfer, because others need the space.
pub(super) async fn clear(batch: &Batch) {
    if batch.reservation.is_some() {
        clear_away(batch).await;
    }
}

async fn clear_away(batch: &Batch) {
    let planner = batch.shared.planner.clone();
    let mut asked = asked(batch);
    // Files that are still being processed are not removed.
    asked.retain(|(_, uid, _)| batch.shared.files.busy(uid).is_none());
    let jobs = asked.iter().map(|(_, _, indices)| indices.len()).sum();
    let uids = asked.iter().map(|(_, uid, _)| uid.clone()).collect();
    let clear = move || asked.iter().for_each(|(name, uid, indices)| planner.layout.clear_incoming(name, uid, indices));
    if let Err(why) = batch.shared.files.run(uids, files::limit(jobs), clear).await {
        tracing::warn!(%why, "remains of a transfer not removed yet");
    }
}

/// Records that the transfer has brought more than was reserved.
pub(super) fn record_overflow(batch: &Batch) {
    batch.shared.disk_budget.record_overflow(&namespace(batch));
}

/// Waits until a transfer brings more than the free space allows. Returns the message.
pub(super) async fn wait_until_exhausted(batch: &Batch) -> String {
    match batch.reservation {
        Some(_) => Arc::clone(&batch.shared.disk_budget).wait_until_exhausted().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use htc_api::{Identity, ObjectName};
    use htc_machine::{Attempt, Indices, Request, RequestKey, RequestKind};
    use kube::runtime::reflector::ObjectRef;

    use super::super::{Registry, WorkItem};
    use super::*;

    fn queued(uid: &str, jobs: u32) -> QueuedRequest {
        let key = RequestKey { uid: uid.into(), kind: RequestKind::Fetch, attempt: Attempt(1), step: 1 };
        let ticket = Registry::default().enter(&key).unwrap();
        let item = WorkItem {
            request: Request { key, work: Work::Fetch(Indices::first(jobs)), alone: false },
            name: ObjectName { namespace: "physics".to_owned(), name: uid.to_owned() },
            object: ObjectRef::new(uid),
            identity: Identity::default(),
            adopted: false,
            plan: None,
            texts: None,
        };
        QueuedRequest { item, ticket }
    }

    #[test]
    fn transfer_takes_as_many_jobs_as_fit() {
        let parts = |most| {
            let (taken, later) = first_of(vec![queued("a", 2), queued("b", 3), queued("c", 1)], most);
            let sizes: Vec<usize> = taken.iter().map(|job| to_fetch(job).len()).collect();
            (sizes, later.len())
        };
        assert_eq!(parts(usize::MAX), (vec![2, 3, 1], 0));
        assert_eq!(parts(4), (vec![2, 2], 1), "the rest of b goes with a later call");
        assert_eq!(parts(1), (vec![1], 2));
        assert_eq!(parts(0), (vec![], 3));
    }
}
