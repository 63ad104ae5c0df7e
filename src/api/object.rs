//! One `HTCJob` as the operator meets it.

use std::fmt;
use std::str::FromStr;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

use super::{Guarded, HTCJob, OPERATOR, is_name};

/// An `HTCJob` as it is watched: one that cannot be decoded does not end the watch, and can still be deleted.
pub type Observed = Guarded<HTCJob>;

/// Wakes an object for another reconcile.
pub type Wake = mpsc::Sender<ObjectRef<Observed>>;

/// Whether it is for the operator with this namespace and name to see to: no other has attached its finalizer.
pub fn is_for(operator: &str, object: &impl ResourceExt) -> bool {
    object.annotations().get(OPERATOR).is_none_or(|own| own == operator)
}

/// What names an object for people; written `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

impl ObjectName {
    /// Of an object that is in a namespace.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The text names no object.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not namespace/name of an object")]
pub struct NoName(String);

impl FromStr for ObjectName {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            Some(_) | None => Err(NoName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ledger_has_is_read_again() {
        let name = ObjectName { namespace: "a".to_owned(), name: "b.c".to_owned() };
        assert_eq!(name.to_string().parse(), Ok(name));
        for bad in ["", "a", "/", "a/", "/b", "a/b/c", "../a"] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad}");
        }
    }
}
