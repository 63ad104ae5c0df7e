//! HTCJobs as the operator reads them, and names of objects.

use std::fmt;
use std::str::FromStr;

use kube::ResourceExt;

use super::{Guarded, HTCJob, OPERATOR_ANNOTATION, is_name};

/// HTCJob as it is watched. One that cannot be decoded does not end the watch and can still be deleted.
pub type ObservedHTCJob = Guarded<HTCJob>;

/// Whether the operator with this namespace and name is responsible for the object: no other operator has claimed it in
/// the annotation.
pub fn is_for_operator(operator: &str, object: &impl ResourceExt) -> bool {
    object.annotations().get(OPERATOR_ANNOTATION).is_none_or(|own| own == operator)
}

/// Namespace and name of an object, written `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

impl ObjectName {
    /// Returns the name of an object in a namespace.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Error: the text is not the name of an object.
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
    fn object_name_round_trips_as_text() {
        let name = ObjectName { namespace: "a".to_owned(), name: "b.c".to_owned() };
        assert_eq!(name.to_string().parse(), Ok(name));
        for bad in ["", "a", "/", "a/", "/b", "a/b/c", "../a"] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad}");
        }
    }
}
