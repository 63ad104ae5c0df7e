//! `kubectl delete` in each phase: the object stays until HTCondor has none of its jobs left, and nobody else's are touched.

mod phases;
mod trouble;
mod watch;
