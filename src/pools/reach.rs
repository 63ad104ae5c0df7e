//! Where a pool is, and how it is spoken to.

use std::sync::Arc;

use kube::Client;

use super::managed::names::Names;
use crate::api::{ExternalPool, Isolation, ObjectName};
use crate::condor::{KnownUsers, Schedd};
use crate::credentials::signing::Signer;
use crate::credentials::{Credentials, Own, Setup};
use crate::health::Health;
use crate::machine::ScheddName;
use crate::metrics::Metrics;

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Host and port of its collector.
    pub collector: String,
    /// Name of its schedd.
    pub schedd: String,
    /// The Secret with the operator's credentials for it.
    pub secret: ObjectName,
    /// Who makes tokens for the HTCJobs of each namespace, in a managed pool.
    pub signer: Option<Signer>,
}

impl Reach {
    /// That of an external pool, whose `HTCPool` is in this namespace.
    #[must_use]
    pub fn of_external(namespace: &str, external: &ExternalPool) -> Self {
        let secret = ObjectName { namespace: namespace.to_owned(), name: external.credentials_secret_name.clone() };
        Self { collector: external.collector.clone(), schedd: external.schedd.clone(), secret, signer: None }
    }

    /// That of a managed pool with this collector.
    #[must_use]
    pub fn of_managed(names: &Names, collector: String, isolation: Isolation) -> Self {
        let secret = ObjectName { namespace: names.pool.namespace.clone(), name: names.operator_token() };
        Self { collector, schedd: names.schedd(), secret, signer: Some(names.signer(isolation)) }
    }

    /// Its schedd and the credentials for it; nothing is asked yet. `own`: the schedd of the operator's flags. `users`: under which names
    /// jobs were submitted there.
    #[must_use]
    pub fn open(
        &self,
        own: &Schedd,
        users: KnownUsers,
        setup: Setup,
        client: Client,
        metrics: &Metrics,
    ) -> (Arc<Schedd>, Arc<Credentials>) {
        let tools = own.tools.for_pool(&self.collector, metrics.clone());
        let name = ScheddName::from(self.schedd.as_str());
        // Whether the operator is ready is not for one of its pools to say.
        let schedd = Schedd::new(name, own.operator.clone(), tools, own.clock, users, Health::default());
        let schedd = Arc::new(schedd.with_secret(self.secret.clone()));
        let setup = Setup { own: Own::Secret(self.secret.clone()), signer: self.signer.clone(), ..setup };
        let credentials = Credentials::new(setup, Arc::clone(&schedd), Some(client), metrics.clone());
        (schedd, credentials)
    }
}
