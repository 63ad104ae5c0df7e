//! Checks whether the operator has the rights to run jobs as Pods.

use std::collections::BTreeSet;

use htc_api::{Backend, ObservedHTCJob, Phase};
use htc_support::kubernetes::{ApiError, scoped_api, with_timeout};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::access::denied;
use super::error::CheckError;

/// Maximum number of namespaces that are checked.
const NAMESPACES: usize = 50;
/// Rights to watch: group, resource, verb.
const WATCHED: [(&str, &str, &str); 4] =
    [("batch", "jobs", "list"), ("batch", "jobs", "watch"), ("", "pods", "list"), ("", "pods", "watch")];
/// Rights that are needed in each namespace.
const IN_NAMESPACES: [(&str, &str, &str); 8] = [
    ("batch", "jobs", "create"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "delete"),
    ("", "configmaps", "get"),
    ("", "configmaps", "create"),
    ("", "pods", "get"),
    ("", "pods", "delete"),
    ("", "pods/log", "get"),
];

/// Returns the missing rights as an error: to watch Jobs and Pods, and in the namespaces with `HTCJob`s that run as
/// Pods.
pub(super) async fn rights(client: &Client, namespace: Option<&str>) -> Result<String, CheckError> {
    let Rights { missing, namespaces, not_asked } = ask(client, namespace).await?;
    let more =
        if not_asked == 0 { String::new() } else { format!("; {not_asked} more namespaces were not asked about") };
    match (missing.is_empty(), namespaces) {
        (true, 0) => Ok("the operator may watch Jobs and Pods; no HTCJob is to run as Pods now".to_owned()),
        (true, count) => Ok(format!(
            "the operator may watch Jobs and Pods, and make them in the {count} namespaces with HTCJobs that are to run as Pods{more}"
        )),
        (false, _) => Err(CheckError::NotPermitted {
            missing: missing.join("; "),
            remedy: format!(
                "deploy/components/kubernetes-backend has the rights to watch, and for each namespace kubectl apply --namespace NAMESPACE -k deploy/namespace-kubernetes-backend{more}"
            ),
        }),
    }
}

struct Rights {
    missing: Vec<String>,
    namespaces: usize,
    not_asked: usize,
}

async fn ask(client: &Client, namespace: Option<&str>) -> Result<Rights, ApiError> {
    let mut missing: Vec<String> = denied(client, namespace, &WATCHED).await?.into_iter().collect();
    let objects: Api<ObservedHTCJob> = scoped_api(client, namespace);
    let listed = with_timeout("list", &"HTCJobs", objects.list(&ListParams::default())).await?;
    let wanted: BTreeSet<String> =
        listed.items.iter().filter(|object| is_to_run(object)).filter_map(ResourceExt::namespace).collect();
    for namespace in wanted.iter().take(NAMESPACES) {
        missing.extend(denied(client, Some(namespace), &IN_NAMESPACES).await?);
    }
    let namespaces = wanted.len().min(NAMESPACES);
    Ok(Rights { missing, namespaces, not_asked: wanted.len() - namespaces })
}

fn is_to_run(object: &ObservedHTCJob) -> bool {
    object.0.as_ref().is_ok_and(|job| {
        let completed =
            job.status.as_ref().and_then(|status| status.phase).is_some_and(|phase| phase >= Phase::Completed);
        job.spec.backend() == Backend::Kubernetes && !completed
    })
}
