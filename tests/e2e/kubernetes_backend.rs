//! The same HTCJob as Pods: by the controllers of a real kube-controller-manager. There is no node: what a kubelet would say of a Pod
//! is written into its status.

mod attacks;
mod document;
mod kills;
pub mod kubelet;
mod lives;
mod logs;
mod queued;
mod rights;
pub mod stage;
mod trouble;

pub use kills::POINTS;

on_versions!(
    trixie:
        attacks::what_is_forged_elsewhere_is_none_of_it,
        attacks::a_job_that_is_changed_by_hand_is_changed_back_and_stays_its_own,
        attacks::an_impossible_time_stops_nobody,
        attacks::its_pods_are_restricted,
        document::its_commands_and_the_examples_work,
        kills::killed_at_every_point,
        kills::a_ledger_that_is_lost,
        kills::another_operator_leaves_it_alone,
        lives::all_succeed_and_nothing_is_left,
        lives::failures_have_exit_codes_and_are_tried_again,
        logs::from_the_pod_and_then_from_the_volume,
        queued::one_quota_counts_both_backends,
        queued::what_is_resumed_by_hand_gets_no_room,
        rights::all_are_needed_and_suffice,
        trouble::a_job_that_somebody_deletes_is_lost,
        trouble::a_name_that_is_taken_is_left_alone,
        trouble::without_the_backend_it_waits_and_goes,
        rights::a_namespace_goes_whose_role_goes_first;
    long:
        logs::what_cannot_be_had_is_tried_again_and_holds_up_no_deletion_for_long,
        trouble::a_silent_node_is_said_and_its_jobs_wait,
        lives::items_of_a_config_map_are_read_once,
        lives::only_some_indexes_with_items,
        lives::suspended_and_resumed_and_as_many_at_a_time_as_are_wanted,
        lives::the_deadline_and_the_time_after_the_end,
        lives::too_many_failures_cut_it_short,
        logs::of_a_log_that_was_cut_it_is_said_that_lines_are_missing,
        logs::of_all_that_failed_those_whose_pods_are_gone_are_passed_over,
        logs::no_more_is_kept_than_of_other_output,
        queued::pods_that_are_left_keep_their_room,
        queued::killed_while_it_gives_room,
        trouble::a_quota_is_said_and_waited_for,
        trouble::an_evicted_pod_is_no_failure,
        trouble::an_image_that_is_missing_is_said,
        trouble::an_image_that_may_be_roots_is_said_with_what_to_do,
        trouble::what_has_no_meaning_is_refused,
        trouble::a_namespace_goes_with_all_that_runs_in_it,
        queued::suspended_it_gives_room_back_and_waits_for_it,
        attacks::a_job_that_takes_the_name_is_not_tried_without_end,
        attacks::a_config_map_with_another_script_is_not_run;
);
