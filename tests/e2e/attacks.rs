//! What somebody tries who may create HTCJobs and Secrets in one namespace, and has credentials of his own for the pool.
//!
//! What is said "against b8ba2a8" was seen with an operator of that tree, before there was any defence, and with HTCondor 23.9. Where
//! these tests expect what that operator did not have, the test was changed for it.
//!
//! Each rule of the defence was also taken out, alone and with all else in force. These tests failed, with HTCondor 23.9:
//!
//! | rule taken out | how | tests that fail |
//! | --- | --- | --- |
//! | 1: a tool can touch only what its call needs | the step restricts nothing (`Confined::restrict`), and none is used (`Confine::new`) | `confinement::tools_touch_their_own_folder_only`, `confinement::what_it_gave_up_does_not_come_back`, `home::no_tool_obeys_what_lies_there` |
//! | 2: nothing users write gets a meaning of its own | any attribute, expression, group, priority and image path is allowed; no lines of `description/files.rs`; output is fetched wherever its ad says (`going`) and not looked at; texts are told as they are | all of `attack_options`; `spec::no_attribute_makes_htcondor_read_the_operators_files`; five of `submit_description`, among them `known_attacks_are_refused` and `what_names_files_and_programs_is_the_operators_whatever_was_allowed`; both of `output`; `payload::an_image_that_is_the_node_is_refused`; `edits::a_reason_given_by_hand_is_told_harmlessly`; `edits::an_index_that_grows_when_it_is_printed` and `home::no_tool_obeys_what_lies_there`, which expect `OutputRedirected` |
//! | 3: a doubt belongs to its object | an ad that cannot be read, or is nobody's, makes the whole answer `Incomplete`; no user is asked about apart; the newest ad of history is taken as it is | `edits::large_values_hold_up_nobody_else`, `history::without_a_name_at_the_top`, `credentials::one_users_ads_are_a_doubt_about_its_own_jobs_alone`, `credentials::what_one_user_writes_holds_up_nobody_else` |
//! | 3, of Events | what the API server refuses counts as trouble with all Events (`what_it_means`) | `outages::refused_in_some_namespaces`; without servers `a_limit_of_one_namespace_stops_no_other` and `each_answer_has_its_meaning` of `controller::events` |
//! | 4: nobody takes everybody's share | no room is reserved | `output::nothing_is_fetched_onto_a_full_volume`, `output::a_transfer_is_stopped_before_the_volume_is_full` |
//! | 4 | no limit of a namespace's output, jobs or identities | `output::a_namespace_has_its_share`, `lifecycle::no_more_active_jobs_than_the_share`, `credentials::shares::one_more_than_a_namespace_may_use_waits_for_its_turn` |
//! | 4 | no transfer is stopped for a deletion | `output::one_that_hangs_holds_up_no_deletion` |
//! | 4 | what was refused of output is fetched again (`Record::to_fetch`) | `output::what_is_too_much_by_now_is_refused` |
//! | 4 | namespaces have no turns in a lane (`in_turn`, and what `take` puts behind the others) | `lifecycle::a_crowd_takes_turns_with_others` |
//! | 4 | connections to the receiver are kept however long they bring nothing (`watch_socket`) | `callbacks::who_brings_no_whole_request_is_let_go` |
//! | 4 | namespaces have no turns of identities that are introduced (`Turns::next`) | none here; `credentials::turns::a_namespace_has_its_share_and_all_have_a_limit` |
//! | 4 | no rate of reports (`Rates::admit`) | none here; `receiver::who_reports_too_often_is_told_to_wait_and_others_are_not` |
//! | 4 | no number of connections for each address (`Peers::place`) | none here; `receiver::monitor::who_holds_connections_keeps_nobody_else_from_the_probes` |
//!
//! With rule 1 out and rule 2 in force, all others of these tests, `attack_options` and `submit_description` held. With rule 2 out and
//! rule 1 in force, the first edit of `output` led `condor_transfer_data` to the folder of the ledger, where it could not write;
//! with both out (`--confinement=off`) it wrote over the marker.

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
