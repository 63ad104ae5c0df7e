//! The running operator: its parts are started, supervised and stopped here.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use htc_api::ObservedHTCJob;
use htc_ledger::{Ledger, LedgerError};
use htc_machine::demand::JobDemand;
use htc_support::clock::Clock;
use htc_support::fence::Fence;
use htc_support::kubernetes::Wake;
use htc_support::metrics::Metrics;
use htcondor::{KnownUsers, Schedd, SubmitterLocks};
use kube::Client;
use kube::runtime::reflector::Store;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::{StartError, keys, schedd};
use crate::backends::Backends;
use crate::backends::condor::credentials::Credentials;
use crate::backends::condor::orphans::count_at_start;
use crate::backends::condor::tracker::Tracker;
use crate::backends::condor::workers::{
    BatchLimits, Planner, ScheddWorkers, SubmissionSizes, SubmitterWatch, WorkerContext,
};
use crate::backends::kept_logs::KeptLogs;
use crate::callbacks::Wakes;
use crate::cli::config::Config;
use crate::cli::run::startup::ReadyOperator;
use crate::htcjob as controller;
use crate::htcjob::{Context, EventPublisher, ImageDigests, NamespaceJobs, ObjectMemory, WriteLimiter};
use crate::htcpool::{Pool, PoolController, PoolFactory, Pools, TaskFailures};
use crate::htcqueue::{QueueController, Queueing, Queues};
use crate::http::certificates::{CertificateKeeper, CertificateLifetimes, JobsApiNames};
use crate::http::mtls::{ServerCertificate, TrustedClients};
use crate::http::port::Port;
use crate::jobs_api::{self, JobsApiLimits, JobsService, LedgerSteps, OutputVolume, Records};
use crate::leader::Leader;
use crate::output::disk_budget::DiskBudget;
use crate::output::files::FileWork;
use crate::output::layout::OutputLayout;
use crate::output::namespace_output::NamespaceOutput;
use crate::output::retention::GarbageCollector;

/// Maximum time for running batches to end once the operator has to stop.
const DRAIN: Duration = Duration::from_secs(4);
/// Maximum time to release the Lease.
const RELEASE: Duration = Duration::from_secs(3);
/// Maximum time of the first read of the operator's own credentials, or of the first check of submitters: meanwhile
/// the Lease is not renewed.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Maximum number of objects that wait to be woken.
const WAKES: usize = 4096;
/// Maximum number of names of `HTCJob`s that wait for the watches of their jobs. A watch that lags behind checks all
/// `HTCJob`s.
const TOUCHED: usize = 4096;

/// A running part. It ends when this is dropped.
struct RunningTask(JoinHandle<()>);

impl RunningTask {
    fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Resolves when it has ended, well or not.
    async fn ended(&mut self) {
        let _ = (&mut self.0).await;
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The leader's side of the jobs API.
struct JobsApi {
    port: Port,
    _certificates: RunningTask,
}

/// A running operator. All its parts end when this is dropped.
pub(super) struct Running {
    leader: Leader,
    ledger: Ledger,
    fence: Fence,
    credentials: Arc<Credentials>,
    /// Port that jobs report to.
    port: Option<Port>,
    tracker: RunningTask,
    publisher: RunningTask,
    housekeeping: RunningTask,
    controller: RunningTask,
    workers: JoinSet<()>,
    /// Manages the pools of HTCPools.
    pool_keeper: RunningTask,
    /// Receives a message when a part of one of them ends.
    pool_ended: mpsc::Receiver<String>,
    pools: Arc<Pools>,
    /// Follows jobs of the other backends.
    backends: RunningTask,
    /// Serves jobs to the fronts.
    jobs_api: Option<JobsApi>,
    /// Makes the controller begin nothing new.
    end: watch::Sender<bool>,
    _orphans: RunningTask,
    _keys: Option<keys::KeyFollower>,
}

/// Starts every part.
pub(super) async fn assemble(config: &Config, planner: Planner, ready: ReadyOperator) -> Result<Running, StartError> {
    let ReadyOperator { client, keys, receiver, operator, ledger, fence, leader, clock, metrics, health, .. } = ready;
    tracing::info!(%operator, schedd = %config.condor.schedd, ledger = ledger.id(), data = %config.data.data_dir.display(), "htc-operator runs");
    let users = KnownUsers::new(ledger.identities(None).await?);
    let schedd = Arc::new(schedd(config, operator, clock, users, &metrics, health.clone()));
    let credentials = credentials(config, &schedd, &client, &metrics).await;
    let (wake, wakes) = mpsc::channel(WAKES);
    let (woken, backends_wake) = (wake.clone(), wake.clone());
    let tracker = Arc::new(tracker(config, &schedd, &wake, &metrics));
    let locks = SubmitterLocks::new(&config.data.data_dir);
    let mut survivors =
        SubmitterWatch::of(ledger.clone(), locks.clone(), clock, config.timing.dead_margin, wake.clone()).await?;
    // Submitters of an earlier process are checked before anything is decided about their jobs, if time allows.
    let _ = tokio::time::timeout(FIRST_LOOK, survivors.look()).await;
    let journal = (ledger.clone(), fence.clone(), clock, metrics.clone());
    let pool = (Arc::clone(&schedd), Arc::clone(&credentials));
    let shared = shared(config, journal, pool, wake, planner.clone(), locks);
    let keeper = keeper(config, client.clone(), &shared);
    let port = receiver.map(|(receiver, port)| {
        receiver.open(ledger.clone(), clock, shared.wake.clone(), client.clone());
        port
    });
    let namespace_jobs = namespace_jobs(config, &shared).await?;
    let (queues, queue_keeper) = queues(config, client.clone(), &shared).await?;
    let shared = Arc::new(shared);
    let (workers, lanes) = ScheddWorkers::start(Arc::clone(&shared));
    let (publisher, shown_layout) = (EventPublisher::default(), planner.layout.clone());
    let default = Pool {
        schedd: Arc::clone(&schedd),
        credentials: Arc::clone(&credentials),
        tracker: Arc::clone(&tracker),
        workers,
    };
    let pools =
        Arc::new(Pools::new(Arc::new(default), ledger.pools().await?, ledger.in_pools(JobDemand::at_start).await?));
    let backends = Arc::new(Backends::new(config.pods.site()));
    let (objects, writer) = kube::runtime::reflector::store();
    let context = Arc::new(Context {
        image_digests: ImageDigests::of(config.containers.resolve_digests.clone()),
        client: client.clone(),
        ledger: ledger.clone(),
        pools: Arc::clone(&pools),
        requests: Arc::clone(&shared.registry),
        planner,
        settings: config.settings(),
        operator: operator_name(config),
        fence: fence.clone(),
        clock,
        publisher: publisher.clone(),
        memory: ObjectMemory::default(),
        write_limiter: WriteLimiter::new(config.kubernetes.max_concurrent_reconciles),
        namespace_jobs,
        queues,
        backends: Arc::clone(&backends),
        kept_logs: KeptLogs::new(Arc::clone(&shared)),
        metrics: metrics.clone(),
        health,
        objects,
        listed: watch::Sender::default(),
        changed: broadcast::Sender::new(TOUCHED),
    });
    let (part_ended, pool_ended) = TaskFailures::channel();
    let base = base(config, client.clone(), shared, (context.objects.clone(), context.listed.subscribe()), part_ended);
    let pool_keeper = PoolController::new(base, Arc::clone(&pools), fence.clone());
    let sources = (records(&context), shown_layout, Arc::clone(&pools));
    let jobs_api = jobs_api(config, &client, sources, (woken, clock))?;
    let (end, mut told) = watch::channel(false);
    let until_told = async move { drop(told.wait_for(|end| *end).await) };
    let (namespace, concurrency) =
        (config.kubernetes.watch_namespace.clone(), config.kubernetes.max_concurrent_reconciles);
    let kept = Arc::clone(&credentials);
    let orphans = orphans(&client, &pools, namespace.clone(), metrics.clone());
    Ok(Running {
        housekeeping: RunningTask::start(async move {
            tokio::join!(keeper.run(), kept.run(), survivors.run(), Box::pin(queue_keeper.run()));
        }),
        tracker: RunningTask::start(async move { Box::pin(tracker.run()).await }),
        pool_keeper: RunningTask::start(async move { Box::pin(pool_keeper.run()).await }),
        backends: watching(backends, client.clone(), namespace.clone(), backends_wake),
        pool_ended,
        pools,
        _orphans: RunningTask::start(orphans),
        publisher: RunningTask::start({
            let (ledger, metrics) = (ledger.clone(), metrics.clone());
            async move { publisher.run(client, ledger, clock, metrics).await }
        }),
        controller: RunningTask::start(async move {
            controller::run(context, namespace.as_deref(), concurrency, writer, wakes, until_told).await;
        }),
        workers: lanes,
        leader,
        ledger,
        fence,
        credentials,
        port,
        jobs_api,
        end,
        _keys: keys,
    })
}

/// Starts counting orphans in the pool of the operator's flags, if they name one.
fn orphans(
    client: &Client,
    pools: &Pools,
    namespace: Option<String>,
    metrics: Metrics,
) -> impl Future<Output = ()> + use<> {
    let (client, default) = (client.clone(), pools.has_default().then(|| Arc::clone(pools.default())));
    async move {
        if let Some(pool) = default {
            count_at_start(client, &pool.schedd, &pool.credentials, namespace.as_deref(), metrics).await;
        }
    }
}

/// Returns the records that the jobs API serves.
fn records(context: &Context) -> Records {
    Records {
        objects: context.objects.clone(),
        listed: context.listed.subscribe(),
        changes: context.changed.clone(),
        ledger: context.ledger.clone(),
        ledger_steps: LedgerSteps::default(),
        operator: context.operator.clone(),
    }
}

/// Returns the number of jobs of each namespace, as recorded in the ledger.
async fn namespace_jobs(config: &Config, shared: &WorkerContext) -> Result<NamespaceJobs, LedgerError> {
    let limit = config.condor.namespace_active_jobs;
    if limit == 0 {
        return Ok(NamespaceJobs::new(limit, shared.wake.clone(), Vec::new(), &HashSet::new()));
    }
    let (known, elsewhere) = (shared.ledger.live().await?, shared.ledger.with_runs().await?);
    Ok(NamespaceJobs::new(limit, shared.wake.clone(), known, &elsewhere))
}

/// Returns the queues, with the ledger's records of the `HTCJob`s in them, and their controller.
async fn queues(
    config: &Config,
    client: Client,
    shared: &WorkerContext,
) -> Result<(Arc<Queues>, QueueController), LedgerError> {
    let WorkerContext { ledger, fence, metrics, wake, .. } = shared;
    let mode = config.queueing.queueing;
    let (known, grants) = match mode {
        Queueing::None => (Vec::new(), Vec::new()),
        Queueing::Embedded | Queueing::Kueue => (ledger.live().await?, ledger.grants().await?),
    };
    let resources = &config.queueing.kueue_resources;
    let queues = Arc::new(Queues::with_kueue(mode, resources, metrics.clone(), known, &grants));
    let namespace = config.kubernetes.watch_namespace.clone();
    let (own, fence, wake) = (Arc::clone(&queues), fence.clone(), wake.clone());
    let keeper = QueueController::new(own, client, ledger.clone(), fence, wake, namespace);
    Ok((queues, keeper))
}

/// Returns what pools are created from.
fn base(
    config: &Config,
    client: Client,
    shared: Arc<WorkerContext>,
    (objects, listed): (Store<ObservedHTCJob>, watch::Receiver<bool>),
    ended: TaskFailures,
) -> PoolFactory {
    PoolFactory {
        client,
        shared,
        namespace: config.kubernetes.watch_namespace.clone(),
        credentials: config.credentials_config(),
        name: operator_name(config),
        intervals: (config.timing.poll_interval, config.timing.poll_min_interval, config.timing.retry_backoff_max),
        objects,
        listed,
        ended,
        pods: config.pods.site(),
    }
}

/// Starts following jobs of the other backends.
fn watching(backends: Arc<Backends>, client: Client, namespace: Option<String>, wake: Wake) -> RunningTask {
    RunningTask::start(async move { Box::pin(backends.run(&client, namespace.as_deref(), wake)).await })
}

/// Returns the context of the workers.
fn shared(
    config: &Config,
    (ledger, fence, clock, metrics): (Ledger, Fence, Clock, Metrics),
    (schedd, credentials): (Arc<Schedd>, Arc<Credentials>),
    wake: Wake,
    planner: Planner,
    locks: SubmitterLocks,
) -> WorkerContext {
    let limits = limits(config);
    WorkerContext {
        schedd,
        credentials,
        ledger,
        fence,
        clock,
        registry: Arc::default(),
        wake,
        files: FileWork::default(),
        locks,
        settings: config.settings(),
        sizes: SubmissionSizes::new(limits.clone(), config.timing.retry_backoff_max),
        limits,
        disk_budget: Arc::new(DiskBudget::new(
            config.output_dir(),
            config.data.min_free_space,
            planner.layout.largest_output(),
        )),
        namespace_output: Arc::new(NamespaceOutput::new(
            config.output_dir().join("htc_out"),
            config.output.namespace_output_limit,
        )),
        planner,
        metrics,
    }
}

/// Returns namespace and name of this operator, as recorded on its `HTCJob`s.
pub(crate) fn operator_name(config: &Config) -> String {
    format!("{}/{}", config.kubernetes.operator_namespace, config.kubernetes.operator_name)
}

/// Starts the leader's side of the jobs API, if it is switched on.
fn jobs_api(
    config: &Config,
    client: &Client,
    (records, layout, pools): (Records, OutputLayout, Arc<Pools>),
    (wake, clock): (Wake, Clock),
) -> Result<Option<JobsApi>, StartError> {
    let Some(address) = config.jobs_api.jobs_api_listen else { return Ok(None) };
    let wakes = Arc::new(Wakes::start(wake));
    let volume = OutputVolume::new(layout.output_dir.join("htc_out"));
    let jobs = JobsService {
        records,
        client: client.clone(),
        layout,
        volume,
        limits: JobsApiLimits::default(),
        pools,
        wakes,
        clock,
    };
    let (shown, accepted) = (ServerCertificate::default(), TrustedClients::default());
    let port = jobs_api::listen(address, jobs, shown.clone(), accepted.clone())?;
    tracing::info!(address = %port.address, "jobs API listening");
    let places = JobsApiNames {
        namespace: config.kubernetes.operator_namespace.clone(),
        operator: config.kubernetes.operator_name.clone(),
    };
    let lives = CertificateLifetimes { certificate: config.jobs_api.jobs_api_certificate_life };
    let keeper = CertificateKeeper::new(client.clone(), places, lives, shown, accepted);
    Ok(Some(JobsApi { port, _certificates: RunningTask::start(keeper.run()) }))
}

/// Waits until `stop` resolves. Fails before that if the operator no longer leads, or one of its parts has ended:
/// each of them runs for as long as the operator does, which would miss changes without it. In any case nothing new
/// is begun afterwards.
pub(super) async fn supervise(running: &mut Running, stop: impl Future<Output = ()>) -> Result<(), StartError> {
    let Running {
        leader,
        ledger,
        fence,
        port,
        jobs_api,
        tracker,
        publisher,
        housekeeping,
        controller,
        workers,
        pool_keeper,
        pool_ended,
        backends,
        ..
    } = running;
    let result = tokio::select! {
        () = stop => Ok(()),
        lost = leader.keep(ledger, fence) => Err(lost.into()),
        () = tracker.ended() => Err(StartError::Failed("tracker")),
        () = publisher.ended() => Err(StartError::Failed("publisher of Events")),
        () = housekeeping.ended() => Err(StartError::Failed("housekeeping")),
        () = controller.ended() => Err(StartError::Failed("controller")),
        () = backends.ended() => Err(StartError::Failed("watch of Jobs and Pods")),
        () = pool_keeper.ended() => Err(StartError::Failed("keeper of pools")),
        Some(pool) = pool_ended.recv() => {
            tracing::error!(htcpool = %pool, "task of an HTCPool ended");
            Err(StartError::Failed("tracker or workers of a pool"))
        }
        () = ended(port) => Err(StartError::Failed("receiver")),
        () = async {
            match jobs_api {
                Some(served) => served.port.ended().await,
                None => std::future::pending().await,
            }
        } => Err(StartError::Failed("jobs API")),
        _ = workers.join_next() => Err(StartError::Failed("workers")),
    };
    fence.close();
    // No reports are accepted any more: a job that reports now tries again, and finds the next operator.
    port.take();
    jobs_api.take();
    result
}

/// Waits for a limited time until running work has ended, then releases the Lease.
pub(super) async fn drain(running: Running) {
    let Running {
        leader,
        ledger,
        fence,
        credentials,
        tracker,
        publisher,
        housekeeping,
        mut controller,
        mut workers,
        pool_keeper,
        pools,
        end,
        ..
    } = running;
    tracing::info!(limit_seconds = DRAIN.as_secs(), "stopping");
    let _ = end.send(true);
    // It holds the pools, and through them the workers' queues.
    drop(pool_keeper);
    let drained = tokio::time::timeout(DRAIN, async {
        // The workers end when the context, which holds their queues, is dropped with the controller.
        controller.ended().await;
        pools.drain().await;
        drop(pools);
        while workers.join_next().await.is_some() {}
    });
    let drained = drained.await.is_ok();
    drop((tracker, publisher, housekeeping));
    credentials.close();
    if drained {
        let_go(leader, ledger, &fence).await;
    } else {
        tracing::warn!("stopped before all work had ended");
    }
}

/// Releases the Lease. A slow API server or volume must not delay the end; the Lease then expires by itself.
async fn let_go(leader: Leader, ledger: Ledger, fence: &Fence) {
    let _ = tokio::time::timeout(RELEASE, async {
        leader.release(&ledger, fence).await;
        ledger.close().await;
    })
    .await;
}

/// Returns the credentials for the schedd. HTCondor is not asked before the operator's own credentials are there, or
/// it is known that there are none.
async fn credentials(config: &Config, schedd: &Arc<Schedd>, client: &Client, metrics: &Metrics) -> Arc<Credentials> {
    let credentials =
        Credentials::new(config.credentials_config(), Arc::clone(schedd), Some(client.clone()), metrics.clone());
    if tokio::time::timeout(FIRST_LOOK, credentials.refresh_operator()).await.is_err() {
        schedd.set_missing_credentials(Some(
            "the operator has no Kerberos ticket yet: it is waiting for a KDC".to_owned(),
        ));
    }
    credentials
}

/// Resolves when a port that was opened is no longer served.
async fn ended(port: &mut Option<Port>) {
    match port {
        Some(port) => port.ended().await,
        None => std::future::pending().await,
    }
}

fn keeper(config: &Config, client: Client, shared: &WorkerContext) -> GarbageCollector {
    GarbageCollector {
        client,
        namespace: config.kubernetes.watch_namespace.clone(),
        ledger: shared.ledger.clone(),
        fence: shared.fence.clone(),
        clock: shared.clock,
        layout: shared.planner.layout.clone(),
        times: config.keep_times(),
    }
}

fn tracker(config: &Config, schedd: &Arc<Schedd>, wake: &Wake, metrics: &Metrics) -> Tracker {
    let (interval, soon, longest) =
        (config.timing.poll_interval, config.timing.poll_min_interval, config.timing.retry_backoff_max);
    Tracker::new(Arc::clone(schedd), wake.clone(), interval, soon, longest, metrics.clone())
}

fn limits(config: &Config) -> BatchLimits {
    BatchLimits {
        objects: config.condor.batch_objects,
        jobs: config.condor.batch_jobs,
        submit: config.timing.submit_timeout,
        transfer_together: config.output.transfer_timeout_together,
    }
}
