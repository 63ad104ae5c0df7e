//! One batch after another, each in the machine's order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

use super::batch::Batch;
use super::sizes::{failed_before, touches};
use super::{Shared, WorkItem, submit, tool_call};
use crate::api::Identity;
use crate::condor::Schedd;
use crate::credentials::AtHand;
use crate::failpoint::{Point, around};
use crate::machine::request::{Scope, Work};
use crate::machine::rules::Rules;
use crate::machine::worker::{self, Step};
use crate::retry::FailureLimit;

/// Where a worker's requests come from.
pub(super) enum Source {
    /// A queue of its own.
    Own(mpsc::Receiver<WorkItem>),
    /// A queue of several workers, of which each takes one request at a time: none waits for one that hangs while another
    /// worker is free.
    Common(Arc<Common>),
}

/// A queue of several workers, whose failures have one limit.
pub(super) struct Common {
    queue: Mutex<Queue>,
    limit: FailureLimit,
}

struct Queue {
    receiver: mpsc::Receiver<WorkItem>,
    /// What has come and waits for the limit.
    waiting: VecDeque<WorkItem>,
}

/// How often it is looked whether something that waits was cancelled.
const TURN: Duration = Duration::from_millis(200);

impl Common {
    pub(super) fn new(receiver: mpsc::Receiver<WorkItem>, limit: FailureLimit) -> Self {
        Self { queue: Mutex::new(Queue { receiver, waiting: VecDeque::new() }), limit }
    }

    /// What was cancelled does not wait for its turn: its object is to be deleted.
    async fn next(&self, shared: &Shared) -> Option<WorkItem> {
        let mut queue = self.queue.lock().await;
        let Queue { receiver, waiting } = &mut *queue;
        loop {
            while let Ok(job) = receiver.try_recv() {
                waiting.push_back(job);
            }
            let cancelled = |job: &WorkItem| shared.registry.is_cancelled(&job.request.key.uid);
            if let Some(place) = waiting.iter().position(cancelled) {
                return waiting.remove(place);
            }
            // Where nothing may be done, all goes back at once.
            let wait = shared.fence.check().map_or(Duration::ZERO, |()| self.limit.wait());
            if waiting.is_empty() {
                waiting.push_back(receiver.recv().await?);
            } else if wait.is_zero() {
                return waiting.pop_front();
            } else {
                tokio::time::sleep(wait.min(TURN)).await;
            }
        }
    }
}

impl Source {
    async fn next(&mut self, shared: &Shared) -> Option<WorkItem> {
        match self {
            Self::Own(receiver) => receiver.recv().await,
            Self::Common(common) => common.next(shared).await,
        }
    }

    /// A request has failed.
    fn failed(&self) {
        match self {
            Self::Own(_) => {}
            Self::Common(common) => common.limit.failed(),
        }
    }

    /// What waits and may go along with the one that was taken.
    fn more(&mut self) -> Option<WorkItem> {
        match self {
            Self::Own(receiver) => receiver.try_recv().ok(),
            Self::Common(_) => None,
        }
    }
}

/// Serves one source: whatever waits goes together, nobody waits for company.
pub(super) async fn serve(shared: Arc<Shared>, mut source: Source) {
    let mut waiting: VecDeque<WorkItem> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match source.next(&shared).await {
                Some(job) => waiting.push_back(job),
                None => return,
            }
        }
        let mut effect = match waiting.front().map(|job| &job.request.work) {
            Some(Work::Submit(..)) => Effect::Submit(submit::Submission::default()),
            _ => Effect::ToolCall(tool_call::ToolCall::default()),
        };
        // All of a batch are in one name, that of the first.
        let identity = waiting.front().map(|job| job.identity.clone()).unwrap_or_default();
        let at_hand = shared.credentials.at_hand(&identity);
        let schedd = Arc::clone(if let AtHand::Good(schedd) = &at_hand { schedd } else { &shared.schedd });
        if shared.fence.check().is_ok() && matches!(at_hand, AtHand::Good(_)) {
            effect.ask(&schedd).await;
        }
        while let Some(job) = source.more() {
            waiting.push_back(job);
        }
        let batch = Batch { schedd, jobs: take(&shared, &mut waiting), shared: Arc::clone(&shared), failed: false };
        if handle(batch, &identity, &at_hand, effect, waiting.len()).await {
            source.failed();
        }
    }
}

/// One batch, of which `waiting` requests are no part; whether any of it has failed.
#[tracing::instrument(
    name = "batch",
    level = "error",
    skip_all,
    fields(kind = batch.kind(), identity = identity.logged(), size = batch.jobs.len(), htcjobs = batch.names())
)]
async fn handle(mut batch: Batch, identity: &Identity, at_hand: &AtHand, effect: Effect, waiting: usize) -> bool {
    tracing::debug!(waiting, "a batch begins");
    match at_hand {
        AtHand::Good(_) => carry_out(batch, effect).await,
        // No tool is started without the credentials that it is to have.
        AtHand::Bad(why) => {
            batch.give_up(|_| Some(why.clone().into())).await;
            true
        }
        // They were at hand when these were handed over, and have ended since. Each is woken, and handed over anew.
        AtHand::NotYet => {
            batch.resolve_all().await;
            false
        }
    }
}

/// Takes the first that waits, and what can go along with it. An object has one request at a time, and its next one joins
/// the end: so each has its turn before any has a second one.
fn take(shared: &Shared, waiting: &mut VecDeque<WorkItem>) -> Vec<WorkItem> {
    let Some(first) = waiting.front() else { return Vec::new() };
    let most_jobs = shared.sizes.together(first, shared.clock.now());
    let (mut taken, mut rest) = (Vec::new(), VecDeque::new());
    let (mut jobs, mut room) = (0, usize::MAX);
    for job in waiting.drain(..) {
        let (size, with_it) = (touches(&job), room.min(shared.sizes.room(&job)));
        let fits = taken.len() < with_it && (taken.is_empty() || jobs + size <= most_jobs);
        if fits && taken.first().is_none_or(|first| together(first, &job)) {
            (jobs, room) = (jobs + size, with_it);
            taken.push(job);
        } else {
            rest.push_back(job);
        }
    }
    *waiting = rest;
    shared.sizes.taken(&taken);
    taken
}

/// Whether two requests can share one call of the tool.
fn together(first: &WorkItem, other: &WorkItem) -> bool {
    // One that has failed takes nobody along that has not.
    if failed_before(first) != failed_before(other) || first.identity != other.identity {
        return false;
    }
    match (&first.request.work, &other.request.work) {
        (Work::Submit(..), Work::Submit(..)) => match (&first.plan, &other.plan) {
            (Some(plan), Some(other)) => plan.same_description(other),
            (Some(_) | None, _) => false,
        },
        (Work::Remove(Scope::Extra(_)), Work::Remove(_)) => false,
        (Work::Remove(a), Work::Remove(b)) => a == b,
        (Work::Hold, Work::Hold)
        | (Work::Release, Work::Release)
        | (Work::Fetch(_), Work::Fetch(_))
        | (Work::Tidy(_), Work::Tidy(_)) => true,
        _ => false,
    }
}

/// Whether any of the batch has failed.
async fn carry_out(mut batch: Batch, mut effect: Effect) -> bool {
    let mut step = Some(worker::first());
    while let Some(current) = step {
        let went_well = match current {
            Step::CheckFence => {
                for job in batch.drop_cancelled() {
                    batch.resolve(&job).await;
                }
                !batch.jobs.is_empty() && batch.shared.fence.check().is_ok()
            }
            Step::CommitIntents => effect.intend(&mut batch).await,
            Step::CheckFenceAgain => batch.shared.fence.check().is_ok(),
            Step::RunTool => {
                effect.run(&batch).await;
                true
            }
            Step::CommitResults => effect.commit(&batch).await,
            Step::CommitNotRun => around(Point::BeforeNotRun, effect.not_run(&batch), Point::AfterNotRun).await,
            Step::Wake => {
                batch.resolve_all().await;
                true
            }
        };
        step = worker::next(current, went_well, &Rules::ALL);
    }
    batch.failed || matches!(effect, Effect::ToolCall(call) if call.failed)
}

/// The two shapes of effects.
enum Effect {
    Submit(submit::Submission),
    ToolCall(tool_call::ToolCall),
}

impl Effect {
    /// What must be known before; requests that come meanwhile join the batch.
    async fn ask(&mut self, schedd: &Schedd) {
        match self {
            Self::Submit(submission) => submission.ask(schedd).await,
            Self::ToolCall(_) => {}
        }
    }

    async fn intend(&mut self, batch: &mut Batch) -> bool {
        match self {
            Self::Submit(submission) => submission.intend(batch).await,
            Self::ToolCall(_) => tool_call::intend(batch).await,
        }
    }

    async fn run(&mut self, batch: &Batch) {
        match self {
            Self::Submit(submission) => submission.run(batch).await,
            Self::ToolCall(call) => call.run(batch).await,
        }
    }

    async fn commit(&mut self, batch: &Batch) -> bool {
        match self {
            Self::Submit(submission) => submission.commit(batch, false).await,
            Self::ToolCall(call) => call.commit(batch).await,
        }
    }

    async fn not_run(&mut self, batch: &Batch) -> bool {
        match self {
            Self::Submit(submission) => submission.commit(batch, true).await,
            Self::ToolCall(call) => call.not_run(batch).await,
        }
    }
}
