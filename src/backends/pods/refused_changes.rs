//! Changes of Jobs that the API server has refused. This may be lost with the process: then the changes are tried
//! again.

use std::collections::{HashMap, HashSet};

use htc_machine::Uid;
use parking_lot::{Mutex, MutexGuard};

/// Last refusal of each HTCJob, in the API server's words.
#[derive(Debug, Default)]
pub struct RefusedChanges(Mutex<HashMap<Uid, String>>);

impl RefusedChanges {
    fn all(&self) -> MutexGuard<'_, HashMap<Uid, String>> {
        self.0.lock()
    }

    /// Returns why the last change was refused, if it was.
    #[must_use]
    pub fn refusal_of(&self, uid: &Uid) -> Option<String> {
        self.all().get(uid).cloned()
    }

    /// Records that a change was refused.
    pub fn record_refusal(&self, uid: &Uid, why: String) {
        self.all().insert(uid.clone(), why);
    }

    /// Forgets a refusal, because the change succeeded or is no longer wanted, or the HTCJob is gone.
    pub fn forget(&self, uid: &Uid) {
        self.all().remove(uid);
    }

    /// Forgets all HTCJobs except these.
    pub fn retain(&self, uids: &HashSet<Uid>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }
}
