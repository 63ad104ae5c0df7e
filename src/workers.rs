//! Two workers per kind of effect, one for requests that touch many jobs and one for the others, and some more for fetches, of
//! which each namespace has its share. Each takes a batch, checks the fence, commits the intents, runs the tool, commits the results, wakes the
//! objects. The order is [`crate::machine::worker`]'s.

mod batch;
mod bounds;
mod discard;
mod err_tail;
mod fetch_queue;
mod files;
mod incoming;
mod items;
mod kept_logs;
mod lane;
mod namespace_output;
mod plan;
mod registry;
mod reserve;
mod room;
mod sizes;
mod submit;
mod survivors;
mod tool_call;
mod unpack;

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::{Identity, ObjectName, Observed, Wake};
use crate::clock::Clock;
use crate::condor::{Schedd, SubmitterLocks};
use crate::credentials::{AtHand, Credentials};
use crate::fence::Fence;
use crate::ledger::Ledger;
use crate::machine::{Kind, Request, Settings};
use crate::metrics::Metrics;
use crate::retry::FailureLimit;

use fetch_queue::FetchQueue;
pub use files::FileWork;
pub(crate) use incoming::written;
pub use items::items_of;
pub use kept_logs::{KeptLogs, Log, LogPart, LogSource, NoLog, WantedLogs};
pub use namespace_output::NamespaceOutput;
pub use plan::{Plan, PlanError, Planner, Reporting, Texts};
pub use registry::{Registry, Ticket};
pub use room::Room;
pub use sizes::Sizes;
pub use survivors::Survivors;

/// How long a worker rests when the ledger cannot store its intents.
const LEDGER_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// What a request failed by whose fence was closed after its intent.
const NOT_BEGUN: &str = "not started: the operator was stopping, or was briefly not the leader";

/// Most requests in one queue.
const QUEUE: usize = 20_000;

/// One request on its way, with what its worker needs to know about the object.
#[derive(Debug)]
pub struct WorkItem {
    /// What is to be done.
    pub request: Request,
    /// The object's name.
    pub name: ObjectName,
    /// How it wakes.
    pub object: ObjectRef<Observed>,
    /// In whose name it is to be done.
    pub identity: Identity,
    /// Whether its jobs are those of the Go operator, adopted: no HTCJob has these and such as this one has submitted.
    pub adopted: bool,
    /// For a submission: what the jobs are to run.
    pub plan: Option<Arc<Plan>>,
    /// The same, as the user wrote it.
    pub texts: Option<Arc<Texts>>,
}

/// A request in its queue.
#[derive(Debug)]
struct Queued {
    item: WorkItem,
    ticket: Ticket,
}

impl std::ops::Deref for Queued {
    type Target = WorkItem;

    fn deref(&self) -> &WorkItem {
        &self.item
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The schedd they work on, in the operator's own name.
    pub schedd: Arc<Schedd>,
    /// The same in other names.
    pub credentials: Arc<Credentials>,
    /// The journal.
    pub ledger: Ledger,
    /// Whether they may act.
    pub fence: Fence,
    /// The clock.
    pub clock: Clock,
    /// Requests under way, in all pools: of each object there is one.
    pub registry: Arc<Registry>,
    /// How objects are woken.
    pub wake: Wake,
    /// Where sandboxes and output lie, and what the site adds.
    pub planner: Planner,
    /// What is done with their files.
    pub files: FileWork,
    /// What shows later that a submitter has ended.
    pub locks: SubmitterLocks,
    /// Times and sizes.
    pub settings: Settings,
    /// Limits of batches and submissions.
    pub limits: Limits,
    /// What has been learned about them.
    pub sizes: Sizes,
    /// Room on the volume of the output.
    pub room: Arc<Room>,
    /// Output that is kept for each namespace.
    pub namespace_output: Arc<NamespaceOutput>,
    /// Where they are counted.
    pub metrics: Metrics,
}

impl Shared {
    /// The same for the workers of another pool. What is learned of a schedd begins anew; what is this machine's is shared.
    #[must_use]
    pub fn at(&self, schedd: Arc<Schedd>, credentials: Arc<Credentials>, metrics: Metrics) -> Self {
        Self {
            schedd,
            credentials,
            ledger: self.ledger.clone(),
            fence: self.fence.clone(),
            clock: self.clock,
            registry: Arc::clone(&self.registry),
            wake: self.wake.clone(),
            planner: self.planner.clone(),
            files: self.files.clone(),
            locks: self.locks.clone(),
            settings: self.settings.clone(),
            sizes: Sizes::new(self.limits.clone(), self.settings.pause_max),
            limits: self.limits.clone(),
            room: Arc::clone(&self.room),
            namespace_output: Arc::clone(&self.namespace_output),
            metrics,
        }
    }
}

/// Limits of batches and submissions.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most HTCJobs in one call.
    pub objects: usize,
    /// Most jobs in one submission.
    pub jobs: usize,
    /// Life of a submitter without files.
    pub submit: std::time::Duration,
    /// Time limit of a transfer of output that has not failed before.
    pub transfer_together: std::time::Duration,
}

/// How many workers fetch output, and how many of them one namespace may have: its transfers may hang for as long as they may
/// take.
#[derive(Clone, Copy, Debug)]
struct Fetchers {
    workers: usize,
    of_a_namespace: usize,
}

/// Of few jobs.
const FETCH: Fetchers = Fetchers { workers: 3, of_a_namespace: 2 };
/// Of very many jobs.
const FETCH_LARGE: Fetchers = Fetchers { workers: 2, of_a_namespace: 1 };
/// Of what has failed before. Each goes alone.
const FETCH_AGAIN: Fetchers = Fetchers { workers: 4, of_a_namespace: 2 };
/// How many of these may fail in a minute, whatever their number: each is a connection to the schedd, and tells the user the same. Each
/// pool has this limit for itself, like its schedd: with one limit for all, a pool whose transfers all fail would use it up for all.
const FETCH_AGAIN_FAILURES: u32 = 60;

/// The workers of one schedd.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    submit: Lanes,
    remove: Lanes,
    hold: Lanes,
    fetch: Lanes,
    fetch_again: mpsc::Sender<Queued>,
    tidy: Lanes,
}

/// The two workers for one kind of effect: what one of them does with very many jobs holds up nobody with few.
#[derive(Debug)]
struct Lanes {
    small: mpsc::Sender<Queued>,
    large: mpsc::Sender<Queued>,
}

impl Lanes {
    fn of(&self, job: &WorkItem, sizes: &Sizes) -> &mpsc::Sender<Queued> {
        if sizes.is_large(job) { &self.large } else { &self.small }
    }
}

impl Workers {
    /// Starts them; they end when this is dropped and their batches are done.
    #[must_use]
    pub fn start(shared: Arc<Shared>) -> (Self, JoinSet<()>) {
        let counted = Arc::downgrade(&shared);
        shared
            .metrics
            .count_requests(move || counted.upgrade().map(|shared| shared.registry.depths()).unwrap_or_default());
        let mut tasks = JoinSet::new();
        let mut lane = |rests| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tasks.spawn(lane::serve(Arc::clone(&shared), receiver, rests));
            sender
        };
        let mut lanes = || Lanes { small: lane(false), large: lane(true) };
        let (submit, remove, hold, tidy) = (lanes(), lanes(), lanes(), lanes());
        let mut fetched_by = |fetchers: Fetchers, limit| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let queue = Arc::new(FetchQueue::new(receiver, fetchers.of_a_namespace, limit));
            for _ in 0..fetchers.workers {
                tasks.spawn(fetch_queue::serve(Arc::clone(&shared), Arc::clone(&queue)));
            }
            sender
        };
        let fetch = Lanes { small: fetched_by(FETCH, None), large: fetched_by(FETCH_LARGE, None) };
        let fetch_again = fetched_by(FETCH_AGAIN, Some(FailureLimit::per_minute(FETCH_AGAIN_FAILURES)));
        (Self { shared, submit, remove, hold, fetch, fetch_again, tidy }, tasks)
    }

    /// Takes a request in; false if its queue is full, another request of the object stands, or its credentials are still
    /// being looked for: whatever that takes, it holds up nobody else.
    #[must_use]
    pub fn hand_over(&self, job: WorkItem) -> bool {
        let sizes = &self.shared.sizes;
        let lane = match job.request.key.kind {
            Kind::Submit => self.submit.of(&job, sizes),
            Kind::Remove => self.remove.of(&job, sizes),
            Kind::Hold | Kind::Release => self.hold.of(&job, sizes),
            Kind::Fetch if job.request.alone => &self.fetch_again,
            Kind::Fetch => self.fetch.of(&job, sizes),
            Kind::Tidy | Kind::Adopt => self.tidy.of(&job, sizes),
            // The controller carries these out itself.
            Kind::AttachFinalizer | Kind::ReleaseFinalizer | Kind::DeleteObject => return false,
        };
        if matches!(self.shared.credentials.at_hand(&job.identity), AtHand::NotYet) {
            return false;
        }
        let uid = job.request.key.uid.clone();
        let Some(ticket) = self.shared.registry.enter(&job.request.key) else { return false };
        let taken = lane.try_send(Queued { item: job, ticket }).is_ok();
        if !taken {
            self.shared.registry.resolve(&uid, ticket);
        }
        taken
    }

    /// Most jobs that the schedd takes in one submission, as far as is known.
    #[must_use]
    pub fn jobs_per_submission(&self) -> usize {
        self.shared.sizes.jobs(self.shared.clock.now())
    }

    /// The schedd's words, if it has refused more at once.
    #[must_use]
    pub fn refused_more(&self) -> Option<Arc<str>> {
        self.shared.sizes.refused_more()
    }
}
