//! Checks `HTCPool`s: reports the operator's findings about each, and whether its schedd answers from here.

use futures::{StreamExt as _, stream};
use htc_api::{ConditionStatus, Guarded, HTCPool, Identity, ObjectName};
use kube::Client;

use super::error::CheckError;
use super::orphans::in_words;
use super::{CheckResult, add, ask_schedd, managed};
use crate::backends::condor::credentials::Credentials;
use crate::cli::check::environment::{AT_ONCE, CheckEnvironment, list, open};
use crate::cli::config::Config;

/// Returns the lines about each `HTCPool` of this operator; nothing if there are none.
pub(super) async fn lines(config: &Config, client: &Client, ground: &CheckEnvironment) -> Vec<CheckResult> {
    let ours = match list(config, client).await {
        Ok(ours) => ours,
        Err(error) if error.code() == Some(403) => {
            return vec![CheckResult::new("pools", Ok(format!("{error}; HTCJobs that name no pool are not affected")))];
        }
        Err(error) => return vec![CheckResult::new("pools", Err(error.into()))],
    };
    if ours.is_empty() {
        return Vec::new();
    }
    let troubles: Vec<String> = ours.iter().filter_map(trouble).collect();
    let found = if troubles.is_empty() {
        Ok(format!("the operator has found all HTCPools ready ({})", ours.len()))
    } else {
        Err(CheckError::PoolsNotReady(troubles))
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
    let asked: Vec<Vec<CheckResult>> = stream::iter(asked.collect::<Vec<_>>()).buffered(AT_ONCE).collect().await;
    std::iter::once(CheckResult::new("pools", found)).chain(asked.into_iter().flatten()).collect()
}

/// Asks the pool's schedd for its identity and its jobs; in a managed pool also as the user of a namespace.
async fn ask(
    config: &Config,
    client: &Client,
    ground: &CheckEnvironment,
    name: &ObjectName,
    pool: &HTCPool,
) -> Vec<CheckResult> {
    let what = format!("pool {name}");
    let (schedd, credentials) = match open(config, client, ground, name, pool).await {
        Ok(opened) => opened,
        Err(why) => return vec![CheckResult::new(what, Err(why))],
    };
    let answer = ask_schedd(&schedd).await;
    if answer.is_err() {
        return vec![CheckResult::new(what, answer)];
    }
    let mut lines = vec![CheckResult::new(what, answer)];
    if pool.spec.managed.is_some() {
        lines.push(CheckResult::new(
            format!("namespaces in pool {name}"),
            as_namespace(&credentials, &name.namespace).await,
        ));
    }
    let mut orphans = in_words(client, &schedd, &credentials, config.kubernetes.watch_namespace.as_deref()).await;
    if let Some(why) = ground.unknown_in(pool) {
        orphans = add(orphans, why);
    }
    lines.push(CheckResult::new(format!("orphans in pool {name}"), orphans));
    lines
}

/// Checks that the schedd accepts the tokens that the operator creates for the `HTCJob`s of a namespace.
async fn as_namespace(credentials: &Credentials, namespace: &str) -> Result<String, CheckError> {
    let acting = credentials.refresh_and_wait(&Identity::Namespace(namespace.to_owned())).await?;
    let user = acting.ask_user().await?;
    Ok(format!("the schedd takes the operator's token for namespace {namespace}, which is {user} there"))
}

/// Returns why an `HTCPool` is not ready.
fn trouble(pool: &Guarded<HTCPool>) -> Option<String> {
    let why = match &pool.0 {
        Err(error) => error.error.clone(),
        Ok(pool) => match pool.ready_condition() {
            None => "no operator has looked at it yet".to_owned(),
            Some(ready) if ready.status == ConditionStatus::True => return None,
            Some(ready) => format!("{}: {}", ready.reason, ready.message),
        },
    };
    Some(format!("HTCPool {}: {why}", ObjectName::of(pool)))
}
