//! The endpoint of a pool: addresses and credentials.

use std::sync::Arc;

use htc_api::{ExternalPool, Isolation, ObjectName};
use htc_machine::ScheddName;
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use htcondor::{KnownUsers, Schedd};
use kube::Client;

use super::managed::names::PoolNames;
use crate::backends::condor::credentials::signing::Signer;
use crate::backends::condor::credentials::{Credentials, CredentialsConfig, OperatorCredentials};

/// Addresses of a pool, and its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEndpoint {
    /// Host and port of its collector.
    pub collector: String,
    /// Name of its schedd.
    pub schedd: String,
    /// Secret with the operator's credentials for this pool.
    pub secret: ObjectName,
    /// Signs the tokens for the HTCJobs of each namespace; only in a managed pool.
    pub signer: Option<Signer>,
}

impl PoolEndpoint {
    /// Returns the endpoint of an external pool. `namespace`: that of its `HTCPool`.
    #[must_use]
    pub fn of_external(namespace: &str, external: &ExternalPool) -> Self {
        let secret = ObjectName { namespace: namespace.to_owned(), name: external.credentials_secret_name.clone() };
        Self { collector: external.collector.clone(), schedd: external.schedd.clone(), secret, signer: None }
    }

    /// Returns the endpoint of a managed pool with this collector.
    #[must_use]
    pub fn of_managed(names: &PoolNames, collector: String, isolation: Isolation) -> Self {
        let secret = ObjectName { namespace: names.pool.namespace.clone(), name: names.operator_token() };
        Self { collector, schedd: names.schedd(), secret, signer: Some(names.signer(isolation)) }
    }

    /// Creates the schedd's client and its credentials, without a query.
    ///
    /// `own`: the schedd of the default pool. `users`: the HTCondor users that jobs were submitted as in this pool.
    #[must_use]
    pub fn open(
        &self,
        own: &Schedd,
        users: KnownUsers,
        setup: CredentialsConfig,
        client: Client,
        metrics: &Metrics,
    ) -> (Arc<Schedd>, Arc<Credentials>) {
        let tools = own.tools.for_pool(&self.collector, metrics.clone());
        let name = ScheddName::from(self.schedd.as_str());
        // The readiness of the operator does not depend on the pools of HTCPools.
        let schedd = Schedd::new(name, own.operator.clone(), tools, own.clock, users, Health::default());
        let schedd = Arc::new(schedd.with_secret(self.secret.clone()));
        let setup = CredentialsConfig {
            own: OperatorCredentials::Secret(self.secret.clone()),
            signer: self.signer.clone(),
            ..setup
        };
        let credentials = Credentials::new(setup, Arc::clone(&schedd), Some(client), metrics.clone());
        (schedd, credentials)
    }
}
