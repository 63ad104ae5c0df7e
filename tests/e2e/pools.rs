//! HTCJobs go to the pool that they name: each stays there, and no pool has to do with another.

mod one;
mod several;
pub mod site;

on_versions!(
    both:
        several::jobs_with_the_same_ids_are_not_mistaken_for_one_another,
        several::one_that_hangs_holds_up_no_other;
    trixie:
        one::what_is_missing_is_said_and_waited_for,
        one::it_stays_until_no_htcjob_needs_it,
        one::another_pool_of_its_name_is_not_taken_for_it;
    sid:
        one::the_same_schedd_is_no_second_pool,
        one::a_queue_that_is_lost_is_not_taken_for_jobs_that_are_gone;
);
