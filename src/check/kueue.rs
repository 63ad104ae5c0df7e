//! Whether there is a Kueue to work with, and the operator has the rights that it takes.

use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};

use super::access::denied;
use crate::api::Guarded;
use crate::kubernetes::limited;

/// What it takes: group, resource, verb.
const RIGHTS: [(&str, &str, &str); 7] = [
    (GROUP, "workloads", "list"),
    (GROUP, "workloads", "watch"),
    (GROUP, "workloads", "get"),
    (GROUP, "workloads", "create"),
    (GROUP, "workloads", "patch"),
    (GROUP, "workloads", "delete"),
    (GROUP, "workloads/status", "patch"),
];
/// The same of what is in no namespace.
const CLUSTER_RIGHTS: [(&str, &str, &str); 1] = [(GROUP, "workloadpriorityclasses", "get")];
const GROUP: &str = "kueue.x-k8s.io";

/// What is missing, or that nothing is.
pub(super) async fn rights(client: &Client, namespace: Option<&str>) -> Result<String, String> {
    let asked = async {
        let mut missing: Vec<String> = denied(client, namespace, &RIGHTS).await?.into_iter().collect();
        missing.extend(denied(client, None, &CLUSTER_RIGHTS).await?);
        Ok(missing)
    };
    let missing = asked.await.map_err(|error: crate::kubernetes::ApiError| error.to_string())?;
    if !missing.is_empty() {
        return Err(format!("the operator may not {}: deploy/components/kueue has the rights", missing.join("; ")));
    }
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1beta2", "Workload"));
    let api: Api<Guarded<DynamicObject>> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    match limited("list", &"Workloads", api.list(&ListParams::default().limit(1))).await {
        Ok(_) => Ok("the API server serves Workloads (v1beta2), and the operator may make them".to_owned()),
        Err(error) if error.code() == Some(404) => Err(
            "the API server does not know Workloads of kueue.x-k8s.io/v1beta2: install Kueue 0.16 or newer, or use --queueing=embedded"
                .to_owned(),
        ),
        Err(error) => Err(error.to_string()),
    }
}
