//! Writes to the metadata of the object: the finalizer with the claim, and the deletion after its time to live.

use htc_api::{
    BACKEND_ANNOTATION, Backend, CLAIM_ANNOTATION, FINALIZER, OLD_FINALIZER, OPERATOR_ANNOTATION, ObjectName,
    ObservedHTCJob, POOL_ANNOTATION,
};
use htc_support::failpoint::{Point, around};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use super::WriteError;
use super::pass::Pass;

/// Returns the metadata that claims an object. Our finalizer replaces the Go operator's. An object that is being
/// deleted gets no finalizer, because the API server refuses new ones.
pub(crate) fn claimed(object: &ObservedHTCJob, ledger: &str, operator: &str) -> serde_json::Value {
    let annotations = json!({ CLAIM_ANNOTATION: ledger, OPERATOR_ANNOTATION: operator });
    if object.meta().deletion_timestamp.is_some() {
        return json!({ "annotations": annotations });
    }
    let finalizers: Vec<&str> = finalizers_of_others(object).chain([FINALIZER]).collect();
    json!({ "finalizers": finalizers, "annotations": annotations })
}

fn finalizers_of_others(object: &ObservedHTCJob) -> impl Iterator<Item = &str> {
    let is_ours = |finalizer: &&str| [FINALIZER, OLD_FINALIZER].contains(finalizer);
    object.finalizers().iter().map(String::as_str).filter(move |finalizer| !is_ours(finalizer))
}

impl Pass<'_> {
    /// Adds the finalizer and the claim in one patch, only if the object has not changed since it was read.
    pub(super) async fn attach_finalizer(
        &self,
        backend: Backend,
        pool: Option<&ObjectName>,
    ) -> Result<bool, WriteError> {
        let mut metadata = claimed(self.object, self.context.ledger.id(), &self.context.operator);
        metadata["annotations"][POOL_ANNOTATION] = json!(pool.map(ObjectName::to_string));
        metadata["annotations"][BACKEND_ANNOTATION] = json!(backend.annotation());
        let patched = self.patch_metadata("attach the finalizer of HTCJob", metadata);
        around(Point::BeforeFinalizerAttached, patched, Point::AfterFinalizerAttached).await
    }

    /// Removes our finalizers, only if the object has not changed since it was read. An object that is already gone
    /// counts as success.
    pub(super) async fn release_finalizer(&self) -> Result<bool, WriteError> {
        let finalizers: Vec<&str> = finalizers_of_others(self.object).collect();
        let patched = self.patch_metadata("release the finalizer of HTCJob", json!({ "finalizers": finalizers }));
        around(Point::BeforeFinalizerReleased, patched, Point::AfterFinalizerReleased).await
    }

    /// Deletes an object whose `ttlSecondsAfterFinished` has passed, only if it has not changed since it was read.
    pub(super) async fn delete_object(&self) -> Result<bool, WriteError> {
        let preconditions = Preconditions { uid: self.object.uid(), resource_version: self.object.resource_version() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let api = self.api();
        let deleted =
            self.context.write_limiter.write("delete HTCJob", &self.name, api.delete(&self.name.name, &parameters));
        let done = around(Point::BeforeObjectDeleted, deleted, Point::AfterObjectDeleted).await?;
        if done {
            tracing::info!("HTCJob deleted after ttlSecondsAfterFinished");
        }
        Ok(done)
    }

    /// Sends a merge patch with uid and resourceVersion: the API server refuses it if the object has changed since it
    /// was read.
    async fn patch_metadata(&self, what: &'static str, mut metadata: serde_json::Value) -> Result<bool, WriteError> {
        metadata["uid"] = json!(self.object.uid());
        metadata["resourceVersion"] = json!(self.object.resource_version());
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let (api, parameters) = (self.api(), PatchParams::default());
        self.context.write_limiter.write(what, &self.name, api.patch(&self.name.name, &parameters, &patch)).await
    }

    /// Client of the HTCJobs in the object's namespace.
    pub(super) fn api(&self) -> Api<ObservedHTCJob> {
        Api::namespaced(self.context.client.clone(), &self.name.namespace)
    }
}
