//! Rights of the operator, as the API server reports them.

use htc_support::kubernetes::{ApiError, with_timeout};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

/// Returns a message about those of these rights that the operator does not have.
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
            with_timeout("ask whether the operator may", &verb, api.create(&PostParams::default(), &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let what = subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
            denied.push(format!("{verb} {what}"));
        }
    }
    let place = namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
    Ok((!denied.is_empty()).then(|| format!("{} in {place}", denied.join(", "))))
}
