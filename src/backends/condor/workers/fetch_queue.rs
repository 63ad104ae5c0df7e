//! A queue with several workers for transfers of output: a transfer that hangs delays only its own namespace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use htc_support::fair_limiter::{FairLimiter, FairPermit, Shares};
use htc_support::retry::FailureLimit;
use htcondor::Schedd;
use tokio::sync::mpsc;

use super::lane::{Effect, handle, take};
use super::{QueuedRequest, WorkerContext, tool_call};
use crate::backends::condor::credentials::CredentialStatus;

/// Interval between two checks whether a waiting request was cancelled or may start.
const TURN: Duration = Duration::from_millis(200);

/// A queue with several workers. All requests of a batch belong to one namespace.
pub(super) struct FetchQueue {
    queue: tokio::sync::Mutex<FetchBacklog>,
    /// Permits for batches, by namespace.
    permits: FairLimiter,
    /// Common limit on failures of all workers, if any.
    limit: Option<FailureLimit>,
}

struct FetchBacklog {
    receiver: mpsc::Receiver<QueuedRequest>,
    waiting: VecDeque<QueuedRequest>,
}

impl FetchQueue {
    /// Creates a queue with at most `share` workers for one namespace.
    pub(super) fn new(receiver: mpsc::Receiver<QueuedRequest>, share: usize, limit: Option<FailureLimit>) -> Self {
        let queue = tokio::sync::Mutex::new(FetchBacklog { receiver, waiting: VecDeque::new() });
        Self { queue, permits: FairLimiter::never_slow(Shares::UNLIMITED, share), limit }
    }

    /// Returns the next batch, of a namespace with a free worker. Cancelled requests are dropped at once.
    async fn next(&self, shared: &WorkerContext) -> Option<(Vec<QueuedRequest>, FairPermit)> {
        let mut queue = self.queue.lock().await;
        let FetchBacklog { receiver, waiting } = &mut *queue;
        loop {
            while let Ok(job) = receiver.try_recv() {
                waiting.push_back(job);
            }
            if waiting.is_empty() {
                waiting.push_back(receiver.recv().await?);
                continue;
            }
            waiting.retain(|job| shared.registry.stands(&job.request.key.uid, job.ticket));
            // If this operator may not act, all requests are returned at once, without waiting for the limit.
            let leads = shared.fence.check().is_ok();
            let wait = self.limit.as_ref().filter(|_| leads).map_or(Duration::ZERO, FailureLimit::wait);
            if wait.is_zero()
                && let Some((place, permit)) = self.free(waiting)
            {
                waiting.rotate_left(place);
                return Some((take(shared, waiting), permit));
            }
            let pause = if wait.is_zero() { TURN } else { wait.min(TURN) };
            // A request that arrives meanwhile may belong to a namespace with a free worker.
            if let Ok(job) = tokio::time::timeout(pause, receiver.recv()).await {
                waiting.push_back(job?);
            }
        }
    }

    /// Returns the place of the first request whose namespace has a free worker.
    fn free(&self, waiting: &VecDeque<QueuedRequest>) -> Option<(usize, FairPermit)> {
        let mut places = waiting.iter().enumerate();
        places.find_map(|(place, job)| Some((place, self.permits.try_acquire(&job.name.namespace)?)))
    }
}

/// Runs one of the workers.
pub(super) async fn serve(shared: Arc<WorkerContext>, queue: Arc<FetchQueue>) {
    while let Some((jobs, _permit)) = queue.next(&shared).await {
        let Some(identity) = jobs.first().map(|job| job.identity.clone()) else { continue };
        let at_hand = shared.credentials.status(&identity);
        let schedd: Arc<Schedd> =
            Arc::clone(if let CredentialStatus::Ready(schedd) = &at_hand { schedd } else { &shared.schedd });
        let batch = super::batch::Batch::new(schedd, jobs, &shared);
        let mut effect = Effect::ToolCall(tool_call::ToolCall::default());
        let failed = handle(batch, &identity, &at_hand, &mut effect).await;
        if let Some(limit) = queue.limit.as_ref().filter(|_| failed) {
            limit.failed();
        }
    }
}
