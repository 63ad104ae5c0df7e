//! The SQLite journal: what was intended, what HTCondor accepted, how it ended, and every transition.
//!
//! One thread owns the file. What waits goes into one transaction (group commit, `synchronous=FULL`), so that an answer
//! means that it survives a loss of power.

mod actor;
mod callbacks;
mod entries;
mod error;
mod exits;
mod grants;
mod inherited;
mod items;
mod journal;
mod load;
mod procs;
mod retention;
mod runs;
mod schema;
mod store;
mod submitters;
#[cfg(test)]
mod tests;
mod users;
mod wishes;
mod word;
mod writer;

pub use actor::{Ledger, Users};
pub use callbacks::{Callback, Receipt, Told};
pub(crate) use entries::Save;
pub use entries::{Grant, Intent, Noted, RequestResult, SubmitResult};
pub use error::LedgerError;
pub use journal::{Except, Journaled, StoryRow};
pub use procs::{ProcRow, ProcRows};
pub use retention::{Artifact, Released};
pub(crate) use runs::SaveRuns;
pub use runs::{RunRow, RunRows};
pub use submitters::Unseen;
pub use users::LedgerSnapshot;
pub use wishes::{NotTaken, ProcWish};
