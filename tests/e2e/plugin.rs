//! `kubectl htc`, as kubectl calls it: found in PATH by its name.

mod files;
mod flags;
mod jobs;
mod logs;
mod recording;
mod roles;
mod story;
pub mod users;
mod why;
mod wishes;

use bed::{Bed, LONG_SUBMISSIONS};
use testbed::Version;

on_versions!(
    trixie:
        flags::kubectls_files_and_contexts,
        logs::a_log_is_followed_over_a_hold_and_a_release,
        story::kubectl_completes_names,
        users::failed_jobs_run_again_and_no_others,
        why::it_says_why_jobs_do_not_run,
        wishes::hold_release_and_remove,
        logs::a_log_is_followed_over_an_eviction;
    sid:
        flags::bars_are_for_terminals,
        logs::a_log_is_followed,
        logs::a_log_is_followed_until_its_job_is_removed,
        recording::the_readme_shows_what_happens,
        story::it_is_told_and_drawn,
        story::it_is_told_when_the_events_are_gone,
        users::a_script_is_submitted_with_items,
        users::items_of_a_config_map_run_again,
        users::what_it_cannot_do_is_an_error,
        jobs::three_of_many_fail;
    long:
        files::what_the_api_server_cuts_off_is_gone_on_with,
        logs::while_the_operator_is_busy_or_away,
        files::a_call_that_is_cut_off_is_gone_on_with,
        roles::each_command_by_view_and_by_edit;
);

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_of_a_thousand_fail_on_trixie() {
    three_of_a_thousand_fail(Version::Trixie);
}

#[test]
#[ignore = "make test-long: a thousand containers keep the machine busy for minutes"]
fn three_of_a_thousand_fail_on_sid() {
    three_of_a_thousand_fail(Version::Sid);
}

fn three_of_a_thousand_fail(version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let bed = Bed::with_jobs_api(version, LONG_SUBMISSIONS);
    bed.start_operator();
    jobs::three_fail_of(1000, &bed.namespace());
}
