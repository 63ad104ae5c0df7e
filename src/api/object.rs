//! One `HTCJob` as the operator meets it.

use std::fmt;

use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

use super::HTCJob;

/// An `HTCJob` as it is watched: one that cannot be decoded does not end the watch, and can still be deleted.
pub type Observed = DeserializeGuard<HTCJob>;

/// Wakes an object for another reconcile.
pub type Wake = mpsc::Sender<ObjectRef<Observed>>;

/// What names an object for people; written `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
