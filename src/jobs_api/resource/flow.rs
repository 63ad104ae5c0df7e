//! The tenant that a request is counted against.

use std::fmt;

/// A user, or all service accounts of a namespace: a user who may create one service account in a namespace may create
/// any number there, so all of them share one limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// A user, by name.
    User(String),
    /// The service accounts of this namespace.
    ServiceAccounts(String),
}

impl Flow {
    /// Returns the flow of this user's requests.
    #[must_use]
    pub fn of(user: &str) -> Self {
        let account = user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
        match account {
            Some((namespace, _)) => Self::ServiceAccounts(namespace.to_owned()),
            None => Self::User(user.to_owned()),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(to, "user {name:?}"),
            Self::ServiceAccounts(namespace) => write!(to, "the service accounts of namespace {namespace}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_accounts_of_a_namespace_share_one_flow() {
        let robot = Flow::of("system:serviceaccount:physics:robot");
        assert_eq!(robot, Flow::of("system:serviceaccount:physics:another"));
        assert_eq!(robot.to_string(), "the service accounts of namespace physics");
        for other in ["system:serviceaccount:chemistry:robot", "system:serviceaccounts:physics", "physics", "ann:robot"]
        {
            assert_ne!(robot, Flow::of(other), "{other}");
        }
        assert_ne!(Flow::of("ann:robot"), Flow::of("ann:another"));
        assert_eq!(Flow::of("ann").to_string(), "user \"ann\"");
    }
}
