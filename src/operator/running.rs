//! The parts of an operator that leads: put together, watched over, and brought to their end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::reflector::Store;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::ready::Ready;
use super::{StartError, keys, schedd};
use crate::api::{Observed, Wake};
use crate::backends::Backends;
use crate::clock::Clock;
use crate::condor::{KnownUsers, Schedd, SubmitterLocks};
use crate::config::Config;
use crate::controller::{self, Context, NamespaceJobs, Publisher, VolatileState, Writes};
use crate::credentials::Credentials;
use crate::fence::Fence;
use crate::jobs_api::certificates::{CertificateKeeper, Lives, Places};
use crate::jobs_api::{self, Jobs, Records, Steps, Turns, Volume};
use crate::lease::Leader;
use crate::ledger::{Ledger, LedgerError};
use crate::metrics::Metrics;
use crate::mtls::{Accepted, Shown};
use crate::orphans::count_at_start;
use crate::pools::managed::work::Work;
use crate::pools::{Base, PartEnded, Pool, PoolKeeper, Pools};
use crate::queue::{QueueKeeper, Queueing, Queues};
use crate::receiver::{Port, Wakes};
use crate::retention::Keeper;
use crate::tracker::Tracker;
use crate::workers::{FileWork, KeptLogs, Limits, NamespaceOutput, Planner, Room, Shared, Sizes, Survivors, Workers};

/// How long the batches under way may take to end once the operator is told to stop.
const DRAIN: Duration = Duration::from_secs(4);
/// How long the release of the Lease may take.
const RELEASE: Duration = Duration::from_secs(3);
/// How long the first look for the operator's own credentials, or at submitters, may take: meanwhile the Lease is not renewed.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Most objects that wait to be woken.
const WAKES: usize = 4096;
/// Most names of `HTCJob`s that wait for those who watch their jobs; who comes later looks at all.
const TOUCHED: usize = 4096;

/// A part at work. It ends when this is dropped.
struct Part(JoinHandle<()>);

impl Part {
    fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Resolves when it has ended, well or not.
    async fn ended(&mut self) {
        let _ = (&mut self.0).await;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What shows jobs to the fronts.
struct JobsApi {
    port: Port,
    _certificates: Part,
}

/// An operator at work. All its parts end when this is dropped.
pub(super) struct Running {
    leader: Leader,
    ledger: Ledger,
    fence: Fence,
    credentials: Arc<Credentials>,
    /// Where jobs report.
    port: Option<Port>,
    tracker: Part,
    publisher: Part,
    housekeeping: Part,
    controller: Part,
    workers: JoinSet<()>,
    /// Sees to the pools of HTCPools.
    pool_keeper: Part,
    /// Told when a part of one of them ends.
    pool_ended: mpsc::Receiver<String>,
    pools: Arc<Pools>,
    /// Sees what becomes of jobs elsewhere than in pools.
    backends: Part,
    /// Shows jobs to the fronts.
    jobs_api: Option<JobsApi>,
    /// Tells the controller to begin nothing new.
    end: watch::Sender<bool>,
    _orphans: Part,
    _keys: Option<keys::Followed>,
}

/// Starts every part.
pub(super) async fn assemble(config: &Config, planner: Planner, ready: Ready) -> Result<Running, StartError> {
    let Ready { client, keys, receiver, operator, ledger, fence, leader, clock, metrics, health, .. } = ready;
    tracing::info!(%operator, schedd = %config.condor.schedd, ledger = ledger.id(), data = %config.data.data_dir.display(), "htc-operator runs");
    let users = KnownUsers::new(ledger.identities(None).await?);
    let schedd = Arc::new(schedd(config, operator, clock, users, &metrics, health.clone()));
    let credentials = credentials(config, &schedd, &client, &metrics).await;
    let (wake, wakes) = mpsc::channel(WAKES);
    let (woken, backends_wake) = (wake.clone(), wake.clone());
    let tracker = Arc::new(tracker(config, &schedd, &wake, &metrics));
    let locks = SubmitterLocks::new(&config.data.data_dir);
    let mut survivors =
        Survivors::of(ledger.clone(), locks.clone(), clock, config.timing.dead_margin, wake.clone()).await?;
    // Before anything is said about them, if that can be.
    let _ = tokio::time::timeout(FIRST_LOOK, survivors.look()).await;
    let journal = (ledger.clone(), fence.clone(), clock, metrics.clone());
    let pool = (Arc::clone(&schedd), Arc::clone(&credentials));
    let shared = shared(config, journal, pool, wake, planner.clone(), locks);
    let keeper = keeper(config, client.clone(), &shared);
    let port = receiver.map(|(receiver, port)| {
        receiver.open(ledger.clone(), clock, shared.wake.clone());
        port
    });
    let namespace_jobs = namespace_jobs(config, &shared).await?;
    let (queues, queue_keeper) = queues(config, client.clone(), &shared).await?;
    let shared = Arc::new(shared);
    let (workers, lanes) = Workers::start(Arc::clone(&shared));
    let (publisher, shown_planner) = (Publisher::default(), planner.clone());
    let default = Pool {
        schedd: Arc::clone(&schedd),
        credentials: Arc::clone(&credentials),
        tracker: Arc::clone(&tracker),
        workers,
    };
    let pools = Arc::new(Pools::new(Arc::new(default), ledger.pools().await?, ledger.in_pools(Work::at_start).await?));
    let backends = Arc::new(Backends::new(config.pods.site()));
    let (objects, writer) = kube::runtime::reflector::store();
    let context = Arc::new(Context {
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
        volatile: VolatileState::default(),
        writes: Writes::new(config.kubernetes.concurrency),
        namespace_jobs,
        queues,
        backends: Arc::clone(&backends),
        kept_logs: KeptLogs::new(Arc::clone(&shared)),
        metrics: metrics.clone(),
        health,
        objects,
        listed: watch::Sender::default(),
        touched: broadcast::Sender::new(TOUCHED),
    });
    let (part_ended, pool_ended) = PartEnded::channel();
    let base = base(config, client.clone(), shared, (context.objects.clone(), context.listed.subscribe()), part_ended);
    let pool_keeper = PoolKeeper::new(base, Arc::clone(&pools), fence.clone());
    let sources = (records(&context), shown_planner, Arc::clone(&pools));
    let jobs_api = jobs_api(config, &client, sources, (woken, clock))?;
    let (end, mut told) = watch::channel(false);
    let until_told = async move { drop(told.wait_for(|end| *end).await) };
    let (namespace, concurrency) = (config.kubernetes.watch_namespace.clone(), config.kubernetes.concurrency);
    let kept = Arc::clone(&credentials);
    let orphans = orphans(&client, &pools, namespace.clone(), metrics.clone());
    Ok(Running {
        housekeeping: Part::start(async move {
            tokio::join!(keeper.run(), kept.keep(), survivors.run(), Box::pin(queue_keeper.run()));
        }),
        tracker: Part::start(async move { Box::pin(tracker.run()).await }),
        pool_keeper: Part::start(async move { Box::pin(pool_keeper.run()).await }),
        backends: watching(backends, client.clone(), namespace.clone(), backends_wake),
        pool_ended,
        pools,
        _orphans: Part::start(orphans),
        publisher: Part::start({
            let (ledger, metrics) = (ledger.clone(), metrics.clone());
            async move { publisher.run(client, ledger, clock, metrics).await }
        }),
        controller: Part::start(async move {
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

/// Counts those in the pool of the operator's flags, if they name one.
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

/// What the jobs API tells of.
fn records(context: &Context) -> Records {
    Records {
        objects: context.objects.clone(),
        listed: context.listed.subscribe(),
        touched: context.touched.clone(),
        ledger: context.ledger.clone(),
        steps: Steps::default(),
        operator: context.operator.clone(),
    }
}

/// How many jobs each namespace has, by what the ledger knows.
async fn namespace_jobs(config: &Config, shared: &Shared) -> Result<NamespaceJobs, LedgerError> {
    let limit = config.condor.namespace_active_jobs;
    if limit == 0 {
        return Ok(NamespaceJobs::new(limit, shared.wake.clone(), Vec::new(), &HashSet::new()));
    }
    let (known, elsewhere) = (shared.ledger.live().await?, shared.ledger.with_runs().await?);
    Ok(NamespaceJobs::new(limit, shared.wake.clone(), known, &elsewhere))
}

/// The queues, with what the ledger has of those in them, and what keeps them.
async fn queues(config: &Config, client: Client, shared: &Shared) -> Result<(Arc<Queues>, QueueKeeper), LedgerError> {
    let Shared { ledger, fence, metrics, wake, .. } = shared;
    let mode = config.queueing.queueing;
    let (known, grants) = match mode {
        Queueing::None => (Vec::new(), Vec::new()),
        Queueing::Embedded | Queueing::Kueue => (ledger.live().await?, ledger.grants().await?),
    };
    let resources = &config.queueing.kueue_resources;
    let queues = Arc::new(Queues::with_kueue(mode, resources, metrics.clone(), known, &grants));
    let namespace = config.kubernetes.watch_namespace.clone();
    let (own, fence, wake) = (Arc::clone(&queues), fence.clone(), wake.clone());
    let keeper = QueueKeeper::new(own, client, ledger.clone(), fence, wake, namespace);
    Ok((queues, keeper))
}

/// What pools are made from.
fn base(
    config: &Config,
    client: Client,
    shared: Arc<Shared>,
    (objects, listed): (Store<Observed>, watch::Receiver<bool>),
    ended: PartEnded,
) -> Base {
    Base {
        client,
        shared,
        namespace: config.kubernetes.watch_namespace.clone(),
        credentials: config.credentials_setup(),
        name: operator_name(config),
        intervals: (config.timing.tracker_interval, config.timing.soon, config.timing.pause_max),
        objects,
        listed,
        ended,
    }
}

/// Sees what becomes of jobs elsewhere than in pools.
fn watching(backends: Arc<Backends>, client: Client, namespace: Option<String>, wake: Wake) -> Part {
    Part::start(async move { Box::pin(backends.run(&client, namespace.as_deref(), wake)).await })
}

/// What workers work with.
fn shared(
    config: &Config,
    (ledger, fence, clock, metrics): (Ledger, Fence, Clock, Metrics),
    (schedd, credentials): (Arc<Schedd>, Arc<Credentials>),
    wake: Wake,
    planner: Planner,
    locks: SubmitterLocks,
) -> Shared {
    let limits = limits(config);
    Shared {
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
        sizes: Sizes::new(limits.clone(), config.timing.pause_max),
        limits,
        room: Arc::new(Room::new(config.output_dir(), config.data.keep_free, planner.largest_output())),
        namespace_output: Arc::new(NamespaceOutput::new(
            config.output_dir().join("htc_out"),
            config.output.namespace_output_limit,
        )),
        planner,
        metrics,
    }
}

/// Namespace and name of this operator, as they stand on its `HTCJob`s.
pub(crate) fn operator_name(config: &Config) -> String {
    format!("{}/{}", config.kubernetes.operator_namespace, config.kubernetes.operator_name)
}

/// What shows jobs to the fronts, if it is switched on.
fn jobs_api(
    config: &Config,
    client: &Client,
    (records, planner, pools): (Records, Planner, Arc<Pools>),
    (wake, clock): (Wake, Clock),
) -> Result<Option<JobsApi>, StartError> {
    let Some(address) = config.jobs_api.jobs_api_listen else { return Ok(None) };
    let wakes = Arc::new(Wakes::start(wake));
    let volume = Volume::new(planner.output_dir.join("htc_out"));
    let jobs = Jobs { records, client: client.clone(), planner, volume, turns: Turns::default(), pools, wakes, clock };
    let (shown, accepted) = (Shown::default(), Accepted::default());
    let port = jobs_api::listen(address, jobs, shown.clone(), accepted.clone())?;
    tracing::info!(address = %port.address, "the jobs API listens for its fronts");
    let places = Places {
        namespace: config.kubernetes.operator_namespace.clone(),
        operator: config.kubernetes.operator_name.clone(),
    };
    let lives = Lives { certificate: config.jobs_api.jobs_api_certificate_life };
    let keeper = CertificateKeeper::new(client.clone(), places, lives, shown, accepted);
    Ok(Some(JobsApi { port, _certificates: Part::start(keeper.run()) }))
}

/// Waits until `stop` resolves; fails before that if the operator no longer leads, or one of its parts has ended: each of them
/// runs for as long as the operator does, which would be deaf without it. In any case nothing new is begun afterwards.
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
            tracing::error!("a part of HTCPool {pool} ended");
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
    // Nothing is taken in any more: whoever reports now tries again, and finds the next operator.
    port.take();
    jobs_api.take();
    result
}

/// Lets what is under way come to its end, for a while, and then the next operator lead.
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
    tracing::info!("told to stop: nothing new is begun, what runs is given {} s", DRAIN.as_secs());
    let _ = end.send(true);
    // It has the pools, and through them the workers' queues.
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
        tracing::warn!("stopped with work under way; it is judged by what HTCondor has when the operator runs again");
    }
}

/// A slow API server or volume must not hold up the end; the Lease then expires by itself.
async fn let_go(leader: Leader, ledger: Ledger, fence: &Fence) {
    let _ = tokio::time::timeout(RELEASE, async {
        leader.release(&ledger, fence).await;
        ledger.close().await;
    })
    .await;
}

/// In whose name the schedd is spoken to. Nothing is asked before there are the credentials of its own that the operator should
/// have, or it is known that there are none.
async fn credentials(config: &Config, schedd: &Arc<Schedd>, client: &Client, metrics: &Metrics) -> Arc<Credentials> {
    let credentials =
        Credentials::new(config.credentials_setup(), Arc::clone(schedd), Some(client.clone()), metrics.clone());
    if tokio::time::timeout(FIRST_LOOK, credentials.look_for_own()).await.is_err() {
        schedd.lacks_credentials(Some("the operator has no Kerberos ticket yet: it is waiting for a KDC".to_owned()));
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

fn keeper(config: &Config, client: Client, shared: &Shared) -> Keeper {
    Keeper {
        client,
        namespace: config.kubernetes.watch_namespace.clone(),
        ledger: shared.ledger.clone(),
        fence: shared.fence.clone(),
        clock: shared.clock,
        planner: shared.planner.clone(),
        times: config.keep_times(),
    }
}

fn tracker(config: &Config, schedd: &Arc<Schedd>, wake: &Wake, metrics: &Metrics) -> Tracker {
    let (interval, soon, longest) = (config.timing.tracker_interval, config.timing.soon, config.timing.pause_max);
    Tracker::new(Arc::clone(schedd), wake.clone(), interval, soon, longest, metrics.clone())
}

fn limits(config: &Config) -> Limits {
    Limits {
        objects: config.condor.batch_objects,
        jobs: config.condor.batch_jobs,
        submit: config.timing.submit_limit,
        transfer_together: config.output.transfer_limit_together,
    }
}
