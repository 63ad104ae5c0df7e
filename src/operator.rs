//! Puts the rooms together and runs them.

mod keys;
mod open_files;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::condor::htcopts::{HtcOpts, HtcOptsError};
use crate::condor::{Names, Schedd, Tools};
use crate::config::Config;
use crate::controller::{self, Context, Memory, Publisher};
use crate::credentials::Credentials;
use crate::fence::Fence;
use crate::key::KeyRing;
use crate::kubernetes::{self, limited};
use crate::lease::{self, Candidate, Leader, Place};
use crate::ledger::{Ledger, LedgerError};
use crate::machine::ScheddName;
use crate::receiver::{Certificate, ListenError, Port, Receiver, monitor};
use crate::retention::Keeper;
use crate::retry::Pauses;
use crate::tracker::Tracker;
use crate::workers::{Limits, Planner, Registry, Reporting, Shared, Sizes, Workers};

/// How long the batches under way may take to end once the operator is told to stop.
const DRAIN: Duration = Duration::from_secs(4);
/// How long the release of the Lease may take.
const RELEASE: Duration = Duration::from_secs(3);
/// How long the first look for the operator's own credentials may take: meanwhile the Lease is not renewed.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Most objects that wait to be woken.
const WAKES: usize = 4096;

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration of the Kubernetes client.
    #[error(transparent)]
    Kubeconfig(#[from] kubernetes::NoKubeconfig),
    /// The API server.
    #[error("cannot ask the API server who it is: {0}")]
    Cluster(String),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The site's defaults.
    #[error("--site-defaults: {0}")]
    SiteDefaults(#[from] HtcOptsError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// Something that runs for as long as the operator does ended.
    #[error("the {0} ended unasked (see the log above); the operator stops, to be started again")]
    Failed(&'static str),
    /// A port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another operator leads.
    #[error(transparent)]
    Lost(#[from] lease::Lost),
    /// A signal handler.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// The value of `HTCOperator`: the cluster (by the uid of kube-system) and this operator's namespace and name.
pub async fn operator_id(client: &Client, config: &Config) -> Result<String, StartError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = limited("read the namespace", &"kube-system", api.get("kube-system")).await;
    let namespace = namespace.map_err(|error| StartError::Cluster(error.to_string()))?;
    let uid =
        namespace.metadata.uid.ok_or_else(|| StartError::Cluster("the namespace kube-system has no uid".to_owned()))?;
    Ok(format!("{uid}/{}/{}", config.operator_namespace, config.operator_name))
}

/// The schedd that `config` names.
#[must_use]
pub fn schedd(config: &Config, operator: String, clock: Clock, names: Names) -> Schedd {
    let tools = Tools::new(config.condor_bin.as_ref(), config.tool_limit, config.history_limit, config.transfer_limit);
    Schedd::new(ScheddName::from(config.schedd.as_str()), operator, tools, clock, names)
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, StartError> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves when the operator is told to stop.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// An operator that may act: it holds the ledger's file and the Lease.
struct Ready {
    client: Client,
    /// What the jobs' tokens are made with.
    keys: Option<keys::Followed>,
    /// Where jobs report, if they do.
    reporting: Option<Arc<Reporting>>,
    /// Takes in what they report.
    receiver: Option<(Receiver, Port)>,
    operator: String,
    ledger: Ledger,
    fence: Fence,
    leader: Leader,
}

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), StartError> {
    let clock = Clock::default();
    let mut signals = Signals::listen()?;
    config.validate().map_err(StartError::Setting)?;
    let site_defaults = HtcOpts::parse(&config.site_defaults)?;
    open_files::raise();
    let _monitor = config.http_listen.map(monitor::listen).transpose()?;
    let ready = tokio::select! {
        ready = get_ready(&config, clock) => ready?,
        () = signals.stop() => return Ok(()),
    };
    let planner = Planner {
        data: config.data_dir.clone(),
        images: config.image_map().map_err(StartError::Setting)?,
        binds: config.binds.iter().filter(|bind| !bind.is_empty()).cloned().collect(),
        site_defaults,
        callback: ready.reporting.clone(),
        output_limit: config.output_limit(),
    };
    Box::pin(serve(&config, clock, planner, ready, signals)).await
}

/// Waits for the ledger's file, the API server and the Lease, in this order.
async fn get_ready(config: &Config, clock: Clock) -> Result<Ready, StartError> {
    let mut ledger = open_ledger(config).await?;
    let client = kubernetes::client().await?;
    let operator = who_are_we(&client, config).await?;
    ledger.belong_to(&operator).await?;
    let keys = if config.callback_url.is_some() || config.callback_listen.is_some() {
        Some(keys::Followed::begin(&client, config).await?)
    } else {
        None
    };
    let receiver = listen(config, keys.as_ref().map(|keys| &keys.ring))?;
    let reporting = config.callback_url.clone().zip(keys.as_ref()).map(|(url, keys)| {
        Arc::new(Reporting { url, source: config.callback_source.clone(), keys: keys.ring.clone() })
    });
    let fence = Fence::new(clock);
    let place = Place { namespace: config.operator_namespace.clone(), name: config.operator_name.clone() };
    let candidate = Candidate::new(client.clone(), place, config.identity(), config.lease_times(), clock);
    let leader = candidate.lead(&mut ledger, &fence).await?;
    Ok(Ready { client, keys, reporting, receiver, operator, ledger, fence, leader })
}

/// The receiver, which refuses for now.
fn listen(config: &Config, keys: Option<&KeyRing>) -> Result<Option<(Receiver, Port)>, StartError> {
    let Some((address, keys)) = config.callback_listen.zip(keys) else { return Ok(None) };
    let certificate = match (&config.callback_tls_cert, &config.callback_tls_key) {
        (Some(chain), Some(key)) => Some(Certificate::read(chain, key).map_err(ListenError::from)?),
        (_, _) => None,
    };
    let receiver = Receiver::new(keys.clone());
    let tls = certificate.is_some();
    let port = receiver.listen(address, certificate)?;
    tracing::info!(address = %port.address, tls, "the receiver listens");
    Ok(Some((receiver, port)))
}

/// Opens the ledger, as soon as no other process holds it.
async fn open_ledger(config: &Config) -> Result<Ledger, StartError> {
    let mut pauses = Pauses::new(Duration::from_millis(500), Duration::from_secs(5));
    let mut told = false;
    loop {
        match Ledger::open(&config.ledger()) {
            Err(error @ LedgerError::Locked { .. }) if !told => {
                crate::health::standing_by();
                tracing::info!(reason = %error, "standing by");
                told = true;
            }
            Err(LedgerError::Locked { .. }) => {}
            opened => return Ok(opened?),
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

async fn serve(
    config: &Config,
    clock: Clock,
    planner: Planner,
    ready: Ready,
    mut signals: Signals,
) -> Result<(), StartError> {
    let Ready { client, keys: _keys, reporting: _, receiver, operator, ledger, fence, mut leader } = ready;
    tracing::info!(%operator, schedd = %config.schedd, ledger = ledger.id(), data = %config.data_dir.display(), "htc-operator runs");
    let schedd = Arc::new(schedd(config, operator, clock, Names::new(ledger.identities().await?)));
    let credentials = credentials(config, &schedd, &client).await;
    let (wake, wakes) = mpsc::channel(WAKES);
    let (interval, soon, longest) = (config.tracker_interval, config.soon, config.pause_max);
    let tracker = Arc::new(Tracker::new(Arc::clone(&schedd), wake.clone(), interval, soon, longest));
    let limits = limits(config);
    let shared = Shared {
        schedd: Arc::clone(&schedd),
        credentials: Arc::clone(&credentials),
        ledger: ledger.clone(),
        fence: fence.clone(),
        clock,
        registry: Registry::default(),
        wake,
        planner: planner.clone(),
        settings: config.settings(),
        sizes: Sizes::new(limits.clone(), config.pause_max),
        limits,
    };
    let keeper = keeper(config, client.clone(), &shared);
    let mut port = receiver.map(|(receiver, port)| {
        receiver.open(ledger.clone(), clock, shared.wake.clone());
        port
    });
    let (workers, mut lanes) = Workers::start(Arc::new(shared));
    let publisher = Publisher::default();
    let context = Arc::new(Context {
        client: client.clone(),
        ledger: ledger.clone(),
        tracker: Arc::clone(&tracker),
        workers,
        planner,
        settings: config.settings(),
        schedd: Arc::clone(&schedd),
        credentials: Arc::clone(&credentials),
        operator: format!("{}/{}", config.operator_namespace, config.operator_name),
        fence: fence.clone(),
        clock,
        publisher: publisher.clone(),
        memory: Memory::default(),
    });
    let (stop, mut stopped) = watch::channel(false);
    let until_stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
    let mut kept = tokio::spawn({
        let credentials = Arc::clone(&credentials);
        async move { tokio::join!(keeper.run(), credentials.keep()) }
    });
    let mut looks = tokio::spawn(async move { Box::pin(tracker.run()).await });
    let counted = tokio::spawn(crate::orphans::count_at_start(client.clone(), schedd, config.watch_namespace.clone()));
    let mut told = tokio::spawn({
        let (ledger, fence) = (ledger.clone(), fence.clone());
        async move { publisher.run(client, ledger, clock, fence).await }
    });
    let (namespace, concurrency) = (config.watch_namespace.clone(), config.concurrency);
    let mut reconciles =
        tokio::spawn(
            async move { controller::run(context, namespace.as_deref(), concurrency, wakes, until_stopped).await },
        );
    // Each of these runs for as long as the operator does: one that ends has failed, and the operator would be deaf.
    let failed = tokio::select! {
        () = signals.stop() => None,
        lost = leader.keep(&ledger, &fence) => Some(lost.into()),
        _ = &mut looks => Some(StartError::Failed("tracker")),
        _ = &mut told => Some(StartError::Failed("publisher of Events")),
        _ = &mut kept => Some(StartError::Failed("housekeeping")),
        _ = &mut reconciles => Some(StartError::Failed("controller")),
        () = ended(&mut port) => Some(StartError::Failed("receiver")),
        _ = lanes.join_next() => Some(StartError::Failed("workers")),
    };
    fence.close();
    // Nothing is taken in any more: whoever reports now tries again, and finds the next operator.
    drop(port);
    if let Some(error) = failed {
        return Err(error);
    }
    tracing::info!("told to stop: nothing new is begun, what runs is given {} s", DRAIN.as_secs());
    let _ = stop.send(true);
    let drained = tokio::time::timeout(DRAIN, async {
        // The lanes end when the context, which holds their senders, is dropped with the controller.
        let _ = reconciles.await;
        while lanes.join_next().await.is_some() {}
    });
    let drained = drained.await.is_ok();
    for task in [looks.abort_handle(), told.abort_handle(), kept.abort_handle(), counted.abort_handle()] {
        task.abort();
    }
    credentials.close();
    if drained {
        let_go(leader, ledger, &fence).await;
    } else {
        tracing::warn!("stopped with work under way; it is judged by what HTCondor has when the operator runs again");
    }
    Ok(())
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
async fn credentials(config: &Config, schedd: &Arc<Schedd>, client: &Client) -> Arc<Credentials> {
    let credentials = Credentials::new(config.credentials_setup(), Arc::clone(schedd), Some(client.clone()));
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
        namespace: config.watch_namespace.clone(),
        ledger: shared.ledger.clone(),
        fence: shared.fence.clone(),
        clock: shared.clock,
        planner: shared.planner.clone(),
        times: config.keep_times(),
    }
}

fn limits(config: &Config) -> Limits {
    Limits {
        objects: config.batch_objects,
        jobs: config.batch_jobs,
        submit: config.submit_limit,
        transfer_together: config.transfer_limit_together,
        keep_free: config.keep_free,
    }
}

/// Asks until the API server answers.
async fn who_are_we(client: &Client, config: &Config) -> Result<String, StartError> {
    let mut pauses = Pauses::new(Duration::from_millis(500), Duration::from_secs(30));
    loop {
        match operator_id(client, config).await {
            Ok(operator) => return Ok(operator),
            Err(error) => tracing::warn!(%error, "waiting for the API server"),
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}
