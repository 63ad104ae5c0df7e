//! Checks managed pools: whether the operator may create their objects, and has the key that signs their tokens.

use htc_api::{HTCPool, ObjectName};
use kube::Client;

use super::CheckResult;
use super::access::denied;
use super::error::CheckError;
use crate::htcpool::managed::error::ApplyError;
use crate::htcpool::managed::existing as found;
use crate::htcpool::managed::names::{BadName, PoolNames, Role};
use crate::htcpool::managed::rotation::{PublishedKey, RequestedKeys};

/// Rights that are needed in their namespace: group, resource, verb. `deploy/namespace-pools` has the same.
pub const RIGHTS: [(&str, &str, &str); 27] = [
    ("", "configmaps", "get"),
    ("", "configmaps", "create"),
    ("", "configmaps", "patch"),
    ("", "services", "get"),
    ("", "services", "create"),
    ("", "services", "patch"),
    ("", "persistentvolumeclaims", "get"),
    ("", "persistentvolumeclaims", "create"),
    ("", "persistentvolumeclaims", "patch"),
    ("", "secrets", "get"),
    ("", "secrets", "create"),
    ("", "secrets", "patch"),
    ("", "secrets", "delete"),
    ("apps", "deployments", "get"),
    ("apps", "deployments", "create"),
    ("apps", "deployments", "patch"),
    ("apps", "statefulsets", "get"),
    ("apps", "statefulsets", "create"),
    ("apps", "statefulsets", "patch"),
    ("networking.k8s.io", "networkpolicies", "get"),
    ("networking.k8s.io", "networkpolicies", "create"),
    ("networking.k8s.io", "networkpolicies", "patch"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "create"),
    ("", "pods", "patch"),
    ("", "pods", "delete"),
];

/// Returns the lines about one pool that need no schedd.
pub(super) async fn lines(client: &Client, name: &ObjectName, pool: &HTCPool) -> [CheckResult; 2] {
    let (rights, key) = tokio::join!(rights(client, &name.namespace), signing_key(client, name, pool));
    [
        CheckResult::new(format!("rights for pool {name}"), rights),
        CheckResult::new(format!("signing key of pool {name}"), key),
    ]
}

async fn rights(client: &Client, namespace: &str) -> Result<String, CheckError> {
    match denied(client, Some(namespace), &RIGHTS).await? {
        None => Ok(format!("the operator may make in namespace {namespace} what the pool needs")),
        Some(missing) => Err(CheckError::NotPermitted {
            missing,
            remedy: format!("kubectl apply --namespace {namespace} -k deploy/namespace-pools"),
        }),
    }
}

async fn signing_key(client: &Client, name: &ObjectName, pool: &HTCPool) -> Result<String, CheckError> {
    let names = names(name, pool)?;
    let known = PublishedKey::of(pool.status.as_ref());
    let wish = pool.spec.managed.as_ref().map_or(RequestedKeys { generation: 1, oldest: 1 }, RequestedKeys::of);
    let generation = known.as_ref().map_or(wish.generation, |known| known.generation);
    let secret = names.signing_key(generation);
    match (found::signing_key(client, &names, generation).await?, known) {
        (Some(key), Some(known)) if key.fingerprint() != known.fingerprint => {
            Err(ApplyError::KeyChanged(secret).into())
        }
        (Some(_), _) => Ok(format!("it is in the Secret {}/{secret}", name.namespace)),
        (None, Some(_)) => Err(ApplyError::KeyGone(secret).into()),
        (None, None) => Err(not_made("Secret", name, secret)),
    }
}

fn not_made(kind: &'static str, pool: &ObjectName, name: String) -> CheckError {
    CheckError::NotMade { kind, name: ObjectName { namespace: pool.namespace.clone(), name } }
}

fn names(name: &ObjectName, pool: &HTCPool) -> Result<PoolNames, BadName> {
    PoolNames::new(name, pool.metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the names of the pool's objects, and the address of its collector.
pub(super) async fn collector(
    client: &Client,
    name: &ObjectName,
    pool: &HTCPool,
) -> Result<(PoolNames, String), CheckError> {
    let names = names(name, pool)?;
    let collector = found::collector(client, &names).await?;
    let collector = collector.ok_or_else(|| not_made("Service", name, names.of(Role::CentralManager)))?;
    Ok((names, collector))
}
