//! Each job as an object: `kubectl get htcprocs`, through the API server's aggregation and the front.

mod logs;
mod reading;

on_versions!(
    both: logs::followed_while_it_runs_and_to_its_end, reading::which_jobs_failed_and_how;
    trixie: logs::why_a_job_is_idle;
    sid: logs::files_come_as_an_archive_that_can_be_resumed;
);
