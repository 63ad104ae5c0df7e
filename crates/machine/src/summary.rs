//! Summary of an `HTCJob` in one word.

use super::facts::ConditionRecord;
use super::phase::Phase;
use crate::condition::{ConditionStatus, ConditionType, Reason};

/// Reasons of `Submitted` and `JobsRemoved` False that are everyday progress.
pub(super) const EVERYDAY: &[Reason] = &[
    Reason::Submitting,
    Reason::SmallerSubmissions,
    Reason::Suspended,
    Reason::DeadlineExceeded,
    Reason::MaxFailedIndexesExceeded,
    Reason::ParallelismReached,
    Reason::Queued,
    Reason::QueryingHTCondor,
    Reason::Removing,
    Reason::JobsPresent,
    Reason::Staging,
    Reason::Waiting,
    Reason::Creating,
];

/// Summary of an `HTCJob` that waits for quota in its queue.
pub const QUEUED: &str = "Queued";

/// Returns what needs attention, in one word, or else the phase; and the condition that has details. `failed`: number
/// of failed jobs.
#[must_use]
pub fn summary(phase: Phase, failed: usize, conditions: &[ConditionRecord]) -> (String, Option<&ConditionRecord>) {
    let told = |kind, status| conditions.iter().find(|told| told.kind == kind && told.status == status);
    let is = |kind| told(kind, ConditionStatus::True);
    let is_not = |kind| told(kind, ConditionStatus::False);
    let troubled = |told: &&ConditionRecord| !told.reason.parse().is_ok_and(|reason| EVERYDAY.contains(&reason));
    let by_reason = |told: &ConditionRecord| told.reason.clone();
    let by_kind = |told: &ConditionRecord| told.kind.to_string();
    let by_quota = |told: &ConditionRecord| match told.reason.parse() {
        Ok(
            Reason::ExceedsMaxQuota
            | Reason::Misconfigured
            | Reason::QueueNotFound
            | Reason::QueueNotAllowed
            | Reason::Inadmissible,
        ) => told.reason.clone(),
        _ => QUEUED.to_owned(),
    };
    let first = match phase {
        Phase::Terminating => {
            let removed = is_not(ConditionType::JobsRemoved);
            removed.filter(troubled).map(|told| (by_reason(told), told)).or_else(|| Some((phase.to_string(), removed?)))
        }
        // The condition `Failed` is set once the output is fetched.
        Phase::Completed if failed > 0 && is(ConditionType::Failed).is_none() => {
            return (ConditionType::Failed.to_string(), is_not(ConditionType::OutputFetched));
        }
        Phase::Completed => (is(ConditionType::Failed).map(|told| (by_kind(told), told)))
            .or_else(|| is_not(ConditionType::OutputFetched).map(|told| (by_reason(told), told)))
            .or_else(|| is(ConditionType::Complete).map(|told| (phase.to_string(), told))),
        Phase::Pending | Phase::Submitted | Phase::Running => {
            let submitted = is_not(ConditionType::Submitted);
            // The jobs are held, and wait for quota again.
            let waits =
                |told: &ConditionRecord| !matches!(told.reason.parse(), Ok(Reason::Suspended | Reason::QueueStopped));
            let evicted =
                is(ConditionType::Suspended).is_some() && is_not(ConditionType::QuotaReserved).is_some_and(waits);
            (submitted.filter(troubled).or_else(|| is_not(ConditionType::Tracked)).map(|told| (by_reason(told), told)))
                .or_else(|| is(ConditionType::Suspended).filter(|_| !evicted).map(|told| (by_kind(told), told)))
                .or_else(|| is(ConditionType::Held).filter(|_| !evicted).map(|told| (by_kind(told), told)))
                .or_else(|| is(ConditionType::Stuck).map(|told| (by_reason(told), told)))
                .or_else(|| is_not(ConditionType::QuotaReserved).map(|told| (by_quota(told), told)))
                .or_else(|| Some((phase.to_string(), submitted?)))
        }
    };
    first.map_or_else(|| (phase.to_string(), None), |(word, told)| (word, Some(told)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Timestamp;
    use ConditionStatus::{False, True};
    use ConditionType::{Complete, Failed, Held, JobsRemoved, OutputFetched, Submitted, Suspended, Tracked};

    fn told(kind: ConditionType, status: ConditionStatus, reason: Reason) -> ConditionRecord {
        ConditionRecord { kind, status, reason: reason.to_string(), message: format!("of {kind}"), since: Timestamp(0) }
    }

    fn word(phase: Phase, conditions: &[ConditionRecord]) -> String {
        summary(phase, 0, conditions).0
    }

    #[test]
    fn problem_takes_precedence_over_the_phase_in_the_summary() {
        let invalid = told(Submitted, False, Reason::InvalidSpec);
        let staging = told(Submitted, False, Reason::Staging);
        let accepted = told(Submitted, True, Reason::Accepted);
        let silent = told(Tracked, False, Reason::ScheddUnreachable);
        let held = told(Held, True, Reason::JobsHeld);
        let suspended = told(Suspended, True, Reason::Suspended);
        assert_eq!(word(Phase::Pending, &[]), "Pending");
        assert_eq!(word(Phase::Pending, std::slice::from_ref(&invalid)), "InvalidSpec");
        assert_eq!(summary(Phase::Pending, 0, std::slice::from_ref(&staging)), ("Pending".to_owned(), Some(&staging)));
        assert_eq!(word(Phase::Pending, &[told(Submitted, False, Reason::Suspended), suspended.clone()]), "Suspended");
        assert_eq!(word(Phase::Running, &[accepted.clone(), held.clone()]), "Held");
        assert_eq!(word(Phase::Running, &[accepted.clone(), suspended, held.clone()]), "Suspended");
        assert_eq!(word(Phase::Running, &[accepted.clone(), silent, held]), "ScheddUnreachable");
        assert_eq!(word(Phase::Running, &[accepted, told(Held, False, Reason::NotHeld)]), "Running");
    }

    #[test]
    fn summary_of_completed_htcjob_has_its_outcome() {
        let failed = told(Failed, True, Reason::DeadlineExceeded);
        let complete = told(Complete, True, Reason::AllSucceeded);
        let lost = told(OutputFetched, False, Reason::OutputLost);
        assert_eq!(summary(Phase::Completed, 1, &[lost.clone(), failed.clone()]), ("Failed".to_owned(), Some(&failed)));
        assert_eq!(summary(Phase::Completed, 1, &[]), ("Failed".to_owned(), None));
        assert_eq!(word(Phase::Completed, &[lost, complete.clone()]), "OutputLost");
        assert_eq!(word(Phase::Completed, &[told(OutputFetched, True, Reason::Fetched), complete]), "Completed");
    }

    #[test]
    fn summary_of_pending_deletion_has_its_reason() {
        let failed = told(Failed, True, Reason::JobsFailed);
        assert_eq!(
            word(Phase::Terminating, &[failed.clone(), told(JobsRemoved, False, Reason::Removing)]),
            "Terminating"
        );
        assert_eq!(
            word(Phase::Terminating, &[failed, told(JobsRemoved, False, Reason::NotRemovedYet)]),
            "NotRemovedYet"
        );
    }
}
