//! Whose share of what is done at once a request takes.

use std::fmt;

/// Whoever may make one service account in a namespace may make any number there, so that all of them have one share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sharer {
    /// By its name.
    User(String),
    /// Those of this namespace.
    ServiceAccounts(String),
}

impl Sharer {
    /// Whose share this user takes.
    #[must_use]
    pub fn of(user: &str) -> Self {
        let account = user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
        match account {
            Some((namespace, _)) => Self::ServiceAccounts(namespace.to_owned()),
            None => Self::User(user.to_owned()),
        }
    }
}

impl fmt::Display for Sharer {
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
    fn service_accounts_of_a_namespace_have_one_share() {
        let robot = Sharer::of("system:serviceaccount:physics:robot");
        assert_eq!(robot, Sharer::of("system:serviceaccount:physics:another"));
        assert_eq!(robot.to_string(), "the service accounts of namespace physics");
        for other in ["system:serviceaccount:chemistry:robot", "system:serviceaccounts:physics", "physics", "ann:robot"]
        {
            assert_ne!(robot, Sharer::of(other), "{other}");
        }
        assert_ne!(Sharer::of("ann:robot"), Sharer::of("ann:another"));
        assert_eq!(Sharer::of("ann").to_string(), "user \"ann\"");
    }
}
