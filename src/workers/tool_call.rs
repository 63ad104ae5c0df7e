//! Removal, hold and release, fetching and tidying: one call of one tool for the whole batch.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::batch::{Batch, asked, asked_for, fetch_failed, to_fetch};
use super::err_tail::err_tail;
use super::incoming::{Arrived, written};
use super::sizes::touches;
use super::{Queued, files, reserve};
use crate::api::text::without_others;
use crate::api::{ObjectName, Reason};
use crate::condor::fetch::ToFetch;
use crate::condor::{InParts, PartSizes};
use crate::ledger::{Intent, LedgerError, RequestResult};
use crate::machine::facts::{ErrTail, Failure, Unknown};
use crate::machine::request::{Scope, Work};
use crate::machine::{Index, Indices, Timestamp, Uid};

/// How long what has come may still be taken in once the transfer is to stop.
const TAKE_IN_AFTER_STOP: Duration = Duration::from_secs(10);

/// One call under way.
#[derive(Default)]
pub(super) struct ToolCall {
    ended: Option<(Result<(), Failure>, Timestamp)>,
    /// What a transfer that failed had brought, where that is too much already.
    too_much: HashMap<Uid, Arrived>,
    /// It was ended half way, for one of its HTCJobs: nothing came of it, as if the operator had been killed.
    stopped: bool,
    /// Some of what was asked for did not come about.
    pub(super) failed: bool,
    /// How long its last part took the schedd.
    pub(super) took: Duration,
}

/// Makes the intents durable; for a fetch, reserves room and empties the folders first.
pub(super) async fn intend(batch: &mut Batch) -> bool {
    let fetch = matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
    if fetch && !(reserve::reserve(batch).await && make_folders(batch).await) {
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

/// One unwritable folder would stop the whole call: folders are made, emptied and tried before.
async fn make_folders(batch: &mut Batch) -> bool {
    let work = |batch: &Batch| {
        let planner = batch.shared.planner.clone();
        let work = asked(batch);
        let jobs: usize = work.iter().map(|(_, _, indices)| indices.len()).sum();
        let make = move || {
            let each = |(name, uid, indices): &(ObjectName, Uid, Indices)| {
                planner.empty_incoming(name, uid, indices).err().map(|why| (uid.clone(), why))
            };
            work.iter().filter_map(each).collect::<HashMap<_, _>>()
        };
        (jobs, make)
    };
    match batch.on_files(fetch_failed, work).await {
        Some(failures) => batch.give_up(|job| failures.get(&job.request.key.uid).cloned().map(fetch_failed)).await,
        None => false,
    }
}

/// The folder of an object's output.
fn output(batch: &Batch, job: &Queued) -> String {
    batch.shared.planner.output(&job.name, &job.request.key.uid).display().to_string()
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

/// Resolves when the transfer was stopped and what it brought has had its time to be taken in: moving it takes a moment, unless the
/// volume hangs.
async fn stopped_for_long(batch: &Batch) {
    batch.stop.notified().await;
    tokio::time::sleep(TAKE_IN_AFTER_STOP).await;
}

/// What has come of each object, once it is in its place and on the disk. None if the transfer was stopped meanwhile.
async fn take_in(batch: &Batch) -> Option<HashMap<Uid, Arrived>> {
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
    // It has taken less to bring it.
    let taken = batch.shared.files.run(batch.uids(), transfer_limit(batch), take);
    let failure = tokio::select! {
        taken = taken => match taken {
            Ok(arrived) => return Some(arrived),
            Err(error) => fetch_failed(format!("the output was not taken in: {error}")),
        },
        // It goes on; until it has ended, nothing else is fetched for these HTCJobs.
        () = stopped_for_long(batch) => return None,
    };
    let failed = |uid| (uid, Arrived { failure: Some(failure.clone()), ..Arrived::default() });
    Some(batch.uids().into_iter().map(failed).collect())
}

/// What has come may be lost in a power failure: it does not count, and HTCondor keeps it.
fn not_on_the_disk(arrived: &mut HashMap<Uid, Arrived>, error: &std::io::Error) {
    for arrived in arrived.values_mut().filter(|arrived| !arrived.fetched.is_empty()) {
        let message = format!("the output cannot be brought to the disk: {error}; check the operator's data volume");
        let refused = std::mem::take(&mut arrived.refused);
        *arrived = Arrived { failure: Some(fetch_failed(message)), refused, ..Arrived::default() };
    }
}

/// By the largest file that it may write, the kernel ends the tool, which says nothing of whose output that was.
async fn too_much(batch: &Batch) -> HashMap<Uid, Arrived> {
    let fetch = matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
    if !fetch {
        return HashMap::new();
    }
    let (planner, all) = (batch.shared.planner.clone(), asked(batch));
    let jobs = all.iter().map(|(_, _, indices)| indices.len()).sum();
    let look = move || {
        let each = |(name, uid, asked): (ObjectName, Uid, Indices)| {
            let arrived = planner.too_much(&name, &uid, &asked);
            (!arrived.refused.is_empty()).then_some((uid, arrived))
        };
        all.into_iter().filter_map(each).collect()
    };
    batch.shared.files.run(batch.uids(), files::limit(jobs), look).await.unwrap_or_default()
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
            let refused: Indices = arrived.refused.iter().map(|(index, _)| *index).collect();
            let rest = to_fetch(job).without(&arrived.fetched).without(&refused);
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

/// Runs the tool. How long the last of its calls took, if the schedd may have been busy with it for long.
async fn call(batch: &Batch) -> Result<Duration, Unknown> {
    let schedd = &batch.schedd;
    let uids = batch.uids();
    let may_act = || batch.shared.fence.check().is_ok();
    let parts = InParts {
        jobs: batch.jobs.iter().map(|job| touches(job)).fold(0, usize::saturating_add),
        sizes: PartSizes::of_submissions(batch.shared.limits.jobs),
        may_act: &may_act,
    };
    let done = match batch.jobs.first().map(|job| (&job.request.work, &job.request.key.uid)) {
        Some((Work::Remove(Scope::All), _)) => return schedd.remove(&uids, parts).await,
        Some((Work::Remove(Scope::Unfinished), _)) => return schedd.remove_unfinished(&uids, parts).await,
        Some((Work::Hold, _)) => return schedd.hold(&uids, parts).await,
        Some((Work::Release, _)) => return schedd.release(&uids, parts).await,
        Some((Work::Tidy(_), _)) => return schedd.tidy(&to_tidy(batch), parts).await,
        Some((Work::Remove(Scope::Staging), _)) => schedd.remove_staging(&uids).await,
        Some((Work::Remove(Scope::Extra(ids)), uid)) => schedd.remove_jobs(uid, ids).await,
        Some((Work::Remove(Scope::Wished(ids)), uid)) => schedd.remove_wished(uid, ids).await,
        Some((Work::HoldJobs(ids), uid)) => schedd.hold_jobs(uid, ids).await,
        Some((Work::ReleaseJobs(ids), uid)) => schedd.release_jobs(uid, ids).await,
        Some((Work::Fetch(_), _)) => {
            // One that is a little too large is refused in words; the kernel ends the tool by a signal.
            let largest = batch.shared.planner.largest_output().map(|most| most.saturating_mul(2));
            schedd.fetch(&fetchable(batch, asked_for), transfer_limit(batch), largest).await
        }
        Some((Work::Adopt(jobs), uid)) => {
            let output = batch.jobs.first().map(|job| output(batch, job)).unwrap_or_default();
            schedd.adopt(uid, jobs, &output).await
        }
        Some((Work::Submit(..) | Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject, _)) | None => {
            Ok(())
        }
    };
    done.map(|()| Duration::ZERO)
}

impl ToolCall {
    pub(super) async fn run(&mut self, batch: &Batch) {
        let began = Instant::now();
        let result = tokio::select! {
            result = call(batch) => result.map(|took| self.took = took).map_err(Failure::from),
            // The tool is killed, as at the end of its time limit.
            () = batch.stop.notified() => {
                tracing::info!("a transfer was stopped: one of its HTCJobs was deleted, suspended or resumed, or has passed its deadline");
                reserve::clear(batch).await;
                self.stopped = true;
                return;
            }
            message = reserve::runs_out(batch) => {
                reserve::was_too_much(batch);
                Err(Failure::new(Reason::NoSpace, message))
            }
        };
        if result.is_err() {
            // A schedd that did not answer in time needs its rest more than any other.
            self.took = began.elapsed();
            self.too_much = too_much(batch).await;
            reserve::clear(batch).await;
        }
        if matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Remove(_))) {
            batch.shared.metrics.removed(batch.jobs.len());
        }
        self.ended = Some((result, batch.shared.clock.now()));
    }

    pub(super) async fn commit(&mut self, batch: &Batch) -> bool {
        if self.stopped {
            return true;
        }
        let Some((result, at)) = self.ended.take() else {
            return false;
        };
        let mut failure = result.err();
        if let Some(Failure { message, .. }) = &failure {
            tracing::warn!(%message, "an HTCondor tool failed");
        }
        let mut arrived = HashMap::new();
        let is_fetch = matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
        if failure.is_none() && is_fetch {
            let Some(taken) = take_in(batch).await else {
                // Taking in goes on, so nothing is removed.
                self.stopped = true;
                return true;
            };
            arrived = taken;
            say_missing(batch, &mut arrived).await;
        } else if !self.too_much.is_empty() {
            // The others are fetched again, without these.
            (arrived, failure) = (std::mem::take(&mut self.too_much), None);
        }
        let result = |job: &Queued| {
            let key = job.request.key.clone();
            let Arrived { fetched, sizes, omitted, refused, failure: own, size } =
                arrived.remove(&key.uid).unwrap_or_default();
            batch.shared.namespace_output.add(&job.name.namespace, size.bytes);
            batch.shared.room.learn(&job.name.namespace, fetched.len(), size);
            let failure = failure.as_ref().map(|Failure { reason, message }| Failure {
                reason: reason.clone(),
                message: without_others(message, key.uid.as_str()),
            });
            RequestResult { key, at, failure: failure.or(own), fetched, sizes, refused, omitted }
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
            .map(|job| {
                let failure = Failure::new(Reason::Stopped, super::NOT_BEGUN.to_owned());
                RequestResult::without_output(job.request.key.clone(), at, Some(failure))
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
    let uids = batch.uids();
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
    batch.shared.files.run(uids, files::limit(0), read).await.unwrap_or_default()
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
    use super::super::room::Amount;
    use super::*;

    #[test]
    fn what_is_not_on_the_disk_is_not_fetched() {
        let size = Amount { bytes: 9, inodes: 1 };
        let came = Arrived { fetched: Indices::first(1), size, ..Arrived::default() };
        let mut arrived = HashMap::from([(Uid::from("a"), came), (Uid::from("b"), Arrived::default())]);
        not_on_the_disk(&mut arrived, &std::io::Error::other("gone"));
        let [a, b] = ["a", "b"].map(|uid| &arrived[&Uid::from(uid)]);
        assert!(a.fetched.is_empty() && a.failure.is_some());
        assert!(b.failure.is_none(), "none of it came");
    }
}
