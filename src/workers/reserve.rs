//! What a transfer may bring: what its namespace may have, and there is room for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::batch::{Batch, asked, fetch_failed, to_fetch};
use super::room::{Full, Reservation};
use super::{Queued, files};
use crate::api::Reason;
use crate::machine::facts::Failure;
use crate::machine::request::Work;

/// How long a transfer waits for room that others have reserved, before it says so and is tried again later.
const WAIT: Duration = Duration::from_secs(10);

/// Why a transfer does not begin: nobody is told of one that was stopped, for its requests end as if the operator had been killed.
struct NotNow(Option<Failure>);

impl From<String> for NotNow {
    fn from(message: String) -> Self {
        Self(Some(fetch_failed(message)))
    }
}

/// Leaves in the batch what its namespace may have and there is room for; false if that is nothing.
pub(super) async fn reserve(batch: &mut Batch) -> bool {
    match room(batch).await {
        Ok(reservation) => {
            let jobs = reservation.jobs();
            batch.reserved = Some(reservation);
            take_only(batch, jobs).await
        }
        Err(NotNow(None)) => false,
        Err(NotNow(Some(failure))) => batch.give_up(|_| Some(failure.clone())).await,
    }
}

async fn room(batch: &Batch) -> Result<Reservation, NotNow> {
    let most = most_of_namespace(batch).await?;
    let wanted: usize = batch.jobs.iter().map(|job| to_fetch(job).len()).sum();
    room_for(batch, wanted.min(most)).await
}

/// The namespace of the batch: a transfer is of one.
fn namespace(batch: &Batch) -> String {
    batch.jobs.first().map(|job| job.name.namespace.clone()).unwrap_or_default()
}

/// Asks the volume beside the asynchronous threads, which it may not answer.
async fn ask<T: Send + 'static>(batch: &Batch, question: impl FnOnce() -> T + Send + 'static) -> Result<T, NotNow> {
    let answer = batch.shared.files.run_unless(&batch.stop, Vec::new(), files::limit(0), question).await;
    answer.map_or(Err(NotNow(None)), |answer| answer.map_err(NotNow::from))
}

/// Of how many jobs the namespace may get the output now.
async fn most_of_namespace(batch: &Batch) -> Result<usize, NotNow> {
    let (shared, namespace) = (&batch.shared, namespace(batch));
    let left = tokio::select! {
        left = shared.namespace_output.left(&namespace) => left,
        // It is not measured yet: it is asked for again.
        () = tokio::time::sleep(WAIT) => return Err(NotNow(None)),
        () = batch.stop.notified() => return Err(NotNow(None)),
    };
    let left = left.map_err(|message| NotNow(Some(Failure::new(Reason::NamespaceLimit, message))))?;
    let jobs = left.map(|left| left.div_ceil(shared.room.bytes_of_a_job(&namespace)));
    Ok(jobs.map_or(usize::MAX, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX)))
}

/// Reserves room. What is reserved for others is waited for, for a short while; and what failed transfers of these have left
/// may be what is in the way.
async fn room_for(batch: &Batch, wanted: usize) -> Result<Reservation, NotNow> {
    let until = Instant::now() + WAIT;
    let mut cleared = false;
    loop {
        let shared = &batch.shared;
        let released = shared.room.released();
        let (room, namespace) = (Arc::clone(&shared.room), namespace(batch));
        let full = match ask(batch, move || room.reserve(&namespace, wanted)).await? {
            Ok(reservation) => return Ok(reservation),
            Err(full) => full,
        };
        if !cleared {
            clear_away(batch).await;
            cleared = true;
        } else if matches!(full, Full::Reserved(_)) && Instant::now() < until {
            tokio::select! {
                () = released => {}
                () = tokio::time::sleep_until(until) => {}
                () = batch.stop.notified() => return Err(NotNow(None)),
            }
        } else {
            return Err(NotNow(Some(Failure::new(Reason::NoSpace, full.message()))));
        }
    }
}

/// Leaves so many jobs in the batch. HTCJobs of which none is left are woken, and ask again.
async fn take_only(batch: &mut Batch, most: usize) -> bool {
    let (taken, later) = first_of(std::mem::take(&mut batch.jobs), most);
    batch.jobs = taken;
    if !later.is_empty() {
        tracing::debug!(jobs = most, later = later.len(), "there is room for a part of the output only");
    }
    for job in later {
        batch.resolve(&job).await;
    }
    !batch.jobs.is_empty()
}

/// Those of the requests, or parts of them, that name the first `most` jobs; and the other requests.
fn first_of(jobs: Vec<Queued>, mut most: usize) -> (Vec<Queued>, Vec<Queued>) {
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

/// Removes what a transfer that failed has left: it is not whole, and others need the room.
pub(super) async fn clear(batch: &Batch) {
    if batch.reserved.is_some() {
        clear_away(batch).await;
    }
}

async fn clear_away(batch: &Batch) {
    let planner = batch.shared.planner.clone();
    let mut asked = asked(batch);
    // What is still being taken in is not removed.
    asked.retain(|(_, uid, _)| batch.shared.files.busy(uid).is_none());
    let jobs = asked.iter().map(|(_, _, indices)| indices.len()).sum();
    let uids = asked.iter().map(|(_, uid, _)| uid.clone()).collect();
    let clear = move || asked.iter().for_each(|(name, uid, indices)| planner.clear_incoming(name, uid, indices));
    if let Err(why) = batch.shared.files.run(uids, files::limit(jobs), clear).await {
        tracing::warn!(%why, "what a transfer has left is not removed yet");
    }
}

/// The transfer has brought more than there is room for.
pub(super) fn was_too_much(batch: &Batch) {
    batch.shared.room.was_too_much(&namespace(batch));
}

/// Resolves, in words, when a transfer brings more than there is room for.
pub(super) async fn runs_out(batch: &Batch) -> String {
    match batch.reserved {
        Some(_) => Arc::clone(&batch.shared.room).runs_out().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::ObjectRef;

    use super::super::{Registry, WorkItem};
    use super::*;
    use crate::api::{Identity, ObjectName};
    use crate::machine::{Attempt, Indices, Kind, Request, RequestKey};

    fn queued(uid: &str, jobs: u32) -> Queued {
        let key = RequestKey { uid: uid.into(), kind: Kind::Fetch, attempt: Attempt(1), step: 1 };
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
        Queued { item, ticket }
    }

    #[test]
    fn a_transfer_takes_what_there_is_room_for() {
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
