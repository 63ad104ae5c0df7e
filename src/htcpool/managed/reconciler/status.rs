//! Writes the status of the workers and of the signing key.

use htc_api::{Condition, HTCPool, WorkersStatus};
use htc_support::kubernetes::{ApiError, unless_changed, with_timeout};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::ManagedPoolReconciler;
use crate::htcpool::managed::apply::Applied;
use crate::htcpool::managed::conditions::PoolCondition;
use crate::htcpool::managed::objects::shared_selector;
use crate::htcpool::managed::rotation::PublishedKey;

fn name_key(status: &mut Value, key: &PublishedKey) {
    status["signingKey"] = key.fingerprint.clone().into();
    status["signingKeyGeneration"] = key.generation.into();
}

/// Field manager of this part of the status. The condition `Ready` has another one.
const MANAGER: &str = "htc-operator-workers";

impl ManagedPoolReconciler {
    /// Writes counts, conditions and key if they have changed.
    pub(super) async fn publish(
        &self,
        object: &HTCPool,
        (counts, said): (&WorkersStatus, &[PoolCondition]),
    ) -> Result<(), ApiError> {
        let status = object.status.clone().unwrap_or_default();
        let signing_key = self.applied().map(|applied| applied.signing_key).or_else(|| PublishedKey::of(Some(&status)));
        let workers = WorkersStatus { selector: shared_selector(&self.names), ..counts.clone() };
        let old = |said: &PoolCondition| status.conditions.iter().find(|condition| condition.type_ == said.kind);
        let told = |said: &PoolCondition| {
            old(said).is_some_and(|old| said.matches(old) && old.observed_generation == object.meta().generation)
        };
        if said.iter().all(told)
            && status.workers.as_ref() == Some(&workers)
            && PublishedKey::of(Some(&status)) == signing_key
        {
            return Ok(());
        }
        let now = Time(jiff::Timestamp::now());
        let condition = |said: &PoolCondition| {
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

    /// Records the signing key in the status, before the pool is used with it.
    ///
    /// Returns `false` if the `HTCPool` has changed in the meantime.
    pub(in crate::htcpool) async fn publish_key(&self, object: &HTCPool, applied: &Applied) -> Result<bool, ApiError> {
        if PublishedKey::of(object.status.as_ref()).as_ref() == Some(&applied.signing_key) {
            return Ok(true);
        }
        let mut status = json!({});
        name_key(&mut status, &applied.signing_key);
        // A merge patch: the other fields of this field manager stay.
        self.write(
            &Patch::Merge(self.with_status(&status)),
            &PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() },
        )
        .await
    }

    /// Returns whether the status was written: not if the `HTCPool` was replaced by another one.
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
        unless_changed(with_timeout("write the status of HTCPool", &self.names.pool, request).await)
    }
}
