//! What jobs leave: the end of their `err`, a cap on it, room for it, and how long it is kept.

mod err;
mod folders;
mod lanes;
mod limits;
mod retention;
mod selected;

on_versions!(
    both: folders::come_back_whole;
    trixie:
        limits::a_transfer_is_stopped_before_the_volume_is_full,
        retention::what_comes_back_is_not_taken_for_new,
        err::its_end_is_told,
        folders::a_later_run_brings_its_own_only,
        folders::names_that_are_taken_are_reported;
    sid:
        lanes::one_that_hangs_holds_up_no_deletion,
        retention::what_is_left_goes_in_its_time,
        err::hostile_files_are_harmless,
        selected::what_the_spec_names_comes_back;
    long:
        lanes::many_that_fail_share_one_limit,
        limits::nothing_is_fetched_onto_a_full_volume,
        limits::too_much_output_is_held,
        limits::a_namespace_has_its_share,
        lanes::one_that_fails_holds_up_no_other,
        lanes::one_that_hangs_holds_up_no_hold_release_or_deadline,
        limits::what_is_too_much_by_now_is_refused;
);
