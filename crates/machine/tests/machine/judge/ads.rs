//! What one ad says, and which of several counts.

use htc_machine::facts::{Ad, Evidence, Exit, JobStatus, QueryErrorKind};
use htc_machine::judge;
use htc_machine::judge::{Acceptance, AdSource, REMOVED_BY_US, Sightings};
use htc_machine::outcome::Outcome;
use htc_machine::{Attempt, Index, SchedDate};
use rstest::rstest;

use crate::given::{
    STAGING_FAILED, ad, ended, held, history, late, queue, removed, running, staging, stillborn, unknown,
};
use crate::judge::questions::{ALL, without};

fn unstaged(ad: Ad) -> Ad {
    Ad { staged_in: None, ..ad }
}

fn in_time_by(seconds: i64) -> Ad {
    let ad = ad(0, "5.0");
    Ad { staged_in: ad.not_after.map(|limit| SchedDate(limit.0 - seconds)), ..ad }
}

#[rstest]
#[case::files_staged(ad(0, "5.0"), Acceptance::Accepted)]
#[case::files_staged_at_the_deadline(in_time_by(0), Acceptance::Accepted)]
#[case::files_staged_late(in_time_by(-1), Acceptance::Late)]
#[case::late_and_started(running(late(ad(0, "5.0"))), Acceptance::Late)]
#[case::late_and_ended(ended(late(ad(0, "5.0")), Exit::Code(241)), Acceptance::Late)]
#[case::late_and_removed_by_the_operator(removed(late(ad(0, "5.0")), REMOVED_BY_US), Acceptance::Late)]
#[case::late_and_removed_by_others(removed(late(ad(0, "5.0")), "via condor_rm"), Acceptance::Late)]
#[case::ad_without_deadline(Ad { not_after: None, ..ad(0, "5.0") }, Acceptance::Accepted)]
#[case::running(running(ad(0, "5.0")), Acceptance::Accepted)]
#[case::held_with_the_old_spooling_code(held(ad(0, "5.0"), 16, 0), Acceptance::Accepted)]
#[case::started_without_staging_date(running(unstaged(ad(0, "5.0"))), Acceptance::Accepted)]
#[case::ended_without_staging_date(ended(unstaged(ad(0, "5.0")), Exit::Code(0)), Acceptance::Accepted)]
#[case::removed_after_start(removed(running(unstaged(ad(0, "5.0"))), "via condor_rm"), Acceptance::Accepted)]
#[case::removed_after_acceptance(removed(ad(0, "5.0"), "via condor_rm"), Acceptance::Accepted)]
#[case::files_being_staged(staging(ad(0, "5.0")), Acceptance::Staging)]
#[case::not_held_yet(unstaged(ad(0, "5.0")), Acceptance::Staging)]
#[case::staging_failed(removed(staging(ad(0, "5.0")), STAGING_FAILED), Acceptance::Stillborn)]
#[case::staging_failed_with_a_longer_reason(
    removed(staging(ad(0, "5.0")), "Staging of job files failed: disk full"),
    Acceptance::Stillborn
)]
#[case::removed_by_the_operator_while_staging(stillborn(ad(0, "5.0")), Acceptance::Stillborn)]
#[case::removed_by_others(removed(staging(ad(0, "5.0")), "via condor_rm (by user alice)"), Acceptance::RemovedByOthers)]
#[case::removed_without_reason(removed(staging(ad(0, "5.0")), ""), Acceptance::RemovedByOthers)]
#[case::reason_quotes_the_operator(
    removed(staging(ad(0, "5.0")), "not removed by htc-operator"),
    Acceptance::RemovedByOthers
)]
fn acceptance_is_read_from_the_ad(#[case] ad: Ad, #[case] verdict: Acceptance) {
    assert_eq!(judge::acceptance(&ad, &ALL), verdict);
    let counts = matches!(verdict, Acceptance::Accepted | Acceptance::RemovedByOthers);
    assert_eq!(judge::counts(verdict), counts);
}

#[rstest]
#[case::idle(ad(0, "5.0"), None)]
#[case::running(running(ad(0, "5.0")), None)]
#[case::held(held(ad(0, "5.0"), 1, 0), None)]
#[case::transferring_output(Ad { status: JobStatus::TransferringOutput, ..running(ad(0, "5.0")) }, None)]
#[case::suspended_by_its_node(Ad { status: JobStatus::Suspended, ..running(ad(0, "5.0")) }, None)]
#[case::blocked(Ad { status: JobStatus::Blocked, ..ad(0, "5.0") }, None)]
#[case::prepared_by_the_schedd(Ad { status: JobStatus::Preparing, ..ad(0, "5.0") }, None)]
#[case::failed_without_an_exit(
    Ad { status: JobStatus::Failed, ..running(ad(0, "5.0")) },
    Some(Outcome::Removed("HTCondor says that the job failed (JobStatus 8)".to_owned()))
)]
#[case::failed_with_exit_0(
    Ad { status: JobStatus::Failed, ..ended(ad(0, "5.0"), Exit::Code(0)) },
    Some(Outcome::Removed("HTCondor says that the job failed (JobStatus 8)".to_owned()))
)]
#[case::failed_with_exit_7(Ad { status: JobStatus::Failed, ..ended(ad(0, "5.0"), Exit::Code(7)) }, Some(Outcome::Failed(7)))]
#[case::running_again_with_a_stale_exit_code(Ad { exit: Some(Exit::Code(1)), ..running(ad(0, "5.0")) }, None)]
#[case::exit_0(ended(ad(0, "5.0"), Exit::Code(0)), Some(Outcome::Succeeded))]
#[case::exit_7(ended(ad(0, "5.0"), Exit::Code(7)), Some(Outcome::Failed(7)))]
#[case::killed(ended(ad(0, "5.0"), Exit::Signal(9)), Some(Outcome::Killed(9)))]
#[case::removed(removed(running(ad(0, "5.0")), "via condor_rm"), Some(Outcome::Removed("via condor_rm".to_owned())))]
#[case::removed_by_the_operator(
    removed(running(ad(0, "5.0")), judge::REMOVED_BY_US),
    Some(Outcome::Removed(String::new()))
)]
#[case::removed_after_its_end(removed(ended(ad(0, "5.0"), Exit::Code(0)), "via condor_rm"), Some(Outcome::Succeeded))]
#[case::removed_after_its_failure(
    removed(ended(ad(0, "5.0"), Exit::Code(7)), "via condor_rm"),
    Some(Outcome::Failed(7))
)]
#[case::removed_after_a_signal(
    removed(ended(ad(0, "5.0"), Exit::Signal(11)), "via condor_rm"),
    Some(Outcome::Killed(11))
)]
#[case::removed_between_two_tries(
    removed(Ad { exit: Some(Exit::Code(1)), ..running(ad(0, "5.0")) }, "via condor_rm"),
    Some(Outcome::Removed("via condor_rm".to_owned()))
)]
fn outcome_is_read_from_the_ad(#[case] ad: Ad, #[case] outcome: Option<Outcome>) {
    assert_eq!(judge::outcome(&ad), outcome);
}

#[test]
fn ad_in_queue_and_history_counts_as_in_history() {
    let evidence = Evidence {
        queue: queue(-2, &[running(ad(0, "5.0")), ad(1, "5.1")]),
        history: history(-1, &[ended(ad(0, "5.0"), Exit::Code(0))]),
    };
    let sightings = Sightings::new(&evidence, &ALL);
    let of_0 = sightings.of(Index(0));
    assert_eq!(of_0.len(), 1);
    assert_eq!((of_0[0].source, of_0[0].ad.status), (AdSource::History, JobStatus::Completed));
    assert_eq!(sightings.of(Index(1))[0].source, AdSource::Queue);
    assert!(sightings.of(Index(2)).is_empty());
    assert_eq!(sightings.iter().count(), 2);
}

#[test]
fn same_job_id_in_two_attempts_is_two_jobs() {
    // A schedd that lost its queue begins again at 1.0.
    let again = Ad { attempt: Attempt(2), ..running(ad(0, "1.0")) };
    let evidence = Evidence { queue: queue(-2, &[again]), history: history(-1, &[stillborn(ad(0, "1.0"))]) };
    let sightings = Sightings::new(&evidence, &ALL);
    let seen: Vec<_> = sightings.of(Index(0)).iter().map(|seen| (seen.source, seen.acceptance)).collect();
    assert_eq!(seen, [(AdSource::Queue, Acceptance::Accepted), (AdSource::History, Acceptance::Stillborn)]);
}

#[test]
fn accepted_ads_come_first_then_the_smallest_id() {
    let evidence = Evidence {
        queue: queue(
            -1,
            &[
                stillborn(ad(0, "2.0")),
                late(ad(0, "3.0")),
                staging(ad(0, "4.0")),
                ad(0, "10.0"),
                ad(0, "9.1"),
                removed(staging(ad(0, "1.0")), "via condor_rm"),
            ],
        ),
        history: unknown(QueryErrorKind::NotAsked),
    };
    let sightings = Sightings::new(&evidence, &ALL);
    let ids: Vec<String> = sightings.of(Index(0)).iter().map(|seen| seen.ad.id.to_string()).collect();
    assert_eq!(ids, ["9.1", "10.0", "1.0", "4.0", "3.0", "2.0"]);
}

#[test]
fn each_rule_for_ads_is_needed() {
    let too_late = late(ad(0, "5.0"));
    assert_eq!(judge::acceptance(&too_late, &without(|rules| rules.late_is_no_job = false)), Acceptance::Accepted);
    let on_its_way = staging(ad(0, "5.0"));
    assert_eq!(
        judge::acceptance(&on_its_way, &without(|rules| rules.staged_is_accepted = false)),
        Acceptance::Accepted
    );
}
