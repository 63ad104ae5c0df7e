//! Removal, hold and release, fetching and tidying: one call of one tool for the whole batch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Queued;
use super::batch::Batch;
use super::err_tail::err_tail;
use super::incoming::Arrived;
use super::room::{Full, Reservation};
use crate::api::{ObjectName, Reason};
use crate::condor::fetch::ToFetch;
use crate::ledger::{Intent, LedgerError, RequestResult};
use crate::machine::facts::{ErrTail, Failure, Unknown};
use crate::machine::request::{Scope, Work};
use crate::machine::{Index, Indices, Timestamp, Uid};

/// What a transfer ends by when one of its HTCJobs is to be removed or held.
const STOPPED: &str = "the transfer was stopped, because an HTCJob whose output it fetched was deleted, suspended, or passed its deadline; output that is still wanted is fetched again";

/// How long a transfer waits for room that others have reserved, before it says so and is tried again later.
const ROOM_WAIT: Duration = Duration::from_secs(10);

/// One call under way.
#[derive(Default)]
pub(super) struct ToolCall {
    ended: Option<(Result<(), Failure>, Timestamp)>,
    /// Some of what was asked for did not come about.
    pub(super) failed: bool,
}

/// Makes the intents durable; for a fetch, reserves room and empties the folders first.
pub(super) async fn intend(batch: &mut Batch) -> bool {
    let fetch = matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
    if fetch && !(reserve(batch).await && make_folders(batch).await) {
        return false;
    }
    let at = batch.shared.clock.now();
    let intents = batch.jobs.iter().map(|job| Intent { key: job.request.key.clone(), at, submission: None }).collect();
    match batch.shared.ledger.intend(intents).await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(%error, "nothing is done in HTCondor: the intents are not durable");
            tokio::time::sleep(super::LEDGER_PAUSE).await;
            false
        }
    }
}

fn fetch_failed(message: String) -> Failure {
    Failure::new(Reason::FetchFailed, message)
}

/// Leaves in the batch what its namespace may have and there is room for; false if that is nothing.
async fn reserve(batch: &mut Batch) -> bool {
    let most = match most_of_namespace(batch).await {
        Ok(most) => most,
        Err(failure) => return batch.give_up(|_| Some(failure.clone())).await,
    };
    let wanted = batch.jobs.iter().map(|job| to_fetch(job).len()).sum::<usize>().min(most);
    match room_for(batch, wanted).await {
        Ok(reservation) => {
            let jobs = reservation.jobs();
            batch.reserved = Some(reservation);
            take_only(batch, jobs).await
        }
        Err(failure) => batch.give_up(|_| Some(failure.clone())).await,
    }
}

/// Of how many jobs the namespace may get the output now. A transfer is of one namespace.
async fn most_of_namespace(batch: &Batch) -> Result<usize, Failure> {
    let Some(first) = batch.jobs.first() else { return Ok(0) };
    let shared = &batch.shared;
    let left = shared.namespace_output.left(&first.name.namespace).await;
    let left = left.map_err(|message| Failure::new(Reason::NamespaceLimit, message))?;
    let jobs = left.map(|left| left.div_ceil(shared.room.of_a_job()));
    Ok(jobs.map_or(usize::MAX, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX)))
}

/// Reserves room. What is reserved for others is waited for, for a short while; and what failed transfers of these have left
/// may be what is in the way.
async fn room_for(batch: &Batch, wanted: usize) -> Result<Reservation, Failure> {
    let until = Instant::now() + ROOM_WAIT;
    let mut cleared = false;
    loop {
        let shared = &batch.shared;
        let released = shared.room.released();
        let room = Arc::clone(&shared.room);
        let full = match tokio::task::spawn_blocking(move || room.reserve(wanted)).await {
            Ok(Ok(reservation)) => return Ok(reservation),
            Ok(Err(full)) => full,
            Err(error) => return Err(fetch_failed(error.to_string())),
        };
        if !cleared {
            clear(batch).await;
            cleared = true;
        } else if matches!(full, Full::Reserved(_)) && Instant::now() < until {
            tokio::select! {
                () = released => {}
                () = tokio::time::sleep_until(until) => {}
                () = batch.stop.notified() => return Err(Failure::new(Reason::Stopped, STOPPED.to_owned())),
            }
        } else {
            return Err(Failure::new(Reason::NoSpace, full.message()));
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
async fn clear(batch: &Batch) {
    let planner = batch.shared.planner.clone();
    let asked = asked(batch);
    let clear = move || asked.iter().for_each(|(name, uid, indices)| planner.clear_incoming(name, uid, indices));
    let _ = tokio::task::spawn_blocking(clear).await;
}

/// The jobs that each object's fetch names.
fn asked(batch: &Batch) -> Vec<(ObjectName, Uid, Indices)> {
    batch.jobs.iter().map(|job| (job.name.clone(), job.request.key.uid.clone(), to_fetch(job))).collect()
}

/// One unwritable folder would stop the whole call: folders are made, emptied and tried before.
async fn make_folders(batch: &mut Batch) -> bool {
    let planner = batch.shared.planner.clone();
    let work = asked(batch);
    let tried = tokio::task::spawn_blocking(move || {
        work.iter()
            .filter_map(|(name, uid, indices)| {
                planner.empty_incoming(name, uid, indices).err().map(|why| (uid.clone(), why))
            })
            .collect::<HashMap<_, _>>()
    })
    .await;
    match tried {
        Ok(failures) => batch.give_up(|job| failures.get(&job.request.key.uid).cloned().map(fetch_failed)).await,
        Err(error) => batch.give_up(|_| Some(fetch_failed(error.to_string()))).await,
    }
}

/// The folder of an object's output.
fn output(batch: &Batch, job: &Queued) -> String {
    batch.shared.planner.output(&job.name, &job.request.key.uid).display().to_string()
}

/// What a job wrote to its `out` or `err`, if that is here. Jobs of the Go operator have its cluster and proc in the name.
pub(super) fn written(folder: &Path, what: &str, index: Index) -> Option<PathBuf> {
    let own = folder.join(what);
    if own.exists() {
        return Some(own);
    }
    let inherited = |name: &str| {
        let cluster =
            name.strip_prefix(what).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(&format!(".{index}")));
        cluster.is_some_and(|cluster| cluster.parse::<u64>().is_ok())
    };
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.find(|entry| inherited(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

fn asked_for(job: &Queued) -> Option<&Indices> {
    match &job.request.work {
        Work::Fetch(indices) => Some(indices),
        _ => None,
    }
}

fn to_fetch(job: &Queued) -> Indices {
    asked_for(job).cloned().unwrap_or_default()
}

/// The jobs that a tidying names.
fn to_tidy(batch: &Batch) -> Vec<(&Uid, &Indices)> {
    batch
        .jobs
        .iter()
        .filter_map(|job| match &job.request.work {
            Work::Tidy(indices) => Some((&job.request.key.uid, indices)),
            _ => None,
        })
        .collect()
}

/// Those of the jobs that a fetch names that are `wanted`.
fn fetchable<'a>(batch: &'a Batch, wanted: impl Fn(&'a Queued) -> Option<&'a Indices>) -> Vec<ToFetch<'a>> {
    let each = |job: &'a Queued| {
        let indices = wanted(job).filter(|indices| !indices.is_empty())?;
        Some(ToFetch { uid: &job.request.key.uid, indices, output: output(batch, job), adopted: job.adopted })
    };
    batch.jobs.iter().filter_map(each).collect()
}

/// What has come of each object, once it is in its place and on the disk.
async fn take_in(batch: &Batch) -> HashMap<Uid, Arrived> {
    let planner = batch.shared.planner.clone();
    let all = asked(batch);
    let take = move || {
        let each = |(name, uid, asked): (ObjectName, Uid, Indices)| {
            let arrived = planner.take_in(&name, &uid, &asked);
            (uid, arrived)
        };
        let mut arrived: HashMap<Uid, Arrived> = all.into_iter().map(each).collect();
        if arrived.values().any(|arrived| !arrived.fetched.is_empty())
            && let Err(error) = planner.sync_output()
        {
            not_on_the_disk(&mut arrived, &error);
        }
        arrived
    };
    match tokio::task::spawn_blocking(take).await {
        Ok(arrived) => arrived,
        Err(error) => {
            let failed = |job: &Queued| {
                let failure = Some(fetch_failed(format!("the output was not taken in: {error}")));
                (job.request.key.uid.clone(), Arrived { failure, ..Arrived::default() })
            };
            batch.jobs.iter().map(failed).collect()
        }
    }
}

/// What has come may be lost in a power failure: it does not count, and HTCondor keeps it.
fn not_on_the_disk(arrived: &mut HashMap<Uid, Arrived>, error: &std::io::Error) {
    for arrived in arrived.values_mut().filter(|arrived| !arrived.fetched.is_empty()) {
        let message = format!("the output cannot be brought to the disk: {error}; check the operator's data volume");
        *arrived = Arrived { failure: Some(fetch_failed(message)), ..Arrived::default() };
    }
}

/// condor_transfer_data ends with 0 even when there was nothing to fetch. Says so of the jobs whose output should have come,
/// and of those among them that would have been written elsewhere.
async fn say_missing(batch: &Batch, arrived: &mut HashMap<Uid, Arrived>) {
    let missing: HashMap<&Uid, Indices> = batch
        .jobs
        .iter()
        .filter_map(|job| {
            let uid = &job.request.key.uid;
            let arrived = arrived.get(uid)?;
            let rest: Indices = to_fetch(job).iter().filter(|index| !arrived.fetched.contains(*index)).collect();
            (!rest.is_empty() && arrived.failure.is_none()).then_some((uid, rest))
        })
        .collect();
    if missing.is_empty() {
        return;
    }
    let asked = fetchable(batch, |job| missing.get(&job.request.key.uid));
    let redirected = batch.schedd.redirected(&asked).await.unwrap_or_default();
    for (uid, missing) in &missing {
        let failure = match redirected.get(*uid) {
            Some(elsewhere) => Failure::new(
                Reason::OutputRedirected,
                format!(
                    "the output of jobs {elsewhere} is not fetched: their ClassAds no longer say what this operator submitted \
                     (SUBMIT_Iwd, TransferOutputRemaps, UserLog, Out, Err, SpooledOutputFiles or HTCJobIndex); change them back with condor_qedit"
                ),
            ),
            None => fetch_failed(format!(
                "condor_transfer_data brought no output of {} jobs: they are not in the queue, or not ended",
                missing.len()
            )),
        };
        if let Some(arrived) = arrived.get_mut(*uid) {
            arrived.failure = Some(failure);
        }
    }
}

/// One transfer that hangs costs the others that go with it, or wait for it, no more than the shorter time.
fn transfer_limit(batch: &Batch) -> Duration {
    let longest = batch.shared.schedd.tools.transfer_limit;
    let alone = batch.jobs.iter().all(|job| job.request.alone);
    if alone { longest } else { longest.min(batch.shared.limits.transfer_together) }
}

/// Runs the tool.
async fn call(batch: &Batch) -> Result<(), Unknown> {
    let schedd = &batch.schedd;
    let uids: Vec<Uid> = batch.jobs.iter().map(|job| job.request.key.uid.clone()).collect();
    match batch.jobs.first().map(|job| (&job.request.work, &job.request.key.uid)) {
        Some((Work::Remove(Scope::All), _)) => schedd.remove(&uids).await,
        Some((Work::Remove(Scope::Staging), _)) => schedd.remove_staging(&uids).await,
        Some((Work::Remove(Scope::Unfinished), _)) => schedd.remove_unfinished(&uids).await,
        Some((Work::Remove(Scope::Extra(ids)), uid)) => schedd.remove_jobs(uid, ids).await,
        Some((Work::Hold, _)) => schedd.hold(&uids).await,
        Some((Work::Release, _)) => schedd.release(&uids).await,
        Some((Work::Fetch(_), _)) => {
            // One that is a little too large is refused in words; the kernel ends the tool by a signal.
            let largest = batch.shared.planner.largest_output().map(|most| most.saturating_mul(2));
            schedd.fetch(&fetchable(batch, asked_for), transfer_limit(batch), largest).await
        }
        Some((Work::Tidy(_), _)) => schedd.tidy(&to_tidy(batch)).await,
        Some((Work::Adopt(jobs), uid)) => {
            let output = batch.jobs.first().map(|job| output(batch, job)).unwrap_or_default();
            schedd.adopt(uid, jobs, &output).await
        }
        Some((Work::Submit(..) | Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject, _)) | None => {
            Ok(())
        }
    }
}

/// Resolves, in words, when a transfer brings more than there is room for.
async fn runs_out(batch: &Batch) -> String {
    match batch.reserved {
        Some(_) => Arc::clone(&batch.shared.room).runs_out().await,
        None => std::future::pending().await,
    }
}

impl ToolCall {
    pub(super) async fn run(&mut self, batch: &Batch) {
        let result = tokio::select! {
            result = call(batch) => result.map_err(Failure::from),
            // The tool is killed, as at the end of its time limit.
            () = batch.stop.notified() => Err(Failure::new(Reason::Stopped, STOPPED.to_owned())),
            message = runs_out(batch) => Err(Failure::new(Reason::NoSpace, message)),
        };
        if batch.reserved.is_some() && result.is_err() {
            clear(batch).await;
        }
        if matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Remove(_))) {
            batch.shared.metrics.removed(batch.jobs.len());
        }
        self.ended = Some((result, batch.shared.clock.now()));
    }

    pub(super) async fn commit(&mut self, batch: &Batch) -> bool {
        let Some((result, at)) = self.ended.take() else {
            return false;
        };
        let failure = result.err();
        if let Some(Failure { message, .. }) = &failure {
            tracing::warn!(%message, "an HTCondor tool failed");
        }
        let mut arrived = HashMap::new();
        if failure.is_none() {
            arrived = take_in(batch).await;
            say_missing(batch, &mut arrived).await;
        }
        let result = |job: &Queued| {
            let key = job.request.key.clone();
            let Arrived { fetched, failure: own, bytes } = arrived.remove(&key.uid).unwrap_or_default();
            batch.shared.namespace_output.add(&job.name.namespace, bytes);
            RequestResult { key, at, failure: failure.clone().or(own), fetched }
        };
        let results: Vec<RequestResult> = batch.jobs.iter().map(result).collect();
        self.failed = results.iter().any(|result| result.failure.is_some());
        let tails = err_tails(batch, &results).await;
        stored(batch.shared.ledger.resolve_fetches(results, tails).await).await
    }

    pub(super) async fn not_run(&self, batch: &Batch) -> bool {
        let at = batch.shared.clock.now();
        let results = batch
            .jobs
            .iter()
            .map(|job| RequestResult {
                key: job.request.key.clone(),
                at,
                failure: Some(Failure::new(Reason::Stopped, super::NOT_BEGUN.to_owned())),
                fetched: Indices::default(),
            })
            .collect();
        stored(batch.shared.ledger.resolve(results).await).await
    }
}

/// What the first failed job of each object wrote last, as far as its output has come now. It is only for people: what cannot
/// be had is left out.
async fn err_tails(batch: &Batch, results: &[RequestResult]) -> Vec<(Uid, ErrTail)> {
    let fetched: Vec<(Uid, Indices)> = results
        .iter()
        .filter(|result| !result.fetched.is_empty())
        .map(|result| (result.key.uid.clone(), result.fetched.clone()))
        .collect();
    if fetched.is_empty() {
        return Vec::new();
    }
    let failed = match batch.shared.ledger.failed_among(fetched).await {
        Ok(failed) => failed,
        Err(error) => {
            tracing::warn!(%error, "the ends of the jobs' err are not read");
            return Vec::new();
        }
    };
    let planner = batch.shared.planner.clone();
    let names: HashMap<Uid, ObjectName> =
        batch.jobs.iter().map(|job| (job.request.key.uid.clone(), job.name.clone())).collect();
    let read = move || {
        let tail = |(uid, indices): (Uid, Vec<Index>)| {
            let name = names.get(&uid)?;
            indices.into_iter().find_map(|index| {
                let text = err_tail(&written(&planner.job_output(name, &uid, index), "err", index)?)?;
                Some((uid.clone(), ErrTail { index, text }))
            })
        };
        failed.into_iter().filter_map(tail).collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

async fn stored(result: Result<(), LedgerError>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(%error, "the end of a call of HTCondor's tools is not in the ledger; it will be repeated");
            tokio::time::sleep(super::LEDGER_PAUSE).await;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::ObjectRef;

    use super::super::{Registry, WorkItem};
    use super::*;
    use crate::api::Identity;
    use crate::machine::{Attempt, Kind, Request, RequestKey};

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

    #[test]
    fn what_is_not_on_the_disk_is_not_fetched() {
        let came = Arrived { fetched: Indices::first(1), failure: None, bytes: 9 };
        let mut arrived = HashMap::from([(Uid::from("a"), came), (Uid::from("b"), Arrived::default())]);
        not_on_the_disk(&mut arrived, &std::io::Error::other("gone"));
        let [a, b] = ["a", "b"].map(|uid| &arrived[&Uid::from(uid)]);
        assert!(a.fetched.is_empty() && a.failure.is_some());
        assert!(b.failure.is_none(), "none of it came");
    }
}
