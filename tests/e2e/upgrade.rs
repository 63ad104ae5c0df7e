//! An operator that takes over from the Go operator of 2020: its objects, its database and its jobs, as it left them.

mod document;
mod in_doubt;
mod in_place;
mod leaving;
mod old;
