//! Output on the operator's volume: its folders, what may arrive in them and how much, and how long it is kept after
//! the HTCJob is gone.

pub mod discard;
pub mod disk_budget;
pub mod err_tail;
pub mod error;
pub mod files;
pub mod incoming;
pub mod layout;
pub mod namespace_output;
pub mod retention;
pub mod unpack;
pub mod unpack_limits;
