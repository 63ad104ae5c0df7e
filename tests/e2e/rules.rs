//! Scenes in which one rule of `machine::rules` alone stands between a fault and a broken promise: with that rule taken out
//! its scene fails. The other rules have such a scene among the outages and faults (docs/guarantees.md says which).

mod finalizer;
mod jobs;
mod ledger;
mod submitter;
