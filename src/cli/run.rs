//! `htc-operator run`: builds the parts of the operator and runs them.

mod keys;
mod open_files;
mod running;
mod startup;

use htc_confine::{Confinement, NO_LANDLOCK, kernel_has_landlock};
use htc_ledger::LedgerError;
use htc_machine::ScheddName;
use htc_submit::htcopts::{Attributes, HtcOpts, HtcOptsError, HtcOptsPolicy};
use htc_submit::spec::SpecRules;
use htc_support::clock::Clock;
use htc_support::health::Health;
use htc_support::kubernetes;
use htc_support::kubernetes::with_timeout;
use htc_support::metrics::Metrics;
use htcondor::{KnownUsers, Schedd};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use tokio::signal::unix::{SignalKind, signal};

use crate::backends::condor::workers::Planner;
use crate::callbacks::monitor;
use crate::cli::config;
use crate::cli::config::Config;
use crate::cli::config::error::ConfigError;
use crate::http::ListenError;
use crate::leader as lease;
use crate::output::layout::OutputLayout;
pub(crate) use running::operator_name;
use running::{assemble, drain, supervise};
use startup::start_up;

/// Reason why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration of the Kubernetes client is missing or invalid.
    #[error(transparent)]
    Kubeconfig(#[from] kubernetes::NoKubeconfig),
    /// A request to the API server failed.
    #[error("cannot read the namespace kube-system, whose uid identifies the cluster: {0}")]
    Cluster(String),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The site's defaults are invalid.
    #[error("--site-defaults: {0}")]
    SiteDefaults(#[from] HtcOptsError),
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// The file with the keys of the jobs' tokens cannot be used.
    #[error(transparent)]
    CallbackKeys(keys::Unread),
    /// A part that runs for as long as the operator does has ended.
    #[error("the {0} ended unexpectedly (see the log above); the operator exits and must be restarted")]
    Failed(&'static str),
    /// A port cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another operator leads.
    #[error(transparent)]
    Lost(#[from] lease::LeadershipLost),
    /// A signal handler cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// Returns the value of `HTCOperator`: the cluster (by the uid of kube-system) and this operator's namespace and
/// name.
pub async fn operator_id(client: &Client, config: &Config) -> Result<String, StartError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = with_timeout("read the namespace", &"kube-system", api.get("kube-system")).await;
    let namespace = namespace.map_err(|error| StartError::Cluster(error.to_string()))?;
    let uid =
        namespace.metadata.uid.ok_or_else(|| StartError::Cluster("the namespace kube-system has no uid".to_owned()))?;
    Ok(format!("{uid}/{}/{}", config.kubernetes.operator_namespace, config.kubernetes.operator_name))
}

/// Returns the schedd that `config` names.
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
    metrics.confined(tools.is_confined());
    if config.condor.schedd.is_empty() {
        tracing::info!("no default schedd, HTCJobs need an HTCPool or the Kubernetes backend");
        health.schedd_seen();
    }
    Schedd::new(ScheddName::from(config.condor.schedd.as_str()), operator, tools, clock, users, health)
}

fn say_confinement(config: &Config) {
    match (config.condor.confinement, kernel_has_landlock()) {
        (Confinement::Off, _) => tracing::warn!(why = "--confinement=off", "HTCondor's tools not confined"),
        (Confinement::Auto | Confinement::Required, true) => {
            tracing::info!("HTCondor's tools confined by Landlock");
        }
        (Confinement::Auto | Confinement::Required, false) => {
            tracing::warn!(why = NO_LANDLOCK, "HTCondor's tools not confined");
        }
    }
    if let Some(why) = config::excluded_paths_message(&config.tools(Metrics::default())) {
        tracing::warn!(%why, "HTCondor's tools cannot read some files");
    }
}

/// Resolves when this process receives SIGTERM or SIGINT. From this call on neither ends the process by itself.
pub fn stop_signal() -> Result<impl Future<Output = ()>, StartError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Runs an operator until `stop` resolves. Several may run in one process: they share its log, its environment, and
/// the number of reads of output that may hang.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), StartError> {
    let mut stop = std::pin::pin!(stop);
    let (metrics, health) = (Metrics::default(), Health::default());
    config.validate()?;
    let site_defaults =
        HtcOpts::parse(&config.condor.site_defaults, &HtcOptsPolicy::of_the_site(Attributes::of_the_site()))?;
    say_confinement(&config);
    if let Some(why) = config.callbacks_in_clear() {
        tracing::warn!(%why, "callbacks not encrypted");
    }
    open_files::raise();
    let monitor = |address| monitor::listen(address, health.clone(), metrics.clone());
    let _monitor = config.monitoring.metrics_bind_address.map(monitor).transpose()?;
    let ready = tokio::select! {
        ready = start_up(&config, metrics, health) => ready?,
        () = &mut stop => return Ok(()),
    };
    let planner = Planner {
        rules: SpecRules {
            images: config.image_map()?,
            policy: config.policy(),
            metadata: config.pods.site().metadata,
            url_schemes: config.condor.url_schemes.clone(),
            secrets: config.callbacks.callback_url.as_ref().is_some_and(|url| url.starts_with("https://")),
            claims: config.claims()?,
        },
        layout: OutputLayout {
            data: config.data.data_dir.clone(),
            output_dir: config.output_dir(),
            output_limit: config.output_limit(),
            keep_free: config.data.min_free_space,
        },
        binds: config.binds(),
        image_cache: config.containers.image_cache.clone(),
        inputs_limit: config.condor.inputs_limit,
        site_defaults,
        node_faults: config.node_faults(),
        callback: ready.reporting.clone(),
    };
    let mut running = Box::pin(assemble(&config, planner, ready)).await?;
    supervise(&mut running, stop).await?;
    Box::pin(drain(running)).await;
    Ok(())
}
