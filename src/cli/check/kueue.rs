//! Checks whether Kueue is installed, and the operator has the rights to use it.

use htc_api::Guarded;
use htc_support::kubernetes::with_timeout;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};

use super::access::denied;
use super::error::CheckError;

/// Rights that are needed: group, resource, verb.
const RIGHTS: [(&str, &str, &str); 7] = [
    (GROUP, "workloads", "list"),
    (GROUP, "workloads", "watch"),
    (GROUP, "workloads", "get"),
    (GROUP, "workloads", "create"),
    (GROUP, "workloads", "patch"),
    (GROUP, "workloads", "delete"),
    (GROUP, "workloads/status", "patch"),
];
/// Rights that are needed for resources without namespace.
const CLUSTER_RIGHTS: [(&str, &str, &str); 1] = [(GROUP, "workloadpriorityclasses", "get")];
const GROUP: &str = "kueue.x-k8s.io";

/// Returns the missing rights as an error.
pub(super) async fn rights(client: &Client, namespace: Option<&str>) -> Result<String, CheckError> {
    let mut missing: Vec<String> = denied(client, namespace, &RIGHTS).await?.into_iter().collect();
    missing.extend(denied(client, None, &CLUSTER_RIGHTS).await?);
    if !missing.is_empty() {
        let remedy = "deploy/components/kueue has the rights".to_owned();
        return Err(CheckError::NotPermitted { missing: missing.join("; "), remedy });
    }
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1beta2", "Workload"));
    let api: Api<Guarded<DynamicObject>> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    match with_timeout("list", &"Workloads", api.list(&ListParams::default().limit(1))).await {
        Ok(_) => Ok("the API server serves Workloads (v1beta2), and the operator may make them".to_owned()),
        Err(error) if error.code() == Some(404) => Err(CheckError::NoWorkloads),
        Err(error) => Err(error.into()),
    }
}
