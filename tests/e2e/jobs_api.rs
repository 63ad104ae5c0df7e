//! Each job as an object: `kubectl get htcprocs`, through the API server's aggregation and the front.

mod attacks;
mod away;
mod kubectl;
mod logs;
mod namespaces;
mod reading;
mod states;
mod users;
mod watching;
mod whole;
mod wishes;

use serde_json::Value;

/// The paths of the API.
const API: &str = "/apis/procs.htc.cern.ch/v1alpha1";

/// Rows of a table: the words of each line but the first.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// The first word of each row.
fn names(table: &str) -> Vec<&str> {
    rows(table).into_iter().map(|row| row[0]).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

on_versions!(
    both:
        logs::followed_while_it_runs_and_to_its_end,
        states::each_end_of_a_job_that_runs_again,
        wishes::each_job_goes_its_own_way,
        logs::what_is_kept_of_a_run;
    trixie:
        attacks::a_front_lets_in_the_api_server_alone,
        attacks::a_leader_lets_in_fronts_alone,
        attacks::nobody_speaks_for_others,
        attacks::one_user_does_not_read_all_archives,
        attacks::silent_connections_leave_the_api_available,
        kubectl::as_any_other_kind,
        kubectl::what_cannot_be_done_is_refused,
        logs::why_a_job_is_idle,
        namespaces::go_with_all_that_runs_in_them,
        states::a_job_that_is_held_or_removed,
        states::items_of_a_configmap,
        watching::each_change_is_a_row,
        wishes::removed_before_any_is_submitted,
        logs::followed_until_its_run_is_over,
        reading::which_jobs_failed_and_how;
    sid:
        attacks::a_path_is_read_as_the_api_server_reads_it,
        away::other_apis_notice_nothing,
        logs::files_come_as_an_archive_that_can_be_resumed,
        states::jobs_that_wait_and_jobs_that_never_ran,
        states::size_of_output,
        states::numbers_and_items,
        users::one_namespace_and_no_other,
        users::one_name_and_no_other,
        users::somebody_else,
        watching::of_those_that_fail,
        wishes::who_may_and_who_may_not,
        wishes::what_htcondor_refuses_is_told,
        states::one_that_is_killed,
        wishes::wishes_are_kept;
    long:
        attacks::who_reads_nothing_loses_his_place,
        away::certificates_are_renewed_while_requests_go_on,
        namespaces::stay_while_the_api_does_not_answer,
        away::a_certificate_that_has_ended,
        states::jobs_that_are_lost,
        watching::goes_on_with_the_next_leader,
        logs::followed_for_longer_than_a_minute,
        logs::of_more_than_htcondor_is_made_to_send,
        attacks::one_user_does_not_read_all_logs,
        watching::that_an_htcjob_is_gone,
        watching::goes_on_from_a_version,
        whole::one_archive_has_all_jobs_or_no_end,
        watching::what_users_ask_for;
);
