//! Garbage collection: removes what is left of `HTCJob`s that are gone. Their sandbox is removed at once, their
//! output and their rows in the ledger after a set time.
//!
//! Only objects that the ledger records as released are touched, and only once Kubernetes says that the object does
//! not exist: one that came back with a restored etcd keeps all it has.

use std::time::Duration;

use htc_ledger::{Artifact, Ledger, LedgerError, Released};
use htc_machine::{Timestamp, Uid};
use htc_support::clock::Clock;
use htc_support::fence::{Fence, FenceClosed};
use htc_support::kubernetes::{ListError, htcjob_uids};
use htc_support::retry::Backoff;
use kube::Client;
use tokio::task::JoinError;

use crate::output::layout::OutputLayout;

/// Time for which a list of the existing HTCJobs is valid.
const LISTED: Duration = Duration::from_secs(30);
/// Number of objects looked up at once.
const BATCH: u32 = 500;
/// Longest pause between two rounds that remove nothing of what they find.
const LONGEST: Duration = Duration::from_secs(3600);

/// Retention times after an object is gone.
#[derive(Clone, Copy, Debug)]
pub struct RetentionTimes {
    /// For its output.
    pub output: Duration,
    /// For its rows; they stay at least until its files are removed.
    pub rows: Duration,
    /// Pause between two rounds.
    pub every: Duration,
}

/// Removes what is no longer retained.
pub struct GarbageCollector {
    pub client: Client,
    /// The only namespace that is watched, if there is one.
    pub namespace: Option<String>,
    pub ledger: Ledger,
    pub fence: Fence,
    pub clock: Clock,
    pub layout: OutputLayout,
    pub times: RetentionTimes,
}

/// Reason why a round has ended early. The next one tries again.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It is not known which of the objects exist again.
    #[error(transparent)]
    List(#[from] ListError),
    /// Nothing more may be removed.
    #[error(transparent)]
    FenceClosed(#[from] FenceClosed),
    /// The removal of files has panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

impl GarbageCollector {
    /// Runs until it is dropped.
    pub async fn run(self) {
        let mut backoff = Backoff::new(self.times.every, LONGEST.max(self.times.every));
        loop {
            tokio::time::sleep(backoff.pause()).await;
            let (mut all, mut failed) = (CollectResult::default(), false);
            for (left, kept) in [
                (Artifact::Sandbox, Duration::ZERO),
                (Artifact::Output, self.times.output),
                (Artifact::Rows, self.times.rows),
            ] {
                match self.clear(left, kept).await {
                    Ok(CollectResult { looked_at, removed }) => {
                        all.looked_at += looked_at;
                        all.removed += removed;
                    }
                    Err(error) => {
                        failed = true;
                        tracing::warn!(?left, message = %error, "remains of deleted HTCJobs not removed, retrying");
                    }
                }
            }
            // Released objects that still exist need not be looked up in every round.
            if !failed && (all.removed > 0 || all.looked_at == 0) {
                backoff.reset();
            }
        }
    }

    /// Removes this artifact of all objects that were released longer than `kept` ago. An object whose files cannot
    /// be removed does not block others.
    async fn clear(&self, left: Artifact, kept: Duration) -> Result<CollectResult, CollectError> {
        let mut cleared = CollectResult::default();
        let Some(until) = self.clock.now().before(kept) else {
            return Ok(cleared);
        };
        let (mut after, mut existing) = (None, None);
        while self.fence.check().is_ok() {
            let batch = self.ledger.released(left, until, after, BATCH).await?;
            let Some(last) = batch.last() else {
                break;
            };
            cleared.looked_at += batch.len();
            after = Some(last.uid.clone());
            // The list is not made once for all: removing may take long, and objects may come back with a restored
            // etcd.
            let listed = match existing.take() {
                Some((at, listed)) if self.clock.now().since(at) < LISTED => (at, listed),
                _ => (self.clock.now(), htcjob_uids(&self.client, self.namespace.as_deref()).await?),
            };
            let (_, existing) = existing.insert(listed);
            let ours =
                |released: &Released| self.namespace.as_ref().is_none_or(|only| *only == released.name.namespace);
            let gone = batch.into_iter().filter(|released| ours(released) && !existing.contains(&released.uid));
            cleared.removed += self.remove(left, until, gone.collect()).await?;
        }
        Ok(cleared)
    }

    async fn remove(&self, left: Artifact, until: Timestamp, gone: Vec<Released>) -> Result<usize, CollectError> {
        if left == Artifact::Rows {
            for released in &gone {
                loop {
                    self.fence.check()?;
                    if self.ledger.forget(released.uid.clone(), until).await? {
                        break;
                    }
                }
            }
            Ok(gone.len())
        } else {
            let (layout, fence) = (self.layout.clone(), self.fence.clone());
            let removed = tokio::task::spawn_blocking(move || remove_files(&layout, &fence, left, &gone)).await?;
            let count = removed.len();
            self.ledger.removed(left, removed).await?;
            Ok(count)
        }
    }
}

/// Result of one round.
#[derive(Default)]
struct CollectResult {
    /// Number of objects of which something could have been removed.
    looked_at: usize,
    /// Number of those of which something was removed.
    removed: usize,
}

/// Returns the objects whose files are gone now.
fn remove_files(layout: &OutputLayout, fence: &Fence, left: Artifact, gone: &[Released]) -> Vec<Uid> {
    let may_act = || fence.check().is_ok();
    let remove = |released: &&Released| {
        let Released { uid, name } = released;
        let removed = match left {
            Artifact::Sandbox => layout.discard_sandbox(uid, &may_act),
            Artifact::Output => layout.discard_output(name, uid, &may_act),
            Artifact::Rows => Ok(()),
        };
        match &removed {
            Ok(()) => {
                tracing::debug!(namespace = name.namespace, htcjob = name.name, %uid, ?left, "remains of a deleted HTCJob removed");
            }
            Err(error) => {
                tracing::warn!(namespace = name.namespace, htcjob = name.name, %uid, ?left, %error, "remains of a deleted HTCJob not removed, retrying");
            }
        }
        removed.is_ok()
    };
    gone.iter().take_while(|_| may_act()).filter(remove).map(|released| released.uid.clone()).collect()
}
