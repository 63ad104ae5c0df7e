//! An operator that takes over from the Go operator of 2020: its objects, its database and its jobs, as it left them.

mod document;
mod in_doubt;
mod in_place;
mod leaving;
mod old;

on_versions!(
    trixie:
        in_place::an_operator_that_dies_while_it_adopts,
        in_place::every_job_is_followed_to_its_end;
    sid:
        in_doubt::nothing_is_submitted_that_may_have_been,
        document::its_commands_work,
        leaving::out_of_a_queue_with_others;
    long:
        leaving::out_of_a_queue_that_is_empty_then,
        in_place::deletion_removes_exactly_its_jobs;
);
