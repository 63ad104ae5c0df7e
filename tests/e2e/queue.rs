//! HTCQueues: who may have how many jobs in HTCondor, and who waits for what.

mod changes;
mod closed;
mod lent;
mod limits;
pub mod site;
mod users;
mod walk;

on_versions!(
    trixie:
        walk::as_in_the_seed,
        walk::killed_while_it_gives_room,
        lent::five_broken_namespaces_hold_up_nobody,
        closed::a_default_queue_that_is_deleted_lets_nothing_by,
        closed::what_may_be_in_a_queue_that_cannot_be_read_waits,
        limits::priority_comes_first,
        users::who_may_see_and_who_may_change;
    sid:
        closed::a_queue_that_is_replaced_lets_nothing_by,
        closed::what_was_held_stays_held_when_the_queue_is_deleted,
        closed::what_is_in_a_namespace_that_the_operator_cannot_see_waits,
        closed::without_the_kind_of_htcqueues_what_is_created_waits,
        closed::a_queue_is_retired,
        changes::suspend_gives_room_back_and_resume_waits_for_it,
        lent::a_missing_secret_at_quota_one_holds_up_nobody,
        walk::a_lost_ledger_counts_what_htcondor_has,
        limits::a_namespace_that_comes_later_is_served;
    long:
        lent::a_pool_that_is_silent_keeps_no_room,
        users::without_queues_a_label_is_told_and_waited_for,
        changes::what_is_abandoned_counts_no_more,
        changes::a_queue_that_is_made_again_goes_on,
        changes::a_queue_that_is_stopped_gives_nothing_and_one_that_is_drained_holds,
        walk::a_lost_ledger_goes_on_with_what_waits,
        changes::what_ends_early_gives_its_room_to_the_next,
        changes::a_quota_that_is_lowered_takes_nothing,
        limits::without_a_label_the_default_queue_counts,
        limits::what_can_never_run_says_so_at_once;
);
