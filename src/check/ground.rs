//! What it takes to ask pools as the operator does.

use std::sync::Arc;

use kube::Client;
use kube::api::{Api, ListParams};

use super::managed;
use crate::api::{Guarded, HTCPool, ObjectName, is_for};
use crate::clock::Clock;
use crate::condor::{KnownUsers, Schedd};
use crate::config::Config;
use crate::credentials::Credentials;
use crate::health::Health;
use crate::kubernetes::{self, ApiError};
use crate::ledger::{Ledger, LedgerError, LedgerSnapshot, Users};
use crate::metrics::Metrics;
use crate::operator::{self, operator_name};
use crate::pools::Reach;

/// Most schedds that are asked at once.
pub(super) const AT_ONCE: usize = 8;

/// What it takes to ask a pool as the operator does.
pub(super) struct Ground {
    pub(super) client: Result<Client, String>,
    /// The value of `HTCOperator`.
    pub(super) operator: Result<String, String>,
    pub(super) ledger: Result<Option<LedgerSnapshot>, LedgerError>,
    /// Those that the operator's flags name.
    pub(super) schedd: Arc<Schedd>,
    pub(super) credentials: Arc<Credentials>,
    /// Why jobs in some names are not seen there.
    pub(super) unknown: Option<String>,
}

impl Ground {
    pub(super) async fn of(config: &Config) -> Self {
        let client = kubernetes::client().await.map_err(|error| error.to_string());
        let operator = match &client {
            Ok(client) => operator::operator_id(client, config).await.map_err(|error| error.to_string()),
            Err(message) => Err(message.clone()),
        };
        let ledger = Ledger::snapshot(&config.ledger()).and_then(|seen| of_operator(seen, operator.as_deref().ok()));
        let (known, unknown) = users(&ledger);
        let (name, users) = (operator.clone().unwrap_or_default(), KnownUsers::new(known));
        let schedd = operator::schedd(config, name, Clock::default(), users, &Metrics::default(), Health::default());
        let schedd = Arc::new(schedd);
        let (setup, asking) = (config.credentials_setup(), client.clone().ok());
        let credentials = Credentials::new(setup, Arc::clone(&schedd), asking, Metrics::default());
        Self { client, operator, ledger, schedd, credentials, unknown }
    }

    /// Why jobs in some names are not seen in a pool. A managed pool says itself in whose names there are some.
    pub(super) fn unknown_in(&self, pool: &HTCPool) -> Option<&str> {
        self.unknown.as_deref().filter(|_| pool.spec.managed.is_none())
    }
}

/// A ledger of another operator says nothing about the jobs of this one.
fn of_operator(seen: Option<LedgerSnapshot>, ours: Option<&str>) -> Result<Option<LedgerSnapshot>, LedgerError> {
    match (seen.as_ref().and_then(|seen| seen.operator.as_ref()), ours) {
        (Some(stored), Some(ours)) if stored != ours => {
            Err(LedgerError::AnotherOperator { stored: stored.clone(), ours: ours.to_owned() })
        }
        (_, _) => Ok(seen),
    }
}

/// The names under which there may be jobs beside the operator's own, or why they are not known.
fn users(ledger: &Result<Option<LedgerSnapshot>, LedgerError>) -> (Users, Option<String>) {
    let only = |why: &str| Some(format!("only the operator's own jobs were checked: {why}"));
    match ledger {
        Ok(Some(seen)) => (seen.users.clone(), None),
        Ok(None) => (Users::new(), only("no ledger knows other users")),
        Err(error) => (Users::new(), only(&error.to_string())),
    }
}

/// The `HTCPool`s of this operator; none where there are no such objects.
pub(super) async fn list(config: &Config, client: &Client) -> Result<Vec<Guarded<HTCPool>>, ApiError> {
    let api: Api<Guarded<HTCPool>> = kubernetes::watched(client, config.kubernetes.watch_namespace.as_deref());
    let mut pools = match kubernetes::limited("list", &"HTCPools", api.list(&ListParams::default())).await {
        Ok(list) => list.items,
        // Their CRD is not installed.
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let operator = operator_name(config);
    pools.retain(|pool| is_for(&operator, pool));
    Ok(pools)
}

/// Its schedd and the operator's credentials for it, as the operator itself reaches them; or why that is not to be had.
pub(super) async fn open(
    config: &Config,
    client: &Client,
    ground: &Ground,
    name: &ObjectName,
    pool: &HTCPool,
) -> Result<(Arc<Schedd>, Arc<Credentials>), String> {
    let reach = if let Some(external) = &pool.spec.external {
        Reach::of_external(&name.namespace, external)
    } else {
        let isolation = pool.spec.managed.as_ref().map(|spec| spec.workers.isolation).unwrap_or_default();
        let (names, collector) = managed::collector(client, name, pool).await?;
        Reach::of_managed(&names, collector, isolation)
    };
    let users = ground.ledger.as_ref().ok().and_then(|seen| seen.as_ref()?.pools.get(name).cloned());
    let (users, setup) = (KnownUsers::new(users.unwrap_or_default()), config.credentials_setup());
    let opened = reach.open(&ground.schedd, users, setup, client.clone(), &Metrics::default());
    match opened.1.look_for_own().await {
        Some(Err(why)) => Err(why),
        Some(Ok(_)) | None => Ok(opened),
    }
}
