//! A batch of requests that share one call of a tool.

use std::sync::Arc;

use htc_api::{ObjectName, Reason};
use htc_ledger::RequestResult;
use htc_machine::facts::RequestFailure;
use htc_machine::request::Work;
use htc_machine::{Indices, Uid};
use htcondor::Schedd;
use tokio::sync::Notify;

use super::{QueuedRequest, WorkerContext};
use crate::output::disk_budget::Reservation;
use crate::output::files;

/// Maximum number of HTCJobs of a batch that a log line names.
const NAMED: usize = 3;

/// A batch in progress. However it ends, its requests are resolved and its objects are woken.
pub(super) struct Batch {
    pub(super) shared: Arc<WorkerContext>,
    /// The schedd, with the credentials that all requests share.
    pub(super) schedd: Arc<Schedd>,
    pub(super) requests: Vec<QueuedRequest>,
    /// Notified when one of the requests is to be stopped half-way, if its kind allows that.
    pub(super) stop: Arc<Notify>,
    /// For a transfer: the disk space reserved for its output.
    pub(super) reservation: Option<Reservation>,
    /// Whether some requests were given up.
    pub(super) failed: bool,
}

impl Batch {
    pub(super) fn new(schedd: Arc<Schedd>, jobs: Vec<QueuedRequest>, shared: &Arc<WorkerContext>) -> Self {
        Self {
            shared: Arc::clone(shared),
            schedd,
            requests: jobs,
            stop: Arc::default(),
            reservation: None,
            failed: false,
        }
    }

    /// Returns the kind of all its requests.
    pub(super) fn kind(&self) -> &'static str {
        self.requests.first().map_or("", |job| job.request.key.kind.into())
    }

    /// Returns the HTCJobs for the log: the first few names, and the number of the others.
    pub(super) fn names(&self) -> String {
        let names = self.requests.iter().take(NAMED).map(|job| format!("{}/{}", job.name.namespace, job.name.name));
        let names = names.collect::<Vec<_>>().join(",");
        match self.requests.len().saturating_sub(NAMED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }

    /// Fails some of the requests, with a reason, without running the tool. Returns whether any request is left.
    pub(super) async fn give_up(&mut self, which: impl Fn(&QueuedRequest) -> Option<RequestFailure>) -> bool {
        let at = self.shared.clock.now();
        let (failed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.requests)
            .into_iter()
            .map(|job| (which(&job), job))
            .partition(|(why, _)| why.is_some());
        self.requests = rest.into_iter().map(|(_, job)| job).collect();
        self.failed |= !failed.is_empty();
        let results: Vec<RequestResult> = failed
            .iter()
            .map(|(why, job)| RequestResult::without_output(job.request.key.clone(), at, why.clone()))
            .collect();
        if let Err(error) = self.shared.ledger.resolve(results).await {
            tracing::warn!(%error, requests = failed.len(), "results of requests not stored");
            tokio::time::sleep(super::LEDGER_PAUSE).await;
        }
        for (_, job) in failed {
            self.resolve(&job).await;
        }
        !self.requests.is_empty()
    }

    /// Runs work on the files of all HTCJobs. If it hangs, all requests fail. A request whose files are still in use by
    /// an earlier call fails at once. Returns `None` if no request is left or one is to stop; a stopped one ends
    /// without a result, as if the operator had been killed.
    pub(super) async fn on_files<T, W>(
        &mut self,
        failed: fn(String) -> RequestFailure,
        work: impl FnOnce(&Self) -> (usize, W),
    ) -> Option<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let busy = self.shared.files.clone();
        let is_busy = |job: &QueuedRequest| busy.busy(&job.request.key.uid);
        if self.requests.iter().any(|job| is_busy(job).is_some())
            && !self.give_up(|job| is_busy(job).map(|busy| failed(busy.to_string()))).await
        {
            return None;
        }
        let (jobs, work) = work(self);
        match self.shared.files.run_unless(&self.stop, self.uids(), files::limit(jobs), work).await? {
            Ok(result) => Some(result),
            Err(error) => {
                let why = error.to_string();
                tracing::error!(%why, "files of HTCJobs not processed");
                self.give_up(|_| Some(failed(why.clone()))).await;
                None
            }
        }
    }

    /// Returns the uids of the objects.
    pub(super) fn uids(&self) -> Vec<Uid> {
        self.requests.iter().map(|job| job.request.key.uid.clone()).collect()
    }

    pub(super) async fn resolve_all(&mut self) {
        for job in std::mem::take(&mut self.requests) {
            self.resolve(&job).await;
        }
    }

    pub(super) async fn resolve(&self, job: &QueuedRequest) {
        self.shared.registry.resolve(&job.request.key.uid, job.ticket);
        // The receiver is dropped only when the operator ends.
        let _ = self.shared.wake.send(job.object.clone()).await;
    }

    pub(super) fn drop_cancelled(&mut self) -> Vec<QueuedRequest> {
        let (shared, stop) = (Arc::clone(&self.shared), Arc::clone(&self.stop));
        let taken = |job: &QueuedRequest| shared.registry.take_up(&job.request.key.uid, job.ticket, &stop);
        let (taken, cancelled) = std::mem::take(&mut self.requests).into_iter().partition(taken);
        self.requests = taken;
        cancelled
    }
}

/// A worker that panics or is stopped half-way leaves no request in the registry.
impl Drop for Batch {
    fn drop(&mut self) {
        for job in &self.requests {
            self.shared.registry.resolve(&job.request.key.uid, job.ticket);
            let _ = self.shared.wake.try_send(job.object.clone());
        }
    }
}

pub(super) fn fetch_failed(message: String) -> RequestFailure {
    RequestFailure::new(Reason::FetchFailed, message)
}

/// Returns the jobs that each object's fetch names.
pub(super) fn asked(batch: &Batch) -> Vec<(ObjectName, Uid, Indices)> {
    batch.requests.iter().map(|job| (job.name.clone(), job.request.key.uid.clone(), to_fetch(job))).collect()
}

/// Returns the jobs whose output a request fetches, or `None` for other requests.
pub(super) fn asked_for(job: &QueuedRequest) -> Option<&Indices> {
    match &job.request.work {
        Work::Fetch(indices) => Some(indices),
        _ => None,
    }
}

/// Like [`asked_for`], but empty for other requests.
pub(super) fn to_fetch(job: &QueuedRequest) -> Indices {
    asked_for(job).cloned().unwrap_or_default()
}
