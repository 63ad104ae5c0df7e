//! Removal, hold and release, fetches and tidying: one call of one tool for the whole batch.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use htc_api::{ObjectName, Reason};
use htc_ledger::{Intent, LedgerError, RequestResult};
use htc_machine::facts::{ErrTail, QueryError, RequestFailure};
use htc_machine::request::{RemovalScope, Work};
use htc_machine::text::redact_other_uids;
use htc_machine::{Index, Indices, Timestamp, Uid};
use htcondor::fetch::FetchRequest;
use htcondor::{BulkOptions, PartSizes};

use super::QueuedRequest;
use super::batch::{Batch, asked, asked_for, fetch_failed, to_fetch};
use crate::backends::condor::workers::reservation as reserve;
use crate::backends::condor::workers::submission_sizes::touches;
use crate::output::err_tail::err_tail;
use crate::output::error::VolumeError;
use crate::output::files;
use crate::output::incoming::{ReceivedOutput, written};

/// Time in which output that has arrived may still be stored after the transfer was asked to stop.
const TAKE_IN_AFTER_STOP: Duration = Duration::from_secs(10);

/// One call in progress.
#[derive(Default)]
pub(super) struct ToolCall {
    ended: Option<(Result<(), RequestFailure>, Timestamp)>,
    /// Output of a failed transfer that exceeds its limit already.
    too_much: HashMap<Uid, ReceivedOutput>,
    /// Whether the call was stopped half-way for one of its HTCJobs. Then it has no result, as if the operator had been
    /// killed.
    stopped: bool,
    /// Whether some of the requested effects failed.
    pub(super) failed: bool,
    /// Time for which the last part of the call kept the schedd busy.
    pub(super) took: Duration,
}

/// Commits the intents to the ledger. For a fetch, reserves disk space and empties the folders first.
pub(super) async fn intend(batch: &mut Batch) -> bool {
    let fetch = matches!(batch.requests.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
    if fetch && !(reserve::reserve(batch).await && make_folders(batch).await) {
        return false;
    }
    let at = batch.shared.clock.now();
    let intents =
        batch.requests.iter().map(|job| Intent { key: job.request.key.clone(), at, submission: None }).collect();
    match batch.shared.ledger.intend(intents).await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(%error, "no tool started, intents not stored");
            tokio::time::sleep(super::LEDGER_PAUSE).await;
            false
        }
    }
}

/// Creates, empties and tests the folders before the transfer, because one unwritable folder would stop the whole call.
async fn make_folders(batch: &mut Batch) -> bool {
    let work = |batch: &Batch| {
        let planner = batch.shared.planner.clone();
        let work = asked(batch);
        let jobs: usize = work.iter().map(|(_, _, indices)| indices.len()).sum();
        let make = move || {
            let each = |(name, uid, indices): &(ObjectName, Uid, Indices)| {
                planner.layout.empty_incoming(name, uid, indices).err().map(|why| (uid.clone(), why))
            };
            work.iter().filter_map(each).collect::<HashMap<_, _>>()
        };
        (jobs, make)
    };
    match batch.on_files(fetch_failed, work).await {
        Some(failures) => {
            let failed = |error: &VolumeError| fetch_failed(error.to_string());
            batch.give_up(|job| failures.get(&job.request.key.uid).map(failed)).await
        }
        None => false,
    }
}

/// Returns the output folder of an object.
fn output(batch: &Batch, job: &QueuedRequest) -> String {
    batch.shared.planner.layout.output(&job.name, &job.request.key.uid).display().to_string()
}

/// Returns the jobs that each request for tidying names.
fn to_tidy(batch: &Batch) -> Vec<(&Uid, &Indices)> {
    batch
        .requests
        .iter()
        .filter_map(|job| match &job.request.work {
            Work::Tidy(indices) => Some((&job.request.key.uid, indices)),
            _ => None,
        })
        .collect()
}

/// Returns the fetch request of each object, limited to the jobs that `wanted` selects.
fn fetchable<'a>(batch: &'a Batch, wanted: impl Fn(&'a QueuedRequest) -> Option<&'a Indices>) -> Vec<FetchRequest<'a>> {
    let each = |job: &'a QueuedRequest| {
        let indices = wanted(job).filter(|indices| !indices.is_empty())?;
        Some(FetchRequest { uid: &job.request.key.uid, indices, output: output(batch, job), adopted: job.adopted })
    };
    batch.requests.iter().filter_map(each).collect()
}

/// Waits until the transfer was asked to stop and [`TAKE_IN_AFTER_STOP`] has passed. Moving the output takes a moment,
/// unless the volume hangs.
async fn stopped_for_long(batch: &Batch) {
    batch.stop.notified().await;
    tokio::time::sleep(TAKE_IN_AFTER_STOP).await;
}

/// Moves the output of each object to its final place and flushes it to disk. Returns `None` if the transfer was
/// stopped meanwhile.
async fn take_in(batch: &Batch) -> Option<HashMap<Uid, ReceivedOutput>> {
    let planner = batch.shared.planner.clone();
    let all = asked(batch);
    let take = move || {
        let each = |(name, uid, asked): (ObjectName, Uid, Indices)| {
            let arrived = planner.layout.store_output(&name, &uid, &asked);
            (uid, arrived)
        };
        let mut arrived: HashMap<Uid, ReceivedOutput> = all.into_iter().map(each).collect();
        if arrived.values().any(|arrived| !arrived.fetched.is_empty())
            && let Err(error) = planner.layout.sync_output()
        {
            not_on_the_disk(&mut arrived, &error);
        }
        arrived
    };
    // The transfer itself took less than this limit.
    let taken = batch.shared.files.run(batch.uids(), transfer_limit(batch), take);
    let failure = tokio::select! {
        taken = taken => match taken {
            Ok(arrived) => return Some(arrived),
            Err(error) => fetch_failed(format!("the output was not taken in: {error}")),
        },
        // The work continues in the background. Until it ends, nothing else is fetched for these HTCJobs.
        () = stopped_for_long(batch) => return None,
    };
    let failed = |uid| (uid, ReceivedOutput { failure: Some(failure.clone()), ..ReceivedOutput::default() });
    Some(batch.uids().into_iter().map(failed).collect())
}

/// Discards output that could not be flushed, because a power failure could lose it. HTCondor keeps it.
fn not_on_the_disk(arrived: &mut HashMap<Uid, ReceivedOutput>, error: &std::io::Error) {
    for arrived in arrived.values_mut().filter(|arrived| !arrived.fetched.is_empty()) {
        let message = format!("the output cannot be brought to the disk: {error}; check the operator's data volume");
        let refused = std::mem::take(&mut arrived.refused);
        *arrived = ReceivedOutput { failure: Some(fetch_failed(message)), refused, ..ReceivedOutput::default() };
    }
}

/// Finds output that exceeds its limit. The kernel kills the tool at its largest permitted file, and the tool does not
/// report whose output that was.
async fn too_much(batch: &Batch) -> HashMap<Uid, ReceivedOutput> {
    let fetch = matches!(batch.requests.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
    if !fetch {
        return HashMap::new();
    }
    let (planner, all) = (batch.shared.planner.clone(), asked(batch));
    let jobs = all.iter().map(|(_, _, indices)| indices.len()).sum();
    let look = move || {
        let each = |(name, uid, asked): (ObjectName, Uid, Indices)| {
            let arrived = planner.layout.oversized_output(&name, &uid, &asked);
            (!arrived.refused.is_empty()).then_some((uid, arrived))
        };
        all.into_iter().filter_map(each).collect()
    };
    batch.shared.files.run(batch.uids(), files::limit(jobs), look).await.unwrap_or_default()
}

/// Records the jobs whose output did not arrive, and those whose output would have been written elsewhere.
/// `condor_transfer_data` ends with 0 even if there was nothing to fetch.
async fn report_missing(batch: &Batch, arrived: &mut HashMap<Uid, ReceivedOutput>) {
    let missing: HashMap<&Uid, Indices> = batch
        .requests
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
            Some(elsewhere) => RequestFailure::new(
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

/// Returns the timeout of the transfer. It is shorter for requests that go together, because one that hangs delays the
/// others.
fn transfer_limit(batch: &Batch) -> Duration {
    let longest = batch.shared.schedd.tools.transfer_limit;
    let alone = batch.requests.iter().all(|job| job.request.alone);
    if alone { longest } else { longest.min(batch.shared.limits.transfer_together) }
}

/// Runs the tool. Returns the duration of its last call if that may have kept the schedd busy, or zero.
async fn call(batch: &Batch) -> Result<Duration, QueryError> {
    let schedd = &batch.schedd;
    let uids = batch.uids();
    let may_act = || batch.shared.fence.check().is_ok();
    let parts = BulkOptions {
        jobs: batch.requests.iter().map(|job| touches(job)).fold(0, usize::saturating_add),
        sizes: PartSizes::of_submissions(batch.shared.limits.jobs),
        may_act: &may_act,
    };
    let done = match batch.requests.first().map(|job| (&job.request.work, &job.request.key.uid)) {
        Some((Work::Remove(RemovalScope::All), _)) => return schedd.remove(&uids, parts).await,
        Some((Work::Remove(RemovalScope::Unfinished), _)) => return schedd.remove_unfinished(&uids, parts).await,
        Some((Work::Hold, _)) => return schedd.hold(&uids, parts).await,
        Some((Work::Release, _)) => return schedd.release(&uids, parts).await,
        Some((Work::Tidy(_), _)) => return schedd.tidy(&to_tidy(batch), parts).await,
        Some((Work::Remove(RemovalScope::Staging), _)) => schedd.remove_staging(&uids).await,
        Some((Work::Remove(RemovalScope::Extra(ids)), uid)) => schedd.remove_jobs(uid, ids).await,
        Some((Work::Remove(RemovalScope::Requested(ids)), uid)) => schedd.remove_unfinished_jobs(uid, ids).await,
        Some((Work::HoldJobs(ids), uid)) => schedd.hold_jobs(uid, ids).await,
        Some((Work::ReleaseJobs(ids), uid)) => schedd.release_jobs(uid, ids).await,
        Some((Work::Fetch(_), _)) => {
            // The kernel's limit is twice the permitted size: the operator refuses a file that is a little too large
            // with a message, while the kernel kills the tool by a signal.
            let largest = batch.shared.planner.layout.largest_output().map(|most| most.saturating_mul(2));
            schedd.fetch(&fetchable(batch, asked_for), transfer_limit(batch), largest).await
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
            result = call(batch) => result.map(|took| self.took = took).map_err(RequestFailure::from),
            // The tool is killed, as it is at its timeout.
            () = batch.stop.notified() => {
                tracing::info!("transfer stopped, one of its HTCJobs has changed");
                reserve::clear(batch).await;
                self.stopped = true;
                return;
            }
            message = reserve::wait_until_exhausted(batch) => {
                reserve::record_overflow(batch);
                Err(RequestFailure::new(Reason::OutputVolumeFull, message))
            }
        };
        if result.is_err() {
            // A schedd that did not answer in time needs the pause most.
            self.took = began.elapsed();
            self.too_much = too_much(batch).await;
            reserve::clear(batch).await;
        }
        if matches!(batch.requests.first().map(|job| &job.request.work), Some(Work::Remove(_))) {
            batch.shared.metrics.removed(batch.requests.len());
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
        if let Some(RequestFailure { message, .. }) = &failure {
            tracing::warn!(%message, "HTCondor tool failed");
        }
        let mut arrived = HashMap::new();
        let is_fetch = matches!(batch.requests.first().map(|job| &job.request.work), Some(Work::Fetch(_)));
        if failure.is_none() && is_fetch {
            let Some(taken) = take_in(batch).await else {
                // The output is still being stored, so nothing is removed.
                self.stopped = true;
                return true;
            };
            arrived = taken;
            report_missing(batch, &mut arrived).await;
        } else if !self.too_much.is_empty() {
            // The other jobs are fetched again, without these.
            (arrived, failure) = (std::mem::take(&mut self.too_much), None);
        }
        let result = |job: &QueuedRequest| {
            let key = job.request.key.clone();
            let ReceivedOutput { fetched, sizes, omitted, refused, failure: own, size } =
                arrived.remove(&key.uid).unwrap_or_default();
            batch.shared.namespace_output.add(&job.name.namespace, size.bytes);
            batch.shared.disk_budget.record_transfer(&job.name.namespace, fetched.len(), size);
            let failure = failure.as_ref().map(|RequestFailure { reason, message }| RequestFailure {
                reason: reason.clone(),
                message: redact_other_uids(message, key.uid.as_str()),
            });
            RequestResult { key, at, failure: failure.or(own), fetched, sizes, refused, omitted }
        };
        let results: Vec<RequestResult> = batch.requests.iter().map(result).collect();
        self.failed = results.iter().any(|result| result.failure.is_some());
        let tails = err_tails(batch, &results).await;
        stored(batch.shared.ledger.resolve_fetches(results, tails).await).await
    }

    pub(super) async fn not_run(&self, batch: &Batch) -> bool {
        let at = batch.shared.clock.now();
        let results = batch
            .requests
            .iter()
            .map(|job| {
                let failure = RequestFailure::new(Reason::OperatorStopping, super::NOT_BEGUN.to_owned());
                RequestResult::without_output(job.request.key.clone(), at, Some(failure))
            })
            .collect();
        stored(batch.shared.ledger.resolve(results).await).await
    }
}

/// Reads the last lines of `err` of the first failed job of each object, if its output has just arrived. They are only
/// information for users, so an unreadable file is skipped.
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
            tracing::warn!(%error, "ends of standard errors not read");
            return Vec::new();
        }
    };
    let planner = batch.shared.planner.clone();
    let names: HashMap<Uid, ObjectName> =
        batch.requests.iter().map(|job| (job.request.key.uid.clone(), job.name.clone())).collect();
    let uids = batch.uids();
    let read = move || {
        let tail = |(uid, indices): (Uid, Vec<Index>)| {
            let name = names.get(&uid)?;
            indices.into_iter().find_map(|index| {
                let text = err_tail(&written(&planner.layout.job_output(name, &uid, index), "err", index)?)?;
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
            tracing::error!(%error, "results of an HTCondor tool not stored, it runs again");
            tokio::time::sleep(super::LEDGER_PAUSE).await;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::disk_budget::DiskAmount;

    #[test]
    fn unsynced_output_is_not_marked_fetched() {
        let size = DiskAmount { bytes: 9, inodes: 1 };
        let came = ReceivedOutput { fetched: Indices::first(1), size, ..ReceivedOutput::default() };
        let mut arrived = HashMap::from([(Uid::from("a"), came), (Uid::from("b"), ReceivedOutput::default())]);
        not_on_the_disk(&mut arrived, &std::io::Error::other("gone"));
        let [a, b] = ["a", "b"].map(|uid| &arrived[&Uid::from(uid)]);
        assert!(a.fetched.is_empty() && a.failure.is_some());
        assert!(b.failure.is_none(), "none of it came");
    }
}
