//! Whether this operator may act. Checked right before every external effect and every Kubernetes write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Holds as long as this operator holds the ledger and is not being stopped. Clones share it.
#[derive(Clone, Debug)]
pub struct Fence(Arc<AtomicBool>);

/// This operator may no longer act.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this operator is being stopped, or no longer the one that may act")]
pub struct Refused;

impl Default for Fence {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Fence {
    /// Fails once this operator may no longer act.
    pub fn check(&self) -> Result<(), Refused> {
        if self.0.load(Ordering::SeqCst) { Ok(()) } else { Err(Refused) }
    }

    /// From now on nothing is begun any more.
    pub fn close(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
