//! Quota that an object uses, requests and returns.
//! All of it is derived from the record, so that nothing can be counted twice.

use super::decide::{Action, Decision};
use super::facts::{Answer, Facts, JobState, Record, Spec};
use super::ids::{Index, RequestKind, Timestamp};
use super::indices::Indices;
use super::request::Work;
use super::rules::Rules;
use crate::actions::JobAction;

/// Quota usage of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    /// Jobs that HTCondor has or may have, whether or not they were granted quota.
    /// Jobs that the operator holds for `spec.suspend` use what they were granted.
    pub used: Indices,
    /// Whether the usage is not known; `used` then has all possible jobs.
    pub usage_unknown: bool,
    /// Jobs that would be submitted or released now if they had quota.
    pub requested: Indices,
    /// Jobs that have quota and do not need it any more: they have ended, are held, or are not to be submitted now.
    pub returned: Indices,
    /// Whether usage beyond what was granted may continue and is granted afterwards.
    pub grandfathered: bool,
    /// When the last try failed, if it did. Candidates that have requested quota since before that are served first.
    pub failed_at: Option<Timestamp>,
}

/// Number of jobs at a time, for backends where the operator does not start each job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Number of jobs that there are or may be; none if that is not known.
    pub current: Option<usize>,
    /// Number of jobs that would run now.
    pub wanted: usize,
}

/// Returns the object's quota usage after this decision.
#[must_use]
pub fn quota_usage(facts: &Facts, decision: &Decision, rules: &Rules) -> QuotaUsage {
    let record = decision.after.as_ref().unwrap_or(&facts.record);
    let mut uses = record.in_use();
    let recorded: Indices = record.jobs.keys().copied().collect();
    let unknown = facts.is_anothers(record);
    if unknown {
        // Until this ledger knows what HTCondor has of the object, all its jobs count.
        let all = facts.object.spec.as_ref().map(Spec::asked_for).unwrap_or_default();
        uses = Indices::union(&[uses, all.without(&recorded)]);
    }
    let submits = facts.in_flight.as_ref().is_some_and(|request| request.key.kind == RequestKind::Submit)
        || matches!(&decision.action, Action::Dispatch(request) if matches!(request.work, Work::Submit(..)));
    let (granted, wants) = (&record.granted, &decision.details.quota_requests);
    let suspended = facts.object.spec.as_ref().is_ok_and(|spec| spec.suspend);
    let held = held_by_us(record, rules);
    let held_for_users = held_for_users(record);
    let held_for_good = !rules.room_until_held || is_held_for_good(facts, record, decision);
    let ended: Indices =
        record.jobs.iter().filter(|(_, job)| job.outcome().is_some()).map(|(index, _)| *index).collect();
    let not_needed = |index: &Index| {
        if ended.contains(*index) {
            return true;
        }
        let needed = uses.contains(*index) || wants.contains(*index);
        // A submission under way uses the quota that it was given. Held jobs count until they are known to be held.
        // Jobs held by users keep their quota, unless all jobs are to return theirs.
        let may_go = if held_for_users.contains(*index) {
            suspended && held_for_good
        } else if held.contains(*index) {
            held_for_good
        } else {
            !submits
        };
        !needed && may_go
    };
    let gives_back = granted.iter().filter(not_needed).collect();
    let (asks, failed_at) = (wants.without(granted), decision.details.failed_at);
    QuotaUsage {
        used: uses,
        usage_unknown: unknown,
        requested: asks,
        returned: gives_back,
        grandfathered: true,
        failed_at,
    }
}

/// Returns the jobs that the operator holds for `spec.suspend`, whatever users requested. They return their quota once
/// they are held for good.
fn held_by_us(record: &Record, rules: &Rules) -> Indices {
    let held = record.jobs.iter().filter(|(index, job)| {
        let ours = matches!(&job.state, JobState::Held(hold) if hold.is_ours());
        ours && (rules.wishes_free_nothing || !record.requested_actions.is(**index, JobAction::Hold))
    });
    held.map(|(index, _)| *index).collect()
}

/// Returns the jobs that the operator holds for users.
fn held_for_users(record: &Record) -> Indices {
    let held = record.jobs.iter().filter(|(_, job)| matches!(&job.state, JobState::Held(hold) if hold.is_for_user()));
    held.map(|(index, _)| *index).collect()
}

/// Whether held jobs stay held for good: the answer is younger than the last hold and release, and neither is
/// under way.
fn is_held_for_good(facts: &Facts, record: &Record, decision: &Decision) -> bool {
    let changes = |kind| matches!(kind, RequestKind::Hold | RequestKind::Release);
    let under_way = facts.in_flight.as_ref().is_some_and(|request| changes(request.key.kind));
    let begins = matches!(&decision.action, Action::Dispatch(request) if changes(request.key.kind));
    let last = record.last_request(&[RequestKind::Hold, RequestKind::Release]);
    match &facts.evidence.queue {
        Answer::Known(queue) => !under_way && !begins && last.is_none_or(|last| queue.asked_at > last),
        Answer::Unknown(_) => false,
    }
}
