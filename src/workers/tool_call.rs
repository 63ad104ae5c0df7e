//! Removal, hold and release, fetching and tidying: one call of one tool for the whole batch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::batch::Batch;
use super::err_tail::err_tail;
use super::{Planner, WorkItem};
use crate::api::{ObjectName, Reason};
use crate::ledger::{Intent, LedgerError, RequestResult};
use crate::machine::facts::{ErrTail, Failure, Unknown};
use crate::machine::request::{Scope, Work};
use crate::machine::{Index, Indices, Timestamp, Uid};

/// One call under way.
#[derive(Default)]
pub(super) struct ToolCall {
    ended: Option<(Result<(), Unknown>, Timestamp)>,
    /// Some of what was asked for did not come about.
    pub(super) failed: bool,
}

/// Makes the intents durable; for a fetch, makes the folders first.
pub(super) async fn intend(batch: &mut Batch) -> bool {
    if matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Fetch(_))) && !make_folders(batch).await {
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

/// One unwritable folder would stop the whole call: folders are made and tried before. A volume that is nearly full would
/// stop more than fetches: the ledger may lie on it, too.
async fn make_folders(batch: &mut Batch) -> bool {
    let planner = batch.shared.planner.clone();
    let keep_free = batch.shared.limits.keep_free;
    let checked = planner.clone();
    let full = tokio::task::spawn_blocking(move || checked.lacks_room(keep_free)).await.unwrap_or_default();
    if let Some(message) = full {
        let failure = Failure::new(Reason::NoSpace, message);
        return batch.give_up(|_| Some(failure.clone())).await;
    }
    let work: Vec<_> =
        batch.jobs.iter().map(|job| (job.name.clone(), job.request.key.uid.clone(), to_fetch(job))).collect();
    let tried = tokio::task::spawn_blocking(move || {
        work.iter()
            .filter_map(|(name, uid, indices)| {
                try_folders(&planner, name, uid, indices).err().map(|why| (uid.clone(), why))
            })
            .collect::<HashMap<_, _>>()
    })
    .await;
    match tried {
        Ok(failures) => batch.give_up(|job| failures.get(&job.request.key.uid).cloned().map(fetch_failed)).await,
        Err(error) => batch.give_up(|_| Some(fetch_failed(error.to_string()))).await,
    }
}

fn try_folders(planner: &Planner, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), String> {
    planner.make_output(name, uid, indices)?;
    for index in indices.iter() {
        let probe = planner.job_output(name, uid, index).join(".htc_probe");
        std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(|error| {
            format!(
                "cannot write into the output folder {}: {error}; check the operator's data volume",
                probe.parent().unwrap_or(&probe).display()
            )
        })?;
    }
    Ok(())
}

/// The output folder of the first object.
fn output(batch: &Batch) -> String {
    let folder = batch.jobs.first().map(|job| batch.shared.planner.output(&job.name, &job.request.key.uid));
    folder.map(|folder| folder.display().to_string()).unwrap_or_default()
}

/// What a job wrote to its `out` or `err`, if that is here. Jobs of the Go operator have its cluster and proc in the name.
fn written(folder: &Path, what: &str, index: Index) -> Option<PathBuf> {
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

fn to_fetch(job: &WorkItem) -> Indices {
    match &job.request.work {
        Work::Fetch(indices) => indices.clone(),
        _ => Indices::default(),
    }
}

/// The jobs that a fetch or a tidying names.
fn listed(batch: &Batch) -> Vec<(&Uid, &Indices)> {
    batch
        .jobs
        .iter()
        .filter_map(|job| match &job.request.work {
            Work::Fetch(indices) | Work::Tidy(indices) => Some((&job.request.key.uid, indices)),
            _ => None,
        })
        .collect()
}

/// Those of the jobs asked for whose output is there: condor_transfer_data ends with 0 even when there was nothing to fetch.
async fn there(batch: &Batch) -> HashMap<Uid, Indices> {
    let planner = batch.shared.planner.clone();
    let asked: Vec<_> =
        batch.jobs.iter().map(|job| (job.name.clone(), job.request.key.uid.clone(), to_fetch(job))).collect();
    let look = move || {
        asked
            .into_iter()
            .map(|(name, uid, asked)| {
                let is_there =
                    |index: &Index| written(&planner.job_output(&name, &uid, *index), "out", *index).is_some();
                let there = asked.iter().filter(is_there).collect();
                (uid, there)
            })
            .collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

fn outcome(job: &WorkItem, at: Timestamp, failure: Option<&Failure>, fetched: Indices) -> RequestResult {
    let missing = to_fetch(job).len() - fetched.len();
    let failure = failure.cloned().or_else(|| {
        let message = || {
            format!("condor_transfer_data brought no output of {missing} jobs: they are not in the queue, or not ended")
        };
        (missing > 0).then(|| fetch_failed(message()))
    });
    RequestResult { key: job.request.key.clone(), at, failure, fetched }
}

/// One transfer that hangs costs the others that go with it, or wait for it, no more than the shorter time.
fn transfer_limit(batch: &Batch) -> Duration {
    let longest = batch.shared.schedd.tools.transfer_limit;
    let alone = batch.jobs.iter().all(|job| job.request.alone);
    if alone { longest } else { longest.min(batch.shared.limits.transfer_together) }
}

impl ToolCall {
    pub(super) async fn run(&mut self, batch: &Batch) {
        let schedd = &batch.schedd;
        let uids: Vec<Uid> = batch.jobs.iter().map(|job| job.request.key.uid.clone()).collect();
        let result = match batch.jobs.first().map(|job| (&job.request.work, &job.request.key.uid)) {
            Some((Work::Remove(Scope::All), _)) => schedd.remove(&uids).await,
            Some((Work::Remove(Scope::Staging), _)) => schedd.remove_staging(&uids).await,
            Some((Work::Remove(Scope::Unfinished), _)) => schedd.remove_unfinished(&uids).await,
            Some((Work::Remove(Scope::Extra(ids)), uid)) => schedd.remove_jobs(uid, ids).await,
            Some((Work::Hold, _)) => schedd.hold(&uids).await,
            Some((Work::Release, _)) => schedd.release(&uids).await,
            Some((Work::Fetch(_), _)) => schedd.fetch(&listed(batch), transfer_limit(batch)).await,
            Some((Work::Tidy(_), _)) => schedd.tidy(&listed(batch)).await,
            Some((Work::Adopt(jobs), uid)) => schedd.adopt(uid, jobs, &output(batch)).await,
            Some((Work::Submit(..) | Work::AttachFinalizer | Work::ReleaseFinalizer(_) | Work::DeleteObject, _))
            | None => Ok(()),
        };
        if matches!(batch.jobs.first().map(|job| &job.request.work), Some(Work::Remove(_))) {
            batch.shared.metrics.removed(batch.jobs.len());
        }
        self.ended = Some((result, batch.shared.clock.now()));
    }

    pub(super) async fn commit(&mut self, batch: &Batch) -> bool {
        let Some((result, at)) = self.ended.take() else {
            return false;
        };
        let failure = result.err().map(Failure::from);
        if let Some(Failure { message, .. }) = &failure {
            tracing::warn!(%message, "an HTCondor tool failed");
        }
        let mut fetched = if failure.is_none() { there(batch).await } else { HashMap::new() };
        let results: Vec<RequestResult> = batch
            .jobs
            .iter()
            .map(|job| outcome(job, at, failure.as_ref(), fetched.remove(&job.request.key.uid).unwrap_or_default()))
            .collect();
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
