//! Checks access: the API server is asked again, although it has let the request through. It may have read the path
//! in another way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use htc_api::htcproc::{GROUP, VERSION};
use htc_support::kubernetes::{ApiError, with_timeout};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;

use super::authentication::User;

/// Time for which an answer is valid: the same as in generic API servers.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum number of remembered answers.
const MOST: usize = 10_000;

/// An access to be checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AccessRequest {
    pub(super) user: User,
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

/// Recent answers.
#[derive(Default)]
pub(super) struct Reviews(Mutex<HashMap<AccessRequest, (bool, Instant)>>);

impl Reviews {
    /// Returns whether this access is allowed.
    pub(super) async fn allows(&self, client: &Client, wish: AccessRequest) -> Result<bool, ApiError> {
        let known = self.0.lock().get(&wish).copied();
        if let Some((allowed, at)) = known.filter(|(_, at)| at.elapsed() < FRESH) {
            tracing::trace!(?at, "answer cached");
            return Ok(allowed);
        }
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let spec = SubjectAccessReviewSpec {
            user: Some(wish.user.name.clone()),
            uid: wish.user.uid.clone(),
            groups: Some(wish.user.groups.clone()),
            extra: Some(wish.user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.to_owned()),
                version: Some(VERSION.to_owned()),
                resource: Some(wish.resource.to_owned()),
                verb: Some(wish.verb.to_owned()),
                namespace: text(&wish.namespace),
                name: text(&wish.name),
                subresource: text(&wish.subresource),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        };
        let api: Api<SubjectAccessReview> = Api::all(client.clone());
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let parameters = PostParams::default();
        let answer = with_timeout("ask whether a user may", &"HTCProcs", api.create(&parameters, &review)).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.retain(|_, (_, at)| at.elapsed() < FRESH);
        }
        if known.len() < MOST {
            known.insert(wish, (allowed, Instant::now()));
        }
        Ok(allowed)
    }
}
