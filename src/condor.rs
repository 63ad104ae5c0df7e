//! HTCondor, through its own command-line tools.

mod ads;
mod apart;
mod confined;
mod cost;
pub mod description;
pub mod effects;
pub mod fetch;
pub mod htcopts;
mod issuer_keys;
mod known_users;
pub mod left;
mod parts;
mod pauses;
pub mod payload;
pub mod printed;
pub mod query;
mod row;
pub mod schedd;
pub mod shown;
pub mod startds;
pub mod submit;
mod submitter_lock;
mod suspects;
pub mod tail;
pub mod tools;

pub use confined::{Confining, Touches};
pub use known_users::KnownUsers;
pub use parts::{InParts, PartSizes};
pub use pauses::Pauses;
pub use schedd::Schedd;
pub use submitter_lock::{HeldLock, SubmitterLocks};
pub use tools::{Output, ToolError, Tools};
