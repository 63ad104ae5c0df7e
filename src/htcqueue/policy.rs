//! Converts the spec of an `HTCQueue`, and what jobs request, to numbers.

use htc_api::{HTCQueueSpec, PRIORITY_CLASS_LABEL, QueueingStrategy, Quota, Resources, StopPolicy};
use htc_machine::admission::{AdmissionOrder, QueuePolicy};
use htc_machine::amounts::{Amounts, QuotaLimits, Resource, ResourceSet};
use htc_submit::htcopts::HtcOpts;

const MIB: u64 = 1 << 20;

/// Returns the policy of an `HTCQueue`.
#[must_use]
pub(super) fn terms_of(spec: &HTCQueueSpec) -> QueuePolicy {
    let order = match spec.queueing_strategy {
        Some(QueueingStrategy::StrictFifo) => AdmissionOrder::StrictFifo,
        Some(QueueingStrategy::BestEffortFifo) | None if spec.fair_sharing == Some(false) => {
            AdmissionOrder::BestEffortFifo
        }
        Some(QueueingStrategy::BestEffortFifo) | None => AdmissionOrder::FairShare,
    };
    let stopped = match spec.stop() {
        StopPolicy::None => false,
        StopPolicy::Hold | StopPolicy::HoldAndDrain => true,
    };
    let per_namespace = spec.per_namespace.as_ref().map(limits).unwrap_or_default();
    QueuePolicy { order, stopped, quota: limits(&spec.quota), per_namespace }
}

fn limits(quota: &Quota) -> QuotaLimits {
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
    QuotaLimits::of(&set)
}

/// Resources that one job of an `HTCJob` uses, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobResources {
    /// Known amounts.
    pub per_job: Amounts,
    /// Resources whose amounts are not known. A queue may limit any of them.
    pub unknown: ResourceSet,
}

impl JobResources {
    /// Returns the resources of a job of which nothing else is known.
    #[must_use]
    pub fn one() -> Self {
        Self {
            per_job: Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 1)]),
            unknown: ResourceSet::of(&[Resource::Memory]),
        }
    }

    /// Returns what the job's submit commands request, or else those of the site. Without any, HTCondor gives a job
    /// one core and no GPU; the pool decides about memory.
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

    /// Returns what a job with `spec.resources` uses where nothing else says it: whole cores, and one if it requests
    /// none.
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
        Self { per_job: Amounts::of(&known), unknown: ResourceSet::of(&unknown) }
    }

    /// Returns the first resource that the policy limits and whose amount is not known.
    #[must_use]
    pub fn missing(&self, terms: &QueuePolicy) -> Option<Resource> {
        self.unknown.first(|resource| terms.limits(resource))
    }
}

/// Returns the field to set so that the amount becomes known.
#[must_use]
pub(super) const fn field(resource: Resource) -> &'static str {
    match resource {
        Resource::Jobs => "spec.queue",
        Resource::Cpus => "spec.resources.cpus",
        Resource::Memory => "spec.resources.memory",
        Resource::Gpus => "spec.resources.gpus",
    }
}

/// Parses HTCondor's quantities of memory (`2048`, `2 GB`). Returns MiB, rounded up.
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

/// Reason why a queue cannot serve the request of an `HTCJob`. Each text is for users.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error(
        "HTCQueue {queue} has a quota of {resource}, and the HTCJob does not say in a number how much each job needs: create it again with {}",
        field(*resource)
    )]
    UnknownAmount { queue: String, resource: Resource },
    /// `known`: what the queue has instead.
    #[error(
        "HTCQueue {queue} has no priority {class:?} ({known}): change the label {PRIORITY_CLASS_LABEL} of the HTCJob, or remove it"
    )]
    NoPriority { queue: String, class: String, known: String },
}

/// Returns the number of the priority named in the label.
pub(super) fn priority(queue: &str, spec: &HTCQueueSpec, class: Option<&str>) -> Result<i64, RequestError> {
    let Some(class) = class else { return Ok(0) };
    spec.priorities.get(class).map(|number| i64::from(*number)).ok_or_else(|| {
        let mut known: Vec<&str> = spec.priorities.keys().map(String::as_str).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        RequestError::NoPriority { queue: queue.to_owned(), class: class.to_owned(), known }
    })
}

#[cfg(test)]
mod tests {
    use htc_submit::htcopts::{Attributes, HtcOptsPolicy};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

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
    fn memory_is_parsed_as_in_htcondor(#[case] value: &str, #[case] mib: Option<u64>) {
        assert_eq!(in_mib(value), mib);
    }

    #[test]
    fn job_request_takes_precedence_over_the_site_default() {
        let options =
            |text: &str| HtcOpts::parse(text, &HtcOptsPolicy::of_the_site(Attributes::of_the_site())).unwrap();
        let site = options("request_memory = 1000\nrequest_cpus = 2");
        let demand = JobResources::of(Some(&options("request_cpus = 4")), &site);
        let memory = ResourceSet::of(&[Resource::Memory]);
        assert_eq!(
            (demand.per_job.to_string().as_str(), demand.unknown),
            ("1 jobs, 4 cpus, 1000Mi memory", ResourceSet::default())
        );
        let demand = JobResources::of(None, &options(""));
        assert_eq!((demand.per_job.to_string().as_str(), demand.unknown), ("1 jobs, 1 cpus", memory));
        let terms = |quota: serde_json::Value| terms_of(&serde_json::from_value(json!({ "quota": quota })).unwrap());
        assert_eq!(demand.missing(&terms(json!({ "memory": "1Gi" }))), Some(Resource::Memory));
        assert_eq!(demand.missing(&terms(json!({ "jobs": 1 }))), None);
        let unknown = JobResources::of(Some(&options("request_cpus = 1 + 1")), &site);
        assert_eq!(unknown.unknown, ResourceSet::of(&[Resource::Cpus]));
    }

    /// An expression for one resource does not hide another resource that is not known.
    #[test]
    fn each_unknown_resource_is_missing_if_limited() {
        let text = "request_cpus = 1 + 1\nrequest_gpus = 0 + 8";
        let options = HtcOpts::parse(text, &HtcOptsPolicy::of_the_site(Attributes::of_the_site())).unwrap();
        let demand = JobResources::of(Some(&options), &HtcOpts::default());
        for resource in [Resource::Cpus, Resource::Memory, Resource::Gpus] {
            let terms = terms_of(&serde_json::from_value(json!({ "quota": { resource.to_string(): 1 } })).unwrap());
            assert_eq!(demand.missing(&terms), Some(resource));
        }
    }

    #[test]
    fn pods_count_with_their_resource_requests() {
        let of = |resources: serde_json::Value| {
            let demand = JobResources::of_resources(&serde_json::from_value(resources).unwrap());
            (demand.per_job.to_string(), demand.unknown)
        };
        assert_eq!(of(json!({})), ("1 jobs, 1 cpus".to_owned(), ResourceSet::of(&[Resource::Memory])));
        let all = of(json!({ "cpus": "1500m", "memory": "1500Ki", "disk": "1Gi", "gpus": 2 }));
        assert_eq!(all, ("1 jobs, 2 cpus, 2Mi memory, 2 gpus".to_owned(), ResourceSet::default()));
    }

    #[test]
    fn queue_spec_becomes_its_policy() {
        let spec: HTCQueueSpec = serde_json::from_value(json!({
            "quota": { "jobs": 5, "memory": "1500Ki" }, "perNamespace": { "gpus": 0 }, "stopPolicy": "Hold", "fairSharing": false,
            "priorities": { "urgent": 10 },
        }))
        .unwrap();
        let terms = terms_of(&spec);
        assert_eq!(terms.quota, QuotaLimits::of(&[(Resource::Jobs, 5), (Resource::Memory, 1)]));
        assert_eq!(terms.per_namespace, QuotaLimits::of(&[(Resource::Gpus, 0)]));
        assert!(terms.stopped && terms.order == AdmissionOrder::BestEffortFifo);
        assert_eq!((priority("q", &spec, None), priority("q", &spec, Some("urgent"))), (Ok(0), Ok(10)));
        let wrong = priority("q", &spec, Some("low")).unwrap_err().to_string();
        assert!(wrong.contains("\"low\"") && wrong.contains("it has urgent"), "{wrong}");
    }
}
