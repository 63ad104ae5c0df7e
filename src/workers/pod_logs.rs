//! Logs of Pods that have ended, onto the volume: to the same place, by the same rules and within the same limits as HTCondor's output.
//! What came of each is recorded; who decides what is asked for again is [`crate::machine::pods`].

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{AsyncReadExt as _, FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, LogParams};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::incoming::Arrived;
use super::room::{Full, Reservation};
use super::{Shared, files};
use crate::api::text::{WORDS, harmless};
use crate::api::{Guarded, ObjectName, Observed};
use crate::kubernetes::{is_controlled, limited};
use crate::machine::pods::{JobUid, KeptLog};
use crate::machine::{Index, Indices, Uid};

/// `HTCJob`s whose logs are asked for at once.
const OBJECTS: usize = 4;
/// Logs of one `HTCJob` that are asked for at once.
const LOGS: usize = 4;
/// Longest time for one log.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest time in which nothing of it comes.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes that are read at once.
const PART: usize = 64 * 1024;
/// Parts that wait for the volume.
const PARTS: usize = 8;
const MIB: u64 = 1 << 20;

/// Has logs of Pods kept.
pub struct PodLogs {
    client: Client,
    shared: Arc<Shared>,
    turns: Arc<Semaphore>,
    under_way: Mutex<HashMap<Uid, JoinHandle<()>>>,
}

/// Whose logs are to be kept.
#[derive(Clone, Debug)]
pub struct WantedLogs {
    /// The `HTCJob`.
    pub name: ObjectName,
    /// Its uid.
    pub uid: Uid,
    /// How it wakes.
    pub object: ObjectRef<Observed>,
    /// Its Job, which is the Pods' controller.
    pub job: JobUid,
    /// The Pods, and how often each was refused before.
    pub pods: Vec<(Index, Arc<str>, u32)>,
}

impl PodLogs {
    /// Nothing is under way.
    #[must_use]
    pub fn new(client: Client, shared: Arc<Shared>) -> Self {
        Self { client, shared, turns: Arc::new(Semaphore::new(OBJECTS)), under_way: Mutex::default() }
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
        let (client, shared, turns) = (self.client.clone(), Arc::clone(&self.shared), Arc::clone(&self.turns));
        let uid = wanted.uid.clone();
        let ObjectName { namespace, name } = &wanted.name;
        let span = tracing::error_span!("logs", %namespace, htcjob = %name, %uid);
        let work = async move {
            let Ok(_turn) = turns.acquire().await else { return };
            let object = wanted.object.clone();
            let saved = keep(&client, &shared, wanted).await;
            if let Err(why) = saved {
                tracing::warn!(%why, "what became of logs of Pods is not recorded; they are asked for again");
                tokio::time::sleep(super::LEDGER_PAUSE).await;
            }
            let _ = shared.wake.send(object).await;
        };
        under_way.insert(uid, tokio::spawn(work.instrument(span)));
    }

    /// Asks no longer for logs of this object: its Pods go.
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
    Gone,
    Failed(String),
}

async fn keep(client: &Client, shared: &Arc<Shared>, wanted: WantedLogs) -> Result<(), String> {
    let prepared = prepare(shared, &wanted).await;
    let came = match &prepared {
        Err(why) => wanted.pods.iter().map(|_| Came::Failed(why.clone())).collect(),
        Ok(_room) => {
            let logs = wanted.pods.iter().map(|(index, pod, _)| fetch(client, shared, &wanted, *index, pod).boxed());
            let logs: Vec<_> = logs.collect();
            futures::stream::iter(logs).buffered(LOGS).collect::<Vec<_>>().await
        }
    };
    let here = came.iter().zip(&wanted.pods).filter(|(came, _)| matches!(came, Came::Here)).map(|(_, pod)| pod.0);
    let here: Indices = here.collect();
    let taken = if prepared.is_ok() { take_in(shared, &wanted, here).await } else { Ok(Arrived::default()) };
    drop(prepared);
    let now = shared.clock.now();
    let outcomes = wanted.pods.iter().zip(came).map(|((index, pod, tries), came)| {
        let failed = |why: &str| KeptLog::Failed { tries: tries + 1, at: now, why: harmless(why, WORDS).into() };
        let log = match (came, &taken) {
            (Came::Gone, _) => KeptLog::Gone,
            (Came::Failed(why), _) => failed(&why),
            (Came::Here, Err(why)) => failed(why),
            (Came::Here, Ok(arrived)) => match arrived.sizes.get(index) {
                Some(bytes) => KeptLog::Kept { pod: Arc::clone(pod), bytes: *bytes },
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
    let indices: Indices = wanted.pods.iter().map(|(index, _, _)| *index).collect();
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
async fn fetch(client: &Client, shared: &Arc<Shared>, wanted: &WantedLogs, index: Index, pod: &str) -> Came {
    let limited = tokio::time::timeout(LIMIT, stream(client, shared, wanted, index, pod));
    limited
        .await
        .unwrap_or_else(|_| Came::Failed(format!("the log of Pod {pod} has not come within {} s", LIMIT.as_secs())))
}

async fn stream(client: &Client, shared: &Arc<Shared>, wanted: &WantedLogs, index: Index, pod: &str) -> Came {
    let api: Api<Pod> = Api::namespaced(client.clone(), &wanted.name.namespace);
    // Another one of its name is not its.
    let guarded: Api<Guarded<Pod>> = Api::namespaced(client.clone(), &wanted.name.namespace);
    let there = match limited("get Pod", &pod, guarded.get_opt(pod)).await {
        Ok(there) => there,
        Err(error) => return Came::Failed(error.to_string()),
    };
    if let Some(came) = without_log(there, pod, &wanted.job) {
        return came;
    }
    let most = shared.planner.output_limit.map(|limit| limit.saturating_mul(MIB));
    let parameters = LogParams {
        container: Some(CONTAINER.to_owned()),
        limit_bytes: most.and_then(|most| i64::try_from(most).ok()),
        ..LogParams::default()
    };
    let log = match limited("read the log of Pod", &pod, api.log_stream(pod, &parameters)).await {
        Ok(log) => log,
        Err(error) if error.code() == Some(404) => return Came::Gone,
        Err(error) => return Came::Failed(error.to_string()),
    };
    let (parts, received) = mpsc::channel::<Vec<u8>>(PARTS);
    let path = shared.planner.job_incoming(&wanted.name, &wanted.uid, index).join("out");
    let write = shared.files.run(vec![wanted.uid.clone()], LIMIT, move || write(&path, received));
    let read = read(log, most, parts);
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
async fn read(log: impl futures::AsyncBufRead, most: Option<u64>, parts: mpsc::Sender<Vec<u8>>) -> Result<(), String> {
    let mut log = std::pin::pin!(log);
    let mut left = most;
    while left != Some(0) {
        let mut part = vec![0; PART];
        let came = tokio::time::timeout(SILENCE, log.read(&mut part)).await;
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
    let rest = wanted.pods.iter().map(|(index, _, _)| *index).collect::<Indices>().without(&here);
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

/// What comes of a Pod's log without asking for it; none if it may have one.
fn without_log(there: Option<Guarded<Pod>>, pod: &str, job: &JobUid) -> Option<Came> {
    match there {
        // One that came to no node has written nothing.
        Some(Guarded(Ok(there))) if is_controlled(&there, job.as_str()) && has_node(&there) => None,
        Some(Guarded(Ok(_))) | None => Some(Came::Gone),
        // Somebody may have made it so that it cannot be, and may make it readable again.
        Some(Guarded(Err(invalid))) => Some(Came::Failed(format!("Pod {pod} cannot be read: {invalid}"))),
    }
}

/// The only container of the Pods.
pub const CONTAINER: &str = "job";

fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_that_cannot_be_read_is_not_gone() {
        let came = |there: Option<Value>| {
            let there = there.map(|there| serde_json::from_value(there).unwrap());
            without_log(there, "sums-0-x", &JobUid::from("j"))
        };
        let pod = |uid: &str, spec: &Value| {
            let owner =
                json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "sums", "uid": uid, "controller": true });
            Some(json!({ "metadata": { "name": "sums-0-x", "ownerReferences": [owner] }, "spec": spec }))
        };
        let on_a_node = json!({ "nodeName": "n1", "containers": [] });
        assert!(came(pod("j", &on_a_node)).is_none(), "its log is asked for");
        for gone in [None, pod("another", &on_a_node), pod("j", &json!({ "containers": [] }))] {
            assert!(matches!(came(gone), Some(Came::Gone)));
        }
        let Some(Came::Failed(why)) = came(pod("j", &json!({ "nodeName": 7 }))) else { panic!("it may be there") };
        assert!(why.starts_with("Pod sums-0-x cannot be read: "), "{why}");
    }
}
