//! Pools that the operator runs itself: central manager, schedd and workers as pods.
//!
//! [`token`], [`config`], [`objects`], [`demand`], [`mini`], [`scale`], [`groups`] and [`rotation`] are pure: they say what is to be there. [`apply`] and
//! `caretaker` see to it, and `tries` says when again.

mod absent;
pub mod apply;
pub(super) mod caretaker;
pub mod config;
pub mod demand;
pub mod error;
pub mod found;
pub mod groups;
mod made;
pub mod mini;
pub mod names;
pub mod objects;
pub mod paths;
mod payload;
pub mod rotation;
mod said;
pub mod scale;
mod seen;
mod shadow;
pub mod states;
pub(super) mod tries;
mod wanted;
pub mod work;
