//! Workers that carry out requests on a schedd. Each kind of action has two workers: one for requests that touch many
//! jobs, and one for the others. Fetches have more workers, of which each namespace has a share. A worker takes a
//! batch, checks the fence, commits the intents, runs the tool, commits the results and wakes the objects.
//! [`htc_machine::worker`] defines this order.

mod batch;
mod fetch_queue;
mod lane;
mod plan;
mod registry;
mod reservation;
mod submission_sizes;
mod submit;
mod submitter_watch;
mod tool_call;

use std::sync::Arc;

use htc_api::{Identity, ObjectName, ObservedHTCJob};
use htc_ledger::Ledger;
use htc_machine::{Request, RequestKind, Settings};
use htc_submit::spec::{Plan, Texts};
use htc_support::clock::Clock;
use htc_support::fence::Fence;
use htc_support::kubernetes::Wake;
use htc_support::metrics::Metrics;
use htc_support::retry::FailureLimit;
use htcondor::{Schedd, SubmitterLocks};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backends::condor::credentials::{CredentialStatus, Credentials};
use crate::output::disk_budget::DiskBudget;
use crate::output::files::FileWork;
use crate::output::namespace_output::NamespaceOutput;
use fetch_queue::FetchQueue;
pub use plan::{CallbackConfig, Planner};
pub use registry::{Registry, RequestTicket};
pub use submission_sizes::SubmissionSizes;
pub use submitter_watch::SubmitterWatch;

/// Pause of a worker after the ledger could not store its intents.
pub const LEDGER_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Failure of a request whose fence was closed after its intent.
const NOT_BEGUN: &str = "not started: the operator was stopping, or was briefly not the leader";

/// Maximum number of requests in one queue.
const QUEUE: usize = 20_000;

/// One request, with the data about the object that its worker needs.
#[derive(Debug)]
pub struct WorkItem {
    pub request: Request,
    pub name: ObjectName,
    /// The object to wake when it is done.
    pub object: ObjectRef<ObservedHTCJob>,
    /// Credentials to use.
    pub identity: Identity,
    /// Whether its jobs are adopted from the Go operator. An HTCJob never has both adopted jobs and jobs that this
    /// operator submitted.
    pub adopted: bool,
    /// For a submission: the plan of the jobs.
    pub plan: Option<Arc<Plan>>,
    /// For a submission: the script and the items, as the user wrote them.
    pub texts: Option<Arc<Texts>>,
}

/// A request in its queue.
#[derive(Debug)]
struct QueuedRequest {
    item: WorkItem,
    ticket: RequestTicket,
}

impl std::ops::Deref for QueuedRequest {
    type Target = WorkItem;

    fn deref(&self) -> &WorkItem {
        &self.item
    }
}

/// Dependencies shared by all workers of one schedd.
#[derive(Debug)]
pub struct WorkerContext {
    /// The schedd, with the operator's own credentials.
    pub schedd: Arc<Schedd>,
    /// Credentials of other identities.
    pub credentials: Arc<Credentials>,
    pub ledger: Ledger,
    /// Guard that allows actions only while this operator holds the Lease.
    pub fence: Fence,
    pub clock: Clock,
    /// Requests in flight in all pools, at most one for each object.
    pub registry: Arc<Registry>,
    /// Channel that wakes objects.
    pub wake: Wake,
    /// Paths of sandboxes and output, and settings of the site.
    pub planner: Planner,
    /// Runs work on files apart from the asynchronous threads.
    pub files: FileWork,
    /// Lock files that show whether a submitter has ended.
    pub locks: SubmitterLocks,
    /// Time limits and size limits.
    pub settings: Settings,
    /// Limits of batches and submissions.
    pub limits: BatchLimits,
    /// Submission sizes that the schedd has proved to accept or refuse.
    pub sizes: SubmissionSizes,
    /// Free space on the output volume.
    pub disk_budget: Arc<DiskBudget>,
    /// Output that is stored for each namespace.
    pub namespace_output: Arc<NamespaceOutput>,
    pub metrics: Metrics,
}

impl WorkerContext {
    /// Returns a context for the workers of another pool. What was learned about the schedd starts anew; resources of
    /// this machine are shared.
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
            sizes: SubmissionSizes::new(self.limits.clone(), self.settings.backoff_max),
            limits: self.limits.clone(),
            disk_budget: Arc::clone(&self.disk_budget),
            namespace_output: Arc::clone(&self.namespace_output),
            metrics,
        }
    }
}

/// Limits of batches and submissions.
#[derive(Clone, Debug)]
pub struct BatchLimits {
    /// Maximum number of HTCJobs in one call of a tool.
    pub objects: usize,
    /// Maximum number of jobs in one submission.
    pub jobs: usize,
    /// Maximum lifetime of a submitter without files.
    pub submit: std::time::Duration,
    /// Timeout of a transfer of output that has not failed before.
    pub transfer_together: std::time::Duration,
}

/// Number of workers that fetch output, and how many of them one namespace may use: its transfers may hang until their
/// timeout.
#[derive(Clone, Copy, Debug)]
struct Fetchers {
    workers: usize,
    of_a_namespace: usize,
}

/// For fetches of few jobs.
const FETCH: Fetchers = Fetchers { workers: 3, of_a_namespace: 2 };
/// For fetches of very many jobs.
const FETCH_LARGE: Fetchers = Fetchers { workers: 2, of_a_namespace: 1 };
/// For fetches that have failed before. Each runs alone.
const FETCH_AGAIN: Fetchers = Fetchers { workers: 4, of_a_namespace: 2 };
/// Maximum number of failed retries per minute. Each is a connection to the schedd, and has no news for the user.
/// Each pool has its own limit, like its schedd; a common limit could be used up by one pool whose transfers all fail.
const FETCH_AGAIN_FAILURES: u32 = 60;

/// The workers of one schedd.
#[derive(Debug)]
pub struct ScheddWorkers {
    shared: Arc<WorkerContext>,
    submit: Lanes,
    remove: Lanes,
    hold: Lanes,
    fetch: Lanes,
    fetch_again: mpsc::Sender<QueuedRequest>,
    tidy: Lanes,
}

/// The two workers for one kind of action: requests with very many jobs do not delay those with few.
#[derive(Debug)]
struct Lanes {
    small: mpsc::Sender<QueuedRequest>,
    large: mpsc::Sender<QueuedRequest>,
}

impl Lanes {
    fn of(&self, job: &WorkItem, sizes: &SubmissionSizes) -> &mpsc::Sender<QueuedRequest> {
        if sizes.is_large(job) { &self.large } else { &self.small }
    }
}

impl ScheddWorkers {
    /// Starts the workers. They end when this is dropped and their batches are done.
    #[must_use]
    pub fn start(shared: Arc<WorkerContext>) -> (Self, JoinSet<()>) {
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

    /// Enqueues a request. Returns false if the queue is full, the object has another request, or the credentials are
    /// still being obtained. That may take long, and must not delay others in the queue.
    #[must_use]
    pub fn hand_over(&self, job: WorkItem) -> bool {
        let sizes = &self.shared.sizes;
        let lane = match job.request.key.kind {
            RequestKind::Submit => self.submit.of(&job, sizes),
            RequestKind::Remove => self.remove.of(&job, sizes),
            RequestKind::Hold | RequestKind::Release => self.hold.of(&job, sizes),
            RequestKind::Fetch if job.request.alone => &self.fetch_again,
            RequestKind::Fetch => self.fetch.of(&job, sizes),
            RequestKind::Tidy => self.tidy.of(&job, sizes),
            // The controller carries these out itself.
            RequestKind::AttachFinalizer | RequestKind::ReleaseFinalizer | RequestKind::DeleteObject => return false,
        };
        if matches!(self.shared.credentials.status(&job.identity), CredentialStatus::Pending) {
            return false;
        }
        let uid = job.request.key.uid.clone();
        let Some(ticket) = self.shared.registry.enter(&job.request.key) else { return false };
        let taken = lane.try_send(QueuedRequest { item: job, ticket }).is_ok();
        if !taken {
            self.shared.registry.resolve(&uid, ticket);
        }
        taken
    }

    /// Returns the maximum number of jobs that the schedd accepts in one submission, as far as is known.
    #[must_use]
    pub fn jobs_per_submission(&self) -> usize {
        self.shared.sizes.jobs(self.shared.clock.now())
    }

    /// Returns the schedd's message, if it has refused a larger submission.
    #[must_use]
    pub fn size_refusal(&self) -> Option<Arc<str>> {
        self.shared.sizes.size_refusal()
    }
}
