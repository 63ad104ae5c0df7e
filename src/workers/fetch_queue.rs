//! Several workers with one queue, for transfers of output: one that hangs holds up its own namespace only.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::lane::{Effect, handle, take};
use super::{Queued, Shared, tool_call};
use crate::condor::Schedd;
use crate::credentials::AtHand;
use crate::retry::FailureLimit;

/// How often it is looked whether something that waits was cancelled, or may begin.
const TURN: Duration = Duration::from_millis(200);

/// A queue of several workers. A batch of theirs is of one namespace.
pub(super) struct FetchQueue {
    queue: tokio::sync::Mutex<Queue>,
    /// Batches under way, by namespace.
    busy: Mutex<HashMap<String, usize>>,
    /// How many workers one namespace may have.
    share: usize,
    /// What their failures have as one limit.
    limit: Option<FailureLimit>,
}

struct Queue {
    receiver: mpsc::Receiver<Queued>,
    waiting: VecDeque<Queued>,
}

impl FetchQueue {
    pub(super) fn new(receiver: mpsc::Receiver<Queued>, share: usize, limit: Option<FailureLimit>) -> Self {
        let queue = tokio::sync::Mutex::new(Queue { receiver, waiting: VecDeque::new() });
        Self { queue, busy: Mutex::default(), share, limit }
    }

    fn busy<T>(&self, work: impl FnOnce(&mut HashMap<String, usize>) -> T) -> T {
        work(&mut self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next batch, of a namespace that has workers left. What was cancelled does not wait for its turn.
    async fn next(&self, shared: &Shared) -> Option<Vec<Queued>> {
        let mut queue = self.queue.lock().await;
        let Queue { receiver, waiting } = &mut *queue;
        loop {
            while let Ok(job) = receiver.try_recv() {
                waiting.push_back(job);
            }
            if waiting.is_empty() {
                waiting.push_back(receiver.recv().await?);
                continue;
            }
            waiting.retain(|job| shared.registry.stands(&job.request.key.uid, job.ticket));
            // Where nothing may be done, all goes back at once.
            let leads = shared.fence.check().is_ok();
            let wait = self.limit.as_ref().filter(|_| leads).map_or(Duration::ZERO, FailureLimit::wait);
            if wait.is_zero()
                && let Some(batch) = self.free(waiting, |waiting| take(shared, waiting))
            {
                return Some(batch);
            }
            let pause = if wait.is_zero() { TURN } else { wait.min(TURN) };
            // What comes meanwhile may be another's, who has workers left.
            if let Ok(job) = tokio::time::timeout(pause, receiver.recv()).await {
                waiting.push_back(job?);
            }
        }
    }

    /// Takes the next batch of those that wait, and counts it.
    fn free(
        &self,
        waiting: &mut VecDeque<Queued>,
        take: impl FnOnce(&mut VecDeque<Queued>) -> Vec<Queued>,
    ) -> Option<Vec<Queued>> {
        let place = self.busy(|busy| {
            waiting.iter().position(|job| busy.get(&job.name.namespace).is_none_or(|count| *count < self.share))
        })?;
        waiting.rotate_left(place);
        let batch = take(waiting);
        let namespace = batch.first()?.name.namespace.clone();
        self.busy(|busy| *busy.entry(namespace).or_default() += 1);
        Some(batch)
    }

    /// A batch has ended.
    fn ended(&self, namespace: &str, failed: bool) {
        self.busy(|busy| {
            if let Some(count) = busy.get_mut(namespace) {
                *count -= 1;
                if *count == 0 {
                    busy.remove(namespace);
                }
            }
        });
        if let Some(limit) = self.limit.as_ref().filter(|_| failed) {
            limit.failed();
        }
    }
}

/// Serves as one of the workers.
pub(super) async fn serve(shared: Arc<Shared>, queue: Arc<FetchQueue>) {
    while let Some(jobs) = queue.next(&shared).await {
        let Some((identity, namespace)) = jobs.first().map(|job| (job.identity.clone(), job.name.namespace.clone()))
        else {
            continue;
        };
        let at_hand = shared.credentials.at_hand(&identity);
        let schedd: Arc<Schedd> = Arc::clone(if let AtHand::Good(schedd) = &at_hand { schedd } else { &shared.schedd });
        let batch = super::batch::Batch::new(schedd, jobs, &shared);
        let mut effect = Effect::ToolCall(tool_call::ToolCall::default());
        let failed = handle(batch, &identity, &at_hand, &mut effect).await;
        queue.ended(&namespace, failed);
    }
}
