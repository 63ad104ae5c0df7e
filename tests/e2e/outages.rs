//! Whatever fails - the operator, the schedd, a submitter, the API server, the disk - and whenever it does: each job runs
//! exactly once, nothing is left behind, and the HTCJob says what is wrong.

mod data_folder;
mod events;
mod hanging_disk;
mod kubernetes;
mod leader;
mod lease;
mod old_etcd;
mod operator;
mod other_schedd;
mod power;
mod recovery;
mod schedd;
mod submitter;

on_versions!(
    trixie:
        other_schedd::jobs_wait_for_their_own,
        lease::renewals_without_an_answer,
        schedd::hanging_while_it_is_submitted_to,
        submitter::landing_late;
    sid:
        power::failing_at_any_moment,
        recovery::from_a_dead_submitter,
        events::refused_in_some_namespaces,
        hanging_disk::holds_up_an_operator_that_is_started_again,
        old_etcd::what_was_deleted_is_over,
        old_etcd::restored_to_a_lower_revision,
        leader::one_ledger_for_two,
        submitter::outliving_the_operator,
        lease::one_identity_twice,
        leader::a_lease_that_cannot_be_renewed;
    long:
        operator::stopped_at_any_point_it_goes_on,
        kubernetes::api_server_killed_while_there_is_news,
        power::failing_while_jobs_end,
        power::failing_while_jobs_are_removed,
        lease::deleted_and_edited,
        schedd::down_at_the_start_and_going_down,
        lease::two_copies_of_one_ledger,
        data_folder::read_only,
        schedd::refusing_the_jobs,
        submitter::killed_by_somebody_else,
        leader::a_ledger_each,
        power::failing_while_jobs_are_submitted,
        hanging_disk::lets_another_operator_lead,
        operator::killed_at_any_point_it_goes_on,
        recovery::from_an_orphan_that_lives,
        recovery::on_another_machine,
        schedd::killed_while_it_takes_in_the_files,
        recovery::with_all_accepted,
        schedd::refusing_the_credentials,
        leader::an_old_copy_of_the_ledger;
);
