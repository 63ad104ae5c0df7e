//! The jobs API as the leader serves it: reads the ledger, for the fronts ([`crate::front`]) and for nobody else. They have asked
//! whether the user may.

pub mod certificates;
mod serve;
mod walk;
mod watch;

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::reflector::Store;

use crate::api::{OPERATOR, Observed};
use crate::ledger::Ledger;
use crate::machine::ids::SchedDate;
use crate::procs::Parent;
use crate::procs::selection::Selection;

/// What jobs are read from.
#[derive(Clone)]
pub struct Jobs {
    /// The `HTCJob`s.
    pub objects: Store<Observed>,
    /// What is recorded of their jobs.
    pub ledger: Ledger,
    /// Namespace and name of this operator: others' `HTCJob`s are theirs to show.
    pub operator: String,
}

impl Jobs {
    fn ours(&self, object: &Observed) -> bool {
        object.annotations().get(OPERATOR).is_none_or(|operator| *operator == self.operator)
    }

    /// The `HTCJob`s whose jobs may be wanted, in the order of lists.
    fn parents(&self, namespace: Option<&str>, selection: &Selection) -> Vec<Parent> {
        let state = self.objects.state();
        let wanted = state.iter().filter(|object| {
            let (its, name) = (object.namespace().unwrap_or_default(), object.name_any());
            namespace.is_none_or(|namespace| *namespace == *its) && self.ours(object) && selection.may_have(&its, &name)
        });
        let mut parents: Vec<Parent> = wanted.map(Parent::of).collect();
        parents.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        parents
    }

    /// The `HTCJob` of this name.
    fn parent(&self, namespace: &str, name: &str) -> Option<Parent> {
        let reference = kube::runtime::reflector::ObjectRef::new(name).within(namespace);
        let object: Arc<Observed> = self.objects.get(&reference)?;
        self.ours(&object).then(|| Parent::of(&object))
    }
}

/// The time now, on the clock that people look at.
fn now() -> SchedDate {
    SchedDate(jiff::Timestamp::now().as_second())
}

pub(crate) use serve::refuse;
pub use serve::{LeaderPort, listen};
