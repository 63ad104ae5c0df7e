//! What every room needs of the API server: a client, and requests with a time limit.

use std::fmt::Display;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, PostParams};
use kube::core::{NamespaceResourceScope, Status};
use kube::{Client, Resource, ResourceExt as _};

use crate::api::text::harmless;
use crate::fence::Refused;

/// The field manager of all that the operator writes.
pub const MANAGER: &str = "htc-operator";
/// Time limit of one request to the API server.
pub const API_LIMIT: Duration = Duration::from_secs(15);
/// The API server refuses longer messages of Events, in letters.
const EVENT_MESSAGE: usize = 1024;

/// How to reach the API server is not known.
#[derive(Debug, thiserror::Error)]
#[error("cannot configure a client for the API server: {0}; set KUBECONFIG, or run in a cluster")]
pub struct NoKubeconfig(Box<dyn std::error::Error + Send + Sync>);

/// A client with time limits; the operator has its own pauses, so the client does not try again by itself.
pub async fn client() -> Result<Client, NoKubeconfig> {
    let mut config = kube::Config::infer().await.map_err(|error| NoKubeconfig(error.into()))?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Watches are quiet for up to 290 s; other requests have their own limit.
    config.read_timeout = Some(Duration::from_secs(300));
    config.write_timeout = Some(Duration::from_secs(15));
    Client::try_from(config).map_err(|error| NoKubeconfig(error.into()))
}

/// What is asked about all namespaces, or about one.
pub(crate) fn watched<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |name| Api::namespaced(client.clone(), name))
}

/// What an error says, in words for people: kube's own words for an answer of the API server have Rust's value of it, too.
#[must_use]
pub fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) if !status.reason.is_empty() => format!("{} ({})", status.reason, status.code),
        kube::Error::Api(status) => format!("the API server answers with {}", status.code),
        kube::Error::Service(source) => chain("cannot reach the API server", &**source),
        kube::Error::HyperError(source) => chain("cannot reach the API server", source),
        other => other.to_string(),
    }
}

/// An error and what is behind it. Some repeat that in their own words.
fn chain(what: &str, error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = what.to_owned();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        if !said.contains(&words) {
            said = format!("{said}: {words}");
        }
        next = error.source();
    }
    said
}

/// Why a request to the API server came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It was refused, or the API server could not be reached.
    #[error("cannot {what} {object}: {}", words(.source))]
    Failed {
        /// What was being done.
        what: &'static str,
        /// To what.
        object: String,
        /// The API server's words.
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("cannot {what} {object}: the API server did not answer within {} s", limit.as_secs())]
    Silent {
        /// What was being done.
        what: &'static str,
        /// To what.
        object: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It was not sent. The next leader does it.
    #[error("cannot {what} {object}: {source}")]
    FenceClosed {
        /// What was to be done.
        what: &'static str,
        /// To what.
        object: String,
        /// Why this operator may not write.
        source: Refused,
    },
}

impl ApiError {
    /// Nothing was sent, as this operator may not write now: nothing that anybody has to look after.
    #[must_use]
    pub const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::FenceClosed { .. })
    }

    /// The API server's answer, if it has given one.
    #[must_use]
    pub fn answer(&self) -> Option<&Status> {
        match self {
            Self::Failed { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Silent { .. } | Self::FenceClosed { .. } => None,
        }
    }

    /// The HTTP status of the API server's answer, if it has given one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.answer().map(|status| status.code)
    }

    /// How long the API server asks to be left alone (`Retry-After`, with 429 and 503).
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let details = self.answer().and_then(|status| status.details.as_ref());
        Duration::from_secs(details.map_or(0, |details| details.retry_after_seconds).into())
    }
}

/// A request with the usual time limit, which begins now; `what` is done to `object`.
pub fn limited<T>(
    what: &'static str,
    object: &impl Display,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> impl Future<Output = Result<T, ApiError>> {
    limited_to(API_LIMIT, what, object, request)
}

/// The same with another time limit.
pub fn limited_to<T>(
    limit: Duration,
    what: &'static str,
    object: &impl Display,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> impl Future<Output = Result<T, ApiError>> {
    let object = object.to_string();
    let answer = tokio::time::timeout(limit, request);
    async move {
        match answer.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(source)) => Err(failed(what, object, source)),
            Err(_) => Err(ApiError::Silent { what, object, limit }),
        }
    }
}

/// Why a request failed.
fn failed(what: &'static str, object: String, source: kube::Error) -> ApiError {
    if let kube::Error::Service(inner) = &source
        && let Some(refused) = inner.downcast_ref::<Refused>()
    {
        tracing::debug!(%refused, "not sent: {what} {object}");
        return ApiError::FenceClosed { what, object, source: *refused };
    }
    ApiError::Failed { what, object, source: Box::new(source) }
}

/// Whether a request was carried out; not if the object is not, or no longer, the one that was seen (404, 409).
pub fn unless_changed<T>(result: Result<T, ApiError>) -> Result<bool, ApiError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), Some(404 | 409)) => {
            tracing::debug!(%error, "the object has changed meanwhile");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// An Event about an object, as `kubectl describe` shows it. It has no name yet.
pub(crate) fn event(about: ObjectReference, reason: &str, message: &str, warning: bool, time: Option<Time>) -> Event {
    Event {
        metadata: ObjectMeta { namespace: about.namespace.clone(), ..ObjectMeta::default() },
        involved_object: about,
        reason: Some(reason.to_owned()),
        message: Some(harmless(message, EVENT_MESSAGE)),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        source: Some(EventSource { component: Some(MANAGER.to_owned()), host: None }),
        reporting_component: Some(MANAGER.to_owned()),
        ..Event::default()
    }
}

/// Tells an Event about an object that now is `reason`. One that cannot be written is not tried again: the object's condition says the
/// same.
pub(crate) async fn tell_event(client: &Client, about: ObjectReference, reason: &str, message: &str, warning: bool) {
    let now = jiff::Timestamp::now();
    let now = Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now));
    let object = format!(
        "{} {}",
        about.kind.as_deref().unwrap_or_default(),
        [&about.namespace, &about.name].into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/")
    );
    let mut event = event(about, reason, message, warning, Some(now));
    event.metadata.generate_name = event.involved_object.name.as_ref().map(|name| format!("{name}."));
    // Where Events about objects of no namespace are: https://github.com/kubernetes/kubernetes/pull/48529
    let api: Api<Event> =
        Api::namespaced(client.clone(), event.involved_object.namespace.as_deref().unwrap_or("default"));
    let parameters = PostParams::default();
    if let Err(error) = limited("write an Event of", &object, api.create(&parameters, &event)).await
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, reason, "an Event is not told");
    }
}

/// Whether the object of this uid controls another one.
pub(crate) fn is_controlled(object: &impl Resource, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
    use kube::client::Body;
    use tower::BoxError;

    use super::*;
    use crate::clock::Clock;
    use crate::fence::Fence;

    /// What came of each way to write a Pod.
    async fn writes(pods: &Api<Pod>) -> Vec<Result<(), ApiError>> {
        let (post, patch, pod) = (PostParams::default(), PatchParams::default(), Pod::default());
        let (delete, change) = (DeleteParams::default(), Patch::Merge(serde_json::json!({})));
        vec![
            limited("create", &"p", pods.create(&post, &pod)).await.map(drop),
            limited("replace", &"p", pods.replace("p", &post, &pod)).await.map(drop),
            limited("patch", &"p", pods.patch("p", &patch, &change)).await.map(drop),
            limited("patch the metadata of", &"p", pods.patch_metadata("p", &patch, &change)).await.map(drop),
            limited("patch the status of", &"p", pods.patch_status("p", &patch, &change)).await.map(drop),
            limited("delete", &"p", pods.delete("p", &delete)).await.map(drop),
            limited("delete all", &"p", pods.delete_collection(&delete, &ListParams::default())).await.map(drop),
        ]
    }

    /// Why it was not sent.
    fn not_sent(result: &Result<(), ApiError>) -> Option<Refused> {
        match result {
            Err(ApiError::FenceClosed { source, .. }) => Some(*source),
            Ok(()) | Err(_) => None,
        }
    }

    #[tokio::test]
    async fn nothing_is_written_while_the_fence_is_closed() {
        let clock = Clock::default();
        let (fence, sent) = (Fence::new(clock), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&sent);
        let server = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, BoxError>(Response::new(Body::from(br#"{"metadata":{},"items":[]}"#.to_vec()))) }
        });
        let pods: Api<Pod> = Api::namespaced(fence.client(&Client::new(server, "n")), "n");
        let sent = || sent.swap(0, Ordering::SeqCst);
        let all_fail_by = |results: &[Result<(), ApiError>], why| results.iter().all(|one| not_sent(one) == Some(why));

        let results = writes(&pods).await;
        assert!(all_fail_by(&results, Refused::NotLeading), "{results:?}");
        assert_eq!(sent(), 0);
        assert!(pods.get("p").await.is_ok(), "what changes nothing is sent");
        assert_eq!(sent(), 1);

        fence.extend(clock.reading(), Duration::from_secs(60));
        let results = writes(&pods).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(sent(), results.len());

        fence.close();
        let results = writes(&pods).await;
        assert!(all_fail_by(&results, Refused::Stopping), "{results:?}");
        assert_eq!(sent(), 0);
    }

    #[test]
    fn errors_have_no_value_of_rust_in_them() {
        let status = |message: &str, reason: &str| {
            let status =
                Status { message: message.to_owned(), reason: reason.to_owned(), code: 404, ..Status::default() };
            kube::Error::Api(Box::new(status))
        };
        let found = |error: kube::Error| {
            let object = "HTCJob a/b".to_owned();
            ApiError::Failed { what: "get", object, source: Box::new(error) }.to_string()
        };
        assert_eq!(
            found(status("htcjobs \"b\" not found", "NotFound")),
            "cannot get HTCJob a/b: htcjobs \"b\" not found"
        );
        assert_eq!(found(status("", "NotFound")), "cannot get HTCJob a/b: NotFound (404)");
        assert_eq!(found(status("", "")), "cannot get HTCJob a/b: the API server answers with 404");
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(refused));
        assert_eq!(found(error), "cannot get HTCJob a/b: cannot reach the API server: connection refused");
    }
}
