//! `judge`, case by case: what one ad says, what is proved, and every doubt.

mod ads;
mod gone;
mod lost;
mod never_accepted;
mod never_attempted;
mod questions;
