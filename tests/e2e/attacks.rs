//! What somebody tries who may create HTCJobs and Secrets in one namespace, and has credentials of his own for the pool.

mod output;

on_both_versions!(output::goes_to_its_own_place_only);
