//! What the operator may do, by the API server's word.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::kubernetes::{ApiError, limited};

/// Which of these it may not do there, in words.
pub(super) async fn denied(
    client: &Client,
    namespace: Option<&str>,
    rights: &[(&str, &str, &str)],
) -> Result<Option<String>, ApiError> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for (group, resource, verb) in rights {
        let (resource, subresource) =
            resource.split_once('/').map_or((*resource, None), |(resource, sub)| (resource, Some(sub)));
        let attributes = ResourceAttributes {
            group: Some((*group).to_owned()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            verb: Some((*verb).to_owned()),
            namespace: namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer =
            limited("ask whether the operator may", &verb, api.create(&PostParams::default(), &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let what = subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
            denied.push(format!("{verb} {what}"));
        }
    }
    let place = namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
    Ok((!denied.is_empty()).then(|| format!("{} in {place}", denied.join(", "))))
}
