//! Changes of Jobs that the API server has refused. It may be lost with the process: they are tried again.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::Uid;

/// Of all HTCJobs, the API server's words.
#[derive(Debug, Default)]
pub struct Changes(Mutex<HashMap<Uid, String>>);

impl Changes {
    fn all(&self) -> MutexGuard<'_, HashMap<Uid, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last change was refused, if it was.
    #[must_use]
    pub fn refused(&self, uid: &Uid) -> Option<String> {
        self.all().get(uid).cloned()
    }

    /// Remembers that a change was refused.
    pub fn refuse(&self, uid: &Uid, why: String) {
        self.all().insert(uid.clone(), why);
    }

    /// Forgets what was refused: it was done, is wanted no more, or the HTCJob is gone.
    pub fn forget(&self, uid: &Uid) {
        self.all().remove(uid);
    }

    /// Forgets all HTCJobs but these.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }
}
