//! Clients and state to query pools as the operator does.

use std::sync::Arc;

use htc_api::{Guarded, HTCPool, ObjectName, is_for_operator};
use htc_ledger::{Ledger, LedgerError, LedgerSnapshot, Users};
use htc_support::clock::Clock;
use htc_support::health::Health;
use htc_support::kubernetes;
use htc_support::kubernetes::ApiError;
use htc_support::metrics::Metrics;
use htcondor::{KnownUsers, Schedd};
use kube::Client;
use kube::api::{Api, ListParams};

use super::error::CheckError;
use super::managed;
use crate::backends::condor::credentials::Credentials;
use crate::cli::config::Config;
use crate::cli::run as operator;
use crate::cli::run::{StartError, operator_name};
use crate::htcpool::PoolEndpoint;

/// Maximum number of schedds queried at once.
pub(super) const AT_ONCE: usize = 8;

/// Clients and state to query a pool as the operator does.
pub(super) struct CheckEnvironment {
    pub(super) client: Result<Client, Arc<StartError>>,
    /// Value of `HTCOperator`.
    pub(super) operator: Result<String, Arc<StartError>>,
    pub(super) ledger: Result<Option<LedgerSnapshot>, Arc<StartError>>,
    /// Schedd of the operator's flags.
    pub(super) schedd: Arc<Schedd>,
    pub(super) credentials: Arc<Credentials>,
    /// Why jobs of some HTCondor users are not seen there.
    pub(super) unknown: Option<String>,
}

impl CheckEnvironment {
    pub(super) async fn of(config: &Config) -> Self {
        let client = kubernetes::client().await.map_err(|error| Arc::new(error.into()));
        let operator = match &client {
            Ok(client) => operator::operator_id(client, config).await.map_err(Arc::new),
            Err(error) => Err(Arc::clone(error)),
        };
        let ledger = Ledger::snapshot(&config.ledger()).and_then(|seen| of_operator(seen, operator.as_deref().ok()));
        let ledger = ledger.map_err(|error| Arc::new(error.into()));
        let (known, unknown) = users(&ledger);
        let (name, users) = (operator.clone().unwrap_or_default(), KnownUsers::new(known));
        let schedd = operator::schedd(config, name, Clock::default(), users, &Metrics::default(), Health::default());
        let schedd = Arc::new(schedd);
        let (setup, asking) = (config.credentials_config(), client.clone().ok());
        let credentials = Credentials::new(setup, Arc::clone(&schedd), asking, Metrics::default());
        Self { client, operator, ledger, schedd, credentials, unknown }
    }

    /// Returns why jobs of some HTCondor users are not seen in a pool. Managed pools report the users with jobs
    /// themselves.
    pub(super) fn unknown_in(&self, pool: &HTCPool) -> Option<&str> {
        self.unknown.as_deref().filter(|_| pool.spec.managed.is_none())
    }
}

/// Refuses the ledger of another operator: it does not know this operator's jobs.
fn of_operator(seen: Option<LedgerSnapshot>, ours: Option<&str>) -> Result<Option<LedgerSnapshot>, LedgerError> {
    match (seen.as_ref().and_then(|seen| seen.operator.as_ref()), ours) {
        (Some(stored), Some(ours)) if stored != ours => {
            Err(LedgerError::AnotherOperator { stored: stored.clone(), ours: ours.to_owned() })
        }
        (_, _) => Ok(seen),
    }
}

/// Returns the HTCondor users that may have jobs beside the operator itself, and why they are not known.
fn users(ledger: &Result<Option<LedgerSnapshot>, Arc<StartError>>) -> (Users, Option<String>) {
    let only = |why: &str| Some(format!("only the operator's own jobs were checked: {why}"));
    match ledger {
        Ok(Some(seen)) => (seen.users.clone(), None),
        Ok(None) => (Users::new(), only("no ledger knows other users")),
        Err(error) => (Users::new(), only(&error.to_string())),
    }
}

/// Returns the `HTCPool`s of this operator; none if the kind does not exist.
pub(super) async fn list(config: &Config, client: &Client) -> Result<Vec<Guarded<HTCPool>>, ApiError> {
    let api: Api<Guarded<HTCPool>> = kubernetes::scoped_api(client, config.kubernetes.watch_namespace.as_deref());
    let mut pools = match kubernetes::with_timeout("list", &"HTCPools", api.list(&ListParams::default())).await {
        Ok(list) => list.items,
        // Their CRD is not installed.
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let operator = operator_name(config);
    pools.retain(|pool| is_for_operator(&operator, pool));
    Ok(pools)
}

/// Returns the pool's schedd and the operator's credentials for it, as the operator itself connects. The error says
/// why that is not possible.
pub(super) async fn open(
    config: &Config,
    client: &Client,
    ground: &CheckEnvironment,
    name: &ObjectName,
    pool: &HTCPool,
) -> Result<(Arc<Schedd>, Arc<Credentials>), CheckError> {
    let reach = if let Some(external) = &pool.spec.external {
        PoolEndpoint::of_external(&name.namespace, external)
    } else {
        let isolation = pool.spec.managed.as_ref().map(|spec| spec.workers.isolation).unwrap_or_default();
        let (names, collector) = managed::collector(client, name, pool).await?;
        PoolEndpoint::of_managed(&names, collector, isolation)
    };
    let users = ground.ledger.as_ref().ok().and_then(|seen| seen.as_ref()?.pools.get(name).cloned());
    let (users, setup) = (KnownUsers::new(users.unwrap_or_default()), config.credentials_config());
    let opened = reach.open(&ground.schedd, users, setup, client.clone(), &Metrics::default());
    opened.1.refresh_operator().await.transpose()?;
    Ok(opened)
}
