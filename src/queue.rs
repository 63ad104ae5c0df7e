//! Queues with quotas: which jobs of which `HTCJob`s may be in HTCondor at a time. `HTCQueue`s, or Kueue.
//!
//! What an `HTCJob` has and asks for is derived from its record (`machine::room`). [`admit::admit`] decides over all of them; what it
//! grants is in the ledger before anything is submitted that has it, and leaves it in the transaction that records why.

pub mod admit;
mod amounts;
mod keeper;
mod kueue;
mod line;
mod plan;
mod progress;
mod shown;
mod state;
pub mod states;
mod terms;
#[cfg(test)]
mod tests;
pub mod words;

pub use amounts::{Amounts, Limits, Resource, ResourceSet};
pub use keeper::QueueKeeper;
pub use progress::Progress;
pub use state::{Asker, Decided, Queueing, Queues};
pub use terms::Demand;
