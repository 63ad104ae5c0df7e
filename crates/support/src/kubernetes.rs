//! Access to the API server for all parts of the operator: a client, and requests with a time limit.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use htc_api::HTCJob;
use htc_api::client::describe_error;
use htc_api::{Guarded, ObservedHTCJob};
use htc_machine::Uid;
use htc_machine::text::sanitize;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, PostParams};
use kube::api::{ListParams, ObjectList, PartialObjectMeta};
use kube::core::Request;
use kube::core::{NamespaceResourceScope, Status};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt as _};
use tokio::sync::mpsc;

use crate::fence::FenceClosed;

/// Channel that requests another reconcile of an object.
pub type Wake = mpsc::Sender<ObjectRef<ObservedHTCJob>>;

/// Removes the guard from the object of a watch event. Returns `None` if the object cannot be decoded.
#[must_use]
pub fn decoded<K>(event: watcher::Event<Guarded<K>>) -> Option<watcher::Event<K>> {
    Some(match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(object.0.ok()?),
        watcher::Event::Apply(object) => watcher::Event::Apply(object.0.ok()?),
        watcher::Event::Delete(object) => watcher::Event::Delete(object.0.ok()?),
    })
}

/// Field manager of all writes of the operator.
pub const FIELD_MANAGER: &str = "htc-operator";
/// Time limit of one request to the API server.
pub const API_LIMIT: Duration = Duration::from_secs(15);
/// Maximum length of an Event's message, in letters. The API server refuses longer ones.
const EVENT_MESSAGE: usize = 1024;

/// Error: no configuration for a client of the API server was found.
#[derive(Debug, thiserror::Error)]
#[error("cannot configure a client for the API server: {0}; set KUBECONFIG, or run in a cluster")]
pub struct NoKubeconfig(Box<dyn std::error::Error + Send + Sync>);

/// Creates a client with time limits. It does not retry by itself, because the operator has its own back-off.
pub async fn client() -> Result<Client, NoKubeconfig> {
    let mut config = kube::Config::infer().await.map_err(|error| NoKubeconfig(error.into()))?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Watches are quiet for up to 290 s; other requests have their own limit.
    config.read_timeout = Some(Duration::from_secs(300));
    config.write_timeout = Some(Duration::from_secs(15));
    Client::try_from(config).map_err(|error| NoKubeconfig(error.into()))
}

/// Returns an API for all namespaces, or for one.
#[must_use]
pub fn scoped_api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |name| Api::namespaced(client.clone(), name))
}

/// Reason why it is not known which HTCJobs exist.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The list was not answered.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The answer is a part of the list, or has an object without a uid.
    #[error("cannot list HTCJobs: the API server does not show all of them")]
    Incomplete,
}

/// Returns the uids of the HTCJobs that exist, in all namespaces or in one.
pub async fn htcjob_uids(client: &Client, namespace: Option<&str>) -> Result<BTreeSet<Uid>, ListError> {
    let request =
        Request::new(<HTCJob as kube::Resource>::url_path(&(), namespace)).list_metadata(&ListParams::default());
    let list = async {
        let request = request.map_err(kube::Error::BuildRequest)?;
        client.request::<ObjectList<Guarded<PartialObjectMeta<HTCJob>>>>(request).await
    };
    let list = with_timeout("list", &"HTCJobs", list).await?;
    let uids = list.iter().map(|object| object.uid().map(|uid| Uid::from(uid.as_str()))).collect::<Option<_>>();
    let all = list.metadata.continue_.is_none_or(|more| more.is_empty());
    uids.filter(|_| all).ok_or(ListError::Incomplete)
}

/// Error of a request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request was refused, or the API server could not be reached.
    #[error("cannot {what} {object}: {}", describe_error(.source))]
    Failed {
        /// Operation that failed.
        what: &'static str,
        /// Object of the operation.
        object: String,
        /// Error of the client, or answer of the API server.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {what} {object}: the API server did not answer within {} s", limit.as_secs())]
    TimedOut {
        /// Operation that failed.
        what: &'static str,
        /// Object of the operation.
        object: String,
        /// Time limit that was exceeded.
        limit: Duration,
    },
    /// The request was not sent, because the fence is closed. The next leader makes it.
    #[error("cannot {what} {object}: {source}")]
    FenceClosed {
        /// Operation that was not started.
        what: &'static str,
        /// Object of the operation.
        object: String,
        /// Reason why this operator may not write.
        source: FenceClosed,
    },
}

impl ApiError {
    /// Whether nothing was sent because this operator may not write now. Such an error needs no further handling.
    #[must_use]
    pub const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::FenceClosed { .. })
    }

    /// Returns the API server's answer, if it gave one.
    #[must_use]
    pub fn answer(&self) -> Option<&Status> {
        match self {
            Self::Failed { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::TimedOut { .. } | Self::FenceClosed { .. } => None,
        }
    }

    /// Returns the HTTP status of the API server's answer, if it gave one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.answer().map(|status| status.code)
    }

    /// Returns how long the API server asks clients to wait (`Retry-After`, with 429 and 503); zero if it does not.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let details = self.answer().and_then(|status| status.details.as_ref());
        Duration::from_secs(details.map_or(0, |details| details.retry_after_seconds).into())
    }
}

/// Runs a request with the usual time limit, which starts now. `what` names the operation on `object` in errors.
pub fn with_timeout<T>(
    what: &'static str,
    object: &impl Display,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> impl Future<Output = Result<T, ApiError>> {
    with_timeout_of(API_LIMIT, what, object, request)
}

/// Runs a request with another time limit.
pub fn with_timeout_of<T>(
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
            Err(_) => Err(ApiError::TimedOut { what, object, limit }),
        }
    }
}

/// Converts the error of a failed request.
fn failed(what: &'static str, object: String, source: kube::Error) -> ApiError {
    if let kube::Error::Service(inner) = &source
        && let Some(refused) = inner.downcast_ref::<FenceClosed>()
    {
        tracing::debug!(%refused, what, object, "request not sent");
        return ApiError::FenceClosed { what, object, source: *refused };
    }
    ApiError::Failed { what, object, source: Box::new(source) }
}

/// Returns whether a request was carried out. False if the object no longer exists or has changed since it was read
/// (404, 409).
pub fn unless_changed<T>(result: Result<T, ApiError>) -> Result<bool, ApiError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), Some(404 | 409)) => {
            tracing::debug!(%error, "object changed meanwhile");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns an Event about an object, as `kubectl describe` shows it. It has no name yet.
#[must_use]
pub fn event(about: ObjectReference, reason: &str, message: &str, warning: bool, time: Option<Time>) -> Event {
    Event {
        metadata: ObjectMeta { namespace: about.namespace.clone(), ..ObjectMeta::default() },
        involved_object: about,
        reason: Some(reason.to_owned()),
        message: Some(sanitize(message, EVENT_MESSAGE)),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
        reporting_component: Some(FIELD_MANAGER.to_owned()),
        ..Event::default()
    }
}

/// Writes an Event about an object. If that fails, the Event is not written again: the object's condition has the same
/// reason and message.
pub async fn create_event(client: &Client, about: ObjectReference, reason: &str, message: &str, warning: bool) {
    let now = jiff::Timestamp::now();
    let now = Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now));
    let object = format!(
        "{} {}",
        about.kind.as_deref().unwrap_or_default(),
        [&about.namespace, &about.name].into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join("/")
    );
    let mut event = event(about, reason, message, warning, Some(now));
    event.metadata.generate_name = event.involved_object.name.as_ref().map(|name| format!("{name}."));
    // Kubernetes keeps Events about objects without a namespace there:
    // https://github.com/kubernetes/kubernetes/pull/48529
    let api: Api<Event> =
        Api::namespaced(client.clone(), event.involved_object.namespace.as_deref().unwrap_or("default"));
    let parameters = PostParams::default();
    if let Err(error) = with_timeout("write an Event of", &object, api.create(&parameters, &event)).await
        && !error.is_fence_closed()
    {
        tracing::warn!(%error, reason, "Event not written");
    }
}

/// Whether the object with this uid is the controller of `object`.
pub fn is_controlled(object: &impl Resource, uid: &str) -> bool {
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

    /// Returns the results of all ways to write a Pod.
    async fn writes(pods: &Api<Pod>) -> Vec<Result<(), ApiError>> {
        let (post, patch, pod) = (PostParams::default(), PatchParams::default(), Pod::default());
        let (delete, change) = (DeleteParams::default(), Patch::Merge(serde_json::json!({})));
        vec![
            with_timeout("create", &"p", pods.create(&post, &pod)).await.map(drop),
            with_timeout("replace", &"p", pods.replace("p", &post, &pod)).await.map(drop),
            with_timeout("patch", &"p", pods.patch("p", &patch, &change)).await.map(drop),
            with_timeout("patch the metadata of", &"p", pods.patch_metadata("p", &patch, &change)).await.map(drop),
            with_timeout("patch the status of", &"p", pods.patch_status("p", &patch, &change)).await.map(drop),
            with_timeout("delete", &"p", pods.delete("p", &delete)).await.map(drop),
            with_timeout("delete all", &"p", pods.delete_collection(&delete, &ListParams::default())).await.map(drop),
        ]
    }

    /// Returns the reason why a request was not sent.
    fn not_sent(result: &Result<(), ApiError>) -> Option<FenceClosed> {
        match result {
            Err(ApiError::FenceClosed { source, .. }) => Some(*source),
            Ok(()) | Err(_) => None,
        }
    }

    #[tokio::test]
    async fn no_write_is_sent_while_the_fence_is_closed() {
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
        assert!(all_fail_by(&results, FenceClosed::NotLeading), "{results:?}");
        assert_eq!(sent(), 0);
        assert!(pods.get("p").await.is_ok(), "reads are sent");
        assert_eq!(sent(), 1);

        fence.extend(clock.reading(), Duration::from_secs(60));
        let results = writes(&pods).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(sent(), results.len());

        fence.close();
        let results = writes(&pods).await;
        assert!(all_fail_by(&results, FenceClosed::Stopping), "{results:?}");
        assert_eq!(sent(), 0);
    }

    #[test]
    fn api_errors_are_plain_sentences() {
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
