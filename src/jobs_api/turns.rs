//! How much of what costs the leader memory and processes it does at once, for all fronts together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::procs::answer::Failure;

/// Most archives that are sent at once: the names of their files are in memory for as long.
const ARCHIVES: usize = 16;
/// Most logs of jobs that run: each is a process `condor_tail`.
const LOGS: usize = 64;
/// How long a request waits for its turn: the front waits longer for an answer.
const WAIT: Duration = Duration::from_secs(20);

/// What may be done at once; clones share it.
#[derive(Clone, Debug)]
pub struct Turns {
    archives: Arc<Semaphore>,
    logs: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { archives: Arc::new(Semaphore::new(ARCHIVES)), logs: Arc::new(Semaphore::new(LOGS)) }
    }
}

impl Turns {
    /// A turn to send an archive; it lasts until it is dropped.
    pub(super) async fn archive(&self) -> Result<OwnedSemaphorePermit, Failure> {
        turn(&self.archives, WAIT, "the files of too many jobs are").await
    }

    /// A turn to read the log of a job that runs.
    pub(super) async fn log(&self) -> Result<OwnedSemaphorePermit, Failure> {
        turn(&self.logs, WAIT, "the logs of too many jobs that run are").await
    }
}

async fn turn(turns: &Arc<Semaphore>, wait: Duration, what: &str) -> Result<OwnedSemaphorePermit, Failure> {
    match tokio::time::timeout(wait, Arc::clone(turns).acquire_owned()).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) | Err(_) => Err(Failure::too_many(format!("{what} read at the moment: try again"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_gets_no_turn_is_told_to_come_again() {
        let all = Turns::default();
        let mut turns = Vec::new();
        for _ in 0..ARCHIVES {
            turns.push(all.archive().await.unwrap());
        }
        let refused = turn(&all.archives, Duration::from_millis(10), "they are").await.map(drop).unwrap_err();
        assert_eq!((refused.code, refused.retry_after.is_some()), (429, true), "{}", refused.message);
        let (next, ()) = tokio::join!(all.archive(), async { drop(turns.pop()) });
        assert!(next.is_ok(), "it waits for its turn");
        assert!(all.log().await.is_ok());
    }
}
