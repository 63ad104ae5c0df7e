//! Watches submitters that may have outlived the operator that started them. Once one has ended, its submissions are
//! judged at once. Otherwise the operator waits for its time limit.

use std::time::Duration;

use htc_ledger::{Ledger, LedgerError, UnseenSubmitter};
use htc_machine::Rules;
use htc_machine::judge::{SubmitterGone, submitter_gone};
use htc_support::clock::Clock;
use htc_support::kubernetes::Wake;
use htcondor::SubmitterLocks;
use kube::runtime::reflector::ObjectRef;

/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(500);

/// Submitters of earlier operators with this ledger whose end is not recorded.
pub struct SubmitterWatch {
    ledger: Ledger,
    locks: SubmitterLocks,
    clock: Clock,
    /// Time after its time limit when a submitter counts as dead.
    margin: Duration,
    wake: Wake,
    left: Vec<UnseenSubmitter>,
    /// Whether it was logged that the ledger does not accept an end.
    told: bool,
}

impl SubmitterWatch {
    /// Reads the submitters from the ledger. Must be called before anything is submitted.
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

    /// Checks until each submitter has ended or its time limit has passed; then returns.
    pub async fn run(mut self) {
        while !self.left.is_empty() {
            tokio::time::sleep(PAUSE).await;
            self.look().await;
        }
    }

    /// Checks each submitter once.
    pub async fn look(&mut self) {
        let (now, margin) = (self.clock.now(), self.margin);
        self.left.retain(|unseen| unseen.submitter_deadline.plus(margin) > now);
        for gone in self.gone().await {
            let lock = gone.lock().clone();
            match self.ledger.submitter_gone(gone).await {
                Ok(names) => {
                    tracing::info!(htcjobs = names.len(), "condor_submit of an earlier operator ended");
                    self.left.retain(|unseen| unseen.lock != lock);
                    let locks = self.locks.clone();
                    let _ = tokio::task::spawn_blocking(move || locks.discard(&lock)).await;
                    for name in names {
                        // The receiver is dropped only when the operator ends.
                        let _ = self.wake.send(ObjectRef::new(&name.name).within(&name.namespace)).await;
                    }
                }
                Err(error) if !self.told => {
                    self.told = true;
                    tracing::warn!(%error, "end of a condor_submit not stored, retrying");
                }
                Err(_) => {}
            }
        }
    }

    async fn gone(&self) -> Vec<SubmitterGone> {
        let (locks, clock, left) = (self.locks.clone(), self.clock, self.left.clone());
        let look = move || {
            let seen = |unseen: &UnseenSubmitter| {
                let seen = locks.look(&unseen.lock, &clock).ok()?;
                submitter_gone(&unseen.lock, &seen, &Rules::ALL)
            };
            left.iter().filter_map(seen).collect()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }
}
