//! Names of the objects of a managed pool, and of its HTCondor identities.

use std::fmt;

use htc_api::{Isolation, ObjectName};

use crate::backends::condor::credentials::Tenant;
use crate::backends::condor::credentials::signing::Signer;

/// Longest name of a managed `HTCPool`. Names of pods consist of it and a suffix, and have at most 63 characters.
const LONGEST: usize = 40;
/// Name of the operator's HTCondor user.
pub const OPERATOR: &str = "operator";
/// The only port of HTCondor in each pod.
pub const PORT: u16 = 9618;

/// Namespace, name and uid of a managed `HTCPool`. All names are derived from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNames {
    /// Namespace and name of the `HTCPool`.
    pub pool: ObjectName,
    /// `metadata.uid` of the `HTCPool`.
    pub uid: String,
}

/// The name of the `HTCPool` is not valid for a managed pool.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a managed HTCPool has a name of at most {LONGEST} lower-case letters, digits and -: create it with another name than {0}"
)]
pub struct BadName(String);

/// Role of a pod in a managed pool. Each role has identities of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "kebab-case")]
pub enum Role {
    /// Runs collector and negotiator.
    CentralManager,
    /// Runs the schedd, with the job queue.
    Schedd,
    /// Runs a startd, and jobs.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.into())
    }
}

impl PoolNames {
    /// Creates the names of the objects of this `HTCPool`.
    ///
    /// # Errors
    /// Pods cannot have this name as a prefix.
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

    /// Returns `UID_DOMAIN`: the domain of all identities and of the schedd's name.
    ///
    /// It does not contain the uid, so that a pool that is created again with its former queue has the same one.
    #[must_use]
    pub fn domain(&self) -> String {
        format!("{}.{}.htcpool", self.pool.name, self.pool.namespace)
    }

    /// Returns `STARTD_NAME` of the worker with this pod.
    #[must_use]
    pub fn startd(&self, pod: &str) -> String {
        format!("{pod}@{}", self.domain())
    }

    /// Returns `TRUST_DOMAIN`: the tokens are valid in no other pool, and in no earlier pool of this name.
    #[must_use]
    pub fn trust_domain(&self) -> String {
        format!("{}.{}", self.uid.get(..8).unwrap_or(&self.uid), self.domain())
    }

    /// Returns the name of the schedd. It does not change with its pod.
    #[must_use]
    pub fn schedd(&self) -> String {
        format!("schedd@{}", self.domain())
    }

    /// Returns the HTCondor identity of the daemons of a role.
    #[must_use]
    pub fn identity(&self, role: Role) -> String {
        format!("{role}@{}", self.domain())
    }

    /// Returns a pattern, in HTCondor's syntax, of the identities of all workers, whatever their tenant.
    #[must_use]
    pub fn any_worker(&self) -> String {
        format!("{}-*@{}", Role::Worker, self.domain())
    }

    /// Returns the HTCondor identity of this operator.
    #[must_use]
    pub fn operator(&self) -> String {
        format!("{OPERATOR}@{}", self.domain())
    }

    /// Returns the name of an object that has the pool's name as a prefix.
    #[must_use]
    pub fn object(&self, what: &str) -> String {
        format!("{}-{what}", self.pool.name)
    }

    /// Returns the name of a role's objects. The schedd's pod has it with an ordinal.
    #[must_use]
    pub fn of(&self, role: Role) -> String {
        self.object(role.into())
    }

    /// Returns the name of the Secret with a role's token. For roles that verify tokens it also has the signing keys.
    #[must_use]
    pub fn token(&self, role: Role) -> String {
        self.object(&format!("{role}-token"))
    }

    /// Returns the name of the Secret with the token of one worker.
    ///
    /// It differs for each tenant: a pod never gets the token of a former pod of its name.
    #[must_use]
    pub fn worker_token(&self, number: u32, tenant: &Tenant) -> String {
        self.object(&format!("{tenant}-{number}"))
    }

    /// Returns the name of the Secret with the operator's token.
    #[must_use]
    pub fn operator_token(&self) -> String {
        self.object("operator-token")
    }

    /// Returns the name of the Secret with the signing key of this generation, from 1. Each key has its own Secret,
    /// which is never changed.
    #[must_use]
    pub fn signing_key(&self, generation: u32) -> String {
        let first = self.object("signing-key");
        if generation <= 1 { first } else { format!("{first}-{generation}") }
    }

    /// Returns what signs the tokens for the HTCJobs of each namespace.
    #[must_use]
    pub fn signer(&self, isolation: Isolation) -> Signer {
        // This Secret always has the keys that the schedd accepts.
        let keys = ObjectName { namespace: self.pool.namespace.clone(), name: self.token(Role::Schedd) };
        Signer { keys, trust_domain: self.trust_domain(), domain: self.domain(), isolation }
    }

    /// Returns the DNS name of the collector within the cluster.
    #[must_use]
    pub fn collector(&self) -> String {
        format!("{}.{}.svc", self.of(Role::CentralManager), self.pool.namespace)
    }

    /// Returns the name of a worker's pod.
    #[must_use]
    pub fn worker(&self, number: u32) -> String {
        format!("{}-{number}", self.of(Role::Worker))
    }

    /// Returns the number of the worker with this pod; `None` if the pod is no worker.
    #[must_use]
    pub fn worker_number(&self, pod: &str) -> Option<u32> {
        pod.strip_prefix(&self.of(Role::Worker))?.strip_prefix('-')?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_number_is_parsed_from_its_name() {
        let pool = ObjectName { namespace: "physics".to_owned(), name: "lhc".to_owned() };
        let names = PoolNames::new(&pool, "0123456789").unwrap();
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
    fn invalid_pod_name_is_refused() {
        for bad in ["a.b", "1a", &"a".repeat(41)] {
            let pool = ObjectName { namespace: "n".to_owned(), name: bad.to_owned() };
            assert_eq!(PoolNames::new(&pool, "u"), Err(BadName(bad.to_owned())));
        }
    }
}
