//! Submitters that may have outlived the operator that started them. Once one is seen to have ended, what it was to submit is
//! judged at once; the time limit of the others is waited for.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;

use crate::api::Wake;
use crate::clock::Clock;
use crate::condor::SubmitterLocks;
use crate::ledger::{Ledger, LedgerError, Unseen};
use crate::machine::Rules;
use crate::machine::judge::{SubmitterGone, submitter_gone};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// The submitters of earlier operators with this ledger whose end nobody saw.
pub struct Survivors {
    ledger: Ledger,
    locks: SubmitterLocks,
    clock: Clock,
    /// How long after its time limit each counts as dead.
    margin: Duration,
    wake: Wake,
    left: Vec<Unseen>,
    /// It was said that the ledger does not take an end.
    told: bool,
}

impl Survivors {
    /// Those that there are. To be called before anything is submitted.
    pub async fn of(
        ledger: Ledger,
        locks: SubmitterLocks,
        clock: Clock,
        margin: Duration,
        wake: Wake,
    ) -> Result<Self, LedgerError> {
        let left = ledger.unseen_submitters(clock.now().before(margin).unwrap_or_default()).await?;
        let (kept, files) = (left.clone(), locks.clone());
        let _ = tokio::task::spawn_blocking(move || files.keep_only(kept.iter().map(|unseen| &unseen.lock))).await;
        Ok(Self { ledger, locks, clock, margin, wake, left, told: false })
    }

    /// Looks until each has ended, or its time is over; then for nothing any more.
    pub async fn run(mut self) {
        while !self.left.is_empty() {
            tokio::time::sleep(PAUSE).await;
            self.look().await;
        }
    }

    /// Looks at each once.
    pub async fn look(&mut self) {
        let (now, margin) = (self.clock.now(), self.margin);
        self.left.retain(|unseen| unseen.not_after.plus(margin) > now);
        for gone in self.gone().await {
            let lock = gone.lock().clone();
            match self.ledger.submitter_gone(gone).await {
                Ok(names) => {
                    tracing::info!(
                        htcjobs = names.len(),
                        "a condor_submit of an earlier operator is seen to have ended"
                    );
                    self.left.retain(|unseen| unseen.lock != lock);
                    let locks = self.locks.clone();
                    let _ = tokio::task::spawn_blocking(move || locks.discard(&lock)).await;
                    for name in names {
                        // The receiver goes only when the operator ends.
                        let _ = self.wake.send(ObjectRef::new(&name.name).within(&name.namespace)).await;
                    }
                }
                Err(error) if !self.told => {
                    self.told = true;
                    tracing::warn!(%error, "the end of a condor_submit is not in the ledger, and is tried again each half second");
                }
                Err(_) => {}
            }
        }
    }

    async fn gone(&self) -> Vec<SubmitterGone> {
        let (locks, clock, left) = (self.locks.clone(), self.clock, self.left.clone());
        let look = move || {
            let seen = |unseen: &Unseen| {
                let seen = locks.look(&unseen.lock, &clock).ok()?;
                submitter_gone(&unseen.lock, &seen, &Rules::ALL)
            };
            left.iter().filter_map(seen).collect()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }
}
