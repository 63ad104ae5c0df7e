//! Messages for users about `HTCJob`s that wait.

use htc_api::Reason;
use htc_machine::admission::{QueuePolicy, QuotaScope, WaitReason, WaitingCandidate};
use htc_machine::amounts::{Amounts, Resource};

/// Positions up to this one are given exactly. Later ones are rounded, so that they are not rewritten at each small
/// move.
const EXACT: usize = 10;

/// Returns the position as users see it, rounded up. Similar distant positions give the same number.
#[must_use]
pub fn roughly(place: usize) -> usize {
    let mut unit = 1;
    while place > EXACT * unit {
        unit *= 10;
    }
    place.div_ceil(unit) * unit
}

/// Formats an ordinal number: `4th`.
#[must_use]
pub fn ordinal(place: usize) -> String {
    let ending = match (place % 10, place % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{place}{ending}")
}

/// Formats a position: `4th`, `about 40th`.
#[must_use]
pub fn position_text(place: usize) -> String {
    let told = roughly(place);
    if place <= EXACT { ordinal(told) } else { format!("about {}", ordinal(told)) }
}

/// Returns the reason for the condition `QuotaReserved`.
#[must_use]
pub const fn reason(why: WaitReason) -> Reason {
    match why {
        WaitReason::Quota(..) | WaitReason::Behind => Reason::WaitingForQuota,
        WaitReason::TooLarge(..) => Reason::ExceedsMaxQuota,
        WaitReason::Stopped => Reason::QueueStopped,
    }
}

/// Returns the message why an `HTCJob` waits, and behind what. The condition `QuotaReserved` keeps it for as long as
/// its reason and position stay the same. So it contains no amount that changes meanwhile; usage is in the status of
/// the `HTCQueue`.
#[must_use]
pub fn waiting_message(queue: &str, terms: &QueuePolicy, waits: &WaitingCandidate, each: &Amounts) -> String {
    let limit = |resource: Resource, scope: QuotaScope| {
        let limits = match scope {
            QuotaScope::Queue => &terms.quota,
            QuotaScope::Namespace => &terms.per_namespace,
        };
        resource.amount_text(limits.get(resource).unwrap_or_default())
    };
    let what = match waits.reason {
        WaitReason::TooLarge(resource, scope) => {
            let whose = match scope {
                QuotaScope::Queue => "has",
                QuotaScope::Namespace => "has for each namespace",
            };
            return format!(
                "each job needs {} {resource}, and HTCQueue {queue} {whose} {} in all: create the HTCJob again with less, or name another queue",
                resource.amount_text(each.get(resource)),
                limit(resource, scope)
            );
        }
        WaitReason::Stopped => format!("HTCQueue {queue} is stopped by its administrator (stopPolicy)"),
        WaitReason::Behind => format!("other HTCJobs are ahead of it in HTCQueue {queue}"),
        WaitReason::Quota(resource, scope) => {
            let limit = limit(resource, scope);
            let whose = match scope {
                QuotaScope::Queue => format!("the quota of HTCQueue {queue}, {limit} {resource}"),
                QuotaScope::Namespace => {
                    format!("what HTCQueue {queue} gives to each namespace, {limit} {resource}")
                }
            };
            let needs = match resource {
                Resource::Jobs => String::new(),
                Resource::Cpus | Resource::Memory | Resource::Gpus => {
                    format!(", which needs {}", resource.amount_text(each.get(resource)))
                }
            };
            format!("{whose}, has too little left for its next job{needs}")
        }
    };
    let line = waits.position.map_or_else(String::new, |number| {
        let before = match waits.before {
            0 => String::new(),
            1 => ", 1 job before it".to_owned(),
            jobs => format!(", {} jobs before it", about(jobs)),
        };
        format!("; {} in the queue{before}", position_text(number))
    });
    let jobs = if waits.jobs == 1 { "1 job waits".to_owned() } else { format!("{} jobs wait", waits.jobs) };
    format!("{jobs} for quota: {what}{line}")
}

fn about(jobs: u64) -> String {
    let jobs = usize::try_from(jobs).unwrap_or(usize::MAX / 20);
    if jobs <= EXACT { jobs.to_string() } else { format!("about {}", roughly(jobs)) }
}

#[cfg(test)]
mod tests {
    use htc_machine::admission::AdmissionOrder;
    use htc_machine::amounts::QuotaLimits;

    use super::*;

    #[test]
    fn distant_positions_are_rounded() {
        let told: Vec<String> =
            [1, 2, 3, 4, 10, 11, 21, 100, 101, 1234, 99_999].into_iter().map(position_text).collect();
        let wanted = [
            "1st",
            "2nd",
            "3rd",
            "4th",
            "10th",
            "about 20th",
            "about 30th",
            "about 100th",
            "about 200th",
            "about 2000th",
            "about 100000th",
        ];
        assert_eq!(told, wanted);
        assert_eq!([11, 12, 13, 111, 22].map(ordinal), ["11th", "12th", "13th", "111th", "22nd"]);
    }

    #[test]
    fn wait_message_names_the_short_resource_and_the_position() {
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Memory, 512)]);
        let (quota, per_namespace) =
            (QuotaLimits::of(&[(Resource::Memory, 1024)]), QuotaLimits::of(&[(Resource::Jobs, 2)]));
        let terms = QueuePolicy { order: AdmissionOrder::FairShare, stopped: false, quota, per_namespace };
        let say = |why, before| {
            let of = WaitingCandidate { candidate: 0, reason: why, jobs: 3, position: Some(4), before };
            waiting_message("batch", &terms, &of, &each)
        };
        assert_eq!(
            say(WaitReason::Quota(Resource::Memory, QuotaScope::Queue), 12),
            "3 jobs wait for quota: the quota of HTCQueue batch, 1024Mi memory, has too little left for its next job, which needs 512Mi; 4th in the queue, about 20 jobs before it"
        );
        assert_eq!(
            say(WaitReason::Quota(Resource::Jobs, QuotaScope::Namespace), 0),
            "3 jobs wait for quota: what HTCQueue batch gives to each namespace, 2 jobs, has too little left for its next job; 4th in the queue"
        );
        assert!(
            say(WaitReason::TooLarge(Resource::Memory, QuotaScope::Queue), 0)
                .starts_with("each job needs 512Mi memory")
        );
        assert!(say(WaitReason::Stopped, 0).contains("stopPolicy"));
    }
}
