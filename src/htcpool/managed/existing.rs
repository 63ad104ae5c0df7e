//! Reads the existing objects of a managed pool. Writes nothing.

use htc_support::kubernetes::with_timeout;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::Api;
use kube::{Client, ResourceExt};

use super::error::ApplyError;
use super::names::{PORT, PoolNames, Role};
use super::rotation::{PublishedKey, RequestedKeys};
use crate::backends::condor::credentials::signing::{SigningKey, key_name};

/// Returns the signing keys that may be in use, the newest first. `known`: the key in the status.
pub async fn signing_keys(
    client: &Client,
    names: &PoolNames,
    known: Option<&PublishedKey>,
    wish: RequestedKeys,
) -> Result<Vec<SigningKey>, ApplyError> {
    let Some(known) = known else {
        // The status has been lost, or the pool is new.
        for generation in (1..=wish.generation).rev() {
            if let Some(newest) = signing_key(client, names, generation).await? {
                let previous = if generation > 1 { signing_key(client, names, generation - 1).await? } else { None };
                return Ok([newest].into_iter().chain(previous).collect());
            }
        }
        return Ok(Vec::new());
    };
    let newest = if wish.generation > known.generation { known.generation + 1 } else { known.generation };
    let mut keys = Vec::new();
    for generation in (known.generation.saturating_sub(1).max(1)..=newest).rev() {
        keys.extend(signing_key(client, names, generation).await?);
    }
    Ok(keys)
}

/// Returns the signing key of this generation; `None` if it has no Secret.
pub async fn signing_key(
    client: &Client,
    names: &PoolNames,
    generation: u32,
) -> Result<Option<SigningKey>, ApplyError> {
    let name = names.signing_key(generation);
    let api: Api<Secret> = Api::namespaced(client.clone(), &names.pool.namespace);
    let Some(secret) = with_timeout("read the Secret", &name, api.get_opt(&name)).await? else { return Ok(None) };
    if !is_owned(&secret, names) {
        return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
    }
    match SigningKey::of_secret(&secret, generation) {
        Ok(key) => Ok(Some(key)),
        Err(why) => Err(ApplyError::NoKey { name, entry: key_name(generation), why: why.to_string() }),
    }
}

/// Returns host and port of the collector; `None` if it has no Service.
pub async fn collector(client: &Client, names: &PoolNames) -> Result<Option<String>, ApplyError> {
    let name = names.of(Role::CentralManager);
    let api: Api<Service> = Api::namespaced(client.clone(), &names.pool.namespace);
    let Some(service) = with_timeout("read the Service", &name, api.get_opt(&name)).await? else { return Ok(None) };
    if !is_owned(&service, names) {
        return Err(ApplyError::NotOurs { kind: "Service".to_owned(), name });
    }
    let address = service.spec.and_then(|spec| spec.cluster_ip);
    Ok(address.map(|address| host_and_port(&address, PORT)))
}

/// Returns whether the pool is an owner of the object.
pub(super) fn is_owned(there: &impl ResourceExt, names: &PoolNames) -> bool {
    there.owner_references().iter().any(|owner| owner.uid == names.uid)
}

/// Joins address and port; an IPv6 address gets brackets.
pub(super) fn host_and_port(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
