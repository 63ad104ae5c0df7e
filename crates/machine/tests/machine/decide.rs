//! `decide`: each phase case by case, whole lives in a small world, and properties over facts of every kind.

mod accepting;
mod decision;
mod deleting;
mod design;
mod elsewhere;
mod inherited;
mod large;
mod lives;
mod lost_ledgers;
mod node_faults;
mod output;
mod parts;
mod properties;
mod queued;
mod reporting;
mod seed;
mod settled;
mod submitting;
mod suspending;
mod under_way;
mod unknown_past;
mod wishing;
