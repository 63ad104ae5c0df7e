//! What there is of a managed pool already. Nothing is made here.

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::Api;
use kube::{Client, ResourceExt};

use super::error::ApplyError;
use super::names::{Names, PORT, Role};
use super::rotation::{Known, Wish};
use crate::credentials::signing::{SigningKey, key_name};
use crate::kubernetes::limited;

/// Its signing keys that may be in use, the newest first. `known`: the one that its status names.
pub async fn signing_keys(
    client: &Client,
    names: &Names,
    known: Option<&Known>,
    wish: Wish,
) -> Result<Vec<SigningKey>, ApplyError> {
    let Some(known) = known else {
        // The status has been lost, or there is nothing yet.
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

/// Its signing key of this generation; none if there is no Secret for it.
pub async fn signing_key(client: &Client, names: &Names, generation: u32) -> Result<Option<SigningKey>, ApplyError> {
    let name = names.signing_key(generation);
    let api: Api<Secret> = Api::namespaced(client.clone(), &names.pool.namespace);
    let Some(secret) = limited("read the Secret", &name, api.get_opt(&name)).await? else { return Ok(None) };
    if !is_owned(&secret, names) {
        return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
    }
    match SigningKey::of_secret(&secret, generation) {
        Ok(key) => Ok(Some(key)),
        Err(why) => Err(ApplyError::NoKey { name, entry: key_name(generation), why: why.to_string() }),
    }
}

/// Host and port of its collector; none if there is no Service for it.
pub async fn collector(client: &Client, names: &Names) -> Result<Option<String>, ApplyError> {
    let name = names.of(Role::CentralManager);
    let api: Api<Service> = Api::namespaced(client.clone(), &names.pool.namespace);
    let Some(service) = limited("read the Service", &name, api.get_opt(&name)).await? else { return Ok(None) };
    if !is_owned(&service, names) {
        return Err(ApplyError::NotOurs { kind: "Service".to_owned(), name });
    }
    let address = service.spec.and_then(|spec| spec.cluster_ip);
    Ok(address.map(|address| host_and_port(&address, PORT)))
}

/// The pool is an owner of it.
pub(super) fn is_owned(there: &impl ResourceExt, names: &Names) -> bool {
    there.owner_references().iter().any(|owner| owner.uid == names.uid)
}

/// An address of version 6 needs brackets.
pub(super) fn host_and_port(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
