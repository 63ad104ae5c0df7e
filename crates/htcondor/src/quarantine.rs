//! Quarantine for users whose jobs HTCondor cannot list together with those of others: who they are, and for how long.
//! [`crate::bisection`] has the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use htc_machine::Timestamp;
use htc_machine::facts::QueryError;
use parking_lot::Mutex;

/// Time after the last harm for which a user's jobs are queried separately. Doubles each time that the user is found
/// again.
const PROBATION: Duration = Duration::from_mins(10);
/// Maximum probation.
const LONGEST_PROBATION: Duration = Duration::from_hours(24);
/// Time without harm after which the probation starts over at its first length.
const FORGOTTEN: Duration = Duration::from_hours(48);

/// Users whose jobs are queried separately. Harm means that a user's jobs made a query fail, or that one of their ads
/// is large.
#[derive(Debug, Default)]
pub(super) struct Quarantine(Mutex<QuarantineState>);

#[derive(Debug, Default)]
struct QuarantineState {
    users: BTreeMap<String, QuarantinedUser>,
    /// How often each user was found, and the time of the last harm. So a user who does harm only now and then does not
    /// cause a new search each time.
    found: BTreeMap<String, (u32, Timestamp)>,
    /// Time since which history is queried by the size of ads.
    history: Option<Timestamp>,
}

#[derive(Debug)]
struct QuarantinedUser {
    /// Time of the last harm.
    harmful: Timestamp,
    /// End of the pause before the next query, and its reason.
    rests: Option<(Timestamp, QueryError)>,
}

impl QuarantineState {
    fn probation(&self, user: &str) -> Duration {
        let again = self.found.get(user).map_or(0, |(times, _)| times.saturating_sub(1));
        PROBATION.saturating_mul(1_u32.checked_shl(again).unwrap_or(u32::MAX)).min(LONGEST_PROBATION)
    }
}

impl Quarantine {
    fn with<T>(&self, work: impl FnOnce(&mut QuarantineState) -> T) -> T {
        work(&mut self.0.lock())
    }

    pub(super) fn users(&self) -> BTreeSet<String> {
        self.with(|state| state.users.keys().cloned().collect())
    }

    pub(super) fn backoff(&self, user: &str, now: Timestamp) -> Option<QueryError> {
        self.with(|state| {
            let (until, why) = state.users.get(user)?.rests.as_ref()?;
            (now < *until).then(|| why.clone())
        })
    }

    pub(super) fn record_harm(&self, user: &str, now: Timestamp) {
        let known = self.with(|state| {
            let known = state.users.insert(user.to_owned(), QuarantinedUser { harmful: now, rests: None }).is_some();
            state.found.retain(|_, (_, last)| now.since(*last) < FORGOTTEN);
            let (times, last) = state.found.entry(user.to_owned()).or_insert((0, now));
            *last = now;
            *times += u32::from(!known);
            known
        });
        if !known {
            tracing::warn!(user, "user's jobs queried separately, their ads may be too large");
        }
    }

    /// Records a query about this user alone without an answer, and a pause until `until`. There may simply be many
    /// jobs to list. So after a fixed time the user is queried together with the others again.
    pub(super) fn record_timeout(&self, user: &str, now: Timestamp, until: Timestamp, why: &QueryError) {
        let over = self.with(|state| {
            let suspect = state.users.entry(user.to_owned()).or_insert(QuarantinedUser { harmful: now, rests: None });
            suspect.rests = Some((until, why.clone()));
            let over = now.since(suspect.harmful) >= PROBATION;
            if over {
                state.users.remove(user);
            }
            over
        });
        tracing::debug!(user, over, why = %why.kind, message = %why.message, "query of the user's jobs failed");
    }

    pub(super) fn record_clean_answer(&self, user: &str, now: Timestamp) {
        let over = self.with(|state| {
            let probation = state.probation(user);
            let over = state.users.get(user).is_some_and(|suspect| now.since(suspect.harmful) >= probation);
            if over {
                state.users.remove(user);
            }
            over
        });
        if over {
            tracing::info!(user, "user's jobs queried together with others again");
        }
    }

    /// Returns whether history is to be queried by the size of ads.
    pub(super) fn checks_history(&self, now: Timestamp) -> bool {
        self.with(|state| state.history.is_some_and(|since| now.since(since) < PROBATION))
    }

    /// Starts querying history by the size of ads.
    pub(super) fn start_checking_history(&self, now: Timestamp) {
        self.with(|state| state.history = Some(now));
    }
}

#[cfg(test)]
mod tests {
    use htc_machine::facts::QueryErrorKind;

    use super::*;

    #[test]
    fn user_leaves_quarantine_after_clean_answers() {
        let (suspects, at) = (Quarantine::default(), |minute: i64| Timestamp(minute * 60_000));
        suspects.record_harm("alice", at(0));
        suspects.record_clean_answer("alice", at(9));
        suspects.record_harm("alice", at(9));
        suspects.record_clean_answer("alice", at(18));
        assert_eq!(suspects.users().len(), 1);
        suspects.record_clean_answer("alice", at(19));
        assert!(suspects.users().is_empty());
        let why = QueryError { kind: QueryErrorKind::ScheddUnreachable, message: "slow".to_owned() };
        suspects.record_timeout("bob", at(20), at(22), &why);
        assert_eq!((suspects.backoff("bob", at(21)), suspects.backoff("bob", at(22))), (Some(why.clone()), None));
        suspects.record_timeout("bob", at(29), at(30), &why);
        assert_eq!(suspects.users().len(), 1);
        suspects.record_timeout("bob", at(30), at(31), &why);
        assert!(suspects.users().is_empty(), "the whole question has more time");
        assert!(!suspects.checks_history(at(0)));
        suspects.start_checking_history(at(0));
        assert!(suspects.checks_history(at(9)) && !suspects.checks_history(at(10)));
    }

    /// A user who does harm, waits until it is forgotten, and does it again, causes a search ever more seldom.
    #[test]
    fn quarantine_of_a_repeat_offender_grows() {
        let (suspects, mut now, mut waits) = (Quarantine::default(), Timestamp(0), Vec::new());
        let minutes = |count: u64| Duration::from_mins(count);
        for _ in 0..10 {
            suspects.record_harm("alice", now);
            suspects.record_harm("alice", now);
            let found = now;
            while !suspects.users().is_empty() {
                now = now.plus(minutes(10));
                suspects.record_clean_answer("alice", now);
            }
            waits.push(now.since(found).as_secs() / 60);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        now = now.plus(FORGOTTEN);
        suspects.record_harm("alice", now);
        suspects.record_clean_answer("alice", now.plus(PROBATION));
        assert!(suspects.users().is_empty());
    }
}
