//! The state machine: what is known goes in, what to do comes out. No I/O, no clock, no async.

pub mod chart;
pub mod decide;
pub mod facts;
pub mod ids;
pub mod indices;
pub mod inherited;
pub mod judge;
pub mod outcome;
pub mod phase;
pub mod request;
pub mod rules;
pub mod status;
pub mod transitions;
pub mod worker;

pub use decide::{Decision, Look, decide};
pub use facts::Facts;
pub use ids::{Attempt, Birthdate, ClusterId, Index, JobId, Kind, RequestKey, SchedDate, ScheddName, Timestamp, Uid};
pub use indices::Indices;
pub use request::{Request, Work};
pub use rules::{Rules, Settings};
