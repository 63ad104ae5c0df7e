//! Jobs whose creation the API server has refused, and when they are retried. This may be lost with the process.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use htc_api::Reason;
use htc_machine::pods::Creation;
use htc_machine::{Timestamp, Uid};
use htc_support::retry::Backoffs;
use parking_lot::Mutex;

/// First and longest pause before a retry.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Last refusal of each object.
#[derive(Debug, Default)]
pub struct RefusedCreations {
    retried: Mutex<Backoffs<Uid, (Reason, String), Timestamp>>,
    /// Refusals that a retry would repeat.
    permanent: Mutex<HashMap<Uid, (Reason, String)>>,
}

impl RefusedCreations {
    /// Returns whether the creation may be tried now.
    #[must_use]
    pub fn may_create(&self, uid: &Uid, now: Timestamp) -> Creation {
        if let Some((reason, message)) = self.permanent.lock().get(uid).cloned() {
            return Creation::Refused { reason, message, requeue_after: None };
        }
        self.retried.lock().active(uid, now).map_or(Creation::Allowed, |refused| {
            let (reason, message) = refused.cause.clone();
            Creation::Refused { reason, message, requeue_after: Some(refused.retry_at.since(now)) }
        })
    }

    /// Records that the API server refused the creation.
    pub fn record_refusal(&self, uid: &Uid, reason: Reason, message: String, now: Timestamp) {
        self.retried.lock().failed(uid.clone(), (reason, message), PAUSES, now);
    }

    /// Records a refusal whose cause cannot change: this process does not retry.
    pub fn record_permanent_refusal(&self, uid: &Uid, reason: Reason, message: String) {
        self.permanent.lock().insert(uid.clone(), (reason, message));
    }

    /// Forgets the refusal, because the Job was created or the HTCJob is gone.
    pub fn forget(&self, uid: &Uid) {
        self.retried.lock().reset(uid);
        self.permanent.lock().remove(uid);
    }

    /// Forgets all objects except these.
    pub fn retain(&self, uids: &HashSet<Uid>) {
        self.retried.lock().retain(|uid, _| uids.contains(uid));
        self.permanent.lock().retain(|uid, _| uids.contains(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_creation_is_retried_unless_permanent() {
        let (all, uid, at) = (RefusedCreations::default(), Uid::from("u"), |seconds: i64| Timestamp(1000 * seconds));
        all.record_refusal(&uid, Reason::CreateRefused, "quota".to_owned(), at(0));
        assert!(
            matches!(all.may_create(&uid, at(0)), Creation::Refused { requeue_after: Some(again), .. } if again <= PAUSES.1)
        );
        assert_eq!(all.may_create(&uid, at(120)), Creation::Allowed);
        all.record_permanent_refusal(&uid, Reason::InvalidSpec, "too large".to_owned());
        assert!(matches!(
            all.may_create(&uid, at(1 << 40)),
            Creation::Refused { reason: Reason::InvalidSpec, requeue_after: None, .. }
        ));
        all.forget(&uid);
        assert_eq!(all.may_create(&uid, at(0)), Creation::Allowed);
    }
}
