//! Which HTCJobs fit on the workers of a managed pool, and how many workers they fill.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::groups::Shared;
use super::objects::{WorkerSize, worker_image};
use super::work::{Rest, Work};
use crate::api::{HTCJob, HTCJobSpec, HTCPoolSpec, Isolation, ManagedPool, MiniCluster, Observed};
use crate::condor::htcopts::{HtcOpts, Policy};
use crate::workers::Planner;

const MIB: u64 = 1 << 20;
/// What HTCondor's newer tools ask for where the HTCJob says nothing: cores, MiB of memory, MiB of disk.
const UNSAID: [u64; 3] = [1, 128, 1024];
/// Parts of a worker are counted in so many of it.
const WHOLE: u64 = 1 << 20;
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

/// The workers that an HTCJob of this namespace shares with others, if it names this image.
#[must_use]
pub fn shared(pool: &ManagedPool, wanted: &str, namespace: &str) -> Shared {
    let namespace = match pool.workers.isolation {
        Isolation::Namespace => Some(namespace.to_owned()),
        Isolation::None => None,
    };
    Shared { image: image(wanted).to_owned(), namespace }
}

/// How many workers of each group the jobs of these HTCJobs fill: those that run, those that wait, and those that are yet to be
/// submitted. Those that have workers of their own fill none.
#[must_use]
pub fn needed<'a>(pool: &ManagedPool, jobs: impl IntoIterator<Item = (&'a HTCJob, Work)>) -> BTreeMap<Shared, u32> {
    let mut parts: BTreeMap<Shared, u64> = BTreeMap::new();
    for (job, work) in jobs.into_iter().filter(|(job, _)| job.spec.mini_cluster.is_none()) {
        let Ok(count @ 1..) = u64::try_from(wanting(job, &work)) else { continue };
        let Ok(fits) = fits(pool, &job.spec) else { continue };
        let group = shared(pool, job.spec.image(), &job.namespace().unwrap_or_default());
        let sum = parts.entry(group).or_default();
        *sum = sum.saturating_add(count.saturating_mul(WHOLE).div_ceil(fits));
    }
    let whole = |parts: u64| u32::try_from(parts.div_ceil(WHOLE)).unwrap_or(u32::MAX);
    parts.into_iter().map(|(group, parts)| (group, whole(parts))).collect()
}

/// Some of its jobs do not run yet.
#[must_use]
pub fn waits(job: &HTCJob, work: &Work) -> bool {
    wanting(job, work) > work.running
}

/// Whether this HTCJob of a pool may ask for workers: it may use the pool, or has jobs there from when it might. `own`: the pool's
/// namespace; `work`: none if that is not known.
#[must_use]
pub fn may_ask(pool: &HTCPoolSpec, own: &str, object: &Observed, work: Option<&Work>) -> bool {
    pool.allows(own, &object.namespace().unwrap_or_default()) || work.is_none_or(|work| work.active() > 0)
}

/// None of its jobs is to begin, by what it says or by its queue.
#[must_use]
pub const fn is_suspended(job: &HTCJob, work: &Work) -> bool {
    job.spec.suspend || work.suspended
}

/// How many of its jobs want to run: those that HTCondor has, and those that it is about to get.
fn wanting(job: &HTCJob, work: &Work) -> usize {
    if job.metadata.deletion_timestamp.is_some() || is_suspended(job, work) {
        return work.running;
    }
    if work.ended {
        return 0;
    }
    let active = work.active();
    let rest = match work.rest {
        Rest::Waits => 0,
        Rest::Granted(granted) => granted,
        Rest::Comes => asked_for(&job.spec, work.queue).unwrap_or_default().saturating_sub(work.over + active),
    };
    let all = active + rest;
    let most = job.spec.parallelism.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or_default());
    // Those that are held have places.
    all.min(most.max(active)) - work.held
}

/// How many jobs it asks for; none if a ConfigMap says it, and nobody has counted them.
fn asked_for(spec: &HTCJobSpec, counted: Option<u32>) -> Option<usize> {
    let queue = Planner::queue(spec, counted).ok()?;
    let indexes = Planner::indexes(spec, queue).ok()?;
    Some(indexes.map_or(queue as usize, |indexes| indexes.len()))
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
        HTCJob::new("job", spec)
    }

    /// All its jobs are on their way.
    fn coming(job: &HTCJob) -> (&HTCJob, Work) {
        (job, Work { rest: Rest::Comes, ..Work::default() })
    }

    /// How many jobs are idle, run and are held.
    const fn has([idle, running, held]: [usize; 3]) -> Work {
        Work {
            idle,
            running,
            held,
            queue: None,
            over: 0,
            rest: Rest::Waits,
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
        assert_eq!(needed(&pool(), [coming(&job)]), BTreeMap::new());
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
        let workers = BTreeMap::from([(shared(&pool, named, ""), 2)]);
        assert_eq!(needed(&pool, [coming(&job)]), if expected { workers } else { BTreeMap::new() });
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
        assert_eq!(needed(&pool, [coming(&job)]), BTreeMap::new());
        let template = WorkerTemplate { priority_class_name: Some("low".to_owned()), ..WorkerTemplate::default() };
        job.spec.mini_cluster = Some(MiniCluster { template: Some(template), ..MiniCluster::default() });
        assert!(fits(&pool, &job.spec).is_ok());
    }

    /// The HTCJob asks for 10 jobs.
    #[rstest]
    #[case::it_is_new(json!({}), Work::default(), 0)]
    #[case::all_are_on_their_way(json!({}), Work { rest: Rest::Comes, ..Work::default() }, 10)]
    #[case::all_are_there(json!({}), Work { rest: Rest::Comes, ..has([8, 2, 0]) }, 10)]
    #[case::some_have_ended_and_some_are_held(json!({}), Work { over: 5, rest: Rest::Comes, ..has([2, 2, 1]) }, 4)]
    #[case::held_ones_need_none(json!({}), has([0, 0, 10]), 0)]
    #[case::only_some_of_the_indexes(json!({ "queue": 1000, "indexes": "3,17,200" }), Work { rest: Rest::Comes, ..Work::default() }, 3)]
    #[case::of_which_one_has_ended(json!({ "queue": 1000, "indexes": "3,17,200" }), Work { over: 1, rest: Rest::Comes, ..has([1, 0, 0]) }, 2)]
    #[case::items_of_a_config_map(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), Work { queue: Some(10), over: 2, rest: Rest::Comes, ..has([1, 0, 0]) }, 8)]
    #[case::and_only_some_of_them(json!({ "queue": null, "indexes": "0,7-8", "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), Work { queue: Some(10), over: 1, rest: Rest::Comes, ..Work::default() }, 2)]
    #[case::which_are_not_read_yet(json!({ "queue": null, "itemsFrom": { "configMapKeyRef": { "name": "n", "key": "k" } } }), Work { rest: Rest::Comes, ..Work::default() }, 0)]
    #[case::some_at_a_time(json!({ "parallelism": 3 }), Work { over: 5, rest: Rest::Comes, ..has([1, 1, 0]) }, 3)]
    #[case::held_ones_have_places(json!({ "parallelism": 3 }), Work { rest: Rest::Comes, ..has([0, 1, 2]) }, 1)]
    #[case::fewer_at_a_time_than_there_are(json!({ "parallelism": 3 }), Work { rest: Rest::Comes, ..has([0, 5, 1]) }, 5)]
    #[case::in_a_queue_without_room(json!({}), Work { rest: Rest::Granted(0), ..Work::default() }, 0)]
    #[case::in_a_queue_with_room_for_some(json!({}), Work { rest: Rest::Granted(2), ..has([2, 1, 0]) }, 5)]
    #[case::the_rest_waits(json!({}), has([2, 1, 0]), 3)]
    #[case::suspended(json!({ "suspend": true }), has([8, 2, 0]), 2)]
    #[case::by_its_queue(json!({}), Work { suspended: true, ..has([8, 2, 0]) }, 2)]
    #[case::ended(json!({}), Work { over: 10, rest: Rest::Comes, ended: true, ..Work::default() }, 0)]
    fn what_may_run_asks_for_workers(#[case] spec: Value, #[case] work: Work, #[case] expected: usize) {
        let mut object = serde_json::to_value(job(1, "1Gi", 10)).unwrap();
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        // Whoever may write statuses can say anything there.
        object["status"] = json!({ "phase": "Running", "total": 500, "active": 500, "idle": 400, "running": 100 });
        let job: HTCJob = serde_json::from_value(object).unwrap();
        assert_eq!(wanting(&job, &work), expected);
        assert_eq!(waits(&job, &work), expected > work.running);
    }

    #[test]
    fn one_that_goes_asks_for_what_runs() {
        let mut job = job(1, "1Gi", 10);
        job.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(wanting(&job, &has([7, 3, 0])), 3);
    }

    #[rstest]
    #[case::of_the_pool(&[], "own", Some(0), true)]
    #[case::of_another(&[], "other", Some(0), false)]
    #[case::that_is_allowed(&["other"], "other", Some(0), true)]
    #[case::that_was_allowed(&["own"], "other", Some(2), true)]
    #[case::that_may_have_been(&["own"], "other", None, true)]
    fn an_htcjob_asks_for_workers_only_where_it_may_be(
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
        assert_eq!(may_ask(&pool, "own", &read, work.as_ref()), expected);
    }

    #[test]
    fn workers_are_filled_by_all_jobs_together() {
        let needed = |jobs: &[&HTCJob]| {
            let needed = needed(&pool(), jobs.iter().map(|job| coming(job)));
            assert!(needed.keys().all(|group| group.image == "python:3.12"));
            needed.values().sum::<u32>()
        };
        assert_eq!(needed(&[&job(1, "1Gi", 9)]), 3);
        // Two of these and one of those fill less than two workers.
        assert_eq!(needed(&[&job(2, "1Gi", 1), &job(1, "1Gi", 2), &job(1, "2Gi", 1)]), 2);
    }

    #[rstest]
    #[case::unless_the_pool_says_otherwise(Isolation::Namespace, 2)]
    #[case::but_for_all(Isolation::None, 1)]
    fn jobs_of_two_namespaces_fill_workers_of_their_own(#[case] isolation: Isolation, #[case] expected: u32) {
        let mut pool = pool();
        pool.workers.isolation = isolation;
        let mut jobs = [job(2, "1Gi", 1), job(2, "1Gi", 1)];
        jobs[0].metadata.namespace = Some("a".to_owned());
        jobs[1].metadata.namespace = Some("b".to_owned());
        let needed = needed(&pool, jobs.iter().map(coming));
        assert_eq!(needed.values().sum::<u32>(), expected, "{needed:?}");
    }
}
