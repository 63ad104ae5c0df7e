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
    /// None: it would be refused for the same again.
    until: Option<Timestamp>,
    pauses: Backoff,
}

impl Creations {
    fn all(&self) -> MutexGuard<'_, HashMap<Uid, Refused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be tried now.
    #[must_use]
    pub fn may(&self, uid: &Uid, now: Timestamp) -> Create {
        match self.all().get(uid) {
            Some(refused) if refused.until.is_none_or(|until| until > now) => Create::Refused {
                reason: refused.reason,
                message: refused.message.clone(),
                again: refused.until.map(|until| until.since(now)),
            },
            Some(_) | None => Create::May,
        }
    }

    /// The API server has refused it.
    pub fn refused(&self, uid: &Uid, reason: Reason, message: String, now: Timestamp) {
        let mut all = self.all();
        let mut pauses = all.remove(uid).map_or_else(|| Backoff::new(PAUSES.0, PAUSES.1), |refused| refused.pauses);
        let until = Some(now.plus(pauses.pause()));
        all.insert(uid.clone(), Refused { reason, message, until, pauses });
    }

    /// Nothing that may change is wrong with it: this process does not try again.
    pub fn never(&self, uid: &Uid, reason: Reason, message: String) {
        let pauses = Backoff::new(PAUSES.0, PAUSES.1);
        self.all().insert(uid.clone(), Refused { reason, message, until: None, pauses });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_again_unless_nothing_of_it_may_change() {
        let (all, uid, at) = (Creations::default(), Uid::from("u"), |seconds: i64| Timestamp(1000 * seconds));
        all.refused(&uid, Reason::CreateRefused, "quota".to_owned(), at(0));
        assert!(matches!(all.may(&uid, at(0)), Create::Refused { again: Some(again), .. } if again <= PAUSES.1));
        assert_eq!(all.may(&uid, at(120)), Create::May);
        all.never(&uid, Reason::InvalidSpec, "too large".to_owned());
        assert!(matches!(all.may(&uid, at(1 << 40)), Create::Refused { reason: Reason::InvalidSpec, again: None, .. }));
        all.forget(&uid);
        assert_eq!(all.may(&uid, at(0)), Create::May);
    }
}
