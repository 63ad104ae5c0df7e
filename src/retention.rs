//! Housekeeping: what is left of `HTCJob`s that are gone goes when its time is over. Their sandbox at once, their output and
//! their rows after a set time.
//!
//! Only what the ledger says was let go is touched, and only once Kubernetes says that the object does not exist: one that
//! came back with a restored etcd keeps all it has.

use std::time::Duration;

use kube::Client;

use crate::clock::Clock;
use crate::fence::Fence;
use crate::ledger::{Artifact, Ledger, Released};
use crate::machine::{Timestamp, Uid};
use crate::retry::Backoff;
use crate::workers::Planner;

/// So long a list of the HTCJobs that exist is good enough.
const LISTED: Duration = Duration::from_secs(30);
/// Objects that are looked up at once.
const BATCH: u32 = 500;
/// Longest pause between two looks that remove nothing of what they find.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long what is left of an object is kept.
#[derive(Clone, Copy, Debug)]
pub struct RetentionTimes {
    /// Its output.
    pub output: Duration,
    /// Its rows; they stay at least until its files are removed.
    pub rows: Duration,
    /// Pause between two looks.
    pub every: Duration,
}

/// Removes what need not be kept any more.
pub struct Keeper {
    /// The API server.
    pub client: Client,
    /// The only namespace that is watched, if there is one.
    pub namespace: Option<String>,
    /// The journal.
    pub ledger: Ledger,
    /// Whether this operator may act.
    pub fence: Fence,
    /// The clock.
    pub clock: Clock,
    /// Where the files lie.
    pub planner: Planner,
    /// How long what is kept.
    pub times: RetentionTimes,
}

impl Keeper {
    /// Runs until it is dropped.
    pub async fn run(self) {
        let mut backoff = Backoff::new(self.times.every, LONGEST.max(self.times.every));
        loop {
            tokio::time::sleep(backoff.pause()).await;
            let (mut all, mut failed) = (Cleared::default(), false);
            for (left, kept) in [
                (Artifact::Sandbox, Duration::ZERO),
                (Artifact::Output, self.times.output),
                (Artifact::Rows, self.times.rows),
            ] {
                match self.clear(left, kept).await {
                    Ok(Cleared { looked_at, removed }) => {
                        all.looked_at += looked_at;
                        all.removed += removed;
                    }
                    Err(message) => {
                        failed = true;
                        tracing::warn!(?left, %message, "what HTCJobs that are gone have left cannot be removed now; it is tried again");
                    }
                }
            }
            // Objects that stay although they were let go need not be looked up every time.
            if !failed && (all.removed > 0 || all.looked_at == 0) {
                backoff.reset();
            }
        }
    }

    /// Removes this of all objects that were let go longer than `kept` ago. One whose files cannot be removed holds up no
    /// other.
    async fn clear(&self, left: Artifact, kept: Duration) -> Result<Cleared, String> {
        let mut cleared = Cleared::default();
        let Some(until) = self.clock.now().before(kept) else {
            return Ok(cleared);
        };
        let (mut after, mut existing) = (None, None);
        while self.fence.check().is_ok() {
            let batch = self.ledger.released(left, until, after, BATCH).await.map_err(|error| error.to_string())?;
            let Some(last) = batch.last() else {
                break;
            };
            cleared.looked_at += batch.len();
            after = Some(last.uid.clone());
            // Not once for all: removing may take long, and objects may come back with a restored etcd.
            let listed = match existing.take() {
                Some((at, listed)) if self.clock.now().since(at) < LISTED => (at, listed),
                _ => (self.clock.now(), crate::orphans::objects(&self.client, self.namespace.as_deref()).await?),
            };
            let (_, existing) = existing.insert(listed);
            let ours =
                |released: &Released| self.namespace.as_ref().is_none_or(|only| *only == released.name.namespace);
            let gone = batch.into_iter().filter(|released| ours(released) && !existing.contains(&released.uid));
            cleared.removed += self.remove(left, until, gone.collect()).await?;
        }
        Ok(cleared)
    }

    async fn remove(&self, left: Artifact, until: Timestamp, gone: Vec<Released>) -> Result<usize, String> {
        if left == Artifact::Rows {
            for released in &gone {
                loop {
                    self.fence.check().map_err(|refused| refused.to_string())?;
                    if self.ledger.forget(released.uid.clone(), until).await.map_err(|error| error.to_string())? {
                        break;
                    }
                }
            }
            Ok(gone.len())
        } else {
            let (planner, fence) = (self.planner.clone(), self.fence.clone());
            let removed = tokio::task::spawn_blocking(move || remove_files(&planner, &fence, left, &gone)).await;
            let removed = removed.map_err(|error| error.to_string())?;
            let count = removed.len();
            self.ledger.removed(left, removed).await.map_err(|error| error.to_string())?;
            Ok(count)
        }
    }
}

/// What one look has come to.
#[derive(Default)]
struct Cleared {
    /// Objects of which something could have been removed.
    looked_at: usize,
    /// Of these, those of which it was.
    removed: usize,
}

/// Those whose files are gone now.
fn remove_files(planner: &Planner, fence: &Fence, left: Artifact, gone: &[Released]) -> Vec<Uid> {
    let may_act = || fence.check().is_ok();
    let remove = |released: &&Released| {
        let Released { uid, name } = released;
        let removed = match left {
            Artifact::Sandbox => planner.discard_sandbox(uid, &may_act),
            Artifact::Output => planner.discard_output(name, uid, &may_act),
            Artifact::Rows => Ok(()),
        };
        match &removed {
            Ok(()) => tracing::debug!(namespace = name.namespace, htcjob = name.name, %uid, ?left, "removed"),
            Err(error) => {
                tracing::warn!(namespace = name.namespace, htcjob = name.name, %uid, ?left, %error, "files cannot be removed; it is tried again");
            }
        }
        removed.is_ok()
    };
    gone.iter().take_while(|_| may_act()).filter(remove).map(|released| released.uid.clone()).collect()
}
