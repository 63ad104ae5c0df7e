//! `HTCPool`s: what the operator has found out about each, and whether its schedd answers from here.

use futures::{StreamExt as _, stream};
use kube::Client;

use super::ground::{AT_ONCE, Ground, list, open};
use super::orphans::in_words;
use super::{Line, add, ask_schedd, managed};
use crate::api::{ConditionStatus, Guarded, HTCPool, Identity, ObjectName};
use crate::config::Config;
use crate::credentials::Credentials;

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
    let mut orphans = in_words(client, &schedd, &credentials, config.kubernetes.watch_namespace.as_deref()).await;
    if let Some(why) = ground.unknown_in(pool) {
        orphans = add(orphans, why);
    }
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
