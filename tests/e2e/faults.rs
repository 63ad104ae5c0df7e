//! Faults from all sides: the API server refuses, loses answers and forgets; the schedd dies, hangs, loses its queue and lies;
//! the disk is full; the ledger goes. Each HTCJob ends right, its jobs run once, and whoever waits says for what.

mod api_server;
mod disk;
mod history;
mod ledger;
mod limits;
mod queue;
mod schedd;
mod stuck;
mod turns;

on_versions!(
    trixie:
        api_server::a_webhook_that_hangs,
        api_server::refusing_and_losing_writes,
        disk::read_only_and_full,
        limits::too_many_for_the_site,
        turns::workloads_of_one_namespace_hold_up_no_other,
        turns::a_managed_pool_that_hangs_holds_up_no_other_pool,
        turns::logs_of_one_namespace_hold_up_no_other,
        queue::one_answer_that_shows_nothing,
        queue::lost_and_begun_anew;
    sid:
        limits::one_bad_spoils_nobody,
        stuck::abandoned_and_orphaned,
        queue::history_too_short,
        schedd::killed_while_it_is_handed_jobs;
    long:
        limits::the_queue_is_full,
        schedd::out_of_reach,
        api_server::refusing_for_good_hides_nothing,
        history::hanging,
        disk::that_hangs,
        api_server::forgetting_watches_and_away_for_long,
        api_server::killed_in_every_phase,
        limits::too_many_at_once,
        ledger::old_or_lost_at_the_start,
        queue::a_look_at_few_that_shows_nothing,
        queue::a_first_answer_that_shows_nothing,
        queue::lost_before_anybody_looked,
        schedd::hanging_for_longer_than_every_limit,
        ledger::taken_away_while_the_operator_runs,
        queue::seen_by_somebody_else,
        stuck::each_says_why;
);
