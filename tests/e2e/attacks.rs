//! What somebody tries who may create HTCJobs and Secrets in one namespace, and has credentials of his own for the pool.
//!
//! What is said "against b8ba2a8" was seen with an operator of that tree, before there was any defence, and with HTCondor 23.9. Where
//! these tests expect what that operator did not have, the test was changed for it.

mod abandon;
mod confinement;
mod edits;
mod history;
mod home;
mod output;
mod payload;

on_versions!(
    both:
        confinement::tools_touch_their_own_folder_only,
        confinement::what_it_gave_up_does_not_come_back,
        confinement::what_has_no_end_is_not_read,
        edits::a_reason_given_by_hand_is_told_harmlessly,
        edits::an_index_that_grows_when_it_is_printed,
        edits::large_values_hold_up_nobody_else,
        history::without_a_name_at_the_top,
        home::no_tool_obeys_what_lies_there,
        output::goes_to_its_own_place_only,
        output::goes_to_its_own_place_without_confinement,
        payload::a_later_run_is_not_what_an_earlier_one_wrote,
        payload::a_link_brings_nothing_from_outside_of_the_container,
        payload::a_link_brings_nothing_of_another_namespaces_job,
        payload::a_link_leads_job_sh_nowhere,
        payload::an_image_that_is_the_node_is_refused,
        payload::what_a_payload_says_of_its_use_is_not_in_the_ad;
    trixie: abandon::condor_rm_comes_before_the_finalizer_goes;
);
