//! How things of a managed pool are called: by its `HTCPool`.

use std::fmt;

use crate::api::{Isolation, ObjectName};
use crate::credentials::Tenant;
use crate::credentials::signing::Signer;

/// Longest name of a managed `HTCPool`: names of pods are its own and a few words more, and may have 63 characters.
const LONGEST: usize = 40;
/// Name of the HTCondor user as which the operator speaks.
pub const OPERATOR: &str = "operator";
/// HTCondor's one port of each pod.
pub const PORT: u16 = 9618;

/// A managed `HTCPool`, by what tells it from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Its namespace and name.
    pub pool: ObjectName,
    /// `metadata.uid`
    pub uid: String,
}

/// The name of the `HTCPool` cannot be that of a managed one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a managed HTCPool has a name of at most {LONGEST} lower-case letters, digits and -: create it with another name than {0}"
)]
pub struct BadName(String);

/// What a pod of a managed pool is for. Each has an identity of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub enum Role {
    /// Collector and negotiator.
    CentralManager,
    /// The queue.
    Schedd,
    /// Runs jobs.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.into())
    }
}

impl Names {
    /// # Errors
    /// The pods cannot be called after it.
    pub fn new(pool: &ObjectName, uid: &str) -> Result<Self, BadName> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if pool.name.len() > LONGEST
            || !pool.name.chars().all(plain)
            || !pool.name.starts_with(|c: char| c.is_ascii_lowercase())
        {
            return Err(BadName(pool.name.clone()));
        }
        Ok(Self { pool: pool.clone(), uid: uid.to_owned() })
    }

    /// `UID_DOMAIN`: the domain of all identities and of the schedd's name. It is the same for a pool that is made anew with the queue
    /// that it had before.
    #[must_use]
    pub fn domain(&self) -> String {
        format!("{}.{}.htcpool", self.pool.name, self.pool.namespace)
    }

    /// `STARTD_NAME` of a worker, by the name of its pod.
    #[must_use]
    pub fn startd(&self, pod: &str) -> String {
        format!("{pod}@{}", self.domain())
    }

    /// `TRUST_DOMAIN`: where its tokens are good. Of no other pool, and not of the one that was called so before.
    #[must_use]
    pub fn trust_domain(&self) -> String {
        format!("{}.{}", self.uid.get(..8).unwrap_or(&self.uid), self.domain())
    }

    /// The schedd's name: the same for all pods that it has ever had.
    #[must_use]
    pub fn schedd(&self) -> String {
        format!("schedd@{}", self.domain())
    }

    /// In whose name the daemons of a role speak.
    #[must_use]
    pub fn identity(&self, role: Role) -> String {
        format!("{role}@{}", self.domain())
    }

    /// In whose name all workers may speak, whatever their tenant; as HTCondor matches names.
    #[must_use]
    pub fn any_worker(&self) -> String {
        format!("{}-*@{}", Role::Worker, self.domain())
    }

    /// In whose name this operator speaks.
    #[must_use]
    pub fn operator(&self) -> String {
        format!("{OPERATOR}@{}", self.domain())
    }

    /// An object called after the pool.
    #[must_use]
    pub fn object(&self, what: &str) -> String {
        format!("{}-{what}", self.pool.name)
    }

    /// The objects of a role, and the pod of the schedd but for its ordinal.
    #[must_use]
    pub fn of(&self, role: Role) -> String {
        self.object(role.into())
    }

    /// The Secret with the token of a role, which has the signing key as well where tokens are checked.
    #[must_use]
    pub fn token(&self, role: Role) -> String {
        self.object(&format!("{role}-token"))
    }

    /// The Secret with the token of one worker. Its name is another one for each tenant, so that a pod never finds what a former pod of
    /// its name had.
    #[must_use]
    pub fn worker_token(&self, number: u32, tenant: &Tenant) -> String {
        self.object(&format!("{tenant}-{number}"))
    }

    /// The Secret with the operator's token.
    #[must_use]
    pub fn operator_token(&self) -> String {
        self.object("operator-token")
    }

    /// The Secret with the signing key of this generation, from 1. Each has one of its own, which is never changed.
    #[must_use]
    pub fn signing_key(&self, generation: u32) -> String {
        let first = self.object("signing-key");
        if generation <= 1 { first } else { format!("{first}-{generation}") }
    }

    /// Who makes tokens for the HTCJobs of each namespace.
    #[must_use]
    pub fn signer(&self, isolation: Isolation) -> Signer {
        // It has the keys that the schedd accepts, whichever these are.
        let keys = ObjectName { namespace: self.pool.namespace.clone(), name: self.token(Role::Schedd) };
        Signer { keys, trust_domain: self.trust_domain(), domain: self.domain(), isolation }
    }

    /// The collector, as pods find it.
    #[must_use]
    pub fn collector(&self) -> String {
        format!("{}.{}.svc", self.of(Role::CentralManager), self.pool.namespace)
    }

    /// A worker's pod.
    #[must_use]
    pub fn worker(&self, number: u32) -> String {
        format!("{}-{number}", self.of(Role::Worker))
    }

    /// Which worker a pod is.
    #[must_use]
    pub fn worker_number(&self, pod: &str) -> Option<u32> {
        pod.strip_prefix(&self.of(Role::Worker))?.strip_prefix('-')?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_known_by_its_name() {
        let pool = ObjectName { namespace: "physics".to_owned(), name: "lhc".to_owned() };
        let names = Names::new(&pool, "0123456789").unwrap();
        assert_eq!(names.worker_number(&names.worker(17)), Some(17));
        for other in ["lhc-worker", "lhc-worker-", "lhc-worker-x", "lhc-schedd-0", "lhc2-worker-1"] {
            assert_eq!(names.worker_number(other), None, "{other}");
        }
        let own = [Tenant::Everybody, Tenant::Namespace("atlas".to_owned()), Tenant::HTCJob("u-1".to_owned())];
        let secrets = own.map(|tenant| names.worker_token(3, &tenant));
        assert_eq!(secrets, ["lhc-worker-shared-3", "lhc-worker-ns-atlas-3", "lhc-worker-mc-u-1-3"]);
        assert_eq!([1, 2].map(|generation| names.signing_key(generation)), ["lhc-signing-key", "lhc-signing-key-2"]);
        assert_eq!(names.trust_domain(), "01234567.lhc.physics.htcpool");
        assert_eq!(names.identity(Role::CentralManager), "central-manager@lhc.physics.htcpool");
    }

    #[test]
    fn a_name_that_pods_cannot_have_is_refused() {
        for bad in ["a.b", "1a", &"a".repeat(41)] {
            let pool = ObjectName { namespace: "n".to_owned(), name: bad.to_owned() };
            assert_eq!(Names::new(&pool, "u"), Err(BadName(bad.to_owned())));
        }
    }
}
