//! Stores the logs of ended jobs on the data volume, for backends whose logs the operator must fetch. They go to the
//! same place as HTCondor's output, under the same rules and limits. The result for each log is recorded; the backend's
//! decision requests retries.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncReadExt as _, FutureExt as _, StreamExt as _};
use htc_api::{ObjectName, ObservedHTCJob};
use htc_ledger::LedgerError;
use htc_machine::runs::KeptLog;
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::{Index, Indices, Uid};
use htc_support::fair_limiter::{FairLimiter, Shares, WaitTimes};
use htc_support::fence::FenceClosed;
use htc_support::forget::Forget;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use crate::backends::condor::workers::WorkerContext;
use crate::output::disk_budget::Reservation;
use crate::output::error::VolumeError;
use crate::output::files;
use crate::output::incoming::ReceivedOutput;

/// Limits for `HTCJob`s whose logs are fetched at the same time. Each has reserved space on the volume.
const OBJECTS: Shares = Shares { all: 32, each: 4, slow: 16, each_slow: 2 };
/// Limits for logs that are fetched at the same time. A node that does not answer blocks each of them for [`SILENCE`]
/// or longer. A fetch counts as slow by its longest single wait for a node, because a long log that arrives steadily
/// does not mean that the node hangs.
const LOGS: Shares = Shares { all: 16, each: 8, slow: 8, each_slow: 2 };
/// Maximum number of logs of one `HTCJob` that are fetched at the same time.
const OF_AN_OBJECT: usize = 4;
/// Timeout for one log.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest pause in which no byte of a log arrives.
const SILENCE: Duration = Duration::from_secs(20);
/// Maximum number of bytes in one read.
const PART: usize = 64 * 1024;
/// Number of parts that may wait to be written to the volume.
const PARTS: usize = 8;
const MIB: u64 = 1 << 20;

/// Source of the logs of one `HTCJob`'s jobs in its backend.
pub trait LogSource: Send + Sync {
    /// Opens the log of what runs or ran as `id`, such as a Pod: standard output and standard error in one stream.
    fn open<'a>(&'a self, id: &'a str, wanted: LogPart) -> BoxFuture<'a, Result<LogStream, NoLog>>;

    /// Returns the time of the first available line, or `None` if there is no line. If it differs from an earlier
    /// answer, the beginning of the log was rotated away.
    fn first_line<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Timestamp>, NoLog>>;
}

/// The bytes of a log, as they arrive.
pub type LogStream = Pin<Box<dyn AsyncRead + Send>>;

/// Which part of a log to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogPart {
    /// Whether to follow the log until it ends.
    pub follow: bool,
    /// Number of last lines to read, if not all.
    pub tail_lines: Option<usize>,
    /// Number of first bytes to read, if not all.
    pub limit_bytes: Option<u64>,
}

/// Why there is no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// The log was deleted together with what wrote it, such as a Pod.
    Gone,
    /// Nothing has been written: it was not assigned to any node.
    Nothing,
    /// Nothing has been written yet, for this reason.
    NotYet(String),
    /// The log is unavailable now, for this reason.
    Failed(String),
}

/// Fetches and stores logs.
pub struct KeptLogs {
    shared: Arc<WorkerContext>,
    turns: Arc<LogTurns>,
    under_way: Mutex<HashMap<Uid, JoinHandle<()>>>,
}

/// Limits by namespace, because the nodes of one namespace's Pods may not answer.
struct LogTurns {
    objects: FairLimiter,
    logs: FairLimiter,
}

impl Default for LogTurns {
    fn default() -> Self {
        let objects = FairLimiter::new("logs of one HTCJob took long: check the nodes that its Pods were on", OBJECTS);
        Self { objects, logs: FairLimiter::new("the log of a Pod took long: check the node that it was on", LOGS) }
    }
}

/// Request to store the logs of one HTCJob.
pub struct LogRequest {
    pub name: ObjectName,
    pub uid: Uid,
    /// The object to wake when the logs are done.
    pub object: ObjectRef<ObservedHTCJob>,
    pub source: Arc<dyn LogSource>,
    /// Index of each job, name of what ran it, and number of earlier failures for its log.
    pub jobs: Vec<(Index, Arc<str>, u32)>,
}

impl KeptLogs {
    /// Creates it without any fetch in progress.
    #[must_use]
    pub fn new(shared: Arc<WorkerContext>) -> Self {
        Self { shared, turns: Arc::default(), under_way: Mutex::default() }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Uid, JoinHandle<()>>> {
        self.under_way.lock()
    }

    /// Starts to fetch these logs, unless a fetch for the same object is in progress. Wakes the object when it is done.
    pub fn keep(&self, wanted: LogRequest) {
        let mut under_way = self.under_way();
        under_way.retain(|_, work| !work.is_finished());
        if under_way.contains_key(&wanted.uid) {
            return;
        }
        let (shared, turns) = (Arc::clone(&self.shared), Arc::clone(&self.turns));
        let uid = wanted.uid.clone();
        let ObjectName { namespace, name } = &wanted.name;
        let span = tracing::error_span!("logs", %namespace, htcjob = %name, %uid);
        let work = async move {
            let waits = Arc::new(WaitTimes::default());
            let mut turn = turns.objects.acquire(&wanted.name.namespace).await;
            if let Some(turn) = &mut turn {
                turn.count_waits(&waits);
            }
            let object = wanted.object.clone();
            let saved = keep(&shared, &turns.logs, &waits, wanted).await;
            if let Some(turn) = turn {
                turn.finish();
            }
            if let Err(why) = saved {
                tracing::warn!(%why, "results of reading logs not stored, they are read again");
                tokio::time::sleep(crate::backends::condor::workers::LEDGER_PAUSE).await;
            }
            let _ = shared.wake.send(object).await;
        };
        under_way.insert(uid, tokio::spawn(work.instrument(span)));
    }

    /// Stops fetching logs of this object, because they are about to be deleted.
    pub fn stop(&self, uid: &Uid) {
        if let Some(work) = self.under_way().remove(uid) {
            work.abort();
        }
    }
}

/// Reason why a log was not stored. Some apply to all logs of an HTCJob.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error(transparent)]
    FenceClosed(#[from] FenceClosed),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("nothing of the log has come for {} s", SILENCE.as_secs())]
    Silent,
    #[error("the log ended too early: {0}")]
    EndedEarly(#[source] io::Error),
}

impl Forget for KeptLogs {
    fn forget(&self, uid: &Uid) {
        self.stop(uid);
    }

    fn retain(&self, uids: &HashSet<Uid>) {
        for (_, work) in self.under_way().extract_if(|uid, _| !uids.contains(uid)) {
            work.abort();
        }
    }
}

/// Result for one log.
enum LogOutcome {
    /// The log was written to the incoming folder.
    Stored,
    /// There is no log, and there never will be.
    Gone,
    Failed(String),
}

/// Fetches the logs and records the results. `waits`: measures how long nodes are waited for.
async fn keep(
    shared: &Arc<WorkerContext>,
    turns: &FairLimiter,
    waits: &Arc<WaitTimes>,
    wanted: LogRequest,
) -> Result<(), LedgerError> {
    let prepared = prepare(shared, &wanted).await;
    let came = match &prepared {
        Err(error) => wanted.jobs.iter().map(|_| LogOutcome::Failed(error.to_string())).collect(),
        Ok(_room) => {
            let logs = wanted.jobs.iter().map(|(index, id, _)| {
                let own = Arc::new(WaitTimes::among(waits));
                fetch(shared, turns, own, &wanted, *index, id).boxed()
            });
            let logs: Vec<_> = logs.collect();
            futures::stream::iter(logs).buffered(OF_AN_OBJECT).collect::<Vec<_>>().await
        }
    };
    let here =
        came.iter().zip(&wanted.jobs).filter(|(came, _)| matches!(came, LogOutcome::Stored)).map(|(_, job)| job.0);
    let here: Indices = here.collect();
    let taken = if prepared.is_ok() { take_in(shared, &wanted, here).await } else { Ok(ReceivedOutput::default()) };
    drop(prepared);
    let now = shared.clock.now();
    let outcomes = wanted.jobs.iter().zip(came).map(|((index, id, tries), came)| {
        let failed = |why: &str| KeptLog::Failed { tries: tries + 1, at: now, why: sanitize(why, MAX_MESSAGE).into() };
        let log = match (came, &taken) {
            (LogOutcome::Gone, _) => KeptLog::Gone,
            (LogOutcome::Failed(why), _) => failed(&why),
            (LogOutcome::Stored, Err(error)) => failed(&error.to_string()),
            (LogOutcome::Stored, Ok(arrived)) => match arrived.sizes.get(index) {
                Some(bytes) => KeptLog::Kept { id: Arc::clone(id), bytes: *bytes },
                None => failed(arrived.refused.iter().find(|(refused, _)| refused == index).map_or_else(
                    || arrived.failure.as_ref().map_or("it has not arrived", |failure| &failure.message),
                    |(_, why)| why,
                )),
            },
        };
        (*index, log)
    });
    let outcomes: Vec<(Index, KeptLog)> = outcomes.collect();
    for (index, log) in &outcomes {
        if let KeptLog::Failed { why, tries, .. } = log {
            tracing::info!(%index, %why, tries, "log not kept yet");
        }
    }
    shared.ledger.save_logs(wanted.uid, outcomes).await
}

/// Reserves space and creates the empty incoming folders.
async fn prepare(shared: &Arc<WorkerContext>, wanted: &LogRequest) -> Result<Reservation, StoreError> {
    shared.fence.check()?;
    if let Some(busy) = shared.files.busy(&wanted.uid) {
        return Err(busy.into());
    }
    shared.namespace_output.left(&wanted.name.namespace).await?;
    let indices: Indices = wanted.jobs.iter().map(|(index, _, _)| *index).collect();
    let (planner, room, name, uid) =
        (shared.planner.clone(), Arc::clone(&shared.disk_budget), wanted.name.clone(), wanted.uid.clone());
    let jobs = indices.len();
    let prepare = move || {
        let room = room.reserve(&name.namespace, jobs)?;
        planner.layout.empty_incoming(&name, &uid, &indices)?;
        Ok::<_, VolumeError>(room)
    };
    Ok(shared.files.run(vec![wanted.uid.clone()], files::limit(jobs), prepare).await??)
}

/// Fetches one log into its incoming folder, up to the size limit of a job's output.
async fn fetch(
    shared: &Arc<WorkerContext>,
    turns: &FairLimiter,
    waits: Arc<WaitTimes>,
    wanted: &LogRequest,
    index: Index,
    id: &str,
) -> LogOutcome {
    let mut turn = turns.acquire(&wanted.name.namespace).await;
    if let Some(turn) = &mut turn {
        turn.count_waits(&waits);
    }
    let came = tokio::time::timeout(LIMIT, stream(shared, &waits, wanted, index, id)).await;
    if let Some(turn) = turn {
        turn.finish();
    }
    came.unwrap_or_else(|_| LogOutcome::Failed(format!("the log of {id} has not come within {} s", LIMIT.as_secs())))
}

async fn stream(
    shared: &Arc<WorkerContext>,
    waits: &WaitTimes,
    wanted: &LogRequest,
    index: Index,
    id: &str,
) -> LogOutcome {
    let most = shared.planner.layout.output_limit.map(|limit| limit.saturating_mul(MIB));
    let part = LogPart { limit_bytes: most, ..LogPart::default() };
    let log = match waits.during(wanted.source.open(id, part)).await {
        Ok(log) => log,
        Err(NoLog::Gone | NoLog::Nothing) => return LogOutcome::Gone,
        Err(NoLog::NotYet(why) | NoLog::Failed(why)) => return LogOutcome::Failed(why),
    };
    let (parts, received) = mpsc::channel::<Vec<u8>>(PARTS);
    let path = shared.planner.layout.job_incoming(&wanted.name, &wanted.uid, index).join("out");
    let write = shared.files.run(vec![wanted.uid.clone()], LIMIT, move || write(&path, received));
    let read = read(log, most, waits, parts);
    match tokio::join!(write, read) {
        (Ok(Ok(())), Ok(())) => LogOutcome::Stored,
        (Err(error) | Ok(Err(error)), _) => LogOutcome::Failed(error.to_string()),
        (_, Err(error)) => LogOutcome::Failed(error.to_string()),
    }
}

fn write(path: &Path, mut parts: mpsc::Receiver<Vec<u8>>) -> Result<(), VolumeError> {
    let mut file = File::create_new(path).map_err(VolumeError::failed("write", path))?;
    while let Some(part) = parts.blocking_recv() {
        file.write_all(&part).map_err(VolumeError::failed("write", path))?;
    }
    Ok(())
}

/// Forwards the bytes that arrive, at most `most`.
async fn read(
    mut log: LogStream,
    most: Option<u64>,
    waits: &WaitTimes,
    parts: mpsc::Sender<Vec<u8>>,
) -> Result<(), StoreError> {
    let mut left = most;
    while left != Some(0) {
        let mut part = vec![0; PART];
        let came = waits.during(tokio::time::timeout(SILENCE, log.read(&mut part))).await;
        let came = came.map_err(|_| StoreError::Silent)?;
        let came = came.map_err(StoreError::EndedEarly)?;
        if came == 0 {
            return Ok(());
        }
        let taken = left.map_or(came, |left| came.min(usize::try_from(left).unwrap_or(usize::MAX)));
        left = left.map(|left| left.saturating_sub(taken as u64));
        part.truncate(taken);
        // The writer has failed, and reports why.
        if parts.send(part).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn take_in(
    shared: &Arc<WorkerContext>,
    wanted: &LogRequest,
    here: Indices,
) -> Result<ReceivedOutput, StoreError> {
    shared.fence.check()?;
    let (planner, name, uid, jobs) = (shared.planner.clone(), wanted.name.clone(), wanted.uid.clone(), here.len());
    let rest = wanted.jobs.iter().map(|(index, _, _)| *index).collect::<Indices>().without(&here);
    let take_in = move || {
        planner.layout.clear_incoming(&name, &uid, &rest);
        if here.is_empty() {
            let _ = std::fs::remove_dir(planner.layout.incoming(&name, &uid));
            return Ok(ReceivedOutput::default());
        }
        let arrived = planner.layout.store_output(&name, &uid, &here);
        planner.layout.sync_output().map(|()| arrived).map_err(VolumeError::Sync)
    };
    let arrived = shared.files.run(vec![wanted.uid.clone()], files::limit(jobs), take_in).await??;
    shared.namespace_output.add(&wanted.name.namespace, arrived.size.bytes);
    shared.disk_budget.record_transfer(&wanted.name.namespace, jobs, arrived.size);
    Ok(arrived)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures::TryStreamExt as _;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn longest_pause_of_a_steady_log_is_measured() {
        let parts = futures::stream::iter(0..5).then(|_| async {
            tokio::time::sleep(PAUSE).await;
            Ok::<_, std::io::Error>(vec![0; PART])
        });
        let (waits, (sender, mut received)) = (WaitTimes::default(), mpsc::channel(PARTS));
        let count = async {
            let mut count = 0;
            while received.recv().await.is_some() {
                count += 1;
            }
            count
        };
        let began = Instant::now();
        let log: LogStream = Box::pin(Box::pin(parts).into_async_read());
        let (read, count) = tokio::join!(read(log, None, &waits, sender), count);
        read.unwrap();
        assert_eq!(count, 5);
        assert!(waits.longest() >= PAUSE && waits.longest() + 4 * PAUSE <= began.elapsed(), "{waits:?}");
    }
}
