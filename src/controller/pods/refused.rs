//! Jobs that the API server has refused, and when they are tried again. It may be lost with the process.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::api::Reason;
use crate::machine::pods::Create;
use crate::machine::{Timestamp, Uid};
use crate::retry::Backoff;

/// First and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Of all objects.
#[derive(Debug, Default)]
pub struct Creations(Mutex<HashMap<Uid, Refused>>);

#[derive(Debug)]
struct Refused {
    reason: Reason,
    message: String,
    until: Timestamp,
    pauses: Backoff,
}

impl Creations {
    fn all(&self) -> MutexGuard<'_, HashMap<Uid, Refused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be tried now.
    pub(super) fn may(&self, uid: &Uid, now: Timestamp) -> Create {
        match self.all().get(uid) {
            Some(refused) if refused.until > now => Create::Refused {
                reason: refused.reason,
                message: refused.message.clone(),
                again: refused.until.since(now),
            },
            Some(_) | None => Create::May,
        }
    }

    pub(super) fn refused(&self, uid: &Uid, reason: Reason, message: String, now: Timestamp) {
        let mut all = self.all();
        let mut pauses = all.remove(uid).map_or_else(|| Backoff::new(PAUSES.0, PAUSES.1), |refused| refused.pauses);
        let until = now.plus(pauses.pause());
        all.insert(uid.clone(), Refused { reason, message, until, pauses });
    }

    /// It was created, or is gone.
    pub fn forget(&self, uid: &Uid) {
        self.all().remove(uid);
    }

    /// Forgets all objects but these.
    pub fn keep(&self, uids: &HashSet<Uid>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }
}
