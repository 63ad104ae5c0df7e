//! Tenants: which HTCJobs share the workers of a managed pool, and the identity of those workers.

use std::fmt;

use htc_api::{Identity, Isolation};

use super::signing::{NAMESPACE_USER_PREFIX, Signer};

/// The HTCJobs that share workers. All workers of a tenant have one identity, which the collector authenticates and the
/// jobs require. Therefore a job that starts a worker of its own, with the token of the worker that it runs on, gets
/// jobs of the same tenant only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// The HTCJobs of all namespaces.
    Everybody,
    /// The HTCJobs of one namespace.
    Namespace(String),
    /// One HTCJob, by its uid.
    HTCJob(String),
}

impl fmt::Display for Tenant {
    /// Writes the name in the identity of the tenant's workers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("worker-shared"),
            Self::Namespace(namespace) => write!(f, "worker-{NAMESPACE_USER_PREFIX}{namespace}"),
            Self::HTCJob(uid) => write!(f, "worker-mc-{uid}"),
        }
    }
}

impl Tenant {
    /// Returns the tenant whose workers the HTCJobs of one namespace share.
    #[must_use]
    pub fn sharing(isolation: Isolation, namespace: &str) -> Self {
        match isolation {
            Isolation::Namespace => Self::Namespace(namespace.to_owned()),
            Isolation::None => Self::Everybody,
        }
    }

    /// Returns the identity of the tenant's workers in the pool with this domain.
    #[must_use]
    pub fn identity(&self, domain: &str) -> String {
        format!("{self}@{domain}")
    }
}

impl Signer {
    /// Returns the tenant whose workers run the jobs of this submitter, if the HTCJob has no workers of its own. `None`
    /// means that any worker may run them; this is so for jobs that were submitted before each namespace had its own
    /// user.
    #[must_use]
    pub fn tenant(&self, submitter: &Identity) -> Option<Tenant> {
        match submitter {
            Identity::Namespace(namespace) => Some(Tenant::sharing(self.isolation, namespace)),
            Identity::Operator | Identity::Secret { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use htc_api::ObjectName;

    use super::*;

    #[test]
    fn workers_of_one_tenant_have_one_identity() {
        let key = ObjectName { namespace: "site".to_owned(), name: "key".to_owned() };
        let signer =
            |isolation| Signer { keys: key.clone(), trust_domain: "t".to_owned(), domain: "p".to_owned(), isolation };
        let atlas = Identity::Namespace("atlas".to_owned());
        let identity = |isolation, who| signer(isolation).tenant(who).map(|tenant| tenant.identity("p"));
        assert_eq!(identity(Isolation::Namespace, &atlas).as_deref(), Some("worker-ns-atlas@p"));
        assert_eq!(identity(Isolation::None, &atlas).as_deref(), Some("worker-shared@p"));
        assert_eq!(identity(Isolation::Namespace, &Identity::Operator), None);
        assert_eq!(Tenant::HTCJob("u-1".to_owned()).identity("p"), "worker-mc-u-1@p");
    }
}
