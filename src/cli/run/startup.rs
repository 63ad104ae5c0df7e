//! Start-up: waits for everything that an operator needs before it may act.

use std::sync::Arc;
use std::time::Duration;

use htc_api::ObjectName;
use htc_ledger::{Ledger, LedgerError};
use htc_submit::job_token::KeyRing;
use htc_support::clock::Clock;
use htc_support::fence::Fence;
use htc_support::health::Health;
use htc_support::kubernetes;
use htc_support::metrics::Metrics;
use htc_support::retry::Backoff;
use kube::Client;

use super::{StartError, keys, operator_id};
use crate::backends::condor::workers::CallbackConfig;
use crate::callbacks::Receiver;
use crate::cli::config::Config;
use crate::http::ListenError;
use crate::http::port::Port;
use crate::http::tls::Certificate;
use crate::leader::{Candidate, Leader};

/// An operator that may act: it holds the ledger's file and the Lease.
pub(super) struct ReadyOperator {
    /// Writes only while the fence is open.
    pub(super) client: Client,
    /// Keys of the jobs' tokens.
    pub(super) keys: Option<keys::KeyFollower>,
    /// How jobs report, if they do.
    pub(super) reporting: Option<Arc<CallbackConfig>>,
    /// Receives their reports.
    pub(super) receiver: Option<(Receiver, Port)>,
    pub(super) operator: String,
    pub(super) ledger: Ledger,
    pub(super) fence: Fence,
    pub(super) leader: Leader,
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
}

/// Waits for the ledger's file, the API server and the Lease, in this order.
pub(super) async fn start_up(config: &Config, metrics: Metrics, health: Health) -> Result<ReadyOperator, StartError> {
    let clock = Clock::default();
    let mut ledger = open_ledger(config, &metrics, &health).await?;
    let client = kubernetes::client().await?;
    let operator = who_are_we(&client, config).await?;
    ledger.belong_to(&operator).await?;
    // Another version may have other limits of its own.
    ledger.limit_output(format!("{} {}", env!("CARGO_PKG_VERSION"), config.output.output_limit)).await?;
    let keys = if config.callbacks.callback_url.is_some() || config.callbacks.callback_listen.is_some() {
        Some(keys::KeyFollower::begin(&client, config).await?)
    } else {
        None
    };
    let receiver = listen(config, keys.as_ref().map(|keys| &keys.ring), &metrics)?;
    let reporting = config.callbacks.callback_url.clone().zip(keys.as_ref()).map(|(url, keys)| {
        Arc::new(CallbackConfig { url, source: config.callbacks.callback_source.clone(), keys: keys.ring.clone() })
    });
    let fence = Fence::new(clock);
    metrics.set_fence(fence.clone());
    let name = ObjectName {
        namespace: config.kubernetes.operator_namespace.clone(),
        name: config.kubernetes.operator_name.clone(),
    };
    let candidate =
        Candidate::new(client.clone(), name, config.identity(), config.lease_times(), clock, health.clone());
    let leader = candidate.lead(&mut ledger, &fence).await?;
    let client = fence.client(&client);
    Ok(ReadyOperator { client, keys, reporting, receiver, operator, ledger, fence, leader, clock, metrics, health })
}

/// Starts the receiver, which refuses all events for now.
fn listen(config: &Config, keys: Option<&KeyRing>, metrics: &Metrics) -> Result<Option<(Receiver, Port)>, StartError> {
    let Some((address, keys)) = config.callbacks.callback_listen.zip(keys) else { return Ok(None) };
    let certificate = match (&config.callbacks.callback_tls_cert, &config.callbacks.callback_tls_key) {
        (Some(chain), Some(key)) => Some(Certificate::read(chain, key).map_err(ListenError::from)?),
        (_, _) => None,
    };
    let receiver = Receiver::new(keys.clone(), metrics.clone());
    let tls = certificate.is_some();
    let port = receiver.listen(address, certificate)?;
    tracing::info!(address = %port.address, tls, "callback receiver listening");
    Ok(Some((receiver, port)))
}

/// Opens the ledger as soon as no other process holds it. If its volume hangs, the operator can still be stopped.
async fn open_ledger(config: &Config, metrics: &Metrics, health: &Health) -> Result<Ledger, StartError> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
    let mut told = false;
    loop {
        let opening = {
            let (path, metrics, health) = (config.ledger(), metrics.clone(), health.clone());
            tokio::task::spawn_blocking(move || Ledger::open(&path, &metrics, &health))
        };
        match opening.await.unwrap_or(Err(LedgerError::Stopped)) {
            Err(error @ LedgerError::Locked { .. }) if !told => {
                health.standing_by();
                tracing::info!(reason = %error, "standing by");
                told = true;
            }
            Err(LedgerError::Locked { .. }) => {}
            opened => return Ok(opened?),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Asks for the operator's id until the API server answers.
async fn who_are_we(client: &Client, config: &Config) -> Result<String, StartError> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    loop {
        match operator_id(client, config).await {
            Ok(operator) => return Ok(operator),
            Err(error) => tracing::warn!(%error, "waiting for the API server"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}
