//! One batch after another, each in the machine's order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::batch::Batch;
use super::sizes::{failed_before, touches};
use super::{Queued, Shared, submit, tool_call};
use crate::api::Identity;
use crate::condor::Schedd;
use crate::credentials::AtHand;
use crate::failpoint::{Point, around};
use crate::machine::request::{Scope, Work};
use crate::machine::rules::Rules;
use crate::machine::worker::{self, Step};

/// Longest rest of the schedd after a batch.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Serves one queue: whatever waits goes together, nobody waits for company. `rests`: after each batch nothing is done for as long as the schedd was
/// busy with it.
pub(super) async fn serve(shared: Arc<Shared>, mut queue: mpsc::Receiver<Queued>, rests: bool) {
    let mut waiting: VecDeque<Queued> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match queue.recv().await {
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
        while let Ok(job) = queue.try_recv() {
            waiting.push_back(job);
        }
        in_turn(&mut waiting);
        let batch = Batch::new(schedd, take(&shared, &mut waiting), &shared);
        handle(batch, &identity, &at_hand, &mut effect).await;
        if rests {
            rest(effect.took().min(LONGEST_REST), &mut queue, &mut waiting).await;
        }
    }
}

/// Lets requests come in meanwhile. It ends early if none can come any more.
async fn rest(pause: Duration, queue: &mut mpsc::Receiver<Queued>, waiting: &mut VecDeque<Queued>) {
    let until = tokio::time::Instant::now() + pause;
    while let Ok(Some(job)) = tokio::time::timeout_at(until, queue.recv()).await {
        waiting.push_back(job);
    }
}

/// One batch; whether any of it has failed.
#[tracing::instrument(
    name = "batch",
    level = "error",
    skip_all,
    fields(kind = batch.kind(), identity = identity.logged(), size = batch.jobs.len(), htcjobs = batch.names())
)]
pub(super) async fn handle(mut batch: Batch, identity: &Identity, at_hand: &AtHand, effect: &mut Effect) -> bool {
    tracing::debug!("a batch begins");
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

/// Behind the first: one of each namespace, then the second one of each, and so on.
fn in_turn(waiting: &mut VecDeque<Queued>) {
    let mut turns: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Queued)> = Vec::with_capacity(waiting.len());
    for job in waiting.drain(..) {
        let turn = turns.entry(job.name.namespace.clone()).or_default();
        ranked.push((*turn, job));
        *turn += 1;
    }
    ranked.sort_by_key(|(turn, _)| *turn);
    waiting.extend(ranked.into_iter().map(|(_, job)| job));
}

/// Takes the first that waits, and what can go along with it. What is left of their namespaces goes behind the others: so each
/// namespace has its turn before any has a second one, and each object.
pub(super) fn take(shared: &Shared, waiting: &mut VecDeque<Queued>) -> Vec<Queued> {
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
    let served: HashSet<&str> = taken.iter().map(|job| job.name.namespace.as_str()).collect();
    let (again, others): (VecDeque<_>, VecDeque<_>) =
        rest.into_iter().partition(|job| served.contains(job.name.namespace.as_str()));
    *waiting = others;
    waiting.extend(again);
    shared.sizes.taken(&taken);
    taken
}

/// Whether two requests can share one call of the tool.
fn together(first: &Queued, other: &Queued) -> bool {
    // One that has failed takes nobody along that has not.
    if failed_before(first) != failed_before(other) || first.identity != other.identity {
        return false;
    }
    match (&first.request.work, &other.request.work) {
        (Work::Submit(..), Work::Submit(..)) => match (&first.plan, &other.plan) {
            (Some(plan), Some(other)) => plan.same_description(other),
            (Some(_) | None, _) => false,
        },
        (Work::Remove(Scope::Extra(_) | Scope::Wished(_)), Work::Remove(_)) => false,
        (Work::Remove(a), Work::Remove(b)) => a == b,
        (Work::Hold, Work::Hold) | (Work::Release, Work::Release) | (Work::Tidy(_), Work::Tidy(_)) => true,
        // How long a transfer takes, and what the tool says of it, is its own namespace's.
        (Work::Fetch(_), Work::Fetch(_)) => first.name.namespace == other.name.namespace,
        _ => false,
    }
}

/// Whether any of the batch has failed.
async fn carry_out(mut batch: Batch, effect: &mut Effect) -> bool {
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
pub(super) enum Effect {
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

    /// How long the schedd was busy with it, at most.
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
