//! SQLite ledger: submissions that were intended, jobs that HTCondor accepted, their outcomes, and every transition.
//!
//! One thread owns the file. It commits all waiting statements in one transaction (group commit, `synchronous=FULL`).
//! Therefore a reply means that the change survives a loss of power.

mod actions;
mod actor;
mod callbacks;
mod enum_text;
mod error;
mod exit_codes;
mod files;
mod grants;
mod images;
mod inherited;
mod items;
mod journal;
mod load;
mod messages;
mod procs;
mod retention;
mod runs;
mod schema;
mod store;
mod submitters;
#[cfg(test)]
mod tests;
mod users;
mod writer;

pub use actions::{ActionRefusal, ProcAction};
pub use actor::{Ledger, Users};
pub use callbacks::{JobReport, Receipt, ReportKind};
pub use error::LedgerError;
pub use images::ImageDigest;
pub use journal::{EventFilter, JournalRow, StoryRow};
pub use messages::Save;
pub use messages::{Grant, Intent, NotedSubmission, RequestResult, SubmitResult};
pub use procs::{ProcRow, ProcRows};
pub use retention::{Artifact, Released};
pub use runs::SaveRuns;
pub use runs::{RunRow, RunRows};
pub use submitters::UnseenSubmitter;
pub use users::LedgerSnapshot;
