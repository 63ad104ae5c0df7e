//! Writes what is known of the workers, and who is told of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::Caretaker;
use crate::api::{Condition, HTCPool, WorkersStatus};
use crate::kubernetes::{ApiError, limited, unless_changed};
use crate::pools::managed::apply::Applied;
use crate::pools::managed::objects::shared_selector;
use crate::pools::managed::rotation::Known;
use crate::pools::managed::said::Said;

fn name_key(status: &mut Value, key: &Known) {
    status["signingKey"] = key.fingerprint.clone().into();
    status["signingKeyGeneration"] = key.generation.into();
}

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
        let signing_key = self.applied().map(|applied| applied.signing_key).or_else(|| Known::of(Some(&status)));
        let workers = WorkersStatus { selector: shared_selector(&self.names), ..counts.clone() };
        let old = |said: &Said| status.conditions.iter().find(|condition| condition.type_ == said.kind);
        let told = |said: &Said| {
            old(said).is_some_and(|old| said.is_told_by(old) && old.observed_generation == object.meta().generation)
        };
        if said.iter().all(told) && status.workers.as_ref() == Some(&workers) && Known::of(Some(&status)) == signing_key
        {
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
            name_key(&mut status, &key);
        }
        self.write_status(&status).await.map(drop)
    }

    /// The pool has had a signing key from now on: before anything is told by it.
    pub(in crate::pools) async fn publish_key(&self, object: &HTCPool, applied: &Applied) -> Result<bool, ApiError> {
        if Known::of(object.status.as_ref()).as_ref() == Some(&applied.signing_key) {
            return Ok(true);
        }
        let mut status = json!({});
        name_key(&mut status, &applied.signing_key);
        // All else that this says of the workers stays.
        self.write(
            &Patch::Merge(self.with_status(&status)),
            &PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() },
        )
        .await
    }

    /// Whether it was written: not if the HTCPool is another one by now.
    async fn write_status(&self, status: &Value) -> Result<bool, ApiError> {
        self.write(&Patch::Apply(self.with_status(status)), &PatchParams::apply(MANAGER).force()).await
    }

    fn with_status(&self, status: &Value) -> Value {
        json!({
            "apiVersion": HTCPool::api_version(&()), "kind": HTCPool::kind(&()),
            "metadata": { "name": self.names.pool.name, "uid": self.names.uid },
            "status": status,
        })
    }

    async fn write(&self, patch: &Patch<Value>, parameters: &PatchParams) -> Result<bool, ApiError> {
        let api: Api<HTCPool> = Api::namespaced(self.charge.client.clone(), &self.names.pool.namespace);
        let request = api.patch_status(&self.names.pool.name, parameters, patch);
        unless_changed(limited("write the status of HTCPool", &self.names.pool, request).await)
    }
}
