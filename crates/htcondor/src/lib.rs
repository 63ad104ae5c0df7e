//! Access to HTCondor through its own command-line tools: queries, submission, actions on jobs and transfer of output.

pub mod adopt;
mod ads;
mod bisection;
mod confinement;
pub mod effects;
pub mod fetch;
pub mod fuzzing;
mod identity_backoff;
mod issuer_keys;
mod known_users;
pub mod listing;
pub mod orphans;
mod parts;
mod quarantine;
pub mod query;
mod query_cost;
mod row;
pub mod schedd;
pub mod startds;
pub mod submit;
mod submitter_lock;
pub mod tail;
pub mod tools;

pub use confinement::{ConfinementSettings, FileAccess};
pub use identity_backoff::IdentityBackoff;
pub use known_users::KnownUsers;
pub use parts::{BulkOptions, PartSizes};
pub use schedd::Schedd;
pub use submitter_lock::{HeldLock, SubmitterLocks};
pub use tools::{ToolError, ToolOutput, Tools};
