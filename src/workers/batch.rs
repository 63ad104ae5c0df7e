//! A batch of requests that share one call of a tool.

use std::sync::Arc;

use tokio::sync::Notify;

use super::room::Reservation;
use super::{Queued, Shared, files};
use crate::api::{ObjectName, Reason};
use crate::condor::Schedd;
use crate::ledger::RequestResult;
use crate::machine::facts::Failure;
use crate::machine::request::Work;
use crate::machine::{Indices, Uid};

/// Most HTCJobs of a batch that a log line names.
const NAMED: usize = 3;

/// A batch under way. Whatever happens to it, its requests are resolved and its objects woken.
pub(super) struct Batch {
    pub(super) shared: Arc<Shared>,
    /// The schedd, in the name of all of them.
    pub(super) schedd: Arc<Schedd>,
    pub(super) jobs: Vec<Queued>,
    /// Notified when one of the requests is to be stopped half way, if it is of a kind that can be.
    pub(super) stop: Arc<Notify>,
    /// For a transfer: the room for what it brings.
    pub(super) reserved: Option<Reservation>,
    /// Some were given up.
    pub(super) failed: bool,
}

impl Batch {
    pub(super) fn new(schedd: Arc<Schedd>, jobs: Vec<Queued>, shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), schedd, jobs, stop: Arc::default(), reserved: None, failed: false }
    }

    /// What kind of request all of them are.
    pub(super) fn kind(&self) -> &'static str {
        self.jobs.first().map_or("", |job| job.request.key.kind.into())
    }

    /// The HTCJobs for the log: the first few by name, and how many more there are.
    pub(super) fn names(&self) -> String {
        let names = self.jobs.iter().take(NAMED).map(|job| format!("{}/{}", job.name.namespace, job.name.name));
        let names = names.collect::<Vec<_>>().join(",");
        match self.jobs.len().saturating_sub(NAMED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }

    /// Ends some of the requests without running the tool, and says why.
    pub(super) async fn give_up(&mut self, which: impl Fn(&Queued) -> Option<Failure>) -> bool {
        let at = self.shared.clock.now();
        let (failed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.jobs)
            .into_iter()
            .map(|job| (which(&job), job))
            .partition(|(why, _)| why.is_some());
        self.jobs = rest.into_iter().map(|(_, job)| job).collect();
        self.failed |= !failed.is_empty();
        let results: Vec<RequestResult> = failed
            .iter()
            .map(|(why, job)| RequestResult::without_output(job.request.key.clone(), at, why.clone()))
            .collect();
        if let Err(error) = self.shared.ledger.resolve(results).await {
            tracing::warn!(%error, "the results of {} requests are not in the ledger", failed.len());
            tokio::time::sleep(super::LEDGER_PAUSE).await;
        }
        for (_, job) in failed {
            self.resolve(&job).await;
        }
        !self.jobs.is_empty()
    }

    /// Does work on the files of all of them, `jobs` in number. If it hangs, all fail by it; those whose files are still at work
    /// for a call before this one fail at once. None if no request is left, or one is to stop: then nobody is told of it, as if the
    /// operator had been killed.
    pub(super) async fn on_files<T, W>(
        &mut self,
        failed: fn(String) -> Failure,
        work: impl FnOnce(&Self) -> (usize, W),
    ) -> Option<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let busy = self.shared.files.clone();
        let is_busy = |job: &Queued| busy.busy(&job.request.key.uid);
        if self.jobs.iter().any(|job| is_busy(job).is_some()) && !self.give_up(|job| is_busy(job).map(failed)).await {
            return None;
        }
        let (jobs, work) = work(self);
        match self.shared.files.run_unless(&self.stop, self.uids(), files::limit(jobs), work).await? {
            Ok(result) => Some(result),
            Err(why) => {
                tracing::error!(%why, "the files of these HTCJobs are left alone");
                self.give_up(|_| Some(failed(why.clone()))).await;
                None
            }
        }
    }

    /// The objects.
    pub(super) fn uids(&self) -> Vec<Uid> {
        self.jobs.iter().map(|job| job.request.key.uid.clone()).collect()
    }

    pub(super) async fn resolve_all(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.resolve(&job).await;
        }
    }

    pub(super) async fn resolve(&self, job: &Queued) {
        self.shared.registry.resolve(&job.request.key.uid, job.ticket);
        // The receiver goes only when the operator ends.
        let _ = self.shared.wake.send(job.object.clone()).await;
    }

    pub(super) fn drop_cancelled(&mut self) -> Vec<Queued> {
        let (shared, stop) = (Arc::clone(&self.shared), Arc::clone(&self.stop));
        let taken = |job: &Queued| shared.registry.take_up(&job.request.key.uid, job.ticket, &stop);
        let (taken, cancelled) = std::mem::take(&mut self.jobs).into_iter().partition(taken);
        self.jobs = taken;
        cancelled
    }
}

/// The guard: a worker that panics or is stopped half way leaves no request standing.
impl Drop for Batch {
    fn drop(&mut self) {
        for job in &self.jobs {
            self.shared.registry.resolve(&job.request.key.uid, job.ticket);
            let _ = self.shared.wake.try_send(job.object.clone());
        }
    }
}

pub(super) fn fetch_failed(message: String) -> Failure {
    Failure::new(Reason::FetchFailed, message)
}

/// The jobs that each object's fetch names.
pub(super) fn asked(batch: &Batch) -> Vec<(ObjectName, Uid, Indices)> {
    batch.jobs.iter().map(|job| (job.name.clone(), job.request.key.uid.clone(), to_fetch(job))).collect()
}

/// The jobs whose output a request asks for, if it is a fetch.
pub(super) fn asked_for(job: &Queued) -> Option<&Indices> {
    match &job.request.work {
        Work::Fetch(indices) => Some(indices),
        _ => None,
    }
}

/// The same; empty if it is none.
pub(super) fn to_fetch(job: &Queued) -> Indices {
    asked_for(job).cloned().unwrap_or_default()
}
