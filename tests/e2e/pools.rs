//! HTCJobs go to the pool that they name: each stays there, and no pool has to do with another.

pub mod managed;
mod one;
mod several;
pub mod site;

on_versions!(
    both:
        managed::a_starter_of_its_own_has_no_file_but_its_jobs,
        managed::payloads_reach_nothing_of_their_worker_and_leave_nothing_there;
    trixie:
        one::it_stays_until_no_htcjob_needs_it,
        managed::each_image_gets_workers_of_its_own,
        managed::a_pool_says_that_its_payloads_are_not_confined,
        managed::what_is_made_is_the_pools_own_and_restricted,
        managed::its_jobs_run_again_when_their_lease_is_over,
        managed::tokens_let_each_do_what_it_needs_and_no_more,
        managed::its_workers_go_with_it_whenever_the_operator_dies,
        one::another_pool_of_its_name_is_not_taken_for_it;
    sid:
        managed::nothing_is_made_twice_wherever_the_operator_dies,
        one::the_same_schedd_is_no_second_pool,
        one::an_operator_may_have_no_schedd_of_its_own,
        one::a_queue_that_is_lost_is_not_taken_for_jobs_that_are_gone,
        several::jobs_with_the_same_ids_are_not_mistaken_for_one_another,
        managed::jobs_run_through_a_pool_of_its_own,
        managed::each_namespace_is_a_user_of_its_own,
        several::one_that_hangs_holds_up_no_other,
        managed::an_htcjob_has_workers_of_its_own;
    long:
        managed::what_cannot_be_read_is_still_its_namespaces,
        managed::it_grows_with_the_jobs_and_shrinks_without_them,
        managed::its_queue_is_found_again_and_goes_if_it_is_said,
        one::the_schedd_of_an_older_pool_is_no_second_pool,
        several::exchanged_schedds_are_not_taken_for_ones_own,
        several::each_of_many_htcjobs_is_in_its_own_pool,
        managed::its_workers_come_when_it_has_room,
        one::what_is_missing_is_said_and_waited_for,
        managed::its_orphans_are_named_and_removed_in_the_names_of_their_namespaces;
);

#[test]
#[ignore = "make test-long: ten schedds and a thousand containers"]
fn a_thousand_htcjobs_in_ten_pools() {
    several::in_pools(testbed::Version::Sid, 10, 1000);
}
