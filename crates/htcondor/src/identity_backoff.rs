//! Back-off for Secrets with which HTCondor's tools time out although the schedd answers other identities. A KDC that
//! never answers causes that. Each such Secret has to wait before its next tool, so that it rarely delays others.

use std::collections::HashMap;
use std::time::Duration;

use htc_api::Identity;
use htc_machine::Timestamp;
use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_support::retry::Backoffs;
use parking_lot::Mutex;

use super::tools::ToolError;

/// First pause of a namespace.
const FIRST: Duration = Duration::from_secs(60);
/// Maximum pause. After this long without a pause, the next one has its first length again.
const LONGEST: Duration = Duration::from_secs(3600);
/// Age up to which the schedd's last answer to any identity proves that it answers others. During a large submission it
/// may answer no identity for longer than this; then the waiting identity is not at fault.
const JUST_NOW: Duration = Duration::from_secs(30);
/// Age of an answer up to which the schedd counts as responsive.
const ANSWERS: Duration = Duration::from_secs(10);
/// Time for which an unanswered query counts. After that the schedd is tried again.
const SILENT: Duration = Duration::from_secs(120);
/// Tool whose duration depends on the output rather than on the identity. Each namespace has workers of its own for it.
const MAY_TAKE_LONG: &str = "condor_transfer_data";

/// Identities that have to wait, and the time of the schedd's last answer to any identity.
#[derive(Debug, Default)]
pub struct IdentityBackoff(Mutex<BackoffState>);

#[derive(Debug, Default)]
struct BackoffState {
    answered: Option<Timestamp>,
    /// Time of the last query that failed because the schedd was not reached, or did not answer in time.
    unanswered: Option<Timestamp>,
    /// Pauses of each namespace. They grow with each of its Secrets: using many Secrets does not reset them.
    namespaces: Backoffs<String, (), Timestamp>,
    /// Secrets that have to wait.
    secrets: HashMap<Identity, Pause>,
}

#[derive(Debug)]
struct Pause {
    until: Timestamp,
    message: String,
}

impl IdentityBackoff {
    fn with<T>(&self, work: impl FnOnce(&mut BackoffState) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Records that the schedd has answered any identity.
    pub(super) fn record_answer(&self, now: Timestamp) {
        self.with(|state| state.answered = state.answered.max(Some(now)));
    }

    /// Records that the schedd was not reached, or did not answer in time. A transfer that takes long does not count.
    pub(super) fn record_timeout(&self, tool: &str, now: Timestamp) {
        if tool != MAY_TAKE_LONG {
            self.with(|state| state.unanswered = state.unanswered.max(Some(now)));
        }
    }

    /// Returns whether the schedd left the last query of any identity unanswered a short while ago.
    #[must_use]
    pub fn is_unresponsive(&self, now: Timestamp) -> bool {
        self.with(|state| {
            let answers = state.answered.is_some_and(|at| Some(at) >= state.unanswered || now.since(at) < ANSWERS);
            !answers && state.unanswered.is_some_and(|at| now.since(at) < SILENT)
        })
    }

    /// Records a failed tool of this identity. No back-off while the schedd answers no identity: this one is not at
    /// fault.
    pub(super) fn failed(&self, identity: &Identity, error: &ToolError, now: Timestamp) {
        let (Identity::Secret { namespace, .. }, ToolError::TimedOut { tool, limit, .. }) = (identity, error) else {
            return;
        };
        self.with(|state| {
            let answers = state.answered.is_some_and(|at| now.since(at) < JUST_NOW.min(*limit));
            if !answers || *tool == MAY_TAKE_LONG {
                return;
            }
            state.secrets.retain(|_, pause| pause.until > now);
            if state.secrets.contains_key(identity) {
                return;
            }
            state.namespaces.retain(|_, last| now.since(last.retry_at) <= LONGEST);
            let until = state.namespaces.failed(namespace.clone(), (), (FIRST, LONGEST), now);
            let message = format!(
                "{error}, with the credentials in the Secret {identity}, while the schedd answers others; check that the KDC of their \
                 realm answers. The operator tries again after a pause, which grows up to {} min",
                LONGEST.as_secs() / 60
            );
            tracing::warn!(identity = identity.logged(), %message, "tools paused for this identity");
            state.secrets.insert(identity.clone(), Pause { until, message });
        });
    }

    /// Returns why no tool may be started for this identity now, if that is so.
    #[must_use]
    pub fn active_backoff(&self, identity: &Identity, now: Timestamp) -> Option<QueryError> {
        self.with(|state| {
            let pause = state.secrets.get(identity)?;
            let message = pause.message.clone();
            (pause.until > now).then_some(QueryError { kind: QueryErrorKind::CredentialsFailed, message })
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

    /// Converts seconds to a timestamp.
    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1000)
    }

    #[test]
    fn schedd_is_unresponsive_from_a_timeout_to_the_next_answer() {
        let pauses = IdentityBackoff::default();
        assert!(!pauses.is_unresponsive(at(0)), "no query has run");
        pauses.record_timeout(MAY_TAKE_LONG, at(100));
        assert!(!pauses.is_unresponsive(at(100)), "a transfer that hangs says nothing about the schedd");
        pauses.record_timeout("condor_q", at(100));
        assert!(pauses.is_unresponsive(at(101)) && !pauses.is_unresponsive(at(221)), "it is tried again after a while");
        pauses.record_answer(at(110));
        assert!(!pauses.is_unresponsive(at(111)));
        pauses.record_timeout("condor_q", at(115));
        assert!(!pauses.is_unresponsive(at(116)), "the schedd has just answered another query");
        assert!(pauses.is_unresponsive(at(121)));
        pauses.record_answer(at(122));
        assert!(!pauses.is_unresponsive(at(140)));
    }

    #[test]
    fn backoff_grows_across_all_secrets_of_a_namespace_and_resets() {
        let pauses = IdentityBackoff::default();
        let mut now = at(0);
        for (turn, shortest) in [40, 90, 180, 370, 760].into_iter().enumerate() {
            let identity = of("evil", &format!("secret-{turn}"));
            pauses.record_answer(now);
            pauses.failed(&identity, &late("condor_ping"), now);
            let told = pauses.active_backoff(&identity, now.plus(Duration::from_secs(shortest))).unwrap();
            assert_eq!(told.kind, QueryErrorKind::CredentialsFailed);
            assert!(told.message.contains("evil/secret-") && told.message.contains("condor_ping"), "{}", told.message);
            assert!(pauses.active_backoff(&of("good", "secret"), now).is_none());
            // A tool that began before the pause does not start another one.
            pauses.failed(&identity, &late("condor_submit"), now);
            now = now.plus(Duration::from_secs(shortest * 2));
            assert!(pauses.active_backoff(&identity, now).is_none());
        }
        // Long after the last pause, the first length applies again.
        now = now.plus(LONGEST * 3);
        pauses.record_answer(now);
        pauses.failed(&of("evil", "secret"), &late("condor_ping"), now);
        assert!(pauses.active_backoff(&of("evil", "secret"), now).is_some());
        assert!(pauses.active_backoff(&of("evil", "secret"), now.plus(FIRST * 2)).is_none());
    }

    #[test]
    fn only_a_secret_backs_off_and_only_for_its_own_failures() {
        let pauses = IdentityBackoff::default();
        let identity = of("a", "secret");
        // The schedd has answered no identity.
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.active_backoff(&identity, at(100)).is_none());
        pauses.record_answer(at(69));
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.active_backoff(&identity, at(100)).is_none());
        pauses.record_answer(at(71));
        pauses.failed(&identity, &late("condor_transfer_data"), at(100));
        pauses.failed(&identity, &ToolError::Killed { tool: "condor_ping", signal: 9, dead: true }, at(100));
        pauses.failed(&Identity::Operator, &late("condor_ping"), at(100));
        assert!(
            pauses.active_backoff(&identity, at(100)).is_none()
                && pauses.active_backoff(&Identity::Operator, at(100)).is_none()
        );
        pauses.failed(&identity, &late("condor_ping"), at(100));
        assert!(pauses.active_backoff(&identity, at(100)).is_some());
    }
}
