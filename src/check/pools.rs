//! `HTCPool`s: what the operator has found out about each, and whether its schedd answers from here.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::orphans::in_words;
use super::{Ground, Line, ask_schedd, managed};
use crate::api::{ConditionStatus, Guarded, HTCPool, Identity, OPERATOR, ObjectName};
use crate::condor::{KnownUsers, Schedd};
use crate::config::Config;
use crate::credentials::Credentials;
use crate::kubernetes::{self, ApiError};
use crate::metrics::Metrics;
use crate::operator::operator_name;
use crate::pools::Reach;

/// Most schedds that are asked at once.
pub(super) const AT_ONCE: usize = 8;

/// What is known of each `HTCPool` of this operator; nothing if there are none.
pub(super) async fn lines(config: &Config, client: &Client, ground: &Ground) -> Vec<Line> {
    let ours = match list(config, client).await {
        Ok(ours) => ours,
        Err(error) if error.code() == Some(403) => {
            return vec![Line::new("pools", Ok(format!("{error}; HTCJobs that name no pool are not affected")))];
        }
        Err(error) => return vec![Line::new("pools", Err(error.to_string()))],
    };
    if ours.is_empty() {
        return Vec::new();
    }
    let troubles: Vec<String> = ours.iter().filter_map(trouble).collect();
    let found = if troubles.is_empty() {
        Ok(format!("the operator has found all HTCPools ready ({})", ours.len()))
    } else {
        Err(troubles.join("; "))
    };
    let readable = ours.iter().filter_map(|pool| Some((ObjectName::of(pool), pool.0.as_ref().ok()?)));
    let asked = readable.map(|(name, pool)| async move {
        let mut lines = Vec::new();
        if pool.spec.managed.is_some() {
            lines.extend(managed::lines(client, &name, pool).await);
        }
        lines.extend(ask(config, client, ground, &name, pool).await);
        lines
    });
    let asked: Vec<Vec<Line>> = stream::iter(asked.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await;
    [vec![Line::new("pools", found)], asked.concat()].concat()
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
    pools.retain(|pool| pool.annotations().get(OPERATOR).is_none_or(|own| *own == operator));
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
        let (names, collector) = managed::collector(client, name, pool).await?;
        Reach::of_managed(&names, collector)
    };
    let users = ground.ledger.as_ref().ok().and_then(|seen| seen.as_ref()?.pools.get(name).cloned());
    let (users, setup) = (KnownUsers::new(users.unwrap_or_default()), config.credentials_setup());
    let opened = reach.open(&ground.schedd, users, setup, client.clone(), &Metrics::default());
    match opened.1.look_for_own().await {
        Some(Err(why)) => Err(why),
        Some(Ok(_)) | None => Ok(opened),
    }
}

/// Asks its schedd who it is and which jobs it has; that of a managed pool also in the name of a namespace.
async fn ask(config: &Config, client: &Client, ground: &Ground, name: &ObjectName, pool: &HTCPool) -> Vec<Line> {
    let what = format!("pool {name}");
    let (schedd, credentials) = match open(config, client, ground, name, pool).await {
        Ok(opened) => opened,
        Err(why) => return vec![Line::new(what, Err(why))],
    };
    let answer = ask_schedd(&schedd).await;
    if answer.is_err() {
        return vec![Line::new(what, answer)];
    }
    let mut lines = vec![Line::new(what, answer)];
    if pool.spec.managed.is_some() {
        lines.push(Line::new(format!("namespaces in pool {name}"), as_namespace(&credentials, &name.namespace).await));
    }
    let orphans = in_words(client, &schedd, &credentials, config.kubernetes.watch_namespace.as_deref()).await;
    lines.push(Line::new(format!("orphans in pool {name}"), orphans));
    lines
}

/// Whether the schedd takes the tokens that the operator makes for the `HTCJob`s of a namespace.
async fn as_namespace(credentials: &Credentials, namespace: &str) -> Result<String, String> {
    let acting = credentials.look_for(&Identity::Namespace(namespace.to_owned())).await?;
    let user = acting.identity().await.map_err(|unknown| unknown.message)?;
    Ok(format!("the schedd takes the operator's token for namespace {namespace}, which is {user} there"))
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
