//! Goes on with the rotation of the signing key: asks what is to be known for the next step, and takes it.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::{Resource as _, ResourceExt as _};

use super::{Caretaker, now};
use crate::api::{HTCPool, ManagedPool};
use crate::credentials::signing::{SigningKey, key_name};
use crate::kubernetes::ApiError;
use crate::machine::facts::Unknown;
use crate::pools::Pool;
use crate::pools::managed::apply::Applied;
use crate::pools::managed::error::{ApplyError, KEY_MISSING};
use crate::pools::managed::names::Role;
use crate::pools::managed::objects::{Design, InUse, SIGNING_KEY};
use crate::pools::managed::rotation::{Accept, Evidence, Known, Wait, Wish, not_rotated, rotation_said};
use crate::pools::managed::said::Said;
use crate::pools::managed::seen::Memory;

/// Between two steps of a rotation, or two looks at what the next one waits for.
pub(super) const PAUSE: Duration = Duration::from_secs(5);

impl Caretaker {
    pub(super) const fn design<'a>(&'a self, spec: &'a ManagedPool, keys: InUse) -> Design<'a> {
        Design { names: &self.names, spec, operator: &self.charge.operator, keys }
    }

    pub(super) fn applied(&self) -> Option<Applied> {
        let applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        applied.as_ref().map(|(.., applied)| applied.clone())
    }

    /// The signing key is being replaced.
    pub(super) fn rotates(&self) -> bool {
        self.applied().is_some_and(|applied| applied.accept.waits.is_some())
    }

    /// The keys that workers' tokens are signed with.
    pub(super) async fn signing_keys(&self) -> Result<Vec<SigningKey>, ApplyError> {
        let generations = self.applied().map_or_else(|| vec![1], |applied| applied.accept.generations());
        self.applier.signing_keys(&self.names, &generations).await
    }

    /// What is to be said of the keys, if these are in use.
    fn key_said(&self, spec: &ManagedPool, accept: &Accept) -> Said {
        let is_wished = Wish::of(spec).generation > accept.newest;
        let failed = self.tries().last();
        // What else cannot be written is no matter of the keys.
        let failed = failed.filter(|(reason, _)| is_wished || accept.waits.is_some() || *reason == KEY_MISSING);
        match failed {
            Some((reason, message)) => not_rotated(reason, message),
            None if is_wished && accept.waits.is_none() => {
                let message = format!("the signing key of generation {} is not made yet", accept.newest + 1);
                not_rotated("NewKeyNotAccepted", message)
            }
            None => rotation_said(accept, &self.names),
        }
    }

    /// Takes the next step of a rotation that is under way; what is to be said of it.
    pub(super) async fn rotate(
        &self,
        object: &HTCPool,
        (design, applied): (&Design<'_>, Applied),
        pool: &Pool,
        pods: &[Arc<KubePod>],
        memory: &Memory,
    ) -> Said {
        if let Err(error) = self.end_given_up(Wish::of(design.spec).oldest.min(applied.accept.newest), pods).await
            && !error.is_fence_closed()
        {
            tracing::warn!(%error, "a worker with a token of a signing key that was given up is not deleted; it is tried again");
        }
        let pause = match applied.accept.waits {
            None => return self.key_said(design.spec, &applied.accept),
            // The longest job decides.
            Some(Wait::OldTokens(_)) => PAUSE.max(self.charge.intervals.0),
            Some(_) => PAUSE,
        };
        let generation = object.meta().generation.unwrap_or_default();
        let stepped_at = self.applied.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, at, _)| *at);
        if stepped_at.is_some_and(|at| at.elapsed() < pause) || self.tries().waits(generation, Instant::now()).is_some()
        {
            return self.key_said(design.spec, &applied.accept);
        }
        match self.step(object, (design, applied.clone()), pool, pods, memory).await {
            Ok(applied) => {
                self.tries().went_well();
                self.key_said(design.spec, &applied.accept)
            }
            // The next leader takes it.
            Err(ApplyError::Api(error)) if error.is_fence_closed() => self.key_said(design.spec, &applied.accept),
            Err(error) => {
                tracing::warn!(%error, "the signing key is not replaced; it is tried again");
                let (reason, message) = self.tries().failed(generation, &error, Instant::now());
                not_rotated(reason, message)
            }
        }
    }

    /// Deletes workers whose tokens are of keys that the `HTCPool` has given up: their jobs start again elsewhere.
    async fn end_given_up(&self, oldest: u32, pods: &[Arc<KubePod>]) -> Result<(), ApiError> {
        for pod in pods.iter().filter(|pod| generation(pod) < oldest && pod.metadata.deletion_timestamp.is_none()) {
            self.delete(pod, false).await?;
            tracing::warn!("worker {} is deleted: its token is of a signing key that was given up", pod.name_any());
        }
        Ok(())
    }

    async fn step(
        &self,
        object: &HTCPool,
        (design, applied): (&Design<'_>, Applied),
        pool: &Pool,
        pods: &[Arc<KubePod>],
        memory: &Memory,
    ) -> Result<Applied, ApplyError> {
        let newest = applied.accept.newest;
        let old = self.old_tokens(newest, pool, pods, memory).await;
        let evidence = Evidence { newest, accepted: accepted(pool).await.map_err(|unknown| unknown.message), old };
        // HTCondor was asked meanwhile: what the HTCPool says by now is applied by who has seen it first.
        let current = Arc::clone(&self.object.lock().unwrap_or_else(PoisonError::into_inner));
        if current.meta().generation != object.meta().generation {
            return Ok(applied);
        }
        let known = Known::of(current.status.as_ref());
        let applied = self.applier.apply(design, known.as_ref(), Some(&evidence), now()).await?;
        if let Some(before) = &mut *self.applied.lock().unwrap_or_else(PoisonError::into_inner)
            && Some(before.0) == object.meta().generation
        {
            (before.1, before.2) = (Instant::now(), applied.clone());
        }
        Ok(applied)
    }

    /// Who has no token of the newest key: workers of before, and this operator where it has not read its tokens since.
    async fn old_tokens(&self, newest: u32, pool: &Pool, pods: &[Arc<KubePod>], memory: &Memory) -> Vec<String> {
        let has_ended = |pod: &KubePod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
        };
        let old = pods.iter().filter(|pod| generation(pod) < newest && !has_ended(pod)).map(|pod| pod.name_any());
        // Of these it is not seen yet what they have.
        let made = memory.made.not_in(pods, &self.names).map(|made| self.names.worker(made.number()));
        let mut old: Vec<String> = old.chain(made).collect();
        old.sort_unstable();
        if !pool.credentials.have_tokens_of(&key_name(newest)).await {
            old.push("this operator".to_owned());
        }
        old
    }
}

/// Of a worker: those of earlier versions have tokens of the first key.
fn generation(pod: &KubePod) -> u32 {
    pod.annotations().get(SIGNING_KEY).and_then(|generation| generation.parse().ok()).unwrap_or(1)
}

async fn accepted(pool: &Pool) -> Result<Vec<(Role, BTreeSet<String>)>, Unknown> {
    let collector = pool.schedd.issuer_keys_of_collector().await?;
    let schedd = pool.schedd.issuer_keys_of_schedd().await?;
    Ok(vec![(Role::CentralManager, collector), (Role::Schedd, schedd)])
}
