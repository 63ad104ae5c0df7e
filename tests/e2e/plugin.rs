//! `kubectl htc`, as kubectl calls it: found in PATH by its name.

mod jobs;
mod recording;
mod story;
mod users;
mod wishes;

on_versions!(
    trixie:
        jobs::three_of_many_fail,
        story::kubectl_completes_names,
        users::failed_jobs_run_again_and_no_others,
        wishes::hold_release_and_remove;
    sid:
        jobs::a_log_is_followed,
        recording::the_readme_shows_what_happens,
        story::it_is_told_and_drawn,
        users::a_script_is_submitted_with_items,
        users::what_it_cannot_do_is_an_error;
);
