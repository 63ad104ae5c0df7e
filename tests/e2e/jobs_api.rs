//! Each job as an object: `kubectl get htcprocs`, through the API server's aggregation and the front.

mod reading;

on_versions!(
    both: reading::which_jobs_failed_and_how;
);
