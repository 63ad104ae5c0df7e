use std::fmt;
use std::str::FromStr;

use super::{HTCJobSpec, ObjectName};

/// Identity with which the operator acts in HTCondor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The operator itself.
    #[default]
    Operator,
    /// Identity of the credentials in a Secret (`spec.credentialsSecretName`).
    Secret {
        /// Namespace of the HTCJob. Secrets of other namespaces cannot be named.
        namespace: String,
        /// Name of the Secret.
        name: String,
    },
    /// Identity of all HTCJobs of a namespace, in a pool whose tokens the operator issues itself.
    Namespace(String),
}

impl Identity {
    /// Returns the identity of HTCJobs of `namespace` with this spec. A Secret name that Kubernetes does not allow
    /// gives the operator's identity; such an HTCJob is never submitted.
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

/// Whether Kubernetes allows this name. The name is also used as the name of a folder.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.chars().all(|c| inner(c) || c == '-' || c == '.')
        && text.starts_with(inner)
        && text.ends_with(inner)
}

/// Text form in the ledger: empty for the operator, `namespace/name` for a Secret, `namespace/` for a namespace.
impl Identity {
    /// Returns the text form for the log: `operator`, or the form of the ledger.
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

/// Error: the text is not an identity.
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
    fn identity_round_trips_as_text() {
        let secret = Identity::Secret { namespace: "physics".to_owned(), name: "my.token".to_owned() };
        for identity in [Identity::Operator, secret, Identity::Namespace("physics".to_owned())] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        for bad in ["a", "/", "../", "/a", "../a", "a/..", "a/b/c", "a/.b", "A/b", "a/-b"] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
    }

    #[test]
    fn credentials_secret_is_in_the_namespace_of_the_htcjob() {
        let spec = |name: &str| HTCJobSpec { credentials_secret_name: Some(name.to_owned()), ..HTCJobSpec::default() };
        assert_eq!(Identity::of("physics", &spec("mine")).to_string(), "physics/mine");
        assert_eq!(Identity::of("physics", &HTCJobSpec::default()), Identity::Operator);
        for bad in ["other/mine", "..", ""] {
            assert_eq!(Identity::of("physics", &spec(bad)), Identity::Operator, "{bad}");
        }
    }
}
