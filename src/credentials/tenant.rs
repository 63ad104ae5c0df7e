//! Whose jobs a worker of a managed pool runs, and the identity that follows from that.

use std::fmt;

use super::signing::{OF_NAMESPACE, Signer};
use crate::api::{Identity, Isolation};

/// Whose jobs a worker runs. The workers of one tenant have one identity, which the collector authenticates and jobs require: a payload that
/// becomes a worker itself, with the token of the one that it runs on, gets jobs of that tenant only.
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
    /// The name in the identity of its workers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("worker-shared"),
            Self::Namespace(namespace) => write!(f, "worker-{OF_NAMESPACE}{namespace}"),
            Self::HTCJob(uid) => write!(f, "worker-mc-{uid}"),
        }
    }
}

impl Tenant {
    /// The workers that the HTCJobs of one namespace share.
    #[must_use]
    pub fn sharing(isolation: Isolation, namespace: &str) -> Self {
        match isolation {
            Isolation::Namespace => Self::Namespace(namespace.to_owned()),
            Isolation::None => Self::Everybody,
        }
    }

    /// The identity of its workers in the pool with this domain.
    #[must_use]
    pub fn identity(&self, domain: &str) -> String {
        format!("{self}@{domain}")
    }
}

impl Signer {
    /// The tenant whose workers run the jobs that are submitted in this name, without workers of their own. None: any worker may run them,
    /// as it is for those that were submitted before each namespace had a name of its own.
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
    use super::*;
    use crate::api::ObjectName;

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
