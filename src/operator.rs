//! Puts the rooms together and runs them.

mod keys;
mod open_files;
mod ready;
mod running;

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::condor::htcopts::{Attributes, HtcOpts, HtcOptsError, Policy};
use crate::condor::{KnownUsers, Schedd};
use crate::config::{self, Config};
use crate::confine::{Confinement, NO_LANDLOCK, kernel_has_landlock};
use crate::health::Health;
use crate::kubernetes::{self, limited};
use crate::lease;
use crate::ledger::LedgerError;
use crate::machine::ScheddName;
use crate::metrics::Metrics;
use crate::receiver::{ListenError, monitor};
use crate::workers::Planner;

use ready::get_ready;
pub(crate) use running::operator_name;
use running::{assemble, drain, supervise};

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration of the Kubernetes client.
    #[error(transparent)]
    Kubeconfig(#[from] kubernetes::NoKubeconfig),
    /// The API server.
    #[error("cannot read the namespace kube-system, whose uid identifies the cluster: {0}")]
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
    #[error("the {0} ended unexpectedly (see the log above); the operator exits and must be restarted")]
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
    Ok(format!("{uid}/{}/{}", config.kubernetes.operator_namespace, config.kubernetes.operator_name))
}

/// The schedd that `config` names.
#[must_use]
pub fn schedd(
    config: &Config,
    operator: String,
    clock: Clock,
    users: KnownUsers,
    metrics: &Metrics,
    health: Health,
) -> Schedd {
    let tools = config.tools(metrics.clone());
    metrics.confined(tools.confined());
    if config.condor.schedd.is_empty() {
        tracing::info!("--schedd names no schedd: HTCJobs run in the HTCPools that they name, or as Pods");
        health.schedd_seen();
    }
    Schedd::new(ScheddName::from(config.condor.schedd.as_str()), operator, tools, clock, users, health)
}

fn say_confinement(config: &Config) {
    match (config.condor.confinement, kernel_has_landlock()) {
        (Confinement::Off, _) => tracing::warn!("HTCondor's tools are not confined: --confinement=off"),
        (Confinement::Auto | Confinement::Required, true) => {
            tracing::info!("HTCondor's tools are confined by Landlock to the files that each call needs");
        }
        (Confinement::Auto | Confinement::Required, false) => {
            tracing::warn!("HTCondor's tools are not confined: {NO_LANDLOCK}");
        }
    }
    if let Some(why) = config::left_out(&config.tools(Metrics::default())) {
        tracing::warn!("{why}");
    }
}

/// Resolves when this process is told to stop, by SIGTERM or SIGINT: from now on neither ends it by itself.
pub fn told_to_stop() -> Result<impl Future<Output = ()>, StartError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Runs an operator until `stop` resolves. Several may run in one process: they share its log, its environment, and
/// how many reads of output may hang.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), StartError> {
    let mut stop = std::pin::pin!(stop);
    let (metrics, health) = (Metrics::default(), Health::default());
    config.validate().map_err(StartError::Setting)?;
    let site_defaults = HtcOpts::parse(&config.condor.site_defaults, &Policy::of_the_site(Attributes::of_the_site()))?;
    say_confinement(&config);
    if let Some(why) = config.callbacks_in_clear() {
        tracing::warn!("{why}");
    }
    open_files::raise();
    let monitor = |address| monitor::listen(address, health.clone(), metrics.clone());
    let _monitor = config.monitoring.http_listen.map(monitor).transpose()?;
    let ready = tokio::select! {
        ready = get_ready(&config, metrics, health) => ready?,
        () = &mut stop => return Ok(()),
    };
    let planner = Planner {
        data: config.data.data_dir.clone(),
        output_dir: config.output_dir(),
        images: config.image_map().map_err(StartError::Setting)?,
        binds: config.binds(),
        site_defaults,
        policy: config.policy(),
        callback: ready.reporting.clone(),
        output_limit: config.output_limit(),
        keep_free: config.data.keep_free,
    };
    let mut running = Box::pin(assemble(&config, planner, ready)).await?;
    supervise(&mut running, stop).await?;
    Box::pin(drain(running)).await;
    Ok(())
}
