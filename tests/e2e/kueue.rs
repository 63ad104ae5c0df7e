//! A real Kueue beside a real HTCondor and the Job controller. Its controller takes up to half an hour to build, so these are for `make test-long`.

mod away;
mod ends;
mod kills;
mod lives;
mod parts;
mod pods;
mod rights;
pub mod stage;
mod taken;

use crate::pools::managed as pools;

pub use kills::POINTS;

macro_rules! with_kueue {
    ($($room:ident::$name:ident,)+) => {
        mod trixie {
            $(
                #[test]
                #[ignore = "make test-long: Kueue is built from source for it"]
                fn $name() { super::$room::$name(testbed::Version::Trixie); }
            )+
        }
    };
}

with_kueue!(
    away::nothing_starts_and_nothing_is_touched_until_it_is_back,
    ends::a_lost_ledger_goes_by_what_is_admitted,
    ends::deleted_while_it_waits_runs_or_is_preempted,
    ends::its_time_is_over_and_its_quota_is_given_back,
    kills::killed_at_every_write,
    kills::killed_at_every_change_that_users_bring,
    lives::admitted_submitted_finished,
    lives::what_waits_says_why_in_the_words_of_kueue,
    pools::its_workers_come_when_kueue_admits_it,
    parts::as_many_as_are_admitted_and_what_is_over_goes_to_others,
    pods::one_cluster_queue_admits_both_backends,
    pods::preempted_once_no_pod_is_left,
    pods::suspended_deactivated_and_made_again,
    pods::killed_with_pods_at_every_write,
    pods::kueue_that_manages_every_job_is_told_whose_they_are,
    rights::all_are_needed_and_suffice,
    taken::preempted_by_priority_once_it_is_proved_that_none_runs,
    taken::deactivated_by_a_person_and_by_suspend,
    taken::deleted_by_hand_it_is_made_again,
);
