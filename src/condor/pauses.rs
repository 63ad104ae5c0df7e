//! Secrets with which HTCondor's tools do not end in time although the schedd answers others: a KDC that never answers does
//! that. Each has to wait before its next tool, so that it holds up others seldom.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::tools::ToolError;
use crate::api::Identity;
use crate::machine::Timestamp;
use crate::machine::facts::{Unknown, Why};
use crate::retry::Backoff;

/// The first pause of a namespace.
const FIRST: Duration = Duration::from_secs(60);
/// Its longest pause. After as long without a pause, the next one is the first again.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long ago the schedd has answered somebody, if it can be said to answer others. It may answer nobody for longer while it takes in
/// a large submission, and that is not the fault of who waits.
const JUST_NOW: Duration = Duration::from_secs(30);
/// A schedd that answered within this time is not silent.
const ANSWERS: Duration = Duration::from_secs(10);
/// Time for which an unanswered question counts. After that the schedd is tried again.
const SILENT: Duration = Duration::from_secs(120);
/// How long it takes says much of the output and little of who fetches it. Each namespace has workers of its own for that.
const MAY_TAKE_LONG: &str = "condor_transfer_data";

/// Who has to wait, and when the schedd has answered anybody.
#[derive(Debug, Default)]
pub struct Pauses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    answered: Option<Timestamp>,
    /// When a question last came to nothing because the schedd was not reached, or did not answer in time.
    unanswered: Option<Timestamp>,
    namespaces: HashMap<String, Namespace>,
}

/// Pauses grow with every Secret of the namespace: who has many does not begin anew with each.
#[derive(Debug)]
struct Namespace {
    backoff: Backoff,
    /// When the last of its pauses ends.
    last: Timestamp,
    secrets: HashMap<String, Pause>,
}

#[derive(Debug)]
struct Pause {
    until: Timestamp,
    message: String,
}

impl Pauses {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The schedd has answered somebody.
    pub(super) fn answered(&self, now: Timestamp) {
        self.with(|state| state.answered = state.answered.max(Some(now)));
    }

    /// The schedd was not reached, or did not answer in time. A transfer that takes long does not count.
    pub(super) fn unanswered(&self, tool: &str, now: Timestamp) {
        if tool != MAY_TAKE_LONG {
            self.with(|state| state.unanswered = state.unanswered.max(Some(now)));
        }
    }

    /// Whether the schedd has left the last question unanswered, by any identity, a short while ago.
    #[must_use]
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.with(|state| {
            let answers = state.answered.is_some_and(|at| Some(at) >= state.unanswered || now.since(at) < ANSWERS);
            !answers && state.unanswered.is_some_and(|at| now.since(at) < SILENT)
        })
    }

    /// A tool of this identity has failed. Nobody has to wait for a schedd that answers nobody.
    pub(super) fn failed(&self, identity: &Identity, error: &ToolError, now: Timestamp) {
        let (Identity::Secret { namespace, name }, ToolError::TimedOut { tool, limit, .. }) = (identity, error) else {
            return;
        };
        self.with(|state| {
            let answers = state.answered.is_some_and(|at| now.since(at) < JUST_NOW.min(*limit));
            if !answers || *tool == MAY_TAKE_LONG {
                return;
            }
            state.namespaces.retain(|_, namespace| now.since(namespace.last) <= LONGEST);
            let its = state.namespaces.entry(namespace.clone()).or_insert_with(|| Namespace {
                backoff: Backoff::new(FIRST, LONGEST),
                last: now,
                secrets: HashMap::new(),
            });
            its.secrets.retain(|_, pause| pause.until > now);
            if its.secrets.contains_key(name) {
                return;
            }
            let until = now.plus(its.backoff.pause());
            its.last = its.last.max(until);
            let message = format!(
                "{error}, with the credentials in the Secret {identity}, while the schedd answers others; check that the KDC of their \
                 realm answers. The operator tries again after a pause, which grows up to {} min",
                LONGEST.as_secs() / 60
            );
            tracing::warn!(identity = identity.logged(), "no tool is started for a while: {message}");
            its.secrets.insert(name.clone(), Pause { until, message });
        });
    }

    /// Why no tool may be started for this identity now, if that is so.
    #[must_use]
    pub fn paused(&self, identity: &Identity, now: Timestamp) -> Option<Unknown> {
        let Identity::Secret { namespace, name } = identity else { return None };
        self.with(|state| {
            let pause = state.namespaces.get(namespace)?.secrets.get(name)?;
            let message = pause.message.clone();
            (pause.until > now).then_some(Unknown { why: Why::CredentialsFailed, message })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn of(namespace: &str, name: &str) -> Identity {
        Identity::Secret { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn late(tool: &'static str) -> ToolError {
        ToolError::TimedOut { tool, limit: LIMIT, dead: true }
    }

    /// A moment, in seconds.
    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1000)
    }

    #[test]
    fn a_schedd_is_silent_from_a_question_without_answer_to_the_next_answer() {
        let pauses = Pauses::default();
        assert!(!pauses.is_silent(at(0)), "nobody has asked");
        pauses.unanswered(MAY_TAKE_LONG, at(100));
        assert!(!pauses.is_silent(at(100)), "a transfer that hangs says nothing about the schedd");
        pauses.unanswered("condor_q", at(100));
        assert!(pauses.is_silent(at(101)) && !pauses.is_silent(at(221)), "it is tried again after a while");
        pauses.answered(at(110));
        assert!(!pauses.is_silent(at(111)));
        pauses.unanswered("condor_q", at(115));
        assert!(!pauses.is_silent(at(116)), "it has just answered somebody");
        assert!(pauses.is_silent(at(121)));
        pauses.answered(at(122));
        assert!(!pauses.is_silent(at(140)));
    }

    #[test]
    fn pauses_grow_over_all_secrets_of_a_namespace_and_end() {
        let pauses = Pauses::default();
        let mut now = at(0);
        for (turn, shortest) in [40, 90, 180, 370, 760].into_iter().enumerate() {
            let identity = of("evil", &format!("secret-{turn}"));
            pauses.answered(now);
            pauses.failed(&identity, &late("condor_ping"), now);
            let told = pauses.paused(&identity, now.plus(Duration::from_secs(shortest))).unwrap();
            assert_eq!(told.why, Why::CredentialsFailed);
            assert!(told.message.contains("evil/secret-") && told.message.contains("condor_ping"), "{}", told.message);
            assert!(pauses.paused(&of("good", "secret"), now).is_none());
            // Another tool that began before is no second offence.
            pauses.failed(&identity, &late("condor_submit"), now);
            now = now.plus(Duration::from_secs(shortest * 2));
            assert!(pauses.paused(&identity, now).is_none());
        }
        // After a long time of peace it begins anew.
        now = now.plus(LONGEST * 3);
        pauses.answered(now);
        pauses.failed(&of("evil", "secret"), &late("condor_ping"), now);
        assert!(pauses.paused(&of("evil", "secret"), now).is_some());
        assert!(pauses.paused(&of("evil", "secret"), now.plus(FIRST * 2)).is_none());
    }

    #[test]
    fn only_a_secret_waits_and_only_for_what_is_its_own() {
        let pauses = Pauses::default();
        let identity = of("a", "secret");
        // Nobody has had an answer.
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.paused(&identity, at(100)).is_none());
        pauses.answered(at(69));
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.paused(&identity, at(100)).is_none());
        pauses.answered(at(71));
        pauses.failed(&identity, &late("condor_transfer_data"), at(100));
        pauses.failed(&identity, &ToolError::Killed { tool: "condor_ping", signal: 9, dead: true }, at(100));
        pauses.failed(&Identity::Operator, &late("condor_ping"), at(100));
        assert!(pauses.paused(&identity, at(100)).is_none() && pauses.paused(&Identity::Operator, at(100)).is_none());
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.paused(&identity, at(100)).is_some());
    }
}
