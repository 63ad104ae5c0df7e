//! Writes what is known of the workers, and who is told of it.

use std::sync::PoisonError;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::Caretaker;
use crate::api::{Condition, HTCPool, WorkersStatus};
use crate::kubernetes::{ApiError, limited, unless_changed};
use crate::pools::managed::apply::Applied;
use crate::pools::managed::objects::shared_selector;
use crate::pools::managed::said::Said;

/// The field manager of what this says in the status. The condition `Ready` is another one's.
const MANAGER: &str = "htc-operator-workers";

impl Caretaker {
    /// Writes it, unless it says so already.
    pub(super) async fn publish(
        &self,
        object: &HTCPool,
        (counts, said): (&WorkersStatus, &[Said]),
    ) -> Result<(), ApiError> {
        let status = object.status.clone().unwrap_or_default();
        let applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let signing_key = applied.map(|(.., applied)| applied.signing_key).or_else(|| status.signing_key.clone());
        let workers = WorkersStatus { selector: shared_selector(&self.names), ..counts.clone() };
        let old = |said: &Said| status.conditions.iter().find(|condition| condition.type_ == said.kind);
        let told = |said: &Said| old(said).is_some_and(|old| said.is_told_by(old));
        if said.iter().all(told) && status.workers.as_ref() == Some(&workers) && status.signing_key == signing_key {
            return Ok(());
        }
        let now = Time(jiff::Timestamp::now());
        let condition = |said: &Said| {
            let since = old(said).filter(|old| old.status == said.status);
            Condition {
                type_: said.kind.to_owned(),
                status: said.status,
                reason: said.reason.to_owned(),
                message: said.message.clone(),
                last_transition_time: since.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
                observed_generation: object.meta().generation,
            }
        };
        let conditions: Vec<Condition> = said.iter().map(condition).collect();
        let mut status = json!({ "workers": workers, "conditions": conditions });
        if let Some(key) = signing_key {
            status["signingKey"] = key.into();
        }
        self.write_status(&status).await.map(drop)
    }

    /// The pool has had a signing key from now on: before anything is told by it.
    pub(in crate::pools) async fn publish_key(&self, object: &HTCPool, applied: &Applied) -> Result<bool, ApiError> {
        if object.status.as_ref().and_then(|status| status.signing_key.as_ref()) == Some(&applied.signing_key) {
            return Ok(true);
        }
        self.write_status(&json!({ "signingKey": applied.signing_key })).await
    }

    /// Whether it was written: not if the HTCPool is another one by now.
    async fn write_status(&self, status: &Value) -> Result<bool, ApiError> {
        let api: Api<HTCPool> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let patch = Patch::Apply(json!({
            "apiVersion": HTCPool::api_version(&()), "kind": HTCPool::kind(&()),
            "metadata": { "name": self.names.pool.name, "uid": self.names.uid },
            "status": status,
        }));
        let parameters = PatchParams::apply(MANAGER).force();
        let request = api.patch_status(&self.names.pool.name, &parameters, &patch);
        unless_changed(limited("write the status of HTCPool", &self.names.pool, request).await)
    }
}
