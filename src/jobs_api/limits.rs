//! Concurrency limits of the leader for requests that cost memory or processes: over all fronts, and for each user,
//! so that no user can take everybody's permits.

use std::sync::Arc;
use std::time::Duration;

use htc_support::fair_limiter::{Exhausted, FairLimiter, FairPermit};

use crate::jobs_api::resource::flow::Flow;
use crate::jobs_api::resource::status_error::StatusError;

/// Maximum number of archives sent at once: the names of their files are in memory for as long.
const ARCHIVES: usize = 16;
/// The same for one user.
const ARCHIVES_OF_A_USER: usize = 2;
/// Maximum number of logs of running jobs: each is a process `condor_tail`, and a followed one lasts.
const LOGS: usize = 64;
/// The same for one user.
const LOGS_OF_A_USER: usize = 8;
/// Maximum number of analyses that HTCondor makes at once: each is a process that reads the ads of all slots, and may
/// use [`htcondor::confinement`]'s memory. One for each user.
const ANALYSES: usize = 2;
/// Maximum number of steps of lists and watches that wait for the ledger's thread at once. Other requests to the
/// ledger wait for these at most.
const STEPS: usize = 2;
/// Maximum time that a request waits for a permit: the front waits longer for an answer.
const WAIT: Duration = Duration::from_secs(20);

/// Concurrency limits of the jobs API; clones share them.
#[derive(Clone, Debug)]
pub struct JobsApiLimits {
    archives: Arc<PerUserLimiter>,
    logs: Arc<PerUserLimiter>,
    analyses: Arc<PerUserLimiter>,
}

impl Default for JobsApiLimits {
    fn default() -> Self {
        Self {
            archives: Arc::new(PerUserLimiter::new("archives of files", ARCHIVES, ARCHIVES_OF_A_USER)),
            logs: Arc::new(PerUserLimiter::new("logs of jobs that run", LOGS, LOGS_OF_A_USER)),
            analyses: Arc::new(PerUserLimiter::new("analyses of idle jobs", ANALYSES, 1)),
        }
    }
}

impl JobsApiLimits {
    /// Acquires a permit to send this user an archive.
    pub(super) async fn archive(&self, user: &str) -> Result<FairPermit, StatusError> {
        self.archives.turn(user, WAIT).await
    }

    /// Acquires a permit to read the log of a running job for this user.
    pub(super) async fn log(&self, user: &str) -> Result<FairPermit, StatusError> {
        self.logs.turn(user, WAIT).await
    }

    /// Acquires a permit to ask HTCondor for this user why a job does not run.
    pub(super) async fn analysis(&self, user: &str) -> Result<FairPermit, StatusError> {
        self.analyses.turn(user, WAIT).await
    }
}

/// Permits to read jobs from the ledger for users, one step of each user at a time; clones share them.
#[derive(Clone, Debug)]
pub struct LedgerSteps {
    limiter: Arc<FairLimiter<Flow>>,
    user: Flow,
}

impl Default for LedgerSteps {
    fn default() -> Self {
        Self { limiter: Arc::new(FairLimiter::never_slow(STEPS, 1)), user: Flow::of("") }
    }
}

impl LedgerSteps {
    /// Returns the permits of this user.
    pub(super) fn of(&self, user: &str) -> Self {
        Self { limiter: Arc::clone(&self.limiter), user: Flow::of(user) }
    }

    /// Acquires a permit for one step. Steps take milliseconds, so there is no time limit.
    pub(super) async fn acquire(&self) -> Option<FairPermit> {
        self.limiter.acquire(self.user.clone()).await
    }
}

/// Permits for one kind of work, in all and for each user.
#[derive(Debug)]
struct PerUserLimiter {
    what: &'static str,
    /// Number of permits for a user, or for the service accounts of a namespace.
    each: usize,
    limiter: FairLimiter<Flow>,
}

impl PerUserLimiter {
    fn new(what: &'static str, all: usize, each: usize) -> Self {
        Self { what, each, limiter: FairLimiter::never_slow(all, each) }
    }

    async fn turn(&self, user: &str, wait: Duration) -> Result<FairPermit, StatusError> {
        let (Self { what, each, limiter }, flow) = (self, Flow::of(user));
        limiter.acquire_within(flow.clone(), wait).await.map_err(|exhausted| {
            StatusError::too_many(match exhausted {
                Exhausted::Key => format!(
                    "{each} {what} are read for {flow} at the moment, as many as may be: end one of them, or try again"
                ),
                Exhausted::All => format!("too many {what} are read at the moment: try again"),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn user_at_the_limit_waits_and_others_do_not() {
        let turns = JobsApiLimits::default();
        for (kind, all) in [(&turns.archives, ARCHIVES), (&turns.logs, LOGS), (&turns.analyses, ANALYSES)] {
            let mut taken = Vec::new();
            for _ in 0..kind.each {
                taken.push(kind.turn("ann", SHORT).await.unwrap());
            }
            let refused = kind.turn("ann", SHORT).await.map(drop).unwrap_err();
            assert_eq!((refused.code, refused.retry_after.is_some()), (429, true), "{}", refused.message);
            assert!(refused.message.contains(" are read for user \"ann\" at "), "{}", refused.message);
            let mut others = Vec::new();
            while let Ok(turn) = kind.turn(&format!("user-{}", others.len()), SHORT).await {
                others.push(turn);
            }
            assert_eq!(others.len(), all - kind.each, "who waits for his own takes none of the others'");
            drop(others);
            let account = |number| format!("system:serviceaccount:physics:{number}");
            let mut robots = Vec::new();
            for number in 0..kind.each {
                robots.push(kind.turn(&account(number), SHORT).await.unwrap());
            }
            assert!(
                kind.turn(&account(kind.each), SHORT).await.is_err(),
                "all service accounts of a namespace share one limit"
            );
            let (next, ()) = tokio::join!(kind.turn("ann", WAIT), async { drop(taken.pop()) });
            assert!(next.is_ok(), "it waits for its turn");
        }
    }

    #[tokio::test]
    async fn ledger_steps_of_one_user_are_serialized() {
        let steps = LedgerSteps::default();
        let (ann, bob, eve) = (steps.of("ann"), steps.of("bob"), steps.of("eve"));
        let anns = ann.acquire().await;
        let waits = async |steps: &LedgerSteps| tokio::time::timeout(SHORT, steps.acquire()).await.is_err();
        assert!(anns.is_some() && waits(&ann).await);
        let bobs = bob.acquire().await;
        assert!(bobs.is_some() && waits(&eve).await, "as many as there may be");
        let (eves, ()) = tokio::join!(eve.acquire(), async { drop(anns) });
        assert!(eves.is_some());
    }

    #[tokio::test]
    async fn request_over_the_limit_gets_429_with_retry_after() {
        let turns = JobsApiLimits::default();
        let mut taken = Vec::new();
        for number in 0..ARCHIVES {
            taken.push(turns.archive(&format!("user-{}", number / ARCHIVES_OF_A_USER)).await.unwrap());
        }
        let refused = turns.archives.turn("another", SHORT).await.map(drop).unwrap_err();
        assert_eq!((refused.code, refused.retry_after.is_some()), (429, true), "{}", refused.message);
        let (next, ()) = tokio::join!(turns.archive("another"), async { drop(taken.pop()) });
        assert!(next.is_ok(), "it waits for its turn");
        assert!(turns.log("another").await.is_ok());
    }
}
