use std::fmt;
use std::str::FromStr;

use super::{HTCJobSpec, ObjectName};

/// In whose name something is done in HTCondor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The operator's own.
    #[default]
    Operator,
    /// That of the credentials in a Secret: `spec.credentialsSecretName`.
    Secret {
        /// The HTCJob's namespace; no other Secret can be named.
        namespace: String,
        /// The Secret's name.
        name: String,
    },
    /// That of all HTCJobs of a namespace, in a pool whose tokens the operator makes itself.
    Namespace(String),
}

impl Identity {
    /// That of the HTCJobs of `namespace` with this spec. One whose Secret can have no such name has none of its own, and is
    /// never submitted.
    #[must_use]
    pub fn of(namespace: &str, spec: &HTCJobSpec) -> Self {
        match &spec.credentials_secret_name {
            Some(name) if is_name(name) && is_name(namespace) => {
                Self::Secret { namespace: namespace.to_owned(), name: name.clone() }
            }
            Some(_) | None => Self::Operator,
        }
    }
}

/// Whether Kubernetes allows this name; it is also the name of a folder.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.chars().all(|c| inner(c) || c == '-' || c == '.')
        && text.starts_with(inner)
        && text.ends_with(inner)
}

/// Nothing for the operator, `namespace/name` of a Secret, `namespace/` for a namespace: as the ledger has it.
impl Identity {
    /// For the log: `operator`, or as the ledger has it.
    #[must_use]
    pub fn logged(&self) -> String {
        match self {
            Self::Operator => "operator".to_owned(),
            Self::Secret { .. } | Self::Namespace(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => Ok(()),
            Self::Secret { namespace, name } => write!(f, "{namespace}/{name}"),
            Self::Namespace(namespace) => write!(f, "{namespace}/"),
        }
    }
}

/// The text names nobody.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither namespace/name of a Secret nor namespace/")]
pub struct NoIdentity(String);

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::Operator);
        }
        if let Some(namespace) = text.strip_suffix('/').filter(|namespace| is_name(namespace)) {
            return Ok(Self::Namespace(namespace.to_owned()));
        }
        let ObjectName { namespace, name } = text.parse().map_err(|_| NoIdentity(text.to_owned()))?;
        Ok(Self::Secret { namespace, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ledger_has_is_read_again() {
        let secret = Identity::Secret { namespace: "physics".to_owned(), name: "my.token".to_owned() };
        for identity in [Identity::Operator, secret, Identity::Namespace("physics".to_owned())] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        for bad in ["a", "/", "../", "/a", "../a", "a/..", "a/b/c", "a/.b", "A/b", "a/-b"] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_one_of_the_htcjobs_own_namespace() {
        let spec = |name: &str| HTCJobSpec { credentials_secret_name: Some(name.to_owned()), ..HTCJobSpec::default() };
        assert_eq!(Identity::of("physics", &spec("mine")).to_string(), "physics/mine");
        assert_eq!(Identity::of("physics", &HTCJobSpec::default()), Identity::Operator);
        for bad in ["other/mine", "..", ""] {
            assert_eq!(Identity::of("physics", &spec(bad)), Identity::Operator, "{bad}");
        }
    }
}
