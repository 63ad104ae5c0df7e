//! Managed pools: whether the operator may make what they need, and has the key that their tokens are made with.

use kube::Client;

use super::Line;
use super::access::denied;
use crate::api::{HTCPool, ObjectName};
use crate::pools::managed::error::ApplyError;
use crate::pools::managed::found;
use crate::pools::managed::names::{Names, Role};
use crate::pools::managed::rotation::{Known, Wish};

/// What they take in their namespace: group, resource, verb. `deploy/namespace-pools` has the same.
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

/// What is known of one without asking its schedd.
pub(super) async fn lines(client: &Client, name: &ObjectName, pool: &HTCPool) -> [Line; 2] {
    let (rights, key) = tokio::join!(rights(client, &name.namespace), signing_key(client, name, pool));
    [Line::new(format!("rights for pool {name}"), rights), Line::new(format!("signing key of pool {name}"), key)]
}

async fn rights(client: &Client, namespace: &str) -> Result<String, String> {
    match denied(client, Some(namespace), &RIGHTS).await {
        Ok(None) => Ok(format!("the operator may make in namespace {namespace} what the pool needs")),
        Ok(Some(missing)) => Err(format!(
            "the operator may not {missing}: kubectl apply --namespace {namespace} -k deploy/namespace-pools"
        )),
        Err(error) => Err(error.to_string()),
    }
}

async fn signing_key(client: &Client, name: &ObjectName, pool: &HTCPool) -> Result<String, String> {
    let names = names(name, pool)?;
    let known = Known::of(pool.status.as_ref());
    let wish = pool.spec.managed.as_ref().map_or(Wish { generation: 1, oldest: 1 }, Wish::of);
    let generation = known.as_ref().map_or(wish.generation, |known| known.generation);
    let secret = names.signing_key(generation);
    match (found::signing_key(client, &names, generation).await, known) {
        (Ok(Some(key)), Some(known)) if key.fingerprint() != known.fingerprint => {
            Err(ApplyError::KeyChanged(secret).to_string())
        }
        (Ok(Some(_)), _) => Ok(format!("it is in the Secret {}/{secret}", name.namespace)),
        (Ok(None), Some(_)) => Err(ApplyError::KeyGone(secret).to_string()),
        (Ok(None), None) => Err(format!("there is no Secret {}/{secret} yet: {}", name.namespace, NOT_MADE)),
        (Err(error), _) => Err(error.to_string()),
    }
}

/// What is to be done where something is missing.
const NOT_MADE: &str = "the operator makes it once it may and runs; the line `pools` says what is in its way";

fn names(name: &ObjectName, pool: &HTCPool) -> Result<Names, String> {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    Names::new(name, uid).map_err(|error| error.to_string())
}

/// How everything there is called, and where its collector is.
pub(super) async fn collector(client: &Client, name: &ObjectName, pool: &HTCPool) -> Result<(Names, String), String> {
    let names = names(name, pool)?;
    let collector = found::collector(client, &names).await.map_err(|error| error.to_string())?;
    let service = names.of(Role::CentralManager);
    let missing = || format!("there is no Service {}/{service} yet: {NOT_MADE}", name.namespace);
    collector.ok_or_else(missing).map(|collector| (names, collector))
}
