//! HTCQueues: who may have how many jobs in HTCondor, and who waits for what.

mod changes;
mod closed;
mod lent;
mod limits;
pub mod site;
mod users;
mod walk;
