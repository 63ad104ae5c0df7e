//! The state machine: what is known goes in, what to do comes out. No I/O, no clock, no async.
//!
//! Its parts, each of which uses only those that are listed before it (`cargo test --lib order`):
//!
//! - [`ids`]: names and numbers that must not be mixed up.
//! - [`indices`]: sets of job numbers.
//! - [`phase`]: what the phases mean.
//! - [`outcome`]: how jobs end.
//! - [`inherited`]: what the Go operator has left.
//! - [`wishes`]: what users ask for of single jobs.
//! - [`rules`]: times and sizes, and the rules that the model can break.
//! - [`facts`]: what is known about one HTCJob.
//! - [`status`]: the record as counts, conditions and words.
//! - [`summary`]: the conditions as one word.
//! - [`judge`]: from dated evidence to verdicts and proofs.
//! - [`request`]: the effects that can be asked for.
//! - [`transitions`]: the one table of legal transitions.
//! - [`worker`]: the order in which a request is carried out.
//! - [`chart`]: the table as pictures.
//! - [`states`]: small tables of states, of other things than an `HTCJob`'s phases.
//! - [`mod@decide`]: what to do.
//! - [`mod@room`]: what an object has of its queue.
//! - [`runs`]: what is known of each job where nothing is to be judged.
//! - [`pods`]: the decision about an `HTCJob` whose jobs are Pods.

pub mod chart;
pub mod decide;
pub mod facts;
pub mod ids;
pub mod indices;
pub mod inherited;
pub mod judge;
pub mod outcome;
pub mod phase;
pub mod pods;
pub mod request;
pub mod room;
pub mod rules;
pub mod runs;
pub mod states;
pub mod status;
pub mod summary;
pub mod transitions;
pub mod wishes;
pub mod worker;

pub use decide::{Decision, Look, decide};
pub use facts::Facts;
pub use ids::{Attempt, Birthdate, ClusterId, Index, JobId, Kind, RequestKey, SchedDate, ScheddName, Timestamp, Uid};
pub use indices::Indices;
pub use request::{Request, Work};
pub use rules::{Rules, Settings};
