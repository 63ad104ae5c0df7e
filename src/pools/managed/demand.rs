//! Which HTCJobs fit on the workers of a managed pool, and how many workers they fill.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::objects::{WorkerSize, worker_image};
use crate::api::{
    Condition, ConditionStatus, ConditionType, HTCJob, HTCJobSpec, HTCJobStatus, HTCPoolSpec, ManagedPool, MiniCluster,
    Observed, Phase, Reason,
};
use crate::condor::htcopts::{HtcOpts, Policy};

const MIB: u64 = 1 << 20;
/// What HTCondor's newer tools ask for where the HTCJob says nothing: cores, MiB of memory, MiB of disk.
const UNSAID: [u64; 3] = [1, 128, 1024];
/// Parts of a worker are counted in so many of it.
const WHOLE: u64 = 1 << 20;
/// Why jobs are not all submitted that will be without anybody doing anything.
const COMING: [Reason; 6] = [
    Reason::Submitting,
    Reason::SmallerSubmissions,
    Reason::Asking,
    Reason::Staging,
    Reason::Parallelism,
    Reason::PoolNotReady,
];

/// How often a job of this spec fits on one worker.
///
/// # Errors
/// Not once; why, and what to do.
pub fn fits(pool: &ManagedPool, job: &HTCJobSpec) -> Result<u64, String> {
    if let Some(own) = &job.mini_cluster {
        may_have(pool, own)?;
    }
    let (wanted, has) = (image(job.image()), image(worker_image(pool)));
    let others_come = pool.workers.autoscaling.is_some() || job.mini_cluster.is_some();
    if wanted != has && !(others_come && is_of_registry(wanted) && pool.workers.allows(wanted)) {
        let others = pool.workers.allowed_images.join(", ");
        let others = if others.is_empty() { others } else { format!(" or of those that it allows ({others})") };
        return Err(format!(
            "its workers are containers of the image {has}{others}, and the HTCJob names {wanted}: delete the HTCJob and create it again with an image that it has, or with another spec.pool"
        ));
    }
    let size = WorkerSize::of(pool, job.mini_cluster.as_ref()).map_err(|error| error.to_string())?;
    let resources = job.resources.clone().unwrap_or_default();
    if resources.gpus.unwrap_or_default() > 0 {
        return Err("its workers have no GPUs: delete the HTCJob and create it again with another spec.pool".to_owned());
    }
    let options = job.htcopts.as_deref().and_then(|text| HtcOpts::parse(text, &Policy::default()).ok());
    let option = |name: &str| options.as_ref()?.command(name)?.trim().parse::<u64>().ok();
    let (cpus, memory, disk) = (resources.cpus, resources.memory, resources.disk);
    let asked = |quantity: Option<crate::api::Quantity>, unit: u64, option: Option<u64>, unsaid: u64| {
        quantity.and_then(|quantity| quantity.in_units_of(unit).ok()).or(option).unwrap_or(unsaid).max(1)
    };
    let [few_cpus, few_memory, few_disk] = UNSAID;
    let asked = [
        ("cores", asked(cpus, 1, option("request_cpus"), few_cpus), size.cpus),
        ("MiB of memory", asked(memory, MIB, option("request_memory"), few_memory), size.memory),
        ("MiB of disk", asked(disk, MIB, option("request_disk").map(|kib| kib.div_ceil(1024)), few_disk), size.disk),
    ];
    if let Some((what, asked, there)) = asked.iter().find(|(_, asked, there)| asked > there) {
        return Err(format!(
            "a worker has {there} {what}, and the jobs ask for {asked}: create the HTCJob again with less, or make the workers larger ({})",
            if job.mini_cluster.is_some() {
                "spec.miniCluster.resources"
            } else {
                "spec.managed.workers.resources of the pool"
            }
        ));
    }
    Ok(asked.iter().map(|(_, asked, there)| there / asked).min().unwrap_or(1).max(1))
}

/// Whether an HTCJob may have workers of its own.
fn may_have(pool: &ManagedPool, own: &MiniCluster) -> Result<(), String> {
    let Some(allowed) = &pool.workers.mini_clusters else {
        return Err(
            "it gives no HTCJob workers of its own: ask its administrator for spec.managed.workers.miniClusters, or delete the HTCJob and create it again without spec.miniCluster"
                .to_owned(),
        );
    };
    let (size, most) = own.bounds();
    if size > most {
        return Err(format!(
            "spec.miniCluster.size is {size}, and maxSize is {most}: create the HTCJob again with a larger maxSize"
        ));
    }
    if i64::from(size) > i64::from(allowed.max) {
        return Err(format!(
            "spec.miniCluster.size is {size}, and all HTCJobs together may have {} workers of their own: create the HTCJob again with a smaller one",
            allowed.max
        ));
    }
    let class = own.template.as_ref().and_then(|template| template.priority_class_name.as_ref());
    match class.filter(|class| !allowed.priority_class_names.contains(class)) {
        Some(class) => Err(format!(
            "PriorityClass {class:?} is not among those that it allows (spec.managed.workers.miniClusters.priorityClassNames): ask for it, or create the HTCJob again without it"
        )),
        None => Ok(()),
    }
}

/// As HTCJobs and workers compare it.
pub use crate::condor::payload::without_scheme as image;

/// No file and no folder: a pod can be made of it.
fn is_of_registry(image: &str) -> bool {
    image.starts_with(|c: char| c.is_ascii_alphanumeric())
        && image.chars().all(|c| c.is_ascii_alphanumeric() || "-._/:@".contains(c))
}

/// How many workers of each image the jobs of these HTCJobs fill: those that run, those that wait, and those that are yet to be
/// submitted. Those that have workers of their own fill none.
#[must_use]
pub fn needed<'a>(pool: &ManagedPool, jobs: impl IntoIterator<Item = &'a HTCJob>) -> BTreeMap<String, u32> {
    let mut parts: BTreeMap<String, u64> = BTreeMap::new();
    for job in jobs.into_iter().filter(|job| job.spec.mini_cluster.is_none()) {
        let Ok(count @ 1..) = u64::try_from(wanting(job)) else { continue };
        let Ok(fits) = fits(pool, &job.spec) else { continue };
        let sum = parts.entry(image(job.spec.image()).to_owned()).or_default();
        *sum = sum.saturating_add(count.saturating_mul(WHOLE).div_ceil(fits));
    }
    let whole = |parts: u64| u32::try_from(parts.div_ceil(WHOLE)).unwrap_or(u32::MAX);
    parts.into_iter().map(|(image, parts)| (image, whole(parts))).collect()
}

/// Some of its jobs do not run yet.
#[must_use]
pub fn waits(job: &HTCJob) -> bool {
    wanting(job) > job.status.as_ref().map_or(0, |status| status.running)
}

/// Whether this HTCJob of a pool may ask for workers: it may use the pool, or has jobs there from when it might. `own`: the pool's namespace.
#[must_use]
pub fn may_ask(pool: &HTCPoolSpec, own: &str, object: &Observed) -> bool {
    let has_jobs = |job: &HTCJob| job.status.as_ref().is_some_and(|status| status.active > 0);
    // What one that cannot be read has is not known.
    pool.allows(own, &object.namespace().unwrap_or_default()) || object.0.as_ref().map_or(true, has_jobs)
}

/// None of its jobs is to begin, by what it says or by its queue.
#[must_use]
pub fn is_suspended(job: &HTCJob) -> bool {
    let told = job.status.as_ref().and_then(|status| told(status, ConditionType::Suspended));
    job.spec.suspend || told.is_some_and(|told| told.status == ConditionStatus::True)
}

/// How many of its jobs want to run: those that HTCondor has, and those that it is about to get.
fn wanting(job: &HTCJob) -> i64 {
    let Some(status) = &job.status else { return 0 };
    if job.metadata.deletion_timestamp.is_some() || is_suspended(job) {
        return status.running;
    }
    match (status.phase, status.total) {
        (Some(Phase::Completed | Phase::Terminating), _) => 0,
        (None | Some(Phase::Pending | Phase::Submitted | Phase::Running), Some(total)) if is_submitted(status) => {
            let left = total - status.succeeded - status.failed;
            // Those that are held have places.
            let places = job.spec.parallelism.map_or(left, |most| left.min(most.max(status.active)));
            places - status.held
        }
        (None | Some(Phase::Pending | Phase::Submitted | Phase::Running), _) => status.active - status.held,
    }
}

/// What HTCondor does not have yet is on its way there. In a queue that is not known of it: it may have no room.
fn is_submitted(status: &HTCJobStatus) -> bool {
    let in_queue = told(status, ConditionType::QuotaReserved).is_some_and(|told| !says(told, Reason::NoQueue));
    let comes =
        |told: &Condition| told.status == ConditionStatus::True || COMING.into_iter().any(|reason| says(told, reason));
    !in_queue && told(status, ConditionType::Submitted).is_some_and(comes)
}

fn told(status: &HTCJobStatus, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|told| told.type_ == kind.to_string())
}

fn says(told: &Condition, reason: Reason) -> bool {
    told.reason == <&str>::from(reason)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{Autoscaling, MiniClusters, PodResources, Quantity, Resources, WorkerTemplate};

    fn pool() -> ManagedPool {
        let mut pool = ManagedPool { image: "htcondor:1".to_owned(), ..ManagedPool::default() };
        pool.workers.image = Some("python:3.12".to_owned());
        let quantity = |text: &str| Some(Quantity::Text(text.to_owned()));
        pool.workers.resources =
            Some(PodResources { cpus: quantity("4"), memory: quantity("8Gi"), disk: quantity("10Gi") });
        pool
    }

    fn job(cpus: i64, memory: &str, queue: i64) -> HTCJob {
        let mut spec = HTCJobSpec { queue: Some(queue), ..HTCJobSpec::default() };
        spec.script.image = "docker://python:3.12".to_owned();
        spec.resources = Some(Resources {
            cpus: Some(Quantity::Number(cpus)),
            memory: Some(Quantity::Text(memory.to_owned())),
            ..Resources::default()
        });
        let status = HTCJobStatus { total: Some(queue), ..HTCJobStatus::default() };
        let mut job = HTCJob { status: Some(status), ..HTCJob::new("job", spec) };
        says(&mut job, "Submitted=False:Submitting");
        job
    }

    /// Conditions such as `Submitted=False:Submitting`.
    fn says(job: &mut HTCJob, conditions: &str) {
        let status = job.status.as_mut().unwrap();
        for told in conditions.split_whitespace() {
            let (kind, told) = told.split_once('=').unwrap();
            let (value, reason) = told.split_once(':').unwrap();
            status.conditions.retain(|old| old.type_ != kind);
            let condition = json!({
                "type": kind, "status": value, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            status.conditions.push(serde_json::from_value(condition).unwrap());
        }
    }

    #[rstest]
    #[case(1, "1Gi", Some(4))]
    #[case(1, "3Gi", Some(2))]
    #[case(4, "1Gi", Some(1))]
    #[case(5, "1Gi", None)]
    #[case(1, "9Gi", None)]
    fn a_job_fits_by_cores_and_memory(#[case] cpus: i64, #[case] memory: &str, #[case] expected: Option<u64>) {
        assert_eq!(fits(&pool(), &job(cpus, memory, 1).spec).ok(), expected);
    }

    #[test]
    fn what_the_options_ask_for_counts() {
        let mut job = job(1, "1Gi", 1);
        job.spec.resources = None;
        job.spec.htcopts = Some("request_cpus = 2\nrequest_memory = 1024".to_owned());
        assert_eq!(fits(&pool(), &job.spec), Ok(2));
        job.spec.htcopts = Some("request_memory = 9000".to_owned());
        assert!(fits(&pool(), &job.spec).unwrap_err().contains("9000"));
    }

    #[test]
    fn another_image_never_fits() {
        let mut job = job(1, "1Gi", 1);
        "python:3.13".clone_into(&mut job.spec.script.image);
        let said = fits(&pool(), &job.spec).unwrap_err();
        assert!(said.contains("python:3.12") && said.contains("python:3.13"), "{said}");
        assert_eq!(needed(&pool(), [&job]), BTreeMap::new());
    }

    #[rstest]
    #[case("python:3.13", "python:*", true)]
    #[case("docker://python:3.13", "python:3.13", true)]
    #[case("python:3.13", "python:3.1", false)]
    #[case("registry.example.org/a/b@sha256:0", "*", true)]
    #[case("evil.example.org/registry.example.org/a", "registry.example.org/*", false)]
    #[case("/cvmfs/unpacked.cern.ch/a", "*", false)]
    #[case("a+b", "*", false)]
    fn only_images_that_are_allowed_get_workers(#[case] named: &str, #[case] allowed: &str, #[case] expected: bool) {
        let (mut pool, mut job) = (pool(), job(1, "1Gi", 8));
        named.clone_into(&mut job.spec.script.image);
        pool.workers.allowed_images = vec![allowed.to_owned()];
        assert!(fits(&pool, &job.spec).is_err(), "without autoscaling none come");
        pool.workers.autoscaling = Some(Autoscaling::default());
        assert_eq!(fits(&pool, &job.spec).is_ok(), expected);
        let workers = BTreeMap::from([(image(named).to_owned(), 2)]);
        assert_eq!(needed(&pool, [&job]), if expected { workers } else { BTreeMap::new() });
    }

    #[rstest]
    #[case::its_size_is_its_own(r#"{ "resources": { "memory": "2Gi" } }"#, Ok(2))]
    #[case::the_rest_is_the_pools(r#"{ "resources": { "cpus": 1 } }"#, Ok(1))]
    #[case::too_small(r#"{ "resources": { "memory": "512Mi" } }"#, Err("spec.miniCluster.resources"))]
    #[case::its_image_counts(r#"{ "image": "python:3.13" }"#, Ok(4))]
    #[case::another_image(r#"{ "image": "python:3.11" }"#, Err("names python:3.11"))]
    #[case::too_many(r#"{ "size": 6 }"#, Err("may have 5 workers"))]
    #[case::most_is_the_pools_to_limit(r#"{ "size": 5, "maxSize": 50 }"#, Ok(4))]
    #[case::smaller_than_itself(r#"{ "size": 3, "maxSize": 2 }"#, Err("create the HTCJob again with a larger maxSize"))]
    #[case::a_class(r#"{ "template": { "priorityClassName": "low" } }"#, Ok(4))]
    #[case::another_class(r#"{ "template": { "priorityClassName": "high" } }"#, Err("\"high\" is not among"))]
    fn workers_of_its_own_are_what_the_pool_allows(#[case] own: &str, #[case] expected: Result<u64, &str>) {
        let (mut pool, mut job) = (pool(), job(1, "1Gi", 8));
        job.spec.mini_cluster = Some(serde_json::from_str(own).unwrap());
        pool.workers.allowed_images = vec!["python:3.13".to_owned()];
        assert!(fits(&pool, &job.spec).unwrap_err().contains("no HTCJob workers of its own"));
        let classes = vec!["low".to_owned()];
        pool.workers.mini_clusters = Some(MiniClusters { max: 5, priority_class_names: classes });
        match (fits(&pool, &job.spec), expected) {
            (Err(said), Err(expected)) => assert!(said.contains(expected), "{said}"),
            (fits, expected) => assert_eq!(fits.as_ref().ok(), expected.as_ref().ok(), "{fits:?}"),
        }
        assert_eq!(needed(&pool, [&job]), BTreeMap::new());
        let template = WorkerTemplate { priority_class_name: Some("low".to_owned()), ..WorkerTemplate::default() };
        job.spec.mini_cluster = Some(MiniCluster { template: Some(template), ..MiniCluster::default() });
        assert!(fits(&pool, &job.spec).is_ok());
    }

    /// The HTCJob asks for 10 jobs.
    #[rstest]
    #[case::it_is_new(json!({}), "", json!({}), 0)]
    #[case::all_are_on_their_way(json!({}), "Submitted=False:Submitting", json!({ "total": 10 }), 10)]
    #[case::all_are_there(json!({}), "Submitted=True:Accepted", json!({ "total": 10, "active": 10, "running": 2 }), 10)]
    #[case::some_have_ended_and_some_are_held(json!({}), "Submitted=True:Accepted", json!({ "total": 10, "active": 5, "succeeded": 4, "failed": 1, "held": 1 }), 4)]
    #[case::only_some_of_the_indexes(json!({ "queue": 1000, "indexes": "3,17,200" }), "Submitted=False:Submitting", json!({ "total": 3 }), 3)]
    #[case::of_which_one_has_ended(json!({ "queue": 1000, "indexes": "3,17,200" }), "Submitted=False:Submitting", json!({ "total": 3, "active": 1, "failed": 1 }), 2)]
    #[case::items_from_a_config_map_that_are_on_their_way(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), "Submitted=False:Submitting", json!({ "total": 10, "active": 1, "succeeded": 2 }), 8)]
    #[case::and_only_some_of_them(json!({ "queue": null, "indexes": "0,7-8", "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), "Submitted=False:Submitting", json!({ "total": 3, "succeeded": 1 }), 2)]
    #[case::items_from_a_config_map(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), "Submitted=True:Accepted", json!({ "total": 10, "active": 4, "succeeded": 6 }), 4)]
    #[case::and_it_is_not_there(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), "Submitted=False:ItemsUnavailable", json!({}), 0)]
    #[case::some_at_a_time(json!({ "parallelism": 3 }), "Submitted=False:Parallelism", json!({ "total": 10, "active": 2, "succeeded": 5 }), 3)]
    #[case::held_ones_have_places(json!({ "parallelism": 3 }), "Submitted=False:Parallelism", json!({ "total": 10, "active": 3, "held": 2 }), 1)]
    #[case::fewer_at_a_time_than_there_are(json!({ "parallelism": 3 }), "Submitted=False:Parallelism", json!({ "total": 10, "active": 6, "held": 1 }), 5)]
    #[case::in_a_queue_without_room(json!({}), "Submitted=False:Queued QuotaReserved=False:WaitingForQuota", json!({ "total": 10 }), 0)]
    #[case::in_a_queue_that_is_not_known_yet(json!({}), "Submitted=False:Queued", json!({ "total": 10 }), 0)]
    #[case::in_a_queue_with_room_for_some(json!({}), "Submitted=False:Queued QuotaReserved=True:QuotaReserved", json!({ "total": 10, "active": 3 }), 3)]
    #[case::which_are_being_submitted(json!({}), "Submitted=False:Submitting QuotaReserved=True:QuotaReserved", json!({ "total": 10, "active": 3 }), 3)]
    #[case::in_a_queue_with_room_for_all(json!({}), "Submitted=True:Accepted QuotaReserved=True:QuotaReserved", json!({ "total": 10, "active": 8, "succeeded": 2 }), 8)]
    #[case::in_no_queue_any_more(json!({}), "Submitted=False:Submitting QuotaReserved=True:NoQueue", json!({ "total": 10 }), 10)]
    #[case::in_kueue(json!({}), "Submitted=False:Queued QuotaReserved=False:Inadmissible", json!({ "total": 10 }), 0)]
    #[case::it_may_not_use_the_pool(json!({}), "Submitted=False:PoolNotAllowed", json!({ "total": 10 }), 0)]
    #[case::any_more(json!({}), "Submitted=False:PoolNotAllowed", json!({ "total": 10, "active": 2 }), 2)]
    #[case::the_namespace_has_enough(json!({}), "Submitted=False:NamespaceLimit", json!({ "total": 10, "active": 1 }), 1)]
    #[case::the_pool_begins(json!({}), "Submitted=False:PoolNotReady", json!({ "total": 10 }), 10)]
    #[case::suspended(json!({ "suspend": true }), "Submitted=True:Accepted", json!({ "total": 10, "active": 10, "running": 2 }), 2)]
    #[case::by_its_queue(json!({}), "Submitted=True:Accepted Suspended=True:Suspended", json!({ "total": 10, "active": 10, "running": 2 }), 2)]
    #[case::resumed(json!({}), "Submitted=True:Accepted Suspended=False:Resumed", json!({ "total": 10, "active": 10, "running": 2 }), 10)]
    #[case::ended(json!({}), "Submitted=True:Accepted", json!({ "phase": "Completed", "total": 10, "succeeded": 10 }), 0)]
    fn what_may_run_asks_for_workers(
        #[case] spec: Value,
        #[case] conditions: &str,
        #[case] status: Value,
        #[case] expected: i64,
    ) {
        let mut object = serde_json::to_value(job(1, "1Gi", 10)).unwrap();
        object["status"] = status;
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        let mut job: HTCJob = serde_json::from_value(object).unwrap();
        says(&mut job, conditions);
        assert_eq!(wanting(&job), expected);
    }

    #[test]
    fn one_that_was_never_seen_asks_for_nothing_and_one_that_goes_for_what_runs() {
        let mut job = HTCJob { status: None, ..job(1, "1Gi", 10) };
        assert_eq!(wanting(&job), 0);
        job.status = Some(HTCJobStatus { total: Some(10), active: 10, running: 3, ..HTCJobStatus::default() });
        job.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(wanting(&job), 3);
    }

    #[rstest]
    #[case::of_the_pool(&[], "own", 0, true)]
    #[case::of_another(&[], "other", 0, false)]
    #[case::that_is_allowed(&["other"], "other", 0, true)]
    #[case::that_was_allowed(&["own"], "other", 2, true)]
    fn an_htcjob_asks_for_workers_only_where_it_may_be(
        #[case] allowed: &[&str],
        #[case] namespace: &str,
        #[case] active: i64,
        #[case] expected: bool,
    ) {
        let allowed_namespaces = allowed.iter().map(|name| (*name).to_owned()).collect();
        let pool = HTCPoolSpec { allowed_namespaces, ..HTCPoolSpec::default() };
        let mut job = job(1, "1Gi", 10);
        job.metadata.namespace = Some(namespace.to_owned());
        job.status.as_mut().unwrap().active = active;
        let read = serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap();
        assert_eq!(may_ask(&pool, "own", &read), expected);
    }

    #[test]
    fn workers_are_filled_by_all_jobs_together() {
        let needed = |jobs: &[&HTCJob]| {
            let needed = needed(&pool(), jobs.iter().copied());
            assert!(needed.keys().all(|image| image == "python:3.12"));
            needed.values().sum::<u32>()
        };
        assert_eq!(needed(&[&job(1, "1Gi", 9)]), 3);
        // Two of these and one of those fill less than two workers.
        assert_eq!(needed(&[&job(2, "1Gi", 1), &job(1, "1Gi", 2), &job(1, "2Gi", 1)]), 2);
    }
}
