//! Users whose jobs HTCondor cannot show together with those of others: who they are, and for how long ([`super::apart`] says why).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::machine::Timestamp;
use crate::machine::facts::Unknown;

/// How long after the last harm a user is asked about apart. It doubles each time that the user is found again.
const PROBATION: Duration = Duration::from_mins(10);
/// The longest.
const LONGEST_PROBATION: Duration = Duration::from_hours(24);
/// After so long without harm it begins anew.
const FORGOTTEN: Duration = Duration::from_hours(48);

/// Who is asked about apart.
#[derive(Debug, Default)]
pub(super) struct Suspects(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    users: BTreeMap<String, Suspect>,
    /// How often each was found, and when the last harm was: who does harm only now and then is not to be searched for each time.
    found: BTreeMap<String, (u32, Timestamp)>,
    /// History is asked about large ads apart, since then.
    history: Option<Timestamp>,
}

#[derive(Debug)]
struct Suspect {
    /// When it last did harm.
    harmful: Timestamp,
    /// Not to be asked about before, and why.
    rests: Option<(Timestamp, Unknown)>,
}

impl State {
    fn probation(&self, user: &str) -> Duration {
        let again = self.found.get(user).map_or(0, |(times, _)| times.saturating_sub(1));
        PROBATION.saturating_mul(1_u32.checked_shl(again).unwrap_or(u32::MAX)).min(LONGEST_PROBATION)
    }
}

impl Suspects {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn users(&self) -> BTreeSet<String> {
        self.with(|state| state.users.keys().cloned().collect())
    }

    pub(super) fn rests(&self, user: &str, now: Timestamp) -> Option<Unknown> {
        self.with(|state| {
            let (until, why) = state.users.get(user)?.rests.as_ref()?;
            (now < *until).then(|| why.clone())
        })
    }

    pub(super) fn did_harm(&self, user: &str, now: Timestamp) {
        let known = self.with(|state| {
            let known = state.users.insert(user.to_owned(), Suspect { harmful: now, rests: None }).is_some();
            state.found.retain(|_, (_, last)| now.since(*last) < FORGOTTEN);
            let (times, last) = state.found.entry(user.to_owned()).or_insert((0, now));
            *last = now;
            *times += u32::from(!known);
            known
        });
        if !known {
            tracing::warn!(
                user,
                "the jobs of this user are asked about apart: HTCondor cannot show them together with those of others; somebody may have written too much into one of them"
            );
        }
    }

    /// A question about this user alone was not answered: none is put until then. That may be so because there is much to show, so
    /// after a time, always the same, it is tried together with the others again.
    pub(super) fn did_not_answer(&self, user: &str, now: Timestamp, until: Timestamp, why: &Unknown) {
        let over = self.with(|state| {
            let suspect = state.users.entry(user.to_owned()).or_insert(Suspect { harmful: now, rests: None });
            suspect.rests = Some((until, why.clone()));
            let over = now.since(suspect.harmful) >= PROBATION;
            if over {
                state.users.remove(user);
            }
            over
        });
        tracing::debug!(user, over, why = %why.why, message = %why.message, "no answer about this user's jobs");
    }

    pub(super) fn did_none(&self, user: &str, now: Timestamp) {
        let over = self.with(|state| {
            let probation = state.probation(user);
            let over = state.users.get(user).is_some_and(|suspect| now.since(suspect.harmful) >= probation);
            if over {
                state.users.remove(user);
            }
            over
        });
        if over {
            tracing::info!(user, "the jobs of this user are asked about together with those of others again");
        }
    }

    /// Whether history is to be asked about large ads apart.
    pub(super) fn in_history(&self, now: Timestamp) -> bool {
        self.with(|state| state.history.is_some_and(|since| now.since(since) < PROBATION))
    }

    /// From now on it is.
    pub(super) fn suspect_history(&self, now: Timestamp) {
        self.with(|state| state.history = Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::facts::Why;

    #[test]
    fn who_does_no_harm_for_long_is_no_suspect() {
        let (suspects, at) = (Suspects::default(), |minute: i64| Timestamp(minute * 60_000));
        suspects.did_harm("alice", at(0));
        suspects.did_none("alice", at(9));
        suspects.did_harm("alice", at(9));
        suspects.did_none("alice", at(18));
        assert_eq!(suspects.users().len(), 1);
        suspects.did_none("alice", at(19));
        assert!(suspects.users().is_empty());
        let why = Unknown { why: Why::ScheddUnreachable, message: "slow".to_owned() };
        suspects.did_not_answer("bob", at(20), at(22), &why);
        assert_eq!((suspects.rests("bob", at(21)), suspects.rests("bob", at(22))), (Some(why.clone()), None));
        suspects.did_not_answer("bob", at(29), at(30), &why);
        assert_eq!(suspects.users().len(), 1);
        suspects.did_not_answer("bob", at(30), at(31), &why);
        assert!(suspects.users().is_empty(), "the whole question has more time");
        assert!(!suspects.in_history(at(0)));
        suspects.suspect_history(at(0));
        assert!(suspects.in_history(at(9)) && !suspects.in_history(at(10)));
    }

    /// Who does harm, waits until it is forgotten, and does it again is searched for ever more seldom.
    #[test]
    fn who_is_found_again_and_again_is_asked_about_apart_for_longer() {
        let (suspects, mut now, mut waits) = (Suspects::default(), Timestamp(0), Vec::new());
        let minutes = |count: u64| Duration::from_mins(count);
        for _ in 0..10 {
            suspects.did_harm("alice", now);
            suspects.did_harm("alice", now);
            let found = now;
            while !suspects.users().is_empty() {
                now = now.plus(minutes(10));
                suspects.did_none("alice", now);
            }
            waits.push(now.since(found).as_secs() / 60);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        now = now.plus(FORGOTTEN);
        suspects.did_harm("alice", now);
        suspects.did_none("alice", now.plus(PROBATION));
        assert!(suspects.users().is_empty());
    }
}
