//! Memory of single HTCJobs, which ends with them.

use std::collections::HashSet;

use htc_machine::Uid;

/// Store of what this process knows of each HTCJob, and what may be lost with it.
pub trait Forget {
    /// Forgets an HTCJob that is gone, or will be in a moment.
    fn forget(&self, uid: &Uid);

    /// Forgets all HTCJobs except these, which are all that there are.
    fn retain(&self, uids: &HashSet<Uid>);
}
