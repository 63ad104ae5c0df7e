//! Runs one batch after another, each in the order of [`htc_machine::worker`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use htc_api::Identity;
use htc_machine::request::{RemovalScope, Work};
use htc_machine::rules::Rules;
use htc_machine::worker;
use htc_machine::worker::WorkerStep;
use htc_support::failpoint::{Point, around};
use htcondor::Schedd;
use tokio::sync::mpsc;

use super::batch::Batch;
use super::{QueuedRequest, WorkerContext, submit, tool_call};
use crate::backends::condor::credentials::CredentialStatus;
use crate::backends::condor::workers::submission_sizes::{failed_before, touches};

/// Maximum pause for the schedd after a batch.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Worker loop of one queue. Batches what is queued; never waits to fill a batch. `pauses`: whether to pause after each
/// batch for as long as the schedd was busy with it.
pub(super) async fn serve(shared: Arc<WorkerContext>, mut queue: mpsc::Receiver<QueuedRequest>, pauses: bool) {
    let mut waiting: VecDeque<QueuedRequest> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match queue.recv().await {
                Some(job) => waiting.push_back(job),
                None => return,
            }
        }
        let mut effect = match waiting.front().map(|job| &job.request.work) {
            Some(Work::Submit(..)) => Effect::Submit(submit::SubmitCall::default()),
            _ => Effect::ToolCall(tool_call::ToolCall::default()),
        };
        // All requests of a batch have the identity of the first.
        let identity = waiting.front().map(|job| job.identity.clone()).unwrap_or_default();
        let at_hand = shared.credentials.status(&identity);
        let schedd = Arc::clone(if let CredentialStatus::Ready(schedd) = &at_hand { schedd } else { &shared.schedd });
        if shared.fence.check().is_ok() && matches!(at_hand, CredentialStatus::Ready(_)) {
            effect.ask(&schedd).await;
        }
        while let Ok(job) = queue.try_recv() {
            waiting.push_back(job);
        }
        interleave_namespaces(&mut waiting);
        let batch = Batch::new(schedd, take(&shared, &mut waiting), &shared);
        handle(batch, &identity, &at_hand, &mut effect).await;
        if pauses {
            pause_for_schedd(effect.took().min(MAX_PAUSE), &mut queue, &mut waiting).await;
        }
    }
}

/// Pauses while requests arrive. Returns early if the queue is closed.
async fn pause_for_schedd(
    pause: Duration,
    queue: &mut mpsc::Receiver<QueuedRequest>,
    waiting: &mut VecDeque<QueuedRequest>,
) {
    let until = tokio::time::Instant::now() + pause;
    while let Ok(Some(job)) = tokio::time::timeout_at(until, queue.recv()).await {
        waiting.push_back(job);
    }
}

/// Runs one batch. Returns whether any of it failed.
#[tracing::instrument(
    name = "batch",
    level = "error",
    skip_all,
    fields(kind = batch.kind(), identity = identity.logged(), size = batch.requests.len(), htcjobs = batch.names())
)]
pub(super) async fn handle(
    mut batch: Batch,
    identity: &Identity,
    at_hand: &CredentialStatus,
    effect: &mut Effect,
) -> bool {
    tracing::debug!("batch started");
    match at_hand {
        CredentialStatus::Ready(_) => carry_out(batch, effect).await,
        // No tool is started without its proper credentials.
        CredentialStatus::Failed(why) => {
            batch.give_up(|_| Some(why.clone().into())).await;
            true
        }
        // The credentials were ready when the requests were handed over, and have expired since. Each object is woken
        // and hands its request over again.
        CredentialStatus::Pending => {
            batch.resolve_all().await;
            false
        }
    }
}

/// Interleaves the namespaces: the first request of each namespace, then the second one of each, and so on.
fn interleave_namespaces(waiting: &mut VecDeque<QueuedRequest>) {
    let mut turns: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<(usize, QueuedRequest)> = Vec::with_capacity(waiting.len());
    for job in waiting.drain(..) {
        let turn = turns.entry(job.name.namespace.clone()).or_default();
        ranked.push((*turn, job));
        *turn += 1;
    }
    ranked.sort_by_key(|(turn, _)| *turn);
    waiting.extend(ranked.into_iter().map(|(_, job)| job));
}

/// Takes the first waiting request, and those that can share its call. The remaining requests of their namespaces move
/// to the end, so that each namespace and each object is served before any is served a second time.
pub(super) fn take(shared: &WorkerContext, waiting: &mut VecDeque<QueuedRequest>) -> Vec<QueuedRequest> {
    let Some(first) = waiting.front() else { return Vec::new() };
    let most_jobs = shared.sizes.max_jobs(first, shared.clock.now());
    let (mut taken, mut left) = (Vec::new(), VecDeque::new());
    let (mut jobs, mut room) = (0_usize, usize::MAX);
    for job in waiting.drain(..) {
        let (size, with_it) = (touches(&job), room.min(shared.sizes.max_requests(&job)));
        let fits = taken.len() < with_it && (taken.is_empty() || jobs.saturating_add(size) <= most_jobs);
        if fits && taken.first().is_none_or(|first| can_share_call(first, &job)) {
            (jobs, room) = (jobs.saturating_add(size), with_it);
            taken.push(job);
        } else {
            left.push_back(job);
        }
    }
    let served: HashSet<&str> = taken.iter().map(|job| job.name.namespace.as_str()).collect();
    let (again, others): (VecDeque<_>, VecDeque<_>) =
        left.into_iter().partition(|job| served.contains(job.name.namespace.as_str()));
    *waiting = others;
    waiting.extend(again);
    shared.sizes.taken(&taken);
    taken
}

/// Whether two requests can share one call of the tool.
fn can_share_call(first: &QueuedRequest, other: &QueuedRequest) -> bool {
    // A request that has failed before is not mixed with others that have not.
    if failed_before(first) != failed_before(other) || first.identity != other.identity {
        return false;
    }
    match (&first.request.work, &other.request.work) {
        (Work::Submit(..), Work::Submit(..)) => match (&first.plan, &other.plan) {
            (Some(plan), Some(other)) => plan.same_description(other),
            (Some(_) | None, _) => false,
        },
        (Work::Remove(RemovalScope::Extra(_) | RemovalScope::Requested(_)), Work::Remove(_)) => false,
        (Work::Remove(a), Work::Remove(b)) => a == b,
        (Work::Hold, Work::Hold) | (Work::Release, Work::Release) | (Work::Tidy(_), Work::Tidy(_)) => true,
        // The duration of a transfer and the tool's messages must concern one namespace only.
        (Work::Fetch(_), Work::Fetch(_)) => first.name.namespace == other.name.namespace,
        _ => false,
    }
}

/// Carries out the batch. Returns whether any of it failed.
async fn carry_out(mut batch: Batch, effect: &mut Effect) -> bool {
    let mut step = Some(worker::first());
    while let Some(current) = step {
        let went_well = match current {
            WorkerStep::CheckFence => {
                for job in batch.drop_cancelled() {
                    batch.resolve(&job).await;
                }
                !batch.requests.is_empty() && batch.shared.fence.check().is_ok()
            }
            WorkerStep::CommitIntents => effect.intend(&mut batch).await,
            WorkerStep::CheckFenceAgain => batch.shared.fence.check().is_ok(),
            WorkerStep::RunTool => {
                effect.run(&batch).await;
                true
            }
            WorkerStep::CommitResults => effect.commit(&batch).await,
            WorkerStep::CommitNotRun => around(Point::BeforeNotRun, effect.not_run(&batch), Point::AfterNotRun).await,
            WorkerStep::Wake => {
                batch.resolve_all().await;
                true
            }
        };
        step = worker::next(current, went_well, &Rules::ALL);
    }
    batch.failed || matches!(effect, Effect::ToolCall(call) if call.failed)
}

/// The two kinds of actions.
pub(super) enum Effect {
    Submit(submit::SubmitCall),
    ToolCall(tool_call::ToolCall),
}

impl Effect {
    /// Queries what must be known before the action. Requests that arrive meanwhile join the batch.
    async fn ask(&mut self, schedd: &Schedd) {
        match self {
            Self::Submit(submission) => submission.ask(schedd).await,
            Self::ToolCall(_) => {}
        }
    }

    /// Returns the maximum time for which the schedd was busy with it.
    fn took(&self) -> Duration {
        match self {
            Self::Submit(submission) => submission.took,
            Self::ToolCall(call) => call.took,
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
