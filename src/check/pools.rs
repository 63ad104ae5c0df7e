//! `HTCPool`s: what the operator has found out about each, and whether its schedd answers from here.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::{Line, ask_schedd, orphans};
use crate::api::{ConditionStatus, ExternalPool, Guarded, HTCPool, OPERATOR, ObjectName};
use crate::condor::{KnownUsers, Schedd};
use crate::config::Config;
use crate::credentials::{Credentials, Own, Setup};
use crate::health::Health;
use crate::kubernetes;
use crate::ledger::{LedgerError, LedgerSnapshot};
use crate::machine::ScheddName;
use crate::metrics::Metrics;
use crate::operator::operator_name;

/// Most schedds that are asked at once.
const AT_ONCE: usize = 8;

/// What is known of each `HTCPool` of this operator; nothing if there are none. `own`: the schedd of the operator's flags.
pub(super) async fn lines(
    config: &Config,
    client: &Client,
    own: &Schedd,
    ledger: &Result<Option<LedgerSnapshot>, LedgerError>,
) -> Vec<Line> {
    let namespace = config.kubernetes.watch_namespace.as_deref();
    let api: Api<Guarded<HTCPool>> = kubernetes::watched(client, namespace);
    let listed = kubernetes::limited("list", &"HTCPools", api.list(&ListParams::default())).await;
    let pools = match listed {
        Ok(list) => list.items,
        // Their CRD is not installed.
        Err(error) if error.code() == Some(404) => return Vec::new(),
        Err(error) if error.code() == Some(403) => {
            return vec![Line::new("pools", Ok(format!("{error}; HTCJobs that name no pool are not affected")))];
        }
        Err(error) => return vec![Line::new("pools", Err(error.to_string()))],
    };
    let operator = operator_name(config);
    let is_ours = |pool: &&Guarded<HTCPool>| pool.annotations().get(OPERATOR).is_none_or(|own| *own == operator);
    let ours: Vec<_> = pools.iter().filter(is_ours).collect();
    if ours.is_empty() {
        return Vec::new();
    }
    let troubles: Vec<String> = ours.iter().filter_map(|pool| trouble(pool)).collect();
    let found = if troubles.is_empty() {
        Ok(format!("the operator has found all HTCPools ready ({})", ours.len()))
    } else {
        Err(troubles.join("; "))
    };
    let external =
        ours.iter().filter_map(|pool| Some((ObjectName::of(*pool), pool.0.as_ref().ok()?.spec.external.as_ref()?)));
    let asked = external.map(|(name, external)| async move {
        let users = ledger.as_ref().ok().and_then(|seen| seen.as_ref()?.pools.get(&name).cloned());
        let schedd = schedd(own, &name, external, KnownUsers::new(users.unwrap_or_default()));
        ask(config, client, schedd, &name, external).await
    });
    let asked: Vec<Vec<Line>> = stream::iter(asked.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await;
    [vec![Line::new("pools", found)], asked.concat()].concat()
}

fn schedd(own: &Schedd, name: &ObjectName, external: &ExternalPool, users: KnownUsers) -> Arc<Schedd> {
    let tools = own.tools.for_pool(&external.collector, Metrics::default());
    let schedd = ScheddName::from(external.schedd.as_str());
    let schedd = Schedd::new(schedd, own.operator.clone(), tools, own.clock, users, Health::default());
    Arc::new(schedd.with_secret(secret(name, external)))
}

fn secret(name: &ObjectName, external: &ExternalPool) -> ObjectName {
    ObjectName { namespace: name.namespace.clone(), name: external.credentials_secret_name.clone() }
}

/// Asks its schedd, with the credentials of its Secret, who it is and which jobs it has.
async fn ask(
    config: &Config,
    client: &Client,
    schedd: Arc<Schedd>,
    name: &ObjectName,
    external: &ExternalPool,
) -> Vec<Line> {
    let what = format!("pool {name}");
    let setup = Setup { own: Own::Secret(secret(name, external)), ..config.credentials_setup() };
    let credentials = Credentials::new(setup, Arc::clone(&schedd), Some(client.clone()), Metrics::default());
    if let Some(Err(why)) = credentials.look_for_own().await {
        return vec![Line::new(what, Err(why))];
    }
    let answer = ask_schedd(&schedd).await;
    if answer.is_err() {
        return vec![Line::new(what, answer)];
    }
    let orphans = orphans(client, &schedd, config.kubernetes.watch_namespace.as_deref()).await;
    vec![Line::new(what, answer), Line::new(format!("orphans in pool {name}"), orphans)]
}

/// Why an `HTCPool` is not ready.
fn trouble(pool: &Guarded<HTCPool>) -> Option<String> {
    let why = match &pool.0 {
        Err(error) => error.error.clone(),
        Ok(pool) => match pool.ready() {
            None => "no operator has looked at it yet".to_owned(),
            Some(ready) if ready.status == ConditionStatus::True => return None,
            Some(ready) => format!("{}: {}", ready.reason, ready.message),
        },
    };
    Some(format!("HTCPool {}: {why}", ObjectName::of(pool)))
}
