//! What people are told of those that wait.

use super::admit::{Scope, Terms, Waits, Why};
use super::amounts::{Amounts, Resource};
use crate::api::Reason;

/// A place up to this one is told as it is; one behind it in round numbers, so that it is not written each time that somebody moves up.
const EXACT: usize = 10;

/// The place as it is told: the same for places that are as far away.
#[must_use]
pub fn roughly(place: usize) -> usize {
    let mut unit = 1;
    while place > EXACT * unit {
        unit *= 10;
    }
    place.div_ceil(unit) * unit
}

/// `4th`
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

/// The place in words: `4th`, `about 40th`.
#[must_use]
pub fn place(place: usize) -> String {
    let told = roughly(place);
    if place <= EXACT { ordinal(told) } else { format!("about {}", ordinal(told)) }
}

/// The reason in the condition `QuotaReserved`.
#[must_use]
pub const fn reason(why: Why) -> Reason {
    match why {
        Why::Quota(..) | Why::Behind => Reason::WaitingForQuota,
        Why::TooLarge(..) => Reason::ExceedsMaxQuota,
        Why::Stopped => Reason::Suspended,
    }
}

/// Why this one waits, and behind what. The condition `QuotaReserved` shows it for as long as its reason and place stay what they are, so it
/// names no amount that changes meanwhile: what is in use is in the status of the `HTCQueue`.
#[must_use]
pub fn waits(queue: &str, terms: &Terms, waits: &Waits, each: &Amounts) -> String {
    let limit = |resource: Resource, scope: Scope| {
        let limits = match scope {
            Scope::Queue => &terms.quota,
            Scope::Namespace => &terms.per_namespace,
        };
        resource.shown(limits.get(resource).unwrap_or_default())
    };
    let what = match waits.why {
        Why::TooLarge(resource, scope) => {
            let whose = match scope {
                Scope::Queue => "has",
                Scope::Namespace => "has for each namespace",
            };
            return format!(
                "each job needs {} {resource}, and HTCQueue {queue} {whose} {} in all: create the HTCJob again with less, or name another queue",
                resource.shown(each.get(resource)),
                limit(resource, scope)
            );
        }
        Why::Stopped => format!("HTCQueue {queue} is stopped by its administrator (stopPolicy)"),
        Why::Behind => format!("other HTCJobs are ahead of it in HTCQueue {queue}"),
        Why::Quota(resource, scope) => {
            let limit = limit(resource, scope);
            let whose = match scope {
                Scope::Queue => format!("the quota of HTCQueue {queue}, {limit} {resource}"),
                Scope::Namespace => {
                    format!("what HTCQueue {queue} gives to each namespace, {limit} {resource}")
                }
            };
            let needs = match resource {
                Resource::Jobs => String::new(),
                Resource::Cpus | Resource::Memory | Resource::Gpus => {
                    format!(", which needs {}", resource.shown(each.get(resource)))
                }
            };
            format!("{whose}, has no room for its next job{needs}")
        }
    };
    let line = waits.place.map_or_else(String::new, |number| {
        let before = match waits.before {
            0 => String::new(),
            1 => ", 1 job before it".to_owned(),
            jobs => format!(", {} jobs before it", about(jobs)),
        };
        format!("; {} in the queue{before}", place(number))
    });
    let jobs = if waits.jobs == 1 { "1 job waits".to_owned() } else { format!("{} jobs wait", waits.jobs) };
    format!("{jobs} for room: {what}{line}")
}

fn about(jobs: u64) -> String {
    let jobs = usize::try_from(jobs).unwrap_or(usize::MAX / 20);
    if jobs <= EXACT { jobs.to_string() } else { format!("about {}", roughly(jobs)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Limits;
    use crate::queue::admit::Order;

    #[test]
    fn places_far_away_are_told_roughly() {
        let told: Vec<String> = [1, 2, 3, 4, 10, 11, 21, 100, 101, 1234, 99_999].into_iter().map(place).collect();
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
    fn a_message_says_what_is_short_and_who_is_before() {
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Memory, 512)]);
        let (quota, per_namespace) = (Limits::of(&[(Resource::Memory, 1024)]), Limits::of(&[(Resource::Jobs, 2)]));
        let terms = Terms { order: Order::FairShare, stopped: false, quota, per_namespace };
        let say = |why, before| {
            let of = Waits { claim: 0, why, jobs: 3, place: Some(4), before };
            waits("batch", &terms, &of, &each)
        };
        assert_eq!(
            say(Why::Quota(Resource::Memory, Scope::Queue), 12),
            "3 jobs wait for room: the quota of HTCQueue batch, 1024Mi memory, has no room for its next job, which needs 512Mi; 4th in the queue, about 20 jobs before it"
        );
        assert_eq!(
            say(Why::Quota(Resource::Jobs, Scope::Namespace), 0),
            "3 jobs wait for room: what HTCQueue batch gives to each namespace, 2 jobs, has no room for its next job; 4th in the queue"
        );
        assert!(say(Why::TooLarge(Resource::Memory, Scope::Queue), 0).starts_with("each job needs 512Mi memory"));
        assert!(say(Why::Stopped, 0).contains("stopPolicy"));
    }
}
