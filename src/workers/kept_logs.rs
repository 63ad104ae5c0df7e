//! Logs of jobs that have ended, onto the volume, where it is the operator that has to fetch them: to the same place, by the same rules and
//! within the same limits as HTCondor's output. What came of each is recorded; what is asked for again is for the backend's decision.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncReadExt as _, FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::incoming::Arrived;
use super::room::{Full, Reservation};
use super::{Shared, files};
use crate::api::text::{WORDS, harmless};
use crate::api::{ObjectName, Observed};
use crate::machine::runs::KeptLog;
use crate::machine::{Index, Indices, Uid};
use crate::turns::{Shares, Turns, Waits};

/// `HTCJob`s whose logs have a place to arrive in at once: each has reserved room on the volume.
const OBJECTS: Shares = Shares { all: 32, each: 4, slow: 16, each_slow: 2 };
/// Logs that are asked for at once. A node that does not answer keeps each for [`SILENCE`] or longer. A turn counts as long as its longest
/// wait for a node: a long log that comes all the while is no sign of one that hangs.
const LOGS: Shares = Shares { all: 16, each: 8, slow: 8, each_slow: 2 };
/// Logs of one `HTCJob` that are asked for at once.
const OF_AN_OBJECT: usize = 4;
/// Longest time for one log.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest time in which nothing of it comes.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes that are read at once.
const PART: usize = 64 * 1024;
/// Parts that wait for the volume.
const PARTS: usize = 8;
const MIB: u64 = 1 << 20;

/// Where a backend has the logs of the jobs of one `HTCJob`.
pub trait LogSource: Send + Sync {
    /// The log of what runs, or ran, under this name: standard output and standard error together.
    fn open<'a>(&'a self, id: &'a str, wanted: LogPart) -> BoxFuture<'a, Result<Log, NoLog>>;

    /// When the first line was written that is there; none if there is no line. Another one than before: the beginning is gone.
    fn first_line<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Timestamp>, NoLog>>;
}

/// As it comes.
pub type Log = Pin<Box<dyn AsyncRead + Send>>;

/// How much of a log is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogPart {
    /// Until it has ended.
    pub follow: bool,
    /// Its last lines only.
    pub tail_lines: Option<usize>,
    /// Its first bytes only.
    pub limit_bytes: Option<u64>,
}

/// Why there is no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// It went with what has written it.
    Gone,
    /// Nothing has been written: it has come to no node.
    Nothing,
    /// Nothing has been written yet, in words.
    NotYet(String),
    /// It cannot be had now, in words.
    Failed(String),
}

/// Has logs kept.
pub struct KeptLogs {
    shared: Arc<Shared>,
    turns: Arc<LogTurns>,
    under_way: Mutex<HashMap<Uid, JoinHandle<()>>>,
}

/// By namespace: its nodes may answer nothing.
struct LogTurns {
    objects: Turns,
    logs: Turns,
}

impl Default for LogTurns {
    fn default() -> Self {
        let objects = Turns::new("logs of one HTCJob took long: check the nodes that its Pods were on", OBJECTS);
        Self { objects, logs: Turns::new("the log of a Pod took long: check the node that it was on", LOGS) }
    }
}

/// Whose logs are to be kept.
pub struct WantedLogs {
    /// The `HTCJob`.
    pub name: ObjectName,
    /// Its uid.
    pub uid: Uid,
    /// How it wakes.
    pub object: ObjectRef<Observed>,
    /// Where they are.
    pub source: Arc<dyn LogSource>,
    /// The jobs, what has run each, and how often its log was refused before.
    pub jobs: Vec<(Index, Arc<str>, u32)>,
}

impl KeptLogs {
    /// Nothing is under way.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, turns: Arc::default(), under_way: Mutex::default() }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Uid, JoinHandle<()>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for these logs, unless some of the same object are being asked for. The object is woken when that is over.
    pub fn keep(&self, wanted: WantedLogs) {
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
            let waits = Arc::new(Waits::default());
            let mut turn = turns.objects.next(&wanted.name.namespace).await;
            if let Some(turn) = &mut turn {
                turn.counts(&waits);
            }
            let object = wanted.object.clone();
            let saved = keep(&shared, &turns.logs, &waits, wanted).await;
            if let Some(turn) = turn {
                turn.ended();
            }
            if let Err(why) = saved {
                tracing::warn!(%why, "what became of logs is not recorded; they are asked for again");
                tokio::time::sleep(super::LEDGER_PAUSE).await;
            }
            let _ = shared.wake.send(object).await;
        };
        under_way.insert(uid, tokio::spawn(work.instrument(span)));
    }

    /// Asks no longer for logs of this object: they go.
    pub fn stop(&self, uid: &Uid) {
        if let Some(work) = self.under_way().remove(uid) {
            work.abort();
        }
    }
}

/// What came of one log.
enum Came {
    /// So many bytes of it are where it arrives.
    Here,
    /// There is none, and never will be.
    Gone,
    Failed(String),
}

/// `waits`: how long nodes have been waited for.
async fn keep(shared: &Arc<Shared>, turns: &Turns, waits: &Arc<Waits>, wanted: WantedLogs) -> Result<(), String> {
    let prepared = prepare(shared, &wanted).await;
    let came = match &prepared {
        Err(why) => wanted.jobs.iter().map(|_| Came::Failed(why.clone())).collect(),
        Ok(_room) => {
            let logs = wanted.jobs.iter().map(|(index, id, _)| {
                let own = Arc::new(Waits::among(waits));
                fetch(shared, turns, own, &wanted, *index, id).boxed()
            });
            let logs: Vec<_> = logs.collect();
            futures::stream::iter(logs).buffered(OF_AN_OBJECT).collect::<Vec<_>>().await
        }
    };
    let here = came.iter().zip(&wanted.jobs).filter(|(came, _)| matches!(came, Came::Here)).map(|(_, job)| job.0);
    let here: Indices = here.collect();
    let taken = if prepared.is_ok() { take_in(shared, &wanted, here).await } else { Ok(Arrived::default()) };
    drop(prepared);
    let now = shared.clock.now();
    let outcomes = wanted.jobs.iter().zip(came).map(|((index, id, tries), came)| {
        let failed = |why: &str| KeptLog::Failed { tries: tries + 1, at: now, why: harmless(why, WORDS).into() };
        let log = match (came, &taken) {
            (Came::Gone, _) => KeptLog::Gone,
            (Came::Failed(why), _) => failed(&why),
            (Came::Here, Err(why)) => failed(why),
            (Came::Here, Ok(arrived)) => match arrived.sizes.get(index) {
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
            tracing::info!(%index, %why, tries, "a log is not kept yet");
        }
    }
    shared.ledger.save_logs(wanted.uid, outcomes).await.map_err(|error| error.to_string())
}

/// Room, and empty folders that they arrive in.
async fn prepare(shared: &Arc<Shared>, wanted: &WantedLogs) -> Result<Reservation, String> {
    shared.fence.check().map_err(|refused| refused.to_string())?;
    if let Some(busy) = shared.files.busy(&wanted.uid) {
        return Err(busy);
    }
    shared.namespace_output.left(&wanted.name.namespace).await?;
    let indices: Indices = wanted.jobs.iter().map(|(index, _, _)| *index).collect();
    let (planner, room, name, uid) =
        (shared.planner.clone(), Arc::clone(&shared.room), wanted.name.clone(), wanted.uid.clone());
    let jobs = indices.len();
    let prepare = move || {
        let room = room.reserve(&name.namespace, jobs).map_err(Full::message)?;
        planner.empty_incoming(&name, &uid, &indices).map(|()| room)
    };
    shared.files.run(vec![wanted.uid.clone()], files::limit(jobs), prepare).await?
}

/// Brings one log to where it arrives, as much of it as is kept of a job's output.
async fn fetch(
    shared: &Arc<Shared>,
    turns: &Turns,
    waits: Arc<Waits>,
    wanted: &WantedLogs,
    index: Index,
    id: &str,
) -> Came {
    let mut turn = turns.next(&wanted.name.namespace).await;
    if let Some(turn) = &mut turn {
        turn.counts(&waits);
    }
    let came = tokio::time::timeout(LIMIT, stream(shared, &waits, wanted, index, id)).await;
    if let Some(turn) = turn {
        turn.ended();
    }
    came.unwrap_or_else(|_| Came::Failed(format!("the log of {id} has not come within {} s", LIMIT.as_secs())))
}

async fn stream(shared: &Arc<Shared>, waits: &Waits, wanted: &WantedLogs, index: Index, id: &str) -> Came {
    let most = shared.planner.output_limit.map(|limit| limit.saturating_mul(MIB));
    let part = LogPart { limit_bytes: most, ..LogPart::default() };
    let log = match waits.during(wanted.source.open(id, part)).await {
        Ok(log) => log,
        Err(NoLog::Gone | NoLog::Nothing) => return Came::Gone,
        Err(NoLog::NotYet(why) | NoLog::Failed(why)) => return Came::Failed(why),
    };
    let (parts, received) = mpsc::channel::<Vec<u8>>(PARTS);
    let path = shared.planner.job_incoming(&wanted.name, &wanted.uid, index).join("out");
    let write = shared.files.run(vec![wanted.uid.clone()], LIMIT, move || write(&path, received));
    let read = read(log, most, waits, parts);
    match tokio::join!(write, read) {
        (Ok(Ok(())), Ok(())) => Came::Here,
        (Err(why) | Ok(Err(why)), _) | (_, Err(why)) => Came::Failed(why),
    }
}

fn write(path: &std::path::Path, mut parts: mpsc::Receiver<Vec<u8>>) -> Result<(), String> {
    let failed =
        |error: std::io::Error| format!("cannot write {}: {error}; check the operator's data volume", path.display());
    let mut file = File::create_new(path).map_err(failed)?;
    while let Some(part) = parts.blocking_recv() {
        file.write_all(&part).map_err(failed)?;
    }
    Ok(())
}

/// Hands on what comes, and no more than `most` bytes.
async fn read(mut log: Log, most: Option<u64>, waits: &Waits, parts: mpsc::Sender<Vec<u8>>) -> Result<(), String> {
    let mut left = most;
    while left != Some(0) {
        let mut part = vec![0; PART];
        let came = waits.during(tokio::time::timeout(SILENCE, log.read(&mut part))).await;
        let came = came.map_err(|_| format!("nothing of the log has come for {} s", SILENCE.as_secs()))?;
        let came = came.map_err(|error| format!("the log ended too early: {error}"))?;
        if came == 0 {
            return Ok(());
        }
        let taken = left.map_or(came, |left| came.min(usize::try_from(left).unwrap_or(usize::MAX)));
        left = left.map(|left| left.saturating_sub(taken as u64));
        part.truncate(taken);
        // Who writes says why it does not.
        if parts.send(part).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn take_in(shared: &Arc<Shared>, wanted: &WantedLogs, here: Indices) -> Result<Arrived, String> {
    shared.fence.check().map_err(|refused| refused.to_string())?;
    let (planner, name, uid, jobs) = (shared.planner.clone(), wanted.name.clone(), wanted.uid.clone(), here.len());
    let rest = wanted.jobs.iter().map(|(index, _, _)| *index).collect::<Indices>().without(&here);
    let take_in = move || {
        planner.clear_incoming(&name, &uid, &rest);
        if here.is_empty() {
            let _ = std::fs::remove_dir(planner.incoming(&name, &uid));
            return Ok(Arrived::default());
        }
        let arrived = planner.take_in(&name, &uid, &here);
        planner.sync_output().map(|()| arrived).map_err(|error| format!("cannot sync the output: {error}"))
    };
    let arrived = shared.files.run(vec![wanted.uid.clone()], files::limit(jobs), take_in).await??;
    shared.namespace_output.add(&wanted.name.namespace, arrived.size.bytes);
    shared.room.learn(&wanted.name.namespace, jobs, arrived.size);
    Ok(arrived)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures::TryStreamExt as _;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn of_a_log_that_comes_all_the_while_the_longest_pause_counts() {
        let parts = futures::stream::iter(0..5).then(|_| async {
            tokio::time::sleep(PAUSE).await;
            Ok::<_, std::io::Error>(vec![0; PART])
        });
        let (waits, (sender, mut received)) = (Waits::default(), mpsc::channel(PARTS));
        let count = async {
            let mut count = 0;
            while received.recv().await.is_some() {
                count += 1;
            }
            count
        };
        let began = Instant::now();
        let log: Log = Box::pin(Box::pin(parts).into_async_read());
        let (read, count) = tokio::join!(read(log, None, &waits, sender), count);
        assert_eq!((read, count), (Ok(()), 5));
        assert!(waits.longest() >= PAUSE && waits.longest() + 4 * PAUSE <= began.elapsed(), "{waits:?}");
    }
}
