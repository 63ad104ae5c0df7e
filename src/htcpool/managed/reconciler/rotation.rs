//! Advances the rotation of the signing key: gathers the evidence for the next step, and takes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_api::{HTCPool, ManagedPool};
use htc_machine::facts::QueryError;
use htc_support::kubernetes::ApiError;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::{Resource as _, ResourceExt as _};

use super::{ManagedPoolReconciler, now};
use crate::backends::condor::credentials::signing::{SigningKey, key_name};
use crate::htcpool::Pool;
use crate::htcpool::managed::apply::Applied;
use crate::htcpool::managed::conditions::PoolCondition;
use crate::htcpool::managed::error::{ApplyError, KEY_MISSING};
use crate::htcpool::managed::names::Role;
use crate::htcpool::managed::objects::{Design, KeyGenerations, SIGNING_KEY_ANNOTATION};
use crate::htcpool::managed::observations::WorkerObservations;
use crate::htcpool::managed::rotation::{
    AcceptedKeys, PublishedKey, RequestedKeys, RotationEvidence, RotationWait, not_rotated_condition,
    rotation_condition,
};

/// Pause between two steps of a rotation, and between two checks of what the next step waits for.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

impl ManagedPoolReconciler {
    pub(super) const fn design<'a>(&'a self, spec: &'a ManagedPool, keys: KeyGenerations) -> Design<'a> {
        Design { names: &self.names, spec, operator: &self.charge.operator, keys, cpu_limits: self.charge.cpu_limits }
    }

    pub(super) fn applied(&self) -> Option<Applied> {
        let applied = self.applied.lock();
        applied.as_ref().map(|(.., applied)| applied.clone())
    }

    /// Returns whether the signing key is being replaced.
    pub(super) fn is_rotating(&self) -> bool {
        self.applied().is_some_and(|applied| applied.accept.waits_for.is_some())
    }

    /// Reads the keys that sign the tokens of workers.
    pub(super) async fn signing_keys(&self) -> Result<Vec<SigningKey>, ApplyError> {
        let generations = self.applied().map_or_else(|| vec![1], |applied| applied.accept.generations());
        self.applier.signing_keys(&self.names, &generations).await
    }

    /// Returns the condition about the signing key while these keys are in use.
    fn key_said(&self, spec: &ManagedPool, accept: &AcceptedKeys) -> PoolCondition {
        let is_wished = RequestedKeys::of(spec).generation > accept.newest;
        let failed = self.tries().last();
        // Other failed writes do not concern the keys.
        let failed = failed.filter(|(reason, _)| is_wished || accept.waits_for.is_some() || *reason == KEY_MISSING);
        match failed {
            Some((reason, message)) => not_rotated_condition(reason, message),
            None if is_wished && accept.waits_for.is_none() => {
                let message = format!("the signing key of generation {} is not made yet", accept.newest + 1);
                not_rotated_condition("NewKeyNotAccepted", message)
            }
            None => rotation_condition(accept, &self.names),
        }
    }

    /// Takes the next step of a rotation that is under way. Returns the condition about it.
    pub(super) async fn rotate(
        &self,
        object: &HTCPool,
        (design, applied): (&Design<'_>, Applied),
        pool: &Pool,
        pods: &[Arc<KubePod>],
        memory: &WorkerObservations,
    ) -> PoolCondition {
        if let Err(error) =
            self.end_given_up(RequestedKeys::of(design.spec).oldest.min(applied.accept.newest), pods).await
            && !error.is_fence_closed()
        {
            tracing::warn!(%error, "worker with an old token not deleted, retrying");
        }
        let pause = match applied.accept.waits_for {
            None => return self.key_said(design.spec, &applied.accept),
            // This takes as long as the longest job.
            Some(RotationWait::OldTokens(_)) => PAUSE.max(self.charge.intervals.0),
            Some(_) => PAUSE,
        };
        let generation = object.meta().generation.unwrap_or_default();
        let stepped_at = self.applied.lock().as_ref().map(|(_, at, _)| *at);
        if stepped_at.is_some_and(|at| at.elapsed() < pause)
            || self.tries().active_backoff(generation, Instant::now()).is_some()
        {
            return self.key_said(design.spec, &applied.accept);
        }
        match self.step(object, (design, applied.clone()), pool, pods, memory).await {
            Ok(applied) => {
                self.tries().reset();
                self.key_said(design.spec, &applied.accept)
            }
            // The next leader takes the step.
            Err(ApplyError::Api(error)) if error.is_fence_closed() => self.key_said(design.spec, &applied.accept),
            Err(error) => {
                tracing::warn!(%error, "signing key not replaced, retrying");
                let (reason, message) = self.tries().failed(generation, &error, Instant::now());
                not_rotated_condition(reason, message)
            }
        }
    }

    /// Deletes workers whose tokens are signed with a key that the `HTCPool` has given up. Their jobs start again
    /// elsewhere.
    async fn end_given_up(&self, oldest: u32, pods: &[Arc<KubePod>]) -> Result<(), ApiError> {
        for pod in pods.iter().filter(|pod| generation(pod) < oldest && pod.metadata.deletion_timestamp.is_none()) {
            self.delete(pod, false).await?;
            tracing::warn!(worker = pod.name_any(), "worker with an old token deleted");
        }
        Ok(())
    }

    async fn step(
        &self,
        object: &HTCPool,
        (design, applied): (&Design<'_>, Applied),
        pool: &Pool,
        pods: &[Arc<KubePod>],
        memory: &WorkerObservations,
    ) -> Result<Applied, ApplyError> {
        let newest = applied.accept.newest;
        let old = self.old_tokens(newest, pool, pods, memory).await;
        let evidence = RotationEvidence { newest, accepted: accepted(pool).await, old_tokens: old };
        // The HTCPool may have changed during the queries: `reconcile_objects`, which sees the change first, applies
        // it.
        let current = Arc::clone(&self.object.lock());
        if current.meta().generation != object.meta().generation {
            return Ok(applied);
        }
        let known = PublishedKey::of(current.status.as_ref());
        let applied = self.applier.apply(design, known.as_ref(), Some(&evidence), now()).await?;
        if let Some(before) = &mut *self.applied.lock()
            && Some(before.0) == object.meta().generation
        {
            (before.1, before.2) = (Instant::now(), applied.clone());
        }
        Ok(applied)
    }

    /// Returns who has no token of the newest key.
    ///
    /// These are older workers, and this operator until it has read its new tokens.
    async fn old_tokens(
        &self,
        newest: u32,
        pool: &Pool,
        pods: &[Arc<KubePod>],
        memory: &WorkerObservations,
    ) -> Vec<String> {
        let has_ended = |pod: &KubePod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
        };
        let old = pods.iter().filter(|pod| generation(pod) < newest && !has_ended(pod)).map(|pod| pod.name_any());
        // Pods that the watch has not reported yet: their tokens are not known.
        let made = memory.made.missing_from(pods, &self.names).map(|made| self.names.worker(made.number()));
        let mut old: Vec<String> = old.chain(made).collect();
        old.sort_unstable();
        if !pool.credentials.have_tokens_of(&key_name(newest)).await {
            old.push("this operator".to_owned());
        }
        old
    }
}

/// Returns the generation of a worker's key. Workers of earlier versions have no annotation, and a token of the first
/// key.
fn generation(pod: &KubePod) -> u32 {
    pod.annotations().get(SIGNING_KEY_ANNOTATION).and_then(|generation| generation.parse().ok()).unwrap_or(1)
}

async fn accepted(pool: &Pool) -> Result<Vec<(Role, BTreeSet<String>)>, QueryError> {
    let collector = pool.schedd.issuer_keys_of_collector().await?;
    let schedd = pool.schedd.issuer_keys_of_schedd().await?;
    Ok(vec![(Role::CentralManager, collector), (Role::Schedd, schedd)])
}
