//! How much of what costs the leader memory and processes it does at once, for all fronts together and for each user: nobody has
//! everybody's turns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::procs::answer::Failure;
use crate::procs::share::Sharer;

/// Most archives that are sent at once: the names of their files are in memory for as long.
const ARCHIVES: usize = 16;
/// To one user.
const ARCHIVES_OF_A_USER: usize = 2;
/// Most logs of jobs that run: each is a process `condor_tail`, and one that is followed lasts.
const LOGS: usize = 64;
/// For one user.
const LOGS_OF_A_USER: usize = 8;
/// Most jobs whose analysis HTCondor makes at once: each is a process that reads the ads of all slots, and may have
/// [`crate::condor::confined`]'s memory. One for each user.
const ANALYSES: usize = 2;
/// Most steps of lists and watches that wait for the ledger's thread at once. Other requests to the ledger wait for these at most.
const STEPS: usize = 2;
/// How long a request waits for its turn: the front waits longer for an answer.
const WAIT: Duration = Duration::from_secs(20);

/// What may be done at once; clones share it.
#[derive(Clone, Debug)]
pub struct Turns {
    archives: Arc<Kind>,
    logs: Arc<Kind>,
    analyses: Arc<Kind>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            archives: Arc::new(Kind::new("archives of files", ARCHIVES, ARCHIVES_OF_A_USER)),
            logs: Arc::new(Kind::new("logs of jobs that run", LOGS, LOGS_OF_A_USER)),
            analyses: Arc::new(Kind::new("analyses of idle jobs", ANALYSES, 1)),
        }
    }
}

impl Turns {
    /// A turn to send this user an archive.
    pub(super) async fn archive(&self, user: &str) -> Result<Turn, Failure> {
        self.archives.turn(user, WAIT).await
    }

    /// A turn to read the log of a job that runs for this user.
    pub(super) async fn log(&self, user: &str) -> Result<Turn, Failure> {
        self.logs.turn(user, WAIT).await
    }

    /// A turn to ask HTCondor for this user why a job does not run.
    pub(super) async fn analysis(&self, user: &str) -> Result<Turn, Failure> {
        self.analyses.turn(user, WAIT).await
    }
}

/// Steps in which jobs are read from the ledger for people, one of each user at a time; clones share the number.
#[derive(Clone, Debug)]
pub struct Steps {
    kind: Arc<Kind>,
    user: String,
}

impl Default for Steps {
    fn default() -> Self {
        Self { kind: Arc::new(Kind::new("lists of jobs", STEPS, 1)), user: String::new() }
    }
}

impl Steps {
    /// Those of this user.
    pub(super) fn of(&self, user: &str) -> Self {
        Self { kind: Arc::clone(&self.kind), user: user.to_owned() }
    }

    /// A turn to take one step. A step takes milliseconds, thus it is waited for without a limit.
    pub(super) async fn next(&self) -> Option<Turn> {
        // Neither semaphore is ever closed.
        let of_the_user = self.kind.of(&Sharer::of(&self.user)).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.kind.all).acquire_owned().await.ok()?;
        Some(Turn { _of_the_user: of_the_user, _of_all: of_all })
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _of_the_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// The turns to do one thing.
#[derive(Debug)]
struct Kind {
    what: &'static str,
    all: Arc<Semaphore>,
    /// How many a user may have, or the service accounts of a namespace.
    each: usize,
    /// Of those who have turns, or wait for one.
    users: Mutex<HashMap<Sharer, Arc<Semaphore>>>,
}

impl Kind {
    fn new(what: &'static str, all: usize, each: usize) -> Self {
        Self { what, all: Arc::new(Semaphore::new(all)), each, users: Mutex::default() }
    }

    async fn turn(&self, user: &str, wait: Duration) -> Result<Turn, Failure> {
        let Self { what, each, .. } = self;
        let (until, sharer) = (Instant::now() + wait, Sharer::of(user));
        // Who waits for his own turns holds up nobody else.
        let Ok(Ok(of_the_user)) = timeout_at(until, self.of(&sharer).acquire_owned()).await else {
            return Err(Failure::too_many(format!(
                "{each} {what} are read for {sharer} at the moment, as many as may be: end one of them, or try again"
            )));
        };
        let Ok(Ok(of_all)) = timeout_at(until, Arc::clone(&self.all).acquire_owned()).await else {
            return Err(Failure::too_many(format!("too many {what} are read at the moment: try again")));
        };
        Ok(Turn { _of_the_user: of_the_user, _of_all: of_all })
    }

    fn of(&self, sharer: &Sharer) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has a turn, or waits for one, has his semaphore.
        users.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let made = || Arc::new(Semaphore::new(self.each));
        Arc::clone(users.entry(sharer.clone()).or_insert_with(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn who_has_as_many_turns_as_a_user_may_waits_and_others_do_not() {
        let turns = Turns::default();
        for (kind, all) in [(&turns.archives, ARCHIVES), (&turns.logs, LOGS), (&turns.analyses, ANALYSES)] {
            let mut taken = Vec::new();
            for _ in 0..kind.each {
                taken.push(kind.turn("ann", SHORT).await.unwrap());
            }
            let refused = kind.turn("ann", SHORT).await.map(drop).unwrap_err();
            assert_eq!((refused.code, refused.retry_after.is_some()), (429, true), "{}", refused.message);
            assert!(refused.message.contains(" are read for user \"ann\" at "), "{}", refused.message);
            assert_eq!(
                kind.all.available_permits(),
                all - kind.each,
                "who waits for his own takes none of the others'"
            );
            assert!(kind.turn("bob", SHORT).await.is_ok());
            let account = |number| format!("system:serviceaccount:physics:{number}");
            let mut robots = Vec::new();
            for number in 0..kind.each {
                robots.push(kind.turn(&account(number), SHORT).await.unwrap());
            }
            assert!(kind.turn(&account(kind.each), SHORT).await.is_err(), "whoever makes one makes many");
            let (next, ()) = tokio::join!(kind.turn("ann", WAIT), async { drop(taken.pop()) });
            assert!(next.is_ok(), "it waits for its turn");
        }
    }

    #[tokio::test]
    async fn steps_of_one_user_follow_each_other_and_leave_room_for_others() {
        let steps = Steps::default();
        let (ann, bob, eve) = (steps.of("ann"), steps.of("bob"), steps.of("eve"));
        let anns = ann.next().await;
        let waits = async |steps: &Steps| tokio::time::timeout(SHORT, steps.next()).await.is_err();
        assert!(anns.is_some() && waits(&ann).await);
        let bobs = bob.next().await;
        assert!(bobs.is_some() && waits(&eve).await, "as many as there may be");
        let (eves, ()) = tokio::join!(eve.next(), async { drop(anns) });
        assert!(eves.is_some());
    }

    #[tokio::test]
    async fn who_gets_no_turn_is_told_to_come_again() {
        let turns = Turns::default();
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

    #[tokio::test]
    async fn who_has_no_turn_is_not_kept_in_mind() {
        let turns = Turns::default();
        let kept = turns.log("ann").await.unwrap();
        for number in 0..1000 {
            drop(turns.log(&format!("user-{number}")).await.unwrap());
        }
        let users = || turns.logs.users.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        assert!(users().len() <= 2 && users().contains(&Sharer::of("ann")), "{:?}", users());
        drop(kept);
    }
}
