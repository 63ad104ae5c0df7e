//! `kubectl htc`, as kubectl calls it: found in PATH by its name.

mod users;

on_versions!(
    trixie: users::failed_jobs_run_again_and_no_others;
    sid:
        users::a_script_is_submitted_with_items,
        users::what_it_cannot_do_is_an_error;
);
