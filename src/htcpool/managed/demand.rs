//! Capacity of workers: which HTCJobs fit on those of a managed pool, and how many workers their jobs fill.

use std::collections::BTreeMap;

use htc_api::{HTCJob, HTCJobSpec, HTCPoolSpec, Isolation, ManagedPool, MiniCluster, ObservedHTCJob, QuantityError};
use htc_machine::demand::{JobDemand, Unsubmitted};
use htc_machine::worker_groups::SharedGroup;
use htc_submit::htcopts::{HtcOpts, HtcOptsPolicy};
use htc_submit::spec;
use htc_submit::volumes::{self, VolumesError};
use kube::ResourceExt as _;

use super::objects::{WorkerSize, worker_image, worker_node_selector};

const MIB: u64 = 1 << 20;
/// Defaults of HTCondor's newer tools for an HTCJob without requests: cores, MiB of memory, MiB of disk.
const UNSAID: [u64; 3] = [1, 128, 1024];
/// Number of parts that a worker is divided into for the count.
const WHOLE: u64 = 1 << 20;

/// Reason why no job of an HTCJob fits on a worker of the pool. The text continues after the name of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFit {
    #[error(
        "its workers are containers of the image {has}{others}, and the HTCJob names {wanted}: delete the HTCJob and create it again with an image that it has, or with another spec.pool"
    )]
    Image { has: String, others: String, wanted: String },
    /// The size of the workers cannot be parsed. The API server admits none such.
    #[error(transparent)]
    WorkerSize(#[from] QuantityError),
    #[error(
        "a worker does not know the entrypoint of its image: delete the HTCJob and create it again with spec.container.command, or with another spec.pool"
    )]
    Entrypoint,
    #[error("its workers have no GPUs: delete the HTCJob and create it again with another spec.pool")]
    NoGpus,
    #[error(
        "a worker has {there} {what}, and the jobs ask for {asked}: create the HTCJob again with less, or make the workers larger ({field})"
    )]
    TooSmall { what: &'static str, asked: u64, there: u64, field: &'static str },
    #[error("spec.volumes: {0}")]
    Volumes(#[from] VolumesError),
    #[error(
        "its workers do not mount claim {0}: ask its administrator for spec.managed.workers.allowedClaims, or delete the HTCJob and create it again without the claim or with another spec.pool"
    )]
    Claim(String),
    #[error(
        "workers with volumes come only with autoscaling: ask its administrator for spec.managed.workers.autoscaling, or delete the HTCJob and create it again with spec.miniCluster or with another spec.pool"
    )]
    NoVolumes,
    #[error(
        "it gives no HTCJob workers of its own: ask its administrator for spec.managed.workers.miniClusters, or delete the HTCJob and create it again without spec.miniCluster"
    )]
    NoMiniClusters,
    #[error("spec.miniCluster.size is {size}, and maxSize is {max}: create the HTCJob again with a larger maxSize")]
    AboveMaxSize { size: u32, max: u32 },
    #[error(
        "spec.miniCluster.size is {size}, and all HTCJobs together may have {max} workers of their own: create the HTCJob again with a smaller one"
    )]
    AbovePoolMax { size: u32, max: i32 },
    #[error(
        "its workers are on nodes with {label}={has}, and spec.miniCluster.template.nodeSelector says {label}={wanted}: create the HTCJob again without this label, or with another spec.pool"
    )]
    NodeSelector { label: String, has: String, wanted: String },
    #[error(
        "PriorityClass {0:?} is not among those that it allows (spec.managed.workers.miniClusters.priorityClassNames): ask for it, or create the HTCJob again without it"
    )]
    PriorityClass(String),
}

/// Returns how many jobs of this spec fit on one worker.
///
/// # Errors
/// Not a single one fits.
pub fn jobs_per_worker(pool: &ManagedPool, job: &HTCJobSpec) -> Result<u64, NoFit> {
    if let Some(own) = &job.mini_cluster {
        may_have(pool, own)?;
    }
    let (wanted, has) = (image(job.image()), image(worker_image(pool)));
    let others_come = pool.workers.autoscaling.is_some() || job.mini_cluster.is_some();
    if wanted != has && !(others_come && is_of_registry(wanted) && pool.workers.allows(wanted)) {
        let others = pool.workers.allowed_images.join(", ");
        let others = if others.is_empty() { others } else { format!(" or of those that it allows ({others})") };
        return Err(NoFit::Image { has: has.to_owned(), others, wanted: wanted.to_owned() });
    }
    if job.runs_entrypoint() {
        return Err(NoFit::Entrypoint);
    }
    let volumes = volumes::parse(job)?;
    if let Some(volume) = volumes.iter().find(|volume| !pool.workers.allows_claim(&volume.claim)) {
        return Err(NoFit::Claim(volume.claim.clone()));
    }
    if !volumes.is_empty() && !others_come {
        return Err(NoFit::NoVolumes);
    }
    let size = WorkerSize::of(pool, job.mini_cluster.as_ref())?;
    let resources = job.resources.clone().unwrap_or_default();
    if resources.gpus.unwrap_or_default() > 0 {
        return Err(NoFit::NoGpus);
    }
    let options = job.htcopts.as_deref().and_then(|text| HtcOpts::parse(text, &HtcOptsPolicy::default()).ok());
    let option = |name: &str| options.as_ref()?.command(name)?.trim().parse::<u64>().ok();
    let (cpus, memory, disk) = (resources.cpus, resources.memory, resources.disk);
    let asked = |quantity: Option<htc_api::Quantity>, unit: u64, option: Option<u64>, unsaid: u64| {
        quantity.and_then(|quantity| quantity.in_units_of(unit).ok()).or(option).unwrap_or(unsaid).max(1)
    };
    let [few_cpus, few_memory, few_disk] = UNSAID;
    let asked = [
        ("cores", asked(cpus, 1, option("request_cpus"), few_cpus), size.cpus),
        ("MiB of memory", asked(memory, MIB, option("request_memory"), few_memory), size.memory),
        ("MiB of disk", asked(disk, MIB, option("request_disk").map(|kib| kib.div_ceil(1024)), few_disk), size.disk),
    ];
    if let Some((what, asked, there)) = asked.into_iter().find(|(_, asked, there)| asked > there) {
        let own = job.mini_cluster.is_some();
        let field = if own { "spec.miniCluster.resources" } else { "spec.managed.workers.resources of the pool" };
        return Err(NoFit::TooSmall { what, asked, there, field });
    }
    Ok(asked.iter().map(|(_, asked, there)| there / asked).min().unwrap_or(1).max(1))
}

/// Checks that an HTCJob may have workers of its own.
fn may_have(pool: &ManagedPool, own: &MiniCluster) -> Result<(), NoFit> {
    let allowed = pool.workers.mini_clusters.as_ref().ok_or(NoFit::NoMiniClusters)?;
    let (size, max) = own.bounds();
    if size > max {
        return Err(NoFit::AboveMaxSize { size, max });
    }
    if i64::from(size) > i64::from(allowed.max) {
        return Err(NoFit::AbovePoolMax { size, max: allowed.max });
    }
    let nodes = worker_node_selector(pool);
    let wanted = own.template.iter().flat_map(|template| &template.node_selector);
    if let Some((label, value, has)) =
        wanted.filter_map(|(label, value)| Some((label, value, nodes.get(label)?))).find(|(_, value, has)| value != has)
    {
        let (label, has, wanted) = (label.clone(), has.clone(), value.clone());
        return Err(NoFit::NodeSelector { label, has, wanted });
    }
    let class = own.template.as_ref().and_then(|template| template.priority_class_name.as_ref());
    match class.filter(|class| !allowed.priority_class_names.contains(class)) {
        Some(class) => Err(NoFit::PriorityClass(class.clone())),
        None => Ok(()),
    }
}

/// Returns the image in the form that HTCJobs and workers are compared by.
pub use htc_submit::payload::without_scheme as image;

/// Returns whether the image is from a registry, and no file or folder: only then a pod can run it.
fn is_of_registry(image: &str) -> bool {
    image.starts_with(|c: char| c.is_ascii_alphanumeric())
        && image.chars().all(|c| c.is_ascii_alphanumeric() || "-._/:@".contains(c))
}

/// Returns the group of shared workers that runs the jobs of an HTCJob in this namespace.
#[must_use]
pub fn shared_group(pool: &ManagedPool, job: &HTCJobSpec, namespace: &str) -> SharedGroup {
    let volumes = volumes::parse(job).map(volumes::key).unwrap_or_default();
    SharedGroup { volumes, ..group_of_image(pool, job.image(), namespace) }
}

/// Returns the group of shared workers without volumes that runs jobs with this image and namespace.
#[must_use]
pub fn group_of_image(pool: &ManagedPool, wanted: &str, namespace: &str) -> SharedGroup {
    let namespace = match pool.workers.isolation {
        Isolation::Namespace => Some(namespace.to_owned()),
        Isolation::None => None,
    };
    SharedGroup { image: image(wanted).to_owned(), namespace, volumes: String::new() }
}

/// Returns how many workers of each group the jobs of these HTCJobs fill.
///
/// Running and waiting jobs count, and those yet to be submitted. HTCJobs with workers of their own do not count.
#[must_use]
pub fn workers_needed<'a>(
    pool: &ManagedPool,
    jobs: impl IntoIterator<Item = (&'a HTCJob, JobDemand)>,
) -> BTreeMap<SharedGroup, u32> {
    let mut parts: BTreeMap<SharedGroup, u64> = BTreeMap::new();
    for (job, work) in jobs.into_iter().filter(|(job, _)| job.spec.mini_cluster.is_none()) {
        let Ok(count @ 1..) = u64::try_from(wanting(job, &work)) else { continue };
        let Ok(fits) = jobs_per_worker(pool, &job.spec) else { continue };
        let group = shared_group(pool, &job.spec, &job.namespace().unwrap_or_default());
        let sum = parts.entry(group).or_default();
        *sum = sum.saturating_add(count.saturating_mul(WHOLE).div_ceil(fits));
    }
    let whole = |parts: u64| u32::try_from(parts.div_ceil(WHOLE)).unwrap_or(u32::MAX);
    parts.into_iter().map(|(group, parts)| (group, whole(parts))).collect()
}

/// Returns whether some of its jobs do not run yet.
#[must_use]
pub fn has_waiting_jobs(job: &HTCJob, work: &JobDemand) -> bool {
    wanting(job, work) > work.running
}

/// Returns whether this HTCJob may request workers: it may use the pool, or has jobs there from when it was allowed. One
/// with volumes may only in the namespace of the pool, whose claims the workers mount.
///
/// `own`: namespace of the pool. `work`: `None` if the demand is not known.
#[must_use]
pub fn may_request_workers(pool: &HTCPoolSpec, own: &str, object: &ObservedHTCJob, work: Option<&JobDemand>) -> bool {
    let namespace = object.namespace().unwrap_or_default();
    let mounts = object.0.as_ref().is_ok_and(|job| !job.spec.volumes.is_empty());
    (pool.allows(own, &namespace) || work.is_none_or(|work| work.active() > 0)) && (!mounts || namespace == own)
}

/// Returns whether none of its jobs may start, because of its spec or its queue.
#[must_use]
pub const fn is_suspended(job: &HTCJob, work: &JobDemand) -> bool {
    job.spec.suspend || work.suspended
}

/// Returns how many of its jobs are to run: those in HTCondor, and those about to be submitted.
fn wanting(job: &HTCJob, work: &JobDemand) -> usize {
    if job.metadata.deletion_timestamp.is_some() || is_suspended(job, work) {
        return work.running;
    }
    if work.ended {
        return 0;
    }
    let active = work.active();
    let rest = match work.unsubmitted {
        Unsubmitted::Blocked => 0,
        Unsubmitted::Granted(granted) => granted,
        Unsubmitted::Imminent => {
            asked_for(&job.spec, work.queue).unwrap_or_default().saturating_sub(work.finished + active)
        }
    };
    let all = active + rest;
    let most = job.spec.parallelism.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or_default());
    // Held jobs count towards the parallelism.
    all.min(most.max(active)) - work.held
}

/// Returns the number of requested jobs; `None` if a ConfigMap determines it and was not counted yet.
fn asked_for(spec: &HTCJobSpec, counted: Option<u32>) -> Option<usize> {
    let queue = spec::queue(spec, counted).ok()?;
    let indexes = spec::indexes(spec, queue).ok()?;
    Some(indexes.map_or(queue as usize, |indexes| indexes.len()))
}

#[cfg(test)]
mod tests {
    use htc_api::{
        Autoscaling, ContainerSpec, MiniClusters, PodResources, Quantity, Resources, Script, WorkerTemplate,
    };
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

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
        spec.script = Some(Script { image: "docker://python:3.12".to_owned(), ..Script::default() });
        spec.resources = Some(Resources {
            cpus: Some(Quantity::Number(cpus)),
            memory: Some(Quantity::Text(memory.to_owned())),
            ..Resources::default()
        });
        HTCJob::new("job", spec)
    }

    /// All its jobs are about to be submitted.
    fn coming(job: &HTCJob) -> (&HTCJob, JobDemand) {
        (job, JobDemand { unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() })
    }

    /// Demand with these numbers of idle, running and held jobs.
    const fn has([idle, running, held]: [usize; 3]) -> JobDemand {
        JobDemand {
            idle,
            running,
            held,
            queue: None,
            finished: 0,
            unsubmitted: Unsubmitted::Blocked,
            suspended: false,
            begun: true,
            ended: false,
        }
    }

    #[rstest]
    #[case(1, "1Gi", Some(4))]
    #[case(1, "3Gi", Some(2))]
    #[case(4, "1Gi", Some(1))]
    #[case(5, "1Gi", None)]
    #[case(1, "9Gi", None)]
    fn jobs_per_worker_depend_on_cpus_and_memory(
        #[case] cpus: i64,
        #[case] memory: &str,
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(jobs_per_worker(&pool(), &job(cpus, memory, 1).spec).ok(), expected);
    }

    #[test]
    fn requests_in_htcopts_count() {
        let mut job = job(1, "1Gi", 1);
        job.spec.resources = None;
        job.spec.htcopts = Some("request_cpus = 2\nrequest_memory = 1024".to_owned());
        assert_eq!(jobs_per_worker(&pool(), &job.spec), Ok(2));
        job.spec.htcopts = Some("request_memory = 9000".to_owned());
        assert!(jobs_per_worker(&pool(), &job.spec).unwrap_err().to_string().contains("9000"));
    }

    #[test]
    fn job_of_another_image_never_fits() {
        let mut job = job(1, "1Gi", 1);
        "python:3.13".clone_into(&mut job.spec.script.as_mut().unwrap().image);
        let said = jobs_per_worker(&pool(), &job.spec).unwrap_err().to_string();
        assert!(said.contains("python:3.12") && said.contains("python:3.13"), "{said}");
        assert_eq!(workers_needed(&pool(), [coming(&job)]), BTreeMap::new());
    }

    #[test]
    fn entrypoint_of_an_image_fits_no_worker() {
        let mut spec = job(1, "1Gi", 1).spec;
        let image = spec.script.take().unwrap().image;
        let command = vec!["python3".to_owned()];
        spec.container = Some(ContainerSpec { image, command, args: Vec::new() });
        assert_eq!(jobs_per_worker(&pool(), &spec), Ok(4));
        spec.container.as_mut().unwrap().command.clear();
        assert_eq!(jobs_per_worker(&pool(), &spec), Err(NoFit::Entrypoint));
    }

    #[rstest]
    #[case("python:3.13", "python:*", true)]
    #[case("docker://python:3.13", "python:3.13", true)]
    #[case("python:3.13", "python:3.1", false)]
    #[case("registry.example.org/a/b@sha256:0", "*", true)]
    #[case("evil.example.org/registry.example.org/a", "registry.example.org/*", false)]
    #[case("/cvmfs/unpacked.cern.ch/a", "*", false)]
    #[case("a+b", "*", false)]
    fn only_allowed_images_get_workers(#[case] named: &str, #[case] allowed: &str, #[case] expected: bool) {
        let (mut pool, mut job) = (pool(), job(1, "1Gi", 8));
        named.clone_into(&mut job.spec.script.as_mut().unwrap().image);
        pool.workers.allowed_images = vec![allowed.to_owned()];
        assert!(jobs_per_worker(&pool, &job.spec).is_err(), "without autoscaling none come");
        pool.workers.autoscaling = Some(Autoscaling::default());
        assert_eq!(jobs_per_worker(&pool, &job.spec).is_ok(), expected);
        let workers = BTreeMap::from([(group_of_image(&pool, named, ""), 2)]);
        assert_eq!(workers_needed(&pool, [coming(&job)]), if expected { workers } else { BTreeMap::new() });
    }

    #[rstest]
    #[case::allowed("data:/in:ro", Ok("data:/in:ro"))]
    #[case::allowed_by_its_beginning("results-1:/out", Ok("results-1:/out"))]
    #[case::other_claim("secrets:/in", Err("do not mount claim secrets"))]
    #[case::claim_of_a_pool("spool-lhc-schedd-0:/in", Err("belongs to an HTCPool"))]
    #[case::reserved_folder("data:/etc", Err("belongs to the image"))]
    fn jobs_with_allowed_claims_get_workers_that_mount_them(
        #[case] volume: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let (mut pool, mut job) = (pool(), job(1, "1Gi", 8));
        job.spec.volumes = vec![volume.parse().unwrap()];
        pool.workers.allowed_claims = ["data", "results-*", "spool-*"].map(str::to_owned).to_vec();
        assert!(jobs_per_worker(&pool, &job.spec).is_err(), "no workers come with the claim");
        pool.workers.autoscaling = Some(Autoscaling::default());
        match (jobs_per_worker(&pool, &job.spec), expected) {
            (Err(said), Err(expected)) => assert!(said.to_string().contains(expected), "{said}"),
            (fits, expected) => assert_eq!(fits.is_ok(), expected.is_ok(), "{fits:?}"),
        }
        let needed: Vec<String> =
            workers_needed(&pool, [coming(&job)]).into_keys().map(|group| group.volumes).collect();
        assert_eq!(needed, expected.ok().into_iter().collect::<Vec<_>>());
    }

    #[rstest]
    #[case::own_memory(r#"{ "resources": { "memory": "2Gi" } }"#, Ok(2))]
    #[case::memory_of_the_pool(r#"{ "resources": { "cpus": 1 } }"#, Ok(1))]
    #[case::too_small(r#"{ "resources": { "memory": "512Mi" } }"#, Err("spec.miniCluster.resources"))]
    #[case::own_image(r#"{ "image": "python:3.13" }"#, Ok(4))]
    #[case::another_image(r#"{ "image": "python:3.11" }"#, Err("names python:3.11"))]
    #[case::too_many(r#"{ "size": 6 }"#, Err("may have 5 workers"))]
    #[case::max_size_is_limited_by_the_pool(r#"{ "size": 5, "maxSize": 50 }"#, Ok(4))]
    #[case::max_size_below_size(r#"{ "size": 3, "maxSize": 2 }"#, Err("create the HTCJob again with a larger maxSize"))]
    #[case::allowed_priority_class(r#"{ "template": { "priorityClassName": "low" } }"#, Ok(4))]
    #[case::other_priority_class(r#"{ "template": { "priorityClassName": "high" } }"#, Err("\"high\" is not among"))]
    #[case::nodes_of_the_pool(
        r#"{ "template": { "nodeSelector": { "disk": "ssd", "kubernetes.io/os": "linux" } } }"#,
        Ok(4)
    )]
    #[case::other_nodes(
        r#"{ "template": { "nodeSelector": { "kubernetes.io/os": "windows" } } }"#,
        Err("nodes with kubernetes.io/os=linux")
    )]
    fn mini_cluster_workers_are_bounded_by_the_pool(#[case] own: &str, #[case] expected: Result<u64, &str>) {
        let (mut pool, mut job) = (pool(), job(1, "1Gi", 8));
        job.spec.mini_cluster = Some(serde_json::from_str(own).unwrap());
        pool.workers.allowed_images = vec!["python:3.13".to_owned()];
        assert_eq!(jobs_per_worker(&pool, &job.spec), Err(NoFit::NoMiniClusters));
        let classes = vec!["low".to_owned()];
        pool.workers.mini_clusters = Some(MiniClusters { max: 5, priority_class_names: classes });
        match (jobs_per_worker(&pool, &job.spec), expected) {
            (Err(said), Err(expected)) => assert!(said.to_string().contains(expected), "{said}"),
            (fits, expected) => assert_eq!(fits.as_ref().ok(), expected.as_ref().ok(), "{fits:?}"),
        }
        assert_eq!(workers_needed(&pool, [coming(&job)]), BTreeMap::new());
        let template = WorkerTemplate { priority_class_name: Some("low".to_owned()), ..WorkerTemplate::default() };
        job.spec.mini_cluster = Some(MiniCluster { template: Some(template), ..MiniCluster::default() });
        assert!(jobs_per_worker(&pool, &job.spec).is_ok());
    }

    /// The HTCJob asks for 10 jobs.
    #[rstest]
    #[case::unknown_demand(json!({}), JobDemand::default(), 0)]
    #[case::all_jobs_imminent(json!({}), JobDemand { unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() }, 10)]
    #[case::all_jobs_accepted(json!({}), JobDemand { unsubmitted: Unsubmitted::Imminent, ..has([8, 2, 0]) }, 10)]
    #[case::some_jobs_ended_and_some_held(json!({}), JobDemand { finished: 5, unsubmitted: Unsubmitted::Imminent, ..has([2, 2, 1]) }, 4)]
    #[case::all_jobs_held(json!({}), has([0, 0, 10]), 0)]
    #[case::indexes(json!({ "queue": 1000, "indexes": "3,17,200" }), JobDemand { unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() }, 3)]
    #[case::indexes_of_which_one_has_ended(json!({ "queue": 1000, "indexes": "3,17,200" }), JobDemand { finished: 1, unsubmitted: Unsubmitted::Imminent, ..has([1, 0, 0]) }, 2)]
    #[case::items_of_a_config_map(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), JobDemand { queue: Some(10), finished: 2, unsubmitted: Unsubmitted::Imminent, ..has([1, 0, 0]) }, 8)]
    #[case::indexes_of_config_map_items(json!({ "queue": null, "indexes": "0,7-8", "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), JobDemand { queue: Some(10), finished: 1, unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() }, 2)]
    #[case::config_map_items_not_read_yet(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), JobDemand { unsubmitted: Unsubmitted::Imminent, ..JobDemand::default() }, 0)]
    #[case::parallelism(json!({ "parallelism": 3 }), JobDemand { finished: 5, unsubmitted: Unsubmitted::Imminent, ..has([1, 1, 0]) }, 3)]
    #[case::held_jobs_count_for_parallelism(json!({ "parallelism": 3 }), JobDemand { unsubmitted: Unsubmitted::Imminent, ..has([0, 1, 2]) }, 1)]
    #[case::parallelism_below_accepted_jobs(json!({ "parallelism": 3 }), JobDemand { unsubmitted: Unsubmitted::Imminent, ..has([0, 5, 1]) }, 5)]
    #[case::queued_without_quota(json!({}), JobDemand { unsubmitted: Unsubmitted::Granted(0), ..JobDemand::default() }, 0)]
    #[case::queued_with_quota_for_some(json!({}), JobDemand { unsubmitted: Unsubmitted::Granted(2), ..has([2, 1, 0]) }, 5)]
    #[case::other_jobs_blocked(json!({}), has([2, 1, 0]), 3)]
    #[case::suspended(json!({ "suspend": true }), has([8, 2, 0]), 2)]
    #[case::suspended_by_its_queue(json!({}), JobDemand { suspended: true, ..has([8, 2, 0]) }, 2)]
    #[case::ended(json!({}), JobDemand { finished: 10, unsubmitted: Unsubmitted::Imminent, ended: true, ..JobDemand::default() }, 0)]
    fn runnable_jobs_request_workers(#[case] spec: Value, #[case] work: JobDemand, #[case] expected: usize) {
        let mut object = serde_json::to_value(job(1, "1Gi", 10)).unwrap();
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        // A status is not trusted: it may be written by others.
        object["status"] = json!({ "phase": "Running", "total": 500, "active": 500, "idle": 400, "running": 100 });
        let job: HTCJob = serde_json::from_value(object).unwrap();
        assert_eq!(wanting(&job, &work), expected);
        assert_eq!(has_waiting_jobs(&job, &work), expected > work.running);
    }

    #[test]
    fn deleting_htcjob_requests_workers_only_for_running_jobs() {
        let mut job = job(1, "1Gi", 10);
        job.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(wanting(&job, &has([7, 3, 0])), 3);
    }

    #[rstest]
    #[case::namespace_of_the_pool(&[], "own", Some(0), true)]
    #[case::other_namespace(&[], "other", Some(0), false)]
    #[case::allowed_namespace(&["other"], "other", Some(0), true)]
    #[case::no_longer_allowed_with_jobs(&["own"], "other", Some(2), true)]
    #[case::no_longer_allowed_with_unknown_demand(&["own"], "other", None, true)]
    fn htcjob_requests_workers_only_from_pools_that_allow_it(
        #[case] allowed: &[&str],
        #[case] namespace: &str,
        #[case] idle: Option<usize>,
        #[case] expected: bool,
    ) {
        let allowed_namespaces = allowed.iter().map(|name| (*name).to_owned()).collect();
        let pool = HTCPoolSpec { allowed_namespaces, ..HTCPoolSpec::default() };
        let mut job = job(1, "1Gi", 10);
        job.metadata.namespace = Some(namespace.to_owned());
        let read = serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap();
        let work = idle.map(|idle| has([idle, 0, 0]));
        assert_eq!(may_request_workers(&pool, "own", &read, work.as_ref()), expected);
    }

    #[test]
    fn htcjob_with_volumes_requests_no_workers_in_another_namespace() {
        let pool = HTCPoolSpec { allowed_namespaces: vec!["other".to_owned()], ..HTCPoolSpec::default() };
        for (namespace, volumes, expected) in [("other", 0, true), ("other", 1, false), ("own", 1, true)] {
            let mut job = job(1, "1Gi", 10);
            job.spec.volumes = vec!["data:/in".parse().unwrap(); volumes];
            job.metadata.namespace = Some(namespace.to_owned());
            let read = serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap();
            assert_eq!(may_request_workers(&pool, "own", &read, Some(&has([1, 0, 0]))), expected, "{namespace}");
        }
    }

    #[test]
    fn workers_are_shared_by_jobs_of_several_htcjobs() {
        let needed = |jobs: &[&HTCJob]| {
            let needed = workers_needed(&pool(), jobs.iter().map(|job| coming(job)));
            assert!(needed.keys().all(|group| group.image == "python:3.12"));
            needed.values().sum::<u32>()
        };
        assert_eq!(needed(&[&job(1, "1Gi", 9)]), 3);
        // Two jobs of one kind and one of the other fill less than two workers.
        assert_eq!(needed(&[&job(2, "1Gi", 1), &job(1, "1Gi", 2), &job(1, "2Gi", 1)]), 2);
    }

    #[rstest]
    #[case::by_namespace(Isolation::Namespace, 2)]
    #[case::without_isolation(Isolation::None, 1)]
    fn isolated_namespaces_get_separate_workers(#[case] isolation: Isolation, #[case] expected: u32) {
        let mut pool = pool();
        pool.workers.isolation = isolation;
        let mut jobs = [job(2, "1Gi", 1), job(2, "1Gi", 1)];
        jobs[0].metadata.namespace = Some("a".to_owned());
        jobs[1].metadata.namespace = Some("b".to_owned());
        let needed = workers_needed(&pool, jobs.iter().map(coming));
        assert_eq!(needed.values().sum::<u32>(), expected, "{needed:?}");
    }
}
