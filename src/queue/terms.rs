//! What an `HTCQueue` says, in numbers.

use super::admit::{Order, Terms};
use super::amounts::{Amounts, Limits, Resource, ResourceSet};
use crate::api::{HTCQueueSpec, QueueingStrategy, Quota, Resources, StopPolicy};
use crate::condor::htcopts::HtcOpts;

/// A MiB in bytes.
const MIB: u64 = 1 << 20;

impl Terms {
    /// Those of an `HTCQueue`.
    #[must_use]
    pub fn of(spec: &HTCQueueSpec) -> Self {
        let order = match spec.queueing_strategy {
            Some(QueueingStrategy::StrictFifo) => Order::StrictFifo,
            Some(QueueingStrategy::BestEffortFifo) | None if spec.fair_sharing == Some(false) => Order::BestEffortFifo,
            Some(QueueingStrategy::BestEffortFifo) | None => Order::FairShare,
        };
        let stopped = match spec.stop() {
            StopPolicy::None => false,
            StopPolicy::Hold | StopPolicy::HoldAndDrain => true,
        };
        let per_namespace = spec.per_namespace.as_ref().map(limits).unwrap_or_default();
        Self { order, stopped, quota: limits(&spec.quota), per_namespace }
    }

    /// Whether it limits this.
    #[must_use]
    pub const fn limits(&self, resource: Resource) -> bool {
        self.quota.get(resource).is_some() || self.per_namespace.get(resource).is_some()
    }
}

fn limits(quota: &Quota) -> Limits {
    let count = |count: Option<i64>| count.map(|count| u64::try_from(count).unwrap_or(0));
    // Rounded down: half a MiB is none.
    let memory = quota.memory.as_ref().map(|memory| memory.in_units_of(1).unwrap_or(0) / MIB);
    let all = [
        (Resource::Jobs, count(quota.jobs)),
        (Resource::Cpus, count(quota.cpus)),
        (Resource::Memory, memory),
        (Resource::Gpus, count(quota.gpus)),
    ];
    let set: Vec<(Resource, u64)> = all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))).collect();
    Limits::of(&set)
}

/// What one job of an `HTCJob` uses, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// What is known.
    pub each: Amounts,
    /// What is not: any of it may be what a queue limits.
    pub unknown: ResourceSet,
}

impl Demand {
    /// Of a job of which nothing is known but that it is one.
    #[must_use]
    pub fn one() -> Self {
        Self {
            each: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 1)]),
            unknown: ResourceSet::of(&[Resource::Memory]),
        }
    }

    /// What its submit commands ask for, or those of the site. Without any, HTCondor gives a job one core and no GPU; how much memory
    /// is for the pool to say.
    #[must_use]
    pub fn of(options: Option<&HtcOpts>, site: &HtcOpts) -> Self {
        let asked = |command| options.and_then(|options| options.command(command)).or_else(|| site.command(command));
        let count = |command, usual| asked(command).map_or(Some(usual), |value| value.trim().parse::<u64>().ok());
        let memory = asked("request_memory").and_then(in_mib);
        let all = [
            (Resource::Jobs, Some(1)),
            (Resource::Cpus, count("request_cpus", 1)),
            (Resource::Memory, memory),
            (Resource::Gpus, count("request_gpus", 0)),
        ];
        Self::of_all(all)
    }

    /// What a job with `spec.resources` uses where nothing else says it: whole cores, and one if it asks for none.
    #[must_use]
    pub fn of_resources(resources: &Resources) -> Self {
        let Resources { cpus, memory, disk: _, gpus } = resources;
        let cpus = cpus.as_ref().map_or(Some(1), |cpus| cpus.in_units_of(1).ok());
        let memory = memory.as_ref().and_then(|memory| memory.in_units_of(MIB).ok());
        let gpus = u64::try_from(gpus.unwrap_or_default()).ok();
        Self::of_all([
            (Resource::Jobs, Some(1)),
            (Resource::Cpus, cpus),
            (Resource::Memory, memory),
            (Resource::Gpus, gpus),
        ])
    }

    fn of_all(all: [(Resource, Option<u64>); 4]) -> Self {
        let known: Vec<(Resource, u64)> =
            all.iter().filter_map(|(resource, amount)| Some((*resource, (*amount)?))).collect();
        let unknown: Vec<Resource> =
            all.iter().filter(|(_, amount)| amount.is_none()).map(|(resource, _)| *resource).collect();
        Self { each: Amounts::of(&known), unknown: ResourceSet::of(&unknown) }
    }

    /// What these terms limit of that which is not known.
    #[must_use]
    pub fn missing(&self, terms: &Terms) -> Option<Resource> {
        self.unknown.first(|resource| terms.limits(resource))
    }
}

/// What to write so that it is known.
#[must_use]
pub(super) const fn field(resource: Resource) -> &'static str {
    match resource {
        Resource::Jobs => "spec.queue",
        Resource::Cpus => "spec.resources.cpus",
        Resource::Memory => "spec.resources.memory",
        Resource::Gpus => "spec.resources.gpus",
    }
}

/// `2048`, `2 GB`: HTCondor's quantities of memory, in MiB, rounded up.
fn in_mib(value: &str) -> Option<u64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.trim().to_ascii_uppercase();
    match unit.strip_suffix('B').unwrap_or(&unit) {
        "K" => Some(number.div_ceil(1024)),
        "" if unit.is_empty() => Some(number),
        "M" => Some(number),
        "G" => number.checked_mul(1 << 10),
        "T" => number.checked_mul(1 << 20),
        _ => None,
    }
}

/// The name in the label for the priority, as a number.
///
/// # Errors
///
/// What is wrong, in words for the user.
pub(super) fn priority(queue: &str, spec: &HTCQueueSpec, class: Option<&str>) -> Result<i64, String> {
    let Some(class) = class else { return Ok(0) };
    spec.priorities.get(class).map(|number| i64::from(*number)).ok_or_else(|| {
        let mut known: Vec<&str> = spec.priorities.keys().map(String::as_str).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        format!(
            "HTCQueue {queue} has no priority {class:?} ({known}): change the label {} of the HTCJob, or remove it",
            crate::api::PRIORITY_CLASS
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::condor::htcopts::{Attributes, Policy};

    #[rstest]
    #[case("2048", Some(2048))]
    #[case("2 GB", Some(2048))]
    #[case("2g", Some(2048))]
    #[case("1 TB", Some(1 << 20))]
    #[case("1025K", Some(2))]
    #[case("7 MB", Some(7))]
    #[case("ifThenElse(true, 1, 2)", None)]
    #[case("2 B", None)]
    #[case("", None)]
    fn memory_is_read_as_htcondor_does(#[case] value: &str, #[case] mib: Option<u64>) {
        assert_eq!(in_mib(value), mib);
    }

    #[test]
    fn what_a_job_says_counts_before_what_the_site_says() {
        let options = |text: &str| HtcOpts::parse(text, &Policy::of_the_site(Attributes::of_the_site())).unwrap();
        let site = options("request_memory = 1000\nrequest_cpus = 2");
        let demand = Demand::of(Some(&options("request_cpus = 4")), &site);
        let memory = ResourceSet::of(&[Resource::Memory]);
        assert_eq!(
            (demand.each.to_string().as_str(), demand.unknown),
            ("1 jobs, 4 cpus, 1000Mi memory", ResourceSet::default())
        );
        let demand = Demand::of(None, &options(""));
        assert_eq!((demand.each.to_string().as_str(), demand.unknown), ("1 jobs, 1 cpus", memory));
        let terms = |quota: serde_json::Value| Terms::of(&serde_json::from_value(json!({ "quota": quota })).unwrap());
        assert_eq!(demand.missing(&terms(json!({ "memory": "1Gi" }))), Some(Resource::Memory));
        assert_eq!(demand.missing(&terms(json!({ "jobs": 1 }))), None);
        let unknown = Demand::of(Some(&options("request_cpus = 1 + 1")), &site);
        assert_eq!(unknown.unknown, ResourceSet::of(&[Resource::Cpus]));
    }

    /// An expression for one of them does not hide another one.
    #[test]
    fn each_that_is_not_known_is_missed_where_it_is_limited() {
        let text = "request_cpus = 1 + 1\nrequest_gpus = 0 + 8";
        let options = HtcOpts::parse(text, &Policy::of_the_site(Attributes::of_the_site())).unwrap();
        let demand = Demand::of(Some(&options), &HtcOpts::default());
        for resource in [Resource::Cpus, Resource::Memory, Resource::Gpus] {
            let terms = Terms::of(&serde_json::from_value(json!({ "quota": { resource.to_string(): 1 } })).unwrap());
            assert_eq!(demand.missing(&terms), Some(resource));
        }
    }

    #[test]
    fn pods_count_with_what_they_ask_for() {
        let of = |resources: serde_json::Value| {
            let demand = Demand::of_resources(&serde_json::from_value(resources).unwrap());
            (demand.each.to_string(), demand.unknown)
        };
        assert_eq!(of(json!({})), ("1 jobs, 1 cpus".to_owned(), ResourceSet::of(&[Resource::Memory])));
        let all = of(json!({ "cpus": "1500m", "memory": "1500Ki", "disk": "1Gi", "gpus": 2 }));
        assert_eq!(all, ("1 jobs, 2 cpus, 2Mi memory, 2 gpus".to_owned(), ResourceSet::default()));
    }

    #[test]
    fn the_spec_becomes_terms() {
        let spec: HTCQueueSpec = serde_json::from_value(json!({
            "quota": { "jobs": 5, "memory": "1500Ki" }, "perNamespace": { "gpus": 0 }, "stopPolicy": "Hold", "fairSharing": false,
            "priorities": { "urgent": 10 },
        }))
        .unwrap();
        let terms = Terms::of(&spec);
        assert_eq!(terms.quota, Limits::of(&[(Resource::Jobs, 5), (Resource::Memory, 1)]));
        assert_eq!(terms.per_namespace, Limits::of(&[(Resource::Gpus, 0)]));
        assert!(terms.stopped && terms.order == Order::BestEffortFifo);
        assert_eq!((priority("q", &spec, None), priority("q", &spec, Some("urgent"))), (Ok(0), Ok(10)));
        let wrong = priority("q", &spec, Some("low")).unwrap_err();
        assert!(wrong.contains("\"low\"") && wrong.contains("it has urgent"), "{wrong}");
    }
}
